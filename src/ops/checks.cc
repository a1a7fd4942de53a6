// The checks behind every Backend entry. They read shapes and indices, never values.
#include "ops/checks.h"

#include <algorithm>

namespace foretoken::checks {

void shape(View view, int64_t rows, int64_t cols) {
  CHECK(view.dtype == DType::kF32);
  if (rows >= 0) CHECK(view.rows == rows);
  if (cols >= 0) CHECK(view.cols == cols);
  CHECK(view.stride >= view.cols);
}

void lanes(const Batch& batch, int64_t rows) {
  for (const LaneRows& lane : batch.lanes) {
    CHECK(lane.first_row >= 0);
    CHECK(lane.rows >= 0);
    CHECK(int64_t{lane.first_row} + lane.rows <= rows);
    CHECK(lane.prefix >= 0);
    CHECK(lane.settled >= 0);
    CHECK(lane.settled <= lane.rows);
    if (lane.parent.empty()) continue;
    CHECK(static_cast<int64_t>(lane.parent.size()) == lane.rows);
    for (int i = 0; i < lane.rows; ++i) {
      CHECK(lane.parent[i] < i);
      if (i < lane.settled) CHECK(lane.parent[i] == i - 1);
      CHECK(lane.parent[i] >= std::min(i, lane.settled) - 1);
    }
  }
}

void copy(View from, View to) {
  CHECK(from.dtype == to.dtype);
  CHECK(from.rows == to.rows);
  CHECK(from.cols == to.cols);
  CHECK(from.stride >= from.cols);
  CHECK(to.stride >= to.cols);
}

void embed(std::span<const RowInput> inputs, const MatrixSource& table, View out) {
  shape(out, static_cast<int64_t>(inputs.size()), table.cols);
  CHECK(table.column_order.empty());
  CHECK(table.data.size() >= static_cast<size_t>(table.rows) * row_bytes(table.format, table.cols));
  for (const RowInput& input : inputs) {
    if (input.embedding) continue;
    CHECK(input.token >= 0);
    CHECK(input.token < (table.row_order.empty() ? table.rows : static_cast<int64_t>(table.row_order.size())));
  }
}

void rms_norm(View x, View w, View out) {
  shape(x, -1, -1);
  shape(w, 1, x.cols);
  shape(out, x.rows, x.cols);
}

void linear(View x, const Matrix& w, View out) {
  shape(x, -1, w.cols());
  shape(out, x.rows, w.rows());
}

void add(View x, View inout) {
  shape(x, -1, -1);
  shape(inout, x.rows, x.cols);
}

void gather_rows(View x, std::span<const int> rows, View out) {
  shape(x, -1, -1);
  shape(out, static_cast<int64_t>(rows.size()), x.cols);
  for (int row : rows) {
    CHECK(row >= 0);
    CHECK(row < x.rows);
  }
}

void expert(const ExpertWeights& w, int64_t hidden) {
  CHECK(w.gate_up != nullptr);
  CHECK(w.down != nullptr);
  CHECK(w.gate_up->cols() == hidden);
  CHECK(w.gate_up->rows() == 2 * w.down->cols());
  CHECK(w.down->rows() == hidden);
}

namespace {

void pages_of(const Batch& batch, std::span<const PageTable> pages, const AttentionShape& shape, const KvLayout& layout,
              int layer) {
  CHECK(layout.heads == shape.kv_heads);
  CHECK(layout.head_dim == shape.head_dim);
  CHECK(layer >= 0);
  CHECK(layer < layout.layers);
  CHECK(shape.kv_heads > 0);
  CHECK(shape.query_heads % shape.kv_heads == 0);
  CHECK(shape.head_dim > 0);
  CHECK(shape.head_dim <= kMaxHeadDim);
  CHECK(pages.size() == batch.lanes.size());
  for (size_t i = 0; i < pages.size(); ++i) {
    const LaneRows& lane = batch.lanes[i];
    CHECK(lane.prefix + lane.rows <= static_cast<int64_t>(pages[i].size()) * kPageTokens);
  }
}

void delta_lanes(const DeltaShape& shape, const Batch& batch, std::span<const DeltaMemory> lanes) {
  CHECK(shape.key_heads > 0);
  CHECK(shape.value_heads % shape.key_heads == 0);
  CHECK(shape.key_dim > 0);
  CHECK(shape.value_dim > 0);
  CHECK(shape.kernel >= 1);
  CHECK(lanes.size() == batch.lanes.size());
}

}  // namespace

void gated_ffn(View x, const ExpertWeights& w, View out) {
  shape(x, -1, -1);
  shape(out, x.rows, x.cols);
  expert(w, x.cols);
}

void moe(View x, const MoeShape& moe, const MoeWeights& w, View out) {
  moe_rows(x, moe, w, out);
  moe_weights(w);
}

void moe_rows(View x, const MoeShape& moe, const MoeWeights& w, View out) {
  shape(x, -1, -1);
  shape(out, x.rows, x.cols);
  CHECK(moe.experts > 0);
  CHECK(moe.top_k > 0);
  CHECK(moe.top_k <= moe.experts);
  CHECK(static_cast<int64_t>(w.experts.size()) == moe.experts);
  CHECK(w.router != nullptr);
  CHECK(w.router->rows() == moe.experts);
  CHECK(w.router->cols() == x.cols);
}

void moe_weights(const MoeWeights& w) {
  const int64_t cols = w.router->cols();
  for (const ExpertWeights& e : w.experts) expert(e, cols);
  expert(w.shared, cols);
  CHECK(w.shared_gate != nullptr);
  CHECK(w.shared_gate->rows() == 1);
  CHECK(w.shared_gate->cols() == cols);
}

void rotary_table(std::span<const RowInput> inputs, const RotarySpec& spec, View table) {
  shape(table, static_cast<int64_t>(inputs.size()), spec.rotary_dim());
  CHECK(spec.axis.size() == spec.inverse_frequency.size());
  for (uint8_t axis : spec.axis) CHECK(int{axis} < 3);
}

void attention_inputs(View packed, View q_norm, View k_norm, View rotary, const AttentionShape& attention,
                      const Batch& batch, std::span<const PageTable> pages, const KvLayout& layout, int layer,
                      View queries) {
  shape(packed, -1, attention.packed_columns());
  shape(q_norm, 1, attention.head_dim);
  shape(k_norm, 1, attention.head_dim);
  shape(rotary, packed.rows, -1);
  CHECK(rotary.cols % 2 == 0);
  CHECK(rotary.cols <= attention.head_dim);
  shape(queries, packed.rows, int64_t{attention.query_heads} * attention.head_dim);
  lanes(batch, packed.rows);
  pages_of(batch, pages, attention, layout, layer);
}

void attention(View queries, View packed, const AttentionShape& attention, const Batch& batch,
               std::span<const PageTable> pages, const KvLayout& layout, int layer, View out) {
  shape(packed, -1, attention.packed_columns());
  shape(queries, packed.rows, int64_t{attention.query_heads} * attention.head_dim);
  shape(out, packed.rows, queries.cols);
  lanes(batch, packed.rows);
  pages_of(batch, pages, attention, layout, layer);
}

void commit_kv(PageTable pages, const KvLayout& layout, int64_t prefix, std::span<const int> path) {
  CHECK(layout.layers > 0);
  CHECK(prefix >= 0);
  for (size_t j = 0; j < path.size(); ++j) {
    CHECK(path[j] >= static_cast<int>(j));
    if (j > 0) CHECK(path[j] > path[j - 1]);
    CHECK(prefix + path[j] < static_cast<int64_t>(pages.size()) * kPageTokens);
  }
}

void causal_conv(View packed, View weight, const DeltaShape& delta, const Batch& batch,
                 std::span<const DeltaMemory> memory, View out) {
  shape(packed, -1, -1);
  CHECK(packed.cols >= delta.channels());
  shape(weight, delta.channels(), delta.kernel);
  shape(out, packed.rows, delta.channels());
  lanes(batch, packed.rows);
  delta_lanes(delta, batch, memory);
  for (size_t i = 0; i < memory.size(); ++i) {
    if (delta.kernel > 1) CHECK(memory[i].tail != nullptr);
    if (batch.lanes[i].settled < batch.lanes[i].rows) CHECK(memory[i].tape.conv_row != nullptr);
  }
}

void delta_rule(View conv, View beta_alpha, View decay_rate, View dt_bias, const DeltaShape& delta, const Batch& batch,
                std::span<const DeltaMemory> memory, View out) {
  shape(conv, -1, delta.channels());
  shape(beta_alpha, conv.rows, 2 * int64_t{delta.value_heads});
  shape(decay_rate, 1, delta.value_heads);
  shape(dt_bias, 1, delta.value_heads);
  shape(out, conv.rows, int64_t{delta.value_heads} * delta.value_dim);
  lanes(batch, conv.rows);
  delta_lanes(delta, batch, memory);
  for (size_t i = 0; i < memory.size(); ++i) {
    CHECK(memory[i].state != nullptr);
    if (batch.lanes[i].settled == batch.lanes[i].rows) continue;
    CHECK(memory[i].tape.decay != nullptr);
    CHECK(memory[i].tape.key != nullptr);
    CHECK(memory[i].tape.delta != nullptr);
  }
}

void gated_norm(View x, View gate, View w, View out) {
  shape(x, -1, -1);
  shape(gate, x.rows, x.cols);
  shape(w, 1, -1);
  CHECK(w.cols > 0);
  CHECK(x.cols % w.cols == 0);
  shape(out, x.rows, x.cols);
}

void commit_delta(const DeltaShape& delta, const DeltaMemory& lane, int settled, std::span<const int> path) {
  CHECK(settled >= 0);
  CHECK(settled <= static_cast<int>(path.size()));
  for (size_t j = 0; j < path.size(); ++j) {
    if (static_cast<int>(j) < settled) CHECK(path[j] == static_cast<int>(j));
    CHECK(path[j] >= static_cast<int>(j));
    if (j > 0) CHECK(path[j] > path[j - 1]);
  }
  if (settled == static_cast<int>(path.size())) return;
  CHECK(lane.state != nullptr);
  if (delta.kernel > 1) CHECK(lane.tail != nullptr);
  CHECK(lane.tape.decay != nullptr);
  CHECK(lane.tape.key != nullptr);
  CHECK(lane.tape.delta != nullptr);
  CHECK(lane.tape.conv_row != nullptr);
}

}  // namespace foretoken::checks

namespace foretoken {

void path_to(const LaneRows& lane, int row, std::vector<int>& path) {
  path.clear();
  for (int i = row; i >= 0; i = lane.parent_of(i)) path.push_back(i);
  std::reverse(path.begin(), path.end());
}

bool is_chain(const LaneRows& lane) {
  for (int i = 0; i < static_cast<int>(lane.parent.size()); ++i)
    if (lane.parent[i] != i - 1) return false;
  return true;
}

}  // namespace foretoken
