// The disk tier's file operations on Linux.
#include "engine/disk_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <system_error>

namespace foretoken {
namespace {

using Path = DiskFiles::Path;

Error refused(const Path& path, const char* action) {
  const int code = errno;
  const ErrorCode kind = code == ENOENT || code == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
  return {kind, fmt::format("{}: cannot {}: {}", path.string(), action, std::generic_category().message(code))};
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { if (fd_ >= 0) ::close(fd_); }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

int open_retrying(const Path& path, int flags, mode_t mode = 0) {
  int fd;
  do fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  while (fd < 0 && errno == EINTR);
  return fd;
}

// Times that 64 bits of nanoseconds do not hold are the last they hold.
int64_t nanoseconds(const timespec& t) {
  return std::clamp<int64_t>(t.tv_sec, 0, 9'000'000'000) * 1'000'000'000 + t.tv_nsec;
}

class PosixReader final : public DiskFiles::Reader {
 public:
  PosixReader(const Path& path, int fd, uint64_t size) : path_(path), file_(fd), size_(size) {}
  uint64_t size() const override { return size_; }
  Status read(uint64_t offset, std::span<std::byte> out) override {
    while (!out.empty()) {
      const ssize_t n = ::pread(file_.get(), out.data(), out.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return refused(path_, "read");
      if (n == 0) return Error{ErrorCode::kInvalidFile, path_.string() + ": shorter than it was"};
      out = out.subspan(static_cast<size_t>(n));
      offset += static_cast<uint64_t>(n);
    }
    return {};
  }

 private:
  Path path_;
  Descriptor file_;
  uint64_t size_;
};

class PosixWriter final : public DiskFiles::Writer {
 public:
  PosixWriter(const Path& path, int fd) : path_(path), file_(fd) {}
  Status write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::write(file_.get(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return refused(path_, "write");
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return {};
  }
  Status sync() override { return ::fsync(file_.get()) == 0 ? Status() : refused(path_, "flush"); }

 private:
  Path path_;
  Descriptor file_;
};

class PosixLock final : public DiskFiles::Lock {
 public:
  explicit PosixLock(int fd) : file_(fd) {}

 private:
  Descriptor file_;
};

}  // namespace

Status PosixFiles::make_folder(const Path& folder) {
  Path part;
  for (const Path& name : folder) {
    part /= name;
    if (::mkdir(part.c_str(), 0700) == 0 || errno == EEXIST) continue;
    const int code = errno;
    struct stat info {};
    if (::stat(part.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) continue;  // for example the root of a read-only file system
    errno = code;
    return refused(part, "make the folder");
  }
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) return refused(folder, "read");
  if (!S_ISDIR(info.st_mode)) return Error{ErrorCode::kIo, folder.string() + ": not a folder"};
  if (info.st_uid != ::geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return Error{ErrorCode::kIo, folder.string() + ": others can write to this folder; give it to this user alone (chmod 700)"};
  return {};
}

Result<std::vector<DiskFiles::Listed>> PosixFiles::list(const Path& folder) {
  const std::unique_ptr<DIR, CloseFolder> open(::opendir(folder.c_str()));
  if (!open) return refused(folder, "list");
  std::vector<Listed> listed;
  for (errno = 0; const dirent* entry = ::readdir(open.get()); errno = 0) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat info {};
    if (::fstatat(::dirfd(open.get()), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;  // removed meanwhile
    if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) continue;
    listed.push_back({.name = std::string(name),
                      .bytes = static_cast<uint64_t>(info.st_size),
                      .modified_ns = nanoseconds(info.st_mtim),
                      .folder = S_ISDIR(info.st_mode)});
  }
  if (errno != 0) return refused(folder, "list");
  return listed;
}

Result<std::unique_ptr<DiskFiles::Reader>> PosixFiles::open(const Path& file) {
  const int fd = open_retrying(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return refused(file, "open");
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return Error{ErrorCode::kIo, file.string() + ": not a regular file"};
  }
  return std::unique_ptr<Reader>(std::make_unique<PosixReader>(file, fd, static_cast<uint64_t>(info.st_size)));
}

Result<std::unique_ptr<DiskFiles::Writer>> PosixFiles::create(const Path& file) {
  const int fd = open_retrying(file, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
  if (fd < 0) return refused(file, "create");
  return std::unique_ptr<Writer>(std::make_unique<PosixWriter>(file, fd));
}

Status PosixFiles::rename(const Path& from, const Path& to) {
  return ::rename(from.c_str(), to.c_str()) == 0 ? Status() : refused(to, "rename to this");
}

Status PosixFiles::remove(const Path& file) {
  return ::unlink(file.c_str()) == 0 || errno == ENOENT ? Status() : refused(file, "remove");
}

Status PosixFiles::sync_folder(const Path& folder) {
  const Descriptor open(open_retrying(folder, O_RDONLY | O_DIRECTORY));
  return open.ok() && ::fsync(open.get()) == 0 ? Status() : refused(folder, "flush");
}

Status PosixFiles::touch(const Path& file, int64_t modified_ns) {
  const timespec time{.tv_sec = modified_ns / 1'000'000'000, .tv_nsec = modified_ns % 1'000'000'000};
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, time};
  return ::utimensat(AT_FDCWD, file.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0 ? Status() : refused(file, "set the time of");
}

Result<std::unique_ptr<DiskFiles::Lock>> PosixFiles::lock(const Path& file) {
  const int fd = open_retrying(file, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  if (fd < 0) return refused(file, "open");
  auto lock = std::make_unique<PosixLock>(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return std::unique_ptr<Lock>(std::move(lock));
  if (errno == EWOULDBLOCK) return std::unique_ptr<Lock>();
  return refused(file, "lock");
}

Result<uint64_t> PosixFiles::free_bytes(const Path& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) return refused(folder, "read the free space of");
  return uint64_t{info.f_bavail} * info.f_frsize;
}

int64_t PosixFiles::now_ns() const {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds(now);
}

}  // namespace foretoken
