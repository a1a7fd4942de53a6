// One weight of any storage format, decoded from the bytes of its row: the formulas of numerics/quant.cc, element by element.
#pragma once

#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "numerics/quant.h"

namespace foretoken::cuda {

// The value is scale * code - minimum (minimum 0 without one), each product exact.
struct Code {
  float scale = 0, minimum = 0;
  int code = 0;
};

FORETOKEN_DEVICE float f16_at(const uint8_t* p) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(p[0] | p[1] << 8)));
}

static __device__ __constant__ int8_t kIq4Codes[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Sub-block k of the packed 6-bit scales and minimums of Q4_K and Q5_K.
FORETOKEN_DEVICE void six_bits(const uint8_t* p, int k, int& scale, int& minimum) {
  if (k < 4) {
    scale = p[k] & 63;
    minimum = p[k + 4] & 63;
  } else {
    scale = (p[k + 4] & 15) | (p[k - 4] >> 6) << 4;
    minimum = (p[k + 4] >> 4) | (p[k] >> 6) << 4;
  }
}

static __device__ Code code_at(QuantFormat format, const uint8_t* row, int64_t column) {
  Code c;
  const int e32 = static_cast<int>(column & 31), e = static_cast<int>(column & 255);
  const int64_t block32 = column >> 5, block256 = column >> 8;
  const auto nibble = [&](const uint8_t* p) { return e32 < 16 ? p[e32] & 15 : p[e32 - 16] >> 4; };
  const auto fifth = [&](const uint8_t* p) { return (p[e32 >> 3] >> (e32 & 7) & 1) << 4; };
  switch (format) {
    case QuantFormat::kQ8_0: {
      const uint8_t* b = row + block32 * 34;
      c.scale = f16_at(b);
      c.code = static_cast<int8_t>(b[2 + e32]);
      return c;
    }
    case QuantFormat::kQ4_0: {
      const uint8_t* b = row + block32 * 18;
      c.scale = f16_at(b);
      c.code = nibble(b + 2) - 8;
      return c;
    }
    case QuantFormat::kQ4_1: {
      const uint8_t* b = row + block32 * 20;
      c.scale = f16_at(b);
      c.minimum = -f16_at(b + 2);
      c.code = nibble(b + 4);
      return c;
    }
    case QuantFormat::kQ5_0: {
      const uint8_t* b = row + block32 * 22;
      c.scale = f16_at(b);
      c.code = (nibble(b + 6) | fifth(b + 2)) - 16;
      return c;
    }
    case QuantFormat::kQ5_1: {
      const uint8_t* b = row + block32 * 24;
      c.scale = f16_at(b);
      c.minimum = -f16_at(b + 2);
      c.code = nibble(b + 8) | fifth(b + 4);
      return c;
    }
    case QuantFormat::kIQ4_NL: {
      const uint8_t* b = row + block32 * 18;
      c.scale = f16_at(b);
      c.code = kIq4Codes[nibble(b + 2)];
      return c;
    }
    case QuantFormat::kQ2_K: {
      const uint8_t* b = row + block256 * 84;
      const int k = e >> 4;
      c.scale = __fmul_rn(f16_at(b + 80), static_cast<float>(b[k] & 15));
      c.minimum = __fmul_rn(f16_at(b + 82), static_cast<float>(b[k] >> 4));
      c.code = b[16 + 32 * (e >> 7) + (e & 31)] >> 2 * ((e >> 5) & 3) & 3;
      return c;
    }
    case QuantFormat::kQ3_K: {
      const uint8_t* b = row + block256 * 110;
      const int g = e >> 4;
      const int low = g < 8 ? b[96 + g] & 15 : b[96 + g - 8] >> 4;
      const int high = b[104 + (g & 3)] >> 2 * (g >> 2) & 3;
      c.scale = __fmul_rn(f16_at(b + 108), static_cast<float>((low | high << 4) - 32));
      c.code = b[32 + 32 * (e >> 7) + (e & 31)] >> 2 * ((e >> 5) & 3) & 3;
      if ((b[e & 31] >> (e >> 5) & 1) == 0) c.code -= 4;
      return c;
    }
    case QuantFormat::kQ4_K:
    case QuantFormat::kQ5_K: {
      const bool five = format == QuantFormat::kQ5_K;
      const uint8_t* b = row + block256 * (five ? 176 : 144);
      const int k = e >> 5, l = e & 31;
      int scale, minimum;
      six_bits(b + 4, k, scale, minimum);
      c.scale = __fmul_rn(f16_at(b), static_cast<float>(scale));
      c.minimum = __fmul_rn(f16_at(b + 2), static_cast<float>(minimum));
      const uint8_t byte = b[(five ? 48 : 16) + 32 * (k >> 1) + l];
      c.code = k & 1 ? byte >> 4 : byte & 15;
      if (five) c.code |= (b[16 + l] >> k & 1) << 4;
      return c;
    }
    case QuantFormat::kQ6_K: {
      const uint8_t* b = row + block256 * 210;
      const int n = e >> 7, j = (e >> 5) & 3, l = e & 31;
      c.scale = __fmul_rn(f16_at(b + 208), static_cast<float>(static_cast<int8_t>(b[192 + (e >> 4)])));
      const int low = b[64 * n + 32 * (j & 1) + l] >> 4 * (j >> 1) & 15;
      const int high = b[128 + 32 * n + l] >> 2 * j & 3;
      c.code = (low | high << 4) - 32;
      return c;
    }
    case QuantFormat::kIQ4_XS: {
      const uint8_t* b = row + block256 * 136;
      const int k = e >> 5;
      const int low = b[4 + (k >> 1)] >> 4 * (k & 1) & 15;
      const int high = (b[2] | b[3] << 8) >> 2 * k & 3;
      c.scale = __fmul_rn(f16_at(b), static_cast<float>((low | high << 4) - 32));
      c.code = kIq4Codes[nibble(b + 8 + 16 * k)];
      return c;
    }
    default:
      return c;
  }
}

// The value itself, as `dequantize` decodes it.
static __device__ float value_at(QuantFormat format, const uint8_t* row, int64_t column) {
  switch (format) {
    case QuantFormat::kF32: {
      const uint8_t* p = row + 4 * column;
      return __uint_as_float(p[0] | p[1] << 8 | p[2] << 16 | static_cast<uint32_t>(p[3]) << 24);
    }
    case QuantFormat::kF16: return f16_at(row + 2 * column);
    case QuantFormat::kBF16: {
      const uint8_t* p = row + 2 * column;
      return __uint_as_float(static_cast<uint32_t>(p[0] | p[1] << 8) << 16);
    }
    default: {
      const Code c = code_at(format, row, column);
      const float product = __fmul_rn(c.scale, static_cast<float>(c.code));
      const bool has_min = format == QuantFormat::kQ4_1 || format == QuantFormat::kQ5_1 || format == QuantFormat::kQ2_K ||
                           format == QuantFormat::kQ4_K || format == QuantFormat::kQ5_K;
      return has_min ? __fsub_rn(product, c.minimum) : product;
    }
  }
}

// A token's row of a table, value by value.
struct TokenRow {
  QuantFormat format;
  const uint8_t* row;
  __device__ __forceinline__ float operator[](int64_t i) const { return value_at(format, row, i); }
};
FORETOKEN_DEVICE TokenRow token_row(const TokenTable& table, int32_t token) {
  return {table.format, table.rows + static_cast<size_t>(table.order ? table.order[token] : token) * table.row_bytes};
}

}  // namespace foretoken::cuda
