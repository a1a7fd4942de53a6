// How much shared memory kernels ask for and how many blocks of threads there are: pure functions of shape and limits.
// Bits never depend on a plan. Host code without CUDA; kernels share its constants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

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
inline constexpr int kMostStages = 6;       // of a warp: super-blocks on their way
inline constexpr int kColumnStride = 20;    // floats of sixteen outputs of a column: no two lanes meet in a bank
inline constexpr int kKeptBytes = 8 * 512;  // a warp's inputs of the second block of columns
// Tiles whose values wait to be added.
constexpr int buffers_of(int blocks) { return blocks == 1 ? 3 : 2; }
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
constexpr int core_threads(int dim) { return 2 * dim; }
// Keys of all rows, queries of a chunk, its values, the window, a few words.
constexpr size_t core_bytes(int dim) {
  const int pieces = dim + 4 * kKeyPieces;  // floats of a row of keys
  return static_cast<size_t>((kMostCoreRows + kCoreChunkRows) * pieces +
                             (kCoreChunkRows + 3 * (kCoreChunkRows + kCoreTaps - 1)) * dim) *
             4 +
         256;
}
static_assert(core_bytes(128) <= kLeastShared);

// ---- Attention through shared memory (attention_staged.cu, attention_prompt.cu)

inline constexpr int kSpanWarps = 8, kMaxDim = 256;
inline constexpr int kSpanBlocks = kSpanTokens / kPageTokens;  // 16

// What is on its way of keys and values.
struct SpanRoom {
  int chunk_dims = 0;  // dimensions of keys that are staged together
  int own_values = 0;  // blocks of values with room of their own; the next take the keys'
  constexpr int block_chunk() const { return chunk_dims * kPageTokens * 2; }
  constexpr int chunk_pitch() const { return block_chunk() + 64; }  // two blocks meet different banks
  constexpr int key_bytes() const { return kSpanWarps * kKeySlots * 2 * chunk_pitch(); }
  constexpr int value_slots() const { return own_values + key_bytes() / kValueSlot; }
  constexpr int bytes() const { return key_bytes() + own_values * kValueSlot; }
  static constexpr int kKeySlots = 2;  // chunks on their way, of a warp
  static constexpr int kValueSlot = kMaxDim * kPageTokens * 2;
};
inline constexpr SpanRoom kLargeSpans{64, 4}, kSmallSpans{16, 2};
// Beside the room: queries, weights and sums of `heads` query heads, barriers.
constexpr size_t staged_bytes(SpanRoom room, int heads) {
  return static_cast<size_t>(room.bytes() + heads * (kMaxDim + kSpanTokens + 3 * kSpanBlocks + 2) * 4 + 512);
}

// Four rows with the query heads of one K/V head.
inline constexpr int kPromptRows = 4;
constexpr SpanRoom large_prompt(int heads) { return {32, heads > 6 ? 3 : 4}; }
inline constexpr SpanRoom kSmallPrompt{8, 1};
constexpr size_t prompt_bytes(SpanRoom room, int heads) {
  return static_cast<size_t>(room.bytes() + kPromptRows * heads * (kMaxDim + kSpanTokens + 3 * kSpanBlocks + 2) * 4 +
                             512);
}

// Heads that share what is staged, and whether in the small room; no heads: the kernel without staging. The cost is in
// microseconds of an H200 as measured there: a block of threads has a multiprocessor for itself and takes a fixed time
// for what it stages, and some for each head of each row.
struct SpanPlan {
  int heads = 0;
  bool small = false;
  double cost = std::numeric_limits<double>::infinity();
};
// Blocks of threads of one row where all of a group's query heads share. Not all `places` for spans are taken
// (backend.cc).
double span_blocks(int places, int kv_heads);
// `blocks`: span_blocks, times rows or times groups of kPromptRows.
SpanPlan plan_staged_spans(int group, double blocks, const Limits& limits);
SpanPlan plan_prompt_spans(int group, double blocks, const Limits& limits);

}  // namespace foretoken::cuda
