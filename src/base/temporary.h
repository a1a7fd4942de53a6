// Files under construction and folders of scratch. They go with their object, and with the program when a signal ends it.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace foretoken {

// A new file, open for writing, under a name of its own beside the one it is to get (NAME.XXXXXX, mode 0600).
class TemporaryFile {
 public:
  static Result<TemporaryFile> beside(const std::filesystem::path& path);
  TemporaryFile(TemporaryFile&& other) noexcept;
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile();  // removes it, unless it was published, and closes it

  int fd() const { return fd_; }
  const std::string& name() const { return name_; }  // empty once published
  // Renames it to what it was made beside. It stays open.
  Status publish();

 private:
  TemporaryFile() = default;
  std::filesystem::path path_;
  std::string name_;
  int fd_ = -1;
};

// A new folder in the system's folder of temporary files, of this user alone.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const char* name);
  ~TemporaryFolder();  // what cannot be removed is left to the system
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }  // empty: there is none

 private:
  std::filesystem::path path_;
};

// From now on SIGINT, SIGTERM and SIGHUP end the program as ever, but what lives of the above goes first. Signals that are ignored
// stay so. To be called once, by the program; a handler that replaces this one takes the duty over.
void remove_temporaries_on_signals();
// The same end without a signal from outside.
[[noreturn]] void end_by_signal(int signal);

}  // namespace foretoken
