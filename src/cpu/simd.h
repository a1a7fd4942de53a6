// Sixteen lanes under one set of names in three implementations: scalar, AVX2 (two 256-bit registers) and AVX-512 with
// VNNI. Kernels (*.inl) are written once over these names and included by isa_scalar.cc, isa_avx2.cc and isa_avx512.cc,
// which define FORETOKEN_ISA (the namespace) and FORETOKEN_ISA_LEVEL (0, 1, 2). Every operation gives the same bits at
// each level. All of it has internal linkage: code built with AVX-512 flags must never be linked in for another processor
// (tools/check_isa.py). It knows no operator and no format.
#pragma once

#include <cstddef>
#include <cstdint>

#if FORETOKEN_ISA_LEVEL > 0
#include <immintrin.h>
#endif

#define FORETOKEN_SIMD [[maybe_unused]] static inline __attribute__((always_inline))
#if FORETOKEN_ISA_LEVEL == 0
#define FORETOKEN_UNROLL
#else
#define FORETOKEN_UNROLL _Pragma("GCC unroll 16")
#endif

namespace foretoken::cpu::FORETOKEN_ISA {
namespace {

// ---- Types. F32x16, I32x16: 16 lanes. Mask16: one truth value per lane. Bytes: 64 bytes.

#if FORETOKEN_ISA_LEVEL == 0

struct F32x16 { float v[16]; };
struct I32x16 { int32_t v[16]; };
struct Mask16 { bool v[16]; };
struct Bytes { uint8_t v[64]; };

#define FORETOKEN_LANES(Type, expression)       \
  Type r_;                                      \
  for (int l = 0; l < 16; ++l) r_.v[l] = (expression); \
  return r_

#elif FORETOKEN_ISA_LEVEL == 1

struct F32x16 { __m256 lo, hi; };
struct I32x16 { __m256i lo, hi; };
struct Mask16 { __m256 lo, hi; };  // all bits of a true lane set
struct Bytes { __m256i lo, hi; };

#else

struct F32x16 { __m512 v; };
struct I32x16 { __m512i v; };
struct Mask16 { __mmask16 v; };
struct Bytes { __m512i v; };

#endif

// ---- Memory. No alignment is needed; `_first` variants touch only the first `count` (0..16) elements, the other lanes
// load as zero.

#if FORETOKEN_ISA_LEVEL == 0

FORETOKEN_SIMD F32x16 zero_f32() { FORETOKEN_LANES(F32x16, 0.0f); }
FORETOKEN_SIMD F32x16 set_f32(float x) { FORETOKEN_LANES(F32x16, x); }
FORETOKEN_SIMD F32x16 load_f32(const float* p) { FORETOKEN_LANES(F32x16, p[l]); }
FORETOKEN_SIMD F32x16 load_first_f32(const float* p, int count) { FORETOKEN_LANES(F32x16, l < count ? p[l] : 0.0f); }
FORETOKEN_SIMD void store(float* p, F32x16 x) { for (int l = 0; l < 16; ++l) p[l] = x.v[l]; }
FORETOKEN_SIMD void store_first(float* p, F32x16 x, int count) { for (int l = 0; l < count; ++l) p[l] = x.v[l]; }

FORETOKEN_SIMD I32x16 zero_i32() { FORETOKEN_LANES(I32x16, 0); }
FORETOKEN_SIMD I32x16 set_i32(int32_t x) { FORETOKEN_LANES(I32x16, x); }
FORETOKEN_SIMD I32x16 load_i32(const int32_t* p) { FORETOKEN_LANES(I32x16, p[l]); }
FORETOKEN_SIMD void store(int32_t* p, I32x16 x) { for (int l = 0; l < 16; ++l) p[l] = x.v[l]; }
FORETOKEN_SIMD I32x16 load_s8(const int8_t* p) { FORETOKEN_LANES(I32x16, p[l]); }
FORETOKEN_SIMD I32x16 load_u8(const uint8_t* p) { FORETOKEN_LANES(I32x16, p[l]); }
// The low byte of every lane; lanes hold -128..127.
FORETOKEN_SIMD void store_s8(int8_t* p, I32x16 x) { for (int l = 0; l < 16; ++l) p[l] = static_cast<int8_t>(x.v[l]); }

FORETOKEN_SIMD Bytes load_bytes(const void* p) {
  Bytes r;
  __builtin_memcpy(r.v, p, 64);
  return r;
}
FORETOKEN_SIMD void store_bytes(void* p, Bytes x) { __builtin_memcpy(p, x.v, 64); }
FORETOKEN_SIMD Bytes set_bytes(uint8_t x) {
  Bytes r;
  for (int i = 0; i < 64; ++i) r.v[i] = x;
  return r;
}
// Four bytes at p, repeated in every lane.
FORETOKEN_SIMD Bytes set_quad(const void* p) {
  Bytes r;
  for (int l = 0; l < 16; ++l) __builtin_memcpy(r.v + 4 * l, p, 4);
  return r;
}

#elif FORETOKEN_ISA_LEVEL == 1

FORETOKEN_SIMD __m256i lane_numbers_low() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
FORETOKEN_SIMD Mask16 first_lanes(int count) {
  const __m256i n = _mm256_set1_epi32(count);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(n, lane_numbers_low())),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(n, _mm256_add_epi32(lane_numbers_low(), _mm256_set1_epi32(8))))};
}
FORETOKEN_SIMD F32x16 zero_f32() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
FORETOKEN_SIMD F32x16 set_f32(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
FORETOKEN_SIMD F32x16 load_f32(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
FORETOKEN_SIMD F32x16 load_first_f32(const float* p, int count) {
  const Mask16 m = first_lanes(count);
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)), _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi))};
}
FORETOKEN_SIMD void store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
FORETOKEN_SIMD void store_first(float* p, F32x16 x, int count) {
  const Mask16 m = first_lanes(count);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), x.lo);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), x.hi);
}

