// Row-exactness of the stateful operators, for any backend: the rows of a tree, of a chain and of token-by-token
// decoding have the same bits, and commit leaves the state that plain decoding would have. Used by the tests of every
// backend.
#pragma once

#include "support/ops_world.h"

namespace foretoken::test {

struct DeltaWorld {
  DeltaShape shape;
  Matrix2 packed, weight, beta_alpha, rate, bias;
  DeltaWorld(const DeltaShape& delta_shape, int rows, uint64_t seed) : shape(delta_shape) {
    Random random(seed);
    packed = Matrix2::random(random, rows, shape.channels() + 3);
    weight = Matrix2::random(random, shape.channels(), shape.kernel);
    beta_alpha = Matrix2::random(random, rows, 2 * shape.value_heads);
    rate = Matrix2::random(random, 1, shape.value_heads, 0.1f, -0.5f);
    bias = Matrix2::random(random, 1, shape.value_heads);
  }
  // Convolution, then delta rule, of input rows [first, first + rows of the lanes).
  Matrix2 forward(Backend& backend, const std::vector<LaneRows>& lanes, std::vector<DeltaMemory> memories,
                  int first = 0) const {
    int rows = 0;
    for (const LaneRows& lane : lanes) rows += lane.rows;
    Matrix2 conv(rows, shape.channels()), out(rows, int64_t{shape.value_heads} * shape.value_dim);
    const Batch batch{{}, lanes, {}};
    backend.causal_conv(packed.view().row_range(first, first + rows), weight.view(), shape, batch, memories,
                        conv.view());
    backend.delta_rule(conv.view(), beta_alpha.view().row_range(first, first + rows), rate.view(), bias.view(), shape,
                       batch, memories, out.view());
    EXPECT_TRUE(conv.padding_untouched());
    EXPECT_TRUE(out.padding_untouched());
    return out;
  }
};

// Every path of the tree `plan`, decoded token by token by committing, against the tree's rows; then the committed
// state.
inline void expect_delta_paths(Backend& backend, const DeltaShape& shape, const LanePlan& plan, uint64_t seed) {
  const DeltaWorld world(shape, plan.rows, seed);
  const std::vector<LanePlan> plans = {plan};
  const std::vector<LaneRows> lanes = lane_rows(plans);
  DeltaLane tree(shape, plan.rows, seed + 1);
  const DeltaLane start = tree;
  const Matrix2 out = world.forward(backend, lanes, {tree.memory()});
  ASSERT_TRUE(is_informative(out.view()));
  if (plan.settled == 0) {
    expect_same_floats(tree.state, start.state, "state after a pure pass");
    expect_same_floats(tree.tail, start.tail, "tail after a pure pass");
  }
  std::vector<int> path;
  for (int row = 0; row < plan.rows; ++row) {
    path_to(lanes[0], row, path);
    DeltaLane alone(shape, 1, seed + 1);
    for (size_t t = 0; t < path.size(); ++t) {
      // Both ways for one token: settled directly, or left on the tape and committed.
      const int settled = static_cast<int>((t + static_cast<size_t>(row)) % 2);
      const LaneRows one{0, 1, plan.prefix + static_cast<int64_t>(t), settled, {}};
      const Matrix2 token = world.forward(backend, {one}, {alone.memory()}, path[t]);
      backend.commit_delta(shape, alone.memory(), settled, std::vector<int>{0});
      if (t + 1 == path.size())
        expect_same_bits(out.row(row), token.row(0), "delta row " + std::to_string(row) + " against its path alone");
    }
    if (static_cast<int>(path.size()) < plan.settled) continue;  // commit takes at least the settled rows
    DeltaLane committed = tree;
    backend.commit_delta(shape, committed.memory(), plan.settled, path);
    expect_same_floats(committed.state, alone.state, "state after committing the path to row " + std::to_string(row));
    expect_same_floats(committed.tail, alone.tail, "tail after committing the path to row " + std::to_string(row));
    EXPECT_NE(committed.state, start.state);
  }
}

struct AttentionWorld {
  AttentionShape shape;
  KvLayout layout;
  Matrix2 packed, q_norm, k_norm, rotary;
  AttentionWorld(const AttentionShape& attention_shape, const KvLayout& kv_layout, int rows, uint64_t seed)
      : shape(attention_shape), layout(kv_layout) {
    Random random(seed);
    packed = Matrix2::random(random, rows, shape.packed_columns());
    q_norm = Matrix2::random(random, 1, shape.head_dim, 0.3f, 1.0f);
    k_norm = Matrix2::random(random, 1, shape.head_dim, 0.3f, 1.0f);
    rotary = Matrix2::random(random, rows, shape.head_dim / 4 * 2);
  }
  Matrix2 forward(Backend& backend, const std::vector<LaneRows>& lanes, const std::vector<PageTable>& pages,
                  int layer = 0, int first = 0) const {
    int rows = 0;
    for (const LaneRows& lane : lanes) rows += lane.rows;
    Matrix2 queries(rows, int64_t{shape.query_heads} * shape.head_dim), out(rows, queries.cols());
    const Batch batch{{}, lanes, {}};
    const View inputs = packed.view().row_range(first, first + rows);
    backend.attention_inputs(inputs, q_norm.view(), k_norm.view(), rotary.view().row_range(first, first + rows), shape,
                             batch, pages, layout, layer, queries.view());
    backend.attention(queries.view(), inputs, shape, batch, pages, layout, layer, out.view());
    EXPECT_TRUE(queries.padding_untouched());
    EXPECT_TRUE(out.padding_untouched());
    return out;
  }
};

// The stored bytes of one slot of every layer and head.
inline std::vector<std::byte> slot_bytes(PageTable pages, const KvLayout& layout, int64_t slot) {
  std::vector<std::byte> bytes;
  const std::byte* page = pages[static_cast<size_t>(slot / kPageTokens)];
  const size_t t = static_cast<size_t>(slot % kPageTokens), element = layout.element_bytes();
  auto append = [&](size_t offset, size_t count) { bytes.insert(bytes.end(), page + offset, page + offset + count); };
  for (int layer = 0; layer < layout.layers; ++layer) {
    for (int head = 0; head < layout.heads; ++head) {
      for (int d = 0; d < layout.head_dim; ++d)
        append(layout.key_offset(layer, head) + (static_cast<size_t>(d) * kPageTokens + t) * element, element);
      append(layout.value_offset(layer, head) + t * static_cast<size_t>(layout.head_dim) * element,
             static_cast<size_t>(layout.head_dim) * element);
      if (layout.format != KvFormat::kInt8) continue;
      append(layout.key_scale_offset(layer, head) + 4 * t, 4);
      append(layout.value_scale_offset(layer, head) + 4 * t, 4);
    }
  }
  return bytes;
}

inline void expect_attention_paths(Backend& backend, const AttentionShape& shape, KvFormat format, const LanePlan& plan,
                                   uint64_t seed) {
  const KvLayout layout{1, shape.kv_heads, shape.head_dim, format};
  const AttentionWorld world(shape, layout, plan.rows, seed);
  const std::vector<LanePlan> plans = {plan};
  const std::vector<LaneRows> lanes = lane_rows(plans);
  Pages tree(layout, plan.prefix + plan.rows + 40);
  fill_prefix(backend, shape, layout, 0, tree, plan.prefix, seed + 1);
  const Pages start = tree;
  const Matrix2 out = world.forward(backend, lanes, {tree.table()});
  ASSERT_TRUE(is_informative(out.view()));
  std::vector<int> path;
  for (int row = 0; row < plan.rows; ++row) {
    path_to(lanes[0], row, path);
    const Pages alone = start;
    for (size_t t = 0; t < path.size(); ++t) {
      const LaneRows one{0, 1, plan.prefix + static_cast<int64_t>(t), 0, {}};
      const Matrix2 token = world.forward(backend, {one}, {alone.table()}, 0, path[t]);
      if (t + 1 == path.size())
        expect_same_bits(out.row(row), token.row(0),
                         "attention row " + std::to_string(row) + " against its path alone");
    }
    const Pages committed = tree;
    backend.commit_kv(committed.table(), layout, plan.prefix, path);
    for (size_t t = 0; t < path.size(); ++t) {
      const int64_t slot = plan.prefix + static_cast<int64_t>(t);
      EXPECT_EQ(slot_bytes(committed.table(), layout, slot), slot_bytes(alone.table(), layout, slot))
          << "slot " << slot;
    }
  }
}

}  // namespace foretoken::test
