// Element types and the two 16-bit float conversions. Conversions to 16 bits round to nearest even; all are bit
// arithmetic, so no floating-point mode changes them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace foretoken {

using TokenId = int32_t;

enum class DType : uint8_t { kF32, kF16, kBF16, kI8, kU8, kI32, kI64, kF64 };

constexpr size_t dtype_bytes(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kI64:
    case DType::kF64: return 8;
    default: return 1;
  }
}

struct Bf16 { uint16_t bits; };
struct F16 { uint16_t bits; };

constexpr float to_float(Bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

constexpr Bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};  // NaN stays NaN
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

constexpr float to_float(F16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t exponent = (value.bits >> 10) & 31u;
  uint32_t mantissa = value.bits & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  const int shift = std::countl_zero(mantissa) - 21;  // normalise: f16 denormals are fp32 normals
  mantissa = (mantissa << shift) & 1023u;
  return std::bit_cast<float>(sign | static_cast<uint32_t>(113 - shift) << 23 | (mantissa << 13));
}

constexpr F16 to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {static_cast<uint16_t>(sign | 0x7E00u)};
  if (magnitude >= 0x477FF000u) return {static_cast<uint16_t>(sign | 0x7C00u)};  // rounds to infinity
  if (magnitude < 0x38800000u) {                                                // f16 denormal or zero
    if (magnitude < 0x33000000u) return {sign};                                 // below half the smallest denormal
    const int shift = 126 - static_cast<int>(magnitude >> 23);                  // 14..24
    const uint32_t full = (magnitude & 0x7FFFFFu) | 0x800000u;
    const uint32_t kept = full >> shift;
    const uint32_t rest = full & ((1u << shift) - 1u);
    const uint32_t half = 1u << (shift - 1);
    return {static_cast<uint16_t>(sign | (kept + (rest > half || (rest == half && (kept & 1u)))))};
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
}

static_assert(to_f16(to_float(F16{0x0001})).bits == 0x0001);
static_assert(to_f16(to_float(F16{0x03FF})).bits == 0x03FF);
static_assert(to_f16(to_float(F16{0x7BFF})).bits == 0x7BFF);
static_assert(to_bf16(1.0f).bits == 0x3F80);

}  // namespace foretoken
