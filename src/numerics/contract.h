// What an operator promises about bits. Tests and the start-up self-check iterate the same table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "numerics/tensor.h"

namespace foretoken {

enum class Contract : uint8_t {
  kBitwise,   // equals the canonical scalar order bit for bit, on every instruction set
  kRowExact,  // a row's bits do not depend on the other rows, their number or its place (one device, one build)
  kBounded,   // within a stated bound of the fp64 reference: drafters only, or an explicit opt-in
};

std::string_view contract_name(Contract contract);

// Empty when equal bit for bit; otherwise a sentence with the count of differing values and the first one.
std::string difference_in_bits(View actual, View expected);

// Largest |a - b| over fp32 views of one shape; NaN when either side has a NaN, so that no bound accepts it.
float max_abs_difference(View a, View b);

}  // namespace foretoken
