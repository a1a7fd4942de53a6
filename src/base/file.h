// Files: read-only mappings, whole-file reads, atomic replacement and content fingerprints. Knows no format.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace foretoken {

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

  // Tells the system that `part` (inside bytes()) will not be read again soon; its pages stop counting as resident.
  void release(std::span<const std::byte> part) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

Result<std::string> read_file(const std::filesystem::path& path, size_t limit_bytes = 256u << 20);

// Writes a temporary file beside `path`, flushes it to disk and renames it: readers see the old or the new content.
Status write_file_atomically(const std::filesystem::path& path, std::string_view content);

// SHA-256 as 64 hexadecimal digits.
std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);

}  // namespace foretoken
