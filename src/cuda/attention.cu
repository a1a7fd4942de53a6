// Gated softmax attention over pages, for every shape and format; what the matrix unit runs is attention_tiles.cu's. A
// block of threads takes one row, one K/V head with its query heads, and one span of 512 logical positions; inside it
// the operations and their order are the reference's (docs/numerics.md section 4): a lane a position for the scores, a
// thread a dimension for the weighted values.
#include "cuda/attention.cuh"

namespace foretoken::cuda {
namespace {

constexpr int kThreads = 512;  // one warp a block of 32 positions
static_assert(kSpanBlocks == kThreads / 32);

unsigned blocks(int64_t count, int threads) { return static_cast<unsigned>((count + threads - 1) / threads); }

template <KvFormat kFormat>
FORETOKEN_DEVICE float load_kv(const std::byte* block, int64_t index) {
  if constexpr (kFormat == KvFormat::kF32) return reinterpret_cast<const float*>(block)[index];
  if constexpr (kFormat == KvFormat::kBF16)
    return __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(block)[index]) << 16);
  if constexpr (kFormat == KvFormat::kInt8) return static_cast<float>(reinterpret_cast<const int8_t*>(block)[index]);
}

// What one lane of a warp has of a vector: elements lane, lane + 32, ...
template <int kMost>
struct OwnOf {
  static constexpr int kCount = kMost / 32;
  float at[kCount];
  __device__ __forceinline__ OwnOf(const float* from, int count) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int d = static_cast<int>(threadIdx.x & 31) + 32 * i;
      at[i] = d < count ? from[d] : 0.0f;
    }
  }
};

// One head by one warp: normalised and rotated into `out` (shared memory, head_dim floats). All that is read is asked
// for at once, and the weights before the kernel began.
FORETOKEN_DEVICE void norm_and_rotate(const float* x, const OwnOf<kMaxDim>& w, float epsilon, int dim,
                                      const float* rotary, int rotary_dim, float* out) {
  const int lane = threadIdx.x & 31, half = rotary_dim / 2;
  const OwnOf<kMaxDim> own(x, dim);
  const OwnOf<kMaxDim / 2> cosine(rotary, half), sine(rotary + half, half);
#pragma unroll
  for (int i = 0; i < own.kCount; ++i)
    if (lane + 32 * i < dim) out[lane + 32 * i] = own.at[i];
  __syncwarp();
  const float r = inverse_root(__fadd_rn(__fdiv_rn(sum_of_squares(out, dim), static_cast<float>(dim)), epsilon));
  __syncwarp();
#pragma unroll
  for (int i = 0; i < own.kCount; ++i)
    if (lane + 32 * i < dim) out[lane + 32 * i] = __fmul_rn(__fmul_rn(own.at[i], r), w.at[i]);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < cosine.kCount; ++i) {
    const int j = lane + 32 * i;
    if (j >= half) continue;
    const float a = out[j], b = out[j + half];
    out[j] = fma(-b, sine.at[i], __fmul_rn(a, cosine.at[i]));
    out[j + half] = fma(a, sine.at[i], __fmul_rn(b, cosine.at[i]));
  }
  __syncwarp();
}

FORETOKEN_DEVICE void put_head(const float* head, int dim, float* to) {
  for (int d = threadIdx.x & 31; d < dim; d += 32) to[d] = head[d];
}

// Stores one head's row, elements `stride` apart, by one warp.
FORETOKEN_DEVICE void store_row(const float* x, int dim, KvFormat format, std::byte* to, int64_t stride, float* scale) {
  const int lane = threadIdx.x & 31;
  if (format == KvFormat::kF32) {
    for (int d = lane; d < dim; d += 32) reinterpret_cast<float*>(to)[d * stride] = x[d];
  } else if (format == KvFormat::kBF16) {
    for (int d = lane; d < dim; d += 32) reinterpret_cast<__nv_bfloat16*>(to)[d * stride] = to_bf16(x[d]);
  } else {
    float inverse;
    const float s = activation_scale(x, dim, inverse);
    for (int d = lane; d < dim; d += 32) reinterpret_cast<int8_t*>(to)[d * stride] = activation_code(x[d], inverse);
    if (lane == 0) *scale = s;
  }
}

