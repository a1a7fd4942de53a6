// A plan is a choice of five numbers; everything else is arithmetic on the footprint. Costs grow with each number, so that the largest
// choice that fits is found by bisection, and more memory never gives less of anything.
#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace foretoken {
namespace {

struct Choice {
  int lanes = 1;
  int64_t context = 0;
  uint64_t pool_pages = 0;
  int chunk = kWantedChunk;
  uint64_t cache = 0;
};

constexpr uint64_t pages_of(int64_t tokens) { return static_cast<uint64_t>((tokens + kPageTokens - 1) / kPageTokens); }

class Planner {
 public:
  Planner(const MachineFacts& machine, const ModelFootprint& model, const EngineMemoryOptions& options)
      : model_(model), options_(options), limited_by_(machine.bounded_by()), free_(machine.free_bytes()),
        known_(machine.total_bytes > 0) {
    // Something is left to the rest of the machine.
    constexpr uint64_t kLeft = 64u << 20;
    limit_ = free_ - std::min(free_, std::max(kLeft, free_ / 20));
    if (options.max_memory && (*options.max_memory <= limit_ || !known_)) {
      limit_ = *options.max_memory;
      limited_by_ = "--max-memory";
    }
    wanted_context_ = options.context.value_or(model.max_positions > 0 ? std::min(model.max_positions, kWantedContext) : kWantedContext);
  }

  std::variant<MemoryPlan, MemoryRefusal> run() {
    if (auto bad = bad_demand()) return *std::move(bad);
    // Mapped weights are dropped and read again when memory is short, which is slow: what nobody demanded leaves them their room.
    const uint64_t roomy = limit_ - std::min(limit_, model_.mapped);
    if (const auto choice = best_within(roomy)) return plan_of(*choice, roomy);
    const Choice least = least_choice();
    if (cost(least) <= limit_) return plan_of(least, cost(least));
    return refusal(least);
  }

 private:
  // ---- What is possible

  std::optional<MemoryRefusal> bad_demand() const {
    const auto bad = [](std::string reason) { return MemoryRefusal{.code = ErrorCode::kUsage, .reason = std::move(reason)}; };
    if (options_.lanes && *options_.lanes < 1) return bad("--lanes takes at least 1");
    if (options_.context && *options_.context < 1) return bad("--max-context takes at least 1 token");
    if (options_.prefill_chunk && *options_.prefill_chunk < 1) return bad("--prefill-chunk takes at least 1 row");
    if (options_.context && model_.max_positions > 0 && *options_.context > model_.max_positions)
      return bad(fmt::format("--max-context {} is more than the {} positions that the model was made for", *options_.context, model_.max_positions));
    return std::nullopt;
  }

  // One whole context, and a share for every other lane.
  uint64_t least_pool(int lanes, int64_t context) const {
    const uint64_t others = static_cast<uint64_t>(lanes - 1) * lane_pages(std::min(context, kLaneShare));
    return whole_slabs(lane_pages(context) + others);
  }
  uint64_t full_pool(int lanes, int64_t context) const { return whole_slabs(static_cast<uint64_t>(lanes) * lane_pages(context)); }
  // With room for the rows of a pass that are not decided yet.
  uint64_t lane_pages(int64_t tokens) const { return pages_of(tokens + options_.decode_rows); }
  uint64_t whole_slabs(uint64_t pages) const { return (pages + model_.pages_per_slab - 1) / model_.pages_per_slab * model_.pages_per_slab; }

  Choice with_pool(Choice c) const {
    c.pool_pages = least_pool(c.lanes, c.context);
    return c;
  }

  int pass_rows(int chunk, int lanes) const { return std::max({chunk, options_.decode_rows, lanes}); }

