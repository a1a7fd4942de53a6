// Shape checks of the operators of block drafters. They read shapes and indices, never values.
#include <algorithm>

#include "ops/checks.h"

namespace foretoken::checks {
namespace {

void check_lanes(std::span<const BlockLane> lanes, int64_t rows) {
  for (const BlockLane& lane : lanes) {
    CHECK(lane.first_row >= 0);
    CHECK(lane.rows >= 0);
    CHECK(int64_t{lane.first_row} + lane.rows <= rows);
  }
}

void check_memory(const BlockShape& shape, std::span<const BlockLane> lanes, const KvLayout& layout, int64_t rows) {
  check_lanes(lanes, rows);
  CHECK(shape.kv_heads > 0);
  CHECK(shape.query_heads % shape.kv_heads == 0);
  CHECK(shape.head_dim > 0);
  CHECK(shape.head_dim <= kMaxHeadDim);
  CHECK(layout.heads == shape.kv_heads);
  CHECK(layout.head_dim == shape.head_dim);
  CHECK(layout.layers >= 1);
  for (const BlockLane& lane : lanes) {
    const int64_t slots = static_cast<int64_t>(lane.pages.size()) * kPageTokens;
    CHECK(lane.base % kPageTokens == 0);
    CHECK(lane.base <= lane.begin);
    CHECK(lane.begin <= lane.end);
    CHECK(lane.rows <= slots);
    // What a row sees must still be there: a window reaches back at most as far as the ring.
    const int64_t reach = shape.window > 0 ? std::min<int64_t>(lane.end - lane.begin, shape.window - 1) : lane.end - lane.begin;
    CHECK(reach + lane.rows <= slots);
  }
}

}  // namespace

void block_inputs(View q, View kv, View q_norm, View k_norm, View rotary, const BlockShape& block, std::span<const BlockLane> lanes,
                  const KvLayout& layout) {
  const int dim = block.head_dim;
  shape(kv, -1, 2 * int64_t{block.kv_heads} * dim);
  if (!q.empty()) shape(q, kv.rows, int64_t{block.query_heads} * dim);
  shape(q_norm, 1, dim);
  shape(k_norm, 1, dim);
  shape(rotary, kv.rows, -1);
  CHECK(rotary.cols % 2 == 0);
  CHECK(rotary.cols <= dim);
  check_memory(block, lanes, layout, kv.rows);
}

void block_attention(View queries, const BlockShape& block, std::span<const BlockLane> lanes, const KvLayout& layout, View out) {
  const int dim = block.head_dim;
  shape(queries, -1, int64_t{block.query_heads} * dim);
  shape(out, queries.rows, queries.cols);
  check_memory(block, lanes, layout, queries.rows);
}

void block_conv(View x, View base, View delta, int group, std::span<const BlockLane> lanes, View out) {
  shape(x, -1, -1);
  CHECK(group > 0);
  CHECK(x.cols % group == 0);
  shape(base, -1, x.cols);
  shape(delta, x.rows, base.rows * (x.cols / group));
  shape(out, x.rows, x.cols);
  CHECK(out.data != x.data);
  check_lanes(lanes, x.rows);
}

void choose(View logits, std::span<const ChoiceSpec> specs) {
  shape(logits, -1, -1);
  CHECK(static_cast<int64_t>(specs.size()) == logits.rows);
  for (const ChoiceSpec& spec : specs) CHECK(spec.temperature > 0 || (!spec.noisy && !spec.mass));
}

void top_k(View logits, int k, std::span<const TokenId> ids, View values) {
  shape(logits, -1, -1);
  CHECK(k >= 1);
  CHECK(k <= logits.cols);
  shape(values, logits.rows, k);
  CHECK(static_cast<int64_t>(ids.size()) == logits.rows * k);
}

void selector_edges(View weights, View predecessors, View successors, View edges) {
  shape(weights, -1, -1);
  const int64_t k = edges.cols, rank = weights.cols;
  CHECK(k >= 1);
  shape(predecessors, weights.rows * k, rank);
  shape(successors, weights.rows * k, rank);
  shape(edges, weights.rows * k, k);
}

void lattice(View logits, int k, View weights, const MatrixSource& predecessor, const MatrixSource& successor,
             std::span<const LatticeBlock> blocks) {
  shape(logits, -1, -1);
  CHECK(k >= 1);
  CHECK(k <= logits.cols);
  int next = 0;
  for (const LatticeBlock& block : blocks) {
    CHECK(block.first == next);
    CHECK(block.slots >= 0);
    next += block.slots;
  }
  CHECK(next == logits.rows);
  if (weights.empty()) return;
  shape(weights, logits.rows, -1);
  for (const MatrixSource* table : {&predecessor, &successor}) {
    CHECK(table->cols == weights.cols);
    CHECK(table->rows >= logits.cols);
  }
  for (const LatticeBlock& block : blocks) {
    CHECK(block.anchor >= 0);
    CHECK(block.anchor < predecessor.rows);
  }
}

}  // namespace foretoken::checks
