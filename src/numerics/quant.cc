// Block formats, scalar decoding: the definition that every kernel is checked against. One short function per format
// turns a block into integers; one loop turns integers into floats. Encoding is in quant_encode.cc; files are read
// elsewhere.
#include "numerics/quant.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>

#include "numerics/dtype.h"

namespace foretoken {
namespace {

constexpr std::array<FormatInfo, kQuantFormatCount> kFormats = {{
    {"F32", 1, 4, 0},
    {"F16", 1, 2, 1},
    {"BF16", 1, 2, 30},
    {"Q8_0", 32, 34, 8},
    {"Q4_0", 32, 18, 2},
    {"Q4_1", 32, 20, 3},
    {"Q5_0", 32, 22, 6},
    {"Q5_1", 32, 24, 7},
    {"IQ4_NL", 32, 18, 20},
    {"Q2_K", 256, 84, 10},
    {"Q3_K", 256, 110, 11},
    {"Q4_K", 256, 144, 12},
    {"Q5_K", 256, 176, 13},
    {"Q6_K", 256, 210, 14},
    {"IQ4_XS", 256, 136, 23},
}};

// A cursor over the bytes of one block.
struct Block {
  const uint8_t* p;

  int u8(int i) const { return p[i]; }
  int i8(int i) const { return static_cast<int8_t>(p[i]); }
  int u16(int i) const { return p[i] | p[i + 1] << 8; }
  uint32_t u32(int i) const { return static_cast<uint32_t>(u16(i)) | static_cast<uint32_t>(u16(i + 2)) << 16; }
  float f16(int i) const { return to_float(F16{static_cast<uint16_t>(u16(i))}); }
};

int16_t narrow(int value) { return static_cast<int16_t>(value); }

// ---- Blocks of 32. The low nibbles hold elements 0..15, the high nibbles elements 16..31.

void begin_small(float d, UnpackedBlock& out) {
  out.elements = out.sub_elements = 32;
  out.has_min = false;
  out.d = d;
  out.dmin = 0;
  out.scale[0] = 1;
  out.min[0] = 0;
}

void set_small_min(float m, UnpackedBlock& out) {
  out.has_min = true;
  out.dmin = -m;
  out.min[0] = 1;
}

void unpack_q8_0(Block b, UnpackedBlock& out) {
  begin_small(b.f16(0), out);
  for (int i = 0; i < 32; ++i) out.q[i] = narrow(b.i8(2 + i));
}

void unpack_nibbles(Block b, int at, int offset, UnpackedBlock& out) {
  for (int i = 0; i < 16; ++i) {
    out.q[i] = narrow((b.u8(at + i) & 15) - offset);
    out.q[i + 16] = narrow((b.u8(at + i) >> 4) - offset);
  }
}

void unpack_nibbles_and_bit(Block b, int bits_at, int at, int offset, UnpackedBlock& out) {
  const uint32_t h = b.u32(bits_at);
  unpack_nibbles(b, at, offset, out);
  for (int i = 0; i < 32; ++i) out.q[i] = narrow(out.q[i] + static_cast<int>((h >> i & 1) << 4));
}

void unpack_q4_0(Block b, UnpackedBlock& out) {
  begin_small(b.f16(0), out);
  unpack_nibbles(b, 2, 8, out);
}

void unpack_q4_1(Block b, UnpackedBlock& out) {
  begin_small(b.f16(0), out);
  set_small_min(b.f16(2), out);
  unpack_nibbles(b, 4, 0, out);
}

void unpack_q5_0(Block b, UnpackedBlock& out) {
  begin_small(b.f16(0), out);
  unpack_nibbles_and_bit(b, 2, 6, 16, out);
}

void unpack_q5_1(Block b, UnpackedBlock& out) {
  begin_small(b.f16(0), out);
  set_small_min(b.f16(2), out);
  unpack_nibbles_and_bit(b, 4, 8, 0, out);
}

void unpack_iq4_nl(Block b, UnpackedBlock& out) {
  begin_small(b.f16(0), out);
  for (int i = 0; i < 16; ++i) {
    out.q[i] = kIq4Values[b.u8(2 + i) & 15];
    out.q[i + 16] = kIq4Values[b.u8(2 + i) >> 4];
  }
}

// ---- Super-blocks of 256.

void begin_super(int sub_elements, bool has_min, float d, float dmin, UnpackedBlock& out) {
  out.elements = 256;
  out.sub_elements = sub_elements;
  out.has_min = has_min;
  out.d = d;
  out.dmin = dmin;
  std::memset(out.min, 0, sizeof out.min);
}

// The four 2-bit planes of Q2_K and Q3_K: element 128n + 32j + l has bits 2j of byte 32n + l.
void unpack_crumbs(Block b, int at, UnpackedBlock& out) {
  for (int n = 0; n < 2; ++n)
    for (int j = 0; j < 4; ++j)
      for (int l = 0; l < 32; ++l) out.q[128 * n + 32 * j + l] = narrow(b.u8(at + 32 * n + l) >> 2 * j & 3);
}

void unpack_q2_k(Block b, UnpackedBlock& out) {
  constexpr int kScales = 0, kQuants = 16, kD = 80;
  begin_super(16, true, b.f16(kD), b.f16(kD + 2), out);
  for (int k = 0; k < 16; ++k) {
    out.scale[k] = narrow(b.u8(kScales + k) & 15);
    out.min[k] = narrow(b.u8(kScales + k) >> 4);
  }
  unpack_crumbs(b, kQuants, out);
}

void unpack_q3_k(Block b, UnpackedBlock& out) {
  constexpr int kHigh = 0, kQuants = 32, kScales = 96, kD = 108;
  begin_super(16, false, b.f16(kD), 0, out);
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? b.u8(kScales + g) & 15 : b.u8(kScales + g - 8) >> 4;
    const int high = b.u8(kScales + 8 + g % 4) >> 2 * (g / 4) & 3;
    out.scale[g] = narrow((low | high << 4) - 32);
  }
  unpack_crumbs(b, kQuants, out);
  for (int e = 0; e < 256; ++e)
    if ((b.u8(kHigh + e % 32) >> e / 32 & 1) == 0) out.q[e] = narrow(out.q[e] - 4);
}

// Eight 6-bit scales and minimums in 12 bytes.
void unpack_scales_and_mins(Block b, int at, UnpackedBlock& out) {
  for (int k = 0; k < 4; ++k) {
    out.scale[k] = narrow(b.u8(at + k) & 63);
    out.min[k] = narrow(b.u8(at + k + 4) & 63);
    out.scale[k + 4] = narrow((b.u8(at + k + 8) & 15) | (b.u8(at + k) >> 6) << 4);
    out.min[k + 4] = narrow((b.u8(at + k + 8) >> 4) | (b.u8(at + k + 4) >> 6) << 4);
  }
}

// Nibbles of Q4_K and Q5_K: sub-blocks 2j and 2j + 1 share the 32 bytes at 32j.
void unpack_paired_nibbles(Block b, int at, UnpackedBlock& out) {
  for (int j = 0; j < 4; ++j)
    for (int l = 0; l < 32; ++l) {
      out.q[64 * j + l] = narrow(b.u8(at + 32 * j + l) & 15);
      out.q[64 * j + 32 + l] = narrow(b.u8(at + 32 * j + l) >> 4);
    }
}

void unpack_q4_k(Block b, UnpackedBlock& out) {
  begin_super(32, true, b.f16(0), b.f16(2), out);
  unpack_scales_and_mins(b, 4, out);
  unpack_paired_nibbles(b, 16, out);
}

void unpack_q5_k(Block b, UnpackedBlock& out) {
  constexpr int kHigh = 16, kQuants = 48;
  begin_super(32, true, b.f16(0), b.f16(2), out);
  unpack_scales_and_mins(b, 4, out);
  unpack_paired_nibbles(b, kQuants, out);
  for (int k = 0; k < 8; ++k)
    for (int l = 0; l < 32; ++l) out.q[32 * k + l] = narrow(out.q[32 * k + l] | (b.u8(kHigh + l) >> k & 1) << 4);
}

void unpack_q6_k(Block b, UnpackedBlock& out) {
  constexpr int kLow = 0, kHigh = 128, kScales = 192, kD = 208;
  begin_super(16, false, b.f16(kD), 0, out);
  for (int k = 0; k < 16; ++k) out.scale[k] = narrow(b.i8(kScales + k));
  for (int n = 0; n < 2; ++n)
    for (int j = 0; j < 4; ++j)
      for (int l = 0; l < 32; ++l) {
        const int low = b.u8(kLow + 64 * n + 32 * (j & 1) + l) >> 4 * (j / 2) & 15;
        const int high = b.u8(kHigh + 32 * n + l) >> 2 * j & 3;
        out.q[128 * n + 32 * j + l] = narrow((low | high << 4) - 32);
      }
}

void unpack_iq4_xs(Block b, UnpackedBlock& out) {
  constexpr int kHighScales = 2, kLowScales = 4, kQuants = 8;
  begin_super(32, false, b.f16(0), 0, out);
  for (int k = 0; k < 8; ++k) {
    const int low = b.u8(kLowScales + k / 2) >> 4 * (k & 1) & 15;
    const int high = b.u16(kHighScales) >> 2 * k & 3;
    out.scale[k] = narrow((low | high << 4) - 32);
    for (int l = 0; l < 16; ++l) {
      out.q[32 * k + l] = kIq4Values[b.u8(kQuants + 16 * k + l) & 15];
      out.q[32 * k + 16 + l] = kIq4Values[b.u8(kQuants + 16 * k + l) >> 4];
    }
  }
}

// ---- From integers to floats: the whole arithmetic of every block format.

void evaluate(const UnpackedBlock& block, float* out) {
  for (int begin = 0, k = 0; begin < block.elements; begin += block.sub_elements, ++k) {
    const float scale = block.d * static_cast<float>(block.scale[k]);
    const int end = begin + block.sub_elements;
    if (block.has_min) {
      const float min = block.dmin * static_cast<float>(block.min[k]);
      for (int e = begin; e < end; ++e) out[e] = scale * static_cast<float>(block.q[e]) - min;
    } else {
      for (int e = begin; e < end; ++e) out[e] = scale * static_cast<float>(block.q[e]);
    }
  }
}

}  // namespace

