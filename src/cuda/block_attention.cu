// Attention of block drafters over bf16 keys and values: the rows of a block and the query heads of a K/V head share
// what a block of threads brings into shared memory. Chunks of 128 positions are summed by themselves and merged in
// ascending order; which they are is the lane's own matter, so a lane's bits do not depend on the others.
#include "cuda/attention.cuh"
#include "cuda/bulk.cuh"

namespace foretoken::cuda {
namespace {

constexpr int kThreads = 256, kQueries = 32;  // of a block of threads: a warp has four
constexpr int kPitch = kQueries + 4;          // floats of 32 queries, so that columns meet different banks
constexpr int kChunk = 128, kChunkPages = kChunk / kPageTokens;
constexpr int kResident = kBulkCopies ? 2 : 1;  // of a multiprocessor: an older one's shared memory has room for one
constexpr int kMostSplits = 32;                 // of a lane's context; each takes as many chunks as it must

template <int kDim>
struct Memory {
  static constexpr int kKeyPage =
      kDim * kPageTokens + kPageTokens;  // bf16 of a page's keys; two pages meet different banks
  float queries[kDim][kPitch];
  union {
    uint16_t keys[kChunkPages * kKeyPage];  // [page][dimension][token]
    float weights[kChunk][kPitch];
  };
  uint16_t values[kChunk][kDim];
};

// What a lane's rows see, and how it is cut.
struct Cut {
  int64_t origin, end;  // of all rows; origin is a page's first position
  int chunks, per, splits;
};
FORETOKEN_DEVICE int64_t first_seen(const BlockLaneDesc& lane, const BlockHeads& shape, int row) {
  int64_t begin = lane.begin;
  if (shape.window > 0) begin = max(begin, lane.end + row - shape.window + 1);
  return min(begin, lane.end);
}
FORETOKEN_DEVICE Cut cut_of(const BlockLaneDesc& lane, const BlockHeads& shape) {
  Cut cut;
  cut.origin = first_seen(lane, shape, 0) / kPageTokens * kPageTokens;
  cut.end = lane.end + lane.rows;
  cut.chunks = static_cast<int>((cut.end - cut.origin + kChunk - 1) / kChunk);
  cut.per = (cut.chunks + kMostSplits - 1) / kMostSplits;
  cut.splits = (cut.chunks + cut.per - 1) / cut.per;
  return cut;
}

FORETOKEN_DEVICE float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
FORETOKEN_DEVICE float high_half(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

// partial [rows][query heads][splits of the launch][dim + 2]: largest score, sum of weights, weighted values.
template <int kDim>
__global__ void __launch_bounds__(kThreads, kResident)
    block_spans_kernel(Rows queries, BlockHeads shape, const BlockLaneDesc* lanes, int tiles, KvLayout layout,
                       float* partial) {
  extern __shared__ __align__(128) uint8_t shared[];
  Memory<kDim>& m = *reinterpret_cast<Memory<kDim>*>(shared);
  constexpr int kOwn = kDim / 32;  // dimensions of a thread's results
  begin_kernel();
  const BlockLaneDesc lane = lanes[blockIdx.z];
  if (lane.rows == 0) return;
  const int warp = threadIdx.x >> 5, lane_id = threadIdx.x & 31;
  const int group = shape.query_heads / shape.kv_heads, kv_head = blockIdx.y / tiles,
            first_query = blockIdx.y % tiles * kQueries, all_queries = lane.rows * group;
  const Cut cut = cut_of(lane, shape);
  const int first_chunk = blockIdx.x * cut.per, last_chunk = min(cut.chunks, first_chunk + cut.per);
  if (first_query >= all_queries || first_chunk >= last_chunk) return;
  const auto row_of = [&](int query) { return min(first_query + query, all_queries - 1) / group; };
  const auto head_of = [&](int query) { return kv_head * group + min(first_query + query, all_queries - 1) % group; };
  const size_t key_at = layout.key_offset(0, kv_head), value_at = layout.value_offset(0, kv_head);
  __shared__ const std::byte* pages[kChunkPages];
  const int64_t slots = static_cast<int64_t>(lane.page_count) * kPageTokens;
  for (int i = threadIdx.x; i < kQueries * kDim; i += kThreads) {
    const int query = i / kDim, d = i % kDim;
    m.queries[d][query] =
        queries.data[(lane.first_row + int64_t{row_of(query)}) * queries.stride + head_of(query) * kDim + d];
  }
  const float scale = inverse_root(static_cast<float>(kDim));
  int64_t seen_from[4], seen_to[4];
  float largest[4], total[4] = {}, sum[4][kOwn] = {};
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const int row = row_of(warp * 4 + q);
    seen_from[q] = first_seen(lane, shape, row);
    seen_to[q] = lane.end + (shape.causal ? row + 1 : lane.rows);
    largest[q] = -infinity();
  }
#pragma unroll 1
  for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
    const int64_t begin = cut.origin + int64_t{chunk} * kChunk;
    if (threadIdx.x < kChunkPages) {
      const int64_t position = begin + static_cast<int64_t>(threadIdx.x) * kPageTokens;
      pages[threadIdx.x] =
          position < cut.end
              ? reinterpret_cast<const std::byte*>(lane.pages[(position - lane.base) % slots / kPageTokens])
              : nullptr;
    }
    __syncthreads();                                 // and what was here has been read
    constexpr int kPieces = kDim * kPageTokens / 8;  // of 16 bytes, of a page
    for (int i = threadIdx.x; i < kChunkPages * kPieces; i += kThreads) {
      const int page = i / kPieces, piece = i % kPieces;
      if (pages[page])
        copy_16(shared_address(m.keys + page * Memory<kDim>::kKeyPage + piece * 8), pages[page] + key_at + piece * 16);
    }
    commit_copies();
    for (int i = threadIdx.x; i < kChunkPages * kPieces; i += kThreads) {
      const int page = i / kPieces, piece = i % kPieces;
      if (pages[page])
        copy_16(shared_address(&m.values[0][0] + page * kPageTokens * kDim + piece * 8),
                pages[page] + value_at + piece * 16);
    }
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    // Scores of four queries at four positions.
    float score[4][4] = {};
    const int place = lane_id * 4;  // in the chunk
    const uint16_t* keys = m.keys + place / kPageTokens * Memory<kDim>::kKeyPage + place % kPageTokens;
#pragma unroll 8
    for (int d = 0; d < kDim; ++d) {
      const float4 q = *reinterpret_cast<const float4*>(&m.queries[d][warp * 4]);
      const uint2 k = *reinterpret_cast<const uint2*>(keys + d * kPageTokens);
      const float key[4] = {low_half(k.x), high_half(k.x), low_half(k.y), high_half(k.y)};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        score[0][e] = fma(q.x, key[e], score[0][e]);
        score[1][e] = fma(q.y, key[e], score[1][e]);
        score[2][e] = fma(q.z, key[e], score[2][e]);
        score[3][e] = fma(q.w, key[e], score[3][e]);
      }
    }
    float weight[4][4];  // [position][query]
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      float top = -infinity();
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t position = begin + place + e;
        score[q][e] = position >= seen_from[q] && position < seen_to[q] ? __fmul_rn(score[q][e], scale) : -infinity();
        top = top < score[q][e] ? score[q][e] : top;
      }
      for (int s = 16; s > 0; s /= 2) {
        const float other = __shfl_xor_sync(0xFFFFFFFFu, top, s);
        top = top < other ? other : top;
      }
      const float next = largest[q] < top ? top : largest[q];
      const bool any = next > -infinity();
      const float factor = any ? exp(__fsub_rn(largest[q], next)) : 1.0f;
      float added = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        weight[e][q] = any && score[q][e] > -infinity() ? exp(__fsub_rn(score[q][e], next)) : 0.0f;
        added = __fadd_rn(added, weight[e][q]);
      }
      for (int s = 16; s > 0; s /= 2) added = __fadd_rn(added, __shfl_xor_sync(0xFFFFFFFFu, added, s));
      total[q] = __fadd_rn(__fmul_rn(total[q], factor), added);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) sum[q][j] = __fmul_rn(sum[q][j], factor);
      largest[q] = next;
    }
    wait_copies<0>();
    __syncthreads();  // the keys have been read, the values are there
