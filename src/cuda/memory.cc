// Allocation.
#include "cuda/memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>

#include "cuda/queue.h"

namespace foretoken::cuda {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "foretoken: the CUDA device failed in {}: {}; try again, or use --backend cpu\n", what,
             cudaGetErrorString(error));
  std::fflush(nullptr);
  ::_exit(4);
}

namespace {

// At exit the device may be gone before the last owner. What was enqueued may use the memory.
void release_device(std::byte* p) {
  Queue::flush_all();
  cudaFree(p);
}
void release_pinned(std::byte* p) { cudaFreeHost(p); }

}  // namespace

Buffer device_memory(size_t bytes) {
  if (bytes == 0) return Buffer();
  void* p = nullptr;
  const cudaError_t error = cudaMalloc(&p, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw std::bad_alloc();
  }
  check(error, "an allocation");
  check(cudaMemset(p, 0, bytes), "clearing memory");
  check(cudaDeviceSynchronize(), "clearing memory");
  return Buffer(static_cast<std::byte*>(p), bytes, release_device);
}

Buffer pinned_memory(size_t bytes) {
  if (bytes == 0) return Buffer();
  void* p = nullptr;
  const cudaError_t error = cudaMallocHost(&p, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw std::bad_alloc();
  }
  check(error, "a host allocation");
  std::memset(p, 0, bytes);
  return Buffer(static_cast<std::byte*>(p), bytes, release_pinned);
}

std::byte* DeviceScratch::take_bytes(size_t bytes) {
  if (memory_.size() < bytes) {
    memory_ = Buffer();
    memory_ = device_memory(bytes + bytes / 4);
  }
  return memory_.data();
}

}  // namespace foretoken::cuda
