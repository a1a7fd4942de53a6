// What a backend that computes on the host needs no kernel for: plain buffers, copies and scaling.
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
