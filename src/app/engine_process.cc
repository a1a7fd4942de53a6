// The engine's process of `foretoken serve`: loads the model and hands the engine to its host.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "app/memory_options.h"
#include "app/serve_options.h"
#include "engine/engine.h"
#include "serve/engine_host.h"

namespace foretoken::app {
namespace {

constexpr int kNumericsVersion = 3;  // raised when a rounding or an order of sums changes (docs/numerics.md)

struct Planned {
  EngineMemoryOptions demands;
  ModelFootprint footprint;
  MemoryPlan memory;
  bool on_device = false;
};

// What fits, before anything is loaded.
Result<Planned> plan_of(const ServeOptions& o, const OpenedBundle& opened) {
  ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::from_bundle(opened.bundle));
  ASSIGN_OR_RETURN(const DraftSettings settings, draft_settings(o.common, o.speculation));
  const EngineMemoryOptions demands = o.memory.demands(o.common, config);
  ASSIGN_OR_RETURN(BundlePlan planned, plan_bundle(o.common, demands, opened.bundle, config, resolve_drafters(opened.bundle, config, settings), settings));
  if (const auto* refusal = std::get_if<MemoryRefusal>(&planned.memory)) return refusal->error();
  return Planned{demands, std::move(planned.footprint), std::get<MemoryPlan>(std::move(planned.memory)), planned.on_device};
}

// A device says only now what the weights left.
Status plan_again(const ServeOptions& o, const Backend& backend, Planned& plan) {
  if (backend.on_host()) {
    if (!o.memory.host_cache.empty()) log_info(o.common, std::string("note: ") + kNoHostTier);
    return {};
  }
  plan.demands.prefill_chunk = plan.memory.prefill_chunk;
  auto planned = plan_beside_weights(backend.memory(), plan.footprint, plan.demands);
  if (const auto* refusal = std::get_if<MemoryRefusal>(&planned)) return refusal->error();
  plan.memory = std::get<MemoryPlan>(std::move(planned));
  for (const std::string& note : plan.memory.notes) log_info(o.common, "note: " + note);
  return {};
}

EngineOptions engine_options(const ServeOptions& o, const MemoryPlan& plan, LoadedModel& model) {
  EngineOptions e;
  e.lanes = plan.lanes;
  e.max_context = plan.context;
  e.pages = plan.pool_pages;
  // The server bounds what runs and waits together. Here a request waits for a moment even where a lane is free.
  e.queue = o.queue + static_cast<size_t>(plan.lanes);
  e.schedule.decode_share = o.decode_share;
  e.schedule.prefill_chunk = plan.prefill_chunk;
  e.schedule.chunk_beside_decode = std::min(e.schedule.chunk_beside_decode, plan.prefill_chunk);
  e.speculation = model.speculation_options();
  e.cache.limit_bytes = plan.cache_ram;
  e.cache.enabled = e.cache.limit_bytes > 0;
  if (model.backend().on_host() || !e.cache.enabled) return e;
  e.cache.host_bytes = o.memory.host_cache_bytes();
  if (e.cache.host_bytes > 0)
    log_info(o.common, fmt::format("note: prefixes and suspended requests that the device has no room for go to host memory, up to {} (--host-cache)", readable_bytes(e.cache.host_bytes)));
  return e;
}

// A short answer before the first request: pages are touched, threads awake, drafters loaded.
void warm_up(LoadedModel& model) {
  const SteadyClock clock;
  auto lane = model.target().make_lane();
  Generation generation(model.target(), *lane, {.max_tokens = 8, .prefill_chunk = model.target().options().max_rows}, clock, model.speculation());
  std::vector<TokenId> prompt(16);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(i % static_cast<size_t>(model.config().vocab));
  if (!generation.start(prompt)) return;
  while (!generation.finished())
    if (!generation.step()) return;
}

// Everything besides tokens that a cached prefix's bytes follow from.
std::string cache_fingerprint(const ServeOptions& o, LoadedModel& model) {
  const DraftResolution& drafts = model.drafts()->resolution();
  const std::string drafter = drafts.block ? drafts.drafter_path.string() + " " + o.common.draft_weights : drafts.mtp ? "mtp" : "none";
  // Processors agree on every bit; a device's products are those of its kind and of its kernels.
  const std::string backend = model.backend().on_host() ? o.common.backend : model.backend().info().detail;
  return fmt::format("{} {} {} {} {} {}", FORETOKEN_VERSION, model.bundle().fingerprint(), backend, o.common.kv_format, kNumericsVersion, drafter);
}

// Null without --cache-disk.
std::unique_ptr<DiskTier> open_disk(const ServeOptions& o, LoadedModel& model, DiskFiles& files, const Clock& clock) {
  const uint64_t limit = *parse_size(o.cache_disk);
  const auto folder = o.common.cache_dir.empty() ? default_cache_folder() : std::filesystem::path(o.common.cache_dir);
  if (limit == 0) return nullptr;
  if (folder.empty()) {
    log_info(o.common, "note: --cache-disk has no folder; name one with --cache-dir");
    return nullptr;
  }
  return DiskTier::open({.folder = folder / "prefix", .fingerprint = cache_fingerprint(o, model), .page_bytes = model.target().pages().layout().page_bytes(), .limit_bytes = limit},
                        files, clock);
}

// Of this process: all its pages in memory, and those of them that are its own, not files'.
struct ResidentBytes {
  uint64_t all = 0, own = 0;
};
ResidentBytes resident_bytes() {
  std::ifstream file("/proc/self/status");
  ResidentBytes r;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) r.all = std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
    if (line.starts_with("RssAnon:")) r.own = std::strtoull(line.c_str() + 8, nullptr, 10) * 1024;
  }
  return r;
}

