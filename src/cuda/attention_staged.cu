// Spans of bf16 keys and values, which bulk copies bring into shared memory: whole blocks of 32 positions while they
// are one page, and position by position where a tree's rows are. The order of operations is that of attention.cu.
#include <algorithm>
#include <type_traits>

#include "cuda/attention.cuh"
#include "cuda/bulk.cuh"

namespace foretoken::cuda {
namespace {

constexpr int kWarps = kSpanWarps, kThreads = 32 * kWarps;  // a warp the scores of two blocks
constexpr int kKeySlots = SpanRoom::kKeySlots, kValueSlot = SpanRoom::kValueSlot;
static_assert(kLargeSpans.value_slots() == 12);
static_assert(kSmallSpans.value_slots() == 4);
template <bool kSmall>
constexpr SpanRoom kRoom = kSmall ? kSmallSpans : kLargeSpans;

FORETOKEN_DEVICE float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
FORETOKEN_DEVICE float high_half(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

template <int kHeads, bool kSmall>
__global__ void __launch_bounds__(kThreads, 1) staged_span_kernel(SpanTask task) {
  constexpr SpanRoom room = kRoom<kSmall>;
  constexpr int kChunkDims = room.chunk_dims, kBlockChunk = room.block_chunk(), kChunkPitch = room.chunk_pitch(),
                kFirstValues = room.own_values, kValueSlots = room.value_slots();
  // Blocks of values that are read before the next are requested in their room.
  constexpr int kRefill = kSmall ? kValueSlots / 2 : 8;
  extern __shared__ __align__(128) uint8_t staged[];  // first values, then keys: [warp][slot][block of two]
  __shared__ __align__(16) float query[kHeads][kMaxDim];
  __shared__ __align__(16) float weight[kHeads][kSpanTokens];  // scores, then exp(score - m)
  __shared__ float largest[kHeads][kSpanBlocks], sums[kHeads][kSpanBlocks], factor[kHeads][kSpanBlocks];
  __shared__ float running[kHeads], total[kHeads];
  __shared__ __align__(8) uint64_t keys_here[kWarps][kKeySlots], values_here[kSpanBlocks];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const HeadShape& shape = task.shape;
  const int dim = shape.dim, group = shape.query_heads / shape.kv_heads;
  const int kv_head = blockIdx.y / task.head_groups, head_group = blockIdx.y % task.head_groups;
  const int first_head = kv_head * group + head_group * kHeads;
  const int heads = min(kHeads, (kv_head + 1) * group - first_head);
  if (lane == 0) {
    for (int s = 0; s < kKeySlots; ++s) barrier_init(keys_here[warp][s], kRequesters);
    for (int b = warp; b < kSpanBlocks; b += kWarps) barrier_init(values_here[b], kRequesters);
    fence_barriers();
  }
  // Descriptions come from the host: they are there before the kernel before ends.
  const int64_t row = task.first_row + static_cast<int64_t>(blockIdx.z);
  const RowDesc desc = task.pass.rows[row];
  const LaneDesc owner = task.pass.lanes[desc.lane];
  const int32_t* path = task.pass.paths + desc.path;
  const int64_t visible = owner.prefix + desc.depth + 1, begin = static_cast<int64_t>(blockIdx.x) * kSpanTokens;
  const int count =
      static_cast<int>(min(static_cast<int64_t>(kSpanTokens), visible - begin));  // visible positions here
  const int used = (count + kPageTokens - 1) / kPageTokens;
  if (lane < used) into_l1(owner.pages + begin / kPageTokens + lane);
  begin_kernel();
  if (begin >= visible) return;
  const size_t key_at = task.layout.key_offset(task.layer, kv_head),
               value_at = task.layout.value_offset(task.layer, kv_head);
  const auto page_of = [&](int64_t slot) {
    return reinterpret_cast<const std::byte*>(owner.pages[slot / kPageTokens]);
  };
  const auto in_order = [&](int b) { return owner.chain != 0 || begin + (b + 1) * kPageTokens <= owner.prefix; };
  const auto value_slot = [&](int b) {
    const int s = b % kValueSlots;
    return staged + s * kValueSlot;
  };
  const auto request_values = [&](int b) {  // by the requesters
    if (b >= used || !in_order(b)) return;
    const uint32_t bytes = static_cast<uint32_t>(dim * kPageTokens * 2);
    barrier_expect(values_here[b], bytes);
    bulk_copy(shared_address(value_slot(b)), page_of(begin + b * kPageTokens) + value_at, bytes,
              shared_address(&values_here[b]));
    barrier_requested(values_here[b]);
  };
  uint8_t* const keys = staged + kFirstValues * kValueSlot + warp * kKeySlots * 2 * kChunkPitch;
  const int chunks = dim / kChunkDims;
  const auto request_keys = [&](int chunk) {  // by a warp
    uint8_t* const to = keys + chunk % kKeySlots * 2 * kChunkPitch;
    uint32_t bytes = 0;
    for (int i = 0; i < 2; ++i)
      if (2 * warp + i < used && in_order(2 * warp + i)) bytes += kBlockChunk;
    if (lane < kRequesters) barrier_expect(keys_here[warp][chunk % kKeySlots], bytes);
    for (int i = 0; i < 2; ++i) {
      const int b = 2 * warp + i;
      if (b >= used) continue;
      if (in_order(b)) {
        if (lane < kRequesters)
          bulk_copy(shared_address(to + i * kChunkPitch),
                    page_of(begin + b * kPageTokens) + key_at + chunk * kBlockChunk, kBlockChunk,
                    shared_address(&keys_here[warp][chunk % kKeySlots]));
        continue;
      }
      const int64_t position = begin + b * kPageTokens + lane,
                    slot = slot_of(position < visible ? position : visible - 1, owner.prefix, path);
      const uint16_t* from =
          reinterpret_cast<const uint16_t*>(page_of(slot) + key_at + chunk * kBlockChunk) + slot % kPageTokens;
      uint16_t* own = reinterpret_cast<uint16_t*>(to + i * kChunkPitch) + lane;
#pragma unroll 16
      for (int d = 0; d < kChunkDims; ++d) own[d * kPageTokens] = from[d * kPageTokens];
    }
    if (lane < kRequesters) barrier_requested(keys_here[warp][chunk % kKeySlots]);
    __syncwarp();
  };
  __syncthreads();  // the barriers are there for all
  if (2 * warp < used)
    for (int c = 0; c < kKeySlots && c < chunks; ++c) request_keys(c);
  if (threadIdx.x < kRequesters)
    for (int b = 0; b < kFirstValues; ++b) request_values(b);
  for (int i = threadIdx.x; i < kHeads * dim; i += kThreads) {
    const int h = i / dim, d = i % dim;
    query[h][d] = h < heads
                      ? task.queries.data[row * task.queries.stride + static_cast<int64_t>(first_head + h) * dim + d]
                      : 0.0f;
  }
  const float head_scale = inverse_root(static_cast<float>(dim));
  __syncthreads();

  // Scores: a lane two positions of one of the warp's two blocks.
  if (2 * warp < used) {
    const int half = lane / 16, pair = lane % 16, b = 2 * warp + half;
    float first[kHeads] = {}, second[kHeads] = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      barrier_wait(keys_here[warp][chunk % kKeySlots], static_cast<uint32_t>(chunk / kKeySlots & 1));
      const uint8_t* from = keys + chunk % kKeySlots * 2 * kChunkPitch + (b < used ? half : 0) * kChunkPitch + pair * 4;
#pragma unroll 8
      for (int d = 0; d < kChunkDims; d += 4) {
        uint32_t k[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) k[i] = *reinterpret_cast<const uint32_t*>(from + (d + i) * kPageTokens * 2);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const float4 q = *reinterpret_cast<const float4*>(&query[h][chunk * kChunkDims + d]);
          const float qq[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            first[h] = fma(qq[i], low_half(k[i]), first[h]);
            second[h] = fma(qq[i], high_half(k[i]), second[h]);
          }
        }
      }
      __syncwarp();
      if (chunk + kKeySlots < chunks) request_keys(chunk + kKeySlots);
    }
    const int t = b * kPageTokens + 2 * pair;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float a = t < count ? __fmul_rn(first[h], head_scale) : -infinity(),
                  c = t + 1 < count ? __fmul_rn(second[h], head_scale) : -infinity();
      if (b < used) weight[h][t] = a, weight[h][t + 1] = c;
      float m = -infinity();  // std::max(m, score) over ascending positions: a NaN never replaces a number
      m = m < a ? a : m;
      m = m < c ? c : m;
      for (int s = 8; s > 0; s /= 2) {
        const float other = __shfl_xor_sync(0xFFFFFFFFu, m, s);
        m = m < other ? other : m;
      }
      if (pair == 0 && b < used) largest[h][b] = m;
    }
  }
  fence_copies();
  __syncthreads();
  if (threadIdx.x < kRequesters)  // the keys' room is free
    for (int b = kFirstValues; b < kValueSlots; ++b) request_values(b);

