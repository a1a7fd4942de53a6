// File access on Linux: mmap, pread, rename; SHA-256 by OpenSSL, XXH3 by xxHash, compiled here for our instruction set.
#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/temporary.h"

namespace foretoken {
namespace {

Error io_error(const std::filesystem::path& path, const char* action) {
  const int code = errno;
  const ErrorCode kind = code == ENOENT || code == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
  return {kind, path.string() + ": cannot " + action + ": " + std::generic_category().message(code)};
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() { if (fd >= 0) ::close(fd); }
};

// Local disk file systems of Linux, by the magic numbers of statfs(2). Left out on purpose: tmpfs, which does not notice
// writes through mappings, and network and user-space file systems, whose attributes may be late or made up.
bool keeps_change_times(int64_t type) {
  constexpr int64_t kExt = 0xEF53, kXfs = 0x58465342, kBtrfs = 0x9123683E, kF2fs = 0xF2F52010, kZfs = 0x2FC12FC1;
  return type == kExt || type == kXfs || type == kBtrfs || type == kF2fs || type == kZfs;
}

Result<FileIdentity> identity_of(const Descriptor& file, const std::filesystem::path& path) {
  struct stat info {};
  struct statfs system {};
  if (::fstat(file.fd, &info) != 0 || ::fstatfs(file.fd, &system) != 0) return io_error(path, "read");
  if (!S_ISREG(info.st_mode)) return Error{ErrorCode::kUsage, path.string() + ": not a regular file"};
  const auto nanoseconds = [](const timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; };
  return FileIdentity{.device = info.st_dev,
                      .inode = info.st_ino,
                      .size = static_cast<uint64_t>(info.st_size),
                      .modified_ns = nanoseconds(info.st_mtim),
                      .changed_ns = nanoseconds(info.st_ctim),
                      .vouches = keeps_change_times(static_cast<int64_t>(system.f_type))};
}

Checksum from_xxh(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

}  // namespace

Result<FileIdentity> file_identity(const std::filesystem::path& path) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return io_error(path, "open");
  return identity_of(file, path);
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return io_error(path, "open");
  MappedFile mapped;
  ASSIGN_OR_RETURN(mapped.identity_, identity_of(file, path));
  const size_t size = mapped.identity_.size;
  mapped.path_ = path;
  if (size == 0) return mapped;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) return io_error(path, "map");
  mapped.data_ = static_cast<const std::byte*>(data);
  mapped.size_ = size;
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(identity_, other.identity_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::prefer_huge_pages() const {
  if (data_) ::madvise(const_cast<std::byte*>(data_), size_, MADV_HUGEPAGE);  // advice: a refusal changes nothing
}

void MappedFile::release(std::span<const std::byte> part) const {
  if (part.empty()) return;
  CHECK(part.data() >= data_);
  CHECK(part.data() + part.size() <= data_ + size_);
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

Result<std::string> read_file(const std::filesystem::path& path, size_t limit_bytes) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return io_error(path, "open");
  ASSIGN_OR_RETURN(const FileIdentity identity, identity_of(file, path));
  const size_t size = identity.size;
  if (size > limit_bytes)
    return Error{ErrorCode::kInvalidFile, path.string() + ": " + std::to_string(size) +
                                              " bytes is larger than the limit of " + std::to_string(limit_bytes)};
  std::string content(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::pread(file.fd, content.data() + done, size - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(path, "read");
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  content.resize(done);
  return content;
}

Status write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  ASSIGN_OR_RETURN(TemporaryFile file, TemporaryFile::beside(path));
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = ::write(file.fd(), content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(path, "write");
    done += static_cast<size_t>(n);
  }
  if (::fchmod(file.fd(), 0644) != 0 || ::fsync(file.fd()) != 0) return io_error(path, "write");
  return file.publish();
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) == 1);
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

std::string sha256_hex(std::string_view text) {
  return sha256_hex(std::as_bytes(std::span(text.data(), text.size())));
}

std::string Checksum::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Checksum checksum(std::span<const std::byte> bytes) { return from_xxh(XXH3_128bits(bytes.data(), bytes.size())); }
Checksum checksum(std::string_view text) { return from_xxh(XXH3_128bits(text.data(), text.size())); }

std::vector<Checksum> chunk_checksums(std::span<const std::byte> bytes, ThreadPool& pool,
                                      const std::function<void(std::span<const std::byte>)>& done) {
  std::vector<Checksum> sums((bytes.size() + kChecksumChunk - 1) / kChecksumChunk);
  pool.parallel_for(static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const auto chunk = bytes.subspan(i * kChecksumChunk, std::min(kChecksumChunk, bytes.size() - i * kChecksumChunk));
      sums[i] = checksum(chunk);
      if (done) done(chunk);
    }
  });
  return sums;
}

}  // namespace foretoken