FORETOKEN_SIMD I32x16 zero_i32() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
FORETOKEN_SIMD I32x16 set_i32(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
FORETOKEN_SIMD __m256i load_ymm(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
FORETOKEN_SIMD __m128i load_8(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
FORETOKEN_SIMD I32x16 load_i32(const int32_t* p) { return {load_ymm(p), load_ymm(p + 8)}; }
FORETOKEN_SIMD void store(int32_t* p, I32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.hi);
}
FORETOKEN_SIMD I32x16 load_s8(const int8_t* p) {
  return {_mm256_cvtepi8_epi32(load_8(p)), _mm256_cvtepi8_epi32(load_8(p + 8))};
}
FORETOKEN_SIMD I32x16 load_u8(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(load_8(p)), _mm256_cvtepu8_epi32(load_8(p + 8))};
}
// The low byte of every lane; lanes hold -128..127.
FORETOKEN_SIMD void store_s8(int8_t* p, I32x16 x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.lo, x.hi), 0xD8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

FORETOKEN_SIMD Bytes load_bytes(const void* p) { return {load_ymm(p), load_ymm(static_cast<const char*>(p) + 32)}; }
FORETOKEN_SIMD void store_bytes(void* p, Bytes x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), x.lo);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, x.hi);
}
FORETOKEN_SIMD Bytes set_bytes(uint8_t x) {
  return {_mm256_set1_epi8(static_cast<char>(x)), _mm256_set1_epi8(static_cast<char>(x))};
}
// Four bytes at p, repeated in every lane.
FORETOKEN_SIMD Bytes set_quad(const void* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, 4);
  return {_mm256_set1_epi32(quad), _mm256_set1_epi32(quad)};
}

#else

FORETOKEN_SIMD Mask16 first_lanes(int count) { return {static_cast<__mmask16>((1u << count) - 1u)}; }
FORETOKEN_SIMD F32x16 zero_f32() { return {_mm512_setzero_ps()}; }
FORETOKEN_SIMD F32x16 set_f32(float x) { return {_mm512_set1_ps(x)}; }
FORETOKEN_SIMD F32x16 load_f32(const float* p) { return {_mm512_loadu_ps(p)}; }
FORETOKEN_SIMD F32x16 load_first_f32(const float* p, int count) {
  return {_mm512_maskz_loadu_ps(first_lanes(count).v, p)};
}
FORETOKEN_SIMD void store(float* p, F32x16 x) { _mm512_storeu_ps(p, x.v); }
FORETOKEN_SIMD void store_first(float* p, F32x16 x, int count) { _mm512_mask_storeu_ps(p, first_lanes(count).v, x.v); }

FORETOKEN_SIMD I32x16 zero_i32() { return {_mm512_setzero_si512()}; }
FORETOKEN_SIMD I32x16 set_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
FORETOKEN_SIMD I32x16 load_i32(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
FORETOKEN_SIMD void store(int32_t* p, I32x16 x) { _mm512_storeu_si512(p, x.v); }
FORETOKEN_SIMD __m128i load_16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
FORETOKEN_SIMD I32x16 load_s8(const int8_t* p) { return {_mm512_cvtepi8_epi32(load_16(p))}; }
FORETOKEN_SIMD I32x16 load_u8(const uint8_t* p) { return {_mm512_cvtepu8_epi32(load_16(p))}; }
// The low byte of every lane; lanes hold -128..127.
FORETOKEN_SIMD void store_s8(int8_t* p, I32x16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}

FORETOKEN_SIMD Bytes load_bytes(const void* p) { return {_mm512_loadu_si512(p)}; }
FORETOKEN_SIMD void store_bytes(void* p, Bytes x) { _mm512_storeu_si512(p, x.v); }
FORETOKEN_SIMD Bytes set_bytes(uint8_t x) { return {_mm512_set1_epi8(static_cast<char>(x))}; }
// Four bytes at p, repeated in every lane.
FORETOKEN_SIMD Bytes set_quad(const void* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, 4);
  return {_mm512_set1_epi32(quad)};
}

#endif

// ---- Arithmetic. `fma` rounds once; `fnma` is c - a * b. `min` and `max` are std::min(a, b) and std::max(a, b) with their
// treatment of NaN and of signed zeros. `to_i32` rounds to nearest even; out of range gives INT32_MIN.

#if FORETOKEN_ISA_LEVEL == 0

FORETOKEN_SIMD F32x16 add(F32x16 a, F32x16 b) { FORETOKEN_LANES(F32x16, a.v[l] + b.v[l]); }
FORETOKEN_SIMD F32x16 sub(F32x16 a, F32x16 b) { FORETOKEN_LANES(F32x16, a.v[l] - b.v[l]); }
FORETOKEN_SIMD F32x16 mul(F32x16 a, F32x16 b) { FORETOKEN_LANES(F32x16, a.v[l] * b.v[l]); }
FORETOKEN_SIMD F32x16 div(F32x16 a, F32x16 b) { FORETOKEN_LANES(F32x16, a.v[l] / b.v[l]); }
FORETOKEN_SIMD F32x16 sqrt(F32x16 a) { FORETOKEN_LANES(F32x16, __builtin_sqrtf(a.v[l])); }
FORETOKEN_SIMD F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { FORETOKEN_LANES(F32x16, __builtin_fmaf(a.v[l], b.v[l], c.v[l])); }
FORETOKEN_SIMD F32x16 fnma(F32x16 a, F32x16 b, F32x16 c) {
  FORETOKEN_LANES(F32x16, __builtin_fmaf(-a.v[l], b.v[l], c.v[l]));
}
FORETOKEN_SIMD F32x16 min(F32x16 a, F32x16 b) { FORETOKEN_LANES(F32x16, b.v[l] < a.v[l] ? b.v[l] : a.v[l]); }
FORETOKEN_SIMD F32x16 max(F32x16 a, F32x16 b) { FORETOKEN_LANES(F32x16, a.v[l] < b.v[l] ? b.v[l] : a.v[l]); }

