// The matrix instruction of a warpgroup (sm_90a): 64 outputs, sixteen a warp in the registers that mma.m16n8k16 has
// them in, by kColumns columns in shared memory. It runs by itself: what it reads and writes is left alone until waited
// for. A column's bits are those of mma.m16n8k16 over the same inputs.
#pragma once

#include "cuda/bulk.cuh"

namespace foretoken::cuda {

FORETOKEN_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FORETOKEN_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
FORETOKEN_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Eight columns by eight inputs lie together, a column's inputs side by side; bytes from such a matrix to the next
// along the inputs and along the columns.
FORETOKEN_DEVICE uint64_t columns_descriptor(uint32_t address, uint32_t along_inputs, uint32_t along_columns) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(along_inputs >> 4) << 16 |
         static_cast<uint64_t>(along_columns >> 4) << 32;
}

#define FORETOKEN_D4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define FORETOKEN_D8(i) FORETOKEN_D4(i), FORETOKEN_D4((i) + 4)
#define FORETOKEN_D16(i) FORETOKEN_D8(i), FORETOKEN_D8((i) + 8)
#define FORETOKEN_WGMMA(shape, type, list, a_list, b_at, scale_at, ...)                               \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " scale_at                                       \
               ", 0;\n"                                                                               \
               "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" list "}, {" a_list "}, " b_at \
               ", add, 1, 1, 0;\n}\n"                                                                 \
               : __VA_ARGS__                                                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdd ? 1 : 0))

// d = product, or with kAdd d + product. d[4 j + i]: outputs g and g + 8, columns 8 j + 2 t and 8 j + 2 t + 1.
#define FORETOKEN_WGMMA_OF(name, type)                                                                                \
  template <int kColumns, bool kAdd>                                                                                  \
  FORETOKEN_DEVICE void name(float (&d)[kColumns / 2], const uint32_t (&a)[4], uint64_t b) {                          \
    if constexpr (kColumns == 8)                                                                                      \
      FORETOKEN_WGMMA("m64n8k16", type, "%0,%1,%2,%3", "%4,%5,%6,%7", "%8", "%9", FORETOKEN_D4(0));                    \
    else if constexpr (kColumns == 16)                                                                                \
      FORETOKEN_WGMMA("m64n16k16", type, "%0,%1,%2,%3,%4,%5,%6,%7", "%8,%9,%10,%11", "%12", "%13", FORETOKEN_D8(0));   \
    else if constexpr (kColumns == 32)                                                                                \
      FORETOKEN_WGMMA("m64n32k16", type, "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15", "%16,%17,%18,%19",   \
                      "%20", "%21", FORETOKEN_D16(0));                                                                \
    else                                                                                                              \
      FORETOKEN_WGMMA("m64n64k16", type,                                                                              \
                      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
                      "%26,%27,%28,%29,%30,%31",                                                                      \
                      "%32,%33,%34,%35", "%36", "%37", FORETOKEN_D16(0), FORETOKEN_D16(16));                          \
  }
FORETOKEN_WGMMA_OF(wgmma, "bf16")
FORETOKEN_WGMMA_OF(wgmma_f16, "f16")

#undef FORETOKEN_WGMMA_OF
#undef FORETOKEN_WGMMA
#undef FORETOKEN_D16
#undef FORETOKEN_D8
#undef FORETOKEN_D4

// Nothing that reads `d` moves to before this.
template <int kCount>
FORETOKEN_DEVICE void settle(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

}  // namespace foretoken::cuda
