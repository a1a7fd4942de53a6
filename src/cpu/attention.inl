// Attention over pages, written once over simd.h. Scores: lanes are the 32 tokens of a block, one chain over the
// dimensions per token. Values: lanes are dimensions, one chain over the tokens per dimension. The query heads of a
// tile share every load of K and V. Definition: docs/numerics.md section 4, the same operations per score and per
// output.
namespace foretoken::cpu::FORETOKEN_ISA {
namespace {

enum : int { kFormatF32 = 0, kFormatBF16 = 1, kFormatInt8 = 2 };

template <int kFormat>
FORETOKEN_SIMD F32x16 load_kv(const std::byte* block, int64_t index) {
  if constexpr (kFormat == kFormatF32) return load_f32(reinterpret_cast<const float*>(block) + index);
  else if constexpr (kFormat == kFormatBF16) return load_bf16(reinterpret_cast<const uint16_t*>(block) + index);
  else return to_f32(load_s8(reinterpret_cast<const int8_t*>(block) + index));
}

template <int kFormat>
FORETOKEN_SIMD float load_kv_element(const std::byte* block, int64_t index) {
  if constexpr (kFormat == kFormatF32) return reinterpret_cast<const float*>(block)[index];
  else if constexpr (kFormat == kFormatBF16)
    return __builtin_bit_cast(float, uint32_t{reinterpret_cast<const uint16_t*>(block)[index]} << 16);
  else return static_cast<float>(reinterpret_cast<const int8_t*>(block)[index]);
}

// ---- Storing.

void query_head(const HeadTask& task, float* out) {
  scale_by_weight(task.x, rms_scale(task.x, task.dim, task.epsilon), task.weight, task.dim, out);
  const int half = task.rotary_dim / 2;
  for (int j = 0; j < half; j += 16) {
    const int count = half - j < 16 ? half - j : 16;
    const F32x16 cosine = load_part(task.rotary + j, count), sine = load_part(task.rotary + half + j, count);
    const F32x16 a = load_part(out + j, count), b = load_part(out + half + j, count);
    store_part(out + j, fnma(b, sine, mul(a, cosine)), count);
    store_part(out + half + j, fma(a, sine, mul(b, cosine)), count);
  }
}

// canonical::quantize_activation of one head.
FORETOKEN_SIMD float quantize_head(const float* x, int dim, int8_t* q) {
  I32x16 largest = zero_i32();
  for (int i = 0; i < dim; i += 16)
    largest = max(largest, bits_i32(absolute(load_part(x + i, dim - i))));
  alignas(64) int32_t lanes[16];
  store(lanes, largest);
  int32_t bits = 0;
  for (int l = 0; l < 16; ++l) bits = bits < lanes[l] ? lanes[l] : bits;
  const float amax = __builtin_bit_cast(float, bits);
  const bool finite = bits < 0x7F800000;
  const bool zero = !finite || amax < 1e-30f;
  const F32x16 inverse = set_f32(zero ? 0.0f : 127.0f / amax);
  for (int i = 0; i < dim; i += 16) {
    alignas(64) int8_t rounded[16];
    store_s8(rounded, zero ? zero_i32() : to_i32(mul(load_part(x + i, dim - i), inverse)));
    __builtin_memcpy(q + i, rounded, 16);
  }
  if (!finite) return __builtin_nanf("");
  return zero ? 0.0f : amax / 127.0f;
}

// Rounds `dim` values; `buffer` has room for whole vectors. Returns the int8 scale.
FORETOKEN_SIMD float round_head(const float* x, int dim, int format, void* buffer) {
  if (format == kFormatF32) __builtin_memcpy(buffer, x, static_cast<size_t>(dim) * sizeof(float));
  else if (format == kFormatBF16)
    for (int i = 0; i < dim; i += 16) store_bf16(static_cast<uint16_t*>(buffer) + i, load_part(x + i, dim - i));
  else return quantize_head(x, dim, static_cast<int8_t*>(buffer));
  return 1.0f;
}

template <class T>
FORETOKEN_SIMD void scatter_key(const T* from, int dim, std::byte* block, int token) {
  T* to = reinterpret_cast<T*>(block) + token;
  for (int d = 0; d < dim; ++d) to[d * kBlockTokens] = from[d];
}

void store_key(const HeadTask& task, int format, std::byte* page, const KvOffsets& offsets, int token) {
  alignas(64) float key[kMaxAttentionDim + 16];
  alignas(64) float rounded[kMaxAttentionDim + 16];
  query_head(task, key);
  const float scale = round_head(key, task.dim, format, rounded);
  std::byte* block = page + offsets.key;
  if (format == kFormatF32) scatter_key(rounded, task.dim, block, token);
  else if (format == kFormatBF16) scatter_key(reinterpret_cast<const uint16_t*>(rounded), task.dim, block, token);
  else {
    scatter_key(reinterpret_cast<const int8_t*>(rounded), task.dim, block, token);
    reinterpret_cast<float*>(page + offsets.key_scale)[token] = scale;
  }
}

void store_value(const float* x, int dim, int format, std::byte* page, const KvOffsets& offsets, int token) {
  alignas(64) float rounded[kMaxAttentionDim + 16];
  const float scale = round_head(x, dim, format, rounded);
  const size_t bytes = static_cast<size_t>(dim) * (format == kFormatF32 ? 4 : format == kFormatBF16 ? 2 : 1);
  __builtin_memcpy(page + offsets.value + static_cast<size_t>(token) * bytes, rounded, bytes);
  if (format == kFormatInt8) reinterpret_cast<float*>(page + offsets.value_scale)[token] = scale;
}

// ---- One block of 32 logical positions for the queries [begin, end) of a tile.

struct KvBlock {
  const std::byte *key, *value;         // [dim][32] and [32][dim]
  const float *key_scale, *value_scale; // int8
};

// Dot products of kQueries queries with kVectors vectors of tokens.
template <int kFormat, int kQueries, int kVectors>
FORETOKEN_SIMD void block_dots(const float* queries, const std::byte* key, int dim, int first_token, float* scores) {
  F32x16 acc[kQueries][kVectors];
  FORETOKEN_UNROLL for (int q = 0; q < kQueries; ++q)
    FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) acc[q][v] = zero_f32();
  for (int d = 0; d < dim; ++d) {
    F32x16 k[kVectors];
    FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v)
      k[v] = load_kv<kFormat>(key, int64_t{d} * kBlockTokens + first_token + 16 * v);
    FORETOKEN_UNROLL for (int q = 0; q < kQueries; ++q) {
      const F32x16 x = set_f32(queries[d * kTileQueries + q]);
      FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) acc[q][v] = fma(x, k[v], acc[q][v]);
    }
  }
  FORETOKEN_UNROLL for (int q = 0; q < kQueries; ++q)
    FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v)
      store(scores + q * kBlockTokens + first_token + 16 * v, acc[q][v]);
}

