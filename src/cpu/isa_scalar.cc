// All kernels compiled for one instruction set: scalar. The flags are set in CMakeLists.txt. Nothing but the kernels may be
// included here, so that no shared inline function is compiled with these flags.
#define FORETOKEN_ISA scalar
#define FORETOKEN_ISA_LEVEL 0

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

const KernelTable kScalarKernels = {
    .name = "scalar",
    .linear = scalar::linear_kernels(),
    .elementwise = scalar::elementwise_kernels(),
    .moe = scalar::moe_kernels(),
    .attention = scalar::attention_kernels(),
    .delta = scalar::delta_kernels(),
    .probe = scalar::probe_kernels(),
    .draft = scalar::draft_kernels(),
};

}  // namespace foretoken::cpu
