// Weights in the order in which the kernels read them. Packing moves bits and never changes a value.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/threads.h"
#include "cpu/kernels.h"
#include "ops/ops.h"

namespace foretoken::cpu {

// Owns its packed bytes; parts lie one behind the other in `memory`.
class PackedMatrix final : public Matrix {
 public:
  PackedMatrix(int64_t rows, int64_t cols, Buffer memory, std::vector<PackedPart> parts)
      : Matrix(rows, cols, memory.size()), memory_(std::move(memory)), parts_(std::move(parts)) {}
  std::span<const PackedPart> parts() const { return parts_; }

 private:
  Buffer memory_;
  std::vector<PackedPart> parts_;
};

// Outputs are the parts' rows in order; each part keeps its format. CHECKs shapes, sizes and orders.
std::unique_ptr<const PackedMatrix> pack_matrix(std::span<const MatrixSource> sources, ThreadPool& pool);

// Outputs per group of a format.
int group_outputs(QuantFormat format);
int64_t group_count(const PackedPart& part);

}  // namespace foretoken::cpu