// Stores a rotated key and its value into slot `slot` of a layer and head; `page` is the slot's.
FORETOKEN_DEVICE void store_key_value(const float* key, const float* value, int dim, const KvLayout& layout, int layer,
                                      int head, std::byte* page, int64_t slot) {
  const int64_t token = slot % kPageTokens, element = static_cast<int64_t>(layout.element_bytes());
  store_row(key, dim, layout.format, page + layout.key_offset(layer, head) + token * element, kPageTokens,
            reinterpret_cast<float*>(page + layout.key_scale_offset(layer, head)) + token);
  store_row(value, dim, layout.format, page + layout.value_offset(layer, head) + token * dim * element, 1,
            reinterpret_cast<float*>(page + layout.value_scale_offset(layer, head)) + token);
}

// Lines of a vector by a warp: what it reads in several steps has come after the first.
FORETOKEN_DEVICE void bring(const float* from, int count) {
  for (int i = (threadIdx.x & 31) * 32; i < count; i += 32 * 32) into_l1(from + i);
}

// One warp a row and head: query heads, then K/V heads.
__global__ void __launch_bounds__(128)
    inputs_kernel(Rows packed, const float* q_norm, const float* k_norm, Rows rotary, HeadShape shape, PassDesc pass,
                  KvLayout layout, int layer, Rows queries) {
  __shared__ float heads[4][kMaxDim];
  const int warp = threadIdx.x >> 5, dim = shape.dim;
  const int item = blockIdx.x * 4 + warp;
  const int64_t row = blockIdx.y;
  // Where keys and values go: descriptions come from the host and are there before the kernel before ends.
  int64_t slot = 0;
  std::byte* page = nullptr;
  if (item >= shape.query_heads && item < shape.query_heads + shape.kv_heads) {
    const RowDesc desc = pass.rows[row];
    const LaneDesc& owner = pass.lanes[desc.lane];
    slot = owner.prefix + desc.row;
    page = reinterpret_cast<std::byte*>(owner.pages[slot / kPageTokens]);
  }
  const OwnOf<kMaxDim> norm(item < shape.query_heads ? q_norm : k_norm, dim);
  begin_kernel();
  if (item >= shape.query_heads + shape.kv_heads) return;
  const int head = item - shape.query_heads;
  const float* x = packed.data + row * packed.stride + (head < 0 ? 2 * item * dim : shape.query_columns + head * dim);
  if (head >= 0) bring(x + shape.kv_heads * dim, dim);
  norm_and_rotate(x, norm, shape.epsilon, dim, rotary.data + row * rotary.stride, shape.rotary_dim, heads[warp]);
  if (head < 0) put_head(heads[warp], dim, queries.data + row * queries.stride + item * dim);
  else store_key_value(heads[warp], x + shape.kv_heads * dim, dim, layout, layer, head, page, slot);
}

// ---- Spans

