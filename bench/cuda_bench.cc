// Whole passes of the released shapes on the CUDA backend, with random Q4_K weights: the row-cost curve, prefill, and
// the share of the device's read bandwidth that a one-row pass reaches. Nothing is read from disk; every matrix has
// memory of its own, filled from one buffer of random blocks. Figures are medians of host times around whole passes,
// choosing the tokens of all rows included.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>

#include "random_shapes.h"
#include "timing.h"

namespace foretoken {
namespace {

struct Options {
  std::string shape = "27b", kv = "bf16";
  std::vector<int> rows = {1, 2, 4, 8, 16, 32}, lanes;
  int layers = 0, prefill = 512, prefix = 1024, rounds = 15;
  double read_limit = 4.45;  // TB/s of a streaming read on an H200, measured
  bool products = false, check = false, no_graphs = false, no_wide = false;
  size_t most_shared = 0;
  int copies = 3;
};

// Whether every row of passes of 1 to 16 rows has the logits that it has alone: one lane decodes sixteen tokens one by
// one, another runs them as chains of every length that it never commits. Returns the exit status.
int check_rows(TargetModel& target, int vocab) {
  constexpr int kRows = 16;
  const auto run = [&](LaneState& lane, int first, int rows, int settled) {
    std::vector<RowInput> inputs;
    std::vector<int> wanted(static_cast<size_t>(rows));
    std::iota(wanted.begin(), wanted.end(), 0);
    for (int i = 0; i < rows; ++i) {
      const int32_t position = first + i;
      inputs.push_back({.token = (position * 131 + 7) % 1024, .position = {position, position, position}});
    }
    const LaneRows lane_rows{0, rows, lane.length(), settled, {}};
    LaneState* lanes[] = {&lane};
    const View logits =
        target.forward({.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = wanted}, lanes).logits;
    if (settled == rows) target.commit(lane, wanted);
    return logits;
  };
  const auto one = target.make_lane(), many = target.make_lane();
  constexpr int kPrefix = 200;
  run(*one, 0, kPrefix, kPrefix);
  run(*many, 0, kPrefix, kPrefix);
  std::vector<std::vector<float>> expected;
  for (int i = 0; i < kRows; ++i) {
    const View row = run(*one, kPrefix + i, 1, 1);
    expected.emplace_back(row.f32(), row.f32() + vocab);
  }
  int64_t compared = 0, different = 0, trivial = 0;
  for (int i = 1; i < kRows; ++i) trivial += expected[static_cast<size_t>(i)] == expected[0];
  for (const float v : expected[0]) trivial += !std::isfinite(v);
  for (int rows = 1; rows <= kRows; ++rows) {
    const View logits = run(*many, kPrefix, rows, 0);
    for (int i = 0; i < rows; ++i) {
      const auto* a = reinterpret_cast<const uint32_t*>(logits.f32(i));
      const auto* b = reinterpret_cast<const uint32_t*>(expected[static_cast<size_t>(i)].data());
      for (int c = 0; c < vocab; ++c) different += a[c] != b[c];
      compared += vocab;
    }
  }
  fmt::print("rows alone and in passes of 1 to {}: {} of {} logits differ{}\n", kRows, different, compared,
             trivial > 0 ? "; the rows tell nothing apart" : "");
  return different == 0 && trivial == 0 ? 0 : 1;
}

int run(const Options& o) {
  auto made = make_cuda_backend({.graphs = !o.no_graphs, .wide = !o.no_wide, .most_shared = o.most_shared});
  if (!made) {
    fmt::print(stderr, "cuda_bench: {}\n", made.error().message);
    return 4;
  }
  Backend& backend = **made;
  fmt::print("device: {}\n", backend.info().detail);
  const ModelConfig config = config_of(o.shape, o.layers);
  RandomBlocks blocks(size_t{248320} * row_bytes(QuantFormat::kQ4_K, config.hidden));

  if (o.products) {  // single products, three matrices in turn so that none stays in the cache
    for (const auto& [outputs, cols] :
         {std::pair<int64_t, int64_t>(34816, 5120), std::pair<int64_t, int64_t>(5120, 17408),
          std::pair<int64_t, int64_t>(16480, 5120), std::pair<int64_t, int64_t>(5120, 6144),
          std::pair<int64_t, int64_t>(248320, 5120)}) {
      std::vector<MatrixPtr> copies;
      for (int i = 0; i < o.copies; ++i) {
        const MatrixSource source = blocks.source(outputs, cols);
        copies.push_back(backend.pack({&source, 1}));
      }
      std::string line =
          fmt::format("{:>6} x {:<5} {:6.1f} MB:", outputs, cols, static_cast<double>(copies[0]->bytes()) / 1e6);
      for (const int rows : {1, 8, 16, 17, 32, 64, 128, 512, 1024}) {
        if (rows > 64 && outputs > 100000) continue;
        const Buffer in = backend.allocate(static_cast<size_t>(rows * cols) * 4),
                     out = backend.allocate(static_cast<size_t>(rows * outputs) * 4);
        std::vector<float> values(static_cast<size_t>(rows * cols));
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 97) / 97 - 0.5f;
        const View x = in.view(rows, cols), y = out.view(rows, outputs);
        backend.upload(View::of(values.data(), rows, cols), x);
        float last;
        const View one = y.row_range(0, 1).columns(0, 1), host = View::of(&last, 1, 1);
        std::vector<double> times;
        const int repeats = rows > 64 ? 6 : 30;
        for (int round = 0; round < 6; ++round) {
          backend.download(one, host);
          const double begin = seconds();
          for (int i = 0; i < repeats; ++i) backend.linear(x, *copies[static_cast<size_t>(i % o.copies)], y);
          backend.download(one, host);
          times.push_back((seconds() - begin) / repeats);
        }
        const double t = median(times);
        line += rows <= 64 ? fmt::format("  {} rows {:6.1f} us {:4.2f} TB/s", rows, t * 1e6,
                                         static_cast<double>(copies[0]->bytes()) / t / 1e12)
                           : fmt::format("  {} rows {:6.1f} us {:4.0f} TFLOP/s", rows, t * 1e6,
                                         2.0 * rows * static_cast<double>(outputs * cols) / t / 1e12);
      }
      fmt::print("{}\n", line);
    }
    return 0;
  }