  std::vector<MemoryItem> items_of(const Choice& c) const {
    const uint64_t lanes = static_cast<uint64_t>(c.lanes), tokens = c.pool_pages * kPageTokens;
    const PassShape pass{.rows = pass_rows(c.chunk, c.lanes), .logits_rows = std::max(options_.decode_rows, c.lanes), .lanes = c.lanes,
                         .context = static_cast<int64_t>(tokens)};
    std::vector<MemoryItem> items;
    const auto add = [&](const char* name, uint64_t bytes, MemoryKind kind) {
      if (bytes > 0) items.push_back({name, bytes, kind});
    };
    add("program", model_.program, MemoryKind::kFixed);
    add("weights", model_.weights, MemoryKind::kFixed);
    add("weights of drafters", model_.drafter_weights, MemoryKind::kFixed);
    add("working memory of a pass", model_.scratch_of(pass), MemoryKind::kReserve);
    add("recurrent state", lanes * model_.state, MemoryKind::kPerLane);
    add("tape", lanes * model_.tape, MemoryKind::kPerLane);
    add("windows of drafters", lanes * model_.drafter_lane, MemoryKind::kPerLane);
    add("sampling", lanes * model_.sampling, MemoryKind::kPerLane);
    add("K/V pages", c.pool_pages * model_.page, MemoryKind::kPool);
    add("K/V pages of drafters", c.pool_pages * model_.drafter_page, MemoryKind::kPool);
    add("token histories", tokens * model_.history_token, MemoryKind::kPool);
    add("prefix cache", c.cache, MemoryKind::kPool);
    add("mapped weights", model_.mapped, MemoryKind::kMapped);
    return items;
  }

  uint64_t cost(const Choice& c) const { return sum_of(items_of(c)); }

  // ---- What is best

