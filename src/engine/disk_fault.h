// Why an entry is not on disk, or not used: the reasons that statistics count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace foretoken {

enum class DiskFault : uint8_t {
  // Not written.
  kSmallGain,    // too few tokens beyond an entry that is there
  kQueueFull,    // more waits to be written than the queue may hold
  kNoRoom,       // more than the size limit leaves for it
  kWriteBudget,  // the hour's volume of writes is used up
  kWritesOff,    // another process writes, or the disk refused lately
  kWriteFailed,  // the disk refused this one
  kParentGone,   // the entry that it continues was removed meanwhile
  // On disk and of no use: removed, but for the last.
  kUnfinished,  // a temporary file that a crash left behind
  kTruncated,   // another size than its header says
  kDamaged,     // a checksum, a name or a length does not fit
  kVersion,     // of another version of the format
  kForeign,     // of another model, build or K/V format, or no entry at all
  kNoParent,    // the entry that it continues is not there
  kUnreadable,  // the system refused to read it: left there, the first to go when room is needed
  // Not loaded.
  kGone,         // evicted or replaced between find and load
  kOtherTokens,  // equal hashes of unequal tokens
  kNoMemory,
};
inline constexpr size_t kDiskFaults = static_cast<size_t>(DiskFault::kNoMemory) + 1;

// A word for statistics, for example "queue_full".
constexpr std::string_view name(DiskFault fault) {
  constexpr std::string_view kNames[kDiskFaults] = {
      "small_gain", "queue_full", "no_room", "write_budget", "writes_off", "write_failed", "parent_gone", "unfinished", "truncated",
      "damaged",    "version",    "foreign", "no_parent",    "unreadable", "gone",         "other_tokens", "no_memory"};
  return kNames[static_cast<size_t>(fault)];
}

}  // namespace foretoken
