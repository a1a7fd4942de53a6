// Convolution, greatest-of lists and lattice edges of block drafters, in the order of ops/draft.cc.
#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "cuda/quant_device.cuh"

namespace foretoken::cuda {
namespace {

// A thread an element; the lane's rows lie along the grid's second axis.
__global__ void __launch_bounds__(128)
    conv_kernel(Rows x, Rows base, Rows delta, int group, const BlockLaneDesc* lanes, Rows out, uint16_t* bf16) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), cols = static_cast<int>(x.cols);
  const BlockLaneDesc lane = lanes[blockIdx.z];
  const int t = blockIdx.y, groups = cols / group, own_group = c / group;
  begin_kernel();
  if (c >= cols || t >= lane.rows) return;
  const int64_t row = lane.first_row + int64_t{t};
  const float *from = x.data + row * x.stride + c, *fixed = base.data + c,
              *more = delta.data + row * delta.stride + own_group;
  const int taps = min(static_cast<int>(base.rows), t + 1);
  float acc = 0;
#pragma unroll 2
  for (int j = 0; j < taps; ++j) {
    acc = fma(__fadd_rn(*fixed, *more), *from, acc);
    from -= x.stride, fixed += base.stride, more += groups;
  }
  out.data[row * out.stride + c] = acc;
  if (bf16) bf16[row * out.cols + c] = __bfloat16_as_ushort(to_bf16(acc));
}

// ---- The k greatest of a row: each block of threads finds those of its share, then one block those of the shares. A
// candidate's rank is its value, then the lower id: a total order, so how the row was shared does not show.

constexpr int kTopThreads = 256;
constexpr int kShareFours = 8;  // of a thread, four columns each
constexpr int kShareColumns = 4 * kShareFours * kTopThreads;
constexpr int kMergedOfThread = 16;

// Orders as (value, lower id) does, NaN with -infinity; no candidate is 0.
FORETOKEN_DEVICE unsigned long long rank_of(float value, int id) {
  const uint32_t bits = __float_as_uint(value != value ? -infinity() : __fadd_rn(value, 0.0f));
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(id));
}
FORETOKEN_DEVICE int id_of(unsigned long long rank) {
  return static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(rank));
}

// Every thread has some candidates, `mine` the greatest of them (0: none). The k-th greatest of what threads have
// greatest is no greater than the k-th of all: only k threads have anything from there on, which each(take) names
// again, kOwn at most, and few have more than one. Those that are left find their places by counting what is greater.
template <int kOwn, class Each, class Write>
FORETOKEN_DEVICE void take_greatest(unsigned long long mine, int k, Each each, Write write) {
  __shared__ __align__(16) unsigned long long of_threads[kTopThreads];
  __shared__ unsigned long long least, left[kMaxTopK * kOwn];
  __shared__ int count;
  of_threads[threadIdx.x] = mine;
  if (threadIdx.x == 0) least = 1, count = 0;
  __syncthreads();
  int greater = 0;
#pragma unroll 4
  for (int i = 0; i < kTopThreads; i += 2) {
    const ulonglong2 two = *reinterpret_cast<const ulonglong2*>(of_threads + i);
    greater += (two.x > mine) + (two.y > mine);
  }
  if (greater == k - 1 && mine != 0) least = mine;
  __syncthreads();
  if (mine >= least) {
    each([&](unsigned long long rank) {
      if (rank >= least) left[atomicAdd(&count, 1)] = rank;
    });
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kTopThreads) {
    int place = 0;
    for (int j = 0; j < count; ++j) place += left[j] > left[i];
    if (place < k) write(place, left[i]);
  }
}