// The plan against what is taken. `own_bytes` is what `planned_bytes` speaks of, files' pages are in neither; on a device it is its `used_bytes`.
OrderedJson memory_json(const MemoryPlan& plan, const EngineStatus& engine, const Backend& backend, uint64_t kv_allocated) {
  const ResidentBytes resident = resident_bytes();
  OrderedJson device = nullptr;
  if (!backend.on_host()) {
    const BackendMemory memory = backend.memory();
    device = {{"total_bytes", memory.total_bytes}, {"used_bytes", memory.total_bytes - memory.free_bytes}};
  }
  return {{"planned_bytes", plan.bytes()}, {"own_bytes", resident.own}, {"resident_bytes", resident.all},
          {"limit_bytes", plan.limit}, {"limited_by", plan.limited_by}, {"plan", items_json(plan.items)}, {"notes", plan.notes},
          {"kv_allocated_bytes", kv_allocated}, {"kv_bytes", engine.pages_in_use * engine.page_bytes}, {"prefix_cache_bytes", engine.cache.bytes},
          {"device", std::move(device)}};
}

OrderedJson identity(const ServeOptions& o, LoadedModel& model) {
  const BackendInfo backend = model.backend().info();
  const DraftResolution& drafts = model.drafts()->resolution();
  return {{"model", {{"name", model_name(o, model.bundle())}, {"architecture", model.config().architecture}, {"family", family_name(model.config().family)},
                     {"fingerprint", model.bundle().fingerprint()}, {"load_s", model.load_seconds()}}},
          {"build", {{"version", FORETOKEN_VERSION}, {"compiler", __VERSION__}}},
          {"backend", {{"requested", o.common.backend}, {"name", backend.name}, {"kernels", backend.detail}, {"kv_format", o.common.kv_format}}},
          {"numerics", "exact"},
          {"speculation", {{"resolved", drafts.resolved}, {"why", drafts.why}, {"notes", drafts.notes}, {"verify", o.speculation.verify}}}};
}

}  // namespace

int run_engine_process(const ServeOptions& o) {
  serve::become_engine_process();
  const auto fail = [&](const Error& error) {
    serve::report_no_engine(o.engine_fd, error);
    return exit_status(error.code);
  };
  auto opened = open_bundle(o.common);
  if (!opened) return fail(opened.error());
  auto plan = plan_of(o, *opened);
  if (!plan) return fail(plan.error());
  if (!plan->on_device)
    for (const std::string& note : plan->memory.notes) log_info(o.common, "note: " + note);
  CommonOptions common = o.common;
  common.prefill_chunk = plan->memory.prefill_chunk;
  auto loaded = LoadedModel::load(common, &o.speculation);
  if (!loaded) return fail(loaded.error());
  LoadedModel& model = **loaded;
  const auto text = model_text(*opened, model.config(), o.default_thinking);
  if (!text) return fail(text.error());
  warm_up(model);
  if (const Status again = plan_again(o, model.backend(), *plan); !again) return fail(again.error());
  const SteadyClock clock;
  const EngineOptions options = engine_options(o, plan->memory, model);
  PosixFiles files;
  const auto disk = open_disk(o, model, files, clock);
  Engine engine(model.target(), model.drafts(), options, clock, disk.get());
  const serve::HostedEngine hosted{
      .engine = engine, .text = *text,
      .facts = {.max_context = options.max_context, .vocab = model.config().vocab, .lanes = options.lanes,
                .speculation = model.drafts()->resolution().resolved, .identity = identity(o, model)},
      .drafts = model.drafts(), .verify = o.speculation.verify,
      .more_status = [&] { return OrderedJson{{"memory", memory_json(plan->memory, engine.status(), model.backend(), model.target().pages().allocated_bytes())}}; },
      .idle_release_s = o.idle_release_s,
      .release = [&] {
        engine.release_lanes();
        model.release_weights();
      },
      .restore = [&] { return model.reload_weights(); }};
  return serve::host_engine(o.engine_fd, hosted);
}

}  // namespace foretoken::app