  const double loading = seconds();
  const Weights weights = random_weights(config, backend, blocks, 1024);
  double bytes = 0;  // what a one-row pass must read
  {
    const auto add = [&bytes](const MatrixPtr& m) { bytes += static_cast<double>(m->bytes()); };
    for (const LayerWeights& layer : weights.layers) {
      if (std::holds_alternative<DeltaWeights>(layer.mixer)) add(layer.delta().in_proj), add(layer.delta().out_proj);
      else add(layer.attention().in_proj), add(layer.attention().out_proj);
      if (!layer.is_sparse()) {
        add(layer.dense().gate_up), add(layer.dense().down);
        continue;
      }
      const MoeWeights& m = layer.experts();
      add(m.router), add(m.shared.gate_up), add(m.shared.down), add(m.shared_gate);
      for (int e = 0; e < config.moe.top_k; ++e)
        add(m.experts[static_cast<size_t>(e)].gate_up), add(m.experts[static_cast<size_t>(e)].down);
    }
    add(weights.head);
  }
  fmt::print(
      "{} shape, {} layers, Q4_K random weights: packed in {:.1f} s; a one-row pass reads {:.2f} GB of weights (at {} "
      "TB/s: {:.2f} ms)\n",
      o.shape, config.layers, seconds() - loading, bytes / 1e9, o.read_limit, bytes / o.read_limit / 1e9);

