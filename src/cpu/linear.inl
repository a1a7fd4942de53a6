// Products of packed weights with activation rows, written once over simd.h.
namespace foretoken::cpu::FORETOKEN_ISA {
namespace {

void silu_product(const float* gate, const float* up, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(out + i, mul(silu(load_f32(gate + i)), load_f32(up + i)));
  const int rest = static_cast<int>(count - i);
  if (rest > 0) store_first(out + i, mul(silu(load_first_f32(gate + i, rest)), load_first_f32(up + i, rest)), rest);
}

constexpr LinearKernels linear_kernels() { return {.quantize_rows = nullptr, .multiply = nullptr, .silu_product = silu_product}; }

}  // namespace
}  // namespace foretoken::cpu::FORETOKEN_ISA
