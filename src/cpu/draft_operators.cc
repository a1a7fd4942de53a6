// The operators of block drafters: shape checks, the split of outputs over the pool, and the plain data that the kernels take.
#include <algorithm>

#include "cpu/backend.h"
#include "ops/checks.h"

namespace foretoken::cpu {
namespace {

// Work below this many values is not worth waking another thread.
constexpr int64_t kSerialValues = 16 * 1024;

int64_t grain_for(int64_t values) { return std::max<int64_t>(1, kSerialValues / std::max<int64_t>(1, values)); }

KvOffsets kv_offsets(const KvLayout& layout, int head) {
  return {layout.key_offset(0, head), layout.value_offset(0, head), layout.key_scale_offset(0, head), layout.value_scale_offset(0, head)};
}

}  // namespace

void CpuBackend::block_inputs(View q, View kv, View q_norm, View k_norm, View rotary, const BlockShape& shape,
                              std::span<const BlockLane> lanes, const KvLayout& layout) {
  checks::block_inputs(q, kv, q_norm, k_norm, rotary, shape, lanes, layout);
  const int dim = shape.head_dim, format = static_cast<int>(layout.format);
  const int query_heads = q.empty() ? 0 : shape.query_heads;
  for (const BlockLane& lane : lanes) {
    if (lane.rows == 0) continue;
    // Heads outside, rows inside: consecutive tokens of one head share the lines of a key block.
    const int64_t items = int64_t{query_heads + shape.kv_heads} * lane.rows;
    pool_.parallel_for(items, grain_for(4 * dim), [&](int64_t begin, int64_t end, int) {
      for (int64_t item = begin; item < end; ++item) {
        const int head = static_cast<int>(item / lane.rows), i = static_cast<int>(item % lane.rows);
        const int64_t row = lane.first_row + i;
        HeadTask task{.x = nullptr, .weight = q_norm.f32(), .epsilon = shape.norm_epsilon, .dim = dim, .rotary = rotary.f32(row),
                      .rotary_dim = static_cast<int>(rotary.cols)};
        if (head < query_heads) {
          float* x = q.f32(row) + int64_t{head} * dim;
          task.x = x;
          kernels_.attention.query_head(task, x);
          continue;
        }
        const int kv_head = head - query_heads;
        const int64_t slot = lane.slot(lane.end + i);
        std::byte* page = lane.pages[static_cast<size_t>(slot / kPageTokens)];
        const KvOffsets offsets = kv_offsets(layout, kv_head);
        const int token = static_cast<int>(slot % kPageTokens);
        task.x = kv.f32(row) + int64_t{kv_head} * dim;
        task.weight = k_norm.f32();
        kernels_.attention.store_key(task, format, page, offsets, token);
        kernels_.attention.store_value(task.x + int64_t{shape.kv_heads} * dim, dim, format, page, offsets, token);
      }
    });
  }
}

void CpuBackend::block_attention(View queries, const BlockShape& shape, std::span<const BlockLane> lanes, const KvLayout& layout,
                                 View out) {
  checks::block_attention(queries, shape, lanes, layout, out);
  const int dim = shape.head_dim, group = shape.query_heads / shape.kv_heads;
  const int tile_heads = std::min(group, kTileQueries), tile_rows = std::max(1, kTileQueries / tile_heads);
  AttentionWork& work = scratch_.attention;
  work.items.clear();
  for (size_t l = 0; l < lanes.size(); ++l)
    for (int head = 0; head < shape.query_heads;) {
      const int heads = std::min(tile_heads, group - head % group);
      for (int row = 0; row < lanes[l].rows; row += tile_rows)
        work.items.push_back({static_cast<int>(l), row, std::min(tile_rows, lanes[l].rows - row), head, heads});
      head += heads;
    }
  const size_t threads = static_cast<size_t>(pool_.size());
  const size_t bytes = threads * sizeof(AttentionScratch), state_bytes = threads * sizeof(AttentionState);
  if (work.thread_scratch.size() < bytes) work.thread_scratch = Buffer(bytes);
  if (work.states.size() < state_bytes) work.states = Buffer(state_bytes);
  auto* scratch = reinterpret_cast<AttentionScratch*>(work.thread_scratch.data());
  auto* states = reinterpret_cast<AttentionState*>(work.states.data());
  pool_.parallel_for(static_cast<int64_t>(work.items.size()), 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      const AttentionItem& item = work.items[static_cast<size_t>(i)];
      const BlockLane& lane = lanes[static_cast<size_t>(item.lane)];
      DraftTile tile;
      tile.rows = item.rows;
      tile.group = item.heads;
      tile.dim = dim;
      tile.format = static_cast<int>(layout.format);
      tile.pages = lane.pages.data();
      tile.page_count = static_cast<int64_t>(lane.pages.size());
      tile.offsets = kv_offsets(layout, item.first_head / group);
      for (int r = 0; r < item.rows; ++r) {
        const int row = item.first_row + r;
        const int64_t position = lane.end + row;
        // Beyond its window a row still sees its whole block.
        const int64_t from = shape.window > 0 ? std::min(std::max(lane.begin, position - shape.window + 1), lane.end) : lane.begin;
        const int64_t to = lane.end + (shape.causal ? row + 1 : lane.rows);
        for (int h = 0; h < item.heads; ++h) {
          const int at = r * item.heads + h;
          const int64_t column = int64_t{item.first_head + h} * dim;
          tile.queries[at] = queries.f32(lane.first_row + row) + column;
          tile.outs[at] = out.f32(lane.first_row + row) + column;
          tile.begin[at] = from - lane.base;
          tile.end[at] = to - lane.base;
        }
      }
      kernels_.draft.attend(tile, scratch[thread], states[thread]);
    }
  });
}

