// Device memory that lives as long as its owner, and the small uploads of a pass. Failures of the device end the process with one
// sentence (exit status 4); a lack of memory is std::bad_alloc, as on the host.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

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

// Copies of small host data on the device. What `once` is given lies there until much later data overwrites it: long enough for
// operators enqueued next. What `known` is given is kept and found again by its content, so that what does not change is sent once.
class Uploads {
 public:
  explicit Uploads(cudaStream_t stream);
  const void* once(const void* data, size_t bytes);
  const void* known(const void* data, size_t bytes);
  template <class T>
  const T* once(std::span<const T> data) {
    return static_cast<const T*>(once(data.data(), data.size_bytes()));
  }
  template <class T>
  const T* known(std::span<const T> data) {
    return static_cast<const T*>(known(data.data(), data.size_bytes()));
  }
  // Forgets what is known when it takes much room: between operators only, since it ends the life of what `known` returned.
  void make_room();
  // How often that has happened: what `known` returned lives while this stands still.
  int age() const { return age_; }
  // Pinned room for `bytes`, or null when they are too many: valid for one copy enqueued next.
  std::byte* staging(size_t bytes);

 private:
  static constexpr size_t kRing = 16u << 20, kKnown = 16u << 20;
  size_t reserve(size_t bytes);
  cudaStream_t stream_;
  Buffer pinned_, ring_, kept_;
  size_t at_ = 0, kept_at_ = 0;
  int age_ = 0;
  std::unordered_map<std::string, const void*> known_;
};

}  // namespace foretoken::cuda