const FormatInfo& format_info(QuantFormat format) {
  CHECK(static_cast<int>(format) < kQuantFormatCount);
  return kFormats[static_cast<size_t>(format)];
}

std::optional<QuantFormat> format_from_ggml(uint32_t ggml_type) {
  for (int i = 0; i < kQuantFormatCount; ++i)
    if (kFormats[static_cast<size_t>(i)].ggml_type == ggml_type) return static_cast<QuantFormat>(i);
  return std::nullopt;
}

std::optional<QuantFormat> format_from_name(std::string_view name) {
  const auto same = [](char a, char b) {
    return std::toupper(static_cast<unsigned char>(a)) == std::toupper(static_cast<unsigned char>(b));
  };
  for (int i = 0; i < kQuantFormatCount; ++i) {
    const std::string_view known = kFormats[static_cast<size_t>(i)].name;
    if (std::equal(known.begin(), known.end(), name.begin(), name.end(), same)) return static_cast<QuantFormat>(i);
  }
  return std::nullopt;
}

size_t row_bytes(QuantFormat format, int64_t cols) {
  const FormatInfo& info = format_info(format);
  CHECK(cols >= 0);
  CHECK(cols % info.block_elements == 0);
  return static_cast<size_t>(cols / info.block_elements) * static_cast<size_t>(info.block_bytes);
}

