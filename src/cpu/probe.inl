// Two probes of what the machine can do, the limits of every product: reading memory and byte products. Used by benchmarks.
namespace foretoken::cpu::FORETOKEN_ISA {
namespace {

// Reads `bytes` (a multiple of 512) and returns something that depends on all of them.
uint64_t read_bytes(const std::byte* data, size_t bytes) {
  I32x16 sum[8];
  FORETOKEN_UNROLL for (int i = 0; i < 8; ++i) sum[i] = zero_i32();
  for (size_t at = 0; at < bytes; at += 512)
    FORETOKEN_UNROLL for (int i = 0; i < 8; ++i) {
      prefetch(data + at + 64 * i + 16384);  // as products do
      sum[i] = or_(sum[i], load_i32(reinterpret_cast<const int32_t*>(data + at) + 16 * i));
    }
  int32_t lanes[16];
  store(lanes, or_(or_(or_(sum[0], sum[1]), or_(sum[2], sum[3])), or_(or_(sum[4], sum[5]), or_(sum[6], sum[7]))));
  uint64_t result = 0;
  for (int32_t lane : lanes) result |= static_cast<uint32_t>(lane);
  return result;
}

// Independent byte products from registers; returns the number of multiply-adds.
int64_t dot_bytes(int64_t steps, int32_t* sink) {
#if FORETOKEN_ISA_LEVEL == 2
  constexpr int kChains = 12;
#else
  constexpr int kChains = 4;
#endif
  int8_t quad[4] = {static_cast<int8_t>(steps & 7), 1, 2, 3};
  const Bytes w = set_bytes(static_cast<uint8_t>(steps & 15)), a = set_quad(quad);
  Dot<15> dots[kChains];
  FORETOKEN_UNROLL for (int i = 0; i < kChains; ++i) dots[i] = Dot<15>::from(set_i32(i));
  for (int64_t s = 0; s < steps; ++s)
    unroll<0, 8>([&](auto step) FORETOKEN_INLINE_LAMBDA {
      FORETOKEN_UNROLL for (int i = 0; i < kChains; ++i) dots[i].step(decltype(step)::value, w, a);
    });
  I32x16 sum = zero_i32();
  FORETOKEN_UNROLL for (int i = 0; i < kChains; ++i) sum = add(sum, dots[i].finish());
  store(sink, sum);
  return steps * 8 * kChains * 64;
}

constexpr ProbeKernels probe_kernels() { return {.read_bytes = read_bytes, .dot_bytes = dot_bytes}; }

}  // namespace
}  // namespace foretoken::cpu::FORETOKEN_ISA
