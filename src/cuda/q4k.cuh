// What the kernels of Q4_K and Q6_K products share. Shape contract (decision 008): a super-block of 256 inputs gives
// one fp32 value from its sub-blocks' sums in ascending order; super-blocks of a slice are added in ascending order
// from +0; slices likewise.
//
// A packed super-block of sixteen outputs is kBytes at (tile of outputs * super-blocks + super-block): codes [4 tiles
// of 64 inputs][lane][4 words], scales [g][sub-block][half], minimums [lane: g, t][half][sub-blocks 2 t, 2 t + 1],
// factors [g][half] of two f16 (Q4_K). Codes' low bits [4 chunks of 64 inputs][lane][half][2 words], their high bits
// [2][lane][chunk of the two][half], scales [g][sub-block][half], factors [g][half] (Q6_K). g = lane / 4, t = lane % 4,
// half 0 is output g and half 1 output g + 8.
#pragma once

#include "cuda/bulk.cuh"
#include "cuda/linear.cuh"

namespace foretoken::cuda {

// kMostUnits: super-blocks of a slice, which one block of threads adds up.
struct Q4K {
  static constexpr int kBytes = 2368, kScalesAt = 2048, kMinimumsAt = 2176, kFactorsAt = 2304, kMostUnits = 20;
  static constexpr bool kHasMinimums = true;
};
struct Q6K {
  static constexpr int kBytes = 3360, kHighAt = 2048, kScalesAt = 3072, kFactorsAt = 3328, kMostUnits = 12;
  static constexpr bool kHasMinimums = false;
};
static_assert(Q4K::kBytes % 16 == 0);
static_assert(Q6K::kBytes % 16 == 0);

// Of the number of inputs alone.
struct Slices {
  int units = 0, count = 1;
  __host__ __device__ int begin(int slice) const { return slice * units / count; }
  __host__ __device__ int most() const { return (units + count - 1) / count; }
};
template <class Format>
Slices slices_of(int64_t cols) {
  const int units = static_cast<int>(cols / 256);
  return {units, (units + Format::kMostUnits - 1) / Format::kMostUnits};
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

// Inputs 2 i and 2 i + 1 of a word: 128 + code has the code's bits at the end of its bf16 mantissa.
FORETOKEN_DEVICE uint32_t codes(uint32_t w, int i) {
  return minus_128(masked_or(w >> 4 * i, 0x000F000Fu, 0x43004300u));
}

FORETOKEN_DEVICE float small(uint32_t bytes, int i) {
  return __fadd_rn(__uint_as_float(__byte_perm(bytes, 0x4B000000u, 0x7440 + i)), -8388608.0f);
}

FORETOKEN_DEVICE float half_of(uint32_t pair, int which) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16 * which)));
}

constexpr uint32_t kOnes = 0x3F803F80u;

// The sums of a super-block's eight sub-blocks of inputs, of eight columns, as three bf16 of equal sum: the B operand
// that meets the minimums. Inputs 8 t ... of sub-block j of column g are x(j).
struct Totals {
  uint32_t high, middle, low;
};
template <class Format, class Inputs>
FORETOKEN_DEVICE Totals totals_of(Inputs x) {
  if constexpr (!Format::kHasMinimums) return {};
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
  float mine[2] = {};  // of column g, sub-blocks 2 t and 2 t + 1
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    float sum[4] = {};  // columns 2 t, 2 t + 1
    const uint4 v = x(j);
    mma(sum, ones, v.x, v.y);
    mma(sum, ones, v.z, v.w);
    const float even = __shfl_sync(0xFFFFFFFFu, sum[0], g >> 1), odd = __shfl_sync(0xFFFFFFFFu, sum[1], g >> 1);
    if (t == j / 2) mine[j % 2] = g & 1 ? odd : even;
  }
  float high[2], middle[2], low[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    high[i] = __bfloat162float(to_bf16(mine[i]));
    const float rest = __fsub_rn(mine[i], high[i]);
    middle[i] = __bfloat162float(to_bf16(rest));
    low[i] = __fsub_rn(rest, middle[i]);
  }
  return {bf16_pair(high[0], high[1]), bf16_pair(middle[0], middle[1]), bf16_pair(low[0], low[1])};
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

// Of many blocks of columns the compiler would begin too many at once for the registers.
template <int kBlocks>
FORETOKEN_DEVICE void product(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kBlocks > 2) mma_in_order(sum, a, b0, b1);
  else mma(sum, a, b0, b1);
}

// The values of kTiles packed super-blocks, the first at `at`, for outputs g and g + 8 of each and columns 2 t and 2 t
// + 1 of every block of eight columns. inputs_at(j) of column g of block b are x(b, j), the block's sums totals(b).
template <int kTiles, int kBlocks, class Inputs, class Sums>
FORETOKEN_DEVICE void super_blocks(Q4K, const uint8_t* at, Inputs x, Sums totals, float (&value)[kTiles][kBlocks][4]) {
  const int lane = threadIdx.x & 31, g = lane >> 2;
  float scaled[kTiles][kBlocks][4] = {};
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
    uint4 c[kTiles];
    uint32_t scales[kTiles];
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      c[k] = *reinterpret_cast<const uint4*>(at + k * Q4K::kBytes + tile * 512 + lane * 16);
      scales[k] = *reinterpret_cast<const uint32_t*>(at + k * Q4K::kBytes + Q4K::kScalesAt + g * 16 + tile * 4);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t a[kTiles][2][4];
      float scale[kTiles][2];
#pragma unroll
      for (int k = 0; k < kTiles; ++k) {
        const uint32_t low = h ? c[k].y : c[k].x, high = h ? c[k].w : c[k].z;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[k][i / 2][i % 2 * 2] = codes(low, i);
          a[k][i / 2][i % 2 * 2 + 1] = codes(high, i);
        }
        scale[k][0] = small(scales[k], 2 * h);
        scale[k][1] = small(scales[k], 2 * h + 1);
      }
      constexpr int kGroup = kBlocks > 2 ? 2 : 1;  // blocks whose chains run side by side