template <KvFormat kFormat, int kHeads>
__global__ void __launch_bounds__(kThreads) span_kernel(SpanTask task) {
  begin_kernel();
  constexpr bool kScaled = kFormat == KvFormat::kInt8;
  __shared__ __align__(16) float query[kHeads][kMaxDim];
  __shared__ float weight[kHeads][kSpanTokens];  // scores, then exp(score - m), then times the value scale
  __shared__ float largest[kHeads][kSpanBlocks], sums[kHeads][kSpanBlocks], factor[kHeads][kSpanBlocks];
  __shared__ float running[kHeads], total[kHeads];
  __shared__ int64_t value_of[kSpanTokens];  // address of a position's value row
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const HeadShape& shape = task.shape;
  const int dim = shape.dim, group = shape.query_heads / shape.kv_heads;
  const int kv_head = blockIdx.y / task.head_groups, head_group = blockIdx.y % task.head_groups;
  const int first_head = kv_head * group + head_group * kHeads;
  const int heads = min(kHeads, (kv_head + 1) * group - first_head);
  const int64_t row = task.first_row + static_cast<int64_t>(blockIdx.z);
  const RowDesc desc = task.pass.rows[row];
  const LaneDesc owner = task.pass.lanes[desc.lane];
  const int32_t* path = task.pass.paths + desc.path;
  const int64_t visible = owner.prefix + desc.depth + 1, begin = static_cast<int64_t>(blockIdx.x) * kSpanTokens;
  if (begin >= visible) return;
  const int count =
      static_cast<int>(min(static_cast<int64_t>(kSpanTokens), visible - begin));  // visible positions here
  const int used = (count + kPageTokens - 1) / kPageTokens;
  const float head_scale = inverse_root(static_cast<float>(dim));

  for (int i = threadIdx.x; i < kHeads * dim; i += kThreads) {
    const int h = i / dim, d = i % dim;
    query[h][d] = h < heads
                      ? task.queries.data[row * task.queries.stride + static_cast<int64_t>(first_head + h) * dim + d]
                      : 0.0f;
  }
  __syncthreads();

  // Scores: warp b takes block b, a lane a position.
  float value_scale = 1.0f;
  if (warp < used) {
    const int t = warp * kPageTokens + lane;
    float dot[kHeads] = {};
    const bool seen = t < count;
    const int64_t slot = slot_of(begin + (seen ? t : warp * kPageTokens), owner.prefix, path);
    const std::byte* page = reinterpret_cast<const std::byte*>(owner.pages[slot / kPageTokens]);
    const int64_t token = slot % kPageTokens;
    const std::byte* keys = page + task.layout.key_offset(task.layer, kv_head);
    constexpr int kKeys = kHeads <= 2 ? 32 : 16;  // dimensions on their way
    for (int d = 0; d < dim; d += kKeys) {
      float k[kKeys];
#pragma unroll
      for (int i = 0; i < kKeys; ++i)
        k[i] = d + i < dim ? load_kv<kFormat>(keys, static_cast<int64_t>(d + i) * kPageTokens + token) : 0.0f;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float* q = &query[h][d];
#pragma unroll
        for (int i = 0; i < kKeys; ++i)
          if (d + i < dim) dot[h] = fma(q[i], k[i], dot[h]);
      }
    }
    if (kScaled) {
      const float key_scale =
          reinterpret_cast<const float*>(page + task.layout.key_scale_offset(task.layer, kv_head))[token];
      value_scale = reinterpret_cast<const float*>(page + task.layout.value_scale_offset(task.layer, kv_head))[token];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) dot[h] = __fmul_rn(dot[h], key_scale);
    }
    value_of[t] =
        static_cast<int64_t>(reinterpret_cast<uint64_t>(page + task.layout.value_offset(task.layer, kv_head))) +
        token * dim * static_cast<int64_t>(task.layout.element_bytes());
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float score = seen ? __fmul_rn(dot[h], head_scale) : -infinity();
      weight[h][t] = score;
      float m = -infinity();  // std::max(m, score) over ascending positions: a NaN never replaces a number
      m = m < score ? score : m;
      for (int s = 16; s > 0; s /= 2) {
        const float other = __shfl_xor_sync(0xFFFFFFFFu, m, s);
        m = m < other ? other : m;
      }
      if (lane == 0) largest[h][warp] = m;
    }
  }
  __syncthreads();

  if (threadIdx.x < kHeads) {
    const int h = threadIdx.x;
    running[h] = carry_maxima(largest[h], factor[h], used);
  }
  __syncthreads();

  if (warp < used) {
    const int t = warp * kPageTokens + lane;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float p = t < count ? exp(__fsub_rn(weight[h][t], largest[h][warp])) : 0.0f;
      const float pair = __fadd_rn(p, __shfl_down_sync(0xFFFFFFFFu, p, 16));
      const float sum = fold_sum(pair);
      if (lane == 0) sums[h][warp] = sum;
      weight[h][t] = kScaled ? __fmul_rn(p, value_scale) : p;
    }
  }
  __syncthreads();
  if (threadIdx.x < kHeads) {
    const int h = threadIdx.x;
    total[h] = carry_sums(sums[h], factor[h], used);
  }
  __syncthreads();

  // Values: a thread a dimension and some of the heads.
  const int sets = kThreads / kMaxDim;
  constexpr int kPer = (kHeads + 1) / 2;
  const int d = threadIdx.x % kMaxDim, set = threadIdx.x / kMaxDim;
  if (d >= dim || set >= sets) return;
  float o[kPer] = {};
  for (int b = 0; b < used; ++b) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int h = set * kPer + i;
      if (h < kHeads) o[i] = __fmul_rn(o[i], factor[h][b]);
    }
    const int last = min(count, (b + 1) * kPageTokens);
    constexpr int kValues = kHeads <= 2 ? 32 : 8;  // positions on their way
    for (int first = b * kPageTokens; first < last; first += kValues) {
      float v[kValues];
#pragma unroll
      for (int j = 0; j < kValues; ++j)
        v[j] = first + j < last ? load_kv<kFormat>(reinterpret_cast<const std::byte*>(value_of[first + j]), d) : 0.0f;
#pragma unroll
      for (int j = 0; j < kValues; ++j) {
        if (first + j >= last) break;
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
          const int h = set * kPer + i;
          if (h < kHeads) o[i] = fma(weight[h][first + j], v[j], o[i]);
        }
      }
    }
  }
  const bool alone = visible <= kSpanTokens;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int h = set * kPer + i;
    if (h >= heads) continue;
    const int64_t head = first_head + h;
    if (alone) {
      put_result(task, row, head, d, o[i], total[h], gate_of(task, row, head, d));
      continue;
    }
    float* to = task.partial +
                ((static_cast<int64_t>(blockIdx.z) * shape.query_heads + head) * task.spans + blockIdx.x) * (dim + 2);
    if (d == 0) {
      to[0] = running[h];
      to[1] = total[h];
    }
    to[2 + d] = o[i];
  }
}