  if (threadIdx.x < kHeads) {
    const int h = threadIdx.x;
    running[h] = carry_maxima(largest[h], factor[h], used);
  }
  __syncthreads();
  for (int b = warp; b < used; b += kWarps) {
    const int t = b * kPageTokens + lane;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float p = t < count ? exp(__fsub_rn(weight[h][t], largest[h][b])) : 0.0f;
      const float pair = __fadd_rn(p, __shfl_down_sync(0xFFFFFFFFu, p, 16));
      const float sum = fold_sum(pair);
      if (lane == 0) sums[h][b] = sum;
      weight[h][t] = p;
    }
  }
  __syncthreads();
  if (threadIdx.x < kHeads) {
    const int h = threadIdx.x;
    total[h] = carry_sums(sums[h], factor[h], used);
  }

  // Values: a thread two dimensions and half of the heads.
  constexpr int kSets = kHeads > 1 ? 2 : 1, kPer = (kHeads + kSets - 1) / kSets;
  const int d = threadIdx.x % (kMaxDim / 2) * 2, set = threadIdx.x / (kMaxDim / 2);
  const bool active = d < dim && set < kSets;
  float even[kPer] = {}, odd[kPer] = {};
  for (int b = 0; b < used; ++b) {
    constexpr bool kOnce = 2 * kRefill >= kSpanBlocks;
    if (kOnce ? b == kRefill : b > 0 && b % kRefill == 0) {  // nobody reads the blocks before any more
      fence_copies();
      __syncthreads();
      if (threadIdx.x < kRequesters)
        for (int later = b - kRefill + kValueSlots; later < min(b + kValueSlots, kSpanBlocks); ++later)
          request_values(later);
    }
    uint8_t* const slot = value_slot(b);
    const int last = min(count - b * kPageTokens, kPageTokens);
    if (in_order(b)) {
      barrier_wait(values_here[b], 0);
    } else {
      for (int i = threadIdx.x; i < last * dim / 2; i += kThreads) {
        const int position = i / (dim / 2), word = i % (dim / 2);
        const int64_t from = slot_of(begin + b * kPageTokens + position, owner.prefix, path);
        reinterpret_cast<uint32_t*>(slot)[i] =
            reinterpret_cast<const uint32_t*>(page_of(from) + value_at + from % kPageTokens * dim * 2)[word];
      }
      __syncthreads();
    }
    if (!active) continue;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int h = set * kPer + i;
      if (h < kHeads) even[i] = __fmul_rn(even[i], factor[h][b]), odd[i] = __fmul_rn(odd[i], factor[h][b]);
    }
    const auto add = [&](int first, int count_here, auto whole) {
      constexpr int kAtOnce = 8;
      uint32_t v[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) v[j] = *reinterpret_cast<const uint32_t*>(slot + ((first + j) * dim + d) * 2);
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        const int h = set * kPer + i;
        if (h >= kHeads) continue;
        const float* from = &weight[h][b * kPageTokens + first];
        float w[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; j += 4) {
          const float4 four = *reinterpret_cast<const float4*>(from + j);
          w[j] = four.x, w[j + 1] = four.y, w[j + 2] = four.z, w[j + 3] = four.w;
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (!decltype(whole)::value && first + j >= count_here) break;
          even[i] = fma(w[j], low_half(v[j]), even[i]);
          odd[i] = fma(w[j], high_half(v[j]), odd[i]);
        }
      }
    };
    if (last == kPageTokens) {
#pragma unroll
      for (int first = 0; first < kPageTokens; first += 8) add(first, last, std::true_type{});
    } else {
      for (int first = 0; first < last; first += 8) add(first, last, std::false_type{});
    }
  }
  __syncthreads();  // totals
  if (!active) return;
  const bool alone = visible <= kSpanTokens;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int h = set * kPer + i;
    if (h >= heads) continue;
    const int64_t head = first_head + h;
    if (alone) {
      put_result(task, row, head, d, even[i], total[h]);
      put_result(task, row, head, d + 1, odd[i], total[h]);
      continue;
    }
    float* to = task.partial +
                ((static_cast<int64_t>(blockIdx.z) * shape.query_heads + head) * task.spans + blockIdx.x) * (dim + 2);
    if (d == 0) {
      to[0] = running[h];
      to[1] = total[h];
    }
    to[2 + d] = even[i];
    to[3 + d] = odd[i];
  }
}

