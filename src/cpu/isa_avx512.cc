// All kernels compiled for one instruction set: avx512. The flags are set in CMakeLists.txt. Nothing but the kernels may be
// included here, so that no shared inline function is compiled with these flags.
#define FORETOKEN_ISA avx512
#define FORETOKEN_ISA_LEVEL 2

#include "cpu/kernels.h"
#include "cpu/packed_layout.h"
#include "cpu/simd.h"

#include "cpu/linear.inl"
#include "cpu/elementwise.inl"
#include "cpu/moe.inl"
#include "cpu/attention.inl"
#include "cpu/delta.inl"
#include "cpu/probe.inl"
#include "cpu/draft.inl"

namespace foretoken::cpu {

const KernelTable kAvx512Kernels = {
    .name = "avx512",
    .linear = avx512::linear_kernels(),
    .elementwise = avx512::elementwise_kernels(),
    .moe = avx512::moe_kernels(),
    .attention = avx512::attention_kernels(),
    .delta = avx512::delta_kernels(),
    .probe = avx512::probe_kernels(),
    .draft = avx512::draft_kernels(),
};

}  // namespace foretoken::cpu
