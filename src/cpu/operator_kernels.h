// Kernels of everything but the matrix products, and the plain structs they take: elementwise.inl, moe.inl,
// attention.inl and delta.inl. Only plain data, as in kernels.h. Every kernel computes a range of outputs; no range
// changes an output's bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foretoken::cpu {

// ---- Rows and heads of values (elementwise.inl).

struct NormTask {
  const float* x;
  int64_t x_stride;
  const float* gate;  // gated norm only
  int64_t gate_stride;
  const float* weight;  // [dim], shared by all heads
  float epsilon;
  int dim, heads;  // a row holds `heads` heads of `dim` values
  bool sigmoid_gate;
  float* out;  // may be x
  int64_t out_stride;
};

// One row of the causal convolution: `inputs` points at its kernel source rows, oldest first, itself last.
struct ConvRow {
  const float* const* inputs;
  float* out;
  float* tape;  // where the row itself is kept, or nullptr
};
// A row of a tail and the row that replaces it, in the order in which they may be moved.
struct TailMove {
  float* to;
  const float* from;
};
struct ConvTask {
  const ConvRow* rows;
  int64_t row_count;
  const TailMove* moves;
  int64_t move_count;
  const float* weight;  // row c: the taps of channel c, oldest first
  int64_t weight_stride;
  int kernel;  // at most kMaxConvKernel
};
inline constexpr int kMaxConvKernel = 16;
inline constexpr int kConvChannels = 256;  // channels that one thread takes at a time

struct ElementwiseKernels {
  void (*rms_norm)(const NormTask& task, int64_t begin, int64_t end);  // heads [begin, end) of all rows, row-major
  void (*gated_norm)(const NormTask& task, int64_t begin, int64_t end);
  void (*add)(const float* x, float* inout, int64_t count);
  // Channels [begin, end) of every row, then of the tails.
  void (*causal_conv)(const ConvTask& task, int64_t begin, int64_t end);
};

// ---- Routing (moe.inl).

// out = sum over j of weights[j] * y[j] by fma in order from +0, then fma(sigmoid(shared_gate), shared, out).
struct CombineTask {
  const float* const* y;  // [top_k]
  const float* weights;
  int top_k;
  const float* shared;
  float shared_gate;
  float* out;
};

struct MoeKernels {
  // The experts of one row by logit descending, id ascending, and their weights.
  void (*route)(const float* logits, int experts, int top_k, int32_t* chosen, float* weights);
  void (*combine)(const CombineTask& task, int64_t begin, int64_t end);  // columns
};

// ---- Attention (attention.inl). Formats are KvFormat as integers: 0 fp32, 1 bf16, 2 int8.

inline constexpr int kBlockTokens = 32;
inline constexpr int kSpanBlocks = 16;
inline constexpr int kMaxAttentionDim = 256;
inline constexpr int kTileQueries = 32;  // query heads that share one pass over K and V

// Where K and V of one layer and head lie inside a page.
struct KvOffsets {
  size_t key, value, key_scale, value_scale;
};

struct HeadTask {
  const float* x;       // [dim] before the norm
  const float* weight;  // [dim]
  float epsilon;
  int dim;
  const float* rotary;  // cos of every pair, then sin
  int rotary_dim;
};

// Query heads over one K/V head of one lane: `rows` rows with `group` heads each, row-major.
struct AttentionTile {
  const float* queries[kTileQueries];
  const float* gates[kTileQueries];
  float* outs[kTileQueries];
  int64_t visible[kTileQueries];  // logical positions that the row sees
  const int64_t*
      path[kTileQueries];  // slots of logical positions gather_from, gather_from + 1, ...; nullptr for chains
  int rows, group, dim, format;
  int64_t gather_from;  // logical positions below it lie in the slot of the same number
  std::byte* const* pages;
  KvOffsets offsets;
};

// Softmax state of a tile over some spans. An absent query (nothing visible there) has l == 0 and is not merged.
struct AttentionState {
  float m[kTileQueries], l[kTileQueries];
  float o[kTileQueries * kMaxAttentionDim];  // row q starts at q * kMaxAttentionDim
};

// Buffers of one thread.
struct AttentionScratch {
  float queries[kMaxAttentionDim * kTileQueries];  // [dim][kTileQueries]
  float key[kMaxAttentionDim * kBlockTokens];      // [dim][32], gathered and widened
  float value[kBlockTokens * kMaxAttentionDim];    // [32][dim], gathered and widened
  float value_tail[kBlockTokens * 16];             // the last dim % 16 columns of a value block
  float key_scale[kBlockTokens], value_scale[kBlockTokens];
  float scores[kTileQueries * kBlockTokens];  // then the weights of the values
  float rescale[kTileQueries];
};

struct AttentionKernels {
  // Norm and rotation of one head.
  void (*query_head)(const HeadTask& task, float* out);
  // Norm, rotation, rounding and storage of a key; storage of a value. `token` is the slot inside the page.
  void (*store_key)(const HeadTask& task, int format, std::byte* page, const KvOffsets& offsets, int token);
  void (*store_value)(const float* x, int dim, int format, std::byte* page, const KvOffsets& offsets, int token);
  // One span from its own start.
  void (*attend_span)(const AttentionTile& tile, int64_t span, AttentionScratch& scratch, AttentionState& state);
  // a := a merged with span b behind it; queries absent in b keep a.
  void (*merge_span)(const AttentionTile& tile, int64_t span_of_b, const AttentionState& b, AttentionState& a);
  void (*finish)(const AttentionTile& tile, const AttentionState& state);
};

// ---- Gated delta rule (delta.inl).

inline constexpr int kDeltaPieces = 8;    // kKeyPieces of ops/batch.h
inline constexpr int kDeltaColumns = 64;  // state columns that one thread takes at a time: their block stays in L1
inline constexpr int kDeltaSingleColumns = 128;  // the same for a lane of a single row, which streams the state once

// Normalised heads and gates of one row.
struct DeltaRowTask {
  const float* conv;        // q | k | v
  const float* beta_alpha;  // b | a
  const float* decay_rate;
  const float* dt_bias;
  int key_heads, value_heads, key_dim;
  float* query;  // [key_heads * key_dim]
  float* key;    // [key_heads * key_dim]
  float* decay;  // [value_heads]
  float* beta;   // [value_heads]
};

// Consecutive rows of one value head: each continues from the one before it, the first from `source`.
struct DeltaRow {
  const float* query;
  const float* key;
  const float* value;  // moved to the first column, as the outputs are
  float* out;
  float* delta;  // tape, or nullptr
  float decay, beta;
};
struct DeltaRun {
  const DeltaRow* rows;
  int row_count, key_dim;
  int piece_keys;       // keys that are summed apart; kDeltaPieces of them hold all
  int columns;          // 1..kDeltaColumns; more for a single row
  const float* source;  // state before the rows: [key_dim] rows of `columns` values
  int64_t source_stride;
  float* target;  // state after the rows, may be source; nullptr: not wanted
  int64_t target_stride;
  float* work;  // [key_dim, kDeltaColumns], 64-byte aligned
};

// Replay of one value head.
struct ReplayRow {
  const float* key;
  const float* delta;  // [value_dim]
  float decay;
};
struct ReplayTask {
  const ReplayRow* rows;
  int row_count, key_dim, value_dim;
  float* state;  // [key_dim, value_dim]
};

struct DeltaKernels {
  void (*prepare_row)(const DeltaRowTask& task);
  void (*run)(const DeltaRun& run);
  void (*replay)(const ReplayTask& task);
};

}  // namespace foretoken::cpu
