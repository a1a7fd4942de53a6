// What the kernels of Q4_K and Q6_K products share. Shape contract (decisions 008 and 020): a super-block of 256 inputs
// gives one fp32 value; super-blocks of a slice are added in ascending order from +0; slices likewise. Q4_K: codes
// times their scale are integers below 1,024, exact in f16, so that the inputs of a super-block are one chain; they are
// f16 by a power of two of their row and super-block. Q6_K: sums of sub-blocks, times their scales, in ascending order.
//
// A packed super-block of sixteen outputs is kBytes at (tile of outputs * super-blocks + super-block): codes [4 tiles
// of 64 inputs][lane][4 words], scales [g][sub-block][half], minimums [lane: g, t][half][sub-blocks 2 t, 2 t + 1],
// factors [g][half] of two f16 (Q4_K). Codes' low bits [4 chunks of 64 inputs][lane][half][2 words], their high bits
// [2][lane][chunk of the two][half], scales [g][sub-block][half], factors [g][half] (Q6_K). g = lane / 4, t = lane % 4,
// half 0 is output g and half 1 output g + 8.
#pragma once

#include "cuda/bulk.cuh"
#include "cuda/lift.h"
#include "cuda/linear.cuh"

namespace foretoken::cuda {

struct Q4K {
  static constexpr int kBytes = kQ4KBlock.bytes, kMostUnits = kQ4KBlock.most_units;
  static constexpr int kScalesAt = 2048, kMinimumsAt = 2176, kFactorsAt = 2304;
  static constexpr bool kHasMinimums = true;
};
struct Q6K {
  static constexpr int kBytes = kQ6KBlock.bytes, kMostUnits = kQ6KBlock.most_units;
  static constexpr int kHighAt = 2048, kScalesAt = 3072, kFactorsAt = 3328;
  static constexpr bool kHasMinimums = false;
};
static_assert(Q4K::kBytes % 16 == 0);
static_assert(Q6K::kBytes % 16 == 0);

template <class Format>
Slices slices_of(int64_t cols) {
  return cut(cols, Format::kMostUnits);
}

FORETOKEN_DEVICE uint32_t minus_128(uint32_t lifted) {
  const uint32_t offset = 0x43004300u;
  const __nv_bfloat162 pair =
      __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&lifted), *reinterpret_cast<const __nv_bfloat162*>(&offset));
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// a & mask | bits as one instruction.
FORETOKEN_DEVICE uint32_t masked_or(uint32_t a, uint32_t mask, uint32_t bits) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(a), "r"(mask), "r"(bits));
  return r;
}

// The A operand of inputs 4 k to 4 k + 3 of a word of each of the outputs g and g + 8: codes times their scales, whose
// pair `scales` has g's and that of g + 8. A code's bits alone are that many 2^-24 of f16, below its normal numbers,
// which these instructions and the matrix unit's take as they are: so is the product, exactly. Codes that lie four bits
// up are left there, sixteen times as large: what they meet is that much less (lift).
FORETOKEN_DEVICE void scaled_codes(uint32_t low, uint32_t high, int k, uint32_t scales, uint32_t (&a)[4]) {
  const __half2 pair = *reinterpret_cast<const __half2*>(&scales), of_low = __low2half2(pair),
                of_high = __high2half2(pair);
  const auto product = [](uint32_t codes, __half2 scale) {
    const __half2 result = __hmul2(*reinterpret_cast<const __half2*>(&codes), scale);
    return *reinterpret_cast<const uint32_t*>(&result);
  };
  low >>= 8 * k, high >>= 8 * k;
  a[0] = product(low & 0x000F000Fu, of_low);
  a[1] = product(high & 0x000F000Fu, of_high);
  a[2] = product(low & 0x00F000F0u, of_low);
  a[3] = product(high & 0x00F000F0u, of_high);
}
// Bytes 2 i and 2 i + 1 of a word as f16: 1024 + byte has the byte's bits at the end of its mantissa.
FORETOKEN_DEVICE uint32_t scale_pair(uint32_t bytes, int i) {
  uint32_t scale;
  asm("add.f16x2 %0, %1, %2;"
      : "=r"(scale)
      : "r"(__byte_perm(bytes, 0x64646464u, 0x4140 + i * 0x0202)), "r"(0xE400E400u));
  return scale;
}

FORETOKEN_DEVICE float half_of(uint32_t pair, int which) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16 * which)));
}

constexpr uint32_t kOnes = 0x3F803F80u;

