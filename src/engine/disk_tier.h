// The disk tier of the prefix cache: what is needed to continue from a token prefix, kept across restarts and crashes. It stores the
// host bytes it is given and knows neither models nor requests. Whatever goes wrong with the disk costs time, never an answer: an
// entry comes back with the bytes it was stored with, or not at all (docs/prefix_cache.md, "Disk").
#pragma once

#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/disk_fault.h"
#include "engine/disk_files.h"
#include "numerics/tensor.h"
#include "ops/batch.h"

namespace foretoken {

struct DiskTierOptions {
  std::filesystem::path folder;  // of all models; each fingerprint has a subfolder
  // Everything besides tokens that an entry's bytes are a function of: weights, numerics version, backend, K/V format, rotary
  // parameters, drafter. Entries of other fingerprints are never seen.
  std::string fingerprint;
  uint64_t page_bytes = 0;                           // of kPageTokens tokens over all layers
  uint64_t limit_bytes = uint64_t{16} << 30;         // of all files below `folder`, in blocks of 4 KiB
  uint64_t queue_bytes = uint64_t{512} << 20;        // host memory that waits to be written; what is being written counts
  uint64_t write_bytes_per_hour = uint64_t{64} << 30;  // in any hour, restarts not counted; 0: no bound
  uint64_t least_free_bytes = uint64_t{1} << 30;     // of the disk, left to others
  int64_t least_gain_tokens = 64;                    // beyond the longest entry that is there
  std::chrono::seconds retry{30};                    // after a refusal of the disk or of the lock
  bool background = true;  // false: no threads; poll() does one piece of work a call, so that a simulation can be replayed
};

// Borrowed when `owner` keeps the bytes alive and unchanged until it is let go; copied at once when it is null.
struct SharedBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

struct EntrySource {
  std::span<const TokenId> tokens;  // [n], n >= 1. Equal tokens must mean equal bytes below
  // Copies page `page`, slots [32 page, 32 page + 32), to `out` (page_bytes). Called during store(), for the pages that are needed:
  // a suffix of [0, ceil(n / 32)). Slots at and beyond n may hold anything: they come back with it.
  std::function<void(int64_t page, std::span<std::byte> out)> copy_page;
  SharedBytes state;    // recurrent state and convolution tails
  SharedBytes drafter;  // may be empty
};

// The longest entry whose tokens begin a prompt. Valid forever: an entry that goes meanwhile is a failed load.
struct DiskMatch {
  int64_t tokens = 0;
  uint64_t entry = 0;       // its name in this process
  uint64_t host_bytes = 0;  // that loading takes, and leaves with the caller
};

struct DiskEntry {
  std::vector<TokenId> tokens;  // [n]
  Buffer pages;                 // ceil(n / 32) pages of page_bytes, in order
  Buffer state, drafter;
};

using DiskLoadId = uint64_t;
struct DiskLoad {
  DiskLoadId id = 0;
  std::optional<DiskFault> fault;  // then `entry` is empty: a miss
  DiskEntry entry;
  double seconds = 0;  // of reading and checking
};

struct DiskTierStatistics {
  bool writable = false;
  std::string note;  // one sentence while it is not, or why it reads alone; empty otherwise
  uint64_t entries = 0, bytes = 0, limit_bytes = 0;  // of this fingerprint; bytes in blocks of 4 KiB
  uint64_t other_bytes = 0;                          // of other fingerprints below the folder, as last measured
  uint64_t queued = 0, queue_bytes = 0;
  uint64_t stored = 0, bytes_written = 0, evicted = 0;
  uint64_t hits = 0, misses = 0;  // loads that succeeded; finds without a match and loads that failed
  uint64_t restored_tokens = 0, bytes_read = 0;
  std::array<uint64_t, kDiskFaults> faults{};  // by DiskFault
};

// One thread, the engine's, calls everything but statistics(), which any thread may call.
class DiskTier {
 public:
  // Scans the folder's headers. Never fails: a folder that cannot be used is a tier that holds nothing and says why. Where another
  // process already writes this fingerprint, entries are read and none are written until that process ends.
  // `files` and `clock` must outlive the tier.
  static std::unique_ptr<DiskTier> open(DiskTierOptions options, DiskFiles& files, const Clock& clock);
  ~DiskTier();  // writes what is queued first

  // Takes a copy of what its parent, the longest entry on disk or queued, lacks, and queues it. Nothing: it is queued, or was there
  // before. Never waits for the disk.
  std::optional<DiskFault> store(const EntrySource& source);

  // The longest entry with at most `at_most` tokens, all equal to the prompt's first (up to a collision of 128-bit hashes, which the
  // load finds out). Microseconds: reads no file.
  std::optional<DiskMatch> find(std::span<const TokenId> prompt, int64_t at_most);

  // Reads an entry in the background, and keeps it from eviction meanwhile; a later poll() returns it. `prompt` holds at least match.tokens tokens.
  DiskLoadId begin_load(const DiskMatch& match, std::span<const TokenId> prompt);
  std::vector<DiskLoad> poll();
  // The same at once; other loads that finish meanwhile stay for poll().
  DiskLoad load(const DiskMatch& match, std::span<const TokenId> prompt);

  // Removes an entry that the caller finds unusable, with all that continue it, at once.
  void discard(uint64_t entry);

  void flush();       // returns when nothing is queued any more
  void drop_queue();  // forgets what is queued and not yet being written

  DiskTierStatistics statistics() const;

 private:
  struct State;
  explicit DiskTier(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace foretoken
