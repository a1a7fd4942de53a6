// Files are named after the content they were made from, so that changed weights ask for another file; the key inside holds the rest.
#include "bundle/packed_cache.h"

#include <fmt/format.h>

#include <algorithm>

namespace foretoken {
namespace {

namespace fs = std::filesystem;

std::string key_text(const std::string& content, const PackedKey& key) {
  return fmt::format("content {}\nset {}\nbackend {}\npacking {}\nmatrices {}\n", content, key.set, key.backend, key.packing,
                     key.matrices);
}

std::vector<FileIdentity> identities(const Bundle& bundle) {
  std::vector<FileIdentity> all;
  for (const MappedFile& file : bundle.files()) all.push_back(file.identity());
  return all;
}

fs::path memory_folder(const fs::path& folder) { return folder / "seen"; }

}  // namespace

PackedCache::~PackedCache() {
  for (std::thread& thread : publishing_) thread.join();
}

bool PackedCache::serves(const Bundle& bundle) const {
  return !options_.folder.empty() && bundle.tensor_bytes() >= options_.least_bytes;
}

fs::path PackedCache::path_of(const std::string& content, const PackedKey& key) const {
  return options_.folder / fmt::format("{}-{}-{}{}", content, key.set, key.backend, kPackedSuffix);
}

std::string PackedCache::content_of(const Bundle& bundle) {
  std::vector<FileIdentity> files = identities(bundle);
  for (const Known& known : known_)
    if (known.bundle == &bundle && known.files == files) return known.content;
  auto content = remembered_content(bundle, memory_folder(options_.folder));
  if (!content) {
    ThreadPool pool(options_.threads > 0 ? options_.threads : usable_processors());
    content = content_checksum(bundle, pool);
    remember_content(bundle, memory_folder(options_.folder), *content, options_.settled);
  }
  known_.push_back({&bundle, std::move(files), *content});
  return *std::move(content);
}

std::optional<PackedFile> PackedCache::find(const Bundle& bundle, const PackedKey& key) {
  if (!serves(bundle)) return std::nullopt;
  const std::string content = content_of(bundle);
  const fs::path path = path_of(content, key);
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(path, ignored))) return std::nullopt;
  ThreadPool pool(options_.threads > 0 ? options_.threads : usable_processors());
  auto file = PackedFile::open(path, key_text(content, key), pool);
  if (file) {
    fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);  // used just now
    return *std::move(file);
  }
  fs::remove(path, ignored);
  options_.note(fmt::format("note: cached packed weights are not used and made again: {}", file.error().message));
  return std::nullopt;
}

std::optional<PackedCache::Found> PackedCache::look(const Bundle& bundle, const PackedKey& key) const {
  if (!serves(bundle)) return std::nullopt;
  const auto content = remembered_content(bundle, memory_folder(options_.folder));
  if (!content) return std::nullopt;
  const fs::path path = path_of(*content, key);
  const auto file = PackedFile::open_unchecked(path, key_text(*content, key));
  if (!file) return std::nullopt;
  return Found{path, file->file_bytes()};
}

bool PackedCache::make_room(uint64_t bytes) const {
  if (bytes > options_.limit_bytes) return false;
  struct Kept {
    fs::file_time_type used;
    fs::path path;
    uint64_t bytes;
  };
  std::error_code ignored;
  std::vector<Kept> kept;
  uint64_t total = bytes;
  for (const auto& entry : fs::directory_iterator(options_.folder, ignored)) {
    if (entry.path().extension() != kPackedSuffix || !entry.is_regular_file(ignored)) continue;
    kept.push_back({entry.last_write_time(ignored), entry.path(), entry.file_size(ignored)});
    total += kept.back().bytes;
  }
  std::sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) { return a.used < b.used; });
  for (const Kept& file : kept) {
    if (total <= options_.limit_bytes) break;
    fs::remove(file.path, ignored);
    total -= file.bytes;
  }
  return true;
}

void PackedCache::warn(const std::string& what) {
  const std::lock_guard lock(warning_);
  if (!std::exchange(warned_, true)) options_.note("note: packed weights are not kept for the next load: " + what);
}

std::optional<PackedFileWriter> PackedCache::start(const Bundle& bundle, const PackedKey& key, uint64_t expected) {
  if (!serves(bundle)) return std::nullopt;
  std::error_code error;
  fs::create_directories(options_.folder, error);
  if (!error && fs::is_empty(options_.folder, error)) fs::permissions(options_.folder, fs::perms::owner_all, error);
  const fs::space_info space = fs::space(options_.folder, error);
  if (error) return warn(fmt::format("{}: {}", options_.folder.string(), error.message())), std::nullopt;
  PackedFileWriter::remove_abandoned(options_.folder);
  if (expected > options_.limit_bytes)
    return warn(fmt::format("they take {} MiB, and --packed-cache allows {}", expected >> 20, options_.limit_bytes >> 20)), std::nullopt;
  if (space.available / 2 < expected)
    return warn(fmt::format("{} has {} MiB left, less than twice what they take", options_.folder.string(), space.available >> 20)),
           std::nullopt;
  const std::string content = content_of(bundle);
  auto writer = PackedFileWriter::create(path_of(content, key), key_text(content, key));
  if (!writer) return warn(writer.error().message), std::nullopt;
  return *std::move(writer);
}

void PackedCache::publish(const Bundle& bundle, PackedFileWriter writer) {
  if (!unchanged_since_opening(bundle)) return warn("the bundle's files changed while they were loaded");
  if (const Status finished = writer.finish(); !finished) return warn(finished.error().message);
  if (!make_room(writer.file_bytes())) return warn("they take more than --packed-cache allows");
  if (!std::exchange(told_, true))
    options_.note(fmt::format("note: packed weights are kept in {} ({} MiB so far) for faster loads; --packed-cache off keeps none",
                              options_.folder.string(), writer.file_bytes() >> 20));
  publishing_.emplace_back([this, writer = std::move(writer)]() mutable {
    if (const Status published = writer.publish(); !published) warn(published.error().message);
  });
}

}  // namespace foretoken
