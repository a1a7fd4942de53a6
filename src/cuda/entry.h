// What the shared library and the program agree on: the names of its two functions.
#pragma once

#include "ops/ops.h"

extern "C" {
// kBackendInterface of the build.
int foretoken_cuda_interface();
// A backend on the first device, or null and one sentence in `error` (bytes of them, with the end).
foretoken::Backend* foretoken_cuda_create(const foretoken::CudaOptions& options, char* error, size_t bytes);
}
