// Where a measurement ran, without names that lead to a person or a machine: processor, memory, system, and how much of
// the machine others used meanwhile.
#pragma once

#include <filesystem>

#include "base/json.h"

namespace foretoken {

// What the system had counted at one moment.
struct LoadSample {
  double busy_s = 0, idle_s = 0, stolen_s = 0;  // of all processors since boot
  double own_s = 0;                             // of this process and its ended children
  double load = 0;                              // of the last minute
};
LoadSample sample_load(const std::filesystem::path& root = "/");

// Facts that do not change while it runs.
OrderedJson describe_machine(const std::filesystem::path& root = "/");
// Shares of the processors' time between two samples: others', and what the hypervisor took.
OrderedJson describe_load(const LoadSample& begin, const LoadSample& end);

}  // namespace foretoken
