// Matrices, then the table, then a trailer of fixed size: a file is written in one go, and what was cut off lacks its trailer. The
// checksums of chunks cover every byte before the table, the trailer's checksum covers the table, and each field of the trailer has
// one right value for a given table and file size.
#include "bundle/packed_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "base/bytes.h"

namespace foretoken {
namespace {

namespace fs = std::filesystem;

constexpr size_t kAlignment = 64;
constexpr uint64_t kVersion = 1;
constexpr std::string_view kMagic = "foretoken packed";  // 16 bytes

struct Trailer {
  uint64_t data_bytes, table_bytes;
  Checksum table;
  uint64_t version;
  char magic[16];
};
static_assert(sizeof(Trailer) == 56);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

Error io_error(const std::string& path, const char* action) {
  return {ErrorCode::kIo, path + ": cannot " + action + ": " + std::generic_category().message(errno)};
}

// Files that others can write to would let them choose the weights.
Status check_owner(const fs::path& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0)
    return Error{errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo, path.string() + ": cannot be read"};
  if (!S_ISREG(info.st_mode)) return Error{ErrorCode::kInvalidFile, path.string() + ": not a regular file"};
  if (info.st_uid != ::geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return Error{ErrorCode::kInvalidFile, path.string() + ": others can write to it"};
  return {};
}

}  // namespace

// ---- Reading

Result<PackedFile> PackedFile::open_unchecked(const fs::path& path, std::string_view key) {
  const auto fault = [&](std::string_view what) { return Error{ErrorCode::kInvalidFile, fmt::format("{}: {}", path.string(), what)}; };
  TRY(check_owner(path));
  PackedFile packed;
  ASSIGN_OR_RETURN(packed.file_, MappedFile::open(path));
  const std::span<const std::byte> bytes = packed.file_.bytes();
  Trailer trailer;
  if (bytes.size() < sizeof trailer) return fault("too short");
  std::memcpy(&trailer, bytes.data() + bytes.size() - sizeof trailer, sizeof trailer);
  if (std::string_view(trailer.magic, sizeof trailer.magic) != kMagic) return fault("not a file of packed weights, or cut off");
  if (trailer.version != kVersion) return fault("written by another version");
  const uint64_t before_trailer = bytes.size() - sizeof trailer;
  if (trailer.data_bytes > before_trailer || trailer.table_bytes != before_trailer - trailer.data_bytes) return fault("damaged sizes");
  const auto table = bytes.subspan(trailer.data_bytes, trailer.table_bytes);
  if (checksum(table) != trailer.table) return fault("a damaged table");

  // From here on the table is what its writer wrote; it is read with care all the same.
  ByteReader reader(table);
  if (reader.take_text(reader.read<uint64_t>()) != key) return fault("made from other weights, or by another version");
  const auto entries = reader.read<uint64_t>();
  if (entries > reader.remaining() / sizeof(Entry)) return fault("a damaged table");
  for (uint64_t i = 0; i < entries; ++i) {
    const Entry entry{.offset = reader.read<uint64_t>(), .bytes = reader.read<uint64_t>()};
    if (entry.offset % kAlignment != 0 || entry.offset > trailer.data_bytes || entry.bytes > trailer.data_bytes - entry.offset)
      return fault("a damaged table");
    packed.entries_.push_back(entry);
  }
  const uint64_t chunks = (trailer.data_bytes + kChecksumChunk - 1) / kChecksumChunk;
  if (!reader.ok() || reader.remaining() != chunks * sizeof(Checksum)) return fault("a damaged table");
  for (uint64_t i = 0; i < chunks; ++i) packed.chunks_.push_back(reader.read<Checksum>());
  packed.data_bytes_ = trailer.data_bytes;
  return packed;
}

Result<PackedFile> PackedFile::open(const fs::path& path, std::string_view key, ThreadPool& pool) {
  ASSIGN_OR_RETURN(PackedFile packed, open_unchecked(path, key));
  packed.file_.prefer_huge_pages();
  if (chunk_checksums(packed.file_.bytes().first(packed.data_bytes_), pool) != packed.chunks_)
    return Error{ErrorCode::kInvalidFile, path.string() + ": damaged"};
  return packed;
}

std::span<const std::byte> PackedFile::operator[](size_t index) const {
  CHECK(index < entries_.size());
  return file_.bytes().subspan(entries_[index].offset, entries_[index].bytes);
}

// ---- Writing

Result<PackedFileWriter> PackedFileWriter::create(const fs::path& path, std::string key) {
  ASSIGN_OR_RETURN(TemporaryFile file, TemporaryFile::beside(path));
  if (::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) return io_error(path.string(), "lock");
  PackedFileWriter writer(std::move(file));
  writer.path_ = path;
  writer.key_ = std::move(key);
  writer.pending_.reserve(kChecksumChunk);
  return writer;
}

Status PackedFileWriter::write_pending() {
  for (size_t done = 0; done < pending_.size();) {
    const ssize_t n = ::write(file_.fd(), pending_.data() + done, pending_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(path_.string(), "write");
    done += static_cast<size_t>(n);
  }
  written_ += pending_.size();
  pending_.clear();
  return {};
}

// Full chunks go to the file: few large writes let the system keep the file in large pages.
Status PackedFileWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t part = std::min(bytes.size(), kChecksumChunk - pending_.size());
    pending_.insert(pending_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(part));
    bytes = bytes.subspan(part);
    if (pending_.size() < kChecksumChunk) continue;
    chunks_.push_back(checksum(pending_));
    TRY(write_pending());
  }
  return {};
}

Status PackedFileWriter::add(std::span<const std::byte> matrix) {
  entries_.push_back(file_bytes());
  entries_.push_back(matrix.size());
  TRY(append(matrix));
  constexpr std::byte kZeros[kAlignment] = {};
  return append(std::span(kZeros).first((kAlignment - matrix.size() % kAlignment) % kAlignment));
}

Status PackedFileWriter::finish() {
  const uint64_t data_bytes = file_bytes();
  if (!pending_.empty()) chunks_.push_back(checksum(pending_));
  TRY(write_pending());
  std::vector<std::byte> table;
  const auto put = [&](std::span<const std::byte> bytes) { table.insert(table.end(), bytes.begin(), bytes.end()); };
  put(bytes_of(uint64_t{key_.size()}));
  put(std::as_bytes(std::span(key_)));
  put(bytes_of(uint64_t{entries_.size() / 2}));
  put(std::as_bytes(std::span(entries_)));
  put(std::as_bytes(std::span(chunks_)));
  Trailer trailer{.data_bytes = data_bytes, .table_bytes = table.size(), .table = checksum(table), .version = kVersion, .magic = {}};
  kMagic.copy(trailer.magic, sizeof trailer.magic);
  put(bytes_of(trailer));
  pending_ = std::move(table);
  return write_pending();
}

Status PackedFileWriter::publish() {
  if (::fsync(file_.fd()) != 0) return io_error(path_.string(), "write");
  return file_.publish();
}

void PackedFileWriter::remove_abandoned(const fs::path& folder) {
  constexpr auto kYoung = std::chrono::seconds(60);  // its writer may not have locked it yet
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find(std::string(kPackedSuffix) + ".") == name.npos || !entry.is_regular_file(ignored)) continue;
    if (fs::file_time_type::clock::now() - entry.last_write_time(ignored) < kYoung) continue;
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) fs::remove(entry.path(), ignored);
    ::close(fd);
  }
}

}  // namespace foretoken
