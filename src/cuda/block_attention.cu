// Attention of block drafters over bf16 keys and values by the matrix unit: a block of threads takes up to 32 queries
// of a K/V head (rows of a lane's block with the head's query heads) and a chunk of 128 positions, or several in turn.
// A warp scores sixteen queries against a page, then weighs the chunk's values for the same queries and a quarter of
// the dimensions.
//
// The order, of a query alone: score and weighted value are chains of mma.sync.m16n8k16 over ascending steps of 16
// dimensions or positions, the upper half of the query or weight before the lower (attention.cuh). Weights of a page
// are those of its largest score; pages, chunks and the shares of blocks of threads are merged in ascending order.
// Which they are is the lane's own matter, so a lane's bits do not depend on the others.
#include <cstddef>

#include "cuda/attention.cuh"
#include "cuda/bulk.cuh"
#include "cuda/mma.cuh"

namespace foretoken::cuda {
namespace {

constexpr int kThreads = 256, kTiles = 2, kQueries = kTiles * 16;  // of a block of threads
constexpr int kChunk = 128, kChunkPages = kChunk / kPageTokens;
static_assert(kTiles * kChunkPages * 32 == kThreads);
constexpr int kResident = kBulkCopies ? 2 : 1;  // of a multiprocessor: an older one's shared memory has room for one
constexpr int kMostSplits = 32;                 // of a lane's context; each takes as many chunks as it must

struct QueryOf {
  int row, head;  // of the pass
  int from, to;   // what it sees, from the cut's origin on
};

// Rows of bf16 are swizzled: sixteen bytes lie where their number, of up to eight, is changed by the row's.
template <int kDim>
struct Memory {
  uint16_t keys[kChunkPages][kDim][kPageTokens];
  uint16_t values[kChunkPages][kPageTokens][kDim];
  uint16_t queries[2][kQueries][kDim], weights[2][kQueries][kChunk];  // halves
  float2 pages[kChunkPages][kQueries];                                // largest score, sum of weights
  QueryOf of[kQueries];
  uint32_t bad[kChunkPages];  // positions whose values are not finite and were made zeros
};

// What a lane's rows see, and how it is cut. Positions count from the origin, a page's first.
struct Cut {
  int64_t origin;
  int from, to;          // what any row sees
  int all_from, all_to;  // what every row sees
  int chunks, per, splits;
};
FORETOKEN_DEVICE int64_t first_seen(const BlockLaneDesc& lane, const BlockHeads& shape, int row) {
  int64_t begin = lane.begin;
  if (shape.window > 0) begin = max(begin, lane.end + row - shape.window + 1);
  return min(begin, lane.end);
}
FORETOKEN_DEVICE Cut cut_of(const BlockLaneDesc& lane, const BlockHeads& shape) {
  Cut cut;
  const int64_t first = first_seen(lane, shape, 0);
  cut.origin = first / kPageTokens * kPageTokens;
  const int end = static_cast<int>(lane.end - cut.origin);
  cut.from = static_cast<int>(first - cut.origin), cut.to = end + lane.rows;
  cut.all_from = static_cast<int>(first_seen(lane, shape, lane.rows - 1) - cut.origin);
  cut.all_to = shape.causal ? end + 1 : cut.to;
  cut.chunks = (cut.to + kChunk - 1) / kChunk;
  cut.per = (cut.chunks + kMostSplits - 1) / kMostSplits;
  cut.splits = cut.per > 1 ? (cut.chunks + cut.per - 1) / cut.per : cut.chunks;
  return cut;
}

// Of a page's positions those in [from, to), a bit each.
FORETOKEN_DEVICE uint32_t page_bits(int from, int to) {
  const auto behind = [](int position) {
    return __funnelshift_lc(0u, 0xFFFFFFFFu, static_cast<uint32_t>(max(position, 0)));
  };
  return behind(from) & ~behind(to);
}

// partial [rows][query heads]: weighted values [splits of the launch][dim], then [splits] of largest score, to the base
// of two, and sum of weights.
template <int kDim>
__global__ void __launch_bounds__(kThreads, kResident)
    block_spans_kernel(Rows queries, BlockHeads shape, const BlockLaneDesc* lanes, int tiles, KvLayout layout,
                       float* partial) {
  extern __shared__ __align__(128) uint8_t shared[];
  Memory<kDim>& m = *reinterpret_cast<Memory<kDim>*>(shared);
  constexpr int kRowBytes = kDim * 2, kQueryHalf = kQueries * kRowBytes, kWeightHalf = kQueries * kChunk * 2;
  const int thread = threadIdx.x, warp = thread >> 5, lane_id = thread & 31;
  const int tile = warp / kChunkPages, page = warp % kChunkPages;

  // ---- Which queries and positions. Descriptions come from the host: they are there before the kernel before ends.
  const BlockLaneDesc lane = lanes[blockIdx.z];
  const int group = shape.query_heads / shape.kv_heads, kv_head = blockIdx.y / tiles,
            first_query = blockIdx.y % tiles * kQueries, all_queries = lane.rows * group;
  const Cut cut = cut_of(lane, shape);
  const int first_chunk = blockIdx.x * cut.per, last_chunk = min(cut.chunks, first_chunk + cut.per);
  if (first_query >= all_queries || first_chunk >= last_chunk) {
    begin_kernel();
    return;
  }
  const int count = min(kQueries, all_queries - first_query);
  const auto first_page = static_cast<uint32_t>((cut.origin - lane.base) / kPageTokens);
  const auto page_at = [&](int chunk) {  // the warp's; one behind the context is some page
    const uint32_t at = first_page + static_cast<uint32_t>(chunk * kChunkPages + page);
    return reinterpret_cast<const std::byte*>(lane.pages[at % static_cast<uint32_t>(lane.page_count)]);
  };
  const std::byte* from_page = page_at(first_chunk);
  if (thread < kQueries) {  // one too many is the last once more
    const int at = first_query + min(thread, count - 1), row = at / group,
              end = static_cast<int>(lane.end - cut.origin);
    m.of[thread] = {lane.first_row + row, kv_head * group + at % group,
                    static_cast<int>(first_seen(lane, shape, row) - cut.origin),
                    end + (shape.causal ? row + 1 : lane.rows)};
  }
  if (thread < kChunkPages) m.bad[thread] = 0;
  __syncthreads();
  const int asked = thread / 8, piece = thread % 8;  // eight dimensions of every 64 of a query
  const float* const query =
      queries.data + int64_t{m.of[asked].row} * queries.stride + m.of[asked].head * kDim + piece * 8;
  const bool aligned = queries.stride % 4 == 0 && reinterpret_cast<uintptr_t>(queries.data) % 16 == 0;
  uint8_t* const query_to =
      shared + kept(offsetof(Memory<kDim>, queries) + asked * kRowBytes + (piece ^ (asked & 7)) * 16);

  // ---- A page comes by two warps: a thread's pieces of sixteen bytes lie 1,024 apart, here and there; every other one
  // of values of 128 dimensions is four rows on in the swizzle of eight.
  constexpr int kCopies = kDim / 16, kRowPieces = kDim / 8, kCopyRows = 64 / kRowPieces;
  const int copier = tile * 32 + lane_id, copy_row = copier / kRowPieces;
  const uint32_t key_to = kept(shared_address(m.keys[page]) + copier / 4 * 64 + (copier % 4 ^ (copier >> 3 & 3)) * 16);
  uint32_t value_place[2];  // in the values
#pragma unroll
  for (int i = 0; i < 2; ++i)
    value_place[i] = kept((page * kPageTokens + copy_row) * kRowBytes +
                          (copier % kRowPieces ^ ((copy_row + i * kCopyRows) & 7)) * 16);
  const uint32_t values_at = shared_address(m.values),
                 key_from = kept(static_cast<uint32_t>(layout.key_offset(0, kv_head)) + copier * 16),
                 value_from = kept(static_cast<uint32_t>(layout.value_offset(0, kv_head)) + copier * 16);
  const auto request_keys = [&](bool exists) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) copy_16(key_to + i * 1024, from_page + key_from + i * 1024, exists);
    commit_copies();
  };
  // What no row sees may never have been stored: zeros.
  const auto seen_values = [&](int position) { return page_bits(cut.from - position, cut.to - position) >> copy_row; };
  const auto request_values = [&](uint32_t seen) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      copy_16(values_at + value_place[i % 2] + i * 1024, from_page + value_from + i * 1024, seen >> i * kCopyRows & 1);
    commit_copies();
  };
  const int first_position = first_chunk * kChunk + page * kPageTokens;
  const uint32_t first_values = kept(seen_values(first_position));

  // Where a lane's rows begin in what it multiplies.
  const int row_of_lane = lane_id & 15, half_of_lane = lane_id >> 4;
  const uint32_t swizzle = kept((half_of_lane ^ (row_of_lane & 7)) * 16);
  const uint32_t query_rows = kept(shared_address(m.queries) + (tile * 16 + row_of_lane) * kRowBytes),
                 weight_rows = kept(shared_address(m.weights) + (tile * 16 + row_of_lane) * (kChunk * 2)),
                 value_rows = kept(shared_address(m.values) + row_of_lane * kRowBytes);
  uint32_t key_rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    key_rows[i] =
        kept(shared_address(m.keys[page]) + row_of_lane * 64 + ((i * 2 + half_of_lane) ^ (row_of_lane >> 1 & 3)) * 16);
  constexpr int kBlocks = kDim / kChunkPages / 8;         // of eight dimensions, of a warp
  const int own_query = lane_id / 4, pair = lane_id % 4;  // and the query eight behind it
  const bool works = tile * 16 < count;
  static_assert(kDim == 64 || kDim == 128);
  constexpr float kScale = (kDim == 64 ? 0.125f : 0.0883883476f) * 1.44269504f;  // scores are to the base of two
  float sum[kBlocks][4] = {}, largest[2] = {-infinity(), -infinity()}, total[2] = {};

  begin_kernel();
  {  // ---- Queries in halves.
    float x[kDim / 64][8];
    if (aligned) {
#pragma unroll
      for (int i = 0; i < kDim / 64; ++i)
#pragma unroll
        for (int e = 0; e < 8; e += 4) {
          const float4 four = *reinterpret_cast<const float4*>(query + i * 64 + e);
          x[i][e] = four.x, x[i][e + 1] = four.y, x[i][e + 2] = four.z, x[i][e + 3] = four.w;
        }
    } else {
#pragma unroll
      for (int i = 0; i < kDim / 64; ++i)
#pragma unroll
        for (int e = 0; e < 8; ++e) x[i][e] = query[i * 64 + e];
    }
    request_keys(first_position < cut.to);
    request_values(first_values);
#pragma unroll
    for (int i = 0; i < kDim / 64; ++i) {
      uint32_t upper[4], lower[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) halves(x[i][e * 2], x[i][e * 2 + 1], upper[e], lower[e]);
      uint8_t* const to = query_to + i * 128;
      *reinterpret_cast<uint4*>(to) = make_uint4(upper[0], upper[1], upper[2], upper[3]);
      *reinterpret_cast<uint4*>(to + kQueryHalf) = make_uint4(lower[0], lower[1], lower[2], lower[3]);
    }
  }
