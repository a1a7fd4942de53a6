// Steps of drafting as tests take them: what the target computes over a known sequence, and how the MTP head and a block drafter
// are fed from it.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/json.h"
#include "decode/generation.h"
#include "model/dflash.h"
#include "model/mtp.h"

namespace foretoken::test {

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

inline std::vector<TokenId> prompt_and_greedy(const Json& prompt) {
  auto tokens = prompt["ids"].get<std::vector<TokenId>>();
  const auto greedy = prompt["greedy"].get<std::vector<TokenId>>();
  tokens.insert(tokens.end(), greedy.begin(), greedy.end());
  return tokens;
}

// Appends the pairs (hidden_j, token j + 1) of positions [begin, end), in chunks; logits of the last one.
inline MtpResult append_pairs(MtpHead& head, MtpLane& lane, View hidden, std::span<const TokenId> tokens, int64_t begin, int64_t end) {
  MtpResult result;
  for (int64_t first = begin; first < end; first += head.options().max_rows) {
    const int rows = static_cast<int>(std::min<int64_t>(head.options().max_rows, end - first));
    std::vector<RowInput> inputs;
    for (int i = 0; i < rows; ++i) inputs.push_back(text_row(tokens[static_cast<size_t>(first + i + 1)], first + i));
    const LaneRows lane_rows{.first_row = 0, .rows = rows, .prefix = lane.end(), .settled = rows};
    const int last = rows - 1;
    MtpLane* lanes[] = {&lane};
    result = head.forward(hidden.row_range(first, first + rows), {.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = {&last, 1}},
                          lanes);
  }
  return result;
}

// One step deeper: the last row of `previous` and the token drafted from it.
inline MtpResult chain_step(MtpHead& head, MtpLane& lane, const MtpResult& previous, TokenId token) {
  const RowInput input = text_row(token, lane.end());
  const LaneRows lane_rows{.first_row = 0, .rows = 1, .prefix = lane.end(), .settled = 1};
  const int row = 0;
  MtpLane* lanes[] = {&lane};
  return head.forward(previous.hidden.row_range(previous.hidden.rows - 1, previous.hidden.rows),
                      {.inputs = {&input, 1}, .lanes = {&lane_rows, 1}, .logits_rows = {&row, 1}}, lanes);
}

// Context rows of positions [lane.end(), end) from tapped rows of all positions.
inline void extend_to(DflashModel& drafter, DflashLane& lane, View taps, int64_t end) {
  std::vector<int> rows(static_cast<size_t>(end - lane.end()));
  std::iota(rows.begin(), rows.end(), static_cast<int>(lane.end()));
  const DflashContext context{&lane, rows};
  drafter.extend(taps, {&context, 1});
}

}  // namespace foretoken::test