// Units in ascending order, those of a group first; a thread a dimension.
template <int kOfGroup, bool kBase2>
__global__ void merge_kernel(SpanTask task, int unit_tokens) {
  const int dim = task.shape.dim, d = threadIdx.x;
  const int64_t head = blockIdx.x, row = task.first_row + static_cast<int64_t>(blockIdx.y);
  const RowDesc desc = task.pass.rows[row];
  const int64_t visible = task.pass.lanes[desc.lane].prefix + desc.depth + 1;
  begin_kernel();
  if (visible <= unit_tokens || d >= dim) return;
  const int units = static_cast<int>((visible + unit_tokens - 1) / unit_tokens);
  const float* from =
      task.partial + (static_cast<int64_t>(blockIdx.y) * task.shape.query_heads + head) * task.spans * (dim + 2);
  struct Part {
    float m, l, o;
    __device__ __forceinline__ void add(const Part& here) {
      const Joint joint = join<kBase2>(m, here.m);
      l = fma(here.l, joint.join, __fmul_rn(l, joint.keep));
      o = fma(here.o, joint.join, __fmul_rn(o, joint.keep));
      m = joint.m;
    }
  };
  const float gate = gate_of(task, row, head, d);
  Part all;
  constexpr int kAtOnce = 8;  // units that are read before one is added
  static_assert(kAtOnce % kOfGroup == 0);
#pragma unroll 1
  for (int first = 0; first < units; first += kAtOnce) {
    Part part[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float* at = from + min(first + i, units - 1) * (dim + 2);
      part[i] = {at[0], at[1], at[2 + d]};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i += kOfGroup) {
      if (first + i >= units) break;
#pragma unroll
      for (int j = 1; j < kOfGroup; ++j)
        if (first + i + j < units) part[i].add(part[i + j]);
      if (first + i == 0) all = part[0];
      else all.add(part[i]);
    }
  }
  put_result(task, row, head, d, all.o, all.l, gate);
}

constexpr int kEnoughBlocks = 128;

template <KvFormat kFormat>
void run_spans(SpanTask task, int rows, Queue& queue) {
  const int group = task.shape.query_heads / task.shape.kv_heads;
  const auto launch = [&](auto kernel, int heads) {
    task.head_groups = (group + heads - 1) / heads;
    Launch{dim3(static_cast<unsigned>(task.spans), static_cast<unsigned>(task.shape.kv_heads * task.head_groups),
                static_cast<unsigned>(rows)),
           kThreads, 0, queue}(kernel, task);
  };
  // Heads that share what is read of the keys and values: fewer where there would be too little to do at once.
  const int alone = task.spans * task.shape.kv_heads * rows;
  const auto enough = [&](int heads) { return alone * ((group + heads - 1) / heads) >= kEnoughBlocks; };
  if (group == 1 || !enough(2)) launch(span_kernel<kFormat, 1>, 1);
  else if (group == 2 || !enough(4)) launch(span_kernel<kFormat, 2>, 2);
  else if (group <= 4 || !enough(group == 6 ? 6 : 8)) launch(span_kernel<kFormat, 4>, 4);
  else if (group == 6) launch(span_kernel<kFormat, 6>, 6);
  else launch(span_kernel<kFormat, 8>, 8);
}

// ---- Commit

