// The runtime chooses among what was compiled; the chosen kernel says what it is. So nothing here repeats its rules:
// machine code serves its own architecture and later ones of the same generation, an `a` exactly its own, text every
// later device.
#include "cuda/code.h"
#include "cuda/device.cuh"

namespace foretoken::cuda {
namespace {

__global__ void report_kernel(KernelCode* code) {
#ifdef __CUDA_ARCH__
  *code = {__CUDA_ARCH__ / 10, kWgmma, kDependentLaunch, false};
#endif
}

}  // namespace

cudaError_t ask_code(KernelCode& code) {
  cudaFuncAttributes attributes;
  cudaError_t status = cudaFuncGetAttributes(&attributes, report_kernel);
  if (status != cudaSuccess) return status;
  KernelCode* reported = nullptr;
  status = cudaMalloc(&reported, sizeof(KernelCode));
  if (status != cudaSuccess) return status;
  report_kernel<<<1, 1>>>(reported);
  status = cudaMemcpy(&code, reported, sizeof(KernelCode), cudaMemcpyDeviceToHost);
  cudaFree(reported);
  code.from_text = attributes.binaryVersion != attributes.ptxVersion;
  return status;
}

}  // namespace foretoken::cuda
