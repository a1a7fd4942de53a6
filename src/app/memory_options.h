// Flags that bound memory, and the plan for a bundle under them, made before anything is loaded.
#pragma once

#include <string>
#include <variant>

#include "app/options.h"
#include "decode/draft_models.h"
#include "engine/memory_plan.h"

namespace foretoken::app {

struct MemoryFlags {
  int lanes = 0;              // 0: the plan decides, here and below
  int64_t max_context = 0;
  std::string max_memory, cache_ram, host_cache;
  const CLI::Option* prefill_chunk = nullptr;  // whose presence makes it a demand

  // A context beyond the model's positions becomes those, with a note.
  EngineMemoryOptions demands(const CommonOptions& common, const ModelConfig& config) const;
  // Of the host tier, beside a device.
  uint64_t host_cache_bytes() const;
};

// What is said where --host-cache means nothing.
inline constexpr const char* kNoHostTier = "--host-cache is for backends with memory of their own; this one computes in the host's";

// Adds --lanes, --max-context, --max-memory, --cache-ram and --host-cache. `add_common_options` must have been called for `command`.
void add_memory_options(CLI::App& command, MemoryFlags& flags);

struct BundlePlan {
  ModelFootprint footprint;
  std::variant<MemoryPlan, MemoryRefusal> memory;
  bool on_device = false;  // it is the plan of a device's memory
};
// Where the trunk's packed weights lie in the cache, when a load will find them there; else an error with the reason.
Result<PackedCache::Found> find_packed_trunk(const CommonOptions& common, const Bundle& bundle, const ModelConfig& config);

// Reads headers and the machine, or the device that --backend names: weights take other sizes there, so that its plan is an estimate until they
// are loaded. Where there is no such device, the plan is for the host, with a note.
Result<BundlePlan> plan_bundle(const CommonOptions& common, const EngineMemoryOptions& demands, const Bundle& bundle, const ModelConfig& config,
                               const DraftResolution& drafts, const DraftSettings& settings);

// Of planned items, those that lie in a device's memory where one computes.
uint64_t device_bytes(const std::vector<MemoryItem>& items);

// {"item", "bytes", "kind"} of each.
OrderedJson items_json(const std::vector<MemoryItem>& items);

}  // namespace foretoken::app