template <int kHeads, bool kSmall>
void launch_in(SpanTask task, int group, int rows, Queue& queue) {
  task.head_groups = (group + kHeads - 1) / kHeads;
  Launch{dim3(static_cast<unsigned>(task.spans), static_cast<unsigned>(task.shape.kv_heads * task.head_groups),
              static_cast<unsigned>(rows)),
         kThreads, kRoom<kSmall>.bytes(), queue}(staged_span_kernel<kHeads, kSmall>, task);
}

template <int kHeads>
void launch(const SpanTask& task, int group, int rows, bool small, Queue& queue) {
  if (small) launch_in<kHeads, true>(task, group, rows, queue);
  else launch_in<kHeads, false>(task, group, rows, queue);
}

}  // namespace

bool run_staged_spans(const SpanTask& task, int rows, Queue& queue) {
  if (task.layout.format != KvFormat::kBF16 || task.shape.dim % kLargeSpans.chunk_dims != 0 || task.shape.dim > kMaxDim)
    return false;
  const int group = task.shape.query_heads / task.shape.kv_heads;
  const SpanPlan plan = plan_staged_spans(group, span_blocks(task.spans, task.shape.kv_heads) * rows, queue.limits());
  switch (plan.heads) {
    case 1:
      launch<1>(task, group, rows, plan.small, queue);
      break;
    case 2:
      launch<2>(task, group, rows, plan.small, queue);
      break;
    case 3:
      launch<3>(task, group, rows, plan.small, queue);
      break;
    case 4:
      launch<4>(task, group, rows, plan.small, queue);
      break;
    case 6:
      launch<6>(task, group, rows, plan.small, queue);
      break;
    case 8:
      launch<8>(task, group, rows, plan.small, queue);
      break;
    default:
      return false;
  }
  return true;
}

}  // namespace foretoken::cuda
