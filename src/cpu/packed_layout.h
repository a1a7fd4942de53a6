// How block-quantised weights lie in memory after packing: one description per format, read by packing.cc at run time and by
// linear.inl at compile time. It knows no kernel.
//
// A group is kGroupOutputs (32) consecutive outputs. Per block of K a group holds, in this order and each a multiple of 64
// bytes (the 32-element formats have no scales and minimums):
//   d        f16 [32]
//   dmin     f16 [32]                         when has_min
//   scales   s8  [sub-block][32]
//   minimums u8  [half][sub-block / 2][16][2] when has_min; half = output / 16
//   planes   per sub-block: nibble, two-bit and one-bit plane, or the byte plane
// A weight is stored as the unsigned u = q + offset (IQ4: the index of q in the format's table). K runs in quads of four; a
// plane's line holds for 16 output pairs (o, o + 16) the four weights of a quad, byte 4 * o + k % 4:
//   nibble   line per quad:      bits 0-3 output o, bits 4-7 output o + 16
//   two-bit  line per two quads: bits 4 * (quad % 2) + {0-1 output o, 2-3 output o + 16}
//   one-bit  line per four quads: bits 2 * (quad % 4) + {0 output o, 1 output o + 16}
//   byte     two lines per quad: outputs o, then outputs o + 16
#pragma once

#include <cstddef>
#include <cstdint>

#include "numerics/quant.h"

namespace foretoken::cpu {

inline constexpr int kGroupOutputs = 32;

struct PackedLayout {
  int block = 0, sub = 0;  // elements per block and per sub-block
  bool nibble = false, two_bit = false, one_bit = false, byte = false;
  bool table = false;      // nibbles index kIq4Bytes
  bool has_min = false;
  int offset = 0;          // u = q + offset

  constexpr int subs() const { return block / sub; }
  constexpr int quads() const { return sub / 4; }
  constexpr bool has_scales() const { return block == 256; }
  constexpr bool sums_bytes() const { return byte || table; }  // the dot product takes bytes of value + 128
  constexpr int bits() const { return byte ? 8 : (nibble ? 4 : 0) + (two_bit ? 2 : 0) + (one_bit ? 1 : 0); }
  constexpr int dmin_at() const { return 64; }
  constexpr int scales_at() const { return has_min ? 128 : 64; }
  constexpr int minimums_at() const { return scales_at() + (has_scales() ? 32 * subs() : 0); }
  constexpr int planes_at() const { return minimums_at() + (has_scales() && has_min ? 32 * subs() : 0); }
  constexpr int nibble_bytes() const { return nibble ? 64 * quads() : 0; }
  constexpr int two_bit_bytes() const { return two_bit ? 32 * quads() : 0; }
  constexpr int one_bit_bytes() const { return one_bit ? 16 * quads() : 0; }
  constexpr int sub_bytes() const {
    return byte ? 128 * quads() : nibble_bytes() + two_bit_bytes() + one_bit_bytes();
  }
  constexpr int block_bytes() const { return planes_at() + subs() * sub_bytes(); }
};

// Block formats only.
constexpr PackedLayout packed_layout(QuantFormat format) {
  switch (format) {
    case QuantFormat::kQ8_0: return {.block = 32, .sub = 32, .byte = true, .offset = 128};
    case QuantFormat::kQ4_0: return {.block = 32, .sub = 32, .nibble = true, .offset = 8};
    case QuantFormat::kQ4_1: return {.block = 32, .sub = 32, .nibble = true, .has_min = true};
    case QuantFormat::kQ5_0: return {.block = 32, .sub = 32, .nibble = true, .one_bit = true, .offset = 16};
    case QuantFormat::kQ5_1: return {.block = 32, .sub = 32, .nibble = true, .one_bit = true, .has_min = true};
    case QuantFormat::kIQ4_NL: return {.block = 32, .sub = 32, .nibble = true, .table = true};
    case QuantFormat::kQ2_K: return {.block = 256, .sub = 16, .two_bit = true, .has_min = true};
    case QuantFormat::kQ3_K: return {.block = 256, .sub = 16, .two_bit = true, .one_bit = true, .offset = 4};
    case QuantFormat::kQ4_K: return {.block = 256, .sub = 32, .nibble = true, .has_min = true};
    case QuantFormat::kQ5_K: return {.block = 256, .sub = 32, .nibble = true, .one_bit = true, .has_min = true};
    case QuantFormat::kQ6_K: return {.block = 256, .sub = 16, .nibble = true, .two_bit = true, .offset = 32};
    case QuantFormat::kIQ4_XS: return {.block = 256, .sub = 32, .nibble = true, .table = true};
    default: return {};
  }
}

// The IQ4 table plus 128. Internal linkage: instruction-set files must define no shared symbol.
constexpr uint8_t kIq4Bytes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                          129, 141, 153, 166, 181, 197, 217, 241};

// ---- Float formats: groups of 16 outputs. Per chunk of K a group holds one 64-byte line per output: f32 16 elements; f16 32
// elements; bf16 32 elements k as words, element k % 16 of the first half beside element k % 16 of the second. Zeros behind
// the last column.

inline constexpr int kFloatGroupOutputs = 16;
constexpr int float_chunk(QuantFormat format) { return format == QuantFormat::kF32 ? 16 : 32; }

}  // namespace foretoken::cpu
