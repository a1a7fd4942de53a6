// Every operator but the matrix products: shape checks, the split of outputs over the pool, and the plain data that the
// kernels take. No arithmetic on values lives here but the rotary angles. Scratch memory only grows.
#include <algorithm>
#include <cstring>

#include "cpu/backend.h"
#include "numerics/canonical.h"
#include "ops/checks.h"

namespace foretoken::cpu {

static_assert(kBlockTokens == kPageTokens);
static_assert(kSpanBlocks * kBlockTokens == kSpanTokens);
static_assert(kDeltaPieces == kKeyPieces);
static_assert(kMaxAttentionDim == checks::kMaxHeadDim);
static_assert(int(KvFormat::kF32) == 0 && int(KvFormat::kBF16) == 1 && int(KvFormat::kInt8) == 2);

namespace {

// Work below this many values is not worth waking another thread.
constexpr int64_t kSerialValues = 16 * 1024;

// Items of `values` values each: how many one thread should take at least.
int64_t grain_for(int64_t values) { return std::max<int64_t>(1, kSerialValues / std::max<int64_t>(1, values)); }

void* grow(Buffer& buffer, size_t bytes) {
  if (buffer.size() < bytes) buffer = Buffer(bytes + bytes / 2);
  return buffer.data();
}

View grow_rows(Buffer& buffer, int64_t rows, int64_t cols) {
  return View::of(static_cast<float*>(grow(buffer, static_cast<size_t>(rows * cols) * sizeof(float))), rows, cols);
}

NormTask norm_task(View x, View w, float epsilon, View out) {
  return {.x = x.f32(),
          .x_stride = x.stride,
          .gate = nullptr,
          .gate_stride = 0,
          .weight = w.f32(),
          .epsilon = epsilon,
          .dim = static_cast<int>(w.cols),
          .heads = static_cast<int>(x.cols / w.cols),
          .sigmoid_gate = false,
          .out = out.f32(),
          .out_stride = out.stride};
}

KvOffsets kv_offsets(const KvLayout& layout, int layer, int head) {
  return {layout.key_offset(layer, head), layout.value_offset(layer, head), layout.key_scale_offset(layer, head),
          layout.value_scale_offset(layer, head)};
}

}  // namespace

// ---- Rows

void CpuBackend::rms_norm(View x, View w, float epsilon, View out) {
  checks::rms_norm(x, w, out);
  const NormTask task = norm_task(x, w, epsilon, out);
  pool_.parallel_for(x.rows, grain_for(x.cols),
                     [&](int64_t begin, int64_t end, int) { kernels_.elementwise.rms_norm(task, begin, end); });
}

void CpuBackend::gated_norm(View x, View gate, View w, float epsilon, bool sigmoid_gate, View out) {
  checks::gated_norm(x, gate, w, out);
  NormTask task = norm_task(x, w, epsilon, out);
  task.gate = gate.f32();
  task.gate_stride = gate.stride;
  task.sigmoid_gate = sigmoid_gate;
  pool_.parallel_for(x.rows * task.heads, grain_for(4 * w.cols),
                     [&](int64_t begin, int64_t end, int) { kernels_.elementwise.gated_norm(task, begin, end); });
}

void CpuBackend::add(View x, View inout) {
  checks::add(x, inout);
  pool_.parallel_for(x.rows, grain_for(x.cols / 2), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) kernels_.elementwise.add(x.f32(r), inout.f32(r), x.cols);
  });
}

void CpuBackend::gather_rows(View x, std::span<const int> rows, View out) {
  checks::gather_rows(x, rows, out);
  for (int64_t i = 0; i < out.rows; ++i)
    std::memcpy(out.f32(i), x.f32(rows[static_cast<size_t>(i)]), static_cast<size_t>(x.cols) * sizeof(float));
}

// ---- Feed-forward

