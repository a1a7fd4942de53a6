// Which kernel tables this processor can run.
#include "cpu/kernels.h"
#include "cpu/select.h"

namespace foretoken::cpu {
namespace {

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("bmi2");
}

// Without VNNI the 512-bit units have no exact byte product that is better than AVX2's.
bool has_avx512_vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

}  // namespace

const KernelTable* find_kernels(Isa isa) {
  switch (isa) {
    case Isa::kAuto: return has_avx512_vnni() ? &kAvx512Kernels : has_avx2() ? &kAvx2Kernels : nullptr;
    case Isa::kScalar: return has_avx2() ? &kScalarKernels : nullptr;  // scalar code uses FMA and F16C instructions too
    case Isa::kAvx2: return has_avx2() ? &kAvx2Kernels : nullptr;
    case Isa::kAvx512: return has_avx512_vnni() ? &kAvx512Kernels : nullptr;
  }
  return nullptr;
}

}  // namespace foretoken::cpu
