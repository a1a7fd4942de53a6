// Files: read-only mappings, whole-file reads, atomic replacement, fingerprints and checksums. Knows no format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/threads.h"

namespace foretoken {

// What the file system says of one state of one file. Equal values mean equal bytes as far as `vouches` goes.
struct FileIdentity {
  uint64_t device = 0, inode = 0, size = 0;
  int64_t modified_ns = 0, changed_ns = 0;  // content; content or attributes. No program can set the second.
  // The file system is known to move `changed_ns` with every write, mapped ones included, and to keep inode numbers.
  bool vouches = false;

  bool operator==(const FileIdentity&) const = default;
};
Result<FileIdentity> file_identity(const std::filesystem::path& path);

// A read-only private mapping. Bytes stay valid for the object's lifetime; moving keeps addresses.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  const FileIdentity& identity() const { return identity_; }  // when it was opened

  // Asks for large pages, before the first read: faster to walk through, slower to touch here and there.
  void prefer_huge_pages() const;

  // Tells the system that `part` (inside bytes()) will not be read again soon; its pages stop counting as resident.
  void release(std::span<const std::byte> part) const;

 private:
  std::filesystem::path path_;
  FileIdentity identity_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

Result<std::string> read_file(const std::filesystem::path& path, size_t limit_bytes = 256u << 20);

// Writes a temporary file beside `path`, flushes it to disk and renames it: readers see the old or the new content.
Status write_file_atomically(const std::filesystem::path& path, std::string_view content);

// SHA-256 as 64 hexadecimal digits.
std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);

// XXH3 of 128 bits, at memory speed: finds accidents of every kind, but a person can make two texts with one checksum.
struct Checksum {
  uint64_t low = 0, high = 0;
  bool operator==(const Checksum&) const = default;
  std::string hex() const;  // 32 digits
};
Checksum checksum(std::span<const std::byte> bytes);
Checksum checksum(std::string_view text);

// The checksum of each kChecksumChunk bytes, the last of what remains; `pool` shares them out. `done`, where given, is called by any
// thread for parts that will not be read again.
inline constexpr size_t kChecksumChunk = size_t{4} << 20;
std::vector<Checksum> chunk_checksums(std::span<const std::byte> bytes, ThreadPool& pool,
                                      const std::function<void(std::span<const std::byte>)>& done = {});

}  // namespace foretoken