#pragma unroll 1
  for (int chunk = first_chunk;; ++chunk) {
    const int begin = chunk * kChunk, position = begin + page * kPageTokens;  // the warp's page's first
    const bool last = chunk + 1 == last_chunk;
    if (!last) from_page = page_at(chunk + 1);
    wait_copies<1>();
    __syncthreads();
    if (works) {  // ---- Scores of the page, and weights of its largest; a NaN never replaces a number there.
      float score[4][4] = {};
#pragma unroll 1
      for (int step = 0; step < kDim / 16; ++step) {
        uint32_t key[2][2][2], upper[4], lower[4];
        load_rows(upper, query_rows + (step * 32 ^ swizzle));
        load_rows(lower, query_rows + (step * 32 ^ swizzle) + kQueryHalf);
#pragma unroll
        for (int i = 0; i < 2; ++i) load_columns(key[i], key_rows[i] + step * 1024);
#pragma unroll
        for (int n = 0; n < 4; ++n) mma(score[n], upper, key[n / 2][n % 2][0], key[n / 2][n % 2][1]);
#pragma unroll
        for (int n = 0; n < 4; ++n) mma(score[n], lower, key[n / 2][n % 2][0], key[n / 2][n % 2][1]);
      }
      // One query after the other: code that runs first costs more than what they would wait for together.
#pragma unroll 1
      for (int h = 0; h < 2; ++h) {
        const int q = tile * 16 + h * 8 + own_query;
        const uint32_t seen = page_bits(m.of[q].from - position, m.of[q].to - position) >> pair * 2;
        float top = -infinity();
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& s = score[n][e];
            s = seen >> (n * 8 + e) & 1 ? s : -infinity();
            top = fmaxf(top, s);
          }
        for (int x = 1; x < 4; x *= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, x));
        top = __fmul_rn(top, kScale);
        const float base = top > -infinity() ? top : 0.0f;
        float added = 0;
        uint8_t* const to = reinterpret_cast<uint8_t*>(m.weights) + q * (kChunk * 2) + pair * 4;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          float p[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            p[e] = exp2(fma(score[n][e], kScale, -base));
            added = __fadd_rn(added, p[e]);
          }
          uint32_t upper, lower;
          halves(p[0], p[1], upper, lower);
          const int at = ((page * 4 + n) ^ (q & 7)) * 16;
          *reinterpret_cast<uint32_t*>(to + at) = upper;
          *reinterpret_cast<uint32_t*>(to + at + kWeightHalf) = lower;
        }
        for (int x = 1; x < 4; x *= 2) added = __fadd_rn(added, __shfl_xor_sync(0xFFFFFFFFu, added, x));
        if (pair == 0) m.pages[page][q] = make_float2(top, added);
