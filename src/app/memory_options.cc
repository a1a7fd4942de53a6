// Flags to demands, and a bundle's headers to a plan.
#include "app/memory_options.h"

#include <fmt/format.h>

#include "base/machine.h"

namespace foretoken::app {

namespace {

// A turn of a chat takes about 20 tokens before anybody has said anything.
constexpr int64_t kLeastContext = 64, kMostContext = int64_t{1} << 24;

std::string check_context(const std::string& text) {
  int64_t tokens = 0;
  if (CLI::detail::lexical_cast(text, tokens) && (tokens == 0 || (tokens >= kLeastContext && tokens <= kMostContext))) return "";
  return fmt::format("takes {} to {} tokens, or 0 for what fits, not \"{}\": prompt and answer must find room, and a chat's marks alone take about 20", kLeastContext,
                     kMostContext, text);
}

}  // namespace

void add_memory_options(CLI::App& command, MemoryFlags& f) {
  f.prefill_chunk = command.get_option("--prefill-chunk");
  command.add_option("--lanes", f.lanes, "Requests that run at once (0: what fits, 4 at most)")
      ->check(CLI::Range(0, 64));
  command.add_option("--max-context", f.max_context, "Tokens of one request, prompt and answer (0: what fits)")
      ->check(check_context);
  command
      .add_option("--max-memory", f.max_memory,
                  "What this process may use, such as 24G (default: what the machine and its limits leave)")
      ->check(check_positive_size);
  command
      .add_option("--cache-ram", f.cache_ram,
                  "Memory of the prefix cache, such as 4G, or off (default: from what is left)")
      ->check(check_size);
  command
      .add_option("--host-cache", f.host_cache,
                  "Host memory for prefixes that leave a device's, such as 16G, or off (default: half of what is free)")
      ->check(check_size);
}

uint64_t MemoryFlags::host_cache_bytes() const {
  return foretoken::host_cache_bytes(read_machine(), host_cache.empty() ? std::nullopt : parse_size(host_cache));
}

EngineMemoryOptions MemoryFlags::demands(const CommonOptions& common, const ModelConfig& config) const {
  EngineMemoryOptions o;
  if (lanes > 0) o.lanes = lanes;
  if (max_context > 0) o.context = max_context;
  if (config.max_positions > 0 && max_context > config.max_positions) {
    log_info(
        common,
        fmt::format(
            "note: --max-context {} is more than the {} positions that the model was made for; those are what it gets",
            max_context, config.max_positions));
    o.context = config.max_positions;
  }
  if (!max_memory.empty()) o.max_memory = *parse_size(max_memory);
  if (!cache_ram.empty()) o.cache_ram = *parse_size(cache_ram);
  if (prefill_chunk && prefill_chunk->count() > 0) o.prefill_chunk = common.prefill_chunk;
  return o;
}

Result<PackedCache::Found> find_packed_trunk(const CommonOptions& common, const Bundle& bundle,
                                             const ModelConfig& config) {
  const auto absent = [](const std::string& reason) { return Error{ErrorCode::kNotFound, reason}; };
  const PackedCache cache(common.packing());
  if (common.packing().folder.empty()) return absent("no packed weights are kept");
  if (!cache.serves(bundle)) return absent("small weights are packed at each load");
  const auto order = trunk_packing_order(bundle, config);
  if (!order) return absent("the trunk cannot be loaded");
  ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, make_backend(common));
  if (backend->info().packing.empty()) return absent(fmt::format("the {} backend packs at each load", backend->info().name));
  const auto found = cache.look(bundle, packed_key(kTrunkSet, *backend, *order));
  if (!found) return absent("none, or not known to be of these files; the next load packs or finds them");
  return *found;
}

Result<BundlePlan> plan_bundle(const CommonOptions& common, const EngineMemoryOptions& demands, const Bundle& bundle, const ModelConfig& config,
                               const DraftResolution& drafts, const DraftSettings& settings) {
  const auto packed = find_packed_trunk(common, bundle, config);
  ASSIGN_OR_RETURN(const WeightSizes weights, weight_sizes(bundle, config, drafts, settings, packed ? packed->bytes : 0));
  const MachineFacts machine = read_machine();
  std::optional<DflashConfig> block;
  if (drafts.block) {
    ASSIGN_OR_RETURN(const Bundle drafter, Bundle::open(drafts.drafter_path));
    ASSIGN_OR_RETURN(block, DflashConfig::from_bundle(drafter, config));
  }
  const DrafterShapes shapes{.copy = drafts.copy, .mtp = drafts.mtp, .block = block ? &*block : nullptr};
  BundlePlan plan{.footprint = footprint_of(config, weights, shapes,
                                            {.kv_format = common.kv(), .threads = common.threads > 0 ? common.threads : machine.processors}),
                  .memory = {}};
  if (common.backend == "cuda")
    if (const auto backend = make_backend(common)) {
      ModelFootprint& f = plan.footprint;
      f.weights += std::exchange(f.mapped, 0);
      plan.on_device = true;
      plan.memory = plan_memory(device_facts((*backend)->memory()), f, demands);
      return plan;
    }
  plan.memory = plan_memory(machine, plan.footprint, demands);
  if (auto* fits = std::get_if<MemoryPlan>(&plan.memory); fits && common.backend == "cuda")
    fits->notes.push_back(fmt::format("with --backend cuda, {:.1f} GiB of this (weights, state, K/V, prefix cache) and working memory lie on the device, which could not be "
                                      "asked for its size: --lanes, --max-context and --cache-ram bound what it is asked for",
                                      static_cast<double>(device_bytes(fits->items)) / (uint64_t{1} << 30)));
  return plan;
}

uint64_t device_bytes(const std::vector<MemoryItem>& items) {
  uint64_t bytes = 0;
  for (const MemoryItem& item : items)
    for (const std::string_view there : {"weights", "weights of drafters", "mapped weights", "recurrent state", "tape", "windows of drafters", "K/V pages", "K/V pages of drafters", "prefix cache"})
      if (item.name == there) bytes += item.bytes;
  return bytes;
}

OrderedJson items_json(const std::vector<MemoryItem>& items) {
  OrderedJson list = OrderedJson::array();
  for (const MemoryItem& item : items)
    list.push_back({{"item", item.name}, {"bytes", item.bytes}, {"kind", std::string(memory_kind_name(item.kind))}});
  return list;
}

}  // namespace foretoken::app
