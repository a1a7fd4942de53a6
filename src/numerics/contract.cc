// Comparisons behind the contracts.
#include "numerics/contract.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>

namespace foretoken {

std::string_view contract_name(Contract contract) {
  switch (contract) {
    case Contract::kBitwise: return "bitwise";
    case Contract::kRowExact: return "row-exact";
    case Contract::kBounded: return "bounded";
  }
  return "?";
}

std::string difference_in_bits(View actual, View expected) {
  CHECK(actual.rows == expected.rows);
  CHECK(actual.cols == expected.cols);
  int64_t count = 0, first_row = -1, first_col = -1;
  for (int64_t r = 0; r < actual.rows; ++r)
    for (int64_t c = 0; c < actual.cols; ++c)
      if (std::bit_cast<uint32_t>(actual.f32(r)[c]) != std::bit_cast<uint32_t>(expected.f32(r)[c]) && count++ == 0)
        first_row = r, first_col = c;
  if (count == 0) return {};
  std::ostringstream out;
  out.precision(9);
  out << count << " of " << actual.rows * actual.cols << " values differ; first at row " << first_row << ", column "
      << first_col << ": " << actual.f32(first_row)[first_col] << " instead of " << expected.f32(first_row)[first_col];
  return out.str();
}

float max_abs_difference(View a, View b) {
  CHECK(a.rows == b.rows);
  CHECK(a.cols == b.cols);
  float worst = 0;
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.cols; ++c) {
      const float left = a.f32(r)[c], right = b.f32(r)[c];
      if (left == right) continue;  // equal infinities too
      const float difference = std::fabs(left - right);
      if (std::isnan(difference)) return difference;
      worst = std::max(worst, difference);
    }
  return worst;
}

}  // namespace foretoken
