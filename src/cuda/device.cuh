// Device arithmetic: the expressions of numerics/canonical.h in the same order, so that operators without matrix
// products give the reference's bits. Compiled with -fmad=false -ftz=true and correctly rounded division and square
// root.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/queue.h"

namespace foretoken::cuda {

#define FORETOKEN_DEVICE static __device__ __forceinline__

// What the code being compiled may use; the host asks limits.h. Of the architecture compiled for, not of the device: an
// older one's code runs on newer devices.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define FORETOKEN_HAS_BULK_COPIES 1
#else
#define FORETOKEN_HAS_BULK_COPIES 0
#endif
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define FORETOKEN_HAS_WGMMA 1
#else
#define FORETOKEN_HAS_WGMMA 0
#endif
constexpr bool kBulkCopies = FORETOKEN_HAS_BULK_COPIES, kWgmma = FORETOKEN_HAS_WGMMA;
constexpr bool kDependentLaunch = FORETOKEN_HAS_BULK_COPIES;  // since sm_90 too

FORETOKEN_DEVICE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
FORETOKEN_DEVICE float infinity() { return __int_as_float(0x7F800000); }

FORETOKEN_DEVICE float exp(float x) {
  float limited = x < -87.5f ? -87.5f : x;
  limited = limited > 88.8f ? 88.8f : limited;
  const int count = __float2int_rn(__fmul_rn(limited, 1.44269504088896341f));
  const float n = static_cast<float>(count);
  float r = fma(-n, 0.693145751953125f, limited);
  r = fma(-n, 1.42860682030941723212e-6f, r);
  float p = 1.0f / 5040;
  p = fma(p, r, 1.0f / 720);
  p = fma(p, r, 1.0f / 120);
  p = fma(p, r, 1.0f / 24);
  p = fma(p, r, 1.0f / 6);
  p = fma(p, r, 0.5f);
  p = fma(p, r, 1.0f);
  p = fma(p, r, 1.0f);
  const int half = count >> 1, rest = count - half;
  float y = __fmul_rn(__fmul_rn(p, __int_as_float((half + 127) << 23)), __int_as_float((rest + 127) << 23));
  y = x < -87.33654f ? 0.0f : y;
  y = x > 88.72283f ? infinity() : y;
  return x != x ? x : y;
}

FORETOKEN_DEVICE float sigmoid(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, exp(-x))); }
FORETOKEN_DEVICE float silu(float x) { return __fdiv_rn(x, __fadd_rn(1.0f, exp(-x))); }

FORETOKEN_DEVICE float twice_atanh(float z) {
  const float s = __fmul_rn(z, z);
  float p = 1.0f / 17;
  p = fma(p, s, 1.0f / 15);
  p = fma(p, s, 1.0f / 13);
  p = fma(p, s, 1.0f / 11);
  p = fma(p, s, 1.0f / 9);
  p = fma(p, s, 1.0f / 7);
  p = fma(p, s, 1.0f / 5);
  p = fma(p, s, 1.0f / 3);
  p = fma(p, s, 1.0f);
  return __fmul_rn(__fmul_rn(2.0f, z), p);
}

FORETOKEN_DEVICE float log1p_unit(float y) { return twice_atanh(__fdiv_rn(y, __fadd_rn(2.0f, y))); }

FORETOKEN_DEVICE float softplus(float x) {
  const float a = __int_as_float(__float_as_int(x) & 0x7FFFFFFF);
  return __fadd_rn(x < 0.0f ? 0.0f : x, log1p_unit(exp(-a)));
}

struct SinCos {
  float sin, cos;
};