FORETOKEN_SIMD I32x16 add(I32x16 a, I32x16 b) { FORETOKEN_LANES(I32x16, a.v[l] + b.v[l]); }
FORETOKEN_SIMD I32x16 sub(I32x16 a, I32x16 b) { FORETOKEN_LANES(I32x16, a.v[l] - b.v[l]); }
FORETOKEN_SIMD I32x16 max(I32x16 a, I32x16 b) { FORETOKEN_LANES(I32x16, a.v[l] < b.v[l] ? b.v[l] : a.v[l]); }
FORETOKEN_SIMD I32x16 and_(I32x16 a, I32x16 b) { FORETOKEN_LANES(I32x16, a.v[l] & b.v[l]); }
FORETOKEN_SIMD I32x16 mul(I32x16 a, I32x16 b) { FORETOKEN_LANES(I32x16, a.v[l] * b.v[l]); }
FORETOKEN_SIMD I32x16 or_(I32x16 a, I32x16 b) { FORETOKEN_LANES(I32x16, a.v[l] | b.v[l]); }
template <int kBits>
FORETOKEN_SIMD I32x16 shift_left(I32x16 a) {
  FORETOKEN_LANES(I32x16, static_cast<int32_t>(static_cast<uint32_t>(a.v[l]) << kBits));
}
template <int kBits>
FORETOKEN_SIMD I32x16 shift_right(I32x16 a) {  // zeros enter
  FORETOKEN_LANES(I32x16, static_cast<int32_t>(static_cast<uint32_t>(a.v[l]) >> kBits));
}
template <int kBits>
FORETOKEN_SIMD I32x16 shift_right_signed(I32x16 a) { FORETOKEN_LANES(I32x16, a.v[l] >> kBits); }

FORETOKEN_SIMD F32x16 to_f32(I32x16 a) { FORETOKEN_LANES(F32x16, static_cast<float>(a.v[l])); }
FORETOKEN_SIMD I32x16 to_i32(F32x16 a) {
  FORETOKEN_LANES(I32x16, __builtin_ia32_cvtss2si((__attribute__((vector_size(16))) float){a.v[l], 0, 0, 0}));
}
FORETOKEN_SIMD F32x16 bits_f32(I32x16 a) {
  F32x16 r;
  __builtin_memcpy(&r, &a, 64);
  return r;
}
FORETOKEN_SIMD I32x16 bits_i32(F32x16 a) {
  I32x16 r;
  __builtin_memcpy(&r, &a, 64);
  return r;
}

FORETOKEN_SIMD Mask16 less(F32x16 a, F32x16 b) { FORETOKEN_LANES(Mask16, a.v[l] < b.v[l]); }
FORETOKEN_SIMD Mask16 is_nan(F32x16 a) { FORETOKEN_LANES(Mask16, a.v[l] != a.v[l]); }
FORETOKEN_SIMD Mask16 first_lanes(int count) { FORETOKEN_LANES(Mask16, l < count); }
FORETOKEN_SIMD F32x16 select(Mask16 m, F32x16 a, F32x16 b) { FORETOKEN_LANES(F32x16, m.v[l] ? a.v[l] : b.v[l]); }
FORETOKEN_SIMD bool any(Mask16 m) {
  bool r = false;
  for (int l = 0; l < 16; ++l) r |= m.v[l];
  return r;
}

#elif FORETOKEN_ISA_LEVEL == 1

