// A file of packed matrices: bytes in the layout of one backend, under a key that says exactly what they were made from. Read as a
// shared mapping after every byte was checked; written under another name and renamed when complete. It knows neither layouts nor
// keys, only that they are equal or not. Layout of the file: docs/formats.md, "Packed weights".
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "base/temporary.h"

namespace foretoken {

class PackedFile {
 public:
  // Maps `path` and checks all of it. kNotFound when there is none; kInvalidFile, with a reason, when it is truncated, damaged, foreign,
  // of another version, has another key, or could have been written by somebody else.
  static Result<PackedFile> open(const std::filesystem::path& path, std::string_view key, ThreadPool& pool);
  // The same, but for the matrices' bytes, which are not read.
  static Result<PackedFile> open_unchecked(const std::filesystem::path& path, std::string_view key);

  size_t size() const { return entries_.size(); }
  // The bytes of one matrix, 64-byte aligned; valid while the file lives.
  std::span<const std::byte> operator[](size_t index) const;
  uint64_t file_bytes() const { return file_.bytes().size(); }

 private:
  struct Entry {
    uint64_t offset, bytes;
  };
  MappedFile file_;
  uint64_t data_bytes_ = 0;
  std::vector<Entry> entries_;
  std::vector<Checksum> chunks_;
};

// Nothing is visible under `path` before `publish` returns; an abandoned writer leaves nothing.
class PackedFileWriter {
 public:
  static Result<PackedFileWriter> create(const std::filesystem::path& path, std::string key);
  PackedFileWriter(PackedFileWriter&&) noexcept = default;
  PackedFileWriter& operator=(PackedFileWriter&&) = delete;
  ~PackedFileWriter() = default;

  Status add(std::span<const std::byte> matrix);
  // Writes the table. Nothing may be added afterwards.
  Status finish();
  // Flushes to the disk, then renames: seconds for a large file.
  Status publish();

  const std::filesystem::path& path() const { return path_; }
  uint64_t file_bytes() const { return written_ + pending_.size(); }

  // Removes what writers that no longer run left behind in `folder`.
  static void remove_abandoned(const std::filesystem::path& folder);

 private:
  explicit PackedFileWriter(TemporaryFile file) : file_(std::move(file)) {}
  Status append(std::span<const std::byte> bytes);
  Status write_pending();

  std::filesystem::path path_;
  std::string key_;
  TemporaryFile file_;  // locked: that is how others know that its writer lives
  std::vector<std::byte> pending_;  // less than a chunk
  uint64_t written_ = 0;
  std::vector<uint64_t> entries_;  // offset, bytes
  std::vector<Checksum> chunks_;
};

inline constexpr std::string_view kPackedSuffix = ".packed";

}  // namespace foretoken
