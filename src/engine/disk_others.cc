// A folder's lock decides whether its files may go; it is held for one removal at a time.
#include "engine/disk_others.h"

#include <algorithm>
#include <tuple>

#include "engine/disk_entry.h"

namespace foretoken {

void DiskOthers::measure() {
  idle_.clear();
  bytes_ = 0;
  const auto folders = files_.list(root_);
  if (!folders) return;  // what cannot be listed cannot be counted or removed
  for (const DiskFiles::Listed& folder : *folders) {
    if (!folder.folder || folder.name == own_ || folder.name.size() != kFolderNameDigits || !is_hex(folder.name)) continue;
    const auto listed = files_.list(root_ / folder.name);
    if (!listed) continue;
    for (const DiskFiles::Listed& file : *listed) {
      if (file.folder || (!is_entry_file_name(file.name) && !is_unfinished_file_name(file.name))) continue;
      bytes_ += blocks_of(file.bytes);
      idle_.push_back({folder.name, file.name, blocks_of(file.bytes), file.modified_ns});
    }
  }
  // Of equal times the larger file is probably the child.
  std::sort(idle_.begin(), idle_.end(), [](const File& a, const File& b) {
    return std::tuple(a.modified_ns, b.bytes, a.name) < std::tuple(b.modified_ns, a.bytes, b.name);
  });
}

Status DiskOthers::remove_oldest() {
  const File file = idle_.front();
  const auto lock = files_.lock(root_ / file.folder / kLockName);
  if (!lock || !*lock) {
    std::erase_if(idle_, [&](const File& other) { return other.folder == file.folder; });
    return {};
  }
  idle_.pop_front();
  TRY(files_.remove(root_ / file.folder / file.name));
  bytes_ -= file.bytes;
  ++removed_;
  return {};
}

}  // namespace foretoken
