// Spans of bf16 keys and values by the matrix unit: a block of threads takes up to 64 queries of one K/V head (rows of
// a lane with the head's query heads) and one span of 256 positions, or the eight of a group in turn. Every warp scores
// a block of 32 positions for all queries, then weighs all positions for an eighth of the dimensions.
//
// The order, of a query alone: score and weighted value are chains of mma.sync.m16n8k16, whose rows are the queries,
// over ascending steps of 16 dimensions or positions, the upper half of the query or probability before the lower (both
// are two bf16: the nearest, and the nearest of what is left). Probabilities of a span are those of its largest score;
// spans are merged within groups, groups with each other, in ascending order (docs/gpu.md). Neither the number of
// queries nor that of spans that a block of threads takes has a part in it.
#include <algorithm>

#include "cuda/attention.cuh"
#include "cuda/bulk.cuh"
#include "cuda/mma.cuh"

namespace foretoken::cuda {
namespace {

constexpr int kThreads = 32 * kTileWarps;
static_assert(kTileWarps * kPageTokens == kTileSpan);

FORETOKEN_DEVICE void wait_copies_but(int pending) {
  switch (pending) {
    case 0:
      return wait_copies<0>();
    case 1:
      return wait_copies<1>();
    case 2:
      return wait_copies<2>();
    case 3:
      return wait_copies<3>();
    default:
      return wait_copies<4>();
  }
}

// What all lanes of a warp know to be equal.
FORETOKEN_DEVICE int same(int value) { return __shfl_sync(0xFFFFFFFFu, value, 0); }

// What threads tell each other about the queries of a block of threads; of a span unless said.
template <int kQueries>
struct TileQueries {
  float* floats;
  enum Kind { kLargest = 0, kSum = kTileWarps, kMaximum = 2 * kTileWarps, kTotal, kKeep, kJoin };
  __device__ __forceinline__ float& at(int kind, int q) const { return floats[kind * kQueries + q]; }
  // Positions of the unit that the query sees (0: there is no such query), its row, its head of the K/V head's.
  __device__ __forceinline__ int& seen(int q) const {
    return reinterpret_cast<int*>(floats)[(kJoin + 1) * kQueries + q];
  }
  __device__ __forceinline__ int& row(int q) const {
    return reinterpret_cast<int*>(floats)[(kJoin + 2) * kQueries + q];
  }
  __device__ __forceinline__ int& head(int q) const {
    return reinterpret_cast<int*>(floats)[(kJoin + 3) * kQueries + q];
  }
  static constexpr int kBytes = (kJoin + 4) * 4;
};

// kTiles: of sixteen queries.
template <int kDim, int kTiles>
__global__ void __launch_bounds__(kThreads, 1) tile_kernel(TileTask task) {
  constexpr int kParts = kDim / 64;  // stages of a span's keys, and of its values
  constexpr int kStageValues = kTileStageBytes / 2 / kDim, kStagePages = kStageValues / kPageTokens;
  constexpr int kRowChunks = kDim / 8;  // of sixteen bytes, of a position's values
  constexpr int kBlocks = kDim / 64;    // of eight dimensions, of a warp
  static_assert(TileQueries<kTiles * 16>::kBytes == kTileQueryBytes);
  constexpr int kScoreBlocks = kPageTokens / 8;
  constexpr int kKeyBlock = 64 * kPageTokens * 2;  // bytes of a page in a stage of keys
  extern __shared__ __align__(128) uint8_t shared[];
  const SpanTask& span = task.span;
  constexpr int kQueries = kTiles * 16, kQueryHalf = kQueries * kDim * 2, kWeightHalf = kQueries * kTileSpan * 2;
  const int stages = task.stages;
  uint8_t* const ring = shared;
  uint8_t* const query_at = ring + stages * kTileStageBytes;  // [half][query][kDim]
  uint8_t* const weight_at =
      query_at + 2 * kQueryHalf;  // [half][query][position]; at last [query][dimension] of results
  const TileQueries<kQueries> query{reinterpret_cast<float*>(weight_at + 2 * kWeightHalf)};
  __shared__ const std::byte* page_of[kTileGroup * kTileWarps];
  __shared__ int first_bad;  // position of the unit whose value is not finite
  const int thread = threadIdx.x, warp = same(thread >> 5), lane = thread & 31;
  const HeadShape& shape = span.shape;
  const int group = shape.query_heads / shape.kv_heads, kv_head = blockIdx.y;

  // ---- Which queries. Descriptions come from the host: they are there before the kernel before ends.
  const auto [lane_at, item] = task.items[blockIdx.z];
  const LaneDesc owner = span.pass.lanes[lane_at];
  const int unit_tokens = task.spans_of_unit * kTileSpan;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * unit_tokens;
  const int first_row = max(owner.first_row, span.first_row), end_row = min(owner.first_row + owner.rows, task.end_row);
  // Rows of a tree differ in what they see behind the prefix: there each has a block of threads for itself.
  const bool apart = same(!owner.chain && begin + unit_tokens > owner.prefix) != 0;
  const int first_query = apart ? 0 : item * kQueries;
  const int from_row = first_row + (apart ? item : 0);
  const int count = from_row < end_row ? min(kQueries, (apart ? 1 : end_row - first_row) * group - first_query) : 0;
  const RowDesc alone = apart && count > 0 ? span.pass.rows[from_row] : RowDesc{};
  const int32_t* const path = span.pass.paths + alone.path;
  const auto seen_by = [&](int row) {
    const int depth = apart ? alone.depth : owner.chain ? row - owner.first_row : 0;
    const int64_t visible = owner.prefix + depth + 1 - begin;
    return static_cast<int>(max(int64_t{0}, min(int64_t{unit_tokens}, visible)));
  };
  const int least_seen = same(count > 0 ? seen_by(from_row + first_query / group) : 0),
            most_seen = same(count > 0 ? seen_by(from_row + (first_query + count - 1) / group) : 0);
  const int pages = (most_seen + kPageTokens - 1) / kPageTokens;
  if (thread < pages) page_of[thread] = reinterpret_cast<const std::byte*>(owner.pages[begin / kPageTokens + thread]);
  if (thread == 0) first_bad = 0x7FFFFFFF;
  if (thread < kQueries) {
    const int at = first_query + (thread < count ? thread : 0), row = from_row + at / group;
    query.row(thread) = row;
    query.head(thread) = at % group;
    query.seen(thread) = thread < count ? seen_by(row) : 0;
  }
  begin_kernel();
  if (most_seen == 0) return;
  __syncthreads();

  // ---- Keys and values come in stages: of a span the keys of 64 dimensions each, then the values.
  const size_t key_at = span.layout.key_offset(span.layer, kv_head),
               value_at = span.layout.value_offset(span.layer, kv_head);
  // Positions of the unit from here on are the pass's own.
  const int own_from = same(static_cast<int>(max(int64_t{0}, min(int64_t{unit_tokens}, owner.prefix - begin))));
  constexpr int kCopies = kTileStageBytes / 16 / kThreads, kCopyRows = kThreads / kRowChunks;  // of values
  static_assert(kCopyRows % 8 == 0 && kPageTokens % kCopyRows == 0);
  static_assert(kCopies == kTileWarps);
  const int key_row = thread >> 2, key_chunk = thread & 3;  // a page's rows are dimensions
  const int value_row = thread / kRowChunks, value_chunk = thread % kRowChunks;
  const uint32_t key_to = kept(key_row * 64 + (key_chunk ^ (key_row >> 1 & 3)) * 16),
                 value_to = kept(value_row * (kDim * 2) + (value_chunk ^ (value_row & 7)) * 16),
                 key_from = kept(static_cast<uint32_t>(key_at) + thread * 16),
                 value_from = kept(static_cast<uint32_t>(value_at) + value_row * (kDim * 2) + value_chunk * 16);
  const auto slot_at = [&](int position) { return slot_of(begin + position, owner.prefix, path); };
  const auto page_at = [&](int64_t slot) {
    return reinterpret_cast<const std::byte*>(owner.pages[slot / kPageTokens]);
  };
  const int spans = (most_seen + kTileSpan - 1) / kTileSpan, all_stages = spans * 2 * kParts;
  const auto following = [&](int at) { return at + 1 == stages ? 0 : at + 1; };
  int asked_span = 0, asked_part = 0, asked_slot = 0;
  const auto request = [&] {  // the next stage
    if (asked_span < spans) {
      const int s = asked_span, part = asked_part, first_page = s * kTileWarps;
      uint8_t* const slot_room = ring + asked_slot * kTileStageBytes;
      if (part < kParts) {
        const uint32_t to = shared_address(slot_room) + key_to;
        const uint32_t at = part * kKeyBlock;
        // A tree's own positions lie anywhere.
        const int here = pages - first_page,
                  whole = apart ? min(here, max(0, own_from / kPageTokens - first_page)) : here;
        if (whole >= kTileWarps) {
#pragma unroll
          for (int b = 0; b < kTileWarps; ++b) copy_16(to + b * kKeyBlock, page_of[first_page + b] + (key_from + at));
        } else {
#pragma unroll 1
          for (int b = 0; b < whole; ++b) copy_16(to + b * kKeyBlock, page_of[first_page + b] + (key_from + at));
        }
        if (whole < min(here, kTileWarps)) {
#pragma unroll 1
          for (int b = whole; b < min(here, kTileWarps); ++b)
#pragma unroll 1
            for (int i = 0; i < 8; ++i) {
              const int position = min((first_page + b) * kPageTokens + key_chunk * 8 + i, most_seen - 1);
              const int64_t slot = slot_at(position);
              reinterpret_cast<uint16_t*>(slot_room + key_to + b * kKeyBlock)[i] = reinterpret_cast<const uint16_t*>(
                  page_at(slot) + key_at + at)[key_row * kPageTokens + slot % kPageTokens];
            }
        }
      } else {
        // The thread's chunk of every kCopyRows-th position: eight at least, so that the swizzle stays.
        const int page = first_page + (part - kParts) * kStagePages, first = page * kPageTokens + value_row;
        const uint32_t to = shared_address(slot_room) + value_to;
        if (!apart && (page + kStagePages) * kPageTokens <= most_seen) {
#pragma unroll
          for (int i = 0; i < kCopies; ++i)
            copy_16(to + i * kCopyRows * (kDim * 2), page_of[page + i * kCopyRows / kPageTokens] + value_from +
                                                         i * kCopyRows % kPageTokens * (kDim * 2));
        } else {
#pragma unroll 1
          for (int i = 0; i < kCopies; ++i) {
            if (page + i * kCopyRows / kPageTokens >= pages) break;
            const bool exists = first + i * kCopyRows < most_seen;
            const int position = exists ? first + i * kCopyRows : most_seen - 1;
            const int64_t slot = apart ? slot_at(position) : begin + position;
            copy_16(to + i * kCopyRows * (kDim * 2),
                    page_at(slot) + value_at + slot % kPageTokens * (kDim * 2) + value_chunk * 16, exists);
          }
        }
      }
      asked_slot = following(asked_slot);
      if (++asked_part == 2 * kParts) asked_part = 0, ++asked_span;
    }
    commit_copies();
  };
  // What is not finite among the pass's own values reaches those who see it (first_bad), not those who do not: zero
  // times it is no zero. Each thread looks at what it has copied.
  const auto mend_values = [&](int slot_of_ring, int first) {
#pragma unroll 1
    for (int i = 0; i < kCopies; ++i) {
      const int position = first + value_row + i * kCopyRows;
      if (position < own_from || position >= most_seen) continue;
      uint4* const value =
          reinterpret_cast<uint4*>(ring + slot_of_ring * kTileStageBytes + value_to + i * kCopyRows * (kDim * 2));
      const uint4 v = *value;
      if (finite_pairs(v.x) && finite_pairs(v.y) && finite_pairs(v.z) && finite_pairs(v.w)) continue;
      *value = make_uint4(0, 0, 0, 0);
      atomicMin(&first_bad, position);
    }
  };

  // Scores are to the base of two.
  const float head_scale = __fmul_rn(inverse_root(static_cast<float>(kDim)), 1.44269504088896341f);
  // Where a lane's rows begin: of queries and weights, of keys and values. Eight chunks of sixteen bytes are swizzled
  // among themselves by the row.
  const int row_of_lane = lane & 15, half_of_lane = lane >> 4;
  const uint32_t ring_address = kept(shared_address(ring)),
                 query_rows = kept(shared_address(query_at) + row_of_lane * kDim * 2),
                 weight_rows = kept(shared_address(weight_at) + row_of_lane * kTileSpan * 2);
  uint32_t chunk_pair[4], key_pair[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) chunk_pair[i] = kept(((i * 2 + half_of_lane) ^ (row_of_lane & 7)) * 16);
#pragma unroll
  for (int i = 0; i < 2; ++i)
    key_pair[i] = kept(warp * kKeyBlock + row_of_lane * 64 + ((i * 2 + half_of_lane) ^ (row_of_lane >> 1 & 3)) * 16);
  constexpr int kAtOnce = kBlocks > 1 ? 2 : 1;  // blocks of dimensions of a load
  uint32_t value_columns[kBlocks / kAtOnce];
#pragma unroll
  for (int n = 0; n < kBlocks / kAtOnce; ++n)
    value_columns[n] =
        kept(row_of_lane * kDim * 2 +
             ((warp * kBlocks + n * kAtOnce + (kAtOnce > 1 ? half_of_lane : 0)) ^ (row_of_lane & 7)) * 16);
  const int own_query = lane / 4, pair = lane % 4;  // and the query eight behind it

  float sum[kTiles][4][4] = {}, all[kTiles][kBlocks][4];  // scores, then weighted values; those of the group
  float group_maximum = 0, group_total = 0;               // of the thread's query
  int s = 0, part = 0, slot = 0;
#pragma unroll 1
  for (int stage = 1 - stages; stage < all_stages; ++stage) {
    if (stage >= 0) {
      wait_copies_but(stages - 2);
      const int first = s * kTileSpan + (part - kParts) * kStageValues;
      if (part >= kParts && first + kStageValues > own_from) mend_values(slot, first);
      __syncthreads();
    }
    request();
    if (stage < -1) continue;
    if (stage == -1) {                                                  // ---- Queries in halves.
      constexpr int kTogether = kTiles == 1 ? 2 : kTiles == 3 ? 3 : 4;  // that are on their way
      static_assert(kQueries / kTileWarps % kTogether == 0);
#pragma unroll 1
      for (int first = warp; first < kQueries; first += kTogether * kTileWarps) {
        float x[kTogether][kDim / 64][2];
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          const int q = first + k * kTileWarps;
          const float* const from = span.queries.data + int64_t{query.row(q)} * span.queries.stride +
                                    (kv_head * group + query.head(q)) * int64_t{kDim} + lane * 2;
#pragma unroll
          for (int i = 0; i < kDim / 64; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e) x[k][i][e] = q < count ? from[i * 64 + e] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          const int q = first + k * kTileWarps;
#pragma unroll
          for (int i = 0; i < kDim / 64; ++i) {
            uint32_t upper, lower;
            halves(x[k][i][0], x[k][i][1], upper, lower);
            uint8_t* const to = query_at + q * kDim * 2 + i * 128 + (lane / 4 ^ (q & 7)) * 16 + lane % 4 * 4;
            *reinterpret_cast<uint32_t*>(to) = upper;
            *reinterpret_cast<uint32_t*>(to + kQueryHalf) = lower;
          }
        }
      }
      continue;
    }
    const uint32_t here = ring_address + slot * kTileStageBytes;
    slot = following(slot);
    const int blocks = min(kTileWarps, pages - s * kTileWarps);
    if (part < kParts) {  // ---- Scores of the warp's block.
      if (warp < blocks) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          uint32_t key[2][2][2];
#pragma unroll
          for (int i = 0; i < 2; ++i) load_columns(key[i], here + key_pair[i] + step * 16 * 64);
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            const uint32_t from = query_rows + t * 16 * kDim * 2 + part * 128 + chunk_pair[step];
            uint32_t upper[4], lower[4];
            load_rows(upper, from);
            load_rows(lower, from + kQueryHalf);
#pragma unroll
            for (int n = 0; n < kScoreBlocks; ++n) mma(sum[t][n], upper, key[n / 2][n % 2][0], key[n / 2][n % 2][1]);
#pragma unroll
            for (int n = 0; n < kScoreBlocks; ++n) mma(sum[t][n], lower, key[n / 2][n % 2][0], key[n / 2][n % 2][1]);
          }
        }
      }
      if (++part < kParts) continue;
      // ---- Maxima; a NaN never replaces a number.
      const int first_position = s * kTileSpan + warp * kPageTokens + pair * 2;
      const bool all_seen = count == kQueries && least_seen >= s * kTileSpan + (warp + 1) * kPageTokens;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int q = t * 16 + h * 8 + own_query;
          float m = -infinity();
#pragma unroll
          for (int n = 0; n < kScoreBlocks; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) sum[t][n][h * 2 + e] = __fmul_rn(sum[t][n][h * 2 + e], head_scale);
          if (!all_seen) {
            const int seen = query.seen(q) - first_position;
#pragma unroll
            for (int n = 0; n < kScoreBlocks; ++n)
#pragma unroll
              for (int e = 0; e < 2; ++e)
                if (n * 8 + e >= seen) sum[t][n][h * 2 + e] = -infinity();
          }
#pragma unroll
          for (int n = 0; n < kScoreBlocks; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) m = fmaxf(m, sum[t][n][h * 2 + e]);
          for (int x = 1; x < 4; x *= 2) m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, x));
          if (pair == 0) query.at(query.kLargest + warp, q) = m;
        }
      }
      __syncthreads();
      // ---- Weights in halves, and their sums.
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (warp >= blocks) break;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int q = t * 16 + h * 8 + own_query;
          float m = -infinity();  // of the span
