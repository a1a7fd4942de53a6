// The folder of packed weights: which file answers for a bundle, what may be kept, and what goes when room is needed. Everything that goes
// wrong here costs time, never an answer: it is noted once, and the weights are packed again. It knows no layouts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bundle/bundle.h"
#include "bundle/content.h"
#include "bundle/packed_file.h"

namespace foretoken {

struct PackedCacheOptions {
  std::filesystem::path folder;               // empty: nothing is kept or looked for
  uint64_t limit_bytes = uint64_t{32} << 30;  // of all files together
  uint64_t least_bytes = uint64_t{64} << 20;  // smaller bundles are packed in less time than it takes to talk about it
  std::chrono::seconds settled = kSettled;    // remember_content
  int threads = 0;                            // that check bytes; 0: all usable processors
  std::function<void(const std::string&)> note = [](const std::string&) {};  // called from any thread
};

// What the packed bytes are a function of: the bundle's content, and these.
struct PackedKey {
  std::string set;       // which of the bundle's weights: a word
  std::string backend;   // a word
  std::string packing;   // how the backend lays bytes out
  std::string matrices;  // what is packed, in which order
};

class PackedCache {
 public:
  explicit PackedCache(PackedCacheOptions options) : options_(std::move(options)) {}
  PackedCache(const PackedCache&) = delete;
  PackedCache& operator=(const PackedCache&) = delete;
  ~PackedCache();  // waits until what was published is on the disk

  // Whether files of this bundle are kept at all.
  bool serves(const Bundle& bundle) const;
  // The file that holds these matrices, every byte of it checked. What should answer and does not is removed.
  std::optional<PackedFile> find(const Bundle& bundle, const PackedKey& key);
  // A file to add these matrices to, `expected_bytes` about, unless the disk or the limit forbids it.
  std::optional<PackedFileWriter> start(const Bundle& bundle, const PackedKey& key, uint64_t expected_bytes);
  // Takes a file to which all matrices were added; it appears when the disk has it. Not when the bundle's files were changed meanwhile.
  void publish(const Bundle& bundle, PackedFileWriter writer);
  // A file that was started is not finished, because of `error`.
  void give_up(const Error& error) { warn(error.message); }
  // Says, from headers and what is remembered, whether `find` would find a file: its path and size.
  struct Found {
    std::filesystem::path path;
    uint64_t bytes;
  };
  std::optional<Found> look(const Bundle& bundle, const PackedKey& key) const;

 private:
  std::filesystem::path path_of(const std::string& content, const PackedKey& key) const;
  std::string content_of(const Bundle& bundle);
  // Removes files, the least recently used first, until `bytes` more fit. False when they never will.
  bool make_room(uint64_t bytes) const;
  void warn(const std::string& what);

  PackedCacheOptions options_;
  struct Known {
    const Bundle* bundle;
    std::vector<FileIdentity> files;
    std::string content;
  };
  std::vector<Known> known_;  // a target's, its drafter's
  bool told_ = false;  // that the disk is used
  std::mutex warning_;
  bool warned_ = false;
  std::vector<std::thread> publishing_;
};

}  // namespace foretoken
