// Generation: one answer on one lane, from prompt ids to the last token. A cycle is plan, propose, one forward, one walk, one commit;
// plain decoding is the empty proposal. Whatever is proposed, the answer and the lane's state are plain decoding's. It does not know text.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "decode/rows.h"
#include "decode/sampling.h"
#include "decode/speculator.h"
#include "decode/verifier.h"
#include "model/target.h"

namespace foretoken {

struct GenerationOptions {
  SamplingParams sampling;
  int64_t max_tokens = 256;
  std::vector<TokenId> stop_tokens;  // each ends the answer and is part of its ids
  int prefill_chunk = 512;           // rows of one prompt pass
  TokenRules* rules = nullptr;       // what else allows, forbids and ends; must outlive the generation
};

// What drafts for a generation. Nothing: plain decoding.
struct Speculation {
  std::vector<std::unique_ptr<Drafter>> drafters;  // at most one per route
  SpeculationOptions options;
  SpeculationMemory* memory = nullptr;             // beside the model it learns about, shared by its generations; may be null
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "cancelled"; "" while running

struct GenerationTiming {
  double prefill_s = 0, decode_s = 0;
  double draft_s = 0, verify_s = 0, commit_s = 0;  // of decode_s
  int64_t cycles = 0;
};

class Generation {
 public:
  // `target` and `lane` must outlive the generation; `lane` may hold a prefix already. `clock` times the phases.
  Generation(TargetModel& target, LaneState& lane, GenerationOptions options, const Clock& clock, Speculation speculation = {});

  // Called with each emitted token, before the next pass; returning true ends the answer with that token (stop strings).
  void on_token(std::function<bool(TokenId)> callback) { on_token_ = std::move(callback); }

  // Runs the prompt (at least one token) and emits the first token. `progress(done, total)` is called after each chunk and may return false
  // to cancel. `history`: the tokens the lane holds already (a restored prefix), for penalties and drafters; it may be left out.
  Status start(std::span<const TokenId> prompt, const std::function<bool(int64_t, int64_t)>& progress = {},
               std::span<const TokenId> history = {});
  // One cycle; does nothing once finished.
  Status step();
  void cancel() { finish(FinishReason::kCancelled); }

  bool finished() const { return reason_ != FinishReason::kNone; }
  FinishReason reason() const { return reason_; }
  std::span<const TokenId> tokens() const { return tokens_; }
  // Whose proposal tokens()[i] was, or nothing; tokens().back() is valid inside on_token's callback.
  std::optional<Route> drafted_by(size_t i) const {
    return origins_[i] < 0 ? std::nullopt : std::optional(static_cast<Route>(origins_[i]));
  }
  const GenerationTiming& timing() const { return timing_; }
  const SpeculationCounters& counters() const { return speculator_.counters(); }
  const Proposal& last_proposal() const { return proposal_; }
  std::vector<std::string> dormant() const { return speculator_.dormant(); }

 private:
  ForwardResult verify(const Proposal& proposal);
  Result<Accepted> walk(const Proposal& proposal, const ForwardResult& result);
  bool emit(TokenId token, int origin);
  TokenMask mask() { return options_.rules ? options_.rules->mask() : TokenMask{}; }
  void finish(FinishReason reason);

  TargetModel& target_;
  LaneState& lane_;
  GenerationOptions options_;
  const Clock& clock_;
  std::function<bool(TokenId)> on_token_;
  Sampler sampler_;
  TokenCounts counts_;
  Speculator speculator_;
  Proposal proposal_;
  std::vector<TokenId> tokens_;
  std::vector<int8_t> origins_;  // per token: the route that proposed it, or -1
  FinishReason reason_ = FinishReason::kNone;
  GenerationTiming timing_;
};

// Runs `prompt` through `lane` in chunks of at most `chunk` rows, committing every row; `visit(first, result)` sees each chunk's
// result, whose logits rows are those of `wanted` rows (indices into the prompt, ascending) that fall into the chunk. Returns false
// when `visit` asked to stop.
bool run_prompt(TargetModel& target, LaneState& lane, std::span<const TokenId> prompt, int chunk, std::span<const int64_t> wanted,
                const std::function<bool(int64_t first, int64_t rows, const ForwardResult&)>& visit,
                std::span<const int> tap_layers = {});

}  // namespace foretoken