void CpuBackend::moe(View x, const MoeShape& shape, const MoeWeights& w, View out) {
  checks::moe_rows(x, shape, w, out);
  MoeScratch& s = scratch_.moe;
  const int64_t rows = x.rows, hidden = x.cols, routed = rows * shape.top_k;
  const View logits = grow_rows(s.logits, rows, shape.experts);
  linear(x, *w.router, logits);
  s.chosen.resize(std::max(s.chosen.size(), static_cast<size_t>(routed)));
  s.weights.resize(std::max(s.weights.size(), static_cast<size_t>(routed)));
  pool_.parallel_for(rows, grain_for(8 * shape.experts), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      kernels_.moe.route(logits.f32(r), shape.experts, shape.top_k, s.chosen.data() + r * shape.top_k,
                         s.weights.data() + r * shape.top_k);
  });

  // The rows of each expert lie together, experts ascending: place[i] is where the result of pair i = (row, rank) goes.
  s.first.assign(static_cast<size_t>(shape.experts) + 1, 0);
  for (int64_t i = 0; i < routed; ++i) ++s.first[static_cast<size_t>(s.chosen[static_cast<size_t>(i)]) + 1];
  for (size_t e = 0; e < static_cast<size_t>(shape.experts); ++e) s.first[e + 1] += s.first[e];
  s.place.resize(std::max(s.place.size(), static_cast<size_t>(routed)));
  s.row.resize(std::max(s.row.size(), static_cast<size_t>(routed)));
  s.next.assign(s.first.begin(), s.first.end() - 1);
  for (int64_t i = 0; i < routed; ++i) {
    const int64_t place = s.next[static_cast<size_t>(s.chosen[static_cast<size_t>(i)])]++;
    s.place[static_cast<size_t>(i)] = place;
    s.row[static_cast<size_t>(place)] = static_cast<int>(i / shape.top_k);
  }
  const View inputs = grow_rows(s.inputs, routed, hidden), results = grow_rows(s.results, routed, hidden);
  gather_rows(x, {s.row.data(), static_cast<size_t>(routed)}, inputs);
  s.groups.clear();
  for (int e = 0; e < shape.experts; ++e) {
    const int64_t begin = s.first[static_cast<size_t>(e)], end = s.first[static_cast<size_t>(e) + 1];
    if (begin == end) continue;
    const ExpertWeights& expert = w.experts[static_cast<size_t>(e)];
    checks::expert(expert, hidden);
    s.groups.push_back({begin, end - begin, &expert});
  }
  products_.gated_ffn(inputs, s.groups, results);
  CHECK(w.shared_gate != nullptr);
  const View shared = grow_rows(s.shared, rows, hidden), shared_gate = grow_rows(s.shared_gate, rows, 1);
  gated_ffn(x, w.shared, shared);
  linear(x, *w.shared_gate, shared_gate);

  s.result_rows.resize(std::max(s.result_rows.size(), static_cast<size_t>(routed)));
  for (int64_t i = 0; i < routed; ++i)
    s.result_rows[static_cast<size_t>(i)] = results.f32(s.place[static_cast<size_t>(i)]);
  pool_.parallel_for(rows, grain_for(hidden * shape.top_k / 2), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const CombineTask task{.y = s.result_rows.data() + r * shape.top_k,
                             .weights = s.weights.data() + r * shape.top_k,
                             .top_k = shape.top_k,
                             .shared = shared.f32(r),
                             .shared_gate = *shared_gate.f32(r),
                             .out = out.f32(r)};
      kernels_.moe.combine(task, 0, hidden);
    }
  });
}

// ---- Attention

void CpuBackend::rotary_table(std::span<const RowInput> inputs, const RotarySpec& spec, View table) {
  checks::rotary_table(inputs, spec, table);
  const int half = spec.rotary_dim() / 2;
  pool_.parallel_for(table.rows, grain_for(64 * half), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      for (int j = 0; j < half; ++j) {
        const size_t pair = static_cast<size_t>(j);
        const int32_t position = inputs[static_cast<size_t>(r)].position[spec.axis[pair]];
        const canonical::SinCos angle =
            canonical::sin_cos(static_cast<double>(position) * static_cast<double>(spec.inverse_frequency[pair]));
        table.f32(r)[j] = angle.cos * spec.magnitude;
        table.f32(r)[half + j] = angle.sin * spec.magnitude;
      }
    }
  });
}

