// Parts lanes and preemption: requests of all kinds that share passes, join, leave, and lose their lanes, against the same requests alone
// and plain.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "qualify/engine_trial.h"

namespace foretoken {
namespace {

constexpr int64_t kLeastPreemptions = 20;

// Requests that differ in prompt, sampling and speculation; every prompt comes several times, so that lanes share its pages.
class Mixture {
 public:
  Mixture(Certifier& c, int64_t tokens) : c_(c), tokens_(tokens), routes_(c.routes()) {}

  // The i-th of them. Its answer is `tokens` long, or leaves at a third of that when it `leaves`.
  Result<Question> question(CertifyCell& cell, size_t i, bool leaves = false) {
    const Tokens& prompt = c_.prompt(i % std::min<size_t>(c_.prompts(), 5));
    const SamplingParams sampling = sampling_of(i);
    ASSIGN_OR_RETURN(const PlainAnswer* expected, c_.plain(prompt, sampling, tokens_, States::kEvery));
    distinct_.insert(expected->tokens);
    Question q{.cell = cell, .expected = *expected, .name = fmt::format("request {}", i), .request = {.prompt = prompt, .sampling = sampling, .max_tokens = tokens_}};
    q.request.boundaries = {static_cast<int64_t>(prompt.size()) - 1 - static_cast<int64_t>(i % 3)};
    speculate(q.request, i);
    if (leaves) q.cancel_after = tokens_ / 3;
    return q;
  }
  // Whether the plain answers can show that one was given for another.
  bool telling() const { return distinct_.size() >= 2; }

 private:
  static SamplingParams sampling_of(size_t i) {
    constexpr float kTemperatures[] = {0.0f, 0.7f, 1.0f};
    SamplingParams s = certify_sampling(kTemperatures[i % 3], 1000 + i);
    if (i % 4 == 3) s.repetition_penalty = 1.1f;
    return s;
  }
  // Pinned plans of each route and shape, the controller over all routes, and every sixth plain.
  void speculate(Request& request, size_t i) const {
    constexpr VerifyMode kModes[] = {VerifyMode::kChain, VerifyMode::kTree, VerifyMode::kLive};
    if (i % 6 == 5 || routes_.empty()) request.speculate = false;
    if (i % 6 == 4 || !request.speculate) return;
    const Route route = routes_[i % routes_.size()];
    request.routes = {route};
    request.speculation = pinned_plan(route, kModes[i / 2 % 3]);
  }

