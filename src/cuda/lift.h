// How inputs of Q4_K products become f16 (decision 020). Host code without CUDA; kernels share it.
#pragma once

#include <algorithm>

namespace foretoken::cuda {

// Exponents as fp32 and bf16 have them: what becomes f16's least one, and that of the power of two (2^(back - 127)) that
// undoes the change of scale together with the unit of the codes, 2^-24. f16 is the input times 2^(112 - floor).
struct Lift {
  int floor = 0, back = 0;
};
// `largest`: the exponent of the largest input; 255 is not finite. It comes to [2^15, 2^16), or stays at the lower end
// where it is below 2^-97. Nothing undoes what inputs from 2^119 on need: `back` is infinite, so that their row fails.
constexpr Lift lift_of(int largest) {
  const int floor = std::max(largest - 30, 0);
  return {floor, std::min(floor + 39, 255)};
}

}  // namespace foretoken::cuda
