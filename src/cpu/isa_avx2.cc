// All kernels compiled for one instruction set: avx2. The flags are set in CMakeLists.txt. Nothing but the kernels may be
// included here, so that no shared inline function is compiled with these flags.
#define FORETOKEN_ISA avx2
#define FORETOKEN_ISA_LEVEL 1

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

const KernelTable kAvx2Kernels = {
    .name = "avx2",
    .linear = avx2::linear_kernels(),
    .elementwise = avx2::elementwise_kernels(),
    .moe = avx2::moe_kernels(),
    .attention = avx2::attention_kernels(),
    .delta = avx2::delta_kernels(),
    .probe = avx2::probe_kernels(),
    .draft = avx2::draft_kernels(),
};

}  // namespace foretoken::cpu
