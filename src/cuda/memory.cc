// Allocation and small uploads.
#include "cuda/memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>

namespace foretoken::cuda {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "foretoken: the CUDA device failed in {}: {}; try again, or use --backend cpu\n", what, cudaGetErrorString(error));
  std::fflush(nullptr);
  ::_exit(4);
}

namespace {

// At exit the device may be gone before the last owner.
void release_device(std::byte* p) { cudaFree(p); }
void release_pinned(std::byte* p) { cudaFreeHost(p); }

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

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

Uploads::Uploads(cudaStream_t stream)
    : stream_(stream), pinned_(pinned_memory(kRing)), ring_(device_memory(kRing)), kept_(device_memory(kKnown)) {}

size_t Uploads::reserve(size_t bytes) {
  CHECK(bytes <= kRing);
  if (at_ + bytes > kRing) {  // the oldest data may still be read
    check(cudaStreamSynchronize(stream_), "an operator");
    at_ = 0;
  }
  const size_t at = at_;
  at_ += rounded(bytes);
  return at;
}

const void* Uploads::once(const void* data, size_t bytes) {
  if (bytes == 0) return ring_.data();
  const size_t at = reserve(bytes);
  std::memcpy(pinned_.data() + at, data, bytes);
  check(cudaMemcpyAsync(ring_.data() + at, pinned_.data() + at, bytes, cudaMemcpyHostToDevice, stream_), "an upload");
  return ring_.data() + at;
}

const void* Uploads::known(const void* data, size_t bytes) {
  if (bytes == 0) return kept_.data();
  if (kept_at_ + bytes > kKnown) return once(data, bytes);
  std::string key(static_cast<const char*>(data), bytes);
  if (const auto it = known_.find(key); it != known_.end()) return it->second;
  std::byte* to = kept_.data() + kept_at_;
  kept_at_ += rounded(bytes);
  const size_t at = reserve(bytes);
  std::memcpy(pinned_.data() + at, data, bytes);
  check(cudaMemcpyAsync(to, pinned_.data() + at, bytes, cudaMemcpyHostToDevice, stream_), "an upload");
  known_.emplace(std::move(key), to);
  return to;
}

void Uploads::make_room() {
  if (kept_at_ <= kKnown / 2) return;
  check(cudaStreamSynchronize(stream_), "an operator");
  known_.clear();
  kept_at_ = 0;
  ++age_;
}

std::byte* Uploads::staging(size_t bytes) { return bytes <= kRing / 4 ? pinned_.data() + reserve(bytes) : nullptr; }

}  // namespace foretoken::cuda
