// View: a borrowed two-dimensional matrix of rows; Buffer: the memory behind one. Shape and dtype travel with the pointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/check.h"
#include "numerics/dtype.h"

namespace foretoken {

// Rows are contiguous; consecutive rows lie `stride` elements apart. Borrows: valid while its owner lives.
struct View {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0;
  int64_t stride = 0;  // elements from one row to the next, >= cols

  static View of(float* data, int64_t rows, int64_t cols) {
    return {reinterpret_cast<std::byte*>(data), DType::kF32, rows, cols, cols};
  }
  float* f32(int64_t row = 0) const {
    DCHECK(dtype == DType::kF32);
    return reinterpret_cast<float*>(data) + row * stride;
  }
  View columns(int64_t begin, int64_t end) const {
    CHECK(begin >= 0);
    CHECK(begin <= end);
    CHECK(end <= cols);
    return {data + static_cast<size_t>(begin) * dtype_bytes(dtype), dtype, rows, end - begin, stride};
  }
  View row_range(int64_t begin, int64_t end) const {
    CHECK(begin >= 0);
    CHECK(begin <= end);
    CHECK(end <= rows);
    return {data + static_cast<size_t>(begin * stride) * dtype_bytes(dtype), dtype, end - begin, cols, stride};
  }
  bool empty() const { return rows == 0 || cols == 0; }
};

// Owns 64-byte aligned, zeroed memory: the host's, or what a backend hands out (Backend::allocate). Move-only.
class Buffer {
 public:
  using Release = void (*)(std::byte*);
  Buffer() = default;
  explicit Buffer(size_t bytes);
  // Takes over `bytes` at `data`, to be given back by `release`.
  Buffer(std::byte* data, size_t bytes, Release release) : data_(data, Free{release}), size_(bytes) {}
  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  View view(int64_t rows, int64_t cols, DType dtype = DType::kF32) const {
    CHECK(static_cast<size_t>(rows * cols) * dtype_bytes(dtype) <= size_);
    return {data_.get(), dtype, rows, cols, cols};
  }

 private:
  static void free_host(std::byte* p);
  struct Free {
    Free() : release(free_host) {}
    explicit Free(Release r) : release(r) {}
    Release release;
    void operator()(std::byte* p) const { release(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

}  // namespace foretoken
