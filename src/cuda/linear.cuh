// What the products of all layouts share: how the inputs are cut into parts (super-blocks: q4k.cuh), the instruction,
// the columns of a launch, and the sum of the parts. Weights are the M operand, token rows the N columns of the one
// instruction; columns never meet.
#pragma once

#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "cuda/mma.cuh"
#include "cuda/plans.h"

namespace foretoken::cuda {

constexpr int kMaxSplit = 16;

struct Split {
  int parts = 1, units = 1, unit_tiles = 1;  // part p takes units [p * units / parts, (p + 1) * units / parts)
};

// Of the weight's shape alone. Narrow weights have few outputs for the device's warps, so their sums are cut into more
// parts.
inline Split split_of(const Part& part) {
  const int tiles = static_cast<int>(padded_cols(part.cols) / 64);
  Split s;
  s.unit_tiles = tiles % 4 == 0 ? 4 : 1;
  s.units = tiles / s.unit_tiles;
  const int64_t outputs = (part.rows + 15) / 16;
  const int wanted = outputs >= 1024 ? 4 : outputs >= 512 ? 8 : 12;
  s.parts = s.units < kMaxSplit ? s.units : kMaxSplit;
  for (int p = wanted; p <= kMaxSplit; ++p)
    if (s.units % p == 0) {
      s.parts = p;
      break;
    }
  return s;
}

// The rows of one block of columns: consecutive, or the pairs of one expert.
struct Columns {
  const uint16_t* x = nullptr;  // [rows][padded cols]
  int64_t padded = 0;
  float* out = nullptr;
  int64_t stride = 0, first = 0;
  int64_t rows = 0;
  // Experts only.
  const Part* parts = nullptr;
  int64_t codes_at = 0;  // where an item has the address of its codes; 0: they are found in `parts`
  int64_t experts = 0, pairs = 0, item_limit = 0;
  const ExpertItem* items = nullptr;
  const int* item_count = nullptr;
  const int* order = nullptr;
  int64_t divisor = 1;
  // Paired parts only: in place of `out`.
  Hidden hidden;
};

template <int kBlocks>
inline size_t sums_bytes(const Split& split) {
  return static_cast<size_t>(split.parts) * kBlocks * 8 * 17 * sizeof(float);
}

// The parts of sixteen outputs in ascending order; `sums` [parts][columns][17].
template <int kBlocks, bool kExperts>
FORETOKEN_DEVICE void add_parts(const float* sums, const Split& split, const Columns& columns, int64_t outputs,
                                int64_t m, int first_column, int count, const int* order) {
  for (int i = threadIdx.x; i < kBlocks * 128; i += blockDim.x) {
    const int column = i / 16, row = i % 16;
    const int64_t o = m * 16 + row;
    if (column >= count || o >= outputs) continue;
    float sum = sums[column * 17 + row];
    for (int q = 1; q < split.parts; ++q) sum = __fadd_rn(sum, sums[(q * kBlocks * 8 + column) * 17 + row]);
    int64_t to = first_column + column;
    if constexpr (kExperts) to = order[column];
    columns.out[to * columns.stride + columns.first + o] = sum;
  }
}

// Formats of super-blocks (linear_q4k.cu, linear_q4k_wide.cu). Sums of slice s go to out + s * plane.
inline bool has_super_blocks(const Part& part) { return part.layout == Layout::kQ4K || part.layout == Layout::kQ6K; }
void run_few(const Part& part, const Columns& columns, int64_t plane, Queue& queue);
void run_many(const Part& part, const Columns& columns, int64_t plane, void* arranged, Queue& queue);
void run_few_experts(const Part& like, const Columns& columns, int64_t plane, int item_limit, Queue& queue);
int super_block_slices(const Part& part);
size_t arranged_bytes(const Part& part, int64_t rows);  // that run_many needs

}  // namespace foretoken::cuda
