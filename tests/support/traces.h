// Traces: what every drafter would have proposed at every position of real answers, recorded once from real weights and replayed under
// any plan and any costs without a model. For tests and benchmarks.
#pragma once

#include <string>
#include <vector>

#include "decode/generation.h"
#include "decode/rows.h"
#include "support/toy_generation.h"

namespace foretoken::test {

struct Trace {
  std::string name;
  std::vector<TokenId> prompt, answer;
  std::vector<Draft> mtp, block;  // [answer position i]: proposed when answer[i] is the anchor
  int64_t agreed = 0;             // tokens of a given answer that the target would have chosen as well
};

// Decodes plainly until the model stops, and asks both drafters after every token. `draft_sampling`: what the drafters are told about sampling.
// With `ends` false the model's stop tokens end nothing. `given`: an answer to follow instead of the target's own choices, so that
// targets can be compared on one text.
inline Trace record(TargetModel& target, Drafter* mtp, Drafter* block, const std::string& name, const std::vector<TokenId>& prompt,
                    int tokens, const SamplingParams& sampling, const SamplingParams& draft_sampling, bool ends = true,
                    const std::vector<TokenId>* given = nullptr) {
  Trace trace{.name = name, .prompt = prompt, .answer = {}, .mtp = {}, .block = {}, .agreed = 0};
  if (given) tokens = static_cast<int>(given->size());
  auto lane = target.make_lane();
  const std::vector<int> taps = block ? block->needs().tap_layers : std::vector<int>{};
  Sampler sampler;
  TokenCounts counts;
  if (mtp) mtp->restart({});
  if (block) block->restart({});
  std::vector<TokenId> chunk = prompt;
  while (static_cast<int>(trace.answer.size()) < tokens) {
    const std::vector<int64_t> last = {static_cast<int64_t>(chunk.size()) - 1};
    run_prompt(target, *lane, chunk, 512, last,
               [&](int64_t first, int64_t rows, const ForwardResult& r) {
                 const bool complete = first + rows == static_cast<int64_t>(chunk.size());
                 if (complete)
                   trace.answer.push_back(*sampler.select({r.logits.f32(), static_cast<size_t>(r.logits.cols)}, sampling,
                                                          static_cast<uint64_t>(lane->length()), &counts));
                 if (complete && given) {
                   const TokenId wanted = (*given)[trace.answer.size() - 1];
                   trace.agreed += trace.answer.back() == wanted;
                   trace.answer.back() = wanted;
                 }
                 std::vector<int> all(static_cast<size_t>(rows));
                 for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
                 const Committed c{.first = lane->length() - rows, .tokens = std::span<const TokenId>(chunk).subspan(size_t(first), size_t(rows)),
                                   .next = complete ? trace.answer.back() : chunk[size_t(first + rows)], .rows = all, .hidden = r.hidden,
                                   .taps = r.taps, .upcoming = static_cast<int64_t>(chunk.size()) - first - rows};
                 if (mtp) mtp->observe(c);
                 if (block) block->observe(c);
                 return true;
               },
               taps);
    const DraftRequest request{.position = lane->length() + 1, .anchor = trace.answer.back(), .depth = 16, .nodes = kMaxNodes,
                               .tree = true, .sampling = &draft_sampling};
    DraftRequest shallow = request;
    shallow.depth = kMtpDepth;
    trace.mtp.emplace_back();
    trace.block.emplace_back();
    if (mtp) mtp->propose(shallow, trace.mtp.back());
    if (block) block->propose(request, trace.block.back());
    chunk = {trace.answer.back()};
    const auto& stops = target.config().stop_tokens;
    if (ends && std::find(stops.begin(), stops.end(), chunk[0]) != stops.end()) break;
  }
  return trace;
}

// Costs of a machine: in passes of one row by formula, or in seconds from measured tables where they are given.
struct Costs {
  std::string name;
  double row = 0.05;    // one more row
  double mtp = 0.2;     // one step of the head
  double block = 0.8;   // one whole block
  double fixed = 0.45;  // the part of it that does not depend on its rows
  double noise = 0.0;   // relative
  double mtp_row = 0, block_row = 0;  // one row of a drafter's backlog, beyond the few of every cycle
  std::vector<double> passes, mtp_steps, blocks;  // [rows], [steps], [depth]; measured

