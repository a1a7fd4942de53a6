// Block drafters, written once over simd.h: attention of a block over a window and itself, dynamic convolutions, candidates and
// their transition scores. Definition: ops/draft.cc; all but the attention, whose softmax runs block by block, have its bits.
namespace foretoken::cpu::FORETOKEN_ISA {
namespace {

// Scores of one query to weights; tokens outside [from, to) of the block do not count. Returns the factor for what came before.
template <bool kScaled>
FORETOKEN_SIMD float soften_range(float* scores, const KvBlock& block, int from, int to, float head_scale, float& m, float& l) {
  alignas(64) float weight[kBlockTokens];
  const F32x16 lowest = set_f32(-__builtin_inff());
  const Mask16 until[2] = {first_lanes(to < 16 ? to : 16), first_lanes(to > 16 ? to - 16 : 0)};
  const Mask16 before[2] = {first_lanes(from < 16 ? from : 16), first_lanes(from > 16 ? from - 16 : 0)};
  F32x16 x[2];
  FORETOKEN_UNROLL for (int i = 0; i < 2; ++i) {
    x[i] = load_f32(scores + 16 * i);
    if constexpr (kScaled) x[i] = mul(x[i], load_f32(block.key_scale + 16 * i));
    x[i] = select(before[i], lowest, select(until[i], mul(x[i], set_f32(head_scale)), lowest));
  }
  const float largest = fold_max(max(x[0], x[1]));
  const float next = m < largest ? largest : m;
  alignas(64) float factor[16];
  store(factor, exp(set_f32(m - next)));
  FORETOKEN_UNROLL for (int i = 0; i < 2; ++i) {
    x[i] = exp(sub(x[i], set_f32(next)));
    store(weight + 16 * i, x[i]);
  }
  l = l * factor[0] + fold_sum(add(x[0], x[1]));
  m = next;
  FORETOKEN_UNROLL for (int i = 0; i < 2; ++i) {
    if constexpr (kScaled) x[i] = mul(x[i], load_f32(block.value_scale + 16 * i));
    store(scores + 16 * i, x[i]);
  }
  return factor[0];
}

// o = o * rescale plus the values of tokens [from, to) for queries [begin, end).
template <int kFormat>
FORETOKEN_SIMD void add_range(const float* weights, const float* rescale, int begin, int end, int from, int to,
                              const std::byte* value, int dim, AttentionScratch& scratch, float* o) {
  constexpr int kVectors = FORETOKEN_ISA_LEVEL == 2 ? 4 : 1;
  constexpr int64_t kBytes = kFormat == kFormatF32 ? 4 : kFormat == kFormatBF16 ? 2 : 1;
  int visible[kTileQueries];
  for (int q = begin; q < end; ++q) visible[q] = to - from;
  const float* w = weights + begin * kBlockTokens + from;
  const std::byte* v = value + int64_t{from} * dim * kBytes;
  o += begin * kMaxAttentionDim;
  int column = 0;
  for (; column + 16 * kVectors <= dim; column += 16 * kVectors)
    add_value_columns<kFormat, kVectors>(w, rescale + begin, visible + begin, end - begin, v, dim, column, o + column);
  for (; column + 16 <= dim; column += 16)
    add_value_columns<kFormat, 1>(w, rescale + begin, visible + begin, end - begin, v, dim, column, o + column);
  if (column == dim) return;
  for (int t = from; t < to; ++t)
    for (int d = 0; d < 16; ++d)
      scratch.value_tail[t * 16 + d] =
          column + d < dim ? load_kv_element<kFormat>(value, int64_t{t} * dim + column + d) : 0.0f;
  add_value_columns<kFormatF32, 1>(w, rescale + begin, visible + begin, end - begin,
                                   reinterpret_cast<const std::byte*>(scratch.value_tail + from * 16), 16, 0, o + column);
}

template <int kFormat>
void attend_tile(const DraftTile& tile, AttentionScratch& scratch, AttentionState& state) {
  constexpr bool kScaled = kFormat == kFormatInt8;
  const int queries = tile.rows * tile.group, dim = tile.dim;
  const float head_scale = 1.0f / __builtin_sqrtf(static_cast<float>(dim));
  int64_t first = tile.begin[0], last = tile.end[0];
  for (int q = 0; q < queries; ++q) {
    first = tile.begin[q] < first ? tile.begin[q] : first;
    last = last < tile.end[q] ? tile.end[q] : last;
    state.m[q] = -__builtin_inff();
    state.l[q] = 0;
    for (int d = 0; d < dim; d += 16) store(state.o + q * kMaxAttentionDim + d, zero_f32());
    for (int d = 0; d < dim; ++d) scratch.queries[d * kTileQueries + q] = tile.queries[q][d];
  }
  for (int64_t position = first / kBlockTokens * kBlockTokens; position < last; position += kBlockTokens) {
    const std::byte* page = tile.pages[position / kBlockTokens % tile.page_count];
    const KvBlock block{page + tile.offsets.key, page + tile.offsets.value,
                        reinterpret_cast<const float*>(page + tile.offsets.key_scale),
                        reinterpret_cast<const float*>(page + tile.offsets.value_scale)};
    int from[kTileQueries] = {}, to[kTileQueries] = {};
    bool alike = true;
    for (int q = 0; q < queries; ++q) {
      const int64_t low = tile.begin[q] - position, high = tile.end[q] - position;
      from[q] = low <= 0 ? 0 : low < kBlockTokens ? static_cast<int>(low) : kBlockTokens;
      to[q] = high >= kBlockTokens ? kBlockTokens : high > 0 ? static_cast<int>(high) : 0;
      alike = alike && from[q] == from[0] && to[q] == to[0];
    }
    score_queries<kFormat>(scratch.queries, block.key, dim, queries, scratch.scores);
    for (int q = 0; q < queries; ++q)
      if (from[q] < to[q])
        scratch.rescale[q] = soften_range<kScaled>(scratch.scores + q * kBlockTokens, block, from[q], to[q], head_scale,
                                                   state.m[q], state.l[q]);
    if (alike && from[0] < to[0]) {
      add_range<kFormat>(scratch.scores, scratch.rescale, 0, queries, from[0], to[0], block.value, dim, scratch, state.o);
      continue;
    }
    for (int q = 0; q < queries; ++q)  // what a row does not see is not read
      if (from[q] < to[q])
        add_range<kFormat>(scratch.scores, scratch.rescale, q, q + 1, from[q], to[q], block.value, dim, scratch, state.o);
  }
  for (int q = 0; q < queries; ++q)
    for (int d = 0; d < dim; d += 16)
      store_part(tile.outs[q] + d, div(load_f32(state.o + q * kMaxAttentionDim + d), set_f32(state.l[q])), dim - d);
}

void draft_attend(const DraftTile& tile, AttentionScratch& scratch, AttentionState& state) {
  if (tile.format == kFormatF32) attend_tile<kFormatF32>(tile, scratch, state);
  else if (tile.format == kFormatBF16) attend_tile<kFormatBF16>(tile, scratch, state);
  else attend_tile<kFormatInt8>(tile, scratch, state);
}

void draft_conv(const DraftConvTask& task, int64_t row_begin, int64_t row_end) {
  const int64_t groups = task.cols / task.group;
  const bool whole_vectors = task.group % 16 == 0;
  for (int64_t r = row_begin; r < row_end; ++r) {
    const DraftConvRow& row = task.rows[r];
    for (int64_t c = 0; c < task.cols; c += 16) {
      const int count = task.cols - c < 16 ? static_cast<int>(task.cols - c) : 16;
      F32x16 acc = zero_f32();
      for (int j = 0; j < row.taps; ++j) {
        F32x16 delta;
        if (whole_vectors) {
          delta = set_f32(row.delta[j * groups + c / task.group]);
        } else {
          alignas(64) float lanes[16] = {};
          for (int l = 0; l < count; ++l) lanes[l] = row.delta[j * groups + (c + l) / task.group];
          delta = load_f32(lanes);
        }
        const F32x16 kernel = add(load_part(task.base + j * task.base_stride + c, count), delta);
        acc = fma(kernel, load_part(row.x - j * task.stride + c, count), acc);
      }
      store_part(row.out + c, acc, count);
    }
  }
}

// Values of equal size stay in the order they came.
FORETOKEN_SIMD void insert(float value, int32_t id, int k, int& count, int32_t* ids, float* largest) {
  if (count == k && !(value > largest[k - 1])) return;
  int at = count < k ? count++ : k - 1;
  for (; at > 0 && value > largest[at - 1]; --at) {
    largest[at] = largest[at - 1];
    ids[at] = ids[at - 1];
  }
  largest[at] = value;
  ids[at] = id;
}

void draft_top_k(const float* values, int64_t count, int k, int32_t* ids, float* largest) {
  int kept = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const int n = count - i < 16 ? static_cast<int>(count - i) : 16;
    if (kept == k && !any(less(set_f32(largest[k - 1]), load_part(values + i, n))) && n == 16) continue;
    for (int l = 0; l < n; ++l) {
      const float value = values[i + l];
      insert(value != value ? -__builtin_inff() : value, static_cast<int32_t>(i + l), k, kept, ids, largest);
    }
  }
}

void draft_edges(const float* weights, const float* predecessors, const float* successors, int k, int64_t rank, float* weighted,
                 float* edges) {
  for (int a = 0; a < k; ++a) {
    for (int64_t r = 0; r < rank; r += 16) {
      const int n = rank - r < 16 ? static_cast<int>(rank - r) : 16;
      store_part(weighted + r, mul(load_part(predecessors + a * rank + r, n), load_part(weights + r, n)), n);
    }
    for (int b = 0; b < k; ++b) {
      F32x16 lanes = zero_f32();
      for (int64_t r = 0; r < rank; r += 16) {
        const int n = rank - r < 16 ? static_cast<int>(rank - r) : 16;
        lanes = fma(load_part(successors + b * rank + r, n), load_part(weighted + r, n), lanes);
      }
      edges[a * k + b] = fold_sum(lanes);
    }
  }
}

constexpr DraftKernels draft_kernels() {
  return {.attend = draft_attend, .conv = draft_conv, .top_k = draft_top_k, .edges = draft_edges};
}

}  // namespace
}  // namespace foretoken::cpu::FORETOKEN_ISA
