// Generation: one sequence alone on one lane, from prompt ids to the last token: what `run`, certificates and benchmarks use, and what
// many lanes together must equal. It does not know text.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "decode/rows.h"
#include "decode/sequence.h"

namespace foretoken {

struct GenerationOptions {
  SamplingParams sampling;
  int64_t max_tokens = 256;
  std::vector<TokenId> stop_tokens;  // each ends the answer and is part of its ids
  int prefill_chunk = 512;           // rows of one prompt pass
  TokenRules* rules = nullptr;       // what else allows, forbids and ends; must outlive the generation
};

class Generation {
 public:
  // `target` and `lane` must outlive the generation; `lane` may hold a prefix already. `clock` times the phases.
  Generation(TargetModel& target, LaneState& lane, GenerationOptions options, const Clock& clock, Speculation speculation = {});

  // Called with each emitted token, before the next pass; returning true ends the answer with that token (stop strings).
  void on_token(std::function<bool(TokenId)> callback) { on_token_ = std::move(callback); }

  // Runs the prompt (at least one token) and emits the first token. `progress(done, total)` is called after each chunk and may return false
  // to cancel. `history`: the tokens the lane holds already (a restored prefix).
  Status start(std::span<const TokenId> prompt, const std::function<bool(int64_t, int64_t)>& progress = {},
               std::span<const TokenId> history = {});
  // One cycle; does nothing once finished.
  Status step();
  void cancel();

  bool finished() const { return sequence_ && sequence_->finished(); }
  FinishReason reason() const { return sequence_ ? sequence_->reason() : FinishReason::kNone; }
  std::span<const TokenId> tokens() const { return sequence_ ? sequence_->tokens() : std::span<const TokenId>(); }
  // Whose proposal tokens()[i] was, or nothing; tokens().back() is valid inside on_token's callback.
  std::optional<Route> drafted_by(size_t i) const { return sequence_->drafted_by(i); }
  double prefill_seconds() const { return prefill_s_; }
  CycleTiming timing() const { return sequence_ ? sequence_->timing() : CycleTiming(); }
  SpeculationCounters counters() const { return sequence_ ? sequence_->counters() : SpeculationCounters(); }
  const Proposal& last_proposal() const { return sequence_->last_proposal(); }
  std::vector<std::string> dormant() const { return sequence_ ? sequence_->dormant() : std::vector<std::string>(); }

 private:
  Status run(const std::function<void(Pass&)>& add);

  TargetModel& target_;
  LaneState& lane_;
  GenerationOptions options_;
  const Clock& clock_;
  Speculation speculation_;  // until start()
  std::function<bool(TokenId)> on_token_;
  std::optional<Sequence> sequence_;
  Pass pass_;
  double prefill_s_ = 0;
};

// Runs `prompt` through `lane` in chunks of at most `chunk` rows, committing every row; `visit(first, result)` sees each chunk's
// result, whose logits rows are those of `wanted` rows (indices into the prompt, ascending) that fall into the chunk. Returns false
// when `visit` asked to stop.
bool run_prompt(TargetModel& target, LaneState& lane, std::span<const TokenId> prompt, int chunk, std::span<const int64_t> wanted,
                const std::function<bool(int64_t first, int64_t rows, const ForwardResult&)>& visit,
                std::span<const int> tap_layers = {});

}  // namespace foretoken