void unpack_block(QuantFormat format, const std::byte* block, UnpackedBlock& out) {
  const Block b{reinterpret_cast<const uint8_t*>(block)};
  out.adds_integers = adds_scaled_integers(format);
  switch (format) {
    case QuantFormat::kQ8_0:
      return unpack_q8_0(b, out);
    case QuantFormat::kQ4_0:
      return unpack_q4_0(b, out);
    case QuantFormat::kQ4_1:
      return unpack_q4_1(b, out);
    case QuantFormat::kQ5_0:
      return unpack_q5_0(b, out);
    case QuantFormat::kQ5_1:
      return unpack_q5_1(b, out);
    case QuantFormat::kIQ4_NL:
      return unpack_iq4_nl(b, out);
    case QuantFormat::kQ2_K:
      return unpack_q2_k(b, out);
    case QuantFormat::kQ3_K:
      return unpack_q3_k(b, out);
    case QuantFormat::kQ4_K:
      return unpack_q4_k(b, out);
    case QuantFormat::kQ5_K:
      return unpack_q5_k(b, out);
    case QuantFormat::kQ6_K:
      return unpack_q6_k(b, out);
    case QuantFormat::kIQ4_XS:
      return unpack_iq4_xs(b, out);
    case QuantFormat::kF32:
    case QuantFormat::kF16:
    case QuantFormat::kBF16:
      break;
  }
  CHECK(!is_float_format(format));
}

void dequantize(QuantFormat format, std::span<const std::byte> blocks, std::span<float> out) {
  CHECK(blocks.size() == row_bytes(format, static_cast<int64_t>(out.size())));
  if (format == QuantFormat::kF32) {
    if (!out.empty()) std::memcpy(out.data(), blocks.data(), blocks.size());
    return;
  }
  if (format == QuantFormat::kF16 || format == QuantFormat::kBF16) {
    for (size_t i = 0; i < out.size(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, blocks.data() + 2 * i, 2);
      out[i] = format == QuantFormat::kF16 ? to_float(F16{bits}) : to_float(Bf16{bits});
    }
    return;
  }
  const FormatInfo& info = format_info(format);
  UnpackedBlock block;
  for (size_t done = 0; done < out.size(); done += static_cast<size_t>(info.block_elements)) {
    unpack_block(format, blocks.data() + done / static_cast<size_t>(info.block_elements) * info.block_bytes, block);
    evaluate(block, out.data() + done);
  }
}

}  // namespace foretoken
