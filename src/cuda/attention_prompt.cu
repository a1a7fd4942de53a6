// Spans of bf16 keys and values and the rows of one long chain: a block of threads takes kRows rows with the query
// heads of one K/V head, so that what is staged serves all of them. The order of operations is that of attention.cu.
#include <algorithm>
#include <type_traits>

#include "cuda/attention.cuh"
#include "cuda/bulk.cuh"

namespace foretoken::cuda {
namespace {

constexpr int kWarps = kSpanWarps, kThreads = 32 * kWarps, kRows = kPromptRows;
constexpr int kKeySlots = SpanRoom::kKeySlots, kValueSlot = SpanRoom::kValueSlot;
template <int kHeads>
constexpr int kQueries = kRows* kHeads;
template <int kHeads, bool kSmall>
constexpr SpanRoom kRoom = kSmall ? kSmallPrompt : large_prompt(kHeads);

FORETOKEN_DEVICE float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
FORETOKEN_DEVICE float high_half(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

template <int kHeads, bool kSmall>
__global__ void __launch_bounds__(kThreads, 1) prompt_span_kernel(SpanTask task, int end_row) {
  constexpr SpanRoom room = kRoom<kHeads, kSmall>;
  constexpr int kOwn = room.own_values, kSlots = room.value_slots(), kAll = kQueries<kHeads>;
  constexpr int kChunkDims = room.chunk_dims, kBlockChunk = room.block_chunk(), kChunkPitch = room.chunk_pitch(),
                kKeyBytes = room.key_bytes();
  extern __shared__ __align__(128) uint8_t staged[];  // first values, then keys: [warp][slot][block of two]
  float* const query = reinterpret_cast<float*>(staged + kOwn * kValueSlot + kKeyBytes);  // [row, head][dimension]
  float* const weight = query + kAll * kMaxDim;  // [row, head][position]: scores, then exp(score - m)
  __shared__ float largest[kAll][kSpanBlocks], sums[kAll][kSpanBlocks], factor[kAll][kSpanBlocks];
  __shared__ float running[kAll], total[kAll];
  __shared__ __align__(8) uint64_t keys_here[kWarps][kKeySlots], values_here[kSlots], values_read[kSlots];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const HeadShape& shape = task.shape;
  const int dim = shape.dim, group = shape.query_heads / shape.kv_heads;
  const int kv_head = blockIdx.y / task.head_groups, head_group = blockIdx.y % task.head_groups;
  const int first_head = kv_head * group + head_group * kHeads;
  const int heads = min(kHeads, (kv_head + 1) * group - first_head);
  if (lane == 0) {
    for (int s = 0; s < kKeySlots; ++s) barrier_init(keys_here[warp][s], kRequesters);
    for (int s = warp; s < kSlots; s += kWarps) {
      barrier_init(values_here[s], kRequesters);
      barrier_init(values_read[s], kWarps);
    }
    fence_barriers();
  }
  const LaneDesc owner = task.pass.lanes[0];  // from the host: it is there before the kernel before ends
  const int64_t first_row = task.first_row + static_cast<int64_t>(blockIdx.z) * kRows,
                begin = static_cast<int64_t>(blockIdx.x) * kSpanTokens;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kRows), end_row - first_row));
  // Visible positions of this span.
  const auto count_of = [&](int r) {
    const int64_t visible = owner.prefix + first_row + r - owner.first_row + 1 - begin;
    return r < rows && visible > 0 ? static_cast<int>(min(static_cast<int64_t>(kSpanTokens), visible)) : 0;
  };
  const auto blocks_of = [](int count) { return (count + kPageTokens - 1) / kPageTokens; };
  const int used = blocks_of(count_of(rows - 1));
  if (lane < used) into_l1(owner.pages + begin / kPageTokens + lane);
  begin_kernel();
  if (used == 0) return;
  const size_t key_at = task.layout.key_offset(task.layer, kv_head),
               value_at = task.layout.value_offset(task.layer, kv_head);
  const auto page_of = [&](int b) { return reinterpret_cast<const std::byte*>(owner.pages[begin / kPageTokens + b]); };
  const auto request_values = [&](int b) {  // by the requesters
    if (b >= used) return;
    const uint32_t bytes = static_cast<uint32_t>(dim * kPageTokens * 2);
    barrier_expect(values_here[b % kSlots], bytes);
    bulk_copy(shared_address(staged + b % kSlots * kValueSlot), page_of(b) + value_at, bytes,
              shared_address(&values_here[b % kSlots]));
    barrier_requested(values_here[b % kSlots]);
  };
  uint8_t* const keys = staged + kOwn * kValueSlot + warp * kKeySlots * 2 * kChunkPitch;
  const int chunks = dim / kChunkDims;
  const auto request_keys = [&](int chunk) {  // by a warp's requesters
    uint8_t* const to = keys + chunk % kKeySlots * 2 * kChunkPitch;
    uint64_t& here = keys_here[warp][chunk % kKeySlots];
    const int count = min(2, used - 2 * warp);
    barrier_expect(here, static_cast<uint32_t>(count * kBlockChunk));
    for (int i = 0; i < count; ++i)
      bulk_copy(shared_address(to + i * kChunkPitch), page_of(2 * warp + i) + key_at + chunk * kBlockChunk, kBlockChunk,
                shared_address(&here));
    barrier_requested(here);
  };
  __syncthreads();  // the barriers are there for all
  if (lane < kRequesters && 2 * warp < used)
    for (int c = 0; c < kKeySlots && c < chunks; ++c) request_keys(c);
  if (threadIdx.x < kRequesters)
    for (int b = 0; b < kOwn; ++b) request_values(b);
  // Rows and heads that do not exist read others' and are not written.
  const auto query_of = [&](int q) {
    const int r = min(q / kHeads, rows - 1), h = min(q % kHeads, heads - 1);
    return task.queries.data + (first_row + r) * task.queries.stride + static_cast<int64_t>(first_head + h) * dim;
  };
  if (task.queries.stride % 4 == 0 && reinterpret_cast<uint64_t>(task.queries.data) % 16 == 0) {
    for (int i = threadIdx.x; i < kAll * dim / 4; i += kThreads) {
      const int q = i / (dim / 4), d = i % (dim / 4) * 4;
      copy_16(shared_address(query + q * kMaxDim + d), query_of(q) + d);
    }
    commit_copies();
    wait_copies<0>();
  } else {
    for (int i = threadIdx.x; i < kAll * dim; i += kThreads)
      query[i / dim * kMaxDim + i % dim] = query_of(i / dim)[i % dim];
  }
  const float head_scale = inverse_root(static_cast<float>(dim));
  __syncthreads();