template <int kFormat>
FORETOKEN_SIMD void score_queries(const float* queries, const std::byte* key, int dim, int count, float* scores) {
  constexpr bool kWide = FORETOKEN_ISA_LEVEL == 2;  // 32 registers hold 8 x 2 sums, 16 hold 4 x 1
  constexpr int kMost = kWide ? 8 : 4, kVectors = kWide ? 2 : 1;
  int q = 0;
  for (; q + kMost <= count; q += kMost)
    for (int t = 0; t < kBlockTokens; t += 16 * kVectors)
      block_dots<kFormat, kMost, kVectors>(queries + q, key, dim, t, scores + q * kBlockTokens);
  if (kWide && q + 4 <= count) {
    block_dots<kFormat, 4, 2>(queries + q, key, dim, 0, scores + q * kBlockTokens);
    q += 4;
  }
  for (; q + 2 <= count; q += 2) block_dots<kFormat, 2, 2>(queries + q, key, dim, 0, scores + q * kBlockTokens);
  if (q < count) block_dots<kFormat, 1, 2>(queries + q, key, dim, 0, scores + q * kBlockTokens);
}

// Scores of one query to weights, of which the first `visible` (1..32) count. Returns the factor for what came before.
template <bool kScaled>
FORETOKEN_SIMD float soften(float* scores, const KvBlock& block, int visible, float head_scale, float& m, float& l) {
  const Mask16 first = first_lanes(visible < 16 ? visible : 16), second = first_lanes(visible > 16 ? visible - 16 : 0);
  const F32x16 lowest = set_f32(-__builtin_inff());
  F32x16 a = load_f32(scores), b = load_f32(scores + 16);
  if constexpr (kScaled) {
    a = mul(a, load_f32(block.key_scale));
    b = mul(b, load_f32(block.key_scale + 16));
  }
  a = mul(a, set_f32(head_scale));
  b = mul(b, set_f32(head_scale));
  const float largest = fold_max(max(select(first, a, lowest), select(second, b, lowest)));
  const float next = m < largest ? largest : m;
  alignas(64) float factor[16];
  store(factor, exp(set_f32(m - next)));
  a = select(first, exp(sub(a, set_f32(next))), zero_f32());
  b = select(second, exp(sub(b, set_f32(next))), zero_f32());
  l = l * factor[0] + fold_sum(add(a, b));
  m = next;
  if constexpr (kScaled) {
    a = mul(a, load_f32(block.value_scale));
    b = mul(b, load_f32(block.value_scale + 16));
  }
  store(scores, a);
  store(scores + 16, b);
  return factor[0];
}

