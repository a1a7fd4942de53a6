// A sequence in passes of its own.
#include "decode/generation.h"

#include <algorithm>
#include <numeric>

#include "decode/rows.h"

namespace foretoken {

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
    : target_(target), lane_(lane), options_(std::move(options)), clock_(clock), speculation_(std::move(speculation)) {}

Status Generation::start(std::span<const TokenId> prompt, const std::function<bool(int64_t, int64_t)>& progress,
                         std::span<const TokenId> history) {
  CHECK(!sequence_);
  CHECK(static_cast<int64_t>(history.size()) == lane_.length());
  SequenceOptions options{.sampling = options_.sampling, .max_tokens = options_.max_tokens, .stop_tokens = options_.stop_tokens,
                          .rules = options_.rules, .logprobs = {}};
  TRY(Sequence::check(prompt, options, target_.config().vocab));
  std::vector<TokenId> known(history.begin(), history.end());
  known.insert(known.end(), prompt.begin(), prompt.end());
  sequence_.emplace(std::move(known), std::move(options), std::move(speculation_), clock_);
  sequence_->on_token(std::move(on_token_));
  sequence_->attach(lane_);
  const TimePoint begin = clock_.now();
  const int64_t total = static_cast<int64_t>(prompt.size());
  const int64_t chunk = std::clamp<int64_t>(options_.prefill_chunk, 1, target_.options().max_rows);
  while (!sequence_->finished() && sequence_->decided_rows() > 0) {
    const int64_t left = sequence_->decided_rows();
    TRY(run([&](Pass& pass) { sequence_->add_decided(pass, static_cast<int>(std::min(chunk, left))); }));
    if (progress && !progress(total - sequence_->decided_rows(), total)) sequence_->cancel();
  }
  prefill_s_ = seconds_between(begin, clock_.now());
  return {};
}

Status Generation::step() {
  if (finished()) return {};
  CHECK(!tokens().empty());
  sequence_->plan({}, target_.options().max_rows);
  Speculator* self = &sequence_->speculator();
  Speculator::draft({&self, 1});
  return run([this](Pass& pass) { sequence_->add_cycle(pass, {}); });
}

Status Generation::run(const std::function<void(Pass&)>& add) {
  pass_.clear();
  add(pass_);
  const TimePoint begin = clock_.now();
  const ForwardResult result = pass_.run(target_);
  return sequence_->settle(target_, result, {.rows = pass_.rows(), .forward_s = seconds_between(begin, clock_.now())});
}

void Generation::cancel() {
  if (sequence_) sequence_->cancel();
}

}  // namespace foretoken
