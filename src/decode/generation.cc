// The life of one answer.
#include "decode/generation.h"

#include <algorithm>
#include <numeric>

namespace foretoken {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return "";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "";
}

bool run_prompt(TargetModel& target, LaneState& lane, std::span<const TokenId> prompt, int chunk, std::span<const int64_t> wanted,
                const std::function<bool(int64_t, int64_t, const ForwardResult&)>& visit) {
  const int64_t total = static_cast<int64_t>(prompt.size());
  const int64_t limit = std::clamp<int64_t>(chunk, 1, target.options().max_rows);
  std::vector<RowInput> inputs;
  std::vector<int> logits_rows, path;
  size_t next_wanted = 0;
  for (int64_t first = 0; first < total; first += limit) {
    const int rows = static_cast<int>(std::min(limit, total - first));
    inputs.clear();
    logits_rows.clear();
    for (int i = 0; i < rows; ++i) inputs.push_back(text_row(prompt[static_cast<size_t>(first + i)], lane.length() + i));
    while (next_wanted < wanted.size() && wanted[next_wanted] < first + rows)
      logits_rows.push_back(static_cast<int>(wanted[next_wanted++] - first));
    path.resize(static_cast<size_t>(rows));
    std::iota(path.begin(), path.end(), 0);
    const LaneRows lane_rows{.first_row = 0, .rows = rows, .prefix = lane.length(), .settled = rows, .parent = {}};
    LaneState* lanes[] = {&lane};
    const ForwardResult result =
        target.forward({.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = logits_rows}, lanes);
    target.commit(lane, path);
    if (!visit(first, rows, result)) return false;
  }
  return true;
}

Generation::Generation(TargetModel& target, LaneState& lane, GenerationOptions options, const Clock& clock)
    : target_(target), lane_(lane), options_(std::move(options)), clock_(clock) {}

Status Generation::start(std::span<const TokenId> prompt, const std::function<bool(int64_t, int64_t)>& progress) {
  if (prompt.empty()) return Error{ErrorCode::kUsage, "the prompt is empty: give at least one token"};
  for (const TokenId id : prompt)
    if (id < 0 || id >= target_.config().vocab)
      return Error{ErrorCode::kUsage, "token id " + std::to_string(id) + " is outside the vocabulary of " +
                                          std::to_string(target_.config().vocab)};
  TRY(options_.sampling.validate());
  if (options_.max_tokens <= 0) {
    finish(FinishReason::kLength);
    return {};
  }
  for (const TokenId id : prompt) counts_.add_prompt(id);
  const TimePoint begin = clock_.now();
  const int64_t total = static_cast<int64_t>(prompt.size());
  const int64_t last[] = {total - 1};
  Status status;
  const bool done = run_prompt(target_, lane_, prompt, options_.prefill_chunk, last,
                               [&](int64_t first, int64_t rows, const ForwardResult& result) {
                                 if (progress && !progress(first + rows, total)) return false;
                                 if (first + rows < total) return true;
                                 const auto token = sampler_.select({result.logits.f32(), static_cast<size_t>(result.logits.cols)},
                                                                    options_.sampling, static_cast<uint64_t>(lane_.length()), &counts_);
                                 if (!token) status = token.error();
                                 else if (emit(*token)) finish(FinishReason::kStop);
                                 return true;
                               });
  timing_.prefill_s = seconds_between(begin, clock_.now());
  TRY(status);
  if (!done) finish(FinishReason::kCancelled);
  if (!finished() && static_cast<int64_t>(tokens_.size()) >= options_.max_tokens) finish(FinishReason::kLength);
  return {};
}

Status Generation::step() {
  if (finished()) return {};
  CHECK(!tokens_.empty());
  const TimePoint begin = clock_.now();
  const Proposal proposal;  // plain decoding: the anchor alone
  const RowInput anchor = text_row(tokens_.back(), lane_.length());
  const LaneRows lane_rows{.first_row = 0, .rows = 1, .prefix = lane_.length(), .settled = 1, .parent = {}};
  const int logits_rows[] = {0};
  LaneState* lanes[] = {&lane_};
  const ForwardResult result =
      target_.forward({.inputs = {&anchor, 1}, .lanes = {&lane_rows, 1}, .logits_rows = logits_rows}, lanes);
  TRY(settle(proposal, result));
  ++timing_.cycles;
  timing_.decode_s += seconds_between(begin, clock_.now());
  return {};
}

Status Generation::settle(const Proposal& proposal, const ForwardResult& result) {
  const int64_t budget = options_.max_tokens - static_cast<int64_t>(tokens_.size());
  const int64_t next = lane_.length() + 1;  // sequence index of the anchor's successor
  const auto choose = [&](int row, int offset) {
    return sampler_.select({result.logits.f32(row), static_cast<size_t>(result.logits.cols)}, options_.sampling,
                           static_cast<uint64_t>(next + offset), &counts_);
  };
  ASSIGN_OR_RETURN(const Accepted accepted, Verifier::accept(proposal, budget, choose, [this](TokenId token) { return emit(token); }));
  target_.commit(lane_, accepted.rows());
  if (accepted.stopped()) finish(FinishReason::kStop);
  else if (static_cast<int64_t>(tokens_.size()) >= options_.max_tokens) finish(FinishReason::kLength);
  return {};
}

bool Generation::emit(TokenId token) {
  tokens_.push_back(token);
  counts_.add_answer(token);
  const bool stop_token = std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), token) != options_.stop_tokens.end();
  const bool stop_text = on_token_ && on_token_(token);
  return stop_token || stop_text;
}

void Generation::finish(FinishReason reason) {
  if (!finished()) reason_ = reason;
}

}  // namespace foretoken
