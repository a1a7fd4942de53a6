// Steps of drafting as tests take them: feeding the MTP head and a block drafter from a known trace of the target.
#pragma once

#include <numeric>
#include <vector>

#include "base/json.h"
#include "decode/generation.h"
#include "model/dflash.h"
#include "model/mtp.h"

namespace foretoken::test {

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