void CpuBackend::attention_inputs(View packed, View q_norm, View k_norm, View rotary, const AttentionShape& shape,
                                  const Batch& batch, std::span<const PageTable> pages, const KvLayout& layout,
                                  int layer, View queries) {
  checks::attention_inputs(packed, q_norm, k_norm, rotary, shape, batch, pages, layout, layer, queries);
  const int dim = shape.head_dim, format = static_cast<int>(layout.format);
  for (size_t l = 0; l < batch.lanes.size(); ++l) {
    const LaneRows& lane = batch.lanes[l];
    if (lane.rows == 0) continue;
    // Heads outside, rows inside: consecutive tokens of one head share the lines of a key block.
    const int64_t items = int64_t{shape.query_heads + shape.kv_heads} * lane.rows;
    pool_.parallel_for(items, grain_for(4 * dim), [&](int64_t begin, int64_t end, int) {
      for (int64_t item = begin; item < end; ++item) {
        const int head = static_cast<int>(item / lane.rows), i = static_cast<int>(item % lane.rows);
        const int64_t row = lane.first_row + i;
        HeadTask task{.x = packed.f32(row) + int64_t{2} * head * dim,
                      .weight = q_norm.f32(),
                      .epsilon = shape.norm_epsilon,
                      .dim = dim,
                      .rotary = rotary.f32(row),
                      .rotary_dim = static_cast<int>(rotary.cols)};
        if (head < shape.query_heads) {
          kernels_.attention.query_head(task, queries.f32(row) + int64_t{head} * dim);
          continue;
        }
        const int kv_head = head - shape.query_heads;
        const int64_t slot = lane.prefix + i;
        std::byte* page = pages[l][static_cast<size_t>(slot / kPageTokens)];
        const KvOffsets offsets = kv_offsets(layout, layer, kv_head);
        const int token = static_cast<int>(slot % kPageTokens);
        task.x = packed.f32(row) + shape.query_columns() + int64_t{kv_head} * dim;
        task.weight = k_norm.f32();
        kernels_.attention.store_key(task, format, page, offsets, token);
        kernels_.attention.store_value(task.x + int64_t{shape.kv_heads} * dim, dim, format, page, offsets, token);
      }
    });
  }
}

namespace {

// Slots of the rows on the way to each row of a tree, back to back: row i has depth(i) + 1 of them from first[i].
void collect_paths(const LaneRows& lane, std::vector<int64_t>& slots, std::vector<int64_t>& first) {
  for (int i = 0; i < lane.rows; ++i) {
    const int parent = lane.parent_of(i);
    const int64_t begin = static_cast<int64_t>(slots.size());
    if (parent >= 0) {
      const size_t at = first.size() - static_cast<size_t>(i - parent);
      const int64_t end = at + 1 < first.size() ? first[at + 1] : begin;
      for (int64_t s = first[at]; s < end; ++s) slots.push_back(slots[static_cast<size_t>(s)]);
    }
    slots.push_back(lane.prefix + i);
    first.push_back(begin);
  }
}

}  // namespace