FORETOKEN_SIMD F32x16 add(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
FORETOKEN_SIMD F32x16 sub(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
FORETOKEN_SIMD F32x16 mul(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
FORETOKEN_SIMD F32x16 div(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
FORETOKEN_SIMD F32x16 sqrt(F32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
FORETOKEN_SIMD F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
FORETOKEN_SIMD F32x16 fnma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
// The instructions return their second operand for NaN and for equal zeros, hence the exchanged operands.
FORETOKEN_SIMD F32x16 min(F32x16 a, F32x16 b) { return {_mm256_min_ps(b.lo, a.lo), _mm256_min_ps(b.hi, a.hi)}; }
FORETOKEN_SIMD F32x16 max(F32x16 a, F32x16 b) { return {_mm256_max_ps(b.lo, a.lo), _mm256_max_ps(b.hi, a.hi)}; }

FORETOKEN_SIMD I32x16 add(I32x16 a, I32x16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
FORETOKEN_SIMD I32x16 sub(I32x16 a, I32x16 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
FORETOKEN_SIMD I32x16 max(I32x16 a, I32x16 b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
FORETOKEN_SIMD I32x16 mul(I32x16 a, I32x16 b) {
  return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}
FORETOKEN_SIMD I32x16 and_(I32x16 a, I32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
FORETOKEN_SIMD I32x16 or_(I32x16 a, I32x16 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
template <int kBits>
FORETOKEN_SIMD I32x16 shift_left(I32x16 a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
FORETOKEN_SIMD I32x16 shift_right(I32x16 a) {  // zeros enter
  return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
}
template <int kBits>
FORETOKEN_SIMD I32x16 shift_right_signed(I32x16 a) {
  return {_mm256_srai_epi32(a.lo, kBits), _mm256_srai_epi32(a.hi, kBits)};
}

FORETOKEN_SIMD F32x16 to_f32(I32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
FORETOKEN_SIMD I32x16 to_i32(F32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
FORETOKEN_SIMD F32x16 bits_f32(I32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
FORETOKEN_SIMD I32x16 bits_i32(F32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }

FORETOKEN_SIMD Mask16 less(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
FORETOKEN_SIMD Mask16 is_nan(F32x16 a) {
  return {_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)};
}
FORETOKEN_SIMD F32x16 select(Mask16 m, F32x16 a, F32x16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}
FORETOKEN_SIMD bool any(Mask16 m) { return _mm256_movemask_ps(_mm256_or_ps(m.lo, m.hi)) != 0; }

#else

FORETOKEN_SIMD F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
FORETOKEN_SIMD F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
FORETOKEN_SIMD F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
FORETOKEN_SIMD F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
FORETOKEN_SIMD F32x16 sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
FORETOKEN_SIMD F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
FORETOKEN_SIMD F32x16 fnma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
// The instructions return their second operand for NaN and for equal zeros, hence the exchanged operands.
FORETOKEN_SIMD F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(b.v, a.v)}; }
FORETOKEN_SIMD F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(b.v, a.v)}; }

FORETOKEN_SIMD I32x16 add(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
FORETOKEN_SIMD I32x16 sub(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
FORETOKEN_SIMD I32x16 max(I32x16 a, I32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
FORETOKEN_SIMD I32x16 and_(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
FORETOKEN_SIMD I32x16 mul(I32x16 a, I32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
FORETOKEN_SIMD I32x16 or_(I32x16 a, I32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int kBits>
FORETOKEN_SIMD I32x16 shift_left(I32x16 a) { return {_mm512_slli_epi32(a.v, kBits)}; }
template <int kBits>
FORETOKEN_SIMD I32x16 shift_right(I32x16 a) { return {_mm512_srli_epi32(a.v, kBits)}; }  // zeros enter
template <int kBits>
FORETOKEN_SIMD I32x16 shift_right_signed(I32x16 a) { return {_mm512_srai_epi32(a.v, kBits)}; }

FORETOKEN_SIMD F32x16 to_f32(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
FORETOKEN_SIMD I32x16 to_i32(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
FORETOKEN_SIMD F32x16 bits_f32(I32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
FORETOKEN_SIMD I32x16 bits_i32(F32x16 a) { return {_mm512_castps_si512(a.v)}; }

FORETOKEN_SIMD Mask16 less(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
FORETOKEN_SIMD Mask16 is_nan(F32x16 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
FORETOKEN_SIMD F32x16 select(Mask16 m, F32x16 a, F32x16 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
FORETOKEN_SIMD bool any(Mask16 m) { return m.v != 0; }

#endif

FORETOKEN_SIMD F32x16 negate(F32x16 a) {
  return bits_f32(sub(bits_i32(a), set_i32(INT32_MIN)));  // flips the sign bit, of zeros and NaN too
}
FORETOKEN_SIMD F32x16 absolute(F32x16 a) { return bits_f32(and_(bits_i32(a), set_i32(INT32_MAX))); }

// ---- 16-bit floats.

#if FORETOKEN_ISA_LEVEL == 0

FORETOKEN_SIMD F32x16 load_bf16(const uint16_t* p) {
  I32x16 r;
  for (int l = 0; l < 16; ++l) r.v[l] = static_cast<int32_t>(uint32_t{p[l]} << 16);
  return bits_f32(r);
}
FORETOKEN_SIMD F32x16 load_f16(const uint16_t* p) {
  typedef float F4 __attribute__((vector_size(16)));
  typedef short S8 __attribute__((vector_size(16)));
  FORETOKEN_LANES(F32x16, ((F4)__builtin_ia32_vcvtph2ps((S8){static_cast<short>(p[l])}))[0]);
}

#elif FORETOKEN_ISA_LEVEL == 1

FORETOKEN_SIMD __m128i load_xmm(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
FORETOKEN_SIMD F32x16 load_bf16(const uint16_t* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_xmm(p)), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_xmm(p + 8)), 16))};
}
FORETOKEN_SIMD F32x16 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(load_xmm(p)), _mm256_cvtph_ps(load_xmm(p + 8))};
}

#else

FORETOKEN_SIMD __m256i load_ymm(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
FORETOKEN_SIMD F32x16 load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_ymm(p)), 16))};
}
FORETOKEN_SIMD F32x16 load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(load_ymm(p))}; }

#endif

// Rounds to the nearest bf16 (ties to even, NaN stays NaN, as to_bf16 in numerics/dtype.h); the low half of every lane.
FORETOKEN_SIMD I32x16 to_bf16(F32x16 x) {
  const I32x16 bits = bits_i32(x);
  const I32x16 high = shift_right<16>(bits);
  const I32x16 rounded = shift_right<16>(add(add(bits, set_i32(0x7FFF)), and_(high, set_i32(1))));
  const F32x16 r = select(is_nan(x), bits_f32(or_(high, set_i32(0x40))), bits_f32(rounded));
  return bits_i32(r);
}
FORETOKEN_SIMD F32x16 round_to_bf16(F32x16 x) { return bits_f32(shift_left<16>(to_bf16(x))); }

#if FORETOKEN_ISA_LEVEL == 0
FORETOKEN_SIMD void store_bf16(uint16_t* p, F32x16 x) {
  const I32x16 bits = to_bf16(x);
  for (int l = 0; l < 16; ++l) p[l] = static_cast<uint16_t>(bits.v[l]);
}
#elif FORETOKEN_ISA_LEVEL == 1
FORETOKEN_SIMD void store_bf16(uint16_t* p, F32x16 x) {
  const I32x16 bits = to_bf16(x);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits.lo, bits.hi), 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), words);
}
#else
FORETOKEN_SIMD void store_bf16(uint16_t* p, F32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(to_bf16(x).v));
}
#endif

// ---- Folding 16 lanes to one value by 8, 4, 2, 1: canonical::fold_sum. `fold_max` ignores the order, and NaN lanes must
// have been selected away.

#if FORETOKEN_ISA_LEVEL == 0

FORETOKEN_SIMD float fold_sum(F32x16 x) {
  for (int s = 8; s > 0; s /= 2)
    for (int l = 0; l < s; ++l) x.v[l] += x.v[l + s];
  return x.v[0];
}
FORETOKEN_SIMD float fold_max(F32x16 x) {
  float r = x.v[0];
  for (int l = 1; l < 16; ++l) r = r < x.v[l] ? x.v[l] : r;
  return r;
}
// Lanes 4j to 4j + 3 of the result hold the sum of these four lanes.
FORETOKEN_SIMD I32x16 fold_fours(I32x16 x) {
  FORETOKEN_LANES(I32x16, x.v[l / 4 * 4] + x.v[l / 4 * 4 + 1] + x.v[l / 4 * 4 + 2] + x.v[l / 4 * 4 + 3]);
}
FORETOKEN_SIMD int32_t fold_max(I32x16 x) {
  int32_t r = x.v[0];
  for (int l = 1; l < 16; ++l) r = r < x.v[l] ? x.v[l] : r;
  return r;
}
// Lane j of the result is fold_sum(x[j]).
FORETOKEN_SIMD F32x16 fold_sums(const F32x16 (&x)[16]) { FORETOKEN_LANES(F32x16, fold_sum(x[l])); }

#else

FORETOKEN_SIMD float fold_sum_8(__m256 x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
FORETOKEN_SIMD float fold_max_8(__m256 x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

FORETOKEN_SIMD int32_t fold_max_8(__m256i x) {
  __m128i y = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(y, _mm_shuffle_epi32(y, 0xB1)));
}

#if FORETOKEN_ISA_LEVEL == 1

FORETOKEN_SIMD float fold_sum(F32x16 x) { return fold_sum_8(_mm256_add_ps(x.lo, x.hi)); }
FORETOKEN_SIMD float fold_max(F32x16 x) { return fold_max_8(_mm256_max_ps(x.lo, x.hi)); }
FORETOKEN_SIMD int32_t fold_max(I32x16 x) { return fold_max_8(_mm256_max_epi32(x.lo, x.hi)); }
FORETOKEN_SIMD __m256i fold_fours_8(__m256i x) {
  x = _mm256_add_epi32(x, _mm256_shuffle_epi32(x, 0xB1));
  return _mm256_add_epi32(x, _mm256_shuffle_epi32(x, 0x4E));
}
// Lanes 4j to 4j + 3 of the result hold the sum of these four lanes.
FORETOKEN_SIMD I32x16 fold_fours(I32x16 x) { return {fold_fours_8(x.lo), fold_fours_8(x.hi)}; }

// Eight folds at once: each step halves the lanes of a vector and puts two vectors into one register.
FORETOKEN_SIMD __m256 fold_sums_8(const F32x16* x) {
  __m256 a[8], b[4], c[2];
  FORETOKEN_UNROLL for (int i = 0; i < 8; ++i) a[i] = _mm256_add_ps(x[i].lo, x[i].hi);
  FORETOKEN_UNROLL for (int i = 0; i < 4; ++i)
    b[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[i], a[i + 4], 0x20), _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  FORETOKEN_UNROLL for (int i = 0; i < 2; ++i)
    c[i] = _mm256_add_ps(_mm256_shuffle_ps(b[i], b[i + 2], 0x44), _mm256_shuffle_ps(b[i], b[i + 2], 0xEE));
  const __m256 d = _mm256_add_ps(_mm256_shuffle_ps(c[0], c[1], 0x88), _mm256_shuffle_ps(c[0], c[1], 0xDD));
  return _mm256_permute_ps(d, 0xD8);
}
// Lane j of the result is fold_sum(x[j]).
FORETOKEN_SIMD F32x16 fold_sums(const F32x16 (&x)[16]) { return {fold_sums_8(x), fold_sums_8(x + 8)}; }

#else

FORETOKEN_SIMD float fold_sum(F32x16 x) {
  return fold_sum_8(_mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1)));
}
FORETOKEN_SIMD float fold_max(F32x16 x) {
  return fold_max_8(_mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1)));
}
// Lanes 4j to 4j + 3 of the result hold the sum of these four lanes.
FORETOKEN_SIMD I32x16 fold_fours(I32x16 x) {
  const __m512i twos = _mm512_add_epi32(x.v, _mm512_shuffle_epi32(x.v, _MM_PERM_CDAB));
  return {_mm512_add_epi32(twos, _mm512_shuffle_epi32(twos, _MM_PERM_BADC))};
}
FORETOKEN_SIMD int32_t fold_max(I32x16 x) {
  return fold_max_8(_mm256_max_epi32(_mm512_castsi512_si256(x.v), _mm512_extracti64x4_epi64(x.v, 1)));
}
// Lane j of the result is fold_sum(x[j]): each step halves the lanes of a vector and puts two vectors into one register.
FORETOKEN_SIMD F32x16 fold_sums(const F32x16 (&x)[16]) {
  __m512 a[8], b[4], c[2];
  FORETOKEN_UNROLL for (int i = 0; i < 8; ++i)
    a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[i].v, x[i + 8].v, 0x44), _mm512_shuffle_f32x4(x[i].v, x[i + 8].v, 0xEE));
  FORETOKEN_UNROLL for (int i = 0; i < 4; ++i)
    b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), _mm512_shuffle_f32x4(a[i], a[i + 4], 0xDD));
  FORETOKEN_UNROLL for (int i = 0; i < 2; ++i)
    c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[i], b[i + 2], 0x44), _mm512_shuffle_ps(b[i], b[i + 2], 0xEE));
  const __m512 d = _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xDD));
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return {_mm512_permutexvar_ps(order, d)};
}

