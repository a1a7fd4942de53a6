// What the host side and the kernels agree on: plain structs of device pointers, and one launcher per operator. No
// launcher allocates, waits or reads device memory. It knows no Backend and no model.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/limits.h"
#include "cuda/queue.h"
#include "numerics/quant.h"
#include "ops/batch.h"

namespace foretoken::cuda {

// fp32 rows on the device.
struct Rows {
  float* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;
};

// ---- Weights (packing.cu, linear.cu)

// How a part's codes lie on the device (docs/gpu.md). Every layout but kFloats is in the fragment order of
// mma.m16n8k16: tiles of 16 outputs by 64 inputs, one 16-byte vector a lane and plane.
enum class Layout : uint8_t {
  kFloats,  // fp32, row-major: f32 and f16 weights, multiplied in fp32
  kBf16,    // bf16
  kCodes,   // signed 8-bit codes, an fp32 scale (and minimum) per 16: any block format, exactly
  kQ8,      // signed 8-bit codes, an f16 scale per 32: Q8_0
  kQ4K,     // super-blocks of sixteen outputs, one behind the other (q4k.cuh)
  kQ6K,
};

// Consecutive outputs of one matrix in one layout.
struct Part {
  Layout layout = Layout::kFloats;
  bool has_min = false;
  bool wide = false;    // may take the kernels of many rows (admission.h)
  bool paired = false;  // rows of gates and of their ups lie in turn by eights: packed_row
  int64_t rows = 0, cols = 0;
  const void* codes = nullptr;  // or the floats
  const void* scales = nullptr;
  const void* minimums = nullptr;
};

int64_t padded_cols(int64_t cols);  // inputs, rounded up to whole tiles
// Where row r of a part's sources lies. Sixteen outputs of a paired part are eight gates and the ups of the same
// numbers.
__host__ __device__ inline int64_t packed_row(const Part& part, int64_t r) {
  if (!part.paired) return r;
  const int64_t half = part.rows / 2, n = r < half ? r : r - half;
  return n / 8 * 16 + (r < half ? 0 : 8) + n % 8;
}
bool may_pair(const Part& part);  // gates, then ups: one kernel can make their products and what becomes of them
size_t code_bytes(const Part& part);
size_t scale_bytes(const Part& part);
size_t minimum_bytes(const Part& part);
Layout layout_of(QuantFormat format, int64_t cols);

// The part's rows [first_row, first_row + rows), first_row a multiple of 16, from raw rows of `format`. Orders may be
// null.
struct PackTask {
  QuantFormat format = QuantFormat::kF32;
  const uint8_t* source = nullptr;
  size_t row_bytes = 0;
  int64_t first_row = 0, rows = 0;  // packed rows; source row of packed row r is order[r] - source_first
  int64_t source_first = 0;
  const int32_t* row_order = nullptr;  // of the whole part
  const int32_t* column_order = nullptr;
};
void launch_pack(const PackTask& task, const Part& part, Queue& queue);

// Activations as bf16, row-major: [rows][padded cols], zeros behind the last.
void launch_to_bf16(Rows x, uint16_t* out, Queue& queue);
// silu(gate) * up as bf16; gate_up [rows, 2 * width], in the order of a paired part or gates before ups.
void launch_silu_to_bf16(Rows gate_up, int64_t width, bool paired, uint16_t* out, Queue& queue);
void launch_silu(Rows gate_up, int64_t width, bool paired, Rows out, Queue& queue);
// Sums [count][rows][outputs] of slices of the inputs, to be added in ascending order from +0; planes are `stride`
// floats apart.
struct Planes {
  const float* data = nullptr;
  int count = 0;
  int64_t stride = 0;
};
int plane_count(const Part& part);  // 1: products need no adding
Planes planes_of(const Part& part, int64_t rows, const void* work);
void launch_merge(Planes planes, Rows out, Queue& queue);
// out[r, first + o] = sum_k W[o, k] x[r, k], or with several planes their sums, in `work`. `bf16` holds
// launch_to_bf16(x); x itself is read for kFloats only.
size_t linear_work_bytes(const Part& part, int64_t rows);
void launch_linear(const Part& part, Rows x, const uint16_t* bf16, Rows out, int64_t first, void* work, Queue& queue);
// silu(gate) * up, of `width` columns: as bf16 [rows][padded columns] and as floats [rows][width]. Either may be null.
struct Hidden {
  int64_t width = 0;
  uint16_t* bf16 = nullptr;
  float* floats = nullptr;
};
// Whether products of so many rows give it at once; then they do.
bool gives_hidden(const Part& part, int64_t rows);
void launch_gated(const Part& part, const uint16_t* bf16, int64_t rows, const Hidden& hidden, Queue& queue);

// ---- Mixture of experts (moe.cu, linear.cu)

// The pairs (row, rank) of a pass in the order of their experts, cut into work items of at most kItemRows pairs of one
// expert. A row has top_k ranks, and with `shared` one more: the shared expert, whose number is that of the routed
// ones.
inline constexpr int kItemRows = 8;
struct ExpertItem {
  int expert = 0, first = 0, count = 0;            // pairs [first, first + count) of `order`
  const void *gate_up = nullptr, *down = nullptr;  // codes of the expert, where the routing has tables
};
struct Routing {
  int64_t top_k = 0, ranks = 0, pairs = 0;
  int64_t experts = 0;                             // of the tables of weights: with the shared one, where it is a rank
  const Part *gate_up = nullptr, *down = nullptr;  // [experts], on the device: whose codes items get; or null
  int* chosen = nullptr;                           // [rows * ranks] expert ids by rank
  float* weights = nullptr;                        // [rows * ranks]
  int* order = nullptr;                            // [rows * ranks] pairs sorted by expert, then by pair
  ExpertItem* items = nullptr;                     // [max_items]
  int* item_count = nullptr;
};
int max_items(int rows, int ranks, int experts);
void launch_route(Rows logits, const Routing& routing, Queue& queue);
// The products of all pairs: input row of pair p is p / input_divisor, output row is p. `parts` [experts] on the
// device, all alike but for their pointers; `like` is one of them. `work` as of launch_linear, of out.rows rows.
void launch_expert_linear(const Part* parts, const Part& like, const Routing& routing, int item_limit,
                          int input_divisor, Rows x, const uint16_t* bf16, Rows out, int64_t first, void* work,
                          Queue& queue);
// The same of paired parts, for every pair what launch_gated makes of a row.
void launch_expert_gated(const Part* parts, const Part& like, const Routing& routing, int item_limit, int input_divisor,
                         const uint16_t* bf16, const Hidden& hidden, Queue& queue);
// The results of a row's experts by their weights, in the order of ranks, and the shared expert's by its gate. `shared`
// is empty where the shared expert is a rank of its own.
struct Combination {
  Rows pairs;
  Routing routing;
  Rows shared, shared_gate;
};
void launch_combine(const Combination& combination, Rows out, Queue& queue);

// ---- Rows (elementwise.cu)

// A table that rows are looked up in by token.
struct TokenTable {
  QuantFormat format = QuantFormat::kF32;
  const uint8_t* rows = nullptr;
  size_t row_bytes = 0;
  const int32_t* order = nullptr;  // of rows, or null
};
void launch_embed(const int32_t* tokens, const float* own, const TokenTable& table, Rows out,
                  Queue& queue);  // own [rows, cols] used where token < 0
// A convolution of block drafters (launch_block_conv) whose groups are 2^group_bits columns (-1: of another size):
// place[r] is row r's in its block.
struct Convolved {
  Rows x, base, delta;
  int group_bits = -1;
  const int32_t* place = nullptr;
};
// What a norm may add to its rows first, in place: `rows`; or slices of them, results of experts, or the convolution of
// `convolved.x` (or of its slices), which `rows` then get.
struct NormAddend {
  Rows rows;
  Planes planes;
  Combination experts;
  Convolved convolved;
};
bool norm_convolves(const Convolved& of, Planes planes);  // whether it may,
bool norm_convolves(Rows x, const NormAddend& add, const float* w, Rows out, Rows tap);  // where these are aligned
// `bf16`, where given, gets what launch_to_bf16(out) would write; out.cols is then a multiple of 64. `tap`, where
// given, gets the rows before the norm, with what was added.
void launch_rms_norm(Rows x, const NormAddend& add, const float* w, float epsilon, Rows out, uint16_t* bf16, Rows tap,
                     Queue& queue);
void launch_gated_norm(Rows x, Rows gate, const float* w, int dim, float epsilon, bool sigmoid_gate, Rows out,
                       uint16_t* bf16, Queue& queue);
void launch_add(Rows x, Rows inout, Queue& queue);
void launch_scale(Rows inout, float factor, Queue& queue);
void launch_gather(Rows x, const int32_t* rows, Rows out, uint16_t* bf16, Queue& queue);
void launch_copy(Rows from, Rows to, Queue& queue);
// Sets *found, which the device can reach, where x holds a NaN or an infinity.
void launch_find_non_finite(Rows x, int* found, Queue& queue);
// Adds to *differences the number of words that are not equal.
void launch_differences(const float* a, const float* b, int64_t count, int* differences, Queue& queue);
void launch_rotary(const int32_t* positions, const float* frequency, const uint8_t* axis, float magnitude, Rows table,
                   Queue& queue);

// ---- What varies between passes, on the device (descriptor.h fills it)

struct LaneDesc {
  int first_row = 0, rows = 0, settled = 0, chain = 1;
  int64_t prefix = 0;
  const uint64_t* pages = nullptr;  // addresses of the lane's pages
};
struct RowDesc {
  int lane = 0, row = 0;  // row within the lane
  int parent = -1;        // within the lane, -1: the committed prefix
  int depth = 0;          // ancestors among the rows
  int path = 0;           // index of its path in `paths`: rows of the lane, itself last, depth + 1 of them
};
struct PassDesc {
  const LaneDesc* lanes = nullptr;
  const RowDesc* rows = nullptr;
  const int32_t* paths = nullptr;
  int lane_count = 0, row_count = 0;
};

// ---- Attention (attention.cu, attention_tiles.cu)

struct HeadShape {
  int query_heads = 0, kv_heads = 0, dim = 0, query_columns = 0, rotary_dim = 0;
  float epsilon = 0;
};
void launch_attention_inputs(Rows packed, const float* q_norm, const float* k_norm, Rows rotary, const HeadShape& shape,
                             const PassDesc& pass, const KvLayout& layout, int layer, Rows queries, Queue& queue);
// `partial` holds attention_partial_floats(rows of one launch, ...) floats; needed when the plan has several units.
struct SpanPlan;  // plans.h
struct SpanItem;
size_t attention_partial_floats(int64_t rows, const HeadShape& shape, int64_t units);
void launch_attention(Rows queries, Rows packed, const HeadShape& shape, const PassDesc& pass, int first_row, int rows,
                      const SpanPlan& plan, const SpanItem* items, const KvLayout& layout, int layer, float* partial,
                      Rows out, uint16_t* bf16, Queue& queue);
void launch_commit_kv(const uint64_t* pages, const KvLayout& layout, int64_t prefix, const int32_t* path, int count,
                      Queue& queue);

// ---- Gated delta net (delta.cu, delta_core.cu)

// The memory of a pass's lanes: many on the device, or one.
struct DeltaLanes {
  const DeltaMemory* many = nullptr;
  DeltaMemory one;
  __host__ __device__ const DeltaMemory& operator[](int64_t lane) const { return many ? many[lane] : one; }
};

void launch_causal_conv(Rows packed, const float* weight, const DeltaShape& shape, const PassDesc& pass,
                        const DeltaLanes& lanes, bool advances, Rows out, Queue& queue);
// q and k [rows, key_heads * key_dim], beta and decay [rows, value_heads]: working memory.
struct DeltaScratch {
  float *query = nullptr, *key = nullptr, *beta = nullptr, *decay = nullptr;
};
void launch_delta_rule(Rows conv, Rows beta_alpha, const float* decay_rate, const float* dt_bias,
                       const DeltaShape& shape, const PassDesc& pass, const DeltaLanes& lanes,
                       const DeltaScratch& scratch, Rows out, Queue& queue);
inline constexpr int kMaxKeyDim = 128;

// Convolution, delta rule and gated norm of few rows as one kernel; the same bits. Values of the convolution are
// written too.
bool delta_core_runs(const DeltaShape& shape, int most_rows);
struct DeltaCore {
  Rows packed, conv, beta_alpha, gate, out;
  const float *weight = nullptr, *decay_rate = nullptr, *dt_bias = nullptr, *norm = nullptr;
  float epsilon = 0;
  int sigmoid_gate = 0;
  uint16_t* bf16 = nullptr;
  int* arrivals = nullptr;  // [lanes * key heads], zeros before and after
};
void launch_delta_core(const DeltaCore& core, const DeltaShape& shape, const PassDesc& pass, const DeltaLanes& lanes,
                       Queue& queue);
// The same rows of many tapes; `rows` holds their number, then themselves.
void launch_commit_delta(const DeltaShape& shape, const DeltaMemory* lanes, int lane_count, const int32_t* rows,
                         Queue& queue);

// ---- Block drafters (draft.cu)

struct BlockLaneDesc {
  int first_row = 0, rows = 0, page_count = 0;
  int64_t base = 0, begin = 0, end = 0;
  const uint64_t* pages = nullptr;
};
struct BlockHeads {
  int query_heads = 0, kv_heads = 0, dim = 0, window = 0, causal = 0, rotary_dim = 0;
  float epsilon = 0;
};
// Of one layer; `q` may be empty.
struct BlockInputs {
  Rows q, kv, rotary;
  const float *q_norm = nullptr, *k_norm = nullptr;
  BlockHeads shape;
  const BlockLaneDesc* lanes = nullptr;
};
// Of layers whose shapes, lanes' rows and presence of queries are the first's: `many` [count] on the device, or null
// where there is one. `rows`: most of a lane.
void launch_block_inputs(const BlockInputs& first, const BlockInputs* many, int count, int lane_count, int rows,
                         const KvLayout& layout, Queue& queue);
void launch_block_attention(Rows queries, const BlockHeads& shape, const BlockLaneDesc* lanes, int lane_count, int rows,
                            const KvLayout& layout, Rows out, Queue& queue);
// The same for bf16 keys and values of heads of 64 or 128 (block_attention.cu). splits: block_splits(positions that the
// row with most sees); `partial`: block_partial_floats floats; `bf16`: the result once more, or null.
bool block_spans_run(const BlockHeads& shape, const KvLayout& layout);
int block_splits(int64_t most_positions);
size_t block_partial_floats(const BlockHeads& shape, int64_t rows, int splits);
void launch_block_spans(Rows queries, const BlockHeads& shape, const BlockLaneDesc* lanes, int lane_count, int rows,
                        int splits, const KvLayout& layout, float* partial, Rows out, uint16_t* bf16, Queue& queue);
// `rows`: most of a lane; `bf16`: the result once more, or null.
void launch_block_conv(Rows x, Rows base, Rows delta, int group, const BlockLaneDesc* lanes, int lane_count, int rows,
                       Rows out, uint16_t* bf16, Queue& queue);
inline constexpr int kMaxTopK = 64, kMostTopColumns = 500000;
size_t top_k_scratch_bytes(int64_t rows, int64_t cols, int k);
void launch_top_k(Rows logits, int k, void* scratch, int32_t* ids, Rows values, Queue& queue);
// Sums and maxima of choice.h; `any_candidates`: some row asks for more than the best. `specs` [logits.rows].
size_t choose_scratch_bytes(int64_t rows);
void launch_choose(Rows logits, const ChoiceSpec* specs, bool any_candidates, void* scratch, RowChoice* choices,
                   Queue& queue);
void launch_selector_edges(Rows weights, Rows predecessors, Rows successors, Rows edges, Queue& queue);
// edges [slots * k, k] between candidates ids [slots * k] on the device; anchors[slot] is the token before a block's
// first slot, -1 elsewhere.
void launch_lattice_edges(Rows weights, const TokenTable& predecessor, const TokenTable& successor, const int32_t* ids,
                          const int32_t* anchors, Rows edges, Queue& queue);

}  // namespace foretoken::cuda