void CpuBackend::attention(View queries, View packed, const AttentionShape& shape, const Batch& batch,
                           std::span<const PageTable> pages, const KvLayout& layout, int layer, View out) {
  checks::attention(queries, packed, shape, batch, pages, layout, layer, out);
  AttentionWork& work = scratch_.attention;
  const int dim = shape.head_dim, group = shape.query_heads / shape.kv_heads;
  const int tile_heads = std::min(group, kTileQueries), threads = pool_.size();

  // Paths of trees: chains need none, their slots are their positions.
  work.slots.clear();
  work.first_slot.clear();
  work.lanes.clear();
  for (const LaneRows& lane : batch.lanes) {
    const bool chain = is_chain(lane);
    work.lanes.push_back({static_cast<int64_t>(work.first_slot.size()), chain});
    if (!chain) collect_paths(lane, work.slots, work.first_slot);
  }
  work.first_slot.push_back(static_cast<int64_t>(work.slots.size()));

  // Tiles: many rows share a pass over K and V, unless that would leave threads idle.
  int tile_rows = std::max(1, kTileQueries / tile_heads);
  for (;; tile_rows /= 2) {
    work.items.clear();
    for (int head = 0; head < shape.query_heads;) {
      const int heads = std::min(tile_heads, group - head % group);
      for (size_t l = 0; l < batch.lanes.size(); ++l)
        for (int row = 0; row < batch.lanes[l].rows; row += tile_rows)
          work.items.push_back({static_cast<int>(l), row, std::min(tile_rows, batch.lanes[l].rows - row), head, heads});
      head += heads;
    }
    if (tile_rows == 1 || static_cast<int64_t>(work.items.size()) >= threads) break;
  }
  const int64_t items = static_cast<int64_t>(work.items.size());
  if (items == 0) return;

  auto visible_of = [&](const LaneRows& lane, size_t l, int row) -> int64_t {
    if (work.lanes[l].chain) return lane.prefix + row + 1;
    const size_t at = static_cast<size_t>(work.lanes[l].first + row);
    return lane.prefix + work.first_slot[at + 1] - work.first_slot[at];
  };
  auto make_tile = [&](const AttentionItem& item, AttentionTile& tile) {
    const size_t l = static_cast<size_t>(item.lane);
    const LaneRows& lane = batch.lanes[l];
    tile.rows = item.rows;
    tile.group = item.heads;
    tile.dim = dim;
    tile.format = static_cast<int>(layout.format);
    tile.gather_from = lane.prefix;
    tile.pages = pages[l].data();
    tile.offsets = kv_offsets(layout, layer, item.first_head / group);
    int64_t most = 0;
    for (int r = 0; r < item.rows; ++r) {
      const int row = item.first_row + r;
      const int64_t visible = visible_of(lane, l, row);
      const int64_t* path = nullptr;
      if (!work.lanes[l].chain)
        path = work.slots.data() + work.first_slot[static_cast<size_t>(work.lanes[l].first + row)];
      most = std::max(most, visible);
      for (int h = 0; h < item.heads; ++h) {
        const int q = r * item.heads + h, head = item.first_head + h;
        const int64_t batch_row = lane.first_row + row;
        tile.queries[q] = queries.f32(batch_row) + int64_t{head} * dim;
        tile.gates[q] = packed.f32(batch_row) + (int64_t{2} * head + 1) * dim;
        tile.outs[q] = out.f32(batch_row) + int64_t{head} * dim;
        tile.visible[q] = visible;
        tile.path[q] = path;
      }
    }
    return (most + kSpanTokens - 1) / kSpanTokens;  // spans
  };
  auto* thread_scratch = static_cast<AttentionScratch*>(
      grow(work.thread_scratch, static_cast<size_t>(threads) * sizeof(AttentionScratch)));

  int64_t most_spans = 0;
  for (size_t l = 0; l < batch.lanes.size(); ++l)
    for (int row = 0; row < batch.lanes[l].rows; ++row)
      most_spans = std::max(most_spans, (visible_of(batch.lanes[l], l, row) + kSpanTokens - 1) / kSpanTokens);

  if (items < threads && most_spans > 1) {  // few tiles and a long prefix: spans are independent until they are merged
    auto* states = static_cast<AttentionState*>(
        grow(work.states, static_cast<size_t>(items * most_spans) * sizeof(AttentionState)));
    pool_.parallel_for(items * most_spans, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) {
        AttentionTile tile;
        if (i % most_spans < make_tile(work.items[static_cast<size_t>(i / most_spans)], tile))
          kernels_.attention.attend_span(tile, i % most_spans, thread_scratch[thread], states[i]);
      }
    });
    pool_.parallel_for(items, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        AttentionTile tile;
        const int64_t spans = make_tile(work.items[static_cast<size_t>(i)], tile);
        AttentionState* first = states + i * most_spans;
        for (int64_t span = 1; span < spans; ++span) kernels_.attention.merge_span(tile, span, first[span], first[0]);
        kernels_.attention.finish(tile, first[0]);
      }
    });
    return;
  }
  auto* states =
      static_cast<AttentionState*>(grow(work.states, static_cast<size_t>(2 * threads) * sizeof(AttentionState)));
  pool_.parallel_for(threads, 1, [&](int64_t begin, int64_t end, int thread) {
    // Items are dealt like cards: later rows see more, so contiguous shares would be uneven.
    for (int64_t hand = begin; hand < end; ++hand) {
      for (int64_t i = hand; i < items; i += threads) {
        AttentionTile tile;
        const int64_t spans = make_tile(work.items[static_cast<size_t>(i)], tile);
        AttentionState *total = states + 2 * thread, *next = total + 1;
        kernels_.attention.attend_span(tile, 0, thread_scratch[thread], *total);
        for (int64_t span = 1; span < spans; ++span) {
          kernels_.attention.attend_span(tile, span, thread_scratch[thread], *next);
          kernels_.attention.merge_span(tile, span, *next, *total);
        }
        kernels_.attention.finish(tile, *total);
      }
    }
  });
}

