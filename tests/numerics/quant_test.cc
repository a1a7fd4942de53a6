// Block formats: decoding against formulas written a second time, element by element, in double; names, numbers and
// sizes.
#include "numerics/quant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "numerics/dtype.h"

namespace foretoken {
namespace {

constexpr QuantFormat kAllFormats[] = {
    QuantFormat::kF32,  QuantFormat::kF16,  QuantFormat::kBF16, QuantFormat::kQ8_0,   QuantFormat::kQ4_0,
    QuantFormat::kQ4_1, QuantFormat::kQ5_0, QuantFormat::kQ5_1, QuantFormat::kIQ4_NL, QuantFormat::kQ2_K,
    QuantFormat::kQ3_K, QuantFormat::kQ4_K, QuantFormat::kQ5_K, QuantFormat::kQ6_K,   QuantFormat::kIQ4_XS};

// ---- The formulas again, from the description of the formats: value of element e, in double.

int bits(uint64_t value, int shift, int count) { return static_cast<int>(value >> shift & ((1u << count) - 1)); }

double half(const uint8_t* p) {
  const int sign = p[1] >> 7, exponent = p[1] >> 2 & 31, mantissa = (p[1] & 3) << 8 | p[0];
  double value = exponent == 31  ? (mantissa ? std::nan("") : HUGE_VAL)
                 : exponent == 0 ? std::ldexp(mantissa, -24)
                                 : std::ldexp(1024 + mantissa, exponent - 25);
  return sign ? -value : value;
}

constexpr int kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

int nibble_of_32(const uint8_t* q, int e) { return e < 16 ? q[e] & 15 : q[e - 16] >> 4; }

int bit_of_32(const uint8_t* h, int e) { return h[e / 8] >> e % 8 & 1; }

// The difference of two doubles that each hold an exact product, rounded once to float.
float once(double product, double subtracted) { return static_cast<float>(product - subtracted); }

float expected_value(QuantFormat format, const uint8_t* p, int e) {
  const int n = e / 128, rr = e % 128, j = rr / 32, l = rr % 32, k = e / 32;
  switch (format) {
    case QuantFormat::kQ8_0:
      return static_cast<float>(half(p) * static_cast<int8_t>(p[2 + e]));
    case QuantFormat::kQ4_0:
      return static_cast<float>(half(p) * (nibble_of_32(p + 2, e) - 8));
    case QuantFormat::kQ4_1:
      return once(half(p) * nibble_of_32(p + 4, e), -half(p + 2));
    case QuantFormat::kQ5_0:
      return static_cast<float>(half(p) * ((nibble_of_32(p + 6, e) | bit_of_32(p + 2, e) << 4) - 16));
    case QuantFormat::kQ5_1:
      return once(half(p) * (nibble_of_32(p + 8, e) | bit_of_32(p + 4, e) << 4), -half(p + 2));
    case QuantFormat::kIQ4_NL:
      return static_cast<float>(half(p) * kTable[nibble_of_32(p + 2, e)]);
    case QuantFormat::kQ2_K: {
      const int s = p[e / 16];
      return once(half(p + 80) * (s & 15) * bits(p[16 + 32 * n + l], 2 * j, 2), half(p + 82) * (s >> 4));
    }
    case QuantFormat::kQ3_K: {
      const uint8_t* S = p + 96;
      const int g = e / 16, q = bits(p[32 + 32 * n + l], 2 * j, 2) - (bits(p[l], 4 * n + j, 1) ? 0 : 4);
      const int low = g < 8 ? S[g] & 15 : S[g - 8] >> 4, high = bits(S[8 + g % 4], 2 * (g / 4), 2);
      return static_cast<float>(half(p + 108) * ((low | high << 4) - 32) * q);
    }
    case QuantFormat::kQ4_K:
    case QuantFormat::kQ5_K: {
      const uint8_t* S = p + 4;
      const int s = k < 4 ? S[k] & 63 : (S[k + 4] & 15) | (S[k - 4] >> 6) << 4;
      const int m = k < 4 ? S[k + 4] & 63 : (S[k + 4] >> 4) | (S[k] >> 6) << 4;
      const bool five = format == QuantFormat::kQ5_K;
      const uint8_t byte = p[(five ? 48 : 16) + 32 * (k / 2) + l];
      const int q = (k % 2 ? byte >> 4 : byte & 15) | (five ? bits(p[16 + l], k, 1) << 4 : 0);
      return once(half(p) * s * q, half(p + 2) * m);
    }
    case QuantFormat::kQ6_K: {
      const uint8_t byte = p[64 * n + 32 * (j & 1) + l];
      const int low = j >= 2 ? byte >> 4 : byte & 15, high = bits(p[128 + 32 * n + l], 2 * j, 2);
      return static_cast<float>(half(p + 208) * static_cast<int8_t>(p[192 + e / 16]) * ((low | high << 4) - 32));
    }
    case QuantFormat::kIQ4_XS: {
      const int sh = p[2] | p[3] << 8, s = bits(p[4 + k / 2], 4 * (k & 1), 4) | bits(sh, 2 * k, 2) << 4;
      const uint8_t byte = p[8 + 16 * k + l % 16];
      return static_cast<float>(half(p) * (s - 32) * kTable[l >= 16 ? byte >> 4 : byte & 15]);
    }
    case QuantFormat::kF32: {
      float value;
      std::memcpy(&value, p, 4);
      return value;
    }
    case QuantFormat::kF16:
      return static_cast<float>(half(p));
    case QuantFormat::kBF16:
      return std::bit_cast<float>(static_cast<uint32_t>(p[0] | p[1] << 8) << 16);
  }
  return 0;
}

// Where the f16 fields of a block lie.
std::vector<int> half_offsets(QuantFormat format) {
  switch (format) {
    case QuantFormat::kQ4_1:
    case QuantFormat::kQ5_1:
    case QuantFormat::kQ4_K:
    case QuantFormat::kQ5_K:
      return {0, 2};
    case QuantFormat::kQ2_K:
      return {80, 82};
    case QuantFormat::kQ3_K:
      return {108};
    case QuantFormat::kQ6_K:
      return {208};
    case QuantFormat::kF32:
    case QuantFormat::kF16:
    case QuantFormat::kBF16:
      return {};
    default:
      return {0};
  }
}

bool same_value(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Decoding is bit-exact against the formulas in double on random blocks, and on blocks whose bytes are all equal and
// whose scales are zero, denormal, the largest, infinite or NaN; unpack_block tells the same values as integers.
TEST(QuantDecode, EqualsTheFormulasBitForBit) {
  constexpr uint16_t kHalves[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00,
                                  0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x2E66, 0x9234};
  for (const QuantFormat format : kAllFormats) {
    SCOPED_TRACE(std::string(format_info(format).name));
    const auto [name, elements, block_bytes, type] = format_info(format);
    std::mt19937 random(17);
    std::vector<std::vector<uint8_t>> blocks;
    for (int i = 0; i < 400; ++i) {
      std::vector<uint8_t> block(static_cast<size_t>(block_bytes));
      for (auto& byte : block) byte = static_cast<uint8_t>(random());
      blocks.push_back(block);
    }
    for (const int fill : {0x00, 0xFF, 0x80, 0x7F, 0x55, 0xAA, 0x0F, 0xF0})
      for (const uint16_t a : kHalves)
        for (const uint16_t b : kHalves) {
          std::vector<uint8_t> block(static_cast<size_t>(block_bytes), static_cast<uint8_t>(fill));
          const auto at = half_offsets(format);
          for (size_t i = 0; i < at.size(); ++i) {
            const uint16_t value = i == 0 ? a : b;
            block[static_cast<size_t>(at[i])] = static_cast<uint8_t>(value);
            block[static_cast<size_t>(at[i]) + 1] = static_cast<uint8_t>(value >> 8);
          }
          blocks.push_back(block);
        }
    // All blocks in one call, from an odd address.
    std::vector<std::byte> storage(blocks.size() * static_cast<size_t>(block_bytes) + 1);
    for (size_t i = 0; i < blocks.size(); ++i)
      std::memcpy(storage.data() + 1 + i * static_cast<size_t>(block_bytes), blocks[i].data(), blocks[i].size());
    std::vector<float> values(blocks.size() * static_cast<size_t>(elements), -12345.0f);
    dequantize(format, std::span(storage).subspan(1), values);
    std::vector<float> distinct;
    for (size_t i = 0; i < blocks.size(); ++i)
      for (int e = 0; e < elements; ++e) {
        const float expected = expected_value(format, blocks[i].data(), e);
        const float actual = values[i * static_cast<size_t>(elements) + static_cast<size_t>(e)];
        ASSERT_TRUE(same_value(actual, expected))
            << "block " << i << " element " << e << ": " << actual << " vs " << expected;
        if (i == 0) distinct.push_back(expected);
      }
    // The reference is not trivial: a random block holds many different values.
    std::sort(distinct.begin(), distinct.end());
    const auto count = std::unique(distinct.begin(), distinct.end()) - distinct.begin();
    EXPECT_GE(count, elements >= 32 ? 8 : 1);
    if (is_float_format(format)) continue;
    for (size_t i = 0; i < blocks.size(); ++i) {
      UnpackedBlock u;
      unpack_block(format, storage.data() + 1 + i * static_cast<size_t>(block_bytes), u);
      ASSERT_EQ(u.elements, elements);
      for (int e = 0; e < elements; ++e) {
        const int k = e / u.sub_elements;
        const double product = double{u.d} * u.scale[k] * u.q[e];
        const float value = u.has_min ? once(product, double{u.dmin} * u.min[k]) : static_cast<float>(product);
        ASSERT_TRUE(same_value(value, expected_value(format, blocks[i].data(), e)))
            << "block " << i << " element " << e;
      }
    }
  }
}

// The claim that kernels rely on: d * scale * q and dmin * min are exact in fp32, whatever the bits.
TEST(QuantDecode, ProductsAreExact) {
  std::mt19937 random(5);
  for (const QuantFormat format : kAllFormats) {
    if (is_float_format(format)) continue;
    for (int i = 0; i < 200; ++i) {
      std::vector<std::byte> block(static_cast<size_t>(format_info(format).block_bytes));
      for (auto& byte : block) byte = static_cast<std::byte>(random());
      UnpackedBlock u;
      unpack_block(format, block.data(), u);
      if (!std::isfinite(u.d) || !std::isfinite(u.dmin)) continue;
      for (int e = 0; e < u.elements; ++e) {
        const int k = e / u.sub_elements;
        const double product = double{u.d} * u.scale[k] * u.q[e];
        ASSERT_EQ(static_cast<double>(static_cast<float>(product)), product) << format_info(format).name;
        if (!u.has_min) continue;
        ASSERT_EQ(double{u.dmin * static_cast<float>(u.min[k])}, double{u.dmin} * u.min[k]) << format_info(format).name;
      }
    }
  }
}

// Names, GGUF numbers and sizes lead back to their format; unknown ones lead nowhere.
TEST(QuantFormats, NamesNumbersAndSizes) {
  ASSERT_EQ(std::size(kAllFormats), static_cast<size_t>(kQuantFormatCount));
  for (const QuantFormat format : kAllFormats) {
    const FormatInfo& info = format_info(format);
    EXPECT_EQ(format_from_ggml(info.ggml_type), format);
    EXPECT_EQ(format_from_name(info.name), format);
    std::string lower(info.name);
    for (char& c : lower) c = static_cast<char>(std::tolower(c));
    EXPECT_EQ(format_from_name(lower), format);
    EXPECT_EQ(row_bytes(format, 768), static_cast<size_t>(768 / info.block_elements * info.block_bytes));
  }
  EXPECT_EQ(format_from_ggml(16), std::nullopt);
  EXPECT_EQ(format_from_ggml(0xFFFFFFFFu), std::nullopt);
  EXPECT_EQ(format_from_name("Q4_K_M"), std::nullopt);
  EXPECT_EQ(format_from_name(""), std::nullopt);
  EXPECT_EQ(format_info(QuantFormat::kQ4_K).ggml_type, 12u);
  EXPECT_EQ(format_info(QuantFormat::kBF16).ggml_type, 30u);
  EXPECT_DEATH(row_bytes(QuantFormat::kQ4_K, 128), "block_elements");
}

}  // namespace
}  // namespace foretoken
