// Comparison happens inside the engine's events, where lanes still hold what the event is about.
#include "qualify/engine_trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace foretoken {

struct EngineTrial::Watch {
  Question question;
  TrialAnswer answer;
  int64_t cycles = 0;          // counted so far
  int64_t accepted = 0;
  int64_t state_length = -1;   // last compared
  int preemptions = 0;
};

EngineTrial::EngineTrial(Certifier& c, const EngineOptions& options, DiskTier* disk)
    : c_(c), engine_(std::make_unique<Engine>(c.engine_target(), &c.drafts(), options, c.clock(), disk)) {}

EngineTrial::~EngineTrial() {
  engine_.reset();
  CHECK(c_.engine_target().pages().pages_in_use() == 0);
}

Result<const TrialAnswer*> EngineTrial::submit(Question question) {
  auto watch = std::make_unique<Watch>(Watch{.question = std::move(question), .answer = {}});
  Watch* w = watch.get();
  CHECK(w->question.request.max_tokens <= static_cast<int64_t>(w->question.expected.tokens.size()));
  Request request = std::move(w->question.request);
  w->question.request = Request{.prompt = {}, .max_tokens = request.max_tokens};
  request.events = [this, w](const RequestEvent& event) { hear(*w, event); };
  watches_.push_back(std::move(watch));
  ASSIGN_OR_RETURN(w->answer.id, engine_->submit(std::move(request)));
  return &w->answer;
}

void EngineTrial::hear(Watch& w, const RequestEvent& event) {
  if (event.kind == RequestEvent::Kind::kTokens) {
    const auto news = event.sequence->tokens().subspan(event.first, event.count);
    w.answer.tokens.insert(w.answer.tokens.end(), news.begin(), news.end());
    const SpeculationCounters& counters = event.sequence->counters();
    if (counters.cycles > w.cycles) {
      const Proposal& proposal = event.sequence->last_proposal();
      CycleTrace cycle{.length = event.sequence->lane()->length() - static_cast<int64_t>(event.count), .proposed = {}, .accepted = counters.accepted - w.accepted};
      for (int node = 0; node < proposal.size(); ++node) cycle.proposed.push_back(proposal.token(node));
      w.answer.cycles.push_back(std::move(cycle));
      w.cycles = counters.cycles;
      w.accepted = counters.accepted;
    }
    compare_state(w);
    if (w.question.cancel_after > 0 && static_cast<int64_t>(w.answer.tokens.size()) >= w.question.cancel_after) engine_->cancel(event.id);
  }
  if (event.kind == RequestEvent::Kind::kFinished) end(w, *event.result);
}

void EngineTrial::compare_state(Watch& w) {
  const LaneState* lane = engine_->lane_of(w.answer.id);
  if (lane == nullptr || lane->length() == w.state_length) return;
  const auto expected = w.question.expected.states.find(lane->length());
  if (expected == w.question.expected.states.end()) return;
  w.state_length = lane->length();
  ++w.question.cell.compared_states;
  if (lane->hash() != expected->second) fail(w.question.cell, fmt::format("{}: the lane's state at length {} is not plain decoding's", w.question.name, lane->length()));
}

void EngineTrial::end(Watch& w, const RequestResult& result) {
  w.answer.result = result;
  CertifyCell& cell = w.question.cell;
  cell.compared_tokens += static_cast<int64_t>(w.answer.tokens.size());
  cell.cycles += result.counters.cycles;
  cell.accepted += result.counters.accepted;
  cell.preemptions += result.preemptions;
  cell.restored_tokens += result.cached_tokens;
  for (const SpeculationCounters::Of& of : result.counters.by_drafter) {
    cell.drafted += of.drafted;
    cell.rejected += of.verified - of.accepted;
  }
  if (result.error) fail(cell, fmt::format("{}: {}", w.question.name, result.error->message));
  else if (const std::string where = difference(w.question.expected, w.answer.tokens); !where.empty()) fail(cell, fmt::format("{}: {}", w.question.name, where));
  else if (w.question.cancel_after == 0 && static_cast<int64_t>(w.answer.tokens.size()) != w.question.request.max_tokens)
    fail(cell, fmt::format("{}: {} tokens instead of {}", w.question.name, w.answer.tokens.size(), w.question.request.max_tokens));
}

void EngineTrial::step() {
  if (!engine_->step() && engine_->waits_for_copies()) std::this_thread::sleep_for(std::chrono::microseconds(200));
  widest_ = std::max(widest_, running().size());
  // A lane that was given back and restored emits nothing before its next cycle.
  for (const auto& w : watches_) {
    if (w->answer.result) continue;
    compare_state(*w);
    if (engine_->lane_of(w->answer.id) == nullptr) w->state_length = -1;
  }
}

Status EngineTrial::run() {
  constexpr auto kPatience = std::chrono::minutes(10);  // without a pass
  for (TimePoint last = c_.clock().now(); !engine_->idle();) {
    const uint64_t rows = c_.engine_target().rows_run();
    step();
    if (c_.engine_target().rows_run() != rows) last = c_.clock().now();
    if (c_.clock().now() - last > kPatience) return Error{ErrorCode::kCheckFailed, "the engine stands still"};
  }
  return {};
}

Result<const TrialAnswer*> EngineTrial::ask(Question question) {
  const uint64_t before = c_.engine_target().rows_run();
  CertifyCell& cell = question.cell;
  const std::string name = question.name;
  ASSIGN_OR_RETURN(const TrialAnswer* answer, submit(std::move(question)));
  TRY(run());
  const int64_t ran = static_cast<int64_t>(c_.engine_target().rows_run() - before);
  if (ran != answer->rows())
    fail(cell, fmt::format("{}: {} rows ran, but {} prompt tokens less {} cached ones and {} verified rows are {}", name, ran, answer->result->prompt_tokens,
                           answer->result->cached_tokens, answer->result->counters.verified_rows, answer->rows()));
  return answer;
}

std::vector<RequestId> EngineTrial::running() const {
  std::vector<RequestId> ids;
  for (const auto& w : watches_)
    if (!w->answer.result && engine_->lane_of(w->answer.id) != nullptr) ids.push_back(w->answer.id);
  return ids;
}

std::string difference(const PlainAnswer& expected, std::span<const TokenId> got) {
  for (size_t i = 0; i < got.size(); ++i)
    if (i >= expected.tokens.size() || got[i] != expected.tokens[i]) return fmt::format("token {} of the answer differs from plain decoding", i);
  return {};
}

std::string difference(std::span<const CycleTrace> uninterrupted, std::span<const CycleTrace> restored) {
  for (size_t i = 0; i < std::max(uninterrupted.size(), restored.size()); ++i) {
    if (i >= uninterrupted.size() || i >= restored.size()) return fmt::format("{} cycles instead of {}", restored.size(), uninterrupted.size());
    const CycleTrace &a = uninterrupted[i], &b = restored[i];
    if (a.proposed != b.proposed) return fmt::format("the drafts of cycle {} are not the uninterrupted run's", i);
    if (a.accepted != b.accepted) return fmt::format("cycle {} accepted {} tokens instead of {}", i, b.accepted, a.accepted);
  }
  return {};
}

}  // namespace foretoken