void CpuBackend::commit_kv(PageTable pages, const KvLayout& layout, int64_t prefix, std::span<const int> path) {
  checks::commit_kv(pages, layout, prefix, path);
  size_t first = 0;  // rows before it are where they belong
  while (first < path.size() && path[first] == static_cast<int>(first)) ++first;
  if (first == path.size()) return;
  const size_t element = layout.element_bytes(), row_size = static_cast<size_t>(layout.head_dim) * element;
  pool_.parallel_for(
      int64_t{layout.layers} * layout.heads, grain_for(4 * layout.head_dim), [&](int64_t begin, int64_t end, int) {
        for (int64_t item = begin; item < end; ++item) {
          const KvOffsets at =
              kv_offsets(layout, static_cast<int>(item / layout.heads), static_cast<int>(item % layout.heads));
          for (size_t j = first; j < path.size(); ++j) {
            const int64_t from = prefix + path[j], to = prefix + static_cast<int64_t>(j);
            std::byte* from_page = pages[static_cast<size_t>(from / kPageTokens)];
            std::byte* to_page = pages[static_cast<size_t>(to / kPageTokens)];
            const size_t from_token = static_cast<size_t>(from % kPageTokens),
                         to_token = static_cast<size_t>(to % kPageTokens);
            for (size_t d = 0; d < static_cast<size_t>(layout.head_dim); ++d)
              std::memcpy(to_page + at.key + (d * kPageTokens + to_token) * element,
                          from_page + at.key + (d * kPageTokens + from_token) * element, element);
            std::memcpy(to_page + at.value + to_token * row_size, from_page + at.value + from_token * row_size,
                        row_size);
            if (layout.format != KvFormat::kInt8) continue;
            std::memcpy(to_page + at.key_scale + 4 * to_token, from_page + at.key_scale + 4 * from_token, 4);
            std::memcpy(to_page + at.value_scale + 4 * to_token, from_page + at.value_scale + 4 * from_token, 4);
          }
        }
      });
}

// ---- Gated delta net

namespace {

// The last kernel - 1 rows of (tail ++ rows), as moves that may be made in order: a row's source lies behind it.
template <class Row>
void plan_tail(const DeltaShape& shape, float* tail, int count, Row row, std::vector<TailMove>& moves) {
  const int keep = shape.kernel - 1;
  if (count == 0) return;
  for (int i = 0; i < keep; ++i) {
    const int from = i + count;  // index in tail ++ rows
    const float* source = from < keep ? tail + int64_t{from} * shape.channels() : row(from - keep);
    moves.push_back({tail + int64_t{i} * shape.channels(), source});
  }
}

}  // namespace

