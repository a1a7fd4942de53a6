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
                const std::function<bool(int64_t, int64_t, const ForwardResult&)>& visit, std::span<const int> tap_layers) {
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
        target.forward({.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = logits_rows}, lanes, tap_layers);
    target.commit(lane, path);
    if (!visit(first, rows, result)) return false;
  }
  return true;
}

Generation::Generation(TargetModel& target, LaneState& lane, GenerationOptions options, const Clock& clock, Speculation speculation)
    : target_(target), lane_(lane), options_(std::move(options)), clock_(clock),
      speculator_(std::move(speculation.drafters), speculation.options, speculation.memory, clock) {}

Status Generation::start(std::span<const TokenId> prompt, const std::function<bool(int64_t, int64_t)>& progress,
                         std::span<const TokenId> history) {
  if (prompt.empty()) return Error{ErrorCode::kUsage, "the prompt is empty: give at least one token"};
  for (const TokenId id : prompt)
    if (id < 0 || id >= target_.config().vocab)
      return Error{ErrorCode::kUsage, "token id " + std::to_string(id) + " is outside the vocabulary of " +
                                          std::to_string(target_.config().vocab)};
  CHECK(history.empty() || static_cast<int64_t>(history.size()) == lane_.length());
  TRY(options_.sampling.validate());
  if (options_.max_tokens <= 0) {
    finish(FinishReason::kLength);
    return {};
  }
  for (const TokenId id : history) counts_.add_prompt(id);
  for (const TokenId id : prompt) counts_.add_prompt(id);
  speculator_.restart(history);
  const TimePoint begin = clock_.now();
  const int64_t total = static_cast<int64_t>(prompt.size());
  const int64_t last[] = {total - 1};
  std::vector<int> rows_of_chunk;
  Status status;
  const auto visit = [&](int64_t first, int64_t rows, const ForwardResult& result) {
    const bool complete = first + rows == total;
    if (progress && !progress(first + rows, total)) return false;
    if (complete) {
      const auto token = sampler_.select({result.logits.f32(), static_cast<size_t>(result.logits.cols)}, options_.sampling,
                                         static_cast<uint64_t>(lane_.length()), &counts_, mask());
      if (!token) {
        status = token.error();
        return true;
      }
      if (emit(*token, -1)) finish(FinishReason::kStop);
    }
    rows_of_chunk.resize(static_cast<size_t>(rows));
    std::iota(rows_of_chunk.begin(), rows_of_chunk.end(), 0);
    speculator_.observe({.first = lane_.length() - rows, .tokens = prompt.subspan(size_t(first), size_t(rows)),
                         .next = complete ? tokens_.back() : prompt[size_t(first + rows)], .rows = rows_of_chunk,
                         .hidden = result.hidden, .taps = result.taps, .upcoming = total - first - rows});
    return true;
  };
  const bool done = run_prompt(target_, lane_, prompt, options_.prefill_chunk, last, visit, speculator_.tap_layers());
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
  const int64_t first = lane_.length();
  const TokenId anchor = tokens_.back();
  proposal_ = speculator_.propose({.context = first, .anchor = anchor,
                                   .budget = options_.max_tokens - static_cast<int64_t>(tokens_.size()),
                                   .max_nodes = std::min(lane_.tape_rows(), target_.options().max_rows) - 1,
                                   .sampling = &options_.sampling, .counts = &counts_, .rules = options_.rules});
  const TimePoint drafted = clock_.now();
  const ForwardResult result = verify(proposal_);
  ASSIGN_OR_RETURN(const Accepted accepted, walk(proposal_, result));
  const TimePoint verified = clock_.now();
  target_.commit(lane_, accepted.rows());
  const TimePoint committed = clock_.now();

  std::vector<TokenId> path;
  for (const int row : accepted.rows()) path.push_back(row == 0 ? anchor : proposal_.token(row - 1));
  speculator_.observe({.first = first, .tokens = path, .next = accepted.tokens().back(), .rows = accepted.rows(),
                       .hidden = result.hidden, .taps = result.taps});
  const TimePoint end = clock_.now();
  speculator_.settle(accepted, seconds_between(begin, end));
  ++timing_.cycles;
  timing_.draft_s += seconds_between(begin, drafted) + seconds_between(committed, end);
  timing_.verify_s += seconds_between(drafted, verified);
  timing_.commit_s += seconds_between(verified, committed);
  timing_.decode_s += seconds_between(begin, end);
  if (accepted.stopped()) finish(FinishReason::kStop);
  else if (static_cast<int64_t>(tokens_.size()) >= options_.max_tokens) finish(FinishReason::kLength);
  return {};
}

// The anchor and the proposed nodes as one pass; logits of every row.
ForwardResult Generation::verify(const Proposal& proposal) {
  const int rows = 1 + proposal.size();
  std::vector<RowInput> inputs = {text_row(tokens_.back(), lane_.length())};
  for (int node = 0; node < proposal.size(); ++node)
    inputs.push_back(text_row(proposal.token(node), lane_.length() + proposal.depth(node)));
  std::vector<int> logits_rows(static_cast<size_t>(rows));
  std::iota(logits_rows.begin(), logits_rows.end(), 0);
  const LaneRows lane_rows{.first_row = 0, .rows = rows, .prefix = lane_.length(), .settled = 1, .parent = proposal.row_parents()};
  LaneState* lanes[] = {&lane_};
  return target_.forward({.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = logits_rows}, lanes, speculator_.tap_layers());
}

Result<Accepted> Generation::walk(const Proposal& proposal, const ForwardResult& result) {
  const int64_t budget = options_.max_tokens - static_cast<int64_t>(tokens_.size());
  const int64_t next = lane_.length() + 1;  // sequence index of the anchor's successor
  int node = -1;                            // where the walk stands
  const auto choose = [&](int row, int offset) {
    node = row - 1;
    return sampler_.select({result.logits.f32(row), static_cast<size_t>(result.logits.cols)}, options_.sampling,
                           static_cast<uint64_t>(next + offset), &counts_, mask());
  };
  return Verifier::accept(proposal, budget, choose, [&](TokenId token) {
    const int child = proposal.child(node, token);
    return emit(token, child < 0 ? -1 : static_cast<int>(proposal.by(child)));
  });
}

bool Generation::emit(TokenId token, int origin) {
  tokens_.push_back(token);
  origins_.push_back(static_cast<int8_t>(origin));
  counts_.add_answer(token);
  const bool rules_end = options_.rules && options_.rules->advance(token);
  const bool stop_token = std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), token) != options_.stop_tokens.end();
  const bool stop_text = on_token_ && on_token_(token);
  return rules_end || stop_token || stop_text;
}

void Generation::finish(FinishReason reason) {
  if (!finished()) reason_ = reason;
}

}  // namespace foretoken