void CpuBackend::block_conv(View x, View base, View delta, int group, std::span<const BlockLane> lanes, View out) {
  checks::block_conv(x, base, delta, group, lanes, out);
  std::vector<DraftConvRow>& rows = scratch_.draft.conv_rows;
  rows.clear();
  for (const BlockLane& lane : lanes)
    for (int t = 0; t < lane.rows; ++t) {
      const int64_t row = lane.first_row + t;
      rows.push_back({x.f32(row), delta.f32(row), out.f32(row), static_cast<int>(std::min<int64_t>(base.rows, t + 1))});
    }
  const DraftConvTask task{rows.data(), base.f32(), base.stride, x.stride, x.cols, group};
  pool_.parallel_for(static_cast<int64_t>(rows.size()), grain_for(2 * x.cols),
                     [&](int64_t begin, int64_t end, int) { kernels_.draft.conv(task, begin, end); });
}

void CpuBackend::top_k(View logits, int k, std::span<TokenId> ids, View values) {
  checks::top_k(logits, k, ids, values);
  pool_.parallel_for(logits.rows, grain_for(logits.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) kernels_.draft.top_k(logits.f32(r), logits.cols, k, ids.data() + r * k, values.f32(r));
  });
}

void CpuBackend::selector_edges(View weights, View predecessors, View successors, View edges) {
  checks::selector_edges(weights, predecessors, successors, edges);
  const int64_t rank = weights.cols, k = edges.cols;
  const size_t stride = static_cast<size_t>(rank + 15) / 16 * 16, bytes = static_cast<size_t>(pool_.size()) * stride * sizeof(float);
  Buffer& scratch = scratch_.draft.weighted;
  if (scratch.size() < bytes) scratch = Buffer(bytes);
  CHECK(predecessors.stride == rank);
  CHECK(successors.stride == rank);
  CHECK(edges.stride == k);
  pool_.parallel_for(weights.rows, grain_for(k * k * rank / 8), [&](int64_t begin, int64_t end, int thread) {
    float* weighted = reinterpret_cast<float*>(scratch.data()) + static_cast<size_t>(thread) * stride;
    for (int64_t s = begin; s < end; ++s)
      kernels_.draft.edges(weights.f32(s), predecessors.f32(s * k), successors.f32(s * k), static_cast<int>(k), rank, weighted,
                           edges.f32(s * k));
  });
}

}  // namespace foretoken::cpu
