// Shape checks of the operator vocabulary, shared by every backend: a mistake of the caller ends the process at the
// operator's entry with both values printed. Also the few questions about a lane's rows that all backends answer alike.
// Computes nothing.
#pragma once

#include <vector>

#include "ops/ops.h"

namespace foretoken::checks {

// fp32, and of this shape; rows < 0 or cols < 0 accept any.
void shape(View view, int64_t rows, int64_t cols);

// Parents point backwards, the settled rows are a chain and the others descend from its end. `rows` is the batch's row
// count; every lane lies inside it.
void lanes(const Batch& batch, int64_t rows);

// Same element type and shape.
void copy(View from, View to);
void embed(std::span<const RowInput> inputs, const MatrixSource& table, View out);
void rms_norm(View x, View w, View out);
void linear(View x, const Matrix& w, View out);
void add(View x, View inout);
void gather_rows(View x, std::span<const int> rows, View out);
void gated_ffn(View x, const ExpertWeights& w, View out);
void moe(View x, const MoeShape& shape, const MoeWeights& w, View out);
// What moe() asks of the rows of a call, of all weights, and of one expert's with `hidden` inputs. Hundreds of matrices
// lie in as many places: a backend looks at them once, or at those that are chosen.
void moe_rows(View x, const MoeShape& shape, const MoeWeights& w, View out);
void moe_weights(const MoeWeights& w);
void expert(const ExpertWeights& w, int64_t hidden);
void rotary_table(std::span<const RowInput> inputs, const RotarySpec& spec, View table);
void attention_inputs(View packed, View q_norm, View k_norm, View rotary, const AttentionShape& shape,
                      const Batch& batch, std::span<const PageTable> pages, const KvLayout& layout, int layer,
                      View queries);
void attention(View queries, View packed, const AttentionShape& shape, const Batch& batch,
               std::span<const PageTable> pages, const KvLayout& layout, int layer, View out);
void commit_kv(PageTable pages, const KvLayout& layout, int64_t prefix, std::span<const int> path);
void causal_conv(View packed, View weight, const DeltaShape& shape, const Batch& batch,
                 std::span<const DeltaMemory> lanes, View out);
void delta_rule(View conv, View beta_alpha, View decay_rate, View dt_bias, const DeltaShape& shape, const Batch& batch,
                std::span<const DeltaMemory> lanes, View out);
void gated_norm(View x, View gate, View w, View out);
void commit_delta(const DeltaShape& shape, const DeltaMemory& lane, int settled, std::span<const int> path);

void block_inputs(View q, View kv, View q_norm, View k_norm, View rotary, const BlockShape& block, std::span<const BlockLane> lanes,
                  const KvLayout& layout);
void block_attention(View queries, const BlockShape& block, std::span<const BlockLane> lanes, const KvLayout& layout, View out);
void block_conv(View x, View base, View delta, int group, std::span<const BlockLane> lanes, View out);
void choose(View logits, std::span<const ChoiceSpec> specs);
void top_k(View logits, int k, std::span<const TokenId> ids, View values);
void selector_edges(View weights, View predecessors, View successors, View edges);
void lattice(View logits, int k, View weights, const MatrixSource& predecessor, const MatrixSource& successor,
             std::span<const LatticeBlock> blocks);

// Largest head of the attention operators: an int8 row of K or V is one activation block (canonical::quantize_activation).
inline constexpr int kMaxHeadDim = 256;

}  // namespace foretoken::checks

namespace foretoken {

// Rows of one lane that precede `row` along its parents, and itself: ascending indices within the lane.
void path_to(const LaneRows& lane, int row, std::vector<int>& path);

// True when every row follows the one before it, so that slots and logical positions agree.
bool is_chain(const LaneRows& lane);

}  // namespace foretoken
