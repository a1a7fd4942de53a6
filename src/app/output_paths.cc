// The system is asked by doing: what permissions, read-only mounts and special file systems allow together is seen in
// no other way.
#include "app/output_paths.h"

#include <filesystem>

#include "base/temporary.h"

namespace foretoken::app {
namespace {

namespace fs = std::filesystem;

std::string creation_fault(const fs::path& file) {
  const auto made = TemporaryFile::beside(file);
  return made ? "" : made.error().message;
}

}  // namespace

std::string check_output_file(const std::string& path) {
  if (path.empty()) return "takes the name of a file to write";
  std::error_code ignored;
  const fs::file_status there = fs::status(path, ignored);
  if (fs::is_directory(there)) return path + ": is a folder; give the name of a file";
  // Files are replaced by renaming: a device or a pipe would be gone.
  if (fs::exists(there) && !fs::is_regular_file(there)) return path + ": is no regular file";
  return creation_fault(path);
}

std::string check_output_folder(const std::string& path) {
  if (path.empty()) return "takes the name of a folder";
  std::error_code ignored;
  fs::path there = fs::absolute(path, ignored).lexically_normal();
  while (!fs::exists(there, ignored) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, ignored)) return there.string() + ": is no folder";
  const std::string fault = creation_fault(there / "foretoken");
  return fault.empty() ? "" : path + ": cannot be written to: " + fault;
}

std::string check_cache_folder(const std::string& path) {
  std::error_code ignored;
  for (const char* kept : {"packed", "prefix"})
    if (!path.empty() && fs::is_directory(fs::path(path) / kept, ignored)) return "";
  return check_output_folder(path);
}

}  // namespace foretoken::app