// The sums of a super-block's eight sub-blocks of inputs, of eight columns, as three bf16 of equal sum: the B operand
// that meets the minimums. Inputs 8 t ... of sub-block j of column g are x[j]. `power`: see lift.
struct Totals {
  uint32_t high, middle, low;
  float power[2];
};
template <class Format>
FORETOKEN_DEVICE Totals totals_of(const uint4 (&x)[8]) {
  if constexpr (!Format::kHasMinimums) return {};
  const int g = (threadIdx.x & 31) >> 2;
  // The inputs are the A operand, whose rows g have half of them and rows g + 8 the others; B's column j has ones for
  // sub-block j: what the others add is zero.
  float sums[2][4] = {};  // of column g, sub-blocks 2 t and 2 t + 1, either half
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t ones = g == j ? kOnes : 0u, a[4] = {x[j].x, x[j].y, x[j].z, x[j].w};
    mma(sums[j % 2], a, ones, ones);
  }
  float high[2], middle[2], low[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sum = __fadd_rn(__fadd_rn(sums[0][i], sums[0][i + 2]), __fadd_rn(sums[1][i], sums[1][i + 2]));
    high[i] = __bfloat162float(to_bf16(sum));
    const float rest = __fsub_rn(sum, high[i]);
    middle[i] = __bfloat162float(to_bf16(rest));
    low[i] = __fsub_rn(rest, middle[i]);
  }
  return {bf16_pair(high[0], high[1]), bf16_pair(middle[0], middle[1]), bf16_pair(low[0], low[1]), {}};
}

// A lane's eight inputs of 32 of one column: of a row's bf16 at its `from`, inputs [32 j, 32 j + 32). Q4_K has
// sub-blocks of 32 inputs, so any order of them will do, and eight in a row are one load; sub-blocks of 16 are one
// instruction each.
template <class Format>
FORETOKEN_DEVICE uint4 inputs_at(const uint16_t* from, int j, int t) {
  if constexpr (Format::kHasMinimums) return *reinterpret_cast<const uint4*>(from + j * 32 + t * 8);
  const uint2 low = *reinterpret_cast<const uint2*>(from + j * 32 + t * 4),
              high = *reinterpret_cast<const uint2*>(from + j * 32 + 16 + t * 4);
  return make_uint4(low.x, low.y, high.x, high.y);
}

// The inputs of column g in a super-block from bf16 to f16, times a power of two that brings the largest of them to
// [2^15, 2^16), and those that meet codes four bits up a sixteenth of that: exactly, but for what is 2^25 times smaller
// than the largest and comes to less than it is. The result undoes the power and the unit of the codes; it is infinite
// where inputs are not finite, or too large (lift.h).
FORETOKEN_DEVICE float lift(uint4 (&x)[8]) {
  uint32_t pairs = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    for (const uint32_t w : {x[j].x, x[j].y, x[j].z, x[j].w}) pairs = __vmaxu2(pairs, w & 0x7FFF7FFFu);
  for (int s = 1; s < 4; s *= 2) pairs = __vmaxu2(pairs, __shfl_xor_sync(0xFFFFFFFFu, pairs, s));
  const Lift lift = lift_of(static_cast<int>(max(pairs & 0xFFFFu, pairs >> 16) >> 7));
  // f16's exponent is what bf16's has above the floor; three bits more of mantissa stay empty.
  const auto lifted = [](uint32_t w, uint32_t floor) {
    return (__vmaxu2(w & 0x7FFF7FFFu, floor) - floor) * 8 | (w & 0x80008000u);
  };
  const uint32_t floor = static_cast<uint32_t>(lift.floor) * 0x00800080u, sixteenth = floor + 4 * 0x00800080u;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    x[j] =
        make_uint4(lifted(x[j].x, floor), lifted(x[j].y, sixteenth), lifted(x[j].z, floor), lifted(x[j].w, sixteenth));
  return __int_as_float(lift.back << 23);
}
// Of the columns 2 t and 2 t + 1.
FORETOKEN_DEVICE void lift(uint4 (&x)[8], float (&power)[2]) {
  const float own = lift(x);
  const int t = threadIdx.x & 3;
  power[0] = __shfl_sync(0xFFFFFFFFu, own, t * 8);
  power[1] = __shfl_sync(0xFFFFFFFFu, own, t * 8 + 4);
}