#pragma unroll
    for (int e = 0; e < 4; ++e)
      *reinterpret_cast<float4*>(&m.weights[place + e][warp * 4]) =
          make_float4(weight[e][0], weight[e][1], weight[e][2], weight[e][3]);
    __syncwarp();
    // Positions that no row sees may never have been stored.
    const int from = static_cast<int>(max(int64_t{0}, first_seen(lane, shape, 0) - begin)),
              to = static_cast<int>(min(int64_t{kChunk}, cut.end - begin));
#pragma unroll 8
    for (int t = from; t < to; ++t) {
      const float4 w = *reinterpret_cast<const float4*>(&m.weights[t][warp * 4]);
      float value[kOwn];
      if constexpr (kOwn == 4) {
        const uint2 v = *reinterpret_cast<const uint2*>(&m.values[t][lane_id * 4]);
        value[0] = low_half(v.x), value[1] = high_half(v.x), value[2] = low_half(v.y), value[3] = high_half(v.y);
      } else {
        const uint32_t v = *reinterpret_cast<const uint32_t*>(&m.values[t][lane_id * 2]);
        value[0] = low_half(v), value[1] = high_half(v);
      }
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        sum[0][j] = fma(w.x, value[j], sum[0][j]);
        sum[1][j] = fma(w.y, value[j], sum[1][j]);
        sum[2][j] = fma(w.z, value[j], sum[2][j]);
        sum[3][j] = fma(w.w, value[j], sum[3][j]);
      }
    }
  }
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const int query = warp * 4 + q;
    if (first_query + query >= all_queries) continue;
    float* to =
        partial +
        (((lane.first_row + int64_t{row_of(query)}) * shape.query_heads + head_of(query)) * gridDim.x + blockIdx.x) *
            (kDim + 2);
    if (lane_id == 0) to[0] = largest[q], to[1] = total[q];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) to[2 + lane_id * kOwn + j] = sum[q][j];
  }
}

