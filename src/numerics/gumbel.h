// The noise of Gumbel-max sampling, and the weights of a nucleus: functions that every backend computes with the same bits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/rng.h"
#include "numerics/canonical.h"
#include "numerics/dtype.h"

namespace foretoken {

// -log(1 - v) for v in (0, 1): atanh form below one half, where 1 - v would lose the small bits; 1 - v is exact above.
inline float negative_log_complement(float v) {
  if (v > 0.5f) return -canonical::log(1.0f - v);
  const float z = v / (2.0f - v);
  const float s = z * z;
  float p = 1.0f / 17;
  for (const float c : {1.0f / 15, 1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f})
    p = canonical::fma(p, s, c);
  return 2.0f * z * p;
}

// The Gumbel noise of `token` at sequence index `position`: -log(-log(u)) with u from Philox 4x32-10 keyed by the seed.
inline float gumbel(uint64_t seed, uint32_t choice, uint64_t position, TokenId token) {
  const auto draw = philox4x32({static_cast<uint32_t>(token), static_cast<uint32_t>(position),
                                static_cast<uint32_t>(position >> 32), choice},
                               {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const float v = std::min(static_cast<float>((static_cast<double>(draw[0]) + 0.5) * 0x1p-32), 1.0f - 0x1p-24f);
  return -canonical::log(negative_log_complement(v));
}

// Probability mass of exp(z), z <= 0, as an integer: sums of these are independent of their order.
inline uint64_t nucleus_mass(float z) { return static_cast<uint64_t>(canonical::exp(z) * 1099511627776.0f); }

}  // namespace foretoken