#pragma unroll
        for (int n = 0; n < 4; ++n) score[n][0] = score[n][2], score[n][1] = score[n][3];
      }
    }
    wait_copies<0>();
    // What is not finite reaches the queries that see it (bad), not those that do not: zero times it is no zero. Each
    // thread looks at what it has copied.
    if (const uint32_t some = page_bits(cut.from - position, cut.to - position) &
                              ~page_bits(cut.all_from - position, cut.all_to - position)) {
#pragma unroll 1
      for (int i = 0; i < kCopies; ++i) {
        const int row = copy_row + i * kCopyRows;
        if (!(some >> row & 1)) continue;
        uint4* const value = reinterpret_cast<uint4*>(reinterpret_cast<uint8_t*>(m.values) +
                                                      (i % 2 ? value_place[1] : value_place[0]) + i * 1024);
        const uint4 v = *value;
        if (finite_pairs(v.x) && finite_pairs(v.y) && finite_pairs(v.z) && finite_pairs(v.w)) continue;
        *value = make_uint4(0, 0, 0, 0);
        atomicOr(&m.bad[page], 1u << row);
      }
    }
    __syncthreads();  // the keys have been read, the values are there
    if (!last) request_keys(position + kChunk < cut.to);
    if (works) {  // ---- Values, a quarter of the dimensions.
      float base[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int q = tile * 16 + h * 8 + own_query;
        float top = largest[h];
#pragma unroll
        for (int b = 0; b < kChunkPages; ++b) top = fmaxf(top, m.pages[b][q].x);
        base[h] = top > -infinity() ? top : 0.0f;
        if (chunk > first_chunk) {
          const float keep = exp2(__fsub_rn(largest[h], base[h]));
          total[h] = __fmul_rn(total[h], keep);
#pragma unroll
          for (int n = 0; n < kBlocks; ++n)
#pragma unroll
            for (int e = h * 2; e < h * 2 + 2; ++e) sum[n][e] = __fmul_rn(sum[n][e], keep);
        }
        largest[h] = top;
      }
      const int pages = min(kChunkPages, (cut.to - begin + kPageTokens - 1) / kPageTokens);
#pragma unroll 1
      for (int b = 0; b < pages; ++b) {
        float part[kBlocks][4] = {};
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          uint32_t value[kBlocks / 2][2][2], upper[4], lower[4];
          load_rows(upper, weight_rows + ((b * 2 + step) * 32 ^ swizzle));
          load_rows(lower, weight_rows + ((b * 2 + step) * 32 ^ swizzle) + kWeightHalf);
#pragma unroll
          for (int n = 0; n < kBlocks / 2; ++n)
            load_columns(value[n], value_rows + ((page * (kBlocks / 2) + n) * 32 ^ swizzle) +
                                       (b * kPageTokens + step * 16) * kRowBytes);
#pragma unroll
          for (int n = 0; n < kBlocks; ++n) mma(part[n], upper, value[n / 2][n % 2][0], value[n / 2][n % 2][1]);
#pragma unroll
          for (int n = 0; n < kBlocks; ++n) mma(part[n], lower, value[n / 2][n % 2][0], value[n / 2][n % 2][1]);
        }
        const uint32_t bad = m.bad[b];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int q = tile * 16 + h * 8 + own_query;
          const float2 joins = m.pages[b][q];
          const float factor = exp2(__fsub_rn(joins.x, base[h]));
          total[h] = fma(joins.y, factor, total[h]);
          if (bad) {
            const int at = begin + b * kPageTokens;
            if (bad & page_bits(m.of[q].from - at, m.of[q].to - at)) total[h] = __int_as_float(0x7FC00000);
          }
#pragma unroll
          for (int n = 0; n < kBlocks; ++n)
#pragma unroll
            for (int e = h * 2; e < h * 2 + 2; ++e) sum[n][e] = fma(part[n][e], factor, sum[n][e]);
        }
      }
    }
    if (last) break;
    __syncthreads();  // the values have been read
    if (thread < kChunkPages) m.bad[thread] = 0;
    request_values(seen_values(position + kChunk));
  }
  const int places = static_cast<int>(gridDim.x);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int q = tile * 16 + h * 8 + own_query;
    if (q >= count) break;
    float* const to =
        partial + (int64_t{m.of[q].row} * shape.query_heads + m.of[q].head) * (places * int64_t{kDim + 2});
    float* const values = to + blockIdx.x * kDim + page * (kDim / kChunkPages) + pair * 2;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
      *reinterpret_cast<float2*>(values + n * 8) = make_float2(sum[n][h * 2], sum[n][h * 2 + 1]);
    if (page == 0 && pair == 0)
      *reinterpret_cast<float2*>(to + places * kDim + blockIdx.x * 2) = make_float2(largest[h], total[h]);
  }
}