// A block of threads a row and head, a thread a dimension.
__global__ void __launch_bounds__(128) block_merge_kernel(const float* partial, int places, BlockHeads shape,
                                                          const BlockLaneDesc* lanes, Rows out, uint16_t* bf16) {
  __shared__ float factors[kMostSplits];
  __shared__ float whole;
  begin_kernel();
  const BlockLaneDesc lane = lanes[blockIdx.z];
  if (static_cast<int>(blockIdx.y) >= lane.rows) return;
  const int splits = cut_of(lane, shape).splits, head = blockIdx.x, dim = shape.dim;
  const int64_t row = lane.first_row + int64_t{blockIdx.y};
  const float* from = partial + (row * shape.query_heads + head) * places * (dim + 2);
  if (threadIdx.x < 32) {
    const bool exists = static_cast<int>(threadIdx.x) < splits;
    const float own = exists ? from[threadIdx.x * (dim + 2)] : -infinity();
    float top = own;
    for (int s = 16; s > 0; s /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, top, s);
      top = top < other ? other : top;
    }
    factors[threadIdx.x] = exists ? exp(__fsub_rn(own, top)) : 0.0f;
    __syncwarp();
    if (threadIdx.x == 0) {
      float l = 0;
      for (int s = 0; s < splits; ++s) l = fma(from[s * (dim + 2) + 1], factors[s], l);
      whole = l;
    }
  }
  __syncthreads();
  for (int d = threadIdx.x; d < dim; d += 128) {
    float o = 0;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) o = fma(from[s * (dim + 2) + 2 + d], factors[s], o);
    const float v = __fdiv_rn(o, whole);
    out.data[row * out.stride + head * dim + d] = v;
    if (bf16) bf16[row * out.cols + head * dim + d] = __bfloat16_as_ushort(to_bf16(v));
  }
}
static_assert(kMostSplits == 32);

static_assert(sizeof(Memory<128>) + 1024 <= kLeastShared);

template <int kDim>
void launch(Rows queries, const BlockHeads& shape, const BlockLaneDesc* lanes, int lane_count, int rows, int splits,
            const KvLayout& layout, float* partial, Queue& queue) {
  const int tiles = (rows * (shape.query_heads / shape.kv_heads) + kQueries - 1) / kQueries;
  Launch{dim3(static_cast<unsigned>(splits), static_cast<unsigned>(shape.kv_heads * tiles),
              static_cast<unsigned>(lane_count)),
         kThreads, sizeof(Memory<kDim>),
         queue}(block_spans_kernel<kDim>, queries, shape, lanes, tiles, layout, partial);
}

}  // namespace

bool block_spans_run(const BlockHeads& shape, const KvLayout& layout) {
  return layout.format == KvFormat::kBF16 && (shape.dim == 64 || shape.dim == 128);
}

int block_splits(int64_t most_positions) {
  const int64_t chunks = (most_positions + kPageTokens + kChunk - 1) / kChunk;
  return static_cast<int>(chunks < 4 ? 4 : chunks > kMostSplits ? kMostSplits : (chunks + 3) / 4 * 4);
}

size_t block_partial_floats(const BlockHeads& shape, int64_t rows, int splits) {
  return static_cast<size_t>(rows) * static_cast<size_t>(shape.query_heads) * static_cast<size_t>(splits) *
         static_cast<size_t>(shape.dim + 2);
}

void launch_block_spans(Rows queries, const BlockHeads& shape, const BlockLaneDesc* lanes, int lane_count, int rows,
                        int splits, const KvLayout& layout, float* partial, Rows out, uint16_t* bf16, Queue& queue) {
  if (shape.dim == 128) launch<128>(queries, shape, lanes, lane_count, rows, splits, layout, partial, queue);
  else launch<64>(queries, shape, lanes, lane_count, rows, splits, layout, partial, queue);
  Launch{dim3(static_cast<unsigned>(shape.query_heads), static_cast<unsigned>(rows), static_cast<unsigned>(lane_count)),
         128, 0, queue}(block_merge_kernel, partial, splits, shape, lanes, out, bf16);
}

}  // namespace foretoken::cuda