// o = o * rescale, then the visible values by fma, ascending, for kQueries queries and kVectors vectors of dimensions.
template <int kFormat, int kQueries, int kVectors>
FORETOKEN_SIMD void add_values(const float* weights, const float* rescale, const int* visible, const std::byte* value,
                               int64_t stride, int64_t column, float* o) {
  F32x16 acc[kQueries][kVectors];
  int common = kBlockTokens;
  FORETOKEN_UNROLL for (int q = 0; q < kQueries; ++q) {
    common = visible[q] < common ? visible[q] : common;
    FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v)
      acc[q][v] = mul(load_f32(o + q * kMaxAttentionDim + 16 * v), set_f32(rescale[q]));
  }
  for (int t = 0; t < common; ++t) {
    F32x16 x[kVectors];
    FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) x[v] = load_kv<kFormat>(value, t * stride + column + 16 * v);
    FORETOKEN_UNROLL for (int q = 0; q < kQueries; ++q) {
      const F32x16 p = set_f32(weights[q * kBlockTokens + t]);
      FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) acc[q][v] = fma(p, x[v], acc[q][v]);
    }
  }
  FORETOKEN_UNROLL for (int q = 0; q < kQueries; ++q) {
    for (int t = common; t < visible[q]; ++t) {  // rows of one tile may see different numbers of positions
      const F32x16 p = set_f32(weights[q * kBlockTokens + t]);
      FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v)
        acc[q][v] = fma(p, load_kv<kFormat>(value, t * stride + column + 16 * v), acc[q][v]);
    }
    FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) store(o + q * kMaxAttentionDim + 16 * v, acc[q][v]);
  }
}

template <int kFormat, int kVectors>
FORETOKEN_SIMD void add_value_columns(const float* weights, const float* rescale, const int* visible, int count,
                                      const std::byte* value, int64_t stride, int64_t column, float* o) {
  constexpr int kMost = FORETOKEN_ISA_LEVEL == 2 ? 16 / kVectors : 4;  // 16 sums in 32 registers, 4 pairs in 16
  int q = 0;
  for (; q + kMost <= count; q += kMost)
    add_values<kFormat, kMost, kVectors>(weights + q * kBlockTokens, rescale + q, visible + q, value, stride, column,
                                         o + q * kMaxAttentionDim);
  for (; kMost > 4 && q + 4 <= count; q += 4)
    add_values<kFormat, 4, kVectors>(weights + q * kBlockTokens, rescale + q, visible + q, value, stride, column,
                                     o + q * kMaxAttentionDim);
  for (; q < count; ++q)
    add_values<kFormat, 1, kVectors>(weights + q * kBlockTokens, rescale + q, visible + q, value, stride, column,
                                     o + q * kMaxAttentionDim);
}