  static double look_up(const std::vector<double>& table, int at) { return table[std::min(static_cast<size_t>(at), table.size() - 1)]; }
  double pass(int rows) const { return passes.empty() ? 1 + row * (rows - 1) : look_up(passes, rows); }
  double mtp_draft(int steps) const { return mtp_steps.empty() ? mtp * steps : look_up(mtp_steps, steps); }
  double block_draft(int depth) const {
    const double rows = (1 + std::min(depth, kMtpDepth)) / (1.0 + kMtpDepth);
    return blocks.empty() ? block * (fixed + (1 - fixed) * rows) : look_up(blocks, depth);
  }
};

// Gives out recorded drafts, cut as a drafter cuts them, and takes their time on the clock.
class RecordedDrafter final : public Drafter {
 public:
  RecordedDrafter(const Trace& trace, Route route, const Costs& costs, ScriptedClock& clock)
      : trace_(trace), route_(route), costs_(costs), clock_(clock) {}
  Route route() const override { return route_; }
  const DrafterNeeds& needs() const override { return needs_; }
  int deepest() const override { return kMtpDepth; }
  void restart(std::span<const TokenId>) override {}
  void observe(const Committed& c) override { backlog_ += static_cast<int>(c.tokens.size()); }
  int backlog() const override { return backlog_; }
  void propose(const DraftRequest& request, Draft& draft) override {
    draft.by = route_;
    clock_.advance(std::max(0, backlog_ - kUsualBacklog) * (route_ == Route::kMtp ? costs_.mtp_row : costs_.block_row));
    backlog_ = 0;
    const size_t at = static_cast<size_t>(request.position) - trace_.prompt.size() - 1;
    const Draft& whole = route_ == Route::kMtp ? trace_.mtp[at] : trace_.block[at];
    std::vector<int> place(whole.nodes.size(), -2), depth(whole.nodes.size(), 0);
    std::vector<float> value(whole.nodes.size(), 0);
    int steps = 0;
    bool cut = false;  // the chain ended by doubt
    for (size_t i = 0; i < whole.nodes.size(); ++i) {
      const DraftNode& n = whole.nodes[i];
      const int parent = n.parent < 0 ? -1 : place[size_t(n.parent)];
      if (parent == -2) continue;
      depth[i] = n.parent < 0 ? 1 : depth[size_t(n.parent)] + 1;
      const float p = request.calibration ? request.calibration->measured(route_, n.probability, n.rank) : n.probability;
      value[i] = (n.parent < 0 ? 1.0f : value[size_t(n.parent)]) * p;
      if (depth[i] > request.depth || (!request.tree && n.rank > 0) || static_cast<int>(draft.nodes.size()) >= request.nodes) continue;
      if (value[i] < request.floor) {
        cut |= n.rank == 0;
        continue;
      }
      place[i] = draft.add(n.token, parent, n.probability, n.rank);
      if (n.rank == 0) steps = std::max(steps, depth[i]);
    }
    clock_.advance(route_ == Route::kMtp ? costs_.mtp_draft(std::min(request.depth, steps + cut)) : costs_.block_draft(request.depth));
  }

 private:
  const Trace& trace_;
  Route route_;
  Costs costs_;
  ScriptedClock& clock_;
  DrafterNeeds needs_;
  static constexpr int kUsualBacklog = 3;  // what the costs of a draft contain
  int backlog_ = 0;
};

struct Replayed {
  double seconds = 0;
  int64_t tokens = 0, cycles = 0;
  double tokens_per_cycle() const { return static_cast<double>(tokens) / static_cast<double>(cycles); }
};

inline Replayed replay(const Trace& trace, Speculator& speculator, ScriptedClock& clock, const Costs& costs, uint64_t seed = 1) {
  TestRandom random(seed);
  Replayed r;
  const SamplingParams sampling;
  speculator.restart({});
  std::vector<int> rows;
  speculator.observe({.first = 0, .tokens = trace.prompt, .next = trace.answer[0]});
  const double start = clock.seconds();
  size_t at = 0;
  while (at + 1 < trace.answer.size()) {
    const double begin = clock.seconds();
    const int64_t context = static_cast<int64_t>(trace.prompt.size() + at);
    const int64_t budget = static_cast<int64_t>(trace.answer.size() - at) - 1;
    const Proposal proposal = speculator.propose({.context = context, .anchor = trace.answer[at], .budget = budget, .sampling = &sampling});
    clock.advance(costs.pass(1 + proposal.size()) * (1 + costs.noise * (2 * random.uniform() - 1)));
    const auto accepted = Verifier::accept(
        proposal, budget, [&](int, int offset) -> Result<TokenId> { return trace.answer[at + 1 + static_cast<size_t>(offset)]; },
        [](TokenId) { return false; });
    const size_t m = accepted->tokens().size();
    speculator.observe({.first = context, .tokens = std::span<const TokenId>(trace.answer).subspan(at, m), .next = trace.answer[at + m]});
    speculator.settle(*accepted, {.rows = 1 + proposal.size(), .seconds = clock.seconds() - begin - speculator.draft_seconds()});
    at += m;
    r.tokens += static_cast<int64_t>(m);
    ++r.cycles;
  }
  r.seconds = clock.seconds() - start;
  return r;
}

}  // namespace foretoken::test
