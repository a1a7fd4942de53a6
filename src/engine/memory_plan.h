// From what a machine has, what a model takes and what the user demands to a plan of all memory, or to a refusal that says what is missing
// and which option would help by how much, before anything is loaded. Pure: equal inputs, equal plans. Sizes are bytes.
//
// Demands (options that are set) are kept or refused. What the user left open shrinks in this order until the rest fits: memory of the prefix
// cache; K/V pages beyond one whole context and a share for each other lane; lanes, to one; the context; the rows of a prompt pass. The
// working memory of a pass comes first of all and is never squeezed by another budget.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/machine.h"
#include "engine/footprint.h"

namespace foretoken {

// What the user demands; absent: the plan decides.
struct EngineMemoryOptions {
  std::optional<int> lanes;
  std::optional<int64_t> context;     // tokens of one lane, prompt and answer
  std::optional<uint64_t> max_memory; // of this process
  std::optional<uint64_t> cache_ram;  // of the prefix cache
  std::optional<int> prefill_chunk;
  int decode_rows = TargetOptions{}.tape_rows;  // most rows of a decode pass, all lanes together
};

// What is planned for when memory allows and nothing is demanded, and the least that a plan may shrink to by itself.
inline constexpr int kWantedLanes = 4;
inline constexpr int64_t kWantedContext = 32768, kLeastContext = 2048;
inline constexpr int kWantedChunk = 512, kLeastChunk = 64;
inline constexpr uint64_t kMostCacheRam = uint64_t{8} << 30;
inline constexpr int64_t kLaneShare = 2048;  // tokens that each lane but the longest can hold at any time

enum class MemoryKind : uint8_t {
  kFixed,    // once
  kPerLane,  // the bytes of all lanes
  kPool,     // shared by lanes, or by requests
  kReserve,  // working memory that nothing else may take
  kMapped,   // files' pages: not counted, because the kernel drops them when memory is short, and rereads them
};
std::string_view memory_kind_name(MemoryKind kind);  // "fixed", "per lane", "pool", "reserve", "mapped"

struct MemoryItem {
  std::string name;
  uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::kFixed;
};
// Mapped ones left out.
uint64_t sum_of(const std::vector<MemoryItem>& items);

struct MemoryPlan {
  std::vector<MemoryItem> items;
  int lanes = 0;
  int64_t context = 0;        // tokens that one lane may hold
  uint64_t pool_pages = 0;    // of K/V in all; those that lanes do not need may hold cached prefixes
  uint64_t cache_ram = 0;     // of the prefix cache: copied state, and pages that no lane holds
  int prefill_chunk = 0;
  int pass_rows = 0;          // TargetOptions::max_rows
  uint64_t limit = 0;         // the items' sum stays within it
  std::string limited_by;
  std::vector<std::string> notes;  // what became smaller than it would be with more memory: one sentence each

  uint64_t bytes() const { return sum_of(items); }
};

// One change that would make the demands fit.
struct MemoryAdvice {
  std::string option;  // "--lanes", ...; empty: something outside of the program
  std::string value;   // what to set it to
  std::string text;    // a clause
};

struct MemoryRefusal {
  ErrorCode code = ErrorCode::kOutOfMemory;
  std::string reason;                 // one clause
  std::vector<MemoryItem> needed;     // the least that meets the demands
  uint64_t limit = 0;
  std::string limited_by;
  std::vector<MemoryAdvice> advice;

  uint64_t needed_bytes() const { return sum_of(needed); }
  // One sentence with all of it; kOutOfMemory is exit status 4.
  Error error() const;
};

std::variant<MemoryPlan, MemoryRefusal> plan_memory(const MachineFacts& machine, const ModelFootprint& model, const EngineMemoryOptions& options);

// A device's memory as plan_memory takes a machine's.
MachineFacts device_facts(const BackendMemory& memory);
// The plan of a device's memory once it holds the weights, which are then one item with whatever else it holds.
std::variant<MemoryPlan, MemoryRefusal> plan_beside_weights(const BackendMemory& device, const ModelFootprint& footprint, EngineMemoryOptions demands);
// The host tier's limit beside a device: what is demanded, or half of what the host has free.
uint64_t host_cache_bytes(const MachineFacts& host, std::optional<uint64_t> demand);

// 1.50 GiB, 12.0 MiB, 17 B.
std::string readable_bytes(uint64_t bytes);

}  // namespace foretoken
