// Times whole passes of a model against the limits of this machine: the row-cost curve that speculation lives on, plain decoding and
// prefill. The limits (reading memory, byte products) are measured between the passes of every round, because neighbours move them.
// A pass of R rows takes at least max(weight bytes / read bandwidth, R * multiply-adds / byte-product rate). Figures are medians.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/threads.h"
#include "bundle/bundle.h"
#include "cpu/select.h"
#include "decode/generation.h"
#include "decode/rows.h"
#include "model/target.h"
#include "timing.h"

namespace foretoken {
namespace {

using SteadyTime = std::chrono::steady_clock;

double since(SteadyTime::time_point begin) { return std::chrono::duration<double>(SteadyTime::now() - begin).count(); }

struct Options {
  std::string model = "models/demo-dense", isa = "auto", kv = "bf16";
  std::vector<int> rows = {1, 2, 4, 8, 16, 32};
  int prefill = 512, prefix = 64, rounds = 9, threads = 0, probe_megabytes = 512, chunk = 0;
  bool best = false;
};

// Bytes and multiply-adds of one row's pass over the dense weights, from the tensors of the trunk. The embedding is read as the head once.
struct Work {
  double bytes = 0, multiply_adds = 0;
};

Work work_of(const Bundle& bundle, const ModelConfig& config) {
  Work work;
  for (const TensorInfo& t : bundle.tensors()) {
    if (t.shape.size() < 2 || t.name.find("mtp.") != std::string::npos || t.name.find("visual") != std::string::npos) continue;
    if (bundle.format() == BundleFormat::kGguf && t.name.starts_with(fmt::format("blk.{}.", config.layers))) continue;
    const bool embedding = t.name == "token_embd.weight" || t.name.ends_with("embed_tokens.weight");
    if (embedding && !config.tied_head) continue;
    const bool expert = t.name.find("_exps") != std::string::npos || t.name.find("mlp.experts") != std::string::npos;
    const double part = expert ? static_cast<double>(config.moe.top_k) / config.moe.experts : 1.0;
    work.bytes += part * static_cast<double>(t.data.size());
    work.multiply_adds += part * static_cast<double>(t.elements());
  }
  return work;
}

int run(const Options& o) {
  const auto fail = [](const Error& e) {
    fmt::print(stderr, "step_bench: {}\n", e.message);
    return exit_status(e.code);
  };
  auto bundle = Bundle::open(o.model);
  if (!bundle) return fail(bundle.error());
  auto config = ModelConfig::from_bundle(*bundle);
  if (!config) return fail(config.error());
  const Isa isa = o.isa == "scalar" ? Isa::kScalar : o.isa == "avx2" ? Isa::kAvx2 : o.isa == "avx512" ? Isa::kAvx512 : Isa::kAuto;
  const int threads = o.threads > 0 ? o.threads : usable_processors();
  auto backend = make_cpu_backend({.isa = isa, .threads = threads});
  if (!backend) return fail(backend.error());
  auto weights = Weights::load(*bundle, *config, **backend);
  if (!weights) return fail(weights.error());
  const KvFormat kv = o.kv == "f32" ? KvFormat::kF32 : o.kv == "int8" ? KvFormat::kInt8 : KvFormat::kBF16;
  TargetModel target(*config, *weights, **backend, {.max_rows = std::max(o.prefill, 72), .kv_format = kv});
  const Work work = work_of(*bundle, *config);

  ThreadPool pool(threads);
  const cpu::KernelTable& best = *cpu::find_kernels(Isa::kAuto);
  Buffer stream(static_cast<size_t>(o.probe_megabytes) << 20);
  alignas(64) int32_t sink[64 * 16] = {};
  const auto read_rate = [&] {
    const auto begin = SteadyTime::now();
    pool.parallel_for(static_cast<int64_t>(stream.size() / 512), 64, [&](int64_t first, int64_t last, int thread) {
      sink[thread * 16] = static_cast<int32_t>(best.probe.read_bytes(stream.data() + first * 512, static_cast<size_t>(last - first) * 512));
    });
    return static_cast<double>(stream.size()) / since(begin);
  };
  const auto dot_rate = [&] {
    int64_t count[64] = {};
    const auto begin = SteadyTime::now();
    pool.parallel_for(threads, 1, [&](int64_t, int64_t, int thread) { count[thread] = best.probe.dot_bytes(100000, sink + 16 * thread); });
    return static_cast<double>(std::accumulate(count, count + 64, int64_t{0})) / since(begin);
  };

  std::vector<int> sizes = o.rows;
  if (o.prefill > 0) sizes.push_back(-o.prefill);  // negative: a prompt pass
  std::vector<std::vector<double>> seconds(sizes.size()), share(sizes.size()), reads(sizes.size()), dots(sizes.size());
  std::vector<TokenId> tokens(static_cast<size_t>(std::max(o.prefill, o.prefix)));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>((i * 7919 + 13) % static_cast<size_t>(std::min(config->vocab, 4096)));
  const auto ignore = [](int64_t, int64_t, const ForwardResult&) { return true; };
  auto lane = target.make_lane();
  run_prompt(target, *lane, std::span(tokens).first(static_cast<size_t>(o.prefix)), o.prefix, {}, ignore);

  const auto pass = [&](int rows) {
    std::vector<RowInput> inputs;
    std::vector<int> wanted(static_cast<size_t>(rows));
    std::iota(wanted.begin(), wanted.end(), 0);
    for (int i = 0; i < rows; ++i) inputs.push_back(text_row(tokens[static_cast<size_t>(i) % tokens.size()], lane->length() + i));
    const LaneRows lane_rows{.rows = rows, .prefix = lane->length(), .settled = 0};
    LaneState* lanes[] = {lane.get()};
    const auto begin = SteadyTime::now();
    target.forward({.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = wanted}, lanes);
    return since(begin);
  };
  const auto prompt = [&](int rows) {
    auto fresh = target.make_lane();
    const int64_t last[] = {rows - 1};
    const auto begin = SteadyTime::now();
    run_prompt(target, *fresh, std::span(tokens).first(static_cast<size_t>(rows)), o.chunk > 0 ? o.chunk : rows, last, ignore);
    return since(begin);
  };

  const auto multiply_adds = [&](int size) {
    // A prompt pass computes logits of its last row alone.
    const double head = static_cast<double>(config->hidden) * config->vocab;
    return size < 0 ? -size * (work.multiply_adds - head) + head : size * work.multiply_adds;
  };

  for (int round = -1; round < o.rounds; ++round)
    for (size_t i = 0; i < sizes.size(); ++i) {
      const double read = read_rate(), dot = dot_rate();
      const int rows = std::abs(sizes[i]);
      // Short passes repeat, so that one timing is long against the clock and the pool's wake-up.
      std::vector<double> repeats;
      const auto begin = SteadyTime::now();
      do repeats.push_back(sizes[i] < 0 ? prompt(rows) : pass(rows));
      while (since(begin) < 0.05 && repeats.size() < 64);
      if (round < 0) continue;
      const double s = median(repeats);
      const double macs = multiply_adds(sizes[i]);
      seconds[i].push_back(s);
      reads[i].push_back(read);
      dots[i].push_back(dot);
      share[i].push_back(std::max(work.bytes / read, macs / dot) / s);
    }

  const BackendInfo info = (*backend)->info();
  fmt::print("{}: {:.1f} MiB of weights a pass, {:.1f} M multiply-adds a row; {}; {} rounds\n", o.model, work.bytes / (1 << 20),
             work.multiply_adds * 1e-6, info.detail, o.rounds);
  // With --best the fastest pass against the best limits seen: for work on kernels beside busy neighbours.
  const auto greatest = [](const std::vector<std::vector<double>>& all) {
    double most = 0;
    for (const auto& v : all) most = std::max(most, *std::max_element(v.begin(), v.end()));
    return most;
  };
  const double read = o.best ? greatest(reads) : median(reads[0]), dot = o.best ? greatest(dots) : median(dots[0]);
  fmt::print("limits ({}): read {:.1f} GB/s, byte products {:.0f} GMAC/s\n", o.best ? "best" : "medians", read * 1e-9, dot * 1e-9);
  fmt::print("{:>8} {:>10} {:>10} {:>9} {:>8}\n", "rows", "ms", "tokens/s", "of limit", "x 1 row");
  const auto typical = [&](const std::vector<double>& v) { return o.best ? *std::min_element(v.begin(), v.end()) : median(v); };
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int rows = std::abs(sizes[i]);
    const double s = typical(seconds[i]);
    const double part = o.best ? std::max(work.bytes / read, multiply_adds(sizes[i]) / dot) / s : median(share[i]);
    fmt::print("{:>8} {:>10.3f} {:>10.1f} {:>8.1f}% {:>8.2f}\n", sizes[i] < 0 ? fmt::format("pp{}", rows) : std::to_string(rows),
               s * 1e3, rows / s, part * 100, s / typical(seconds[0]));
  }
  return 0;
}

}  // namespace
}  // namespace foretoken

int main(int argc, char** argv) {
  foretoken::Options o;
  CLI::App app("Whole passes of a model against the limits of this machine");
  app.add_option("--model,-m", o.model, "bundle")->capture_default_str();
  app.add_option("--isa", o.isa, "auto, scalar, avx2, avx512")->capture_default_str();
  app.add_option("--kv-format", o.kv, "f32, bf16, int8")->capture_default_str();
  app.add_option("--rows", o.rows, "row counts")->delimiter(',')->check(CLI::Range(1, 64));
  app.add_option("--prefill", o.prefill, "rows of the prompt pass (0: none)")->check(CLI::Range(0, 8192));
  app.add_option("--chunk", o.chunk, "rows of one pass of the prompt (0: all)")->check(CLI::Range(0, 8192));
  app.add_option("--prefix", o.prefix, "committed tokens before the passes")->check(CLI::Range(1, 32768));
  app.add_option("--rounds", o.rounds, "measured rounds")->check(CLI::PositiveNumber);
  app.add_flag("--best", o.best, "the fastest passes and limits instead of medians");
  app.add_option("--threads,-t", o.threads, "threads (0: all)")->check(CLI::Range(0, 64));
  CLI11_PARSE(app, argc, argv);
  return foretoken::run(o);
}
