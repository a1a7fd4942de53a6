// What a backend that computes on the host needs no kernel for: plain buffers, copies, scaling, and looking for what is not finite.
#include <algorithm>
#include <bit>
#include <cstring>

#include "ops/checks.h"
#include "ops/ops.h"

namespace foretoken {
namespace {

void copy_rows(View from, View to) {
  checks::copy(from, to);
  const size_t element = dtype_bytes(from.dtype);
  for (int64_t r = 0; r < from.rows; ++r)
    std::memcpy(to.data + static_cast<size_t>(r * to.stride) * element, from.data + static_cast<size_t>(r * from.stride) * element,
                static_cast<size_t>(from.cols) * element);
}

// The greatest magnitude, as its bits: those of infinities and NaN are above all others'. A maximum of integers, which compilers make
// vectors of.
uint32_t greatest_bits(const float* x, int64_t count) {
  uint32_t greatest = 0;
  for (int64_t i = 0; i < count; ++i) greatest = std::max(greatest, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu);
  return greatest;
}

bool finite(const float* x, int64_t count) {
  constexpr int64_t kBlock = 4096;  // known to the compiler, and short enough that a damaged state is found early
  constexpr uint32_t kInfinity = 0x7F800000u;
  for (; count >= kBlock; x += kBlock, count -= kBlock)
    if (greatest_bits(x, kBlock) >= kInfinity) return false;
  return greatest_bits(x, count) < kInfinity;
}

}  // namespace

Buffer Backend::allocate(size_t bytes) { return Buffer(bytes); }
Buffer Backend::allocate_staging(size_t bytes) { return Buffer(bytes); }
void Backend::upload(View host, View to) { copy_rows(host, to); }
void Backend::download(View from, View host) { copy_rows(from, host); }
void Backend::copy(View from, View to) { copy_rows(from, to); }

void Backend::clear(View memory) {
  const size_t element = dtype_bytes(memory.dtype);
  for (int64_t r = 0; r < memory.rows; ++r)
    std::memset(memory.data + static_cast<size_t>(r * memory.stride) * element, 0, static_cast<size_t>(memory.cols) * element);
}

bool Backend::all_finite(std::span<const View> views) {
  CHECK(on_host());
  for (const View& view : views) {
    checks::shape(view, -1, -1);
    for (int64_t r = 0; r < view.rows; ++r)
      if (!finite(view.f32(r), view.cols)) return false;
  }
  return true;
}

TransferId Backend::begin_transfer(std::span<const TransferPiece> pieces, TransferWay way) {
  for (const TransferPiece& piece : pieces) {
    const int64_t count = static_cast<int64_t>(piece.bytes);
    const View from{const_cast<std::byte*>(piece.from), DType::kU8, 1, count, count}, to{piece.to, DType::kU8, 1, count, count};
    if (way == TransferWay::kToStaging) download(from, to);
    else upload(from, to);
  }
  return 0;
}

void Backend::keep_table(const MatrixSource&) {}

void Backend::scale(View inout, float factor) {
  checks::shape(inout, -1, -1);
  for (int64_t r = 0; r < inout.rows; ++r)
    for (int64_t c = 0; c < inout.cols; ++c) inout.f32(r)[c] *= factor;
}

}  // namespace foretoken