#pragma unroll
          for (int b = 0; b < kTileWarps; ++b) m = fmaxf(m, query.at(query.kLargest + b, q));
          float total = 0;
#pragma unroll
          for (int n = 0; n < kScoreBlocks; ++n) {
            float p[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const float score = sum[t][n][h * 2 + e];
              p[e] = exp2(__fsub_rn(score, m));
              total = __fadd_rn(total, p[e]);
            }
            uint32_t upper, lower;
            halves(p[0], p[1], upper, lower);
            uint8_t* const to =
                weight_at + q * kTileSpan * 2 + warp / 2 * 128 + ((warp % 2 * 4 + n) ^ (q & 7)) * 16 + pair * 4;
            *reinterpret_cast<uint32_t*>(to) = upper;
            *reinterpret_cast<uint32_t*>(to + kWeightHalf) = lower;
          }
          for (int x = 1; x < 4; x *= 2) total = __fadd_rn(total, __shfl_xor_sync(0xFFFFFFFFu, total, x));
          if (pair == 0) {
            query.at(query.kSum + warp, q) = total;
            if (warp == 0) query.at(query.kMaximum, q) = m;
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[t][n][i] = 0;
      continue;
    }
    // ---- Values, an eighth of the dimensions.
#pragma unroll 1
    for (int page = 0; page < kStagePages; page += 2) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int b = (part - kParts) * kStagePages + page + odd;
        if (b >= blocks) break;
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          uint32_t value[kBlocks / kAtOnce][kAtOnce][2];
#pragma unroll
          for (int n = 0; n < kBlocks / kAtOnce; ++n)
            load_columns(value[n], here + value_columns[n] + ((page + odd) * kPageTokens + step * 16) * (kDim * 2));
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            const uint32_t from = weight_rows + t * 16 * kTileSpan * 2 + b / 2 * 128 + chunk_pair[odd * 2 + step];
            uint32_t upper[4], lower[4];
            load_rows(upper, from);
            load_rows(lower, from + kWeightHalf);