void CpuBackend::causal_conv(View packed, View weight, const DeltaShape& shape, const Batch& batch,
                             std::span<const DeltaMemory> lanes, View out) {
  checks::causal_conv(packed, weight, shape, batch, lanes, out);
  CHECK(shape.kernel <= kMaxConvKernel);
  ConvWork& work = scratch_.conv;
  const int channels = shape.channels(), kernel = shape.kernel;
  work.rows.clear();
  work.moves.clear();
  work.inputs.resize(std::max(work.inputs.size(), static_cast<size_t>(packed.rows * kernel)));
  size_t used = 0;
  for (size_t l = 0; l < lanes.size(); ++l) {
    const LaneRows& lane = batch.lanes[l];
    const DeltaMemory& memory = lanes[l];
    for (int i = 0; i < lane.rows; ++i) {
      const float** inputs = work.inputs.data() + used;
      used += static_cast<size_t>(kernel);
      int at = i;  // the row itself, then its parents, then the tail backwards
      for (int j = kernel - 1; j >= 0; --j) {
        if (at >= 0) {
          inputs[j] = packed.f32(lane.first_row + at);
          at = lane.parent_of(at) >= 0 ? lane.parent_of(at) : -1;
        } else {
          inputs[j] = memory.tail + int64_t{kernel - 1 + at} * channels;
          --at;
        }
      }
      work.rows.push_back({inputs, out.f32(lane.first_row + i),
                           i < lane.settled ? nullptr : memory.tape.conv_row + int64_t{i} * channels});
    }
    plan_tail(
        shape, memory.tail, lane.settled, [&](int i) { return packed.f32(lane.first_row + i); }, work.moves);
  }
  const ConvTask task{.rows = work.rows.data(),
                      .row_count = static_cast<int64_t>(work.rows.size()),
                      .moves = work.moves.data(),
                      .move_count = static_cast<int64_t>(work.moves.size()),
                      .weight = weight.f32(),
                      .weight_stride = weight.stride,
                      .kernel = kernel};
  pool_.parallel_for(channels, kConvChannels,
                     [&](int64_t begin, int64_t end, int) { kernels_.elementwise.causal_conv(task, begin, end); });
}

namespace {

constexpr int kLaneState = -1, kNowhere = -2;  // places of a state beside the saved ones 0, 1, ...

// Rows of a lane as runs: depth first, a run ending where the tree branches. Returns how many states are saved at once.
int plan_runs(const LaneRows& lane, DeltaWork& work) {
  work.runs.clear();
  work.order.clear();
  if (lane.settled > 0) {
    for (int i = 0; i < lane.settled; ++i) work.order.push_back(i);
    work.runs.push_back({0, lane.settled, kLaneState, kLaneState});
  }
  if (lane.settled == lane.rows) return 0;
  // Children of row p at [child_first[p + 1], child_first[p + 2]), p == -1 for those that continue the committed state.
  const size_t rows = static_cast<size_t>(lane.rows);
  auto origin = [&](int row) { return lane.parent_of(row) < lane.settled ? -1 : lane.parent_of(row); };
  work.child_first.assign(rows + 2, 0);
  for (int i = lane.settled; i < lane.rows; ++i) ++work.child_first[static_cast<size_t>(origin(i) + 2)];
  for (size_t i = 1; i < rows + 2; ++i) work.child_first[i] += work.child_first[i - 1];
  work.children.resize(std::max(work.children.size(), rows));
  work.cursor.assign(work.child_first.begin(), work.child_first.end());
  for (int i = lane.settled; i < lane.rows; ++i)
    work.children[static_cast<size_t>(work.cursor[static_cast<size_t>(origin(i) + 1)]++)] = i;

  int saved = 0;
  work.stack.clear();
  auto push_children = [&](int row, int source, int level) {
    const int begin = work.child_first[static_cast<size_t>(row + 1)],
              end = work.child_first[static_cast<size_t>(row + 2)];
    for (int c = end - 1; c >= begin; --c) work.stack.push_back({work.children[static_cast<size_t>(c)], source, level});
  };
  push_children(-1, kLaneState, 0);
  while (!work.stack.empty()) {
    const DeltaBranch branch = work.stack.back();
    work.stack.pop_back();
    const int first = static_cast<int>(work.order.size());
    int row = branch.row, count = 0;
    for (;;) {
      work.order.push_back(row);
      const int begin = work.child_first[static_cast<size_t>(row + 1)];
      count = work.child_first[static_cast<size_t>(row + 2)] - begin;
      if (count != 1) break;
      row = work.children[static_cast<size_t>(begin)];
    }
    work.runs.push_back(
        {first, static_cast<int>(work.order.size()) - first, branch.source, count > 1 ? branch.level : kNowhere});
    if (count < 2) continue;
    push_children(row, branch.level, branch.level + 1);
    saved = std::max(saved, branch.level + 1);
  }
  return saved;
}

}  // namespace