  // Scores: a lane eight positions of the warp's two blocks, and a row.
  if (2 * warp < used) {
    const int r = lane / 8, eight = lane % 8, b = 2 * warp + eight / 4, count = count_of(r);
    const float* const from_query = query + r * kHeads * kMaxDim;
    float score[kHeads][8] = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      barrier_wait(keys_here[warp][chunk % kKeySlots], static_cast<uint32_t>(chunk / kKeySlots & 1));
      const uint8_t* from =
          keys + chunk % kKeySlots * 2 * kChunkPitch + (b < used ? eight / 4 : 0) * kChunkPitch + eight % 4 * 16;
#pragma unroll 2
      for (int d = 0; d < kChunkDims; d += 4) {
        float4 q[kHeads];
#pragma unroll
        for (int h = 0; h < kHeads; ++h)
          q[h] = *reinterpret_cast<const float4*>(from_query + h * kMaxDim + chunk * kChunkDims + d);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint4 k = *reinterpret_cast<const uint4*>(from + (d + i) * kPageTokens * 2);
          const float kk[8] = {low_half(k.x), high_half(k.x), low_half(k.y), high_half(k.y),
                               low_half(k.z), high_half(k.z), low_half(k.w), high_half(k.w)};
#pragma unroll
          for (int h = 0; h < kHeads; ++h) {
            const float qq = i == 0 ? q[h].x : i == 1 ? q[h].y : i == 2 ? q[h].z : q[h].w;
#pragma unroll
            for (int j = 0; j < 8; ++j) score[h][j] = fma(qq, kk[j], score[h][j]);
          }
        }
      }
      __syncwarp();
      if (lane < kRequesters && chunk + kKeySlots < chunks) request_keys(chunk + kKeySlots);
    }
    const int t = b * kPageTokens + eight % 4 * 8;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int at = r * kHeads + h;
      float m = -infinity();  // std::max(m, score) over ascending positions: a NaN never replaces a number
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float& s = score[h][j];
        s = t + j < count ? __fmul_rn(s, head_scale) : -infinity();
        m = m < s ? s : m;
      }
      if (b < used) {
        float4* to = reinterpret_cast<float4*>(weight + at * kSpanTokens + t);
        to[0] = make_float4(score[h][0], score[h][1], score[h][2], score[h][3]);
        to[1] = make_float4(score[h][4], score[h][5], score[h][6], score[h][7]);
      }
      for (int s = 1; s < 4; s *= 2) {
        const float other = __shfl_xor_sync(0xFFFFFFFFu, m, s);
        m = m < other ? other : m;
      }
      if (eight % 4 == 0 && b < used) largest[at][b] = m;
    }
  }
  fence_copies();
  __syncthreads();
  if (threadIdx.x < kRequesters)  // the keys' room is free
    for (int b = kOwn; b < kSlots; ++b) request_values(b);

  if (threadIdx.x < kAll) {
    const int q = threadIdx.x;
    running[q] = carry_maxima(largest[q], factor[q], blocks_of(count_of(q / kHeads)));
  }
  __syncthreads();
  // Two heads at a time: the halves of a warp fold one each.
  for (int b = warp; b < used; b += kWarps) {
    const int t = b * kPageTokens + lane;
#pragma unroll 4
    for (int q = 0; q < kAll; q += 2) {
      const int count = count_of(q / kHeads);  // heads of a row are even in number
      float p[2], pair[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& at = weight[(q + i) * kSpanTokens + t];
        p[i] = t < count ? exp(__fsub_rn(at, largest[q + i][b])) : 0.0f;
        at = p[i];
        pair[i] = __fadd_rn(p[i], __shfl_xor_sync(0xFFFFFFFFu, p[i], 16));
      }
      float sum = lane < 16 ? pair[0] : pair[1];
      for (int s = 8; s > 0; s /= 2) sum = __fadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, s, 16));
      if (lane % 16 == 0) sums[q + lane / 16][b] = sum;
    }
  }
  __syncthreads();
  if (threadIdx.x < kAll) {
    const int q = threadIdx.x;
    total[q] = carry_sums(sums[q], factor[q], blocks_of(count_of(q / kHeads)));
  }

  // Values: two warps a row, a lane four dimensions of every head.
  const int r = warp / 2, d = (warp % 2 * 32 + lane) * 4, count = count_of(r), own = blocks_of(count);
  const bool active = d < dim;
  float sum[kHeads][4] = {};
  for (int b = 0; b < used; ++b) {
    const int slot = b % kSlots;
    barrier_wait(values_here[slot], static_cast<uint32_t>(b / kSlots & 1));
    if (active && b < own) {
      const float* const from_weight = weight + r * kHeads * kSpanTokens + b * kPageTokens;
      const uint8_t* const from = staged + slot * kValueSlot + d * 2;
      const int last = min(count - b * kPageTokens, kPageTokens);
#pragma unroll
      for (int h = 0; h < kHeads; ++h)
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[h][k] = __fmul_rn(sum[h][k], factor[r * kHeads + h][b]);
      const auto add = [&](int first, auto whole) {
        uint2 v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = *reinterpret_cast<const uint2*>(from + (first + j) * dim * 2);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const float4 four = *reinterpret_cast<const float4*>(from_weight + h * kSpanTokens + first);
          const float w[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            if (!decltype(whole)::value && first + j >= last) break;
            sum[h][0] = fma(w[j], low_half(v[j].x), sum[h][0]);
            sum[h][1] = fma(w[j], high_half(v[j].x), sum[h][1]);
            sum[h][2] = fma(w[j], low_half(v[j].y), sum[h][2]);
            sum[h][3] = fma(w[j], high_half(v[j].y), sum[h][3]);
          }
        }
      };
      if (last == kPageTokens) {
#pragma unroll 2
        for (int first = 0; first < kPageTokens; first += 4) add(first, std::true_type{});
      } else {
        for (int first = 0; first < last; first += 4) add(first, std::false_type{});
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(values_read[slot]);
    const int before = b - 1;
    if (threadIdx.x < kRequesters && before >= 0 && before + kSlots < used) {
      barrier_wait(values_read[before % kSlots], static_cast<uint32_t>(before / kSlots & 1));
      request_values(before + kSlots);
    }
  }
  __syncthreads();  // totals
  if (!active || count == 0) return;
  const int64_t row = first_row + r, visible = begin + count;
  const bool alone = begin == 0 && owner.prefix + row - owner.first_row + 1 == visible;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h >= heads) continue;
    const int64_t head = first_head + h;
    const float m = running[r * kHeads + h], l = total[r * kHeads + h];
    if (alone) {
#pragma unroll
      for (int k = 0; k < 4; ++k) put_result(task, row, head, d + k, sum[h][k], l);
      continue;
    }
    float* to =
        task.partial + (((row - task.first_row) * shape.query_heads + head) * task.spans + blockIdx.x) * (dim + 2);
    if (d == 0) to[0] = m, to[1] = l;
