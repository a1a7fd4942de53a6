// Encoding: no worse than rounding to the nearest code of the range, block by block of many; deterministic; sane on odd
// blocks.
#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/threads.h"
#include "numerics/dtype.h"
#include "numerics/quant.h"

namespace foretoken {
namespace {

constexpr QuantFormat kEncoded[] = {QuantFormat::kQ8_0, QuantFormat::kQ4_K, QuantFormat::kQ5_K, QuantFormat::kQ6_K,
                                    QuantFormat::kIQ4_XS};

std::vector<float> gaussian(size_t n, float size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (auto& v : out) v = normal(random) * size;
  return out;
}

// Like weights with outliers: a Gaussian over the magnitude of another.
std::vector<float> heavy_tailed(size_t n, float size, unsigned seed) {
  const auto a = gaussian(n, size, seed), b = gaussian(n, 1, seed + 1);
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = a[i] / (std::fabs(b[i]) + 0.3f);
  return out;
}

std::vector<std::byte> encoded(QuantFormat format, const std::vector<float>& x,
                               const std::vector<float>& importance = {}) {
  std::vector<std::byte> out(row_bytes(format, static_cast<int64_t>(x.size())));
  quantize(format, x, importance, out);
  return out;
}

std::vector<float> round_trip(QuantFormat format, const std::vector<float>& x,
                              const std::vector<float>& importance = {}) {
  std::vector<float> out(x.size());
  dequantize(format, encoded(format, x, importance), out);
  return out;
}

double squared_error(const std::vector<float>& x, const std::vector<float>& y, const std::vector<float>& w = {}) {
  double total = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double off = static_cast<double>(x[i]) - y[i];
    total += off * off * (w.empty() ? 1.0 : static_cast<double>(w[i]));
  }
  return total;
}

double relative_rmse(const std::vector<float>& x, const std::vector<float>& y) {
  return std::sqrt(squared_error(x, y) / squared_error(x, std::vector<float>(x.size())));
}

float half(float x) { return to_float(to_f16(x)); }

// Decoded values of the obvious encoder: the range of each sub-block onto the codes, scales rounded to their integers.
std::vector<float> obvious(QuantFormat format, const std::vector<float>& x) {
  const size_t block = static_cast<size_t>(format_info(format).block_elements);
  const size_t sub = format == QuantFormat::kQ6_K ? 16 : 32;
  std::vector<float> out(x.size());
  for (size_t begin = 0; begin < x.size(); begin += block) {
    std::vector<float> scale, min;
    for (size_t k = begin; k < begin + block; k += sub) {
      const auto [low, high] = std::minmax_element(&x[k], &x[k] + sub);
      const float far = -*low > *high ? *low : *high;
      const float floor = std::min(*low, 0.0f);
      switch (format) {
        case QuantFormat::kQ4_K:
          scale.push_back((*high - floor) / 15), min.push_back(-floor);
          break;
        case QuantFormat::kQ5_K:
          scale.push_back((*high - floor) / 31), min.push_back(-floor);
          break;
        case QuantFormat::kQ6_K:
          scale.push_back(far / -32), min.push_back(0);
          break;
        case QuantFormat::kIQ4_XS:
          scale.push_back(far / -127), min.push_back(0);
          break;
        default:
          scale.push_back(std::fabs(far) / 127), min.push_back(0);
          break;
      }
    }
    const auto larger = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
    const float levels = format == QuantFormat::kQ6_K ? 127 : format == QuantFormat::kIQ4_XS ? 31 : 63;
    const float d = format == QuantFormat::kQ8_0
                        ? half(scale[0])
                        : half(std::fabs(*std::max_element(scale.begin(), scale.end(), larger)) / levels);
    const float dmin = half(*std::max_element(min.begin(), min.end()) / 63);
    for (size_t i = 0; i < block; ++i) {
      const size_t k = i / sub;
      const float s = format == QuantFormat::kQ8_0 ? d : d * std::round(scale[k] / d);
      const float m = dmin > 0 ? dmin * std::round(min[k] / dmin) : 0;
      const float v = (x[begin + i] + m) / s;
      float q = std::round(v);
      if (format == QuantFormat::kQ4_K) q = std::clamp(q, 0.0f, 15.0f);
      else if (format == QuantFormat::kQ5_K) q = std::clamp(q, 0.0f, 31.0f);
      else if (format == QuantFormat::kQ6_K) q = std::clamp(q, -32.0f, 31.0f);
      else if (format == QuantFormat::kQ8_0) q = std::clamp(q, -127.0f, 127.0f);
      else
        q = *std::min_element(std::begin(kIq4Values), std::end(kIq4Values),
                              [&](int16_t a, int16_t b) { return std::fabs(a - v) < std::fabs(b - v); });
      out[begin + i] = s * q - m;
    }
  }
  return out;
}

// Every format beats the obvious encoder by a margin on Gaussian and on heavy-tailed weights, and reaches the error
// that a working search reaches (the obvious one does not: the bounds mean something).
TEST(Encode, BeatsRoundingToTheRange) {
  struct Bound {
    QuantFormat format;
    double gaussian, heavy, of_obvious;
  };
  constexpr Bound kBounds[] = {{QuantFormat::kQ8_0, 0.00500, 0.00675, 0.97},
                               {QuantFormat::kQ4_K, 0.0705, 0.0862, 0.92},
                               {QuantFormat::kQ5_K, 0.03475, 0.0427, 0.95},
                               {QuantFormat::kQ6_K, 0.0167, 0.0215, 0.95},
                               {QuantFormat::kIQ4_XS, 0.0745, 0.0895, 0.95}};
  for (const Bound& bound : kBounds) {
    SCOPED_TRACE(std::string(format_info(bound.format).name));
    const auto normal = gaussian(1 << 17, 0.02f, 1), heavy = heavy_tailed(1 << 17, 0.02f, 7);
    EXPECT_LT(relative_rmse(normal, round_trip(bound.format, normal)), bound.gaussian);
    EXPECT_LT(relative_rmse(heavy, round_trip(bound.format, heavy)), bound.heavy);
    EXPECT_GT(relative_rmse(normal, obvious(bound.format, normal)), bound.gaussian);
    for (const auto* x : {&normal, &heavy})
      EXPECT_LT(relative_rmse(*x, round_trip(bound.format, *x)),
                bound.of_obvious * relative_rmse(*x, obvious(bound.format, *x)));
  }
}

// The error scales with the values: the same search at every magnitude that f16 scales can express.
TEST(Encode, IndependentOfMagnitude) {
  for (const QuantFormat format : kEncoded) {
    const auto x = gaussian(1 << 12, 1, 3);
    const double at_one = relative_rmse(x, round_trip(format, x));
    for (const float size : {1e-2f, 1e2f}) {
      auto scaled = x;
      for (auto& v : scaled) v *= size;
      EXPECT_NEAR(relative_rmse(scaled, round_trip(format, scaled)), at_one, at_one * 0.02)
          << format_info(format).name << size;
    }
  }
}

// Importance moves the error away from what matters: the weighted error falls below that of the unweighted encoding.
TEST(Encode, ImportanceCounts) {
  for (const QuantFormat format : kEncoded) {
    const auto x = gaussian(1 << 14, 0.05f, 9);
    auto importance = gaussian(x.size(), 1.5f, 10);
    for (auto& w : importance) w = std::exp(w);
    const double plain = squared_error(x, round_trip(format, x), importance);
    const double weighted = squared_error(x, round_trip(format, x, importance), importance);
    EXPECT_LT(weighted, plain * 0.97) << format_info(format).name;
    const std::vector<float> ones(x.size(), 1.0f), zeros(x.size(), 0.0f);
    EXPECT_EQ(encoded(format, x, ones), encoded(format, x, {})) << format_info(format).name;
    EXPECT_EQ(encoded(format, x, zeros), encoded(format, x, {})) << format_info(format).name;
  }
}

// Zero, constant, one-sided, single-spike, tiny and huge blocks decode to something close and finite; zeros to zeros.
TEST(Encode, OddBlocks) {
  for (const QuantFormat format : kEncoded) {
    SCOPED_TRACE(std::string(format_info(format).name));
    const std::vector<float> zeros(512, 0.0f);
    for (const float v : round_trip(format, zeros)) EXPECT_EQ(v, 0.0f);
    for (const float constant : {1.0f, -1.0f, 3.3f, -0.0123f, 60000.0f, -60000.0f}) {
      const std::vector<float> x(512, constant);
      EXPECT_LT(relative_rmse(x, round_trip(format, x)), 0.004) << constant;
    }
    for (const float sign : {1.0f, -1.0f}) {
      auto x = gaussian(512, 1, 4);
      for (auto& v : x) v = sign * (2 + std::fabs(v));
      EXPECT_LT(relative_rmse(x, round_trip(format, x)), 0.06);
      std::vector<float> spike(512, 0.0f);
      spike[100] = sign * 5;
      const auto y = round_trip(format, spike);
      EXPECT_NEAR(y[100], spike[100], 0.02);
      EXPECT_LT(squared_error(spike, y), 0.06);  // the IQ4 table has no zero
    }
    // Scales below the smallest f16 still leave a grid of one step; nothing is ever infinite or NaN.
    for (const float size : {1e-9f, 1e-7f, 1e-38f, 1e-44f, 1e6f, 1e30f}) {
      const auto x = gaussian(512, size, 6);
      for (const float v : round_trip(format, x)) EXPECT_TRUE(std::isfinite(v)) << size;
    }
    auto mixed = gaussian(512, 1, 8);
    for (size_t i = 0; i < mixed.size(); ++i) mixed[i] *= std::pow(10.0f, -static_cast<float>(i / 32 % 8));
    EXPECT_LT(relative_rmse(mixed, round_trip(format, mixed)), 0.09);
  }
}

// The bytes do not depend on the caller's floating-point mode, which is left as it was, nor on what was encoded before.
TEST(Encode, Deterministic) {
  for (const QuantFormat format : kEncoded) {
    auto x = heavy_tailed(4096, 1e-4f, 12);
    for (size_t i = 0; i < x.size(); i += 97) x[i] = 1e-42f;
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode & ~0x8040u);
    const unsigned before = _mm_getcsr();
    const auto first = encoded(format, x);
    EXPECT_EQ(_mm_getcsr(), before);
    _mm_setcsr(mode);
    (void)encoded(format, gaussian(4096, 3, 1));
    ThreadPool pool(2);  // its threads run with denormals flushed
    pool.parallel_for(2, 1, [&](int64_t, int64_t, int) { EXPECT_EQ(encoded(format, x), first); });
    _mm_setcsr(mode);
  }
}

// Floats are stored by the conversions of dtype.h; formats without an encoder say so.
TEST(Encode, FloatsAndSupport) {
  const auto x = gaussian(100, 1, 2);
  EXPECT_EQ(round_trip(QuantFormat::kF32, x), x);
  const auto f16 = round_trip(QuantFormat::kF16, x), bf16 = round_trip(QuantFormat::kBF16, x);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(f16[i], to_float(to_f16(x[i])));
    EXPECT_EQ(bf16[i], to_float(to_bf16(x[i])));
  }
  for (const QuantFormat format : kEncoded) EXPECT_TRUE(can_quantize(format));
  EXPECT_FALSE(can_quantize(QuantFormat::kQ2_K));
  EXPECT_FALSE(can_quantize(QuantFormat::kQ4_0));
}

}  // namespace
}  // namespace foretoken