// One thread an element of a slot (key, value, the two scales) of a layer and head; moves in ascending order.
template <class Element>
__global__ void commit_kernel(const uint64_t* pages, KvLayout layout, int64_t prefix, const int32_t* path, int count) {
  begin_kernel();
  const int dim = layout.head_dim, items = 2 * dim + (layout.format == KvFormat::kInt8 ? 2 : 0);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int layer = blockIdx.y / layout.heads, head = blockIdx.y % layout.heads;
  if (i >= items) return;
  for (int j = 0; j < count; ++j) {
    if (path[j] == j) continue;
    const int64_t from = prefix + path[j], to = prefix + j;
    std::byte* from_page = reinterpret_cast<std::byte*>(pages[from / kPageTokens]);
    std::byte* to_page = reinterpret_cast<std::byte*>(pages[to / kPageTokens]);
    const int64_t from_token = from % kPageTokens, to_token = to % kPageTokens;
    if (i < dim) {
      const size_t at = layout.key_offset(layer, head);
      reinterpret_cast<Element*>(to_page + at)[i * int64_t{kPageTokens} + to_token] =
          reinterpret_cast<Element*>(from_page + at)[i * int64_t{kPageTokens} + from_token];
    } else if (i < 2 * dim) {
      const size_t at = layout.value_offset(layer, head);
      reinterpret_cast<Element*>(to_page + at)[to_token * dim + i - dim] =
          reinterpret_cast<Element*>(from_page + at)[from_token * dim + i - dim];
    } else {
      const size_t at = i == 2 * dim ? layout.key_scale_offset(layer, head) : layout.value_scale_offset(layer, head);
      reinterpret_cast<float*>(to_page + at)[to_token] = reinterpret_cast<float*>(from_page + at)[from_token];
    }
  }
}

// ---- Block drafters: guesses, so that any order will do; a row's is its own.

FORETOKEN_DEVICE int64_t block_slot(const BlockLaneDesc& lane, int64_t position) {
  // Positions have 31 bits (RowInput), and a short division is a quarter of the code of a long one.
  return static_cast<uint32_t>(position - lane.base) % (static_cast<uint32_t>(lane.page_count) * kPageTokens);
}

template <bool kMany>
__global__ void __launch_bounds__(128)
    block_inputs_kernel(BlockInputs one, const BlockInputs* many, int lane_count, KvLayout layout) {
  __shared__ float heads[4][kMaxDim];
  const int warp = threadIdx.x >> 5;
  // Descriptions come from the host: they are there before the kernel before ends.
  const BlockInputs& of = kMany ? many[blockIdx.z / lane_count] : one;
  const BlockLaneDesc lane = of.lanes[blockIdx.z % lane_count];
  const BlockHeads& shape = of.shape;
  const int dim = shape.dim, i = blockIdx.y;
  const int query_heads = of.q.data ? shape.query_heads : 0, item = blockIdx.x * 4 + warp, head = item - query_heads;
  if (item >= query_heads + shape.kv_heads || i >= lane.rows) return begin_kernel();
  const int64_t row = lane.first_row + int64_t{i};
  std::byte* page = nullptr;
  int64_t slot = 0;
  if (head >= 0) {
    slot = block_slot(lane, lane.end + i);
    page = reinterpret_cast<std::byte*>(lane.pages[slot / kPageTokens]);
  }
  const OwnOf<kMaxDim> norm(head < 0 ? of.q_norm : of.k_norm, dim);
  begin_kernel();
  float* const x = head < 0 ? of.q.data + row * of.q.stride + item * dim : of.kv.data + row * of.kv.stride + head * dim;
  if (head >= 0) bring(x + shape.kv_heads * dim, dim);
  norm_and_rotate(x, norm, shape.epsilon, dim, of.rotary.data + row * of.rotary.stride, shape.rotary_dim, heads[warp]);
  if (head < 0) put_head(heads[warp], dim, x);
  else store_key_value(heads[warp], x + shape.kv_heads * dim, dim, layout, 0, head, page, slot);
}

// A block of threads a row and query head: chunks of 128 positions in ascending order, online softmax.
constexpr int kBlockThreads = 128;