  // The largest value in [low, high] whose choice fits, when that of `low` does.
  std::optional<int64_t> largest(int64_t low, int64_t high, uint64_t limit, const std::function<Choice(int64_t)>& choice) const {
    if (low > high || cost(choice(low)) > limit) return std::nullopt;
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (cost(choice(middle)) <= limit) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  int wanted_lanes() const { return options_.lanes.value_or(kWantedLanes); }
  int least_lanes() const { return options_.lanes.value_or(1); }
  int64_t least_context() const { return options_.context.value_or(std::min(wanted_context_, kLeastContext)); }
  int wanted_chunk() const { return options_.prefill_chunk.value_or(kWantedChunk); }
  int least_chunk() const { return options_.prefill_chunk.value_or(kLeastChunk); }

  Choice least_choice() const {
    return with_pool({.lanes = least_lanes(), .context = least_context(), .chunk = least_chunk(), .cache = options_.cache_ram.value_or(0)});
  }

  std::optional<Choice> best_within(uint64_t limit) const {
    Choice c = with_pool({.lanes = wanted_lanes(), .context = wanted_context_, .chunk = wanted_chunk(), .cache = options_.cache_ram.value_or(0)});
    if (cost(c) <= limit) return grown(c, limit);

    const auto with_lanes = [&](int64_t lanes) {
      Choice other = c;
      other.lanes = static_cast<int>(lanes);
      return with_pool(other);
    };
    if (const auto lanes = largest(least_lanes(), wanted_lanes(), limit, with_lanes)) return with_lanes(*lanes);
    c.lanes = least_lanes();

    const auto with_context = [&](int64_t pages) {
      Choice other = c;
      other.context = std::min(wanted_context_, pages * kPageTokens);
      return with_pool(other);
    };
    const int64_t least = static_cast<int64_t>(pages_of(least_context())), most = static_cast<int64_t>(pages_of(wanted_context_));
    if (const auto pages = largest(least, most, limit, with_context)) return with_context(*pages);
    c = with_context(least);

    for (int chunk = wanted_chunk() / 2; chunk >= least_chunk(); chunk /= 2) {
      c.chunk = chunk;
      if (cost(c) <= limit) return c;
    }
    return std::nullopt;
  }

  // Everything wanted fits: more pages, then the prefix cache, from what is left.
  Choice grown(Choice c, uint64_t limit) const {
    const uint64_t slab = model_.pages_per_slab;
    const auto with_slabs_of = [slab](const Choice& choice) {
      return [choice, slab](int64_t slabs) {
        Choice other = choice;
        other.pool_pages = static_cast<uint64_t>(slabs) * slab;
        return other;
      };
    };
    const int64_t low = static_cast<int64_t>(c.pool_pages / slab), high = static_cast<int64_t>(full_pool(c.lanes, c.context) / slab);
    if (const auto slabs = largest(low, high, limit, with_slabs_of(c))) c = with_slabs_of(c)(*slabs);
    if (!options_.context) {
      const uint64_t others = static_cast<uint64_t>(c.lanes - 1) * lane_pages(std::min(c.context, kLaneShare));
      const int64_t tokens = static_cast<int64_t>(c.pool_pages - others) * kPageTokens - options_.decode_rows;
      c.context = std::max(c.context, model_.max_positions > 0 ? std::min(tokens, model_.max_positions) : tokens);
    }
    // Half of the rest: four parts for the cache, one for pages to cache beside those of busy lanes.
    if (!options_.cache_ram) c.cache = std::min((limit - cost(c)) / 5 * 2, kMostCacheRam);
    const int64_t spare = static_cast<int64_t>(c.cache / 4 / (slab * std::max<uint64_t>(1, model_.page)));
    const int64_t slabs_now = static_cast<int64_t>(c.pool_pages / slab);
    if (const auto slabs = largest(slabs_now, slabs_now + spare, limit, with_slabs_of(c))) c = with_slabs_of(c)(*slabs);
    return c;
  }

  // ---- Answers

  MemoryPlan plan_of(const Choice& c, uint64_t roomy) const {
    MemoryPlan plan{.items = items_of(c), .lanes = c.lanes, .context = c.context, .pool_pages = c.pool_pages, .cache_ram = c.cache,
                    .prefill_chunk = c.chunk, .pass_rows = pass_rows(c.chunk, c.lanes), .limit = limit_, .limited_by = limited_by_};
    const auto less = [&](const std::string& what) { plan.notes.push_back(what + ": " + limited_by_ + " leaves " + readable_bytes(limit_)); };
    if (roomy + model_.mapped > limit_ && model_.mapped > 0)
      plan.notes.push_back(fmt::format("weights of {} in files do not stay in memory beside the rest and will be read again and again: {} leaves {}",
                                       readable_bytes(model_.mapped), limited_by_, readable_bytes(limit_)));
    if (options_.max_memory && *options_.max_memory > limit_)
      plan.notes.push_back(fmt::format("--max-memory {} is more than there is: {} leaves {}", readable_bytes(*options_.max_memory), limited_by_, readable_bytes(limit_)));
    if (c.lanes < wanted_lanes()) less(fmt::format("{} of {} lanes", c.lanes, wanted_lanes()));
    if (c.context < wanted_context_) less(fmt::format("a context of {} of {} tokens", c.context, wanted_context_));
    if (c.chunk < wanted_chunk()) less(fmt::format("prompt passes of {} of {} rows", c.chunk, wanted_chunk()));
    return plan;
  }

  MemoryRefusal refusal(const Choice& least) const {
    MemoryRefusal r{.needed = items_of(least), .limit = limit_, .limited_by = limited_by_};
    const uint64_t needed = cost(least);
    r.reason = fmt::format("{} are needed and {} leaves {}", readable_bytes(needed), limited_by_, readable_bytes(limit_));
    const auto advise = [&](const char* option, const std::string& value, const std::string& text) { r.advice.push_back({option, value, text}); };
    const uint64_t without_cache = needed - least.cache;
    if (options_.cache_ram && *options_.cache_ram > 0 && without_cache <= limit_)
      advise("--cache-ram", fmt::format("{}M", (limit_ - without_cache) >> 20), fmt::format("{} less", readable_bytes(needed - limit_)));
    if (options_.lanes) {
      const auto with_lanes = [&](int64_t lanes) {
        Choice c = least;
        c.lanes = static_cast<int>(lanes);
        return with_pool(c);
      };
      if (const auto lanes = largest(1, *options_.lanes, limit_, with_lanes)) advise("--lanes", std::to_string(*lanes), fmt::format("{} less", *options_.lanes - *lanes));
    }
    if (options_.context) {
      const auto with_context = [&](int64_t pages) {
        Choice c = least;
        c.context = std::min(*options_.context, pages * kPageTokens);
        return with_pool(c);
      };
      if (const auto pages = largest(1, static_cast<int64_t>(pages_of(*options_.context)), limit_, with_context))
        advise("--max-context", std::to_string(*pages * kPageTokens), fmt::format("{} tokens less", *options_.context - *pages * kPageTokens));
    }
    if (options_.prefill_chunk) {
      const auto with_chunk = [&](int64_t chunk) {
        Choice c = least;
        c.chunk = static_cast<int>(chunk);
        return c;
      };
      if (const auto chunk = largest(1, *options_.prefill_chunk, limit_, with_chunk)) advise("--prefill-chunk", std::to_string(*chunk), fmt::format("{} rows less", *options_.prefill_chunk - *chunk));
    }
    const uint64_t kept = free_ - std::min(free_, std::max<uint64_t>(64u << 20, free_ / 20));
    if (options_.max_memory && *options_.max_memory < needed && (needed <= kept || !known_))
      advise("--max-memory", fmt::format("{}M", (needed >> 20) + 1), fmt::format("{} more", readable_bytes(needed - *options_.max_memory)));
    if (!known_ && !options_.max_memory) advise("--max-memory", fmt::format("{}M", (needed >> 20) + 1), "the machine does not say what it has");
    if (r.advice.empty())
      advise("", "", fmt::format("free {} more, raise the limit, or use a smaller model or --kv-format int8", readable_bytes(needed - limit_)));
    return r;
  }

  const ModelFootprint& model_;
  const EngineMemoryOptions& options_;
  std::string limited_by_;
  uint64_t free_ = 0, limit_ = 0;
  bool known_ = false;
  int64_t wanted_context_ = 0;
};

}  // namespace

std::string_view memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kFixed: return "fixed";
    case MemoryKind::kPerLane: return "per lane";
    case MemoryKind::kPool: return "pool";
    case MemoryKind::kReserve: return "reserve";
    case MemoryKind::kMapped: return "mapped";
  }
  return "";
}

