// The shared library's entry: is there a device that the kernels were compiled for?
#include "cuda/entry.h"

#include <fmt/format.h>

#include <cstring>

#include "cuda/backend.h"

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
  const std::string compiled = FORETOKEN_CUDA_ARCHITECTURES;  // "90a,86": machine code only, nothing is compiled at run time
  const std::string wanted = std::to_string(major) + std::to_string(minor);
  bool found = false;
  for (size_t begin = 0; begin < compiled.size();) {
    const size_t end = std::min(compiled.find(',', begin), compiled.size());
    std::string one = compiled.substr(begin, end - begin);
    if (!one.empty() && one.back() == 'a') one.pop_back();
    found = found || one == wanted;
    begin = end + 1;
  }
  if (!found)
    return fail(error, bytes, fmt::format("the device is sm_{}, and the kernels were compiled for sm_{} only", wanted, compiled));
  return new foretoken::cuda::CudaBackend(0, options);
}