void CpuBackend::delta_rule(View conv, View beta_alpha, View decay_rate, View dt_bias, const DeltaShape& shape,
                            const Batch& batch, std::span<const DeltaMemory> lanes, View out) {
  checks::delta_rule(conv, beta_alpha, decay_rate, dt_bias, shape, batch, lanes, out);
  DeltaWork& work = scratch_.delta;
  const int key_dim = shape.key_dim, value_dim = shape.value_dim, threads = pool_.size();
  const int64_t key_cols = int64_t{shape.key_heads} * key_dim, value_cols = int64_t{shape.value_heads} * value_dim;
  const View query = grow_rows(work.query, conv.rows, key_cols), key = grow_rows(work.key, conv.rows, key_cols);
  const View decay = grow_rows(work.decay, conv.rows, shape.value_heads);
  const View beta = grow_rows(work.beta, conv.rows, shape.value_heads);

  for (size_t l = 0; l < lanes.size(); ++l) {
    const LaneRows& lane = batch.lanes[l];
    const DeltaMemory& memory = lanes[l];
    pool_.parallel_for(lane.rows, grain_for(2 * key_cols), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = lane.first_row + i;
        kernels_.delta.prepare_row({.conv = conv.f32(row),
                                    .beta_alpha = beta_alpha.f32(row),
                                    .decay_rate = decay_rate.f32(),
                                    .dt_bias = dt_bias.f32(),
                                    .key_heads = shape.key_heads,
                                    .value_heads = shape.value_heads,
                                    .key_dim = key_dim,
                                    .query = query.f32(row),
                                    .key = key.f32(row),
                                    .decay = decay.f32(row),
                                    .beta = beta.f32(row)});
        if (i < lane.settled) continue;
        std::memcpy(memory.tape.key + i * key_cols, key.f32(row), static_cast<size_t>(key_cols) * sizeof(float));
        std::memcpy(memory.tape.decay + i * shape.value_heads, decay.f32(row),
                    static_cast<size_t>(shape.value_heads) * sizeof(float));
      }
    });

    const size_t saved = static_cast<size_t>(plan_runs(lane, work));
    const size_t block_floats = static_cast<size_t>(key_dim) * kDeltaColumns;
    // Per thread: the working block, then the saved states.
    auto* blocks = static_cast<float*>(
        grow(work.blocks, static_cast<size_t>(threads) * (saved + 1) * block_floats * sizeof(float)));
    const size_t rows_each = static_cast<size_t>(lane.rows);
    work.rows.resize(std::max(work.rows.size(), static_cast<size_t>(threads) * rows_each));
    const int block_columns = lane.rows == 1 ? kDeltaSingleColumns : kDeltaColumns;
    const int64_t column_blocks = (value_dim + block_columns - 1) / block_columns;
    pool_.parallel_for(shape.value_heads * column_blocks, 1, [&](int64_t begin, int64_t end, int thread) {
      float* working = blocks + static_cast<size_t>(thread) * (saved + 1) * block_floats;
      DeltaRow* rows = work.rows.data() + static_cast<size_t>(thread) * rows_each;
      for (int64_t item = begin; item < end; ++item) {
        const int head = static_cast<int>(item / column_blocks),
                  column = static_cast<int>(item % column_blocks) * block_columns;
        const int64_t value_at = int64_t{head} * value_dim + column,
                      key_at = int64_t{shape.key_head_of(head)} * key_dim;
        float* state = memory.state + int64_t{head} * key_dim * value_dim + column;
        for (const DeltaRunPlan& plan : work.runs) {
          for (int r = 0; r < plan.count; ++r) {
            const int i = work.order[static_cast<size_t>(plan.first + r)];
            const int64_t row = lane.first_row + i;
            rows[r] = {.query = query.f32(row) + key_at,
                       .key = key.f32(row) + key_at,
                       .value = conv.f32(row) + 2 * key_cols + value_at,
                       .out = out.f32(row) + value_at,
                       .delta = i < lane.settled ? nullptr : memory.tape.delta + i * value_cols + value_at,
                       .decay = decay.f32(row)[head],
                       .beta = beta.f32(row)[head]};
          }
          auto saved_block = [&](int place) { return working + (static_cast<size_t>(place) + 1) * block_floats; };
          const bool from_lane = plan.source == kLaneState, to_lane = plan.target == kLaneState;
          kernels_.delta.run({.rows = rows,
                              .row_count = plan.count,
                              .key_dim = key_dim,
                              .piece_keys = shape.piece_keys(),
                              .columns = std::min(block_columns, value_dim - column),
                              .source = from_lane ? state : saved_block(plan.source),
                              .source_stride = from_lane ? value_dim : kDeltaColumns,
                              .target = to_lane                   ? state
                                        : plan.target == kNowhere ? nullptr
                                                                  : saved_block(plan.target),
                              .target_stride = to_lane ? value_dim : kDeltaColumns,
                              .work = working});
        }
      }
    });
  }
}