// shares [rows][shares][k]: as many as a share has columns for, the rest 0. kAligned: rows are whole fours.
template <bool kAligned>
__global__ void __launch_bounds__(kTopThreads) share_kernel(Rows logits, int k, unsigned long long* shares) {
  begin_kernel();
  const float* row = logits.data + blockIdx.y * logits.stride;
  const int cols = static_cast<int>(logits.cols), begin = static_cast<int>(blockIdx.x) * kShareColumns;
  unsigned long long* to = shares + (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * k;
  const auto column = [&](int i) { return begin + 4 * (static_cast<int>(threadIdx.x) + i * kTopThreads); };
  const auto four_at = [&](int c) {
    if constexpr (kAligned) return *reinterpret_cast<const float4*>(row + c);
    return make_float4(row[c], row[min(c + 1, cols - 1)], row[min(c + 2, cols - 1)], row[min(c + 3, cols - 1)]);
  };
  const auto ranks_of = [&](float4 v, int c, auto take) {
    take(rank_of(v.x, c));
    if (kAligned || c + 1 < cols) take(rank_of(v.y, c + 1));
    if (kAligned || c + 2 < cols) take(rank_of(v.z, c + 2));
    if (kAligned || c + 3 < cols) take(rank_of(v.w, c + 3));
  };
  float4 own[kShareFours];
#pragma unroll
  for (int i = 0; i < kShareFours; ++i)
    if (column(i) < cols) own[i] = four_at(column(i));
  unsigned long long mine = 0;
#pragma unroll
  for (int i = 0; i < kShareFours; ++i)
    if (column(i) < cols) ranks_of(own[i], column(i), [&](unsigned long long rank) { mine = max(mine, rank); });
  if (threadIdx.x < static_cast<unsigned>(k) && begin + static_cast<int>(threadIdx.x) >= cols) to[threadIdx.x] = 0;
  const auto each = [&](auto take) {  // read again: few threads come here
#pragma unroll 1
    for (int i = 0; i < kShareFours; ++i)
      if (column(i) < cols) ranks_of(four_at(column(i)), column(i), take);
  };
  take_greatest<4 * kShareFours>(mine, k, each, [&](int place, unsigned long long rank) { to[place] = rank; });
}

__global__ void __launch_bounds__(kTopThreads)
    merge_kernel(Rows logits, const unsigned long long* shares, int share_count, int k, int32_t* ids, Rows values) {
  begin_kernel();
  const unsigned long long* from = shares + static_cast<int64_t>(blockIdx.x) * share_count * k;
  const int count = share_count * k;
  unsigned long long mine = 0;
#pragma unroll 4
  for (int at = threadIdx.x; at < count; at += kTopThreads) mine = max(mine, from[at]);
  const auto each = [&](auto take) {
    for (int at = threadIdx.x; at < count; at += kTopThreads) take(from[at]);
  };
  take_greatest<kMergedOfThread>(mine, k, each, [&](int place, unsigned long long rank) {
    const int id = id_of(rank);
    const float value = logits.data[blockIdx.x * logits.stride + id];
    ids[static_cast<int64_t>(blockIdx.x) * k + place] = id;
    values.data[blockIdx.x * values.stride + place] = value != value ? -infinity() : value;
  });
}

// One warp an edge: canonical::dot16 of the successor with predecessor times weight.
__global__ void __launch_bounds__(128) edges_kernel(Rows weights, Rows predecessors, Rows successors, Rows edges) {
  begin_kernel();
  const int lane = threadIdx.x & 31;
  const int64_t k = edges.cols, item = blockIdx.x * int64_t{4} + (threadIdx.x >> 5);
  if (item >= edges.rows * k) return;
  const int64_t row = item / k, slot = row / k, successor = slot * k + item % k;
  const float* p = predecessors.data + row * predecessors.stride;
  const float* w = weights.data + slot * weights.stride;
  const float* s = successors.data + successor * successors.stride;
  float sum = 0;
  if (lane < 16)
    for (int64_t i = 0; i < weights.cols; i += 16) {
      const bool inside = i + lane < weights.cols;
      sum = fma(inside ? s[i + lane] : 0.0f, inside ? __fmul_rn(p[i + lane], w[i + lane]) : 0.0f, sum);
    }
  sum = fold_sum(sum);
  if (lane == 0) edges.data[row * edges.stride + item % k] = sum;
}

// The same of tokens that only the device knows. A block of threads takes one predecessor and all successors of its
// slot, sixteen at a time by half a warp each; ranks of the tables are decoded by pieces.
constexpr int kLatticeThreads = 256, kLatticeEdges = kLatticeThreads / 16, kLatticeRanks = 256;
__global__ void __launch_bounds__(kLatticeThreads)
    lattice_kernel(Rows weights, TokenTable predecessor, TokenTable successor, const int32_t* ids,
                   const int32_t* anchors, Rows edges) {
  __shared__ float before[kLatticeRanks], after[kLatticeEdges][kLatticeRanks + 1];
  const int k = static_cast<int>(edges.cols), rank = static_cast<int>(weights.cols), row = static_cast<int>(blockIdx.x),
            slot = row / k;
  const int32_t anchor = anchors[slot];  // the host's: it is there before the kernel before ends
  begin_kernel();
  const TokenRow from = token_row(predecessor, anchor < 0 ? ids[row - k] : anchor);
  const int edge = static_cast<int>(threadIdx.x) / 16, part = static_cast<int>(threadIdx.x) % 16;
#pragma unroll 1
  for (int first = 0; first < k; first += kLatticeEdges) {
    const bool exists = first + edge < k;
    float sum = 0;
#pragma unroll 1
    for (int begin = 0; begin < rank; begin += kLatticeRanks) {
      const int count = min(kLatticeRanks, rank - begin);
      __syncthreads();
      if (exists) {
        const TokenRow to = token_row(successor, ids[slot * k + first + edge]);
#pragma unroll 4
        for (int i = part; i < count; i += 16) after[edge][i] = to[begin + i];
      }
      if (static_cast<int>(threadIdx.x) < count)
        before[threadIdx.x] = __fmul_rn(from[begin + static_cast<int>(threadIdx.x)],
                                        weights.data[slot * weights.stride + begin + threadIdx.x]);
      __syncthreads();
      if (!exists) continue;
      for (int i = part; i < (count + 15) / 16 * 16; i += 16)  // what is not there is a product of zeros
        sum = fma(i < count ? after[edge][i] : 0.0f, i < count ? before[i] : 0.0f, sum);
    }
    for (int s = 8; s > 0; s /= 2) sum = __fadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, s, 16));
    if (exists && part == 0) edges.data[row * edges.stride + first + edge] = sum;
  }
}
static_assert(kLatticeRanks <= kLatticeThreads && kLatticeRanks % 16 == 0);

}  // namespace