#pragma unroll
    for (int k = 0; k < 4; ++k) to[2 + d + k] = sum[h][k];
  }
}

template <int kHeads, bool kSmall = false>
void launch(SpanTask task, int group, int rows, Queue& queue) {
  task.head_groups = (group + kHeads - 1) / kHeads;
  constexpr int kBytes = kRoom<kHeads, kSmall>.bytes() + kQueries<kHeads> * (kMaxDim + kSpanTokens) * 4;
  Launch{dim3(static_cast<unsigned>(task.spans), static_cast<unsigned>(task.shape.kv_heads * task.head_groups),
              static_cast<unsigned>((rows + kRows - 1) / kRows)),
         kThreads, kBytes, queue}(prompt_span_kernel<kHeads, kSmall>, task, task.first_row + rows);
}

constexpr int kManyRows = 33;  // that always share

}  // namespace

bool run_prompt_spans(const SpanTask& task, int rows, Queue& queue) {
  if (!task.pass.one_chain || task.layout.format != KvFormat::kBF16 ||
      task.shape.dim % large_prompt(1).chunk_dims != 0 || task.shape.dim > kMaxDim)
    return false;
  if (rows < kRows) return false;
  const int group = task.shape.query_heads / task.shape.kv_heads;
  const double blocks = span_blocks(task.spans, task.shape.kv_heads);
  const SpanPlan plan = plan_prompt_spans(group, blocks * ((rows + kRows - 1) / kRows), queue.limits());
  if (plan.heads == 0) return false;
  if (rows < kManyRows && plan.cost > plan_staged_spans(group, blocks * rows, queue.limits()).cost) return false;
  if (plan.small && plan.heads == 2) launch<2, true>(task, group, rows, queue);
  else if (plan.small) launch<4, true>(task, group, rows, queue);
  else if (plan.heads == 2) launch<2>(task, group, rows, queue);
  else if (plan.heads == 4) launch<4>(task, group, rows, queue);
  else if (plan.heads == 6) launch<6>(task, group, rows, queue);
  else launch<8>(task, group, rows, queue);
  return true;
}

}  // namespace foretoken::cuda