template <KvFormat kFormat>
__global__ void __launch_bounds__(kBlockThreads)
    block_attention_kernel(Rows queries, BlockHeads shape, const BlockLaneDesc* lanes, KvLayout layout, Rows out) {
  begin_kernel();
  __shared__ float query[kMaxDim], weight[kBlockThreads], warps[kBlockThreads / 32];
  __shared__ int64_t value_of[kBlockThreads];
  const BlockLaneDesc lane = lanes[blockIdx.z];
  const int i = blockIdx.y, head = blockIdx.x, dim = shape.dim;
  if (i >= lane.rows) return;
  const int kv_head = head / (shape.query_heads / shape.kv_heads);
  const int64_t row = lane.first_row + int64_t{i}, position = lane.end + i;
  int64_t begin = lane.begin;
  if (shape.window > 0 && position - shape.window + 1 > begin) begin = position - shape.window + 1;
  if (begin > lane.end) begin = lane.end;
  const int64_t end = lane.end + (shape.causal ? i + 1 : lane.rows);
  for (int d = threadIdx.x; d < dim; d += kBlockThreads)
    query[d] = queries.data[row * queries.stride + static_cast<int64_t>(head) * dim + d];
  const float head_scale = inverse_root(static_cast<float>(dim));
  float m = -infinity(), l = 0, o[kMaxDim / kBlockThreads] = {};
  for (int64_t first = begin; first < end; first += kBlockThreads) {
    __syncthreads();
    const int64_t p = first + threadIdx.x;
    float score = -infinity(), value_scale = 1.0f;
    if (p < end) {
      const int64_t slot = block_slot(lane, p), token = slot % kPageTokens;
      const std::byte* page = reinterpret_cast<const std::byte*>(lane.pages[slot / kPageTokens]);
      const std::byte* keys = page + layout.key_offset(0, kv_head);
      float dot = 0;
      for (int d = 0; d < dim; ++d)
        dot = fma(query[d], load_kv<kFormat>(keys, static_cast<int64_t>(d) * kPageTokens + token), dot);
      if (kFormat == KvFormat::kInt8) {
        dot = __fmul_rn(dot, reinterpret_cast<const float*>(page + layout.key_scale_offset(0, kv_head))[token]);
        value_scale = reinterpret_cast<const float*>(page + layout.value_scale_offset(0, kv_head))[token];
      }
      score = __fmul_rn(dot, head_scale);
      value_of[threadIdx.x] = static_cast<int64_t>(reinterpret_cast<uint64_t>(page + layout.value_offset(0, kv_head))) +
                              token * dim * static_cast<int64_t>(layout.element_bytes());
    }
    float top = score;
    for (int s = 16; s > 0; s /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, top, s);
      top = top < other ? other : top;
    }
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = top;
    __syncthreads();
    float next = m;
    for (int w = 0; w < kBlockThreads / 32; ++w) next = next < warps[w] ? warps[w] : next;
    const float factor = exp(__fsub_rn(m, next)), e = p < end ? exp(__fsub_rn(score, next)) : 0.0f;
    m = next;
    __syncthreads();
    float sum = e;
    for (int s = 16; s > 0; s /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, s));
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = sum;
    weight[threadIdx.x] = kFormat == KvFormat::kInt8 ? __fmul_rn(e, value_scale) : e;
    __syncthreads();
    l = __fmul_rn(l, factor);
    for (int w = 0; w < kBlockThreads / 32; ++w) l = __fadd_rn(l, warps[w]);
    const int count = static_cast<int>(min(static_cast<int64_t>(kBlockThreads), end - first));
#pragma unroll
    for (int j = 0; j < kMaxDim / kBlockThreads; ++j) {
      const int d = threadIdx.x + j * kBlockThreads;
      if (d >= dim) continue;
      o[j] = __fmul_rn(o[j], factor);
      for (int t = 0; t < count; ++t)
        o[j] = fma(weight[t], load_kv<kFormat>(reinterpret_cast<const std::byte*>(value_of[t]), d), o[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kMaxDim / kBlockThreads; ++j) {
    const int d = threadIdx.x + j * kBlockThreads;
    if (d < dim) out.data[row * out.stride + static_cast<int64_t>(head) * dim + d] = __fdiv_rn(o[j], l);
  }
}

}  // namespace

void launch_attention_inputs(Rows packed, const float* q_norm, const float* k_norm, Rows rotary, const HeadShape& shape,
                             const PassDesc& pass, const KvLayout& layout, int layer, Rows queries, Queue& queue) {
  Launch{dim3(blocks(shape.query_heads + shape.kv_heads, 4), static_cast<unsigned>(pass.row_count)), 128, 0, queue}(
      inputs_kernel, packed, q_norm, k_norm, rotary, shape, pass, layout, layer, queries);
}

