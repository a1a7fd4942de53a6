// One list of all that is temporary. Removing is more than a signal's handler may do, so a thread does it, woken
// through a pipe; it keeps the list's lock until the process is gone, so that nothing is added behind its back.
#include "base/temporary.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace foretoken {
namespace {

namespace fs = std::filesystem;

struct Living {
  std::mutex mutex;
  std::vector<std::string> paths;
  void forget(const std::string& path) { std::erase(paths, path); }
};
// Never destroyed: a signal may come when the program's objects are gone.
Living& living() {
  static Living& all = *new Living;
  return all;
}

std::atomic<int> wake_fd{-1};

void on_signal(int signal) {
  const int saved = errno;
  const auto number = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t written = ::write(wake_fd.load(), &number, 1);
  errno = saved;
}

Error io_error(const fs::path& path, const char* action) {
  const int code = errno;
  const ErrorCode kind = code == ENOENT || code == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
  return {kind, path.string() + ": cannot " + action + ": " + std::generic_category().message(code)};
}

}  // namespace

// ---- Files

Result<TemporaryFile> TemporaryFile::beside(const fs::path& path) {
  TemporaryFile file;
  std::string name = path.string() + ".XXXXXX";
  const std::lock_guard lock(living().mutex);
  file.fd_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (file.fd_ < 0) return io_error(path, "create");
  file.path_ = path;
  file.name_ = name;
  living().paths.push_back(std::move(name));
  return file;
}

TemporaryFile::TemporaryFile(TemporaryFile&& other) noexcept
    : path_(std::move(other.path_)), name_(std::exchange(other.name_, {})), fd_(std::exchange(other.fd_, -1)) {}

TemporaryFile::~TemporaryFile() {
  if (!name_.empty()) {
    const std::lock_guard lock(living().mutex);
    ::unlink(name_.c_str());
    living().forget(name_);
  }
  if (fd_ >= 0) ::close(fd_);
}

Status TemporaryFile::publish() {
  CHECK(!name_.empty());
  const std::lock_guard lock(living().mutex);
  if (::rename(name_.c_str(), path_.c_str()) != 0) return io_error(path_, "write");
  living().forget(name_);
  name_.clear();
  return {};
}

// ---- Folders

TemporaryFolder::TemporaryFolder(const char* name) {
  std::error_code error;
  std::string path = (fs::temp_directory_path(error) / (std::string(name) + "-XXXXXX")).string();
  if (error) return;
  const std::lock_guard lock(living().mutex);
  if (::mkdtemp(path.data()) == nullptr) return;
  path_ = path;
  living().paths.push_back(std::move(path));
}

TemporaryFolder::~TemporaryFolder() {
  if (path_.empty()) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  const std::lock_guard lock(living().mutex);
  living().forget(path_.string());
}

// ---- Signals

void end_by_signal(int signal) {
  const std::lock_guard lock(living().mutex);  // until the end
  for (const std::string& path : living().paths) {
    std::error_code left;
    for (int tries = 0; tries < 3; ++tries)  // other threads may still write into a folder
      if (fs::remove_all(path, left); !left) break;
  }
  std::signal(signal, SIG_DFL);
  ::kill(::getpid(), signal);
  for (;;) ::pause();  // the signal has no further part in this thread's doing
}

void remove_temporaries_on_signals() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;  // then signals do what they did
  CHECK(wake_fd.exchange(ends[1]) < 0);
  std::thread([from = ends[0]] {
    unsigned char signal = 0;
    while (::read(from, &signal, 1) != 1) {
    }
    end_by_signal(signal);
  }).detach();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {
    }, action{};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    action.sa_handler = on_signal;
    action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);  // a second one does not wait for the removal
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace foretoken