#endif
#endif

// ---- Bytes. Shifts work inside each byte.

#if FORETOKEN_ISA_LEVEL == 0

#define FORETOKEN_BYTES(expression)                    \
  Bytes r_;                                            \
  for (int i = 0; i < 64; ++i) r_.v[i] = static_cast<uint8_t>(expression); \
  return r_

FORETOKEN_SIMD Bytes and_(Bytes a, Bytes b) { FORETOKEN_BYTES(a.v[i] & b.v[i]); }
FORETOKEN_SIMD Bytes or_(Bytes a, Bytes b) { FORETOKEN_BYTES(a.v[i] | b.v[i]); }
// Of signed bytes -127..127.
FORETOKEN_SIMD Bytes absolute(Bytes a) { FORETOKEN_BYTES(a.v[i] < 128 ? a.v[i] : 256 - a.v[i]); }
// (a >> kShift) & mask, with kShift negative for a shift to the left.
template <int kShift>
FORETOKEN_SIMD Bytes shift_and(Bytes a, Bytes mask) {
  if constexpr (kShift >= 0) { FORETOKEN_BYTES((a.v[i] >> kShift) & mask.v[i]); }
  else { FORETOKEN_BYTES((a.v[i] << -kShift) & mask.v[i]); }
}
// ((a >> kShift) & mask) | b
template <int kShift>
FORETOKEN_SIMD Bytes shift_and_or(Bytes a, Bytes mask, Bytes b) { return or_(shift_and<kShift>(a, mask), b); }
// table[a], a 0..15, table 16 entries.
FORETOKEN_SIMD Bytes lookup(const uint8_t* table, Bytes a) { FORETOKEN_BYTES(table[a.v[i]]); }

#elif FORETOKEN_ISA_LEVEL == 1

