// The choice of kernels for this processor.
#pragma once

#include "cpu/kernels.h"
#include "ops/ops.h"

namespace foretoken::cpu {

// The table for `isa`, or nullptr when the processor lacks the instruction set. kAuto: the best one present.
const KernelTable* find_kernels(Isa isa);

}  // namespace foretoken::cpu
