// A bundle loaded for model and decoding tests, and what its target computes over a known token sequence.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "decode/generation.h"
#include "model/target.h"
#include "support/test_backend.h"

namespace foretoken::test {

// Throws with the error's sentence: in a test a bundle that does not load is a failure.
template <class T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

struct LoadedBundle {
  Bundle bundle;
  ModelConfig config;
  std::unique_ptr<Backend> backend;
  Weights weights;
  std::unique_ptr<TargetModel> target;
};

inline std::unique_ptr<LoadedBundle> load_bundle(const std::filesystem::path& path, KvFormat kv_format = KvFormat::kF32) {
  auto m = std::make_unique<LoadedBundle>();
  m->bundle = value_of(Bundle::open(path));
  m->config = value_of(ModelConfig::from_bundle(m->bundle));
  m->backend = fast_backend();
  m->weights = value_of(Weights::load(m->bundle, m->config, *m->backend));
  m->target = std::make_unique<TargetModel>(m->config, m->weights, *m->backend, TargetOptions{.kv_format = kv_format});
  return m;
}

// Normed hiddens and tapped rows of every position of a sequence.
struct TargetTrace {
  std::vector<float> hidden_values, tap_values;
  View hidden, taps;
};

// Runs `tokens` through `lane`, committing all of them.
inline TargetTrace trace_target(TargetModel& target, LaneState& lane, std::span<const TokenId> tokens, std::span<const int> taps) {
  TargetTrace trace;
  const int64_t n = static_cast<int64_t>(tokens.size()), hidden = target.config().hidden;
  const int64_t tapped = static_cast<int64_t>(taps.size()) * hidden;
  trace.hidden_values.resize(static_cast<size_t>(n * hidden));
  trace.tap_values.resize(static_cast<size_t>(n * tapped));
  trace.hidden = View::of(trace.hidden_values.data(), n, hidden);
  trace.taps = View::of(trace.tap_values.data(), n, tapped);
  for (int64_t first = 0; first < n; first += target.options().max_rows) {
    const int rows = static_cast<int>(std::min<int64_t>(target.options().max_rows, n - first));
    std::vector<RowInput> inputs;
    for (int i = 0; i < rows; ++i) inputs.push_back(text_row(tokens[static_cast<size_t>(first + i)], lane.length() + i));
    const LaneRows lane_rows{.first_row = 0, .rows = rows, .prefix = lane.length(), .settled = rows};
    LaneState* lanes[] = {&lane};
    const ForwardResult result = target.forward({.inputs = inputs, .lanes = {&lane_rows, 1}}, lanes, taps);
    std::vector<int> path(static_cast<size_t>(rows));
    std::iota(path.begin(), path.end(), 0);
    target.commit(lane, path);
    for (int i = 0; i < rows; ++i) {
      std::copy_n(result.hidden.f32(i), hidden, trace.hidden.f32(first + i));
      if (tapped > 0) std::copy_n(result.taps.f32(i), tapped, trace.taps.f32(first + i));
    }
  }
  return trace;
}

// Index of the largest value, and its distance from the second.
struct Top { TokenId token; float margin; };
inline Top top_of(const float* logits, int64_t n) {
  TokenId best = 0;
  for (int64_t i = 1; i < n; ++i)
    if (logits[i] > logits[best]) best = static_cast<TokenId>(i);
  float second = -1e30f;
  for (int64_t i = 0; i < n; ++i)
    if (i != best) second = std::max(second, logits[i]);
  return {best, logits[best] - second};
}

}  // namespace foretoken::test