#pragma unroll
            for (int n = 0; n < kBlocks; ++n)
              mma(sum[t][n], upper, value[n / kAtOnce][n % kAtOnce][0], value[n / kAtOnce][n % kAtOnce][1]);
#pragma unroll
            for (int n = 0; n < kBlocks; ++n)
              mma(sum[t][n], lower, value[n / kAtOnce][n % kAtOnce][0], value[n / kAtOnce][n % kAtOnce][1]);
          }
        }
      }
    }
    if (++part < 2 * kParts) continue;
    // ---- The span joins its group.
    part = 0;
    if (thread < kQueries && query.seen(thread) > s * kTileSpan) {
      const float m = query.at(query.kMaximum, thread);
      float l = 0;
#pragma unroll 1
      for (int b = 0; b < blocks; ++b) l = __fadd_rn(l, query.at(query.kSum + b, thread));
      if (s == 0) {
        group_maximum = m, group_total = l;
      } else {
        const Joint joint = join<true>(group_maximum, m);
        query.at(query.kKeep, thread) = joint.keep;
        query.at(query.kJoin, thread) = joint.join;
        group_total = fma(l, joint.join, __fmul_rn(group_total, joint.keep));
        group_maximum = joint.m;
      }
    }
    if (s > 0) __syncthreads();
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int q = t * 16 + h * 8 + own_query;
        if (s == 0) {
#pragma unroll
          for (int n = 0; n < kBlocks; ++n)
            all[t][n][h * 2] = sum[t][n][h * 2], all[t][n][h * 2 + 1] = sum[t][n][h * 2 + 1];
        } else if (query.seen(q) > s * kTileSpan) {
          const float keep = query.at(query.kKeep, q), joins = query.at(query.kJoin, q);
#pragma unroll
          for (int n = 0; n < kBlocks; ++n)
#pragma unroll
            for (int e = h * 2; e < h * 2 + 2; ++e)
              all[t][n][e] = fma(sum[t][n][e], joins, __fmul_rn(all[t][n][e], keep));
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) sum[t][n][h * 2] = sum[t][n][h * 2 + 1] = 0;
      }
    }
    ++s;
  }

  // ---- Results, or what the merge takes: row by row, through the weights' room.
  __syncthreads();
  float* const results = reinterpret_cast<float*>(weight_at);
  if (thread < kQueries) {
    query.at(query.kMaximum, thread) = group_maximum;
    query.at(query.kTotal, thread) = group_total;
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int q = t * 16 + h * 8 + own_query;
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
        *reinterpret_cast<float2*>(results + q * kDim + (((warp * kBlocks + n) * 8 + pair * 2) ^ (q & 7) * 8)) =
            make_float2(all[t][n][h * 2], all[t][n][h * 2 + 1]);
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int q = warp; q < count; q += kTileWarps) {
    const int row = query.row(q), head = kv_head * group + query.head(q), seen = query.seen(q);
    if (seen == 0) continue;
    const bool bad = seen > first_bad;
    const float m = query.at(query.kMaximum, q), l = query.at(query.kTotal, q), *const from = results + q * kDim;
    const bool whole =
        blockIdx.x == 0 &&
        (seen < unit_tokens || owner.prefix + (apart ? alone.depth : span.pass.rows[row].depth) + 1 == unit_tokens);
    float* const partial =
        span.partial +
        ((int64_t{row - span.first_row} * shape.query_heads + head) * span.spans + blockIdx.x) * (kDim + 2);
    if (!whole && lane == 0) partial[0] = m, partial[1] = l;
    float gate[kDim / 32];
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) gate[i] = whole ? gate_of(span, row, head, i * 32 + lane) : 0.0f;
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) {
      const int d = i * 32 + lane;
      // A zero has no sign here: it may come of terms that another pass skips.
      const float o = bad ? __int_as_float(0x7FC00000) : __fadd_rn(from[d ^ (q & 7) * 8], 0.0f);
      if (whole) put_result(span, row, head, d, o, l, gate[i]);
      else partial[2 + d] = o;
    }
  }
}

