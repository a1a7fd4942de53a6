// The entries of one fingerprint as files of one folder, with their index in memory: scanned at the start, found, read, written and
// removed, within the size limit. One process at a time writes; others read. It knows neither queues nor threads, but may be called
// from several: calls lock what they share, never while the disk works.
#pragma once

#include <map>
#include <mutex>
#include <set>

#include "base/clock.h"
#include "engine/disk_index.h"
#include "engine/disk_others.h"
#include "engine/disk_tier.h"

namespace foretoken {

// An entry on its way to the disk.
struct PendingEntry {
  DiskIndex::Id id = 0;
  std::vector<TokenId> tokens;  // all of them
  int64_t parent_length = 0;
  Buffer pages;
  SharedBytes state, drafter;
  uint64_t host_bytes = 0;  // that it holds until it is written
};

class DiskFolder {
 public:
  struct Options {
    DiskFiles::Path root;
    Digest fingerprint;
    uint64_t page_bytes, limit_bytes, least_free_bytes;
  };
  enum class Mode : unsigned char { kOff, kReads, kWrites };

  DiskFolder(Options options, DiskFiles& files, const Clock& clock);

  // Tries to become the writer, and looks for entries. Once at the start, and again later while `mode` is not kWrites.
  void open();
  Mode mode() const;
  std::string note() const;  // why not kWrites

  std::optional<DiskMatch> find(std::span<const TokenId> prompt, int64_t at_most) const;

  // Where a new entry would stand.
  struct Place {
    bool taken = false;  // by an equal entry
    DiskIndex::Id parent = 0;
    int64_t parent_length = 0;
    DiskIndex::Hashes hashes;
  };
  Place place(std::span<const TokenId> tokens);  // an equal entry counts as used
  // Puts a queued entry there: found by later entries as a parent, not by prompts. Zero when its parent went meanwhile.
  DiskIndex::Id reserve(const Place& place, int64_t length, uint64_t state_bytes, uint64_t drafter_bytes);
  void forget(DiskIndex::Id id);  // a queued entry that will not be written

  struct Written {
    std::optional<DiskFault> fault;
    std::string refusal;  // what the disk said, when it refused
    uint64_t bytes = 0;
  };
  Written write(const PendingEntry& entry);

  // Keeps an entry from eviction until it was loaded as often as this was called.
  void pin(DiskIndex::Id id);
  // Reads an entry that was pinned, whose tokens are those of `prompt`, and checks all of it.
  DiskLoad load(DiskIndex::Id id, std::span<const TokenId> prompt);
  void discard(DiskIndex::Id id);

  // Adds what this knows to `statistics`.
  void count(DiskTierStatistics& statistics) const;

 private:
  struct Scanned {
    DiskFiles::Listed file;
    EntryHeader header;
  };
  // What reading one entry found: the fault and which link of the chain has it.
  struct Fault {
    DiskFault fault;
    DiskIndex::Id id;
  };

  DiskFiles::Path path_of(const std::string& name) const { return folder_ / name; }

  // Scanning. `writer`: what is of no use is removed.
  Status scan(bool writer);
  std::optional<DiskFault> read_scanned(const DiskFiles::Listed& file, EntryHeader& header);
  std::optional<DiskFault> index_scanned(const Scanned& scanned);
  void reject(const DiskFiles::Listed& file, DiskFault fault, bool writer);

  // Removing.
  Status remove_file(const std::string& name, uint64_t disk_bytes);  // whose bytes are in passing_bytes_
  void set_aside(const std::string& name, uint64_t disk_bytes);      // likewise
  void remove_subtree(DiskIndex::Id id, DiskFault fault);
  // Removes files until `bytes` more fit, and takes them into passing_bytes_. False when they never will; `kept_bytes` cannot go.
  Result<bool> make_room(uint64_t bytes, uint64_t kept_bytes);
  Result<bool> remove_one();
  void measure_others();

  // Writing and reading.
  EntryHeader header_of(const PendingEntry& entry) const;
  std::optional<DiskFault> check_place(const PendingEntry& entry, const EntryHeader& header, uint64_t& kept_bytes) const;
  Status prepare_disk(uint64_t disk_bytes);
  Status write_file(const EntryHeader& header, const EntryParts& parts);
  std::optional<Fault> read_chain(const std::vector<DiskIndex::Node>& chain, std::span<const TokenId> prompt, DiskEntry& entry);
  std::optional<DiskFault> read_link(const DiskIndex::Node& link, const DiskIndex::Node* parent, bool last, std::span<const TokenId> prompt,
                                     DiskEntry& entry);
  void touch_files(const std::vector<DiskIndex::Node>& chain, int64_t first_ns);
  int64_t next_use_ns(size_t count);  // the first of `count` times, later than all before; under mutex_

  const Options options_;
  const DiskFiles::Path folder_;
  DiskFiles& files_;
  const Clock& clock_;

  DiskOthers others_;  // of the thread that opens and writes
  TimePoint others_measured_{};
  std::unique_ptr<DiskFiles::Lock> lock_;

  mutable std::mutex mutex_;  // guards what follows
  DiskIndex index_;
  Mode mode_ = Mode::kOff;
  std::string note_;
  std::map<std::string, uint64_t> aside_;  // files that count but are not used: unreadable, or impossible to remove; with their bytes
  std::set<std::string> ignored_;          // files that a reader found to be of no use
  uint64_t aside_bytes_ = 0, other_bytes_ = 0;
  uint64_t passing_bytes_ = 0;  // of files that are being written or removed
  uint64_t evicted_ = 0, bytes_read_ = 0;
  int64_t last_use_ns_ = 0;
  std::array<uint64_t, kDiskFaults> faults_{};
};

}  // namespace foretoken