  const KvFormat kv = o.kv == "int8" ? KvFormat::kInt8 : o.kv == "f32" ? KvFormat::kF32 : KvFormat::kBF16;
  TargetModel target(config, weights, backend, {.max_rows = std::max(o.prefill, 72), .tape_rows = 72, .kv_format = kv});
  if (o.check) return check_rows(target, config.vocab);
  // One pass of so many rows of every lane, of which the first `settled` need no verifying.
  const auto pass_of = [&](std::span<const std::unique_ptr<LaneState>> states, int rows, int settled, bool commit) {
    std::vector<RowInput> inputs;
    std::vector<LaneRows> lane_rows;
    std::vector<LaneState*> lanes;
    std::vector<int> wanted, path(static_cast<size_t>(rows));
    std::iota(path.begin(), path.end(), 0);
    for (const std::unique_ptr<LaneState>& lane : states) {
      lane_rows.push_back({static_cast<int>(inputs.size()), rows, lane->length(), settled, {}});
      lanes.push_back(lane.get());
      for (int i = 0; i < rows; ++i) {
        const int32_t position = static_cast<int32_t>(lane->length()) + i;
        if (settled < rows || i + 1 == rows) wanted.push_back(static_cast<int>(inputs.size()));
        inputs.push_back({.token = (i * 37) % 1024, .position = {position, position, position}});
      }
    }
    const double begin = seconds();
    const std::vector<ChoiceSpec> greedy(wanted.size());  // as decoding does: what they find out is the host's
    target.forward({.inputs = inputs, .lanes = lane_rows, .logits_rows = wanted, .choices = greedy}, lanes);
    if (commit)
      for (LaneState* lane : lanes) target.commit(*lane, path);
    return seconds() - begin;
  };
  std::vector<std::unique_ptr<LaneState>> first_lane;
  first_lane.push_back(target.make_lane());
  const LaneState* const lane = first_lane[0].get();
  const auto pass = [&](int rows, int settled, bool commit) { return pass_of(first_lane, rows, settled, commit); };
  pass(std::min(o.prefill, 64), std::min(o.prefill, 64), true);
  std::vector<double> prefill;
  while (lane->length() + o.prefill <= o.prefix || prefill.empty()) prefill.push_back(pass(o.prefill, o.prefill, true));
  fmt::print("prefill: {} rows a pass, {:.1f} ms, {:.0f} tokens/s (to position {})\n", o.prefill, median(prefill) * 1e3,
             o.prefill / median(prefill), lane->length());
  if (prefill.size() > 1) {  // once more from the beginning, where nothing is new to the backend
    std::vector<std::unique_ptr<LaneState>> again;
    again.push_back(target.make_lane());
    double whole = 0;
    for (size_t i = 0; i < prefill.size(); ++i) whole += pass_of(again, o.prefill, o.prefill, true);
    fmt::print("whole prompt: {} tokens, {:.1f} ms, {:.0f} tokens/s\n", again[0]->length(), whole * 1e3,
               static_cast<double>(again[0]->length()) / whole);
  }
  double one = 0;
  for (const int rows : o.rows) {
    std::vector<double> times;
    for (int i = 0; i < 3; ++i) pass(rows, 1, true);
    for (int i = 0; i < o.rounds; ++i) times.push_back(pass(rows, 1, true));
    const double t = median(times);
    if (rows == 1) one = t;
    fmt::print(
        "{:3} rows: {:7.3f} ms ({:.2f}x one row), {:.2f} TB/s of weights, {:.0f} % of the read limit, plain {:.1f} "
        "tokens/s\n",
        rows, t * 1e3, one > 0 ? t / one : 0, bytes / t / 1e12, bytes / t / 1e10 / o.read_limit,
        rows == 1 ? 1 / t : rows / t);
  }
  for (const int count : o.lanes) {
    std::vector<std::unique_ptr<LaneState>> states;
    for (int i = 0; i < count; ++i) {
      states.push_back(target.make_lane());
      pass_of(std::span(states).last(1), 64, 64, true);
    }
    std::string line = fmt::format("{:3} lanes:", count);
    for (const int rows : {1, 4}) {
      if (count * rows > 72) continue;
      std::vector<double> times;
      for (int i = 0; i < 3; ++i) pass_of(states, rows, 1, true);
      for (int i = 0; i < o.rounds; ++i) times.push_back(pass_of(states, rows, 1, true));
      const double t = median(times);
      line += fmt::format("  {} row{} a lane {:7.3f} ms", rows, rows == 1 ? "" : "s", t * 1e3);
      if (rows == 1) line += fmt::format(", {:.0f} tokens/s together", count / t);
    }
    fmt::print("{}\n", line);
  }
  return 0;
}

}  // namespace
}  // namespace foretoken

int main(int argc, char** argv) {
  foretoken::Options o;
  CLI::App app("Times passes of released shapes on the CUDA backend", "cuda_bench");
  app.add_option("--shape", o.shape, "27b or a3b")->check(CLI::IsMember({"27b", "a3b"}))->capture_default_str();
  app.add_option("--layers", o.layers, "Layers (0: all)")->capture_default_str();
  app.add_option("--rows", o.rows, "Rows of a verify pass")->delimiter(',')->capture_default_str();
  app.add_option("--lanes", o.lanes, "Lanes that decode together, of 64 tokens each")->delimiter(',');
  app.add_option("--prefill", o.prefill, "Rows of a prompt pass")->capture_default_str();
  app.add_option("--prefix", o.prefix, "Committed tokens before the timed passes")->capture_default_str();
  app.add_option("--rounds", o.rounds, "Timed passes of each kind")->capture_default_str();
  app.add_option("--kv-format", o.kv, "f32, bf16 or int8")->capture_default_str();
  app.add_option("--read-limit", o.read_limit, "TB/s of a streaming read")->capture_default_str();
  app.add_option("--copies", o.copies, "Matrices that take turns with --products; 1: what fits stays in the cache")
      ->capture_default_str();
  app.add_flag("--no-graphs", o.no_graphs, "Launch kernels one by one, for tools that time them");
  app.add_flag("--no-wide", o.no_wide, "Products of many rows in groups of sixteen");
  app.add_flag("--check", o.check, "Compare rows alone with rows of passes, bit for bit, instead of timing");
  app.add_option("--most-shared", o.most_shared,
                 "Plans of a device with so many bytes of shared memory a block; 101376: consumer cards");
  app.add_flag("--products", o.products, "Time single products instead of passes");
  CLI11_PARSE(app, argc, argv);
  return foretoken::run(o);
}