#pragma unroll
      for (int first = 0; first < kBlocks; first += kGroup) {
        uint4 v[kGroup];
        float dot[kGroup][kTiles][4] = {};
#pragma unroll
        for (int b = 0; b < kGroup; ++b) v[b] = x(first + b, 2 * tile + h);
#pragma unroll
        for (int b = 0; b < kGroup; ++b)
#pragma unroll
          for (int k = 0; k < kTiles; ++k) product<kBlocks>(dot[b][k], a[k][0], v[b].x, v[b].y);
#pragma unroll
        for (int b = 0; b < kGroup; ++b)
#pragma unroll
          for (int k = 0; k < kTiles; ++k) product<kBlocks>(dot[b][k], a[k][1], v[b].z, v[b].w);
#pragma unroll
        for (int b = 0; b < kGroup; ++b)
#pragma unroll
          for (int k = 0; k < kTiles; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              scaled[k][first + b][i] = fma(scale[k][i / 2], dot[b][k][i], scaled[k][first + b][i]);
      }
    }
  }
  uint32_t minimums[kTiles][2];
  uint2 factors[kTiles];
#pragma unroll
  for (int k = 0; k < kTiles; ++k) {
    const uint32_t m = *reinterpret_cast<const uint32_t*>(at + k * Q4K::kBytes + Q4K::kMinimumsAt + lane * 4);
    minimums[k][0] = minus_128(__byte_perm(m, 0x43434343u, 0x4140));
    minimums[k][1] = minus_128(__byte_perm(m, 0x43434343u, 0x4342));
    factors[k] = *reinterpret_cast<const uint2*>(at + k * Q4K::kBytes + Q4K::kFactorsAt + g * 8);
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const Totals total = totals(b);
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      const uint32_t a[4] = {minimums[k][0], minimums[k][1], minimums[k][0], minimums[k][1]};
      float least[4] = {};
      product<kBlocks>(least, a, total.high, total.middle);
      product<kBlocks>(least, a, total.low, 0u);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t f = i < 2 ? factors[k].x : factors[k].y;
        value[k][b][i] = fma(-half_of(f, 1), least[i], __fmul_rn(half_of(f, 0), scaled[k][b][i]));
      }
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

template <int kTiles, int kBlocks, class Inputs, class Sums>
FORETOKEN_DEVICE void super_blocks(Q6K, const uint8_t* at, Inputs x, Sums, float (&value)[kTiles][kBlocks][4]) {
  const int lane = threadIdx.x & 31, g = lane >> 2;
  float scaled[kTiles][kBlocks][4] = {};
#pragma unroll
  for (int chunk = 0; chunk < 4; ++chunk) {
    uint4 low[kTiles];
    uint2 high[kTiles], scales[kTiles];
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      const uint8_t* from = at + k * Q6K::kBytes;
      low[k] = *reinterpret_cast<const uint4*>(from + chunk * 512 + lane * 16);
      high[k] = *reinterpret_cast<const uint2*>(from + Q6K::kHighAt + chunk / 2 * 512 + lane * 16 + chunk % 2 * 8);
      scales[k] = *reinterpret_cast<const uint2*>(from + Q6K::kScalesAt + g * 32 + chunk * 8);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {  // 32 inputs: two sub-blocks
      uint32_t a[kTiles][2][4];
      float scale[kTiles][2][2];
#pragma unroll
      for (int k = 0; k < kTiles; ++k) {
        const uint32_t first = h ? low[k].y : low[k].x, second = h ? low[k].w : low[k].z,
                       s = h ? scales[k].y : scales[k].x;
#pragma unroll
        for (int u = 0; u < 2; ++u) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            a[k][u][2 * i] = six_bit_codes(first, 2 * u + i, high[k].x, 4 * h + 2 * u + i);
            a[k][u][2 * i + 1] = six_bit_codes(second, 2 * u + i, high[k].y, 4 * h + 2 * u + i);
          }
          scale[k][u][0] = signed_byte(s, 2 * u);
          scale[k][u][1] = signed_byte(s, 2 * u + 1);
        }
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const uint4 v = x(b, 2 * chunk + h);
#pragma unroll
        for (int k = 0; k < kTiles; ++k)
#pragma unroll
          for (int u = 0; u < 2; ++u) {
            float dot[4] = {};
            product<kBlocks>(dot, a[k][u], u ? v.z : v.x, u ? v.w : v.y);
#pragma unroll
            for (int i = 0; i < 4; ++i) scaled[k][b][i] = fma(scale[k][u][i / 2], dot[i], scaled[k][b][i]);
          }
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kTiles; ++k) {
    const uint32_t factors = *reinterpret_cast<const uint32_t*>(at + k * Q6K::kBytes + Q6K::kFactorsAt + g * 4);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < 4; ++i) value[k][b][i] = __fmul_rn(half_of(factors, i / 2), scaled[k][b][i]);
  }
}

}  // namespace foretoken::cuda
