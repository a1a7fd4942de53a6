// A file system in memory for the disk tier's tests. It counts operations, lets chosen ones fail, records the most bytes it ever held,
// and can lose power: names and bytes that were not flushed are then lost, kept or torn, as a seed decides.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/disk_files.h"

namespace foretoken::testing {

class SimulatedFiles final : public DiskFiles {
 public:
  // How operation number `at` (from 0) goes wrong.
  enum class Failure {
    kBefore,  // it fails and has done nothing; a write has done half
    kAfter,   // it was done, and says that it failed
    kDead,    // it and all that follow fail: the moment of a crash
  };
  void fail(int64_t at, Failure how) { fail_at_ = at, how_ = how; }
  // Operations whose description contains `text` fail with `message` until called with "".
  void refuse(std::string text, std::string message = "No space left on device") {
    refused_ = std::move(text), refusal_ = std::move(message);
  }
  // Flushes say that they are done and are not, as on a disk that lies.
  void lie_about_flushes() { lies_ = true; }
  void heal() { fail_at_ = -1, refused_.clear(); }

  int64_t operations() const { return operations_; }
  uint64_t most_bytes() const { return most_bytes_; }  // in blocks of 4 KiB, of files with bytes
  void set_free_bytes(uint64_t bytes) { free_bytes_ = bytes; }

  // Loses power: what the next process finds. Locks are gone.
  void crash(uint64_t seed) {
    const std::lock_guard guard(mutex_);
    std::mt19937_64 random(seed);
    for (auto& [path, folder] : folders_) {
      auto names = folder.durable;
      for (const Change& change : folder.changes)
        if (random() % 2 == 0) change.apply(names);
      folder.visible = folder.durable = names;
      folder.changes.clear();
      for (auto& [name, file] : folder.visible) tear(*file, random);
    }
    locks_.clear();
    heal();
  }

  // Ends the process alone: what was written is there, flushed or not.
  void kill() {
    locks_.clear();
    heal();
  }

  // Direct access for tests: every file with its bytes, in order of paths.
  std::vector<std::string> paths() const {
    std::vector<std::string> all;
    for (const auto& [path, folder] : folders_)
      for (const auto& [name, file] : folder.visible) all.push_back((Path(path) / name).string());
    return all;
  }
  std::vector<std::byte>& bytes(const std::string& path) {
    File& file = *folders_.at(Path(path).parent_path().string()).visible.at(Path(path).filename().string());
    return file.content;
  }
  void add(const Path& path, std::vector<std::byte> content) {
    auto file = std::make_shared<File>();
    file->content = file->durable = std::move(content);
    file->modified_ns = ++now_ns_;
    folders_[path.parent_path().string()].visible[path.filename().string()] = file;
    folders_[path.parent_path().string()].durable[path.filename().string()] = file;
  }
  uint64_t total_bytes() const {
    uint64_t total = 0;
    for (const auto& [path, folder] : folders_)
      for (const auto& [name, file] : folder.visible) total += (file->content.size() + 4095) / 4096 * 4096;
    return total;
  }

  // ---- DiskFiles

  Status make_folder(const Path& folder) override {
    return perform("make_folder " + folder.string(), [&]() -> Status {
      for (Path part = folder; part.has_relative_path(); part = part.parent_path()) folders_[part.string()];
      return {};
    });
  }

  Result<std::vector<Listed>> list(const Path& folder) override {
    std::vector<Listed> listed;
    TRY(perform("list " + folder.string(), [&]() -> Status {
      const auto found = folders_.find(folder.string());
      if (found == folders_.end()) return missing(folder);
      for (const auto& [name, file] : found->second.visible) listed.push_back({name, file->content.size(), file->modified_ns, false});
      for (const auto& [path, other] : folders_)
        if (Path(path).parent_path() == folder && Path(path) != folder) listed.push_back({Path(path).filename().string(), 0, 0, true});
      return {};
    }));
    return listed;
  }