void CpuBackend::commit_delta(const DeltaShape& shape, const DeltaMemory& lane, int settled,
                              std::span<const int> path) {
  checks::commit_delta(shape, lane, settled, path);
  const std::span<const int> accepted = path.subspan(static_cast<size_t>(settled));
  if (accepted.empty()) return;
  DeltaWork& work = scratch_.delta;
  const size_t count = accepted.size();
  work.replay.resize(std::max(work.replay.size(), static_cast<size_t>(pool_.size()) * count));
  pool_.parallel_for(shape.value_heads, 1, [&](int64_t begin, int64_t end, int thread) {
    ReplayRow* rows = work.replay.data() + static_cast<size_t>(thread) * count;
    for (int64_t h = begin; h < end; ++h) {
      for (size_t r = 0; r < count; ++r) {
        const int64_t row = accepted[r];
        rows[r] = {
            .key = lane.tape.key + (row * shape.key_heads + shape.key_head_of(static_cast<int>(h))) * shape.key_dim,
            .delta = lane.tape.delta + (row * shape.value_heads + h) * shape.value_dim,
            .decay = lane.tape.decay[row * shape.value_heads + h]};
      }
      kernels_.delta.replay({.rows = rows,
                             .row_count = static_cast<int>(count),
                             .key_dim = shape.key_dim,
                             .value_dim = shape.value_dim,
                             .state = lane.state + h * shape.key_dim * shape.value_dim});
    }
  });
  scratch_.conv.moves.clear();
  plan_tail(
      shape, lane.tail, static_cast<int>(count),
      [&](int i) { return lane.tape.conv_row + int64_t{accepted[static_cast<size_t>(i)]} * shape.channels(); },
      scratch_.conv.moves);
  for (const TailMove& move : scratch_.conv.moves)
    std::memmove(move.to, move.from, static_cast<size_t>(shape.channels()) * sizeof(float));
}

}  // namespace foretoken::cpu
