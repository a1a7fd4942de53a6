// What the machine and the control groups this process runs in leave to it: memory and processors. Everything is read through a root
// folder, so that tests can hand in trees of their own. It decides nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace foretoken {

// A control group, or one of its ancestors, that bounds memory.
struct MemoryLimit {
  std::string where;           // its folder
  uint64_t limit_bytes = 0;
  uint64_t used_bytes = 0;     // by all its processes; file pages that the kernel can drop at once are not counted

  uint64_t free_bytes() const { return used_bytes < limit_bytes ? limit_bytes - used_bytes : 0; }
};

struct MachineFacts {
  uint64_t total_bytes = 0;         // of memory
  uint64_t available_bytes = 0;     // without swapping, as the kernel estimates it
  std::vector<MemoryLimit> limits;  // of the own group and its ancestors, the innermost first; only those that bound
  int processors = 1;               // that this process may use at once: affinity and quotas
  uint64_t page_bytes = 4096;
  std::vector<std::string> notes;   // what could not be read, one sentence each

  // What this process could still take, and who says so ("the machine's available memory", or a group's folder).
  uint64_t free_bytes() const;
  std::string bounded_by() const;
  // The most it could ever have: the machine's memory or the narrowest limit.
  uint64_t ceiling_bytes() const;
};

// Reads proc/ and the mounted control groups (versions 1 and 2, or both) below `root`. What is missing or unreadable is a note, and
// bounds nothing; without proc/meminfo the memory is 0.
MachineFacts read_machine(const std::filesystem::path& root = "/");

}  // namespace foretoken
