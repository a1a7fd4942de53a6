// The canonical arithmetic against long double, its reduction order against an order written by hand, and the random
// draws.
#include "numerics/canonical.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "base/rng.h"
#include "base/threads.h"

namespace foretoken {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

// Distance in units of the last place of the correctly rounded result (normal range).
double ulps(float actual, long double exact) {
  const float rounded = static_cast<float>(exact);
  const float step = std::nextafter(std::fabs(rounded), kInf) - std::fabs(rounded);
  return static_cast<double>(std::fabs(static_cast<long double>(actual) - exact) / step);
}

template <class F, class G>
double worst_ulps(F ours, G exact, float begin, float end, int steps) {
  double worst = 0;
  for (int i = 0; i <= steps; ++i) {
    const float x = static_cast<float>(begin + (static_cast<double>(end) - begin) * i / steps);
    worst = std::max(worst, ulps(ours(x), exact(static_cast<long double>(x))));
  }
  return worst;
}

// Every `stride`-th float from `begin` to `end` (both positive): dense near zero, where equal steps are not.
template <class F, class G>
double worst_ulps_by_bits(F ours, G exact, float begin, float end, uint32_t stride) {
  double worst = 0;
  for (uint32_t b = bits_of(begin); b <= bits_of(end); b += stride) {
    const float x = std::bit_cast<float>(b);
    worst = std::max(worst, ulps(ours(x), exact(static_cast<long double>(x))));
  }
  return worst;
}

// exp: within its stated bound over the whole normal range, on a grid and over float patterns of both signs.
TEST(Canonical, ExpIsAccurate) {
  const auto exact = [](long double x) { return std::exp(x); };
  EXPECT_LT(worst_ulps(canonical::exp, exact, -87.336f, 88.722f, 2'000'000), 2.0);
  EXPECT_LT(worst_ulps_by_bits(canonical::exp, exact, 1e-30f, 88.0f, 1013), 2.0);
  EXPECT_LT(worst_ulps_by_bits([](float x) { return canonical::exp(-x); }, [](long double x) { return std::exp(-x); },
                               1e-30f, 87.0f, 1013),
            2.0);
  EXPECT_GT(worst_ulps([](float x) { return 1 + x; }, exact, -1.0f, 1.0f, 100), 1000.0);  // the measure does measure
}

// exp at the edges: exact one at zero, exact zero far below, infinity far above, NaN stays NaN, and no order reversal
// there.
TEST(Canonical, ExpSpecialValues) {
  EXPECT_EQ(bits_of(canonical::exp(0.0f)), bits_of(1.0f));
  EXPECT_EQ(bits_of(canonical::exp(-0.0f)), bits_of(1.0f));
  EXPECT_EQ(bits_of(canonical::exp(-kInf)), 0u);
  EXPECT_EQ(bits_of(canonical::exp(-1e30f)), 0u);
  EXPECT_EQ(bits_of(canonical::exp(-87.34f)), 0u);
  EXPECT_EQ(canonical::exp(kInf), kInf);
  EXPECT_EQ(canonical::exp(88.73f), kInf);
  EXPECT_EQ(canonical::exp(1e30f), kInf);
  EXPECT_TRUE(std::isnan(canonical::exp(kNan)));
  EXPECT_TRUE(std::isnan(canonical::exp(-kNan)));
  // Around both thresholds, float by float: finite, normal and monotonic up to the stated error.
  for (float x = -87.337f; x < -87.335f; x = std::nextafter(x, 0.0f)) {
    const float y = canonical::exp(x);
    EXPECT_TRUE(y == 0.0f || y >= std::numeric_limits<float>::min()) << x;
  }
  for (float x = 88.7220f; x < 88.7228f; x = std::nextafter(x, kInf))
    EXPECT_TRUE(std::isfinite(canonical::exp(x))) << x;
}

// sigmoid, silu and softplus: a few ulps over their range, right limits, NaN passes through.
TEST(Canonical, GatesAreAccurate) {
  EXPECT_LT(worst_ulps(
                canonical::sigmoid, [](long double x) { return 1 / (1 + std::exp(-x)); }, -80, 80, 500'000),
            4.0);
  EXPECT_LT(worst_ulps(
                canonical::silu, [](long double x) { return x / (1 + std::exp(-x)); }, -80, 80, 500'000),
            4.0);
  EXPECT_LT(
      worst_ulps(
          canonical::softplus, [](long double x) { return std::max(x, 0.0L) + std::log1p(std::exp(-std::fabs(x))); },
          -80, 80, 500'000),
      4.0);
  EXPECT_EQ(canonical::sigmoid(0.0f), 0.5f);
  EXPECT_EQ(canonical::sigmoid(kInf), 1.0f);
  EXPECT_EQ(bits_of(canonical::sigmoid(-kInf)), 0u);
  EXPECT_EQ(canonical::silu(0.0f), 0.0f);
  EXPECT_EQ(canonical::silu(kInf), kInf);
  EXPECT_EQ(canonical::softplus(kInf), kInf);
  EXPECT_EQ(bits_of(canonical::softplus(-kInf)), 0u);
  for (auto* f : {&canonical::sigmoid, &canonical::silu, &canonical::softplus}) EXPECT_TRUE(std::isnan(f(kNan)));
}

// log1p_unit over [0, 1] and log over all normal positive floats.
TEST(Canonical, LogarithmsAreAccurate) {
  const auto log1p = [](long double y) { return std::log1p(y); };
  EXPECT_LT(worst_ulps(canonical::log1p_unit, log1p, 0.0f, 1.0f, 1'000'000), 3.0);
  EXPECT_LT(worst_ulps_by_bits(canonical::log1p_unit, log1p, 1e-30f, 1.0f, 511), 3.0);
  EXPECT_EQ(bits_of(canonical::log1p_unit(0.0f)), 0u);
  const auto log = [](long double x) { return std::log(x); };
  EXPECT_LT(worst_ulps_by_bits(canonical::log, log, std::numeric_limits<float>::min(),
                               std::numeric_limits<float>::max(), 1021),
            3.0);
  EXPECT_LT(worst_ulps_by_bits(canonical::log, log, 0.5f, 2.0f, 7), 3.0);
  EXPECT_EQ(bits_of(canonical::log(1.0f)), 0u);
}

// sin_cos: both results within one ulp of 1 for angles up to those of two million positions, exact at zero.
TEST(Canonical, SinCosIsAccurate) {
  const auto check = [](double x) {
    const auto [s, c] = canonical::sin_cos(x);
    ASSERT_LE(std::fabs(static_cast<long double>(s) - std::sin(static_cast<long double>(x))), 3.1e-8L) << x;
    ASSERT_LE(std::fabs(static_cast<long double>(c) - std::cos(static_cast<long double>(x))), 3.1e-8L) << x;
  };
  for (int i = 0; i <= 1'000'000; ++i) check(i * 2.0971520001);
  for (int i = -100'000; i <= 100'000; ++i) check(i * 1e-4);
  for (int i = 0; i < 1000; ++i) check(i * 1.57079632679489661923);
  EXPECT_EQ(canonical::sin_cos(0).sin, 0.0f);
  EXPECT_EQ(canonical::sin_cos(0).cos, 1.0f);
}

// dot16: element i goes to lane i mod 16 by fma, lanes fold 8, 4, 2, 1; the tail counts as zeros. The plain
// left-to-right sum differs on the same data, so the comparison means something.
TEST(Canonical, DotOrder) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  int different = 0;
  for (const int n : {0, 1, 15, 16, 17, 31, 32, 100, 256, 1000}) {
    std::vector<float> w(static_cast<size_t>(n)), x(w.size());
    for (auto& v : w) v = normal(random);
    for (auto& v : x) v = normal(random);
    float lane[16] = {};
    for (size_t i = 0; i < w.size(); ++i) lane[i % 16] = std::fma(w[i], x[i], lane[i % 16]);
    float eight[8], four[4];
    for (int l = 0; l < 8; ++l) eight[l] = lane[l] + lane[l + 8];
    for (int l = 0; l < 4; ++l) four[l] = eight[l] + eight[l + 4];
    const float expected = (four[0] + four[2]) + (four[1] + four[3]);
    const auto load = [&](int64_t i) { return w[static_cast<size_t>(i)]; };
    EXPECT_EQ(bits_of(canonical::dot16(load, x.data(), n)), bits_of(expected)) << n;
    float plain = 0;
    for (size_t i = 0; i < w.size(); ++i) plain = std::fma(w[i], x[i], plain);
    different += bits_of(plain) != bits_of(expected);
    EXPECT_EQ(bits_of(canonical::sum_of_squares(x.data(), n)),
              bits_of(canonical::dot16([&](int64_t i) { return x[static_cast<size_t>(i)]; }, x.data(), n)));
  }
  EXPECT_GE(different, 4);
}

// Activations as integers: the largest maps to 127 or -127, the error is at most half a step, ties go to even.
TEST(Canonical, QuantizeActivation) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const float size : {1e-25f, 1e-3f, 1.0f, 1e5f, 1e37f})
    for (const int n : {16, 32, 256}) {
      std::vector<float> x(static_cast<size_t>(n));
      for (auto& v : x) v = normal(random) * size;
      std::vector<int8_t> q(x.size());
      const float scale = canonical::quantize_activation(x.data(), n, q.data());
      float amax = 0;
      int largest = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        amax = std::max(amax, std::fabs(x[i]));
        largest = std::max(largest, std::abs(int{q[i]}));
        EXPECT_LE(std::fabs(static_cast<double>(x[i]) / scale - q[i]), 0.50002);
      }
      EXPECT_EQ(scale, amax / 127.0f);
      EXPECT_EQ(largest, 127);
    }
  const float ties[] = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, -127.0f};
  int8_t q[8];
  EXPECT_EQ(canonical::quantize_activation(ties, 8, q), 1.0f);
  const int8_t expected[] = {127, 0, 2, 2, 0, -2, -2, -127};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(q[i], expected[i]) << i;
}

