// How inputs of Q4_K products become f16 (decision 020). Host code without CUDA; kernels share it.
#pragma once

#include <algorithm>

namespace foretoken::cuda {

// Exponents of powers of two, as fp32 has them (2^(e - 127)): of the factor of a super-block's inputs, and of what undoes
// it together with the unit of the codes, 2^-24.
struct Lift {
  int up = 0, back = 0;
};
// `largest`: the exponent of the largest input, as fp32 and bf16 have it; 255 is not finite. It comes to [2^14, 2^15).
// Inputs below 2^-113 come to less, since the factor has no more; of inputs from 2^118 on, where nothing undoes the
// factor that they need, the factor is that of 2^117: f16 makes those from 2^119 on infinite, so that their row fails.
constexpr Lift lift_of(int largest) {
  constexpr int kMost = 254;  // of a finite power
  const int up = std::clamp(268 - largest, 278 - kMost, kMost);
  return {up, 278 - up};
}

}  // namespace foretoken::cuda