// kScaled: K and V are integers (or integers widened to fp32) with scales per token.
template <int kFormat, bool kScaled>
void attend_block(const AttentionTile& tile, const KvBlock& block, int64_t first_position, int begin, int end,
                  AttentionScratch& scratch, AttentionState& state) {
  const int count = end - begin, dim = tile.dim;
  int visible[kTileQueries];
  for (int q = 0; q < count; ++q) {
    const int64_t n = tile.visible[begin + q] - first_position;
    visible[q] = n < kBlockTokens ? static_cast<int>(n) : kBlockTokens;
  }
  score_queries<kFormat>(scratch.queries + begin, block.key, dim, count, scratch.scores);
  const float head_scale = 1.0f / __builtin_sqrtf(static_cast<float>(dim));
  for (int q = 0; q < count; ++q)
    scratch.rescale[q] = soften<kScaled>(scratch.scores + q * kBlockTokens, block, visible[q], head_scale,
                                         state.m[begin + q], state.l[begin + q]);
  constexpr int kVectors = FORETOKEN_ISA_LEVEL == 2 ? 2 : 1;
  float* o = state.o + begin * kMaxAttentionDim;
  int column = 0;
  for (; column + 16 * kVectors <= dim; column += 16 * kVectors)
    add_value_columns<kFormat, kVectors>(scratch.scores, scratch.rescale, visible, count, block.value, dim, column,
                                         o + column);
  for (; column + 16 <= dim; column += 16)
    add_value_columns<kFormat, 1>(scratch.scores, scratch.rescale, visible, count, block.value, dim, column,
                                  o + column);
  if (column == dim) return;
  for (int t = 0; t < kBlockTokens; ++t)
    for (int d = 0; d < 16; ++d)
      scratch.value_tail[t * 16 + d] =
          column + d < dim ? load_kv_element<kFormat>(block.value, int64_t{t} * dim + column + d) : 0.0f;
  add_value_columns<kFormatF32, 1>(scratch.scores, scratch.rescale, visible, count,
                                   reinterpret_cast<const std::byte*>(scratch.value_tail), 16, 0, o + column);
}

// ---- Spans.

FORETOKEN_SIMD KvBlock page_block(const AttentionTile& tile, int64_t position) {
  const std::byte* page = tile.pages[position / kBlockTokens];
  return {page + tile.offsets.key, page + tile.offsets.value,
          reinterpret_cast<const float*>(page + tile.offsets.key_scale),
          reinterpret_cast<const float*>(page + tile.offsets.value_scale)};
}

// Slot of a logical position of a row.
FORETOKEN_SIMD int64_t slot_of(const AttentionTile& tile, int query, int64_t position) {
  return position < tile.gather_from ? position : tile.path[query][position - tile.gather_from];
}

// True when a row's first `count` positions of a block lie in the slots of the same number.
FORETOKEN_SIMD bool lies_in_order(const AttentionTile& tile, int query, int64_t first_position, int count) {
  if (!tile.path[query]) return true;
  for (int t = count - 1; t >= 0 && first_position + t >= tile.gather_from; --t)
    if (slot_of(tile, query, first_position + t) != first_position + t) return false;
  return true;
}

// Widens one row's own view of a block into the scratch: the page as it is, with the positions of other slots put in
// place.
template <int kFormat>
KvBlock gather_block(const AttentionTile& tile, int query, int64_t first_position, int count,
                     AttentionScratch& scratch) {
  const int dim = tile.dim;
  if (first_position < tile.gather_from) {
    const KvBlock page = page_block(tile, first_position);
    for (int i = 0; i < dim * kBlockTokens; i += 16) store(scratch.key + i, load_kv<kFormat>(page.key, i));
  }
  for (int t = 0; t < count; ++t) {
    const int64_t slot = slot_of(tile, query, first_position + t), from = slot % kBlockTokens;
    const KvBlock page = page_block(tile, slot);
    if (first_position + t >= tile.gather_from)
      for (int d = 0; d < dim; ++d)
        scratch.key[d * kBlockTokens + t] = load_kv_element<kFormat>(page.key, int64_t{d} * kBlockTokens + from);
    for (int d = 0; d < dim; ++d)
      scratch.value[t * dim + d] = load_kv_element<kFormat>(page.value, from * dim + d);
    if (kFormat != kFormatInt8) continue;
    scratch.key_scale[t] = page.key_scale[from];
    scratch.value_scale[t] = page.value_scale[from];
  }
  return {reinterpret_cast<const std::byte*>(scratch.key), reinterpret_cast<const std::byte*>(scratch.value),
          scratch.key_scale, scratch.value_scale};
}

