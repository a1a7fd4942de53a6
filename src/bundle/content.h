// The content of a bundle's weight files as one checksum over all their bytes, and the memory that spares reading them again while
// the file system vouches that they did not change. It knows no tensors.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "base/threads.h"
#include "bundle/bundle.h"

namespace foretoken {

// 32 hexadecimal digits over every byte of every file of the bundle, in the bundle's order of files.
std::string content_checksum(const Bundle& bundle, ThreadPool& pool);

// What content the files had when remember_content was called with files of the same identity (device, inode, size, both times), if it
// was. Reads no weights. `folder` holds one small file for each remembered bundle.
std::optional<std::string> remembered_content(const Bundle& bundle, const std::filesystem::path& folder);

// Notes `content` for the files as they are now. Does nothing where identities prove nothing: on file systems that do not vouch, for
// files that changed since the bundle was opened, and for files that were written in the last `settled`: their next change might carry
// the same time, or come through a mapping that the system has already marked as written. Failures to write are no harm.
inline constexpr std::chrono::seconds kSettled{60};  // dirty pages are flushed, and later writes seen, after half of it
void remember_content(const Bundle& bundle, const std::filesystem::path& folder, const std::string& content,
                      std::chrono::seconds settled = kSettled);

// The files still are what they were when the bundle was opened, as far as the file system tells.
bool unchanged_since_opening(const Bundle& bundle);

}  // namespace foretoken
