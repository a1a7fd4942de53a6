// Weights in the order in which the kernels read them. Packing moves bits and never changes a value.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/threads.h"
#include "cpu/kernels.h"
#include "ops/ops.h"

namespace foretoken::cpu {

// Raised when bytes that were packed before would be read otherwise now. (Layouts are compared by what they pack, too: PackedSet.)
inline constexpr int kPackingVersion = 1;

// Owns or borrows its packed bytes; parts lie one behind the other.
class PackedMatrix final : public Matrix {
 public:
  // `memory`: owns `packed`, with what kernels may touch behind it; empty where it is borrowed.
  PackedMatrix(int64_t rows, int64_t cols, Buffer memory, std::span<const std::byte> packed, std::vector<PackedPart> parts)
      : Matrix(rows, cols, packed.size()), memory_(std::move(memory)), packed_(packed), parts_(std::move(parts)) {}
  std::span<const PackedPart> parts() const { return parts_; }
  std::span<const std::byte> packed() const override { return packed_; }

 private:
  Buffer memory_;
  std::span<const std::byte> packed_;
  std::vector<PackedPart> parts_;
};

// Outputs are the parts' rows in order; each part keeps its format. CHECKs shapes, sizes and orders.
std::unique_ptr<const PackedMatrix> pack_matrix(std::span<const MatrixSource> sources, ThreadPool& pool);
// The same matrix over bytes that were packed before, which are borrowed. Null when they have another size.
std::unique_ptr<const PackedMatrix> adopt_matrix(std::span<const MatrixSource> sources, std::span<const std::byte> packed);

// Outputs per group of a format.
int group_outputs(QuantFormat format);
int64_t group_count(const PackedPart& part);

}  // namespace foretoken::cpu