  Certifier& c_;
  int64_t tokens_;
  std::vector<Route> routes_;
  std::set<Tokens> distinct_;
};

int64_t context_of(const Certifier& c, int64_t tokens) {
  size_t longest = 0;
  for (const Tokens& prompt : c.options().prompts) longest = std::max(longest, prompt.size());
  return static_cast<int64_t>(longest) + tokens + 1;
}

Status finish(Certifier& c, CertifyCell cell, const Mixture& mixture) {
  c.demand_enough(cell);
  if (cell.verdict == Verdict::kPass && !mixture.telling()) {
    cell.verdict = Verdict::kInconclusive;
    cell.detail = "plain decoding answers every prompt alike";
  }
  return c.finish(std::move(cell));
}

// More requests than lanes: they join between passes, and every fifth leaves before its end.
Status lanes_cell(Certifier& c, int lanes, Mixture& mixture, int64_t tokens, size_t requests) {
  CertifyCell cell{.part = "lanes", .name = fmt::format("{} lanes, joining and leaving", lanes)};
  EngineTrial trial(c, {.lanes = lanes, .max_context = context_of(c, tokens), .schedule = {.prefill_chunk = 48, .chunk_beside_decode = 24}});
  Random random(static_cast<uint64_t>(lanes));
  for (size_t i = 0; i < requests; ++i) {
    ASSIGN_OR_RETURN(Question q, mixture.question(cell, i, i % 5 == 4));
    TRY(trial.submit(std::move(q)));
    for (uint32_t s = i % 2 == 0 ? 0 : random.below(5); s > 0; --s) trial.step();
  }
  TRY(trial.run());
  if (cell.verdict == Verdict::kPass && trial.widest() < static_cast<size_t>(lanes)) {
    cell.verdict = Verdict::kInconclusive;
    cell.detail = fmt::format("only {} lanes ran at once", trial.widest());
  }
  return finish(c, std::move(cell), mixture);
}

enum class Preempt : uint8_t { kEveryCycle, kAtRandom, kForPages };

struct PreemptionCell {
  Preempt how;
  bool cache;
  const char* name;
};

EngineOptions engine_options(const Certifier& c, const PreemptionCell& what, int64_t tokens) {
  const int64_t context = context_of(c, tokens);
  EngineOptions options{.lanes = 2, .max_context = context, .cache = {.enabled = what.cache}};
  if (what.how != Preempt::kForPages) return options;
  options.lanes = 4;
  options.pages = static_cast<size_t>((context + kMaxNodes + kPageTokens) / kPageTokens) + 2;
  return options;
}

// Takes lanes away behind a pass.
void take_lanes(EngineTrial& trial, Preempt how, Random& random, std::map<RequestId, size_t>& emitted, const std::map<RequestId, const TrialAnswer*>& answers) {
  for (const RequestId id : trial.running()) {
    const size_t now = answers.at(id)->tokens.size();
    const bool went_on = std::exchange(emitted[id], now) < now;
    if (how == Preempt::kEveryCycle ? went_on : random.below(4) == 0) trial.engine().preempt(id);
  }
}

Status preemption_cell(Certifier& c, const PreemptionCell& what, Mixture& mixture, int64_t tokens, size_t requests) {
  CertifyCell cell{.part = "preemption", .name = what.name};
  EngineTrial trial(c, engine_options(c, what, tokens));
  std::map<RequestId, const TrialAnswer*> answers;
  std::map<RequestId, size_t> emitted;
  Random random(5);
  const auto enough = [&] { return c.enough(cell) && cell.preemptions >= kLeastPreemptions; };
  // The controller's requests may rightly draft little, so more are asked until there is enough to judge.
  for (size_t i = 0; i < 4 * requests && (i < requests || !enough()) && cell.verdict == Verdict::kPass; i += requests) {
    for (size_t r = i; r < i + requests; ++r) {
      ASSIGN_OR_RETURN(Question q, mixture.question(cell, r));
      ASSIGN_OR_RETURN(const TrialAnswer* answer, trial.submit(std::move(q)));
      answers[answer->id] = answer;
    }
    while (!trial.engine().idle()) {
      trial.step();
      if (what.how != Preempt::kForPages) take_lanes(trial, what.how, random, emitted, answers);
    }
  }
  if (cell.verdict == Verdict::kPass && cell.preemptions < (what.how == Preempt::kForPages ? 1 : kLeastPreemptions)) {
    cell.verdict = Verdict::kInconclusive;
    cell.detail = fmt::format("only {} preemptions", cell.preemptions);
  }
  return finish(c, std::move(cell), mixture);
}

}  // namespace

Status certify_lanes(Certifier& c) {
  const int64_t tokens = std::min(c.options().tokens, c.options().quick ? 40 : 96);
  const size_t requests = c.options().quick ? 12 : 20;
  Mixture mixture(c, tokens);
  for (const int lanes : {2, 4, 8}) TRY(lanes_cell(c, lanes, mixture, tokens, requests));
  return {};
}

Status certify_preemption(Certifier& c) {
  const int64_t tokens = std::min(c.options().tokens, c.options().quick ? 40 : 96);
  const size_t requests = c.options().quick ? 4 : 8;
  Mixture mixture(c, tokens);
  const PreemptionCell cells[] = {{Preempt::kEveryCycle, true, "after every cycle, with the cache"},
                                  {Preempt::kEveryCycle, false, "after every cycle, without a cache"},
                                  {Preempt::kAtRandom, true, "at random, with the cache"},
                                  {Preempt::kAtRandom, false, "at random, without a cache"},
                                  {Preempt::kForPages, true, "for want of pages"}};
  // Without a cache each loss of a lane costs the whole prefix once more.
  for (const PreemptionCell& cell : cells) TRY(preemption_cell(c, cell, mixture, tokens, cell.cache ? requests : requests / 2));
  return {};
}

}  // namespace foretoken
