// What other fingerprints keep below the same folder: models of other days and other builds. Their files count towards the size limit
// and give way like one's own, the least recently used first, unless their writer is alive. It reads no entries.
#pragma once

#include <deque>

#include "engine/disk_files.h"

namespace foretoken {

// The size of a file in blocks of 4 KiB, which is what limits count.
constexpr uint64_t blocks_of(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

inline constexpr std::string_view kLockName = "lock";
inline constexpr size_t kFolderNameDigits = 32;  // of the fingerprint

class DiskOthers {
 public:
  // `own` is the name of the folder below `root` that is not looked at. `files` outlives this.
  DiskOthers(DiskFiles& files, DiskFiles::Path root, std::string own) : files_(files), root_(std::move(root)), own_(std::move(own)) {}

  void measure();
  uint64_t bytes() const { return bytes_; }
  uint64_t removed() const { return removed_; }
  // When the next file to go was used last; null when none may go.
  const int64_t* oldest_ns() const { return idle_.empty() ? nullptr : &idle_.front().modified_ns; }
  // Removes that file, or finds that its folder has a writer and leaves the folder alone until the next measurement.
  Status remove_oldest();

 private:
  struct File {
    std::string folder, name;
    uint64_t bytes;
    int64_t modified_ns;
  };

  DiskFiles& files_;
  DiskFiles::Path root_;
  std::string own_;
  std::deque<File> idle_;  // the least recently used first
  uint64_t bytes_ = 0, removed_ = 0;
};

}  // namespace foretoken
