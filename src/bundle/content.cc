// A remembered content is a file named after the identity: `CONTENT CHECKSUM\n`, the checksum over name and content.
#include "bundle/content.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace foretoken {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostRemembered = 256;

// One name for the state of all files; empty where nobody vouches for it.
std::string identity_name(const Bundle& bundle) {
  std::string text;
  for (const MappedFile& file : bundle.files()) {
    const FileIdentity& id = file.identity();
    if (!id.vouches) return {};
    text += fmt::format("{} {} {} {} {}\n", id.device, id.inode, id.size, id.modified_ns, id.changed_ns);
  }
  return checksum(text).hex();
}

std::string line_of(const std::string& name, const std::string& content) {
  return content + " " + checksum(name + " " + content).hex() + "\n";
}

void forget_oldest(const fs::path& folder) {
  std::error_code ignored;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) files.emplace_back(entry.last_write_time(ignored), entry.path());
  if (files.size() <= kMostRemembered) return;
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i < files.size() - kMostRemembered; ++i) fs::remove(files[i].second, ignored);
}

}  // namespace

std::string content_checksum(const Bundle& bundle, ThreadPool& pool) {
  std::string all;
  for (const MappedFile& file : bundle.files()) {
    const auto sums = chunk_checksums(file.bytes(), pool, [&](std::span<const std::byte> part) { file.release(part); });
    all += fmt::format("{} {}\n", file.bytes().size(), checksum(std::as_bytes(std::span(sums))).hex());
  }
  return checksum(all).hex();
}

std::optional<std::string> remembered_content(const Bundle& bundle, const fs::path& folder) {
  const std::string name = identity_name(bundle);
  if (name.empty()) return std::nullopt;
  const auto line = read_file(folder / name, 4096);
  if (!line) return std::nullopt;
  const std::string content = line->substr(0, 32);
  if (*line == line_of(name, content)) return content;
  std::error_code ignored;
  fs::remove(folder / name, ignored);
  return std::nullopt;
}

bool unchanged_since_opening(const Bundle& bundle) {
  return std::all_of(bundle.files().begin(), bundle.files().end(), [](const MappedFile& file) {
    const auto now = file_identity(file.path());
    return now && *now == file.identity();
  });
}

void remember_content(const Bundle& bundle, const fs::path& folder, const std::string& content, std::chrono::seconds settled) {
  const std::string name = identity_name(bundle);
  if (name.empty()) return;
  const int64_t now_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (const MappedFile& file : bundle.files())
    if (now_ns - std::max(file.identity().modified_ns, file.identity().changed_ns) < std::chrono::nanoseconds(settled).count()) return;
  if (!unchanged_since_opening(bundle)) return;
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  (void)write_file_atomically(folder / name, line_of(name, content));
  forget_oldest(folder);
}

}  // namespace foretoken