FORETOKEN_SIMD Bytes and_(Bytes a, Bytes b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
FORETOKEN_SIMD Bytes or_(Bytes a, Bytes b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
FORETOKEN_SIMD Bytes absolute(Bytes a) { return {_mm256_abs_epi8(a.lo), _mm256_abs_epi8(a.hi)}; }
// (a >> kShift) & mask, with kShift negative for a shift to the left. The mask clears what crosses bytes.
template <int kShift>
FORETOKEN_SIMD Bytes shift_and(Bytes a, Bytes mask) {
  if constexpr (kShift > 0) a = {_mm256_srli_epi16(a.lo, kShift), _mm256_srli_epi16(a.hi, kShift)};
  if constexpr (kShift < 0) a = {_mm256_slli_epi16(a.lo, -kShift), _mm256_slli_epi16(a.hi, -kShift)};
  return and_(a, mask);
}
// ((a >> kShift) & mask) | b
template <int kShift>
FORETOKEN_SIMD Bytes shift_and_or(Bytes a, Bytes mask, Bytes b) { return or_(shift_and<kShift>(a, mask), b); }
// table[a], a 0..15, table 16 entries.
FORETOKEN_SIMD Bytes lookup(const uint8_t* table, Bytes a) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(t, a.lo), _mm256_shuffle_epi8(t, a.hi)};
}

#else

FORETOKEN_SIMD Bytes and_(Bytes a, Bytes b) { return {_mm512_and_si512(a.v, b.v)}; }
FORETOKEN_SIMD Bytes or_(Bytes a, Bytes b) { return {_mm512_or_si512(a.v, b.v)}; }
FORETOKEN_SIMD Bytes absolute(Bytes a) { return {_mm512_abs_epi8(a.v)}; }
template <int kShift>
FORETOKEN_SIMD Bytes shift_words(Bytes a) {
  if constexpr (kShift > 0) return {_mm512_srli_epi16(a.v, kShift)};
  if constexpr (kShift < 0) return {_mm512_slli_epi16(a.v, -kShift)};
  return a;
}
// (a >> kShift) & mask, with kShift negative for a shift to the left. The mask clears what crosses bytes.
template <int kShift>
FORETOKEN_SIMD Bytes shift_and(Bytes a, Bytes mask) { return and_(shift_words<kShift>(a), mask); }
// ((a >> kShift) & mask) | b
template <int kShift>
FORETOKEN_SIMD Bytes shift_and_or(Bytes a, Bytes mask, Bytes b) {
  return {_mm512_ternarylogic_epi32(shift_words<kShift>(a).v, mask.v, b.v, 0xEA)};
}
// table[a], a 0..15, table 16 entries.
FORETOKEN_SIMD Bytes lookup(const uint8_t* table, Bytes a) {
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), a.v)};
}

#endif

// ---- Pairs of 16-bit integers per lane.

#if FORETOKEN_ISA_LEVEL == 0

struct Words { int16_t v[32]; };
FORETOKEN_SIMD Words load_u8_words(const uint8_t* p) {  // 32 bytes, widened
  Words r;
  for (int i = 0; i < 32; ++i) r.v[i] = p[i];
  return r;
}
FORETOKEN_SIMD Words set_pair(const int16_t* p) {  // p[0] and p[1], repeated in every lane
  Words r;
  for (int i = 0; i < 32; ++i) r.v[i] = p[i & 1];
  return r;
}
// The two words of every lane.
FORETOKEN_SIMD Words as_words(I32x16 x) {
  Words r;
  __builtin_memcpy(r.v, x.v, 64);
  return r;
}
FORETOKEN_SIMD I32x16 bits_of(Words x) {
  I32x16 r;
  __builtin_memcpy(r.v, x.v, 64);
  return r;
}
FORETOKEN_SIMD I32x16 dot_pairs(I32x16 sum, Words a, Words b) {
  FORETOKEN_LANES(I32x16, sum.v[l] + a.v[2 * l] * b.v[2 * l] + a.v[2 * l + 1] * b.v[2 * l + 1]);
}

#elif FORETOKEN_ISA_LEVEL == 1

struct Words { __m256i lo, hi; };
FORETOKEN_SIMD Words load_u8_words(const uint8_t* p) {  // 32 bytes, widened
  return {_mm256_cvtepu8_epi16(load_xmm(p)), _mm256_cvtepu8_epi16(load_xmm(p + 16))};
}
FORETOKEN_SIMD Words set_pair(const int16_t* p) {  // p[0] and p[1], repeated in every lane
  int32_t pair;
  __builtin_memcpy(&pair, p, 4);
  return {_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)};
}
FORETOKEN_SIMD Words as_words(I32x16 x) { return {x.lo, x.hi}; }
FORETOKEN_SIMD I32x16 bits_of(Words x) { return {x.lo, x.hi}; }
FORETOKEN_SIMD I32x16 dot_pairs(I32x16 sum, Words a, Words b) {
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, b.lo)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, b.hi))};
}

#else

struct Words { __m512i v; };
FORETOKEN_SIMD Words load_u8_words(const uint8_t* p) { return {_mm512_cvtepu8_epi16(load_ymm(p))}; }  // 32 bytes, widened
FORETOKEN_SIMD Words set_pair(const int16_t* p) {  // p[0] and p[1], repeated in every lane
  int32_t pair;
  __builtin_memcpy(&pair, p, 4);
  return {_mm512_set1_epi32(pair)};
}
FORETOKEN_SIMD Words as_words(I32x16 x) { return {x.v}; }
FORETOKEN_SIMD I32x16 bits_of(Words x) { return {x.v}; }
FORETOKEN_SIMD I32x16 dot_pairs(I32x16 sum, Words a, Words b) { return {_mm512_dpwssd_epi32(sum.v, a.v, b.v)}; }

#endif

// Lanes of -32768..32767 as words beside zeros: the other factor of a pair may hold anything there.
FORETOKEN_SIMD Words low_words(I32x16 x) { return as_words(and_(x, set_i32(0xFFFF))); }
FORETOKEN_SIMD I32x16 signed_low_words(I32x16 x) { return shift_right_signed<16>(shift_left<16>(x)); }

// ---- Integer dot products: four bytes per lane, weights times activations |a| <= 127, exact.
//
// Dot<kMax> sums steps of weights 0..kMax (kMax <= 127); `step` numbers its calls 0, 1, 2, ... because AVX2 sums 16-bit pairs
// and widens them before they can overflow. ByteDot takes bytes stored as value + 128: `byte_operand` prepares them, and
// the sum must start at kByteBias * (sum of the activations). kWideDot: Dot<255> works too (plain unsigned bytes).