// A block of threads a row and head, a thread two dimensions.
constexpr int kMergedTogether = 8;  // splits that are on their way
__global__ void __launch_bounds__(64) block_merge_kernel(const float* partial, int places, BlockHeads shape,
                                                         const BlockLaneDesc* lanes, Rows out, uint16_t* bf16) {
  const BlockLaneDesc lane = lanes[blockIdx.z];
  const int head = blockIdx.x, pairs = shape.dim / 2, lane_id = threadIdx.x & 31;
  const int splits = static_cast<int>(blockIdx.y) < lane.rows ? cut_of(lane, shape).splits : 0;
  const int64_t row = lane.first_row + int64_t{blockIdx.y};
  const float2* const from =
      reinterpret_cast<const float2*>(partial) + (row * shape.query_heads + head) * (places * int64_t{pairs + 1});
  const float2* const values = from + threadIdx.x;
  begin_kernel();
  if (splits == 0) return;
  const float2 own = lane_id < splits ? from[places * pairs + lane_id] : make_float2(-infinity(), 0);
  float2 value[kMergedTogether];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kMergedTogether; ++i)
      value[i] = first + i < splits ? values[(first + i) * pairs] : make_float2(0, 0);
  };
  load(0);
  float top = own.x;
  for (int s = 16; s > 0; s /= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, s));
  const float factor = lane_id < splits ? exp2(__fsub_rn(own.x, top)) : 0.0f;
  float whole = __fmul_rn(own.y, factor);
  for (int s = 16; s > 0; s /= 2) whole = __fadd_rn(whole, __shfl_xor_sync(0xFFFFFFFFu, whole, s));
  float2 o = make_float2(0, 0);
#pragma unroll 1
  for (int first = 0;; load(first)) {
#pragma unroll
    for (int i = 0; i < kMergedTogether; ++i) {
      const float f = __shfl_sync(0xFFFFFFFFu, factor, first + i);  // zero where there is none
      o.x = fma(value[i].x, f, o.x), o.y = fma(value[i].y, f, o.y);
    }
    if ((first += kMergedTogether) >= splits) break;
  }
  const float inverse = __frcp_rn(whole), x = __fmul_rn(o.x, inverse), y = __fmul_rn(o.y, inverse);
  const int64_t column = int64_t{head} * shape.dim + threadIdx.x * 2;
  float* const to = out.data + row * out.stride + column;
  to[0] = x, to[1] = y;
  if (bf16) *reinterpret_cast<uint32_t*>(bf16 + row * out.cols + column) = bf16_pair(x, y);
}
static_assert(kMostSplits == 32 && kMostSplits % kMergedTogether == 0);

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
         static_cast<unsigned>(shape.dim / 2), 0, queue}(block_merge_kernel, partial, splits, shape, lanes, out, bf16);
}

}  // namespace foretoken::cuda
