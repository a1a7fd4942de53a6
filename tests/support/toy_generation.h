// A generation over the toy target: the real speculator, sampler and verifier, a target without tensors, and a clock that the test
// moves. What it emits must be plain decoding's; how long it "takes" follows the costs it is given. Test-only.
#pragma once

#include <functional>

#include "decode/speculator.h"
#include "support/scripted_clock.h"
#include "support/toy_target.h"

namespace foretoken::test {

// Guesses through a function of the sequence so far (the anchor last). `seconds`: what one draft takes on the scripted clock.
class ScriptedDrafter final : public Drafter {
 public:
  using Guess = std::function<void(std::span<const TokenId> sequence, const DraftRequest& request, Draft& draft)>;
  explicit ScriptedDrafter(Guess guess, Route route = Route::kScripted, ScriptedClock* clock = nullptr,
                           std::function<double(int depth)> seconds = {})
      : guess_(std::move(guess)), route_(route), clock_(clock), seconds_(std::move(seconds)) {}

  Route route() const override { return route_; }
  const DrafterNeeds& needs() const override { return needs_; }
  int deepest() const override { return kMtpDepth; }
  void restart(std::span<const TokenId> history) override { sequence_.assign(history.begin(), history.end()); }
  void observe(const Committed& c) override {
    CHECK(static_cast<size_t>(c.first) <= sequence_.size());
    CHECK(sequence_.size() - static_cast<size_t>(c.first) <= 1);
    sequence_.resize(static_cast<size_t>(c.first));
    sequence_.insert(sequence_.end(), c.tokens.begin(), c.tokens.end());
    sequence_.push_back(c.next);
  }
  void propose(const DraftRequest& request, Draft& draft) override {
    CHECK(static_cast<int64_t>(sequence_.size()) == request.position);
    CHECK(sequence_.back() == request.anchor);
    draft.by = route_;
    guess_(sequence_, request, draft);
    if (clock_ != nullptr && seconds_) clock_->advance(seconds_(request.depth));
  }

 private:
  Guess guess_;
  Route route_;
  ScriptedClock* clock_;
  std::function<double(int)> seconds_;
  DrafterNeeds needs_;
  std::vector<TokenId> sequence_;
};

struct ToyAnswer {
  std::vector<TokenId> tokens;
  double seconds = 0;
  int64_t largest_proposal = 0;
};

inline TokenId toy_token(const ToyTarget& target, std::span<const TokenId> context, const SamplingParams& sampling,
                         TokenCounts* counts = nullptr, TokenMask mask = {}) {
  Sampler sampler;
  return *sampler.select(target.logits(context), sampling, context.size(), counts, mask);
}

// Decodes `max_tokens` tokens after `prompt`; a pass of n rows takes `row_seconds(n)`.
inline ToyAnswer toy_generate(const ToyTarget& target, Speculator& speculator, ScriptedClock& clock, std::vector<TokenId> prompt,
                              int max_tokens, const SamplingParams& sampling, const std::function<double(int rows)>& row_seconds,
                              const std::function<bool(TokenId)>& ends = {}) {
  ToyAnswer answer;
  TokenCounts counts;
  for (const TokenId t : prompt) counts.add_prompt(t);
  std::vector<TokenId> committed = prompt;
  answer.tokens.push_back(toy_token(target, prompt, sampling, &counts));
  counts.add_answer(answer.tokens.back());
  speculator.restart({});
  speculator.observe({.first = 0, .tokens = prompt, .next = answer.tokens.back()});
  bool stopped = ends && ends(answer.tokens.back());
  const double start = clock.seconds();
  while (!stopped && static_cast<int>(answer.tokens.size()) < max_tokens) {
    const TokenId anchor = answer.tokens.back();
    const int64_t budget = max_tokens - static_cast<int64_t>(answer.tokens.size());
    const double begin = clock.seconds();
    const Proposal proposal = speculator.propose({.context = static_cast<int64_t>(committed.size()), .anchor = anchor, .budget = budget,
                                                  .sampling = &sampling, .counts = &counts});
    answer.largest_proposal = std::max<int64_t>(answer.largest_proposal, proposal.size());
    for (int i = 0; i < proposal.size(); ++i) CHECK(proposal.depth(i) < budget);
    clock.advance(row_seconds(1 + proposal.size()));
    std::vector<TokenId> context = committed;
    context.push_back(anchor);
    const auto accepted = Verifier::accept(
        proposal, budget,
        [&](int row, int) -> Result<TokenId> {
          std::vector<TokenId> path = context;
          for (int node = row - 1; node >= 0; node = proposal.parent(node)) path.insert(path.begin() + static_cast<ptrdiff_t>(context.size()), proposal.token(node));
          return toy_token(target, path, sampling, &counts);
        },
        [&](TokenId t) {
          answer.tokens.push_back(t);
          counts.add_answer(t);
          return ends && ends(t);
        });
    std::vector<TokenId> path;
    for (const int row : accepted->rows()) path.push_back(row == 0 ? anchor : proposal.token(row - 1));
    speculator.observe({.first = static_cast<int64_t>(committed.size()), .tokens = path, .next = accepted->tokens().back()});
    committed.insert(committed.end(), path.begin(), path.end());
    speculator.settle(*accepted, {.rows = 1 + proposal.size(), .seconds = clock.seconds() - begin - speculator.draft_seconds()});
    stopped = accepted->stopped();
  }
  answer.seconds = clock.seconds() - start;
  return answer;
}

// Plain decoding of the same.
inline std::vector<TokenId> toy_plain(const ToyTarget& target, std::vector<TokenId> context, int max_tokens, const SamplingParams& sampling) {
  const size_t prompt = context.size();
  TokenCounts counts;
  for (const TokenId t : context) counts.add_prompt(t);
  for (int i = 0; i < max_tokens; ++i) {
    context.push_back(toy_token(target, context, sampling, &counts));
    counts.add_answer(context.back());
  }
  return {context.begin() + static_cast<ptrdiff_t>(prompt), context.end()};
}

}  // namespace foretoken::test
