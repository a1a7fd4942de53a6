// Kernels of block drafters (draft.inl) and the plain structs they take. Only plain data, as in kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/operator_kernels.h"

namespace foretoken::cpu {

// Query heads over one K/V head of one lane: `rows` rows with `group` heads each, row-major. Positions count from slot 0; `pages`
// is the ring: position p lies in page p / kBlockTokens modulo page_count.
struct DraftTile {
  const float* queries[kTileQueries];
  float* outs[kTileQueries];
  int64_t begin[kTileQueries], end[kTileQueries];  // positions that the row sees
  int rows, group, dim, format;
  std::byte* const* pages;
  int64_t page_count;
  KvOffsets offsets;
};

// One row of a grouped dynamic convolution.
struct DraftConvRow {
  const float* x;      // the row before it lies `stride` values earlier
  const float* delta;  // [taps][groups]
  float* out;
  int taps;            // that meet rows of the block
};
struct DraftConvTask {
  const DraftConvRow* rows;
  const float* base;  // [taps] rows of `base_stride`
  int64_t base_stride, stride, cols;
  int group;
};

struct DraftKernels {
  void (*attend)(const DraftTile& tile, AttentionScratch& scratch, AttentionState& state);
  void (*conv)(const DraftConvTask& task, int64_t row_begin, int64_t row_end);
  // The k largest, falling, ties to the lower index; NaN counts as -inf.
  void (*top_k)(const float* values, int64_t count, int k, int32_t* ids, float* largest);
  // edges[a * k + b] = sum_r (predecessors[a, r] * weights[r]) * successors[b, r]; rows of `rank` values. `weighted`: rank values.
  void (*edges)(const float* weights, const float* predecessors, const float* successors, int k, int64_t rank, float* weighted,
                float* edges);
};

}  // namespace foretoken::cpu
