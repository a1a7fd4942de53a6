// Conversions between fp32 and the 16-bit floats, exhaustively where that is possible.
#include "numerics/dtype.h"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace foretoken {
namespace {

double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -value : value;
}

// All 65,536 f16 patterns widen to their exact value and come back unchanged (NaNs stay NaN with their sign).
TEST(Dtype, EveryF16PatternRoundTrips) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint16_t pattern = static_cast<uint16_t>(i);
    const float wide = to_float(F16{pattern});
    if ((pattern & 0x7FFF) > 0x7C00) {
      ASSERT_TRUE(std::isnan(wide));
      const uint16_t back = to_f16(wide).bits;
      ASSERT_GT(back & 0x7FFF, 0x7C00);
      ASSERT_EQ(back & 0x8000, pattern & 0x8000);
      continue;
    }
    if ((pattern & 0x7FFF) == 0x7C00) ASSERT_TRUE(std::isinf(wide));
    else ASSERT_EQ(static_cast<double>(wide), half_value(pattern));
    ASSERT_EQ(std::signbit(wide), (pattern & 0x8000) != 0);
    ASSERT_EQ(to_f16(wide).bits, pattern);
  }
}

// All 65,536 bf16 patterns widen by appending zero bits and come back unchanged (NaNs stay NaN).
TEST(Dtype, EveryBf16PatternRoundTrips) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint16_t pattern = static_cast<uint16_t>(i);
    const float wide = to_float(Bf16{pattern});
    ASSERT_EQ(std::bit_cast<uint32_t>(wide), i << 16);
    if (std::isnan(wide)) ASSERT_TRUE(std::isnan(to_float(to_bf16(wide))));
    else ASSERT_EQ(to_bf16(wide).bits, pattern);
  }
}

// Between every two neighbouring finite f16 values: the midpoint goes to the even one, one fp32 step beside it to the
// nearer.
TEST(Dtype, F16RoundsToNearestEven) {
  for (uint32_t low = 0; low < 0x7BFF; ++low) {
    const uint16_t a = static_cast<uint16_t>(low), b = static_cast<uint16_t>(low + 1), even = a & 1 ? b : a;
    const float middle = static_cast<float>((half_value(a) + half_value(b)) / 2);
    ASSERT_EQ(to_f16(middle).bits, even);
    ASSERT_EQ(to_f16(std::nextafter(middle, 0.0f)).bits, a);
    ASSERT_EQ(to_f16(std::nextafter(middle, 1e30f)).bits, b);
    ASSERT_EQ(to_f16(-middle).bits, even | 0x8000);
  }
  EXPECT_EQ(to_f16(65519.996f).bits, 0x7BFF);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7C00);  // the tie above the largest value goes to infinity
  EXPECT_EQ(to_f16(-1e30f).bits, 0xFC00);
  EXPECT_EQ(to_f16(std::ldexp(1.0f, -25)).bits, 0);
  EXPECT_EQ(to_f16(std::bit_cast<float>(1u)).bits, 0);
}

// The same for bf16, over all finite neighbours, and at the edge to infinity.
TEST(Dtype, Bf16RoundsToNearestEven) {
  for (uint32_t low = 0; low < 0x7F7F; ++low) {
    const uint32_t middle = (low << 16) + 0x8000u;
    const uint16_t even = static_cast<uint16_t>(low & 1 ? low + 1 : low);
    ASSERT_EQ(to_bf16(std::bit_cast<float>(middle)).bits, even);
    ASSERT_EQ(to_bf16(std::bit_cast<float>(middle - 1)).bits, low);
    ASSERT_EQ(to_bf16(std::bit_cast<float>(middle + 1)).bits, low + 1);
    ASSERT_EQ(to_bf16(std::bit_cast<float>(middle | 0x80000000u)).bits, even | 0x8000);
  }
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x7F7F7FFFu)).bits, 0x7F7F);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x7F7F8000u)).bits, 0x7F80);
}

// The processor's own conversion agrees on random bit patterns: two independent writers of one rule.
TEST(Dtype, F16AgreesWithTheProcessor) {
  std::mt19937 random(3);
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode & ~0x8040u);  // denormals kept, so that the instruction sees what we see
  for (int i = 0; i < 2'000'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(value)) continue;
    const auto theirs = static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
    ASSERT_EQ(to_f16(value).bits, theirs) << std::bit_cast<uint32_t>(value);
  }
  _mm_setcsr(mode);
}

}  // namespace
}  // namespace foretoken
