// How much shared memory kernels ask for and how many blocks of threads there are: pure functions of shape and limits.
// Bits never depend on a plan. Host code without CUDA; kernels share its constants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "cuda/limits.h"
#include "ops/batch.h"

namespace foretoken::cuda {

// ---- Products of Q4_K and Q6_K, few rows (linear_q4k.cu)

// Super-blocks are cut into slices, of the number of inputs alone; a block of threads adds up one slice, a warp a
// super-block.
struct Slices {
  int units = 0, count = 1;
  constexpr int begin(int slice) const { return slice * units / count; }
  constexpr int most() const { return (units + count - 1) / count; }
};
constexpr Slices cut(int64_t cols, int most_units) {
  const int units = static_cast<int>(cols / 256);
  return {units, (units + most_units - 1) / most_units};
}

// A packed super-block of sixteen outputs, and super-blocks of a slice at most.
struct SuperBlock {
  int bytes = 0, most_units = 0;
};
inline constexpr SuperBlock kQ4KBlock{2368, 20}, kQ6KBlock{3360, 12};

inline constexpr int kFewRows = 16;         // two blocks of eight columns
inline constexpr int kMostStages = 4;       // of a warp: super-blocks on their way; a power of two
inline constexpr int kColumnStride = 20;    // floats of sixteen outputs of a column: no two lanes meet in a bank
inline constexpr int kKeptBytes = 8 * 512;  // a warp's inputs of the second block of columns
// Tiles whose values wait to be added.
constexpr int buffers_of(int blocks) { return blocks == 1 ? 4 : 2; }
// Floats of a super-block's values.
constexpr int values_of(int blocks) { return blocks * 8 * kColumnStride; }

struct FewRowsTask {
  Slices slices;
  int unit_bytes = 0;  // of a super-block
  int blocks = 1;      // of eight columns
  bool experts = false;
  int residents = 1;   // blocks of threads whose registers a multiprocessor has at once: what the kernel's code allows
  int tiles = 0;       // of sixteen outputs
  int64_t items = 1;   // experts: items at most
  int64_t groups = 1;  // of rows, blocks of threads of their own
};
struct FewRowsPlan {
  int warps = 1, stages = 1;
  int resident = 1;  // blocks of threads of a multiprocessor
  int places = 1;    // blocks of threads of a slice and group
  size_t shared = 0;
};
// Without a stage (0) the task does not fit.
FewRowsPlan plan_few_rows(const FewRowsTask& task, const Limits& limits);
// Rows that a block of threads takes: 16, or 8 where more do not fit.
int few_rows_at_once(const Slices& slices, int unit_bytes, const Limits& limits);

// ---- Products of many rows (linear_q4k_wide.cu)

inline constexpr size_t kWideShared = 224 * 1024;  // of a block of threads, which a multiprocessor has one of
// Warpgroups of a block of threads that multiply: few idle in the last round.
int wide_groups(int64_t items_of_one, int most, const Limits& limits);

// ---- The delta net of few rows (delta_core.cu)

inline constexpr int kCoreTaps = 4, kCoreChunkRows = 8;
inline constexpr int kMostCoreRows = 32;  // of a lane
constexpr int core_threads(int dim) { return 4 * dim; }
// Keys of all rows, queries of a chunk, its values, the window, weights of the norm, a few words.
constexpr size_t core_bytes(int dim) {
  const int pieces = dim + 4 * kKeyPieces;  // floats of a row of keys
  return static_cast<size_t>((kMostCoreRows + kCoreChunkRows) * pieces +
                             (kCoreChunkRows + 3 * (kCoreChunkRows + kCoreTaps - 1) + 1) * dim) *
             4 +
         256;
}
static_assert(core_bytes(128) <= kLeastShared);

// ---- Attention (attention.cu, attention_tiles.cu)

inline constexpr int kMaxDim = 256;
inline constexpr int kSpanBlocks = kSpanTokens / kPageTokens;  // 16

// By the matrix unit: bf16 keys and values of heads of 64, 128 or 256, at most 64 query heads a K/V head. A warp scores
// a block of 32 positions of a span, spans are merged within groups, groups with each other, all by absolute position.
inline constexpr int kTileWarps = 8, kTileSpan = 256, kTileGroup = 8;  // spans of a group
inline constexpr int kTileStageBytes = 32 * 1024, kMostTileStages = 6, kTileQueryBytes = 92;
inline constexpr size_t kTileStatic = 640;  // beside what a plan asks for
constexpr bool tiles_run(int group, int dim, KvFormat format) {
  return format == KvFormat::kBF16 && (dim == 64 || dim == 128 || dim == 256) && group <= 64;
}
// Shared memory of a block of threads with `tiles` of sixteen queries: stages, halves of queries and of weights.
constexpr size_t tile_bytes(int dim, int tiles, int stages) {
  return static_cast<size_t>(stages * kTileStageBytes + tiles * 16 * (2 * 2 * (dim + kTileSpan) + kTileQueryBytes));
}

struct SpanLane {
  int rows = 1;
  bool tree = false;
};
struct SpanShape {
  int query_heads = 0, kv_heads = 0, dim = 0;
  KvFormat format = KvFormat::kBF16;
  int64_t most_visible = 0;  // positions that a row of the pass sees at most
  std::span<const SpanLane> lanes;
};
// Units that blocks of threads take: spans, or whole groups of them. Bits do not depend on it.
struct SpanPlan {
  int unit_tokens = kSpanTokens;
  int units_of_group = 1;  // that are merged before groups are
  int64_t units = 1;  // places for them: more than there are, so that a pass keeps its shape while its context grows
  int tiles = 0;      // of sixteen queries of a block of threads; 0: the kernel of every shape and format
  int stages = 0;
  int items = 0;  // of all lanes, each a block of threads for every unit and K/V head
};
// The tiles of a lane's queries, or where it is a tree and that is more, its rows.
struct SpanItem {
  int lane = 0, item = 0;
};
int items_of(const SpanLane& lane, int group, int tiles);
// The cost of tiles is in microseconds of an H200 as measured there.
SpanPlan plan_spans(const SpanShape& shape, const Limits& limits);

}  // namespace foretoken::cuda