template <int kDim>
void launch(const TileTask& task, const SpanPlan& plan, Queue& queue) {
  const int tiles = plan.tiles;
  const Launch launch{dim3(static_cast<unsigned>(task.span.spans), static_cast<unsigned>(task.span.shape.kv_heads),
                           static_cast<unsigned>(plan.items)),
                      kThreads, tile_bytes(kDim, tiles, task.stages), queue};
  if (tiles == 1) launch(tile_kernel<kDim, 1>, task);
  else if (tiles == 2) launch(tile_kernel<kDim, 2>, task);
  else if (tiles == 3) launch(tile_kernel<kDim, 3>, task);
  else launch(tile_kernel<kDim, 4>, task);
}

}  // namespace

void run_tiles(const SpanTask& span, const SpanPlan& plan, const SpanItem* items, int rows, Queue& queue) {
  const TileTask task{.span = span,
                      .items = items,
                      .end_row = span.first_row + rows,
                      .stages = plan.stages,
                      .spans_of_unit = plan.unit_tokens / kTileSpan};
  switch (span.shape.dim) {
    case 64:
      return launch<64>(task, plan, queue);
    case 128:
      return launch<128>(task, plan, queue);
    default:
      return launch<256>(task, plan, queue);
  }
}

}  // namespace foretoken::cuda