FORETOKEN_DEVICE SinCos sin_cos(double x) {
  const double n = rint(__dmul_rn(x, 0.63661977236758134308));
  double r = __fma_rn(-n, 1.57079632673412561417e+00, x);
  r = __fma_rn(-n, 6.07710050630396597660e-11, r);
  r = __fma_rn(-n, 2.02226624879595063154e-21, r);
  const double s = __dmul_rn(r, r);
  double sp = -7.6471637318198164759e-13, cp = 4.7794773323873852974e-14;
  sp = __fma_rn(sp, s, 1.6059043836821614599e-10);
  sp = __fma_rn(sp, s, -2.5052108385441718775e-08);
  sp = __fma_rn(sp, s, 2.7557319223985890653e-06);
  sp = __fma_rn(sp, s, -1.9841269841269841270e-04);
  sp = __fma_rn(sp, s, 8.3333333333333333333e-03);
  sp = __fma_rn(sp, s, -1.6666666666666666667e-01);
  const double sine = __fma_rn(__dmul_rn(sp, s), r, r);
  cp = __fma_rn(cp, s, -1.1470745597729724714e-11);
  cp = __fma_rn(cp, s, 2.0876756987868098979e-09);
  cp = __fma_rn(cp, s, -2.7557319223985890653e-07);
  cp = __fma_rn(cp, s, 2.4801587301587301587e-05);
  cp = __fma_rn(cp, s, -1.3888888888888888889e-03);
  cp = __fma_rn(cp, s, 4.1666666666666666667e-02);
  cp = __fma_rn(cp, s, -0.5);
  const double cosine = __fma_rn(cp, s, 1.0);
  const int quadrant = static_cast<int>(static_cast<long long>(n) & 3);
  const double sin_value = quadrant & 1 ? cosine : sine;
  const double cos_value = quadrant & 1 ? sine : cosine;
  return {static_cast<float>(quadrant & 2 ? -sin_value : sin_value),
          static_cast<float>((quadrant + 1) & 2 ? -cos_value : cos_value)};
}

// Lanes 0..15 of a warp hold the sixteen partial sums; every lane gets their fold 8, 4, 2, 1.
FORETOKEN_DEVICE float fold_sum(float lane) {
  for (int s = 8; s > 0; s /= 2) lane = __fadd_rn(lane, __shfl_down_sync(0xFFFFFFFFu, lane, s));
  return __shfl_sync(0xFFFFFFFFu, lane, 0);
}

// canonical::sum_of_squares by one warp.
FORETOKEN_DEVICE float sum_of_squares(const float* x, int n) {
  const int lane = threadIdx.x & 31;
  float sum = 0;
  if (lane < 16)
    for (int i = 0; i < n; i += 16) {
      const float v = i + lane < n ? x[i + lane] : 0.0f;
      sum = fma(v, v, sum);
    }
  return fold_sum(sum);
}

FORETOKEN_DEVICE float inverse_root(float x) { return __fdiv_rn(1.0f, __fsqrt_rn(x)); }

FORETOKEN_DEVICE __nv_bfloat16 to_bf16(float x) { return __float2bfloat16_rn(x); }

// Bits of to_bf16(float) of numerics/dtype.h, NaN payload aside.
FORETOKEN_DEVICE uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Greatest integer over a warp.
FORETOKEN_DEVICE uint32_t warp_max(uint32_t x) { return __reduce_max_sync(0xFFFFFFFFu, x); }

// One activation block by one warp (canonical::quantize_activation): the scale; `inverse` turns values into codes.
FORETOKEN_DEVICE float activation_scale(const float* x, int n, float& inverse) {
  uint32_t largest = 0;
  for (int i = threadIdx.x & 31; i < n; i += 32) largest = max(largest, __float_as_uint(x[i]) & 0x7FFFFFFFu);
  largest = warp_max(largest);
  const float amax = __uint_as_float(largest);
  const bool finite = largest < 0x7F800000u;
  const bool zero = !finite || amax < 1e-30f;
  inverse = zero ? 0.0f : __fdiv_rn(127.0f, amax);
  if (!finite) return __int_as_float(0x7FC00000);
  return zero ? 0.0f : __fdiv_rn(amax, 127.0f);
}
FORETOKEN_DEVICE int8_t activation_code(float x, float inverse) {
  return inverse == 0.0f ? int8_t{0} : static_cast<int8_t>(__float2int_rn(__fmul_rn(x, inverse)));
}

// Every kernel begins with this: the next one may be brought in (it waits here in turn), and what came before is
// complete and visible. What no earlier kernel writes (weights) may be read before.
FORETOKEN_DEVICE void begin_kernel() {
#if FORETOKEN_HAS_BULK_COPIES
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Brings the line that p is in near, without waiting for it. Not before its writer is done.
FORETOKEN_DEVICE void into_l1(const void* p) {
  [[maybe_unused]] uint32_t word;
  asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(word) : "l"(p) : "memory");
}

// Where a kernel runs; enqueues it.
struct Launch {
  dim3 grid, block;
  size_t shared;
  Queue& queue;
  template <class... Parameters, class... Arguments>
  void operator()(void (*kernel)(Parameters...), Arguments&&... arguments) const {
    queue.add(kernel, grid, block, shared, static_cast<Parameters>(arguments)...);
  }
};

}  // namespace foretoken::cuda