#if FORETOKEN_ISA_LEVEL == 0

inline constexpr bool kWideDot = false;
inline constexpr int kByteBias = 0;

template <int kMax>
struct Dot {
  I32x16 sum;
  FORETOKEN_SIMD Dot from(I32x16 start) { return {start}; }
  __attribute__((always_inline)) void step(int, Bytes w, Bytes a) {
    for (int l = 0; l < 16; ++l) {
      const uint8_t* u = w.v + 4 * l;
      const auto* x = reinterpret_cast<const int8_t*>(a.v) + 4 * l;
      sum.v[l] += u[0] * x[0] + u[1] * x[1] + u[2] * x[2] + u[3] * x[3];
    }
  }
  __attribute__((always_inline)) I32x16 finish() const { return sum; }
};
FORETOKEN_SIMD Bytes byte_operand(Bytes stored) { return stored; }
struct ByteDot {
  I32x16 sum;
  FORETOKEN_SIMD ByteDot from(I32x16 start) { return {start}; }
  __attribute__((always_inline)) void step(int, Bytes w, Bytes a) {
    for (int l = 0; l < 16; ++l) {
      const uint8_t* u = w.v + 4 * l;
      const auto* x = reinterpret_cast<const int8_t*>(a.v) + 4 * l;
      sum.v[l] += (u[0] - 128) * x[0] + (u[1] - 128) * x[1] + (u[2] - 128) * x[2] + (u[3] - 128) * x[3];
    }
  }
  __attribute__((always_inline)) I32x16 finish() const { return sum; }
};

#elif FORETOKEN_ISA_LEVEL == 1

inline constexpr bool kWideDot = false;
inline constexpr int kByteBias = 0;

FORETOKEN_SIMD __m256i widen_pairs(__m256i words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }

template <int kMax>
struct Dot {
  static constexpr int kBurst = 32767 / (2 * 127 * kMax);  // steps whose 16-bit sums cannot overflow
  __m256i words_lo, words_hi;
  I32x16 sum;
  FORETOKEN_SIMD Dot from(I32x16 start) { return {_mm256_setzero_si256(), _mm256_setzero_si256(), start}; }
  __attribute__((always_inline)) void step(int number, Bytes w, Bytes a) {
    const __m256i lo = _mm256_maddubs_epi16(w.lo, a.lo), hi = _mm256_maddubs_epi16(w.hi, a.hi);
    if (number % kBurst == 0 && number > 0) widen();
    words_lo = number % kBurst == 0 ? lo : _mm256_add_epi16(words_lo, lo);
    words_hi = number % kBurst == 0 ? hi : _mm256_add_epi16(words_hi, hi);
    // Keeps the compiler from computing all products first and spilling them.
    asm("" : "+x"(words_lo), "+x"(words_hi));
  }
  __attribute__((always_inline)) I32x16 finish() {
    widen();
    return sum;
  }

 private:
  __attribute__((always_inline)) void widen() {
    sum = {_mm256_add_epi32(sum.lo, widen_pairs(words_lo)), _mm256_add_epi32(sum.hi, widen_pairs(words_hi))};
  }
};
// The sign moves from the weight to the activation: |w| <= 128 and |a| <= 127, so a pair fits 16 bits.
FORETOKEN_SIMD Bytes byte_operand(Bytes stored) {
  const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
  return {_mm256_xor_si256(stored.lo, flip), _mm256_xor_si256(stored.hi, flip)};
}
struct ByteDot {
  I32x16 sum;
  FORETOKEN_SIMD ByteDot from(I32x16 start) { return {start}; }
  __attribute__((always_inline)) void step(int, Bytes w, Bytes a) {
    const __m256i lo = _mm256_maddubs_epi16(_mm256_abs_epi8(w.lo), _mm256_sign_epi8(a.lo, w.lo));
    const __m256i hi = _mm256_maddubs_epi16(_mm256_abs_epi8(w.hi), _mm256_sign_epi8(a.hi, w.hi));
    sum = {_mm256_add_epi32(sum.lo, widen_pairs(lo)), _mm256_add_epi32(sum.hi, widen_pairs(hi))};
    asm("" : "+x"(sum.lo), "+x"(sum.hi));
  }
  __attribute__((always_inline)) I32x16 finish() const { return sum; }
};

#else

inline constexpr bool kWideDot = true;
inline constexpr int kByteBias = -128;

template <int kMax>
struct Dot {
  I32x16 sum;
  FORETOKEN_SIMD Dot from(I32x16 start) { return {start}; }
  __attribute__((always_inline)) void step(int, Bytes w, Bytes a) { sum.v = _mm512_dpbusd_epi32(sum.v, w.v, a.v); }
  __attribute__((always_inline)) I32x16 finish() const { return sum; }
};
FORETOKEN_SIMD Bytes byte_operand(Bytes stored) { return stored; }
using ByteDot = Dot<255>;

#endif

// Towards the second-level cache, since the nearer one is too small for what memory has under way, and towards the first.
FORETOKEN_SIMD void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }
FORETOKEN_SIMD void prefetch_near(const void* p) { __builtin_prefetch(p); }

// ---- Compile-time loops: body(Index<0>{}), body(Index<1>{}), ... Write the body as [&](auto i) FORETOKEN_INLINE_LAMBDA {...}.

template <int kValue>
struct Index { static constexpr int value = kValue; };

#define FORETOKEN_INLINE_LAMBDA __attribute__((always_inline))

template <int kBegin, int kEnd, class Body>
FORETOKEN_SIMD void unroll(const Body& body) {
  if constexpr (kBegin < kEnd) {
    body(Index<kBegin>{});
    unroll<kBegin + 1, kEnd>(body);
  }
}

// ---- Transcendentals: canonical::exp and its relatives, expression by expression.