// A block with any non-finite value has scale NaN and zeros; a zero or tiny block has scale zero and zeros.
TEST(Canonical, QuantizeActivationSpecialValues) {
  for (const float bad : {kInf, -kInf, kNan, -kNan}) {
    std::vector<float> x(32, 1.0f);
    x[7] = bad;
    std::vector<int8_t> q(32, 55);
    EXPECT_TRUE(std::isnan(canonical::quantize_activation(x.data(), 32, q.data())));
    for (const int8_t v : q) EXPECT_EQ(v, 0);
  }
  for (const float tiny : {0.0f, -0.0f, 1e-31f, -9.9e-31f, std::numeric_limits<float>::denorm_min()}) {
    std::vector<float> x(32, tiny);
    std::vector<int8_t> q(32, 55);
    EXPECT_EQ(bits_of(canonical::quantize_activation(x.data(), 32, q.data())), 0u);
    for (const int8_t v : q) EXPECT_EQ(v, 0);
  }
}

// add_block is the block's decoded values times the decoded activations, up to fp32 rounding, with and without
// minimums.
TEST(Canonical, AddBlockIsTheProduct) {
  std::mt19937 random(4);
  for (const QuantFormat format : {QuantFormat::kQ8_0, QuantFormat::kQ4_1, QuantFormat::kQ3_K, QuantFormat::kQ4_K,
                                   QuantFormat::kQ6_K, QuantFormat::kIQ4_XS}) {
    const FormatInfo& info = format_info(format);
    for (int round = 0; round < 50; ++round) {
      std::vector<std::byte> bytes(static_cast<size_t>(info.block_bytes));
      for (auto& byte : bytes) byte = static_cast<std::byte>(random());
      UnpackedBlock block;
      unpack_block(format, bytes.data(), block);
      block.d = 0.01f;
      if (block.has_min) block.dmin = 0.02f;
      std::vector<int8_t> a(256);
      for (auto& v : a) v = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
      double expected = 3, size = 3;
      for (int e = 0; e < block.elements; ++e) {
        const int k = e / block.sub_elements;
        const double w = double{block.d} * block.scale[k] * block.q[e] - double{block.dmin} * block.min[k];
        expected += w * 0.25 * a[static_cast<size_t>(e)];
        size += std::fabs(w) * 0.25 * std::abs(int{a[static_cast<size_t>(e)]});
      }
      EXPECT_NEAR(canonical::add_block(block, a.data(), 0.25f, 3.0f), expected, size * 1e-6) << info.name;
    }
  }
}

// The published known answers of Philox 4x32-10: zeros, ones, and digits of pi.
TEST(Philox, KnownAnswers) {
  using Four = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Four{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
            (Four{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

}  // namespace
}  // namespace foretoken
