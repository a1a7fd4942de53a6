// What the disk tier asks of a file system, as an interface, so that tests can let any operation fail and pull the plug between any
// two. It knows no entries. Every failure is one sentence with the path and the system's reason.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace foretoken {

class DiskFiles {
 public:
  using Path = std::filesystem::path;

  struct Listed {
    std::string name;  // without the folder
    uint64_t bytes = 0;
    int64_t modified_ns = 0;
    bool folder = false;
  };

  class Reader {
   public:
    virtual ~Reader() = default;
    virtual uint64_t size() const = 0;  // when it was opened
    // Fills `out` from `offset`; kInvalidFile when the file ends before that.
    virtual Status read(uint64_t offset, std::span<std::byte> out) = 0;
  };

  class Writer {
   public:
    virtual ~Writer() = default;
    virtual Status write(std::span<const std::byte> bytes) = 0;  // appends
    virtual Status sync() = 0;                                   // returns when the disk has what was written
  };

  class Lock {
   public:
    virtual ~Lock() = default;  // releases it; so does the end of the process, however it ends
  };

  virtual ~DiskFiles() = default;

  // Makes `folder` with its parents, readable by its owner alone. Refuses a folder that others can write to.
  virtual Status make_folder(const Path& folder) = 0;
  // Regular files and folders; other kinds are left out.
  virtual Result<std::vector<Listed>> list(const Path& folder) = 0;
  virtual Result<std::unique_ptr<Reader>> open(const Path& file) = 0;   // kNotFound, kIo
  virtual Result<std::unique_ptr<Writer>> create(const Path& file) = 0;  // replaces what has that name
  virtual Status rename(const Path& from, const Path& to) = 0;           // atomic; replaces
  virtual Status remove(const Path& file) = 0;                           // a file that is not there is no failure
  virtual Status sync_folder(const Path& folder) = 0;                    // returns when the disk has its names
  virtual Status touch(const Path& file, int64_t modified_ns) = 0;
  // An exclusive lock on `file`, made when absent; null while another process, or another object of this one, holds it.
  virtual Result<std::unique_ptr<Lock>> lock(const Path& file) = 0;
  virtual Result<uint64_t> free_bytes(const Path& folder) = 0;
  // The time of files: nanoseconds of the wall clock.
  virtual int64_t now_ns() const = 0;
};

// The system's own files. Stateless; any thread may use it.
class PosixFiles final : public DiskFiles {
 public:
  Status make_folder(const Path& folder) override;
  Result<std::vector<Listed>> list(const Path& folder) override;
  Result<std::unique_ptr<Reader>> open(const Path& file) override;
  Result<std::unique_ptr<Writer>> create(const Path& file) override;
  Status rename(const Path& from, const Path& to) override;
  Status remove(const Path& file) override;
  Status sync_folder(const Path& folder) override;
  Status touch(const Path& file, int64_t modified_ns) override;
  Result<std::unique_ptr<Lock>> lock(const Path& file) override;
  Result<uint64_t> free_bytes(const Path& folder) override;
  int64_t now_ns() const override;
};

}  // namespace foretoken