// exp(limited) as p * 2^n.
FORETOKEN_SIMD F32x16 exp_fraction(F32x16 limited, F32x16 n) {
  F32x16 r = fnma(n, set_f32(0.693145751953125f), limited);
  r = fnma(n, set_f32(1.42860682030941723212e-6f), r);
  F32x16 p = set_f32(1.0f / 5040);
  p = fma(p, r, set_f32(1.0f / 720));
  p = fma(p, r, set_f32(1.0f / 120));
  p = fma(p, r, set_f32(1.0f / 24));
  p = fma(p, r, set_f32(1.0f / 6));
  p = fma(p, r, set_f32(0.5f));
  p = fma(p, r, set_f32(1.0f));
  return fma(p, r, set_f32(1.0f));
}
FORETOKEN_SIMD I32x16 exp_exponent(F32x16 limited) { return to_i32(mul(limited, set_f32(1.44269504088896341f))); }

#if FORETOKEN_ISA_LEVEL < 2

FORETOKEN_SIMD F32x16 exp(F32x16 x) {
  const F32x16 limited = min(max(x, set_f32(-87.5f)), set_f32(88.8f));
  const I32x16 exponent = exp_exponent(limited);
  const I32x16 half = shift_right_signed<1>(exponent);
  const I32x16 rest = sub(exponent, half);
  F32x16 y = mul(mul(exp_fraction(limited, to_f32(exponent)), bits_f32(shift_left<23>(add(half, set_i32(127))))),
                 bits_f32(shift_left<23>(add(rest, set_i32(127)))));
  y = select(less(x, set_f32(-87.33654f)), zero_f32(), y);
  y = select(less(set_f32(88.72283f), x), set_f32(__builtin_inff()), y);
  return select(is_nan(x), x, y);
}

#else

// One instruction multiplies by the power; what is too large, too small (flushed, as everywhere) or not a number comes out of it as the
// definition wants it. Equal to the above for every one of the 2^32 floats.
FORETOKEN_SIMD F32x16 exp(F32x16 x) {
  const F32x16 limited = min(max(x, set_f32(-87.5f)), set_f32(89.5f));  // a NaN stays
  const F32x16 n = to_f32(exp_exponent(limited));
  return {_mm512_scalef_ps(exp_fraction(limited, n).v, n.v)};
}

#endif

FORETOKEN_SIMD F32x16 sigmoid(F32x16 x) { return div(set_f32(1.0f), add(set_f32(1.0f), exp(negate(x)))); }
FORETOKEN_SIMD F32x16 silu(F32x16 x) { return div(x, add(set_f32(1.0f), exp(negate(x)))); }

FORETOKEN_SIMD F32x16 log1p_unit(F32x16 y) {
  const F32x16 z = div(y, add(set_f32(2.0f), y));
  const F32x16 s = mul(z, z);
  F32x16 p = set_f32(1.0f / 17);
  p = fma(p, s, set_f32(1.0f / 15));
  p = fma(p, s, set_f32(1.0f / 13));
  p = fma(p, s, set_f32(1.0f / 11));
  p = fma(p, s, set_f32(1.0f / 9));
  p = fma(p, s, set_f32(1.0f / 7));
  p = fma(p, s, set_f32(1.0f / 5));
  p = fma(p, s, set_f32(1.0f / 3));
  p = fma(p, s, set_f32(1.0f));
  return mul(mul(set_f32(2.0f), z), p);
}
FORETOKEN_SIMD F32x16 softplus(F32x16 x) {
  return add(max(x, zero_f32()), log1p_unit(exp(negate(absolute(x)))));
}

// ---- Four-column matrices: lane l of out[j] is p[4 * l + j].

#if FORETOKEN_ISA_LEVEL == 0

FORETOKEN_SIMD void load_columns_of_4(const float* p, F32x16 (&out)[4]) {
  for (int j = 0; j < 4; ++j)
    for (int l = 0; l < 16; ++l) out[j].v[l] = p[4 * l + j];
}

#elif FORETOKEN_ISA_LEVEL == 1

FORETOKEN_SIMD void load_columns_of_4_half(const float* p, __m256 (&out)[4]) {
  const __m256 r0 = _mm256_loadu_ps(p), r1 = _mm256_loadu_ps(p + 8), r2 = _mm256_loadu_ps(p + 16), r3 = _mm256_loadu_ps(p + 24);
  const __m256 a0 = _mm256_permute2f128_ps(r0, r2, 0x20), a1 = _mm256_permute2f128_ps(r0, r2, 0x31);
  const __m256 a2 = _mm256_permute2f128_ps(r1, r3, 0x20), a3 = _mm256_permute2f128_ps(r1, r3, 0x31);
  const __m256 b0 = _mm256_unpacklo_ps(a0, a1), b1 = _mm256_unpackhi_ps(a0, a1);
  const __m256 b2 = _mm256_unpacklo_ps(a2, a3), b3 = _mm256_unpackhi_ps(a2, a3);
  out[0] = _mm256_shuffle_ps(b0, b2, 0x44);
  out[1] = _mm256_shuffle_ps(b0, b2, 0xEE);
  out[2] = _mm256_shuffle_ps(b1, b3, 0x44);
  out[3] = _mm256_shuffle_ps(b1, b3, 0xEE);
}
FORETOKEN_SIMD void load_columns_of_4(const float* p, F32x16 (&out)[4]) {
  __m256 lo[4], hi[4];
  load_columns_of_4_half(p, lo);
  load_columns_of_4_half(p + 32, hi);
  FORETOKEN_UNROLL for (int j = 0; j < 4; ++j) out[j] = {lo[j], hi[j]};
}

#else

FORETOKEN_SIMD void load_columns_of_4(const float* p, F32x16 (&out)[4]) {
  const __m512 r0 = _mm512_loadu_ps(p), r1 = _mm512_loadu_ps(p + 16), r2 = _mm512_loadu_ps(p + 32), r3 = _mm512_loadu_ps(p + 48);
  const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  FORETOKEN_UNROLL for (int j = 0; j < 4; ++j) {
    const __m512i index = _mm512_add_epi32(first, _mm512_set1_epi32(j));
    out[j] = {_mm512_shuffle_f32x4(_mm512_permutex2var_ps(r0, index, r1), _mm512_permutex2var_ps(r2, index, r3), 0x44)};
  }
}

#endif

}  // namespace
}  // namespace foretoken::cpu::FORETOKEN_ISA
