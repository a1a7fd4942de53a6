// What a backend finds out about rows of logits so that their tokens can be chosen without the rows: a few numbers each. The choice
// itself is the sampler's (decode/sampling.h), of which this is the part that must see every logit. Source: docs/numerics.md section 6.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "numerics/dtype.h"

namespace foretoken {

inline constexpr int kLeaders = 48;

// What is asked of one row. z = (logit - largest) / temperature.
struct ChoiceSpec {
  float temperature = 0;  // 0: nothing but the best is asked
  float least = -std::numeric_limits<float>::infinity();  // tokens with z below it are no candidates
  bool noisy = false;     // the candidate with the largest z + gumbel(seed, choice, position)
  bool mass = false;      // the sum of nucleus_mass(z) over all candidates
  bool leaders = false;
  uint32_t choice = 0;
  uint64_t seed = 0, position = 0;
};

struct RowChoice {
  float largest = 0;      // -0 counts as +0
  TokenId best = -1;      // of those, the lowest id; -1: no logit is above -infinity
  TokenId noisy = -1;     // ties: larger z + noise, then the lower id
  int32_t finite = 0;     // 0: the row holds a NaN or +infinity, and nothing else here means anything
  uint64_t mass = 0;
};

struct Choices {
  std::vector<RowChoice> rows;
  // [rows, leader_count]: of every row, as Backend::top_k gives them; only where a row asked.
  int leader_count = 0;
  std::vector<TokenId> leaders;
  std::vector<float> values;
};

}  // namespace foretoken
