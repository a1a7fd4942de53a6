// Device memory that lives as long as its owner. Failures of the device end the process with one
// sentence (exit status 4); a lack of memory is std::bad_alloc, as on the host.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "numerics/tensor.h"

namespace foretoken::cuda {

// Ends the process when `error` is one.
void check(cudaError_t error, const char* what);

Buffer device_memory(size_t bytes);  // zeroed
Buffer pinned_memory(size_t bytes);

// Working memory that grows to the largest request; valid until the next request. Growing waits for the device.
class DeviceScratch {
 public:
  template <class T>
  T* take(size_t count) {
    return reinterpret_cast<T*>(take_bytes(count * sizeof(T)));
  }

 private:
  std::byte* take_bytes(size_t bytes);
  Buffer memory_;
};

}  // namespace foretoken::cuda
