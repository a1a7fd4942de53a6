// Asks the kernels what they were compiled for.
#pragma once

#include <cuda_runtime.h>

#include "cuda/limits.h"

namespace foretoken::cuda {

// Of the chosen device. An error where no kernel that was compiled runs on it.
cudaError_t ask_code(KernelCode& code);

}  // namespace foretoken::cuda