uint64_t sum_of(const std::vector<MemoryItem>& items) {
  uint64_t sum = 0;
  for (const MemoryItem& item : items)
    if (item.kind != MemoryKind::kMapped) sum += item.bytes;
  return sum;
}

std::string readable_bytes(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, unit);
}

Error MemoryRefusal::error() const {
  std::string text = reason;
  if (!needed.empty()) {
    std::string list;
    for (const MemoryItem& item : needed)
      if (item.kind != MemoryKind::kMapped) list += fmt::format("{}{} {}", list.empty() ? "" : ", ", item.name, readable_bytes(item.bytes));
    text += fmt::format(" ({})", list);
  }
  const char* before = "; try ";
  for (const MemoryAdvice& one : advice) {
    if (one.option.empty()) text += "; " + one.text;
    else text += fmt::format("{}{} {} ({})", before, one.option, one.value, one.text);
    before = " or ";
  }
  return {code, text};
}

MachineFacts device_facts(const BackendMemory& memory) {
  const uint64_t used = memory.total_bytes - std::min(memory.total_bytes, memory.free_bytes);
  return {.total_bytes = memory.total_bytes, .available_bytes = memory.total_bytes,
          .limits = {{.where = "the device", .limit_bytes = memory.total_bytes, .used_bytes = used}}};
}

uint64_t host_cache_bytes(const MachineFacts& host, std::optional<uint64_t> demand) { return demand.value_or(host.free_bytes() / 2); }

std::variant<MemoryPlan, MemoryRefusal> plan_memory(const MachineFacts& machine, const ModelFootprint& model, const EngineMemoryOptions& options) {
  return Planner(machine, model, options).run();
}

std::variant<MemoryPlan, MemoryRefusal> plan_beside_weights(const BackendMemory& device, const ModelFootprint& footprint, EngineMemoryOptions demands) {
  ModelFootprint f = footprint;
  f.weights = f.drafter_weights = f.mapped = f.program = 0;
  const uint64_t used = device.total_bytes - std::min(device.total_bytes, device.free_bytes);
  if (demands.max_memory) demands.max_memory = *demands.max_memory - std::min(*demands.max_memory, used);
  auto planned = plan_memory(device_facts(device), f, demands);
  if (auto* plan = std::get_if<MemoryPlan>(&planned)) {
    plan->items.insert(plan->items.begin(), {"weights, and what else the device holds", used, MemoryKind::kFixed});
    plan->limit += used;
  }
  return planned;
}

}  // namespace foretoken
