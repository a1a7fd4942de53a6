// The canonical arithmetic in scalar code: reduction orders, activation quantisation and our own transcendentals.
// Vector kernels perform the same operations per lane, so their bits are equal on every instruction set. Compiled with
// -ffp-contract=off and FMA as an instruction; MXCSR flushes denormals (base/threads.h). Source: docs/numerics.md.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "numerics/quant.h"

namespace foretoken::canonical {

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// Round to nearest even, as cvtps2dq does. |x| < 2^31.
inline int32_t round_to_int(float x) { return _mm_cvtss_si32(_mm_set_ss(x)); }

// ---- Reductions: 16 lanes, element i to lane i mod 16, then fold 8, 4, 2, 1. `n` is padded with zeros to 16.

inline float fold_sum(float (&lane)[16]) {
  for (int s = 8; s > 0; s /= 2)
    for (int l = 0; l < s; ++l) lane[l] += lane[l + s];
  return lane[0];
}

// w[i] is widened by `load(i)`, so that one definition serves f32, f16 and bf16 weights.
template <class Load>
float dot16(Load load, const float* x, int64_t n) {
  float lane[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int l = 0; l < 16; ++l) lane[l] = fma(load(i + l), x[i + l], lane[l]);
  if (i < n)
    for (int l = 0; l < 16; ++l) lane[l] = i + l < n ? fma(load(i + l), x[i + l], lane[l]) : fma(0.0f, 0.0f, lane[l]);
  return fold_sum(lane);
}

inline float sum_of_squares(const float* x, int64_t n) {
  return dot16([x](int64_t i) { return x[i]; }, x, n);
}

// ---- Transcendentals. Straight-line code without branches on values: the vector forms are the same expressions.

// exp(x): 0 below -87.336, +inf above 88.722, NaN for NaN; exp(0) == 1 and exp(-inf) == +0 exactly. Error < 2 ulp.
inline float exp(float x) {
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kLn2Hi = 0.693145751953125f;          // 15 bits, so that n * hi is exact
  constexpr float kLn2Lo = 1.42860682030941723212e-6f;
  const float limited = std::min(std::max(x, -87.5f), 88.8f);  // a NaN's result is replaced at the end
  const float n = static_cast<float>(round_to_int(limited * kLog2e));
  float r = fma(-n, kLn2Hi, limited);
  r = fma(-n, kLn2Lo, r);
  float p = 1.0f / 5040;
  p = fma(p, r, 1.0f / 720);
  p = fma(p, r, 1.0f / 120);
  p = fma(p, r, 1.0f / 24);
  p = fma(p, r, 1.0f / 6);
  p = fma(p, r, 0.5f);
  p = fma(p, r, 1.0f);
  p = fma(p, r, 1.0f);
  // 2^n in two factors: n = 128 (p just below 1 times 2^128) must not pass through infinity early.
  const int32_t half = static_cast<int32_t>(n) >> 1;
  const int32_t rest = static_cast<int32_t>(n) - half;
  float y = p * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((rest + 127) << 23);
  y = x < -87.33654f ? 0.0f : y;
  y = x > 88.72283f ? std::numeric_limits<float>::infinity() : y;
  return x != x ? x : y;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
inline float silu(float x) { return x / (1.0f + exp(-x)); }

// 2 atanh(z) for |z| <= 1/3.
inline float twice_atanh(float z) {
  const float s = z * z;
  float p = 1.0f / 17;
  p = fma(p, s, 1.0f / 15);
  p = fma(p, s, 1.0f / 13);
  p = fma(p, s, 1.0f / 11);
  p = fma(p, s, 1.0f / 9);
  p = fma(p, s, 1.0f / 7);
  p = fma(p, s, 1.0f / 5);
  p = fma(p, s, 1.0f / 3);
  p = fma(p, s, 1.0f);
  return 2.0f * z * p;
}

// log(1 + y) for y in [0, 1]. Error < 3 ulp.
inline float log1p_unit(float y) { return twice_atanh(y / (2.0f + y)); }

// ln(1 + e^x) without overflow.
inline float softplus(float x) {
  const float a = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu);
  return std::max(x, 0.0f) + log1p_unit(exp(-a));
}

// ln(x) for normal x > 0: exponent and 2 atanh of the mantissa in [sqrt(1/2), sqrt(2)).
inline float log(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const int32_t e = static_cast<int32_t>((bits - 0x3F3504F3u) >> 23 << 23) >> 23;
  const float m = std::bit_cast<float>(bits - (static_cast<uint32_t>(e) << 23));
  const float z = (m - 1.0f) / (m + 1.0f);
  const float s = z * z;
  float p = 1.0f / 13;
  p = fma(p, s, 1.0f / 11);
  p = fma(p, s, 1.0f / 9);
  p = fma(p, s, 1.0f / 7);
  p = fma(p, s, 1.0f / 5);
  p = fma(p, s, 1.0f / 3);
  p = fma(p, s, 1.0f);
  const float n = static_cast<float>(e);
  return fma(n, 0.693145751953125f, fma(n, 1.42860682030941723212e-6f, 2.0f * z * p));
}

// ---- Activations as integers, per row and block, from that row alone.

inline constexpr float kTinyActivation = 1e-30f;  // below it a block counts as zero: 127 / amax stays finite

// q in [-127, 127], round to nearest even; returns the scale, amax / 127. A block holding a non-finite value gets scale NaN
// and q = 0, so that the row's outputs are NaN and the row fails visibly. n <= 256.
inline float quantize_activation(const float* x, int n, int8_t* q) {
  uint32_t largest = 0;
  for (int i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu);
  const float amax = std::bit_cast<float>(largest);
  const bool finite = largest < 0x7F800000u;
  const bool zero = !finite || amax < kTinyActivation;
  const float inverse = zero ? 0.0f : 127.0f / amax;
  for (int i = 0; i < n; ++i) q[i] = zero ? int8_t{0} : static_cast<int8_t>(round_to_int(x[i] * inverse));
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  return zero ? 0.0f : amax / 127.0f;
}

// Dot product of one block-quantised weight row with one activation row quantised in blocks of the format's own size.
// The integer dot inside a sub-block is exact; blocks are added in ascending order with this one expression.
inline float add_block(const UnpackedBlock& w, const int8_t* a, float a_scale, float acc) {
  float t = 0;
  int32_t t_integer = 0, min_sum = 0;  // |t_integer| < 2^28
  for (int k = 0; k * w.sub_elements < w.elements; ++k) {
    int32_t dot = 0, sum = 0;
    for (int i = k * w.sub_elements; i < (k + 1) * w.sub_elements; ++i) {
      dot += int32_t{w.q[i]} * a[i];
      sum += a[i];
    }
    t = fma(static_cast<float>(w.scale[k]), static_cast<float>(dot), t);
    t_integer += w.scale[k] * dot;
    min_sum += w.min[k] * sum;
  }
  if (w.adds_integers) t = static_cast<float>(t_integer);
  if (w.has_min) return fma(a_scale, fma(-w.dmin, static_cast<float>(min_sum), w.d * t), acc);
  return fma(w.d * a_scale, t, acc);
}

// ---- Rotary angles in double, rounded once: correct at 1 M positions, and free of libm.

struct SinCos { float sin, cos; };

inline SinCos sin_cos(double x) {
  constexpr double kTwoOverPi = 0.63661977236758134308;
  constexpr double kPio2Hi = 1.57079632673412561417e+00, kPio2Mid = 6.07710050630396597660e-11,
                   kPio2Lo = 2.02226624879595063154e-21;
  const double n = __builtin_rint(x * kTwoOverPi);
  double r = __builtin_fma(-n, kPio2Hi, x);
  r = __builtin_fma(-n, kPio2Mid, r);
  r = __builtin_fma(-n, kPio2Lo, r);
  const double s = r * r;
  double sp = -7.6471637318198164759e-13, cp = 4.7794773323873852974e-14;
  sp = __builtin_fma(sp, s, 1.6059043836821614599e-10);
  sp = __builtin_fma(sp, s, -2.5052108385441718775e-08);
  sp = __builtin_fma(sp, s, 2.7557319223985890653e-06);
  sp = __builtin_fma(sp, s, -1.9841269841269841270e-04);
  sp = __builtin_fma(sp, s, 8.3333333333333333333e-03);
  sp = __builtin_fma(sp, s, -1.6666666666666666667e-01);
  const double sine = __builtin_fma(sp * s, r, r);
  cp = __builtin_fma(cp, s, -1.1470745597729724714e-11);
  cp = __builtin_fma(cp, s, 2.0876756987868098979e-09);
  cp = __builtin_fma(cp, s, -2.7557319223985890653e-07);
  cp = __builtin_fma(cp, s, 2.4801587301587301587e-05);
  cp = __builtin_fma(cp, s, -1.3888888888888888889e-03);
  cp = __builtin_fma(cp, s, 4.1666666666666666667e-02);
  cp = __builtin_fma(cp, s, -0.5);
  const double cosine = __builtin_fma(cp, s, 1.0);
  const int quadrant = static_cast<int>(static_cast<int64_t>(n) & 3);
  const double sin_value = quadrant & 1 ? cosine : sine;
  const double cos_value = quadrant & 1 ? sine : cosine;
  return {static_cast<float>(quadrant & 2 ? -sin_value : sin_value),
          static_cast<float>((quadrant + 1) & 2 ? -cos_value : cos_value)};
}

}  // namespace foretoken::canonical
