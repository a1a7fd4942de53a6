// The shared library's entry: is there a device that kernels were compiled for?
#include "cuda/entry.h"

#include <fmt/format.h>

#include <cstring>

#include "cuda/backend.h"
#include "cuda/code.h"

namespace {

foretoken::Backend* fail(char* error, size_t bytes, const std::string& sentence) {
  const size_t count = std::min(sentence.size(), bytes - 1);
  std::memcpy(error, sentence.data(), count);
  error[count] = 0;
  return nullptr;
}

}  // namespace

int foretoken_cuda_interface() { return foretoken::kBackendInterface; }

foretoken::Backend* foretoken_cuda_create(const foretoken::CudaOptions& options, char* error, size_t bytes) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0)
    return fail(error, bytes, fmt::format("there is no usable NVIDIA device ({})", status == cudaSuccess ? "none found" : cudaGetErrorString(status)));
  int major = 0, minor = 0;
  foretoken::cuda::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "asking for properties");
  foretoken::cuda::check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "asking for properties");
  foretoken::cuda::check(cudaSetDevice(0), "choosing a device");
  foretoken::cuda::KernelCode code;
  const cudaError_t asked = foretoken::cuda::ask_code(code);
  if (asked != cudaSuccess)
    return fail(error, bytes,
                fmt::format("the device is sm_{}{}, and the kernels were compiled for {}: {}", major, minor,
                            FORETOKEN_CUDA_ARCHITECTURES, cudaGetErrorString(asked)));
  return new foretoken::cuda::CudaBackend(0, code, options);
}
