// Offsets are not stored: they follow from the lengths, so that a header has one way to be right.
#include "engine/disk_entry.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/bytes.h"

namespace foretoken {
namespace {

constexpr std::string_view kMagic = "foretoken prefix";  // 16 bytes
constexpr uint64_t kAlignment = 64;
constexpr uint64_t kMaxPageBytes = uint64_t{1} << 32, kMaxBlobBytes = uint64_t{1} << 44;  // sums of products stay below 2^63
constexpr size_t kSealedBytes = kEntryHeaderBytes - sizeof(Checksum);

constexpr uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

class HeaderWriter {
 public:
  template <class T>
  void put(const T& value) {
    CHECK(at_ + sizeof(T) <= kSealedBytes);
    std::memcpy(bytes_.data() + at_, &value, sizeof(T));
    at_ += sizeof(T);
  }
  std::array<std::byte, kEntryHeaderBytes> sealed() {
    const Checksum sum = checksum(std::span(bytes_).first(kSealedBytes));
    std::memcpy(bytes_.data() + kSealedBytes, &sum, sizeof sum);
    return bytes_;
  }

 private:
  std::array<std::byte, kEntryHeaderBytes> bytes_{};
  size_t at_ = 0;
};

bool sound_numbers(const EntryHeader& h) {
  if (h.length < 1 || h.length > kMaxEntryTokens) return false;
  if (h.parent_length < 0 || h.parent_length >= h.length) return false;
  if ((h.parent_length == 0) != (h.parent_key == Digest{})) return false;
  return h.page_bytes <= kMaxPageBytes && h.state_bytes <= kMaxBlobBytes && h.drafter_bytes <= kMaxBlobBytes;
}

Status write_part(DiskFiles::Writer& file, EntryHeader::Part part, std::span<const std::byte> bytes) {
  CHECK(bytes.size() == part.bytes);
  constexpr std::byte kZeros[kAlignment] = {};
  TRY(file.write(bytes));
  return file.write(std::span(kZeros).first(aligned(part.bytes) - part.bytes));
}

}  // namespace

Checksum extend(const Checksum& before, std::span<const TokenId> tokens) {
  CHECK(tokens.size() <= size_t{kPageTokens});
  std::array<std::byte, sizeof before + kPageTokens * sizeof(TokenId)> text;
  std::memcpy(text.data(), &before, sizeof before);
  if (!tokens.empty()) std::memcpy(text.data() + sizeof before, tokens.data(), tokens.size_bytes());
  return checksum(std::span(text).first(sizeof before + tokens.size_bytes()));
}

// ---- Layout

EntryHeader::Part EntryHeader::tokens() const {
  return {kEntryHeaderBytes, static_cast<uint64_t>(length - parent_length) * sizeof(TokenId)};
}
EntryHeader::Part EntryHeader::pages() const {
  return {aligned(tokens().offset + tokens().bytes), static_cast<uint64_t>(page_count()) * page_bytes};
}
EntryHeader::Part EntryHeader::state() const { return {aligned(pages().offset + pages().bytes), state_bytes}; }
EntryHeader::Part EntryHeader::drafter() const { return {aligned(state().offset + state_bytes), drafter_bytes}; }
uint64_t EntryHeader::file_bytes() const { return aligned(drafter().offset + drafter_bytes); }

// ---- Names

Sha256& start_key(Sha256& hash, const Digest& fingerprint) { return hash.update(fingerprint); }
Sha256& add_tokens(Sha256& hash, std::span<const TokenId> tokens) { return hash.update(std::as_bytes(tokens)); }

bool is_hex(std::string_view text) { return text.find_first_not_of("0123456789abcdef") == text.npos; }

std::string entry_file_name(const Digest& key) { return hex(key) + std::string(kEntrySuffix); }

bool is_entry_file_name(std::string_view name) {
  return name.size() == 64 + kEntrySuffix.size() && name.ends_with(kEntrySuffix) && is_hex(name.substr(0, 64));
}

bool is_unfinished_file_name(std::string_view name) {
  return name.ends_with(kUnfinishedSuffix) && is_entry_file_name(name.substr(0, name.size() - kUnfinishedSuffix.size()));
}

// ---- The header

std::array<std::byte, kEntryHeaderBytes> encode(const EntryHeader& h) {
  HeaderWriter out;
  std::array<char, kMagic.size()> magic;
  std::copy(kMagic.begin(), kMagic.end(), magic.begin());
  out.put(magic);
  out.put(kEntryVersion);
  out.put(uint32_t{kPageTokens});
  out.put(h.page_bytes);
  out.put(h.fingerprint);
  out.put(h.key);
  out.put(h.parent_key);
  out.put(h.length);
  out.put(h.parent_length);
  out.put(h.state_bytes);
  out.put(h.drafter_bytes);
  for (const Checksum* sum : {&h.stem, &h.path, &h.tokens_sum, &h.pages_sum, &h.state_sum, &h.drafter_sum}) out.put(*sum);
  return out.sealed();
}

std::optional<DiskFault> parse_header(std::span<const std::byte> bytes, uint64_t file_bytes, EntryHeader& header) {
  if (bytes.size() < kEntryHeaderBytes) return DiskFault::kTruncated;
  ByteReader in(bytes.first(kEntryHeaderBytes));
  if (in.take_text(kMagic.size()) != kMagic) return DiskFault::kForeign;
  if (in.read<uint32_t>() != kEntryVersion) return DiskFault::kVersion;
  Checksum sum;
  std::memcpy(&sum, bytes.data() + kSealedBytes, sizeof sum);
  if (checksum(bytes.first(kSealedBytes)) != sum) return DiskFault::kDamaged;

  // From here on the header is what its writer wrote; it is read with care all the same.
  EntryHeader h;
  if (in.read<uint32_t>() != kPageTokens) return DiskFault::kForeign;
  h.page_bytes = in.read<uint64_t>();
  h.fingerprint = in.read<Digest>();
  h.key = in.read<Digest>();
  h.parent_key = in.read<Digest>();
  h.length = in.read<int64_t>();
  h.parent_length = in.read<int64_t>();
  h.state_bytes = in.read<uint64_t>();
  h.drafter_bytes = in.read<uint64_t>();
  for (Checksum* field : {&h.stem, &h.path, &h.tokens_sum, &h.pages_sum, &h.state_sum, &h.drafter_sum}) *field = in.read<Checksum>();
  if (!sound_numbers(h)) return DiskFault::kDamaged;
  if (h.file_bytes() != file_bytes) return DiskFault::kTruncated;
  header = h;
  return std::nullopt;
}

// ---- Files

void seal(EntryHeader& header, const EntryParts& parts) {
  header.tokens_sum = checksum(std::as_bytes(parts.tokens));
  header.pages_sum = checksum(parts.pages);
  header.state_sum = checksum(parts.state);
  header.drafter_sum = checksum(parts.drafter);
}

Status write_entry(DiskFiles::Writer& file, const EntryHeader& header, const EntryParts& parts) {
  TRY(file.write(encode(header)));
  TRY(write_part(file, header.tokens(), std::as_bytes(parts.tokens)));
  TRY(write_part(file, header.pages(), parts.pages));
  TRY(write_part(file, header.state(), parts.state));
  TRY(write_part(file, header.drafter(), parts.drafter));
  return file.sync();
}

std::optional<Buffer> host_buffer(uint64_t bytes) {
  if (bytes == 0) return Buffer();
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, aligned(bytes)));
  if (!data) return std::nullopt;
  return Buffer(data, bytes, [](std::byte* p) { std::free(p); });
}

namespace {

DiskFault fault_of(const Error& error) {
  if (error.code == ErrorCode::kNotFound) return DiskFault::kGone;
  return error.code == ErrorCode::kInvalidFile ? DiskFault::kTruncated : DiskFault::kUnreadable;
}

}  // namespace

std::optional<DiskFault> read_header(DiskFiles& files, const DiskFiles::Path& path, std::unique_ptr<DiskFiles::Reader>& file,
                                     EntryHeader& header) {
  auto opened = files.open(path);
  if (!opened) return fault_of(opened.error());
  file = *std::move(opened);
  std::array<std::byte, kEntryHeaderBytes> bytes;
  if (file->size() < bytes.size()) return DiskFault::kTruncated;
  if (const Status read = file->read(0, bytes); !read) return fault_of(read.error());
  return parse_header(bytes, file->size(), header);
}

std::optional<DiskFault> read_part(DiskFiles::Reader& file, EntryHeader::Part part, const Checksum& sum, std::span<std::byte> out) {
  CHECK(out.size() == part.bytes);
  if (const Status read = file.read(part.offset, out); !read) return fault_of(read.error());
  return checksum(out) == sum ? std::nullopt : std::optional(DiskFault::kDamaged);
}

}  // namespace foretoken