size_t attention_partial_floats(int64_t rows, const HeadShape& shape, int64_t units) {
  return static_cast<size_t>(rows * shape.query_heads * units * (shape.dim + 2));
}

void launch_attention(Rows queries, Rows packed, const HeadShape& shape, const PassDesc& pass, int first_row, int rows,
                      const SpanPlan& plan, const SpanItem* items, const KvLayout& layout, int layer, float* partial,
                      Rows out, uint16_t* bf16, Queue& queue) {
  const SpanTask task{.queries = queries,
                      .packed = packed,
                      .out = out,
                      .shape = shape,
                      .pass = pass,
                      .layout = layout,
                      .layer = layer,
                      .first_row = first_row,
                      .spans = static_cast<int>(plan.units),
                      .head_groups = 1,
                      .partial = partial,
                      .bf16 = bf16};
  if (plan.tiles > 0) run_tiles(task, plan, items, rows, queue);
  else if (layout.format == KvFormat::kF32) run_spans<KvFormat::kF32>(task, rows, queue);
  else if (layout.format == KvFormat::kBF16) run_spans<KvFormat::kBF16>(task, rows, queue);
  else run_spans<KvFormat::kInt8>(task, rows, queue);
  if (plan.units == 1) return;
  const Launch merge{dim3(static_cast<unsigned>(shape.query_heads), static_cast<unsigned>(rows)), kMaxDim, 0, queue};
  if (plan.tiles == 0) merge(merge_kernel<1, false>, task, plan.unit_tokens);
  else if (plan.units_of_group == 1) merge(merge_kernel<1, true>, task, plan.unit_tokens);
  else merge(merge_kernel<kTileGroup, true>, task, plan.unit_tokens);
}

void launch_commit_kv(const uint64_t* pages, const KvLayout& layout, int64_t prefix, const int32_t* path, int count,
                      Queue& queue) {
  const dim3 grid(blocks(2 * layout.head_dim + 2, 128), static_cast<unsigned>(layout.layers * layout.heads));
  switch (layout.format) {
    case KvFormat::kF32:
      Launch{grid, 128, 0, queue}(commit_kernel<uint32_t>, pages, layout, prefix, path, count);
      break;
    case KvFormat::kBF16:
      Launch{grid, 128, 0, queue}(commit_kernel<uint16_t>, pages, layout, prefix, path, count);
      break;
    case KvFormat::kInt8:
      Launch{grid, 128, 0, queue}(commit_kernel<uint8_t>, pages, layout, prefix, path, count);
      break;
  }
}

void launch_block_inputs(const BlockInputs& first, const BlockInputs* many, int count, int lane_count, int rows,
                         const KvLayout& layout, Queue& queue) {
  const int heads = (first.q.data ? first.shape.query_heads : 0) + first.shape.kv_heads;
  Launch{dim3(static_cast<unsigned>((heads + 3) / 4), static_cast<unsigned>(rows),
              static_cast<unsigned>(count * lane_count)),
         128, 0, queue}(many ? block_inputs_kernel<true> : block_inputs_kernel<false>, first, many, lane_count, layout);
}

void launch_block_attention(Rows queries, const BlockHeads& shape, const BlockLaneDesc* lanes, int lane_count, int rows,
                            const KvLayout& layout, Rows out, Queue& queue) {
  const dim3 grid(static_cast<unsigned>(shape.query_heads), static_cast<unsigned>(rows),
                  static_cast<unsigned>(lane_count));
  switch (layout.format) {
    case KvFormat::kF32:
      Launch{grid, kBlockThreads, 0, queue}(block_attention_kernel<KvFormat::kF32>, queries, shape, lanes, layout, out);
      break;
    case KvFormat::kBF16:
      Launch{grid, kBlockThreads, 0, queue}(block_attention_kernel<KvFormat::kBF16>, queries, shape, lanes, layout,
                                            out);
      break;
    case KvFormat::kInt8:
      Launch{grid, kBlockThreads, 0, queue}(block_attention_kernel<KvFormat::kInt8>, queries, shape, lanes, layout,
                                            out);
      break;
  }
}

}  // namespace foretoken::cuda
