// What drafting costs: one MTP step, one block of a block drafter and the fusion of context, against one plain target token, on a
// trained bundle. Interleaved rounds, medians; prints the machine's backend, shapes and the share of a plain token.
//
//   draft_bench FOLDER [THREADS] [CONTEXT] [ROUNDS] [FORMAT] [STEP]      FOLDER holds a model with an MTP head and dflash2/
//
// FORMAT: what the drafter's matrices are re-encoded in for the second figure (default q8_0). With STEP only the steps whose name contains it run, for a profiler.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <vector>

#include "base/clock.h"
#include "bundle/bundle.h"
#include "decode/generation.h"
#include "model/dflash.h"
#include "model/mtp.h"
#include "timing.h"

namespace foretoken {
namespace {

template <class T>
T require(Result<T> result) {
  if (result) return *std::move(result);
  fmt::print(stderr, "{}\n", result.error().message);
  std::exit(exit_status(result.error().code));
}

int run(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: draft_bench FOLDER [THREADS] [CONTEXT] [ROUNDS] [FORMAT] [STEP]\n");
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  const int threads = argc > 2 ? std::atoi(argv[2]) : 0, context = argc > 3 ? std::atoi(argv[3]) : 600;
  const int rounds = argc > 4 ? std::atoi(argv[4]) : 60;
  const auto backend = require(make_cpu_backend({.threads = threads}));
  const Bundle bundle = require(Bundle::open(folder));
  const ModelConfig config = require(ModelConfig::from_bundle(bundle));
  const Weights weights = require(Weights::load(bundle, config, *backend));
  const MtpWeights mtp_weights = require(load_mtp(bundle, config, *backend));
  const Bundle drafter_bundle = require(Bundle::open(folder / "dflash2"));
  TargetModel target(config, weights, *backend, {});
  MtpHead head(config, weights, mtp_weights, *backend, {});
  const auto plain = require(DflashModel::load(drafter_bundle, config, weights, *backend, {}));
  const QuantFormat format = format_from_name(argc > 5 ? argv[5] : "q8_0").value();
  const auto small = require(DflashModel::load(drafter_bundle, config, weights, *backend, {.weights = format}));
  const DflashConfig& shape = plain->config();

  // A context of `context` pseudo-random tokens in every lane.
  auto lane = target.make_lane();
  auto mtp_lane = head.make_lane();
  auto block_lane = plain->make_lane(), small_lane = small->make_lane();
  std::vector<TokenId> tokens;
  for (int i = 0; i <= context; ++i) tokens.push_back(static_cast<TokenId>((int64_t{i} * 7919 + 13) % (config.vocab - 256)));
  std::vector<float> kept_taps, kept_hidden;
  LaneState* lanes[] = {lane.get()};
  MtpLane* mtp_lanes[] = {mtp_lane.get()};
  for (int first = 0; first < context; first += 256) {
    const int rows = std::min(256, context - first);
    std::vector<RowInput> inputs, next;
    std::vector<int> all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    for (int i = 0; i < rows; ++i) {
      inputs.push_back(text_row(tokens[static_cast<size_t>(first + i)], first + i));
      next.push_back(text_row(tokens[static_cast<size_t>(first + i + 1)], first + i));
    }
    const LaneRows lane_rows{.first_row = 0, .rows = rows, .prefix = first, .settled = rows};
    const ForwardResult result = target.forward({.inputs = inputs, .lanes = {&lane_rows, 1}}, lanes, shape.taps);
    target.commit(*lane, all);
    head.forward(result.hidden, {.inputs = next, .lanes = {&lane_rows, 1}}, mtp_lanes);
    for (const auto& [model, to] : {std::pair(plain.get(), block_lane.get()), std::pair(small.get(), small_lane.get())}) {
      const DflashContext entry{to, all};
      model->extend(result.taps, {&entry, 1});
    }
    kept_taps.assign(result.taps.f32(), result.taps.f32() + 8 * result.taps.cols);
    kept_hidden.assign(result.hidden.f32(), result.hidden.f32() + 8 * config.hidden);
  }
  const View features = View::of(kept_taps.data(), 8, static_cast<int64_t>(shape.taps.size()) * config.hidden);

  const auto target_rows = [&](int rows) {
    std::vector<RowInput> inputs;
    std::vector<int> wanted;
    for (int i = 0; i < rows; ++i) {
      inputs.push_back(text_row(tokens[static_cast<size_t>(i)], context + i));
      wanted.push_back(i);
    }
    const LaneRows lane_rows{.first_row = 0, .rows = rows, .prefix = context, .settled = 0};
    target.forward({.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = wanted}, lanes, shape.taps);
  };
  const auto mtp_rows = [&](int rows) {
    std::vector<RowInput> inputs;
    for (int i = 0; i < rows; ++i) inputs.push_back(text_row(tokens[static_cast<size_t>(i)], context + i));
    const int last = rows - 1;
    const LaneRows lane_rows{.first_row = 0, .rows = rows, .prefix = context, .settled = rows};
    head.forward(View::of(kept_hidden.data(), rows, config.hidden), {.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = {&last, 1}},
                 mtp_lanes);
    mtp_lane->truncate(context);
  };
  const auto block = [&](DflashModel& model, DflashLane& of, int rows) {
    const DflashBlock one{&of, tokens[0], rows};
    model.draft({&one, 1});
  };
  // Extending moves the lane on; the ring makes its length immaterial.
  const auto extend = [&](DflashModel& model, DflashLane& of, int rows) {
    std::vector<int> all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    const DflashContext entry{&of, all};
    model.extend(features, {&entry, 1});
  };
  const std::string small_name = argc > 5 ? argv[5] : "q8_0";
  std::vector<std::pair<std::string, std::function<void()>>> steps = {
      {"target, 1 row", [&] { target_rows(1); }},
      {"target, 4 rows", [&] { target_rows(4); }},
      {"target, 8 rows", [&] { target_rows(8); }},
      {"MTP, 1 pair and logits", [&] { mtp_rows(1); }},
      {"MTP, 4 pairs, logits of the last", [&] { mtp_rows(4); }},
      {fmt::format("block of {} rows", shape.block_size), [&] { block(*plain, *block_lane, shape.block_size); }},
      {"block of 4 rows", [&] { block(*plain, *block_lane, 4); }},
      {fmt::format("block of {} rows, {}", shape.block_size, small_name), [&] { block(*small, *small_lane, shape.block_size); }},
      {"context of 1 token", [&] { extend(*plain, *block_lane, 1); }},
      {"context of 4 tokens", [&] { extend(*plain, *block_lane, 4); }},
      {fmt::format("context of 4 tokens, {}", small_name), [&] { extend(*small, *small_lane, 4); }},
  };
  if (argc > 6) std::erase_if(steps, [&](const auto& step) { return step.first.find(argv[6]) == std::string::npos; });
  const SteadyClock clock;
  std::vector<std::vector<double>> seconds(steps.size());
  for (int round = 0; round < rounds + 3; ++round)
    for (size_t i = 0; i < steps.size(); ++i) {
      const TimePoint begin = clock.now();
      steps[i].second();
      if (round >= 3) seconds[i].push_back(seconds_between(begin, clock.now()));
    }
  const BackendInfo info = backend->info();
  fmt::print("{} · {} {} · context {} · {} rounds\n", folder.string(), info.name, info.detail, context, rounds);
  fmt::print("drafter {}, {:.1f} MB packed, {:.1f} MB as {}\n", drafter_kind_name(shape.kind),
             static_cast<double>(plain->packed_bytes()) / 1e6, static_cast<double>(small->packed_bytes()) / 1e6, small_name);
  const double token = median(seconds[0]);
  for (size_t i = 0; i < steps.size(); ++i)
    fmt::print("{:36} {:8.1f} us  fastest {:8.1f}  {:5.2f} of a plain token\n", steps[i].first, median(seconds[i]) * 1e6,
               *std::min_element(seconds[i].begin(), seconds[i].end()) * 1e6, median(seconds[i]) / token);
  return 0;
}

}  // namespace
}  // namespace foretoken

int main(int argc, char** argv) { return foretoken::run(argc, argv); }
