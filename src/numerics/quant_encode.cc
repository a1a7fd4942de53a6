// Encoding of weights: the floats and Q8_0.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "numerics/canonical.h"
#include "numerics/dtype.h"
#include "numerics/quant.h"

namespace foretoken {
namespace {

void put_half(float value, std::byte* out) {
  const F16 half = to_f16(value);
  std::memcpy(out, &half.bits, 2);
}

void encode_q8_0(const float* x, std::byte* out) {
  float amax = 0;
  for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[i]));
  const F16 half = to_f16(amax / 127.0f);
  const float d = to_float(half);
  put_half(d, out);
  for (int i = 0; i < 32; ++i) {
    const float q = d > 0 ? std::clamp(x[i] / d, -127.0f, 127.0f) : 0.0f;
    out[2 + i] = static_cast<std::byte>(canonical::round_to_int(q));
  }
}

}  // namespace

bool can_quantize(QuantFormat format) { return is_float_format(format) || format == QuantFormat::kQ8_0; }

void quantize(QuantFormat format, std::span<const float> values, std::span<const float> importance,
              std::span<std::byte> out) {
  CHECK(can_quantize(format));
  if (!importance.empty()) CHECK(importance.size() == values.size());
  CHECK(out.size() == row_bytes(format, static_cast<int64_t>(values.size())));
  for (size_t i = 0; i < values.size(); ++i) {
    if (format == QuantFormat::kF32) std::memcpy(out.data() + 4 * i, &values[i], 4);
    if (format == QuantFormat::kF16) put_half(values[i], out.data() + 2 * i);
    if (format == QuantFormat::kBF16) {
      const Bf16 half = to_bf16(values[i]);
      std::memcpy(out.data() + 2 * i, &half.bits, 2);
    }
    if (format == QuantFormat::kQ8_0 && i % 32 == 0) encode_q8_0(&values[i], out.data() + i / 32 * 34);
  }
}

}  // namespace foretoken
