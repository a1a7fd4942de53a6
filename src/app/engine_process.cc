// The engine's process of `foretoken serve`: loads the model and hands the engine to its host.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "app/serve_options.h"
#include "engine/engine.h"
#include "serve/engine_host.h"

namespace foretoken::app {
namespace {

constexpr int64_t kUsualContext = 32768;
constexpr int kUsualLanes = 4;
constexpr size_t kUsualCacheBytes = size_t{1} << 30;
constexpr int kNumericsVersion = 1;  // raised when a rounding or an order of sums changes (docs/numerics.md)

int64_t context_of(const ServeOptions& o, const ModelConfig& config) {
  const int64_t wanted = o.max_context > 0 ? o.max_context : kUsualContext;
  return config.max_positions > 0 ? std::min(wanted, config.max_positions) : wanted;
}

EngineOptions engine_options(const ServeOptions& o, LoadedModel& model) {
  EngineOptions e;
  e.lanes = o.lanes > 0 ? o.lanes : kUsualLanes;
  e.max_context = context_of(o, model.config());
  e.queue = o.queue;
  e.schedule.decode_share = o.decode_share;
  e.schedule.prefill_chunk = o.common.prefill_chunk;
  e.schedule.chunk_beside_decode = std::min(e.schedule.chunk_beside_decode, o.common.prefill_chunk);
  e.speculation = model.speculation_options();
  e.cache.limit_bytes = o.cache_ram.empty() ? kUsualCacheBytes : *parse_size(o.cache_ram);
  e.cache.enabled = e.cache.limit_bytes > 0;
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
  return fmt::format("{} {} {} {} {} {}", FORETOKEN_VERSION, model.bundle().fingerprint(), o.common.backend, o.common.kv_format, kNumericsVersion, drafter);
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

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  if (!(file >> total >> resident)) return 0;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

OrderedJson identity(const ServeOptions& o, LoadedModel& model) {
  const DraftResolution& drafts = model.drafts()->resolution();
  return {{"model", {{"name", model_name(o, model.bundle())}, {"architecture", model.config().architecture}, {"family", family_name(model.config().family)},
                     {"fingerprint", model.bundle().fingerprint()}, {"load_s", model.load_seconds()}}},
          {"build", {{"version", FORETOKEN_VERSION}, {"compiler", __VERSION__}}},
          {"backend", {{"requested", o.common.backend}, {"kv_format", o.common.kv_format}}},
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
  auto loaded = LoadedModel::load(o.common, &o.speculation);
  if (!loaded) return fail(loaded.error());
  LoadedModel& model = **loaded;
  auto opened = open_bundle(o.common);
  if (!opened) return fail(opened.error());
  const auto text = model_text(*opened, model.config(), o.default_thinking);
  if (!text) return fail(text.error());
  warm_up(model);
  const SteadyClock clock;
  const EngineOptions options = engine_options(o, model);
  PosixFiles files;
  const auto disk = open_disk(o, model, files, clock);
  Engine engine(model.target(), model.drafts(), options, clock, disk.get());
  const serve::HostedEngine hosted{
      .engine = engine, .text = *text,
      .facts = {.max_context = options.max_context, .vocab = model.config().vocab, .lanes = options.lanes,
                .speculation = model.drafts()->resolution().resolved, .identity = identity(o, model)},
      .drafts = model.drafts(), .verify = o.speculation.verify,
      .more_status = [&] { return OrderedJson{{"memory", {{"resident_bytes", resident_bytes()}, {"kv_allocated_bytes", model.target().pages().allocated_bytes()}}}}; },
      .idle_release_s = o.idle_release_s,
      .release = [&] {
        engine.release_lanes();
        model.release_weights();
      },
      .restore = [&] { return model.reload_weights(); }};
  return serve::host_engine(o.engine_fd, hosted);
}

}  // namespace foretoken::app
