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
  return v > 0.5f ? -canonical::log(1.0f - v) : canonical::twice_atanh(v / (2.0f - v));
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
