// The comparisons that other tests rely on: they see one differing bit, a NaN, and nothing outside the view.
#include "numerics/contract.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace foretoken {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Equal bits give no words; one flipped bit or the sign of zero is counted and located; values beyond `cols` do not
// matter.
TEST(Contract, DifferenceInBits) {
  std::vector<float> a(3 * 5, 1.5f), b = a;
  View va{reinterpret_cast<std::byte*>(a.data()), DType::kF32, 3, 4, 5};
  View vb{reinterpret_cast<std::byte*>(b.data()), DType::kF32, 3, 4, 5};
  EXPECT_EQ(difference_in_bits(va, vb), "");
  a[4] = -7, a[9] = kNan;
  EXPECT_EQ(difference_in_bits(va, vb), "");
  a[5 + 2] = std::nextafter(1.5f, 2.0f);
  a[10] = 2;
  const std::string words = difference_in_bits(va, vb);
  EXPECT_NE(words.find("2 of 12 values differ"), std::string::npos) << words;
  EXPECT_NE(words.find("row 1, column 2"), std::string::npos) << words;
  a = b;
  a[0] = 0.0f, b[0] = -0.0f;
  EXPECT_NE(difference_in_bits(va, vb), "");
  a[0] = b[0] = kNan;
  EXPECT_EQ(difference_in_bits(va, vb), "");
}

// The largest difference; equal infinities differ by nothing; a NaN on one side makes the answer NaN, so no bound
// accepts it.
TEST(Contract, MaxAbsDifference) {
  std::vector<float> a{1, 2, 3, kInf}, b{1, 2.5f, 2.75f, kInf};
  EXPECT_EQ(max_abs_difference(View::of(a.data(), 2, 2), View::of(b.data(), 2, 2)), 0.5f);
  b[0] = kNan;
  EXPECT_TRUE(std::isnan(max_abs_difference(View::of(a.data(), 2, 2), View::of(b.data(), 2, 2))));
  b[0] = -kInf;
  EXPECT_EQ(max_abs_difference(View::of(a.data(), 2, 2), View::of(b.data(), 2, 2)), kInf);
}

// Each contract has a name of its own.
TEST(Contract, Names) {
  EXPECT_EQ(contract_name(Contract::kBitwise), "bitwise");
  EXPECT_EQ(contract_name(Contract::kRowExact), "row-exact");
  EXPECT_EQ(contract_name(Contract::kBounded), "bounded");
}

}  // namespace
}  // namespace foretoken