  Result<std::unique_ptr<Reader>> open(const Path& path) override {
    std::unique_ptr<Reader> reader;
    TRY(perform("open " + path.string(), [&]() -> Status {
      const auto file = find(path);
      if (!file) return missing(path);
      reader = std::make_unique<SimulatedReader>(*this, path, file);
      return {};
    }));
    return reader;
  }

  Result<std::unique_ptr<Writer>> create(const Path& path) override {
    std::unique_ptr<Writer> writer;
    TRY(perform("create " + path.string(), [&]() -> Status {
      const auto folder = folders_.find(path.parent_path().string());
      if (folder == folders_.end()) return missing(path);
      auto file = std::make_shared<File>();
      file->modified_ns = ++now_ns_;
      change(folder->second, {.name = path.filename().string(), .file = file});
      writer = std::make_unique<SimulatedWriter>(*this, path, file);
      return {};
    }));
    return writer;
  }

  Status rename(const Path& from, const Path& to) override {
    return perform("rename " + to.string(), [&]() -> Status {
      const auto file = find(from);
      if (!file) return missing(from);
      change(folders_.at(from.parent_path().string()), {.name = to.filename().string(), .file = file, .gone = from.filename().string()});
      return {};
    });
  }

  Status remove(const Path& path) override {
    return perform("remove " + path.string(), [&]() -> Status {
      if (find(path)) change(folders_.at(path.parent_path().string()), {.gone = path.filename().string()});
      return {};
    });
  }

  Status sync_folder(const Path& folder) override {
    return perform("sync_folder " + folder.string(), [&]() -> Status {
      if (lies_) return {};
      Folder& f = folders_.at(folder.string());
      f.durable = f.visible;
      f.changes.clear();
      return {};
    });
  }

  Status touch(const Path& path, int64_t modified_ns) override {
    return perform("touch " + path.string(), [&]() -> Status {
      const auto file = find(path);
      if (!file) return missing(path);
      file->modified_ns = modified_ns;
      return {};
    });
  }

  Result<std::unique_ptr<Lock>> lock(const Path& path) override {
    std::unique_ptr<Lock> lock;
    TRY(perform("lock " + path.string(), [&]() -> Status {
      if (locks_.insert(path.string()).second) lock = std::make_unique<SimulatedLock>(*this, path.string());
      return {};
    }));
    return lock;
  }

  Result<uint64_t> free_bytes(const Path& folder) override {
    TRY(perform("free_bytes " + folder.string(), [] { return Status(); }));
    return free_bytes_;
  }

  int64_t now_ns() const override {
    const std::lock_guard guard(mutex_);
    return ++now_ns_;
  }

 private:
  struct File {
    std::vector<std::byte> content, durable;
    int64_t modified_ns = 0;
  };
  using Names = std::map<std::string, std::shared_ptr<File>>;
  struct Change {
    std::string name{};  // appears, when not empty
    std::shared_ptr<File> file{};
    std::string gone{};  // disappears, when not empty
    void apply(Names& names) const {
      if (!gone.empty()) names.erase(gone);
      if (!name.empty()) names[name] = file;
    }
  };
  struct Folder {
    Names visible, durable;
    std::vector<Change> changes;  // since the folder was flushed
  };

  class SimulatedReader final : public Reader {
   public:
    SimulatedReader(SimulatedFiles& files, Path path, std::shared_ptr<File> file)
        : files_(files), path_(std::move(path)), file_(std::move(file)), size_(file_->content.size()) {}
    uint64_t size() const override { return size_; }
    Status read(uint64_t offset, std::span<std::byte> out) override {
      return files_.perform("read " + path_.string(), [&]() -> Status {
        if (offset + out.size() > file_->content.size()) return Error{ErrorCode::kInvalidFile, path_.string() + ": shorter than it was"};
        if (!out.empty()) std::memcpy(out.data(), file_->content.data() + offset, out.size());
        return {};
      });
    }

   private:
    SimulatedFiles& files_;
    Path path_;
    std::shared_ptr<File> file_;
    uint64_t size_;
  };