// The values of a packed super-block for outputs g and g + 8 and columns 2 t and 2 t + 1 of every block of eight
// columns. inputs_at(j) of column g of block b are x(b, j), the block's sums totals(b).
template <int kBlocks, class Inputs, class Sums>
FORETOKEN_DEVICE void super_block(Q4K, const uint8_t* at, Inputs x, Sums totals, float (&value)[kBlocks][4]) {
  const int lane = threadIdx.x & 31, g = lane >> 2;
  float dot[kBlocks][4] = {};
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
    const uint4 c = *reinterpret_cast<const uint4*>(at + tile * 512 + lane * 16);
    const uint32_t scales = *reinterpret_cast<const uint32_t*>(at + Q4K::kScalesAt + g * 16 + tile * 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t a[2][4];
      const uint32_t pair = scale_pair(scales, h);
#pragma unroll
      for (int k = 0; k < 2; ++k) scaled_codes(h ? c.y : c.x, h ? c.w : c.z, k, pair, a[k]);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const uint4 v = x(b, 2 * tile + h);
        mma_f16(dot[b], a[0], v.x, v.y);
        mma_f16(dot[b], a[1], v.z, v.w);
      }
    }
  }
  const uint32_t m = *reinterpret_cast<const uint32_t*>(at + Q4K::kMinimumsAt + lane * 4);
  const uint32_t first = minus_128(__byte_perm(m, 0x43434343u, 0x4140)),
                 second = minus_128(__byte_perm(m, 0x43434343u, 0x4342));
  const uint32_t minimums[4] = {first, second, first, second};
  const uint2 factors = *reinterpret_cast<const uint2*>(at + Q4K::kFactorsAt + g * 8);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const Totals total = totals(b);
    float least[4] = {};
    mma(least, minimums, total.high, total.middle);
    mma(least, minimums, total.low, 0u);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t f = i < 2 ? factors.x : factors.y;
      value[b][i] = fma(-half_of(f, 1), least[i], __fmul_rn(half_of(f, 0), __fmul_rn(dot[b][i], total.power[i % 2])));
    }
  }
}

// Pair i of four: two codes less 32. Of their low bits pair i is at bit 4 i of both halves; of the high bits pair p at
// bit 2 p.
FORETOKEN_DEVICE uint32_t six_bit_codes(uint32_t low, int i, uint32_t high, int p) {
  const uint32_t moved = 2 * p >= 4 ? high >> (2 * p - 4) : high << (4 - 2 * p);
  const uint32_t lifted = masked_or(moved, 0x00300030u, masked_or(low >> 4 * i, 0x000F000Fu, 0x43004300u)),
                 offset = 0x43204320u;
  const __nv_bfloat162 pair =
      __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&lifted), *reinterpret_cast<const __nv_bfloat162*>(&offset));
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Byte i of a word of signed bytes.
FORETOKEN_DEVICE float signed_byte(uint32_t bytes, int i) {
  return __fadd_rn(__uint_as_float(__byte_perm(bytes ^ 0x80808080u, 0x4B000000u, 0x7440 + i)), -8388736.0f);
}

template <int kBlocks, class Inputs, class Sums>
FORETOKEN_DEVICE void super_block(Q6K, const uint8_t* at, Inputs x, Sums, float (&value)[kBlocks][4]) {
  const int lane = threadIdx.x & 31, g = lane >> 2;
  float scaled[kBlocks][4] = {};
#pragma unroll
  for (int chunk = 0; chunk < 4; ++chunk) {
    const uint4 low = *reinterpret_cast<const uint4*>(at + chunk * 512 + lane * 16);
    const uint2 high = *reinterpret_cast<const uint2*>(at + Q6K::kHighAt + chunk / 2 * 512 + lane * 16 + chunk % 2 * 8);
    const uint2 scales = *reinterpret_cast<const uint2*>(at + Q6K::kScalesAt + g * 32 + chunk * 8);
#pragma unroll
    for (int h = 0; h < 2; ++h) {  // 32 inputs: two sub-blocks
      uint32_t a[2][4];
      float scale[2][2];
      const uint32_t first = h ? low.y : low.x, second = h ? low.w : low.z, s = h ? scales.y : scales.x;
#pragma unroll
      for (int u = 0; u < 2; ++u) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          a[u][2 * i] = six_bit_codes(first, 2 * u + i, high.x, 4 * h + 2 * u + i);
          a[u][2 * i + 1] = six_bit_codes(second, 2 * u + i, high.y, 4 * h + 2 * u + i);
        }
        scale[u][0] = signed_byte(s, 2 * u);
        scale[u][1] = signed_byte(s, 2 * u + 1);
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const uint4 v = x(b, 2 * chunk + h);
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          float dot[4] = {};
          mma(dot, a[u], u ? v.z : v.x, u ? v.w : v.y);
#pragma unroll
          for (int i = 0; i < 4; ++i) scaled[b][i] = fma(scale[u][i / 2], dot[i], scaled[b][i]);
        }
      }
    }
  }
  const uint32_t factors = *reinterpret_cast<const uint32_t*>(at + Q6K::kFactorsAt + g * 4);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
#pragma unroll
    for (int i = 0; i < 4; ++i) value[b][i] = __fmul_rn(half_of(factors, i / 2), scaled[b][i]);
}

}  // namespace foretoken::cuda
