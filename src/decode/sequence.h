// Sequence: one answer, as the rows it brings to passes and what it makes of their results. It holds the tokens, the drafters and the
// counts; the lane it runs on is lent, and may be taken away and given back at any cycle. Whatever is proposed, and whoever shares the
// pass, its tokens and the lane's state are plain decoding's. It does not know text.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "decode/pass.h"
#include "decode/sampling.h"
#include "decode/speculator.h"
#include "decode/verifier.h"

namespace foretoken {

// What drafts for a sequence. Nothing: plain decoding.
struct Speculation {
  std::vector<std::unique_ptr<Drafter>> drafters;  // at most one per route
  SpeculationOptions options;
  SpeculationMemory* memory = nullptr;             // beside the model it learns about, shared by its sequences; may be null
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "cancelled"; "" while running

struct SequenceOptions {
  SamplingParams sampling;
  int64_t max_tokens = 256;
  std::vector<TokenId> stop_tokens;  // each ends the answer and is part of its ids
  TokenRules* rules = nullptr;       // what else allows, forbids and ends; must outlive the sequence
  LogprobsWanted logprobs;
};

struct CycleTiming {
  double draft_s = 0, verify_s = 0, commit_s = 0, decode_s = 0;  // of the passes it took part in; the first three are parts of decode_s
  int64_t cycles = 0;
};

class Sequence {
 public:
  // kUsage when the prompt is empty, holds an id outside the vocabulary, or the sampling is out of range.
  static Status check(std::span<const TokenId> prompt, const SequenceOptions& options, int vocab);
  // A prompt that check() accepts. `clock` must outlive the sequence.
  Sequence(std::vector<TokenId> prompt, SequenceOptions options, Speculation speculation, const Clock& clock);

  // Called with each emitted token, before the next pass; returning true ends the answer with that token (stop strings).
  void on_token(std::function<bool(TokenId)> callback) { on_token_ = std::move(callback); }

  // ---- The lane, which holds known().first(lane.length()) and must outlive its use here. `drafts`: what save_drafts() gave at that
  // length; may be empty. Tokens that the lane does not hold yet are decided rows.
  void attach(LaneState& lane, std::span<const std::byte> drafts = {});
  void detach() { lane_ = nullptr; }
  // Of an ended sequence, for the next one.
  std::vector<std::unique_ptr<Drafter>> release_drafters() { return speculator_.release_drafters(); }
  LaneState* lane() const { return lane_; }
  std::vector<std::byte> save_drafts() { return speculator_.save(); }

  // ---- Decided rows: the prompt, and what a lane that was given back lacks. While there are any, no cycle can run.
  int64_t decided_rows() const;
  // The next `rows` of them. `whole_at`: the length at which the drafters' memories will next be needed whole (a checkpoint); rows that
  // are out of their sight there, and behind, need not be worked in.
  void add_decided(Pass& pass, int rows, int64_t whole_at = std::numeric_limits<int64_t>::max());
  // Most tokens that a lane to attach may hold: the answer's first token needs the last prompt row computed.
  int64_t restorable() const { return decided_end() - (tokens().empty() ? 1 : 0); }

  // ---- A decode cycle: plan, draft (Speculator::draft, for all lanes of the pass together), add_cycle, the pass, settle.
  // `most_rows`: of this sequence in the pass.
  void plan(const OtherLanes& others, int most_rows);
  Speculator& speculator() { return speculator_; }
  void add_cycle(Pass& pass, const OtherLanes& others);
  // Rows of the last cycle and tokens a cycle has brought of late: what other lanes reckon with.
  int cycle_rows() const { return 1 + proposal_.size(); }
  double recent_tokens() const { return recent_tokens_; }

  // ---- After the pass, for whichever rows were added: accepts, commits, emits and learns. An error ends this sequence alone.
  // `pass_s`: seconds of the forward; `first_of_pass`: the pass's cost is learnt once.
  struct PassFacts {
    int rows = 1, lanes = 1;
    double forward_s = 0;
    bool learn_cost = true;
  };
  Status settle(TargetModel& target, const ForwardResult& result, const PassFacts& facts);

  void cancel() { finish(FinishReason::kCancelled); }
  bool finished() const { return reason_ != FinishReason::kNone; }
  FinishReason reason() const { return reason_; }
  // Prompt, then answer. The last token of the answer is not in the lane.
  std::span<const TokenId> known() const { return known_; }
  std::span<const TokenId> tokens() const { return std::span<const TokenId>(known_).subspan(prompt_); }
  int64_t prompt_tokens() const { return static_cast<int64_t>(prompt_); }
  // Whose proposal tokens()[i] was, or nothing; tokens().back() is valid inside on_token's callback.
  std::optional<Route> drafted_by(size_t i) const {
    return origins_[i] < 0 ? std::nullopt : std::optional(static_cast<Route>(origins_[i]));
  }
  // Of tokens()[i]; only where they were wanted.
  const TokenLogprobs& logprobs(size_t i) const { return logprobs_[i]; }
  const CycleTiming& timing() const { return timing_; }
  const SpeculationCounters& counters() const { return speculator_.counters(); }
  const Proposal& last_proposal() const { return proposal_; }
  std::vector<std::string> dormant() const { return speculator_.dormant(); }

 private:
  int64_t decided_end() const;
  Status settle_decided(TargetModel& target, const ForwardResult& result);
  Status settle_cycle(TargetModel& target, const ForwardResult& result, const PassFacts& facts);
  Result<Accepted> walk(const ForwardResult& result);
  // The token behind logits row `row` of its own in the pass.
  Result<TokenId> select(const ForwardResult& result, int row, int64_t position);
  // Whether tokens can be chosen without the rows of logits.
  bool chooses_apart() const { return !options_.sampling.adjusts() && options_.rules == nullptr && !options_.logprobs.chosen; }
  bool emit(TokenId token, int origin);
  void observe(const ForwardResult& result, int64_t first, std::span<const int> rows);
  TokenMask mask() { return options_.rules ? options_.rules->mask() : TokenMask{}; }
  void finish(FinishReason reason);

  SequenceOptions options_;
  const Clock& clock_;
  LaneState* lane_ = nullptr;
  std::function<bool(TokenId)> on_token_;
  Sampler sampler_;
  TokenCounts counts_;
  Speculator speculator_;
  Proposal proposal_;
  std::vector<TokenId> known_;
  size_t prompt_;
  std::vector<int8_t> origins_;  // per token: the route that proposed it, or -1
  std::vector<TokenLogprobs> logprobs_;
  FinishReason reason_ = FinishReason::kNone;
  CycleTiming timing_;
  double recent_tokens_ = 1;

  // Of the pass under way.
  Pass::Share share_;
  bool cycle_ = false;  // a decode cycle, not decided rows
  double drafted_s_ = 0;
  std::vector<RowInput> inputs_;
  std::vector<ChoiceSpec> choices_;
  std::vector<int> rows_;
  int64_t whole_at_ = 0;
};

}  // namespace foretoken