  class SimulatedWriter final : public Writer {
   public:
    SimulatedWriter(SimulatedFiles& files, Path path, std::shared_ptr<File> file)
        : files_(files), path_(std::move(path)), file_(std::move(file)) {}
    Status write(std::span<const std::byte> bytes) override {
      const auto append = [&](size_t count) {
        file_->content.insert(file_->content.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
        files_.most_bytes_ = std::max(files_.most_bytes_, files_.total_bytes());
      };
      const Status status = files_.perform("write " + path_.string(), [&]() -> Status {
        append(bytes.size());
        return {};
      }, [&] { append(bytes.size() / 2); });
      return status;
    }
    Status sync() override {
      return files_.perform("sync " + path_.string(), [&]() -> Status {
        if (!files_.lies_) file_->durable = file_->content;
        return {};
      });
    }

   private:
    SimulatedFiles& files_;
    Path path_;
    std::shared_ptr<File> file_;
  };

  class SimulatedLock final : public Lock {
   public:
    SimulatedLock(SimulatedFiles& files, std::string path) : files_(files), path_(std::move(path)) {}
    ~SimulatedLock() override {
      const std::lock_guard guard(files_.mutex_);
      files_.locks_.erase(path_);
    }

   private:
    SimulatedFiles& files_;
    std::string path_;
  };

  static Error missing(const Path& path) { return {ErrorCode::kNotFound, path.string() + ": cannot open: No such file or directory"}; }

  // Counts one operation and lets it fail when its turn has come; `half` is what a failing one has done.
  template <class Do>
  Status perform(const std::string& what, Do&& operation, const std::function<void()>& half = {}) {
    const std::lock_guard guard(mutex_);
    const int64_t number = operations_++;
    const Error failed{ErrorCode::kIo, what + ": " + refusal_};
    if (!refused_.empty() && what.find(refused_) != what.npos) return failed;
    const bool dead = fail_at_ >= 0 && how_ == Failure::kDead && number > fail_at_;
    if (dead || (number == fail_at_ && how_ != Failure::kAfter)) {
      if (half && !dead) half();
      return failed;
    }
    const Status status = operation();
    if (number == fail_at_) return failed;
    return status;
  }

  std::shared_ptr<File> find(const Path& path) {
    const auto folder = folders_.find(path.parent_path().string());
    if (folder == folders_.end()) return nullptr;
    const auto file = folder->second.visible.find(path.filename().string());
    return file == folder->second.visible.end() ? nullptr : file->second;
  }

  void change(Folder& folder, Change change) {
    change.apply(folder.visible);
    folder.changes.push_back(std::move(change));
  }

  // Bytes that were not flushed: gone, there in part, zeros or rubbish by blocks, or all there.
  static void tear(File& file, std::mt19937_64& random) {
    if (file.content == file.durable) return;
    switch (random() % 6) {
      case 0: file.content = file.durable; break;
      case 1: file.content.resize(file.durable.size() + random() % (file.content.size() - file.durable.size() + 1)); break;
      case 2:
      case 3: break;
      default:
        for (size_t i = file.durable.size(); i < file.content.size(); i += 512) {
          if (random() % 2 == 0) continue;
          const auto rubbish = static_cast<int>(random() % 2 * (random() % 256));
          std::memset(file.content.data() + i, rubbish, std::min<size_t>(512, file.content.size() - i));
        }
    }
    file.durable = file.content;
  }

  mutable std::recursive_mutex mutex_;
  std::map<std::string, Folder> folders_;
  std::set<std::string> locks_;
  int64_t operations_ = 0, fail_at_ = -1;
  Failure how_ = Failure::kBefore;
  bool lies_ = false;
  std::string refused_, refusal_ = "Input/output error";
  uint64_t most_bytes_ = 0, free_bytes_ = uint64_t{1} << 40;
  mutable int64_t now_ns_ = 1'000'000;
};

}  // namespace foretoken::testing
