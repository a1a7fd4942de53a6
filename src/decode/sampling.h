// How a token is chosen from logits: the one definition that plain decoding and every verification use. A pure function of the
// logits, the request's parameters, its seed and the sequence index. It knows no model. Source: docs/numerics.md section 6.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "numerics/dtype.h"
#include "ops/choice.h"

namespace foretoken {

struct SamplingParams {
  float temperature = 0.0f;         // 0: greedy
  int top_k = 0;                    // 0: off
  float top_p = 1.0f;               // (0, 1]; 1: off
  float min_p = 0.0f;               // [0, 1); 0: off
  float repetition_penalty = 1.0f;  // > 0; over prompt and answer
  float presence_penalty = 0.0f;    // over the answer
  float frequency_penalty = 0.0f;   // over the answer
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::vector<TokenId> banned;      // never chosen
  uint64_t seed = 0;
  uint32_t choice = 0;              // index among the n answers of one request

  bool greedy() const { return temperature == 0.0f || top_k == 1; }
  bool has_penalties() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
  // Whether the logits themselves are changed, a mask aside.
  bool adjusts() const { return has_penalties() || !logit_bias.empty() || !banned.empty(); }
  Status validate() const;  // kUsage with the field's name and range
};

// How often each token occurs along a path: in the prompt and the answer, and in the answer alone.
class TokenCounts {
 public:
  struct Count { int32_t all = 0, answer = 0; };
  void add_prompt(TokenId token) { ++counts_[token].all; }
  void add_answer(TokenId token) {
    Count& c = counts_[token];
    ++c.all;
    ++c.answer;
  }
  const std::unordered_map<TokenId, Count>& counts() const { return counts_; }

 private:
  std::unordered_map<TokenId, Count> counts_;
};

// Allowed tokens as bits, lowest bit first; empty means all. From a grammar.
using TokenMask = std::span<const uint64_t>;

// Natural logarithms of the model's own probabilities at one position: softmax of the raw logits, before penalties, masks and temperature.
struct LogprobsWanted {
  bool chosen = false;
  int top = 0;  // most likely tokens beside it, at most 20
};
struct TokenLogprobs {
  float chosen = 0;
  std::vector<std::pair<TokenId, float>> top;  // falling; ties by id
};
// The normaliser adds chunks of 1,024 tokens in ascending order, so it is a function of the logits alone.
TokenLogprobs logprobs_of(std::span<const float> logits, TokenId chosen, int top);

// The token at sequence index `position`. `counts` may be null when params.has_penalties() is false; entries are applied in any
// order because each touches its own logit. Errors: a row that holds NaN, or nothing finite after masking.
class Sampler {
 public:
  Result<TokenId> select(std::span<const float> logits, const SamplingParams& params, uint64_t position,
                         const TokenCounts* counts = nullptr, TokenMask mask = {});

  // The same token from what choose() of a backend found out about row `row` of `vocab` logits when asked `spec(params, position)`;
  // nothing where that does not settle it and the row must be seen. For params that do not adjust, and no mask.
  static ChoiceSpec spec(const SamplingParams& params, uint64_t position);
  std::optional<TokenId> select(const Choices& choices, int row, int64_t vocab, const SamplingParams& params, uint64_t position);

  // One kept candidate after every filter, for the exact distribution: probability exp(z) / sum over kept. For tests and logprobs.
  struct Candidate { float z; TokenId id; };
  Result<std::vector<Candidate>> kept(std::span<const float> logits, const SamplingParams& params,
                                      const TokenCounts* counts = nullptr, TokenMask mask = {});

 private:
  Status adjust(std::span<const float> logits, const SamplingParams& params, const TokenCounts* counts, TokenMask mask);
  void filter(const SamplingParams& params);
  TokenId draw(const SamplingParams& params, uint64_t position) const;

  std::vector<float> adjusted_;        // [vocab], empty when the logits need no change
  std::span<const float> values_;
  float max_ = 0;
  TokenId argmax_ = -1;
  std::vector<Candidate> candidates_;
};

}  // namespace foretoken
