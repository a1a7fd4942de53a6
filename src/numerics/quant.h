// Every weight storage format: its block geometry and its scalar decoding, which is the definition that all kernels are
// checked against. Layouts: GGUF block formats as ggml defines them (docs/numerics.md lists each), and plain floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/result.h"

namespace foretoken {

// Storage formats of weights. The enumerators' order is ours; `ggml_type` below gives the number in GGUF files.
enum class QuantFormat : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kIQ4_NL,  // blocks of 32
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_XS,  // super-blocks of 256
};
inline constexpr int kQuantFormatCount = 15;

struct FormatInfo {
  std::string_view name;  // as users and llama.cpp write it: "Q4_K"
  int block_elements;     // 1 for floats
  int block_bytes;
  uint32_t ggml_type;  // type id in GGUF tensor infos
};

const FormatInfo& format_info(QuantFormat format);
std::optional<QuantFormat> format_from_ggml(uint32_t ggml_type);
std::optional<QuantFormat> format_from_name(std::string_view name);  // case-insensitive
inline bool is_float_format(QuantFormat format) { return format <= QuantFormat::kBF16; }

// Bytes of one row of `cols` elements; `cols` must be a multiple of block_elements.
size_t row_bytes(QuantFormat format, int64_t cols);

// Formats whose scaled integer dot products are added as integers, exactly, before a super-block meets floating point; the
// others add them as floats. Docs: decisions/006.
constexpr bool adds_scaled_integers(QuantFormat format) {
  return format == QuantFormat::kQ2_K || format == QuantFormat::kQ3_K || format == QuantFormat::kQ4_K ||
         format == QuantFormat::kQ6_K;
}

// A block as integers: element e of sub-block k = e / sub_elements has the value (d * scale[k]) * q[e] - dmin * min[k].
// Every product is exact in fp32 (d has 11 significant bits, scale and q together at most 12); the difference rounds
// once. A format with an additive minimum m (Q4_1, Q5_1) has dmin = -m and min = 1; one without minimums has dmin = 0,
// has_min false, and nothing is subtracted. Only the entries of existing sub-blocks are set.
struct UnpackedBlock {
  int elements = 0;      // 32 or 256
  int sub_elements = 0;  // 16 or 32
  bool has_min = false;
  bool adds_integers = false;  // adds_scaled_integers of the format
  float d = 0, dmin = 0;  // widened from f16
  int16_t q[256];         // signed quants, offset removed: Q6_K -32..31, IQ4 the table value -127..113
  int16_t scale[16];
  int16_t min[16];
};

// The values that the 4-bit codes of IQ4_NL and IQ4_XS stand for.
inline constexpr int16_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// One block of a quantised (not float) format. `block` has format_info(format).block_bytes bytes, any alignment.
void unpack_block(QuantFormat format, const std::byte* block, UnpackedBlock& out);

// Decodes `out.size()` elements (a multiple of block_elements) from `blocks`. Bit-exact by definition: each element is
// computed with the formula of docs/numerics.md in fp32, every product and difference rounded once, in the order
// written there. `blocks` holds exactly the needed bytes and may be unaligned. No aliasing.
void dequantize(QuantFormat format, std::span<const std::byte> blocks, std::span<float> out);

// Encodes `values` (a multiple of block_elements, finite) into row_bytes(format, values.size()) bytes. Supported: the
// three float formats, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_XS (`can_quantize`). Deterministic, whatever the caller's
// floating-point mode; minimises the squared error weighted by `importance` (same length, not negative; empty means all
// equal, which gave a lower divergence than weights that grow with |x|). Q8_0 codes stay within -127..127.
bool can_quantize(QuantFormat format);
void quantize(QuantFormat format, std::span<const float> values, std::span<const float> importance,
              std::span<std::byte> out);

}  // namespace foretoken
