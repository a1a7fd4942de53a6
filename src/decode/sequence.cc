// The life of one answer: rows in, tokens out.
#include "decode/sequence.h"

#include <algorithm>
#include <numeric>

#include "decode/rows.h"

namespace foretoken {
namespace {

constexpr double kRecentTokens = 0.8;  // of the cycles before, per cycle

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return "";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "";
}

Status Sequence::check(std::span<const TokenId> prompt, const SequenceOptions& options, int vocab) {
  if (prompt.empty()) return Error{ErrorCode::kUsage, "the prompt is empty: give at least one token"};
  for (const TokenId id : prompt)
    if (id < 0 || id >= vocab)
      return Error{ErrorCode::kUsage, "token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(vocab)};
  return options.sampling.validate();
}

Sequence::Sequence(std::vector<TokenId> prompt, SequenceOptions options, Speculation speculation, const Clock& clock)
    : options_(std::move(options)), clock_(clock),
      speculator_(std::move(speculation.drafters), speculation.options, speculation.memory, clock), known_(std::move(prompt)),
      prompt_(known_.size()) {
  for (const TokenId id : known_) counts_.add_prompt(id);
  if (options_.max_tokens <= 0) finish(FinishReason::kLength);
}

void Sequence::attach(LaneState& lane, std::span<const std::byte> drafts) {
  CHECK(lane.length() <= decided_end());
  lane_ = &lane;
  speculator_.restore(known().first(static_cast<size_t>(lane.length())), drafts);
}

// Everything known is decided, but the answer's last token has no row of its own before the next cycle.
int64_t Sequence::decided_end() const { return static_cast<int64_t>(known_.size()) - (tokens().empty() ? 0 : 1); }

int64_t Sequence::decided_rows() const { return decided_end() - (lane_ != nullptr ? lane_->length() : 0); }

void Sequence::add_decided(Pass& pass, int rows, int64_t whole_at) {
  CHECK(rows >= 1);
  CHECK(rows <= decided_rows());
  const int64_t first = lane_->length();
  inputs_.clear();
  for (int64_t i = first; i < first + rows; ++i) inputs_.push_back(text_row(known_[static_cast<size_t>(i)], i));
  const bool first_token = tokens().empty() && rows == decided_rows();
  choices_.clear();
  if (first_token && chooses_apart()) choices_ = {Sampler::spec(options_.sampling, static_cast<uint64_t>(first + rows))};
  share_ = pass.add(*lane_, inputs_, rows, {}, first_token ? Pass::Logits::kLast : Pass::Logits::kNone, speculator_.tap_layers(), choices_);
  cycle_ = false;
  whole_at_ = std::min(whole_at, decided_end());
}

void Sequence::plan(const OtherLanes& others, int most_rows) {
  CHECK(!finished());
  CHECK(decided_rows() == 0);
  const TimePoint begin = clock_.now();
  speculator_.prepare({.context = lane_->length(), .anchor = known_.back(),
                       .budget = options_.max_tokens - static_cast<int64_t>(tokens().size()),
                       .max_nodes = std::min(lane_->tape_rows(), most_rows) - 1, .sampling = &options_.sampling, .counts = &counts_,
                       .rules = options_.rules}, others);
  drafted_s_ = seconds_between(begin, clock_.now());
}

void Sequence::add_cycle(Pass& pass, const OtherLanes& others) {
  const TimePoint begin = clock_.now();
  proposal_ = speculator_.complete(others);
  drafted_s_ += speculator_.draft_seconds() + seconds_between(begin, clock_.now());
  const int64_t first = lane_->length();
  inputs_ = {text_row(known_.back(), first)};
  for (int node = 0; node < proposal_.size(); ++node) inputs_.push_back(text_row(proposal_.token(node), first + proposal_.depth(node)));
  choices_.clear();
  if (chooses_apart())
    for (int node = -1; node < proposal_.size(); ++node)
      choices_.push_back(Sampler::spec(options_.sampling, static_cast<uint64_t>(first + 1 + (node < 0 ? 0 : proposal_.depth(node)))));
  share_ = pass.add(*lane_, inputs_, 1, proposal_.row_parents(), Pass::Logits::kAll, speculator_.tap_layers(), choices_);
  cycle_ = true;
}

Status Sequence::settle(TargetModel& target, const ForwardResult& result, const PassFacts& facts) {
  return cycle_ ? settle_cycle(target, result, facts) : settle_decided(target, result);
}

Status Sequence::settle_decided(TargetModel& target, const ForwardResult& result) {
  const int64_t first = lane_->length();
  rows_.resize(static_cast<size_t>(share_.rows));
  std::iota(rows_.begin(), rows_.end(), 0);
  target.commit(*lane_, rows_);
  if (tokens().empty() && decided_rows() == 0) {
    ASSIGN_OR_RETURN(const TokenId token, select(result, 0, lane_->length()));
    if (emit(token, -1)) finish(FinishReason::kStop);
    else if (options_.max_tokens <= 1) finish(FinishReason::kLength);
  }
  observe(result, first, rows_);
  return {};
}

Status Sequence::settle_cycle(TargetModel& target, const ForwardResult& result, const PassFacts& facts) {
  const TimePoint begin = clock_.now();
  const int64_t first = lane_->length();
  ASSIGN_OR_RETURN(const Accepted accepted, walk(result));
  const TimePoint walked = clock_.now();
  target.commit(*lane_, accepted.rows());
  const TimePoint committed = clock_.now();
  observe(result, first, accepted.rows());
  const TimePoint end = clock_.now();
  const double own_s = seconds_between(begin, end);
  speculator_.settle(accepted, {.rows = facts.rows, .lanes = facts.lanes, .seconds = drafted_s_ - speculator_.draft_seconds() + facts.forward_s + own_s * facts.lanes,
                                .learn = facts.learn_cost});
  recent_tokens_ += (1 - kRecentTokens) * (static_cast<double>(accepted.tokens().size()) - recent_tokens_);
  ++timing_.cycles;
  timing_.draft_s += drafted_s_ + seconds_between(committed, end);
  timing_.verify_s += facts.forward_s + seconds_between(begin, walked);
  timing_.commit_s += seconds_between(walked, committed);
  timing_.decode_s += drafted_s_ + facts.forward_s + own_s;
  if (accepted.stopped()) finish(FinishReason::kStop);
  else if (static_cast<int64_t>(tokens().size()) >= options_.max_tokens) finish(FinishReason::kLength);
  return {};
}

// The drafters learn what joined the sequence; rows count from the lane's first in the pass.
void Sequence::observe(const ForwardResult& result, int64_t first, std::span<const int> rows) {
  std::vector<int> in_pass;
  for (const int row : rows) in_pass.push_back(share_.first_row + row);
  const size_t end = static_cast<size_t>(lane_->length());
  // A sequence that failed or ended with its prompt has no next token to learn from.
  if (end >= known_.size()) return;
  speculator_.observe({.first = first, .tokens = known().subspan(static_cast<size_t>(first), in_pass.size()), .next = known_[end],
                       .rows = in_pass, .hidden = result.hidden.computed(), .taps = result.taps.computed(), .upcoming = cycle_ ? 0 : std::max<int64_t>(0, whole_at_ - lane_->length())});
}

Result<Accepted> Sequence::walk(const ForwardResult& result) {
  const int64_t budget = options_.max_tokens - static_cast<int64_t>(tokens().size());
  const int64_t next = lane_->length() + 1;  // sequence index of the anchor's successor
  int node = -1;                             // where the walk stands
  const auto choose = [&](int row, int offset) {
    node = row - 1;
    return select(result, row, next + offset);
  };
  return Verifier::accept(proposal_, budget, choose, [&](TokenId token) {
    const int child = proposal_.child(node, token);
    return emit(token, child < 0 ? -1 : static_cast<int>(proposal_.by(child)));
  });
}

Result<TokenId> Sequence::select(const ForwardResult& result, int row, int64_t position) {
  const int at = share_.first_logits + row;
  if (result.choices != nullptr && !choices_.empty()) {
    CHECK(choices_[static_cast<size_t>(row)].position == static_cast<uint64_t>(position) || options_.sampling.greedy());
    if (const auto token = sampler_.select(*result.choices, at, result.logits.cols, options_.sampling, static_cast<uint64_t>(position))) return *token;
  }
  const std::span<const float> logits = result.logits.row(at);
  ASSIGN_OR_RETURN(const TokenId token, sampler_.select(logits, options_.sampling, static_cast<uint64_t>(position), &counts_, mask()));
  if (options_.logprobs.chosen) logprobs_.push_back(logprobs_of(logits, token, options_.logprobs.top));
  return token;
}

bool Sequence::emit(TokenId token, int origin) {
  known_.push_back(token);
  origins_.push_back(static_cast<int8_t>(origin));
  counts_.add_answer(token);
  const bool rules_end = options_.rules && options_.rules->advance(token);
  const bool stop_token = std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), token) != options_.stop_tokens.end();
  const bool stop_text = on_token_ && on_token_(token);
  return rules_end || stop_token || stop_text;
}

void Sequence::finish(FinishReason reason) {
  if (!finished()) reason_ = reason;
}

}  // namespace foretoken