template <int kFormat>
void attend_span_format(const AttentionTile& tile, int64_t span, AttentionScratch& scratch, AttentionState& state) {
  constexpr bool kScaled = kFormat == kFormatInt8;
  const int queries = tile.rows * tile.group;
  int64_t end = 0;
  for (int q = 0; q < queries; ++q) {
    end = end < tile.visible[q] ? tile.visible[q] : end;
    state.m[q] = -__builtin_inff();
    state.l[q] = 0;
    for (int d = 0; d < tile.dim; d += 16) store(state.o + q * kMaxAttentionDim + d, zero_f32());
    for (int d = 0; d < tile.dim; ++d) scratch.queries[d * kTileQueries + q] = tile.queries[q][d];
  }
  const int64_t first = span * kSpanBlocks * kBlockTokens, last = first + kSpanBlocks * kBlockTokens;
  end = end < last ? end : last;
  for (int64_t position = first; position < end; position += kBlockTokens) {
    if (!tile.path[0] || position + kBlockTokens <= tile.gather_from) {
      // Every row finds the block in its page. In a chain later rows see more, so those that see nothing come first.
      int begin = 0;
      while (tile.visible[begin] <= position) ++begin;
      attend_block<kFormat, kScaled>(tile, page_block(tile, position), position, begin, queries, scratch, state);
      continue;
    }
    for (int q = 0; q < queries; q += tile.group) {
      const int64_t seen = tile.visible[q] - position;
      if (seen <= 0) continue;
      const int count = seen < kBlockTokens ? static_cast<int>(seen) : kBlockTokens;
      if (lies_in_order(tile, q, position, count))
        attend_block<kFormat, kScaled>(tile, page_block(tile, position), position, q, q + tile.group, scratch, state);
      else
        attend_block<kFormatF32, kScaled>(tile, gather_block<kFormat>(tile, q, position, count, scratch), position, q,
                                          q + tile.group, scratch, state);
    }
  }
}

void attend_span(const AttentionTile& tile, int64_t span, AttentionScratch& scratch, AttentionState& state) {
  if (tile.format == kFormatF32) attend_span_format<kFormatF32>(tile, span, scratch, state);
  else if (tile.format == kFormatBF16) attend_span_format<kFormatBF16>(tile, span, scratch, state);
  else attend_span_format<kFormatInt8>(tile, span, scratch, state);
}

void merge_span(const AttentionTile& tile, int64_t span_of_b, const AttentionState& b, AttentionState& a) {
  for (int q = 0; q < tile.rows * tile.group; ++q) {
    if (tile.visible[q] <= span_of_b * kSpanBlocks * kBlockTokens) continue;
    const float m = a.m[q] < b.m[q] ? b.m[q] : a.m[q];
    alignas(64) float ca[16], cb[16];
    store(ca, exp(set_f32(a.m[q] - m)));
    store(cb, exp(set_f32(b.m[q] - m)));
    a.l[q] = __builtin_fmaf(b.l[q], cb[0], a.l[q] * ca[0]);
    a.m[q] = m;
    for (int d = 0; d < tile.dim; d += 16) {
      const int i = q * kMaxAttentionDim + d;
      store(a.o + i, fma(load_f32(b.o + i), set_f32(cb[0]), mul(load_f32(a.o + i), set_f32(ca[0]))));
    }
  }
}

void finish_attention(const AttentionTile& tile, const AttentionState& state) {
  for (int q = 0; q < tile.rows * tile.group; ++q) {
    const F32x16 l = set_f32(state.l[q]);
    for (int d = 0; d < tile.dim; d += 16) {
      const int count = tile.dim - d < 16 ? tile.dim - d : 16;
      const F32x16 o = div(load_f32(state.o + q * kMaxAttentionDim + d), l);
      store_part(tile.outs[q] + d, mul(o, sigmoid(load_part(tile.gates[q] + d, count))), count);
    }
  }
}

constexpr AttentionKernels attention_kernels() {
  return {.query_head = query_head, .store_key = store_key, .store_value = store_value, .attend_span = attend_span,
          .merge_span = merge_span, .finish = finish_attention};
}

}  // namespace
}  // namespace foretoken::cpu::FORETOKEN_ISA