void launch_block_conv(Rows x, Rows base, Rows delta, int group, const BlockLaneDesc* lanes, int lane_count, int rows,
                       Rows out, uint16_t* bf16, Queue& queue) {
  Launch{
      dim3(static_cast<unsigned>((x.cols + 127) / 128), static_cast<unsigned>(rows), static_cast<unsigned>(lane_count)),
      128, 0, queue}(conv_kernel, x, base, delta, group, lanes, out, bf16);
}

namespace {

constexpr int shares_of(int64_t cols) { return static_cast<int>((cols + kShareColumns - 1) / kShareColumns); }
static_assert(shares_of(kMostTopColumns) * kMaxTopK <= kMergedOfThread * kTopThreads);

}  // namespace

size_t top_k_scratch_bytes(int64_t rows, int64_t cols, int k) {
  return static_cast<size_t>(rows) * static_cast<size_t>(shares_of(cols) * k) * sizeof(unsigned long long);
}

void launch_top_k(Rows logits, int k, void* scratch, int32_t* ids, Rows values, Queue& queue) {
  auto* shares = static_cast<unsigned long long*>(scratch);
  const int count = shares_of(logits.cols);
  const bool fours =
      reinterpret_cast<uintptr_t>(logits.data) % 16 == 0 && logits.stride % 4 == 0 && logits.cols % 4 == 0;
  Launch{dim3(static_cast<unsigned>(count), static_cast<unsigned>(logits.rows)), kTopThreads, 0, queue}(
      fours ? share_kernel<true> : share_kernel<false>, logits, k, shares);
  Launch{static_cast<unsigned>(logits.rows), kTopThreads, 0, queue}(merge_kernel, logits, shares, count, k, ids,
                                                                    values);
}

void launch_selector_edges(Rows weights, Rows predecessors, Rows successors, Rows edges, Queue& queue) {
  const int64_t count = edges.rows * edges.cols;
  Launch{static_cast<unsigned>((count + 3) / 4), 128, 0, queue}(edges_kernel, weights, predecessors, successors, edges);
}

void launch_lattice_edges(Rows weights, const TokenTable& predecessor, const TokenTable& successor, const int32_t* ids,
                          const int32_t* anchors, Rows edges, Queue& queue) {
  Launch{static_cast<unsigned>(edges.rows), kLatticeThreads, 0, queue}(lattice_kernel, weights, predecessor, successor,
                                                                       ids, anchors, edges);
}

}  // namespace foretoken::cuda
