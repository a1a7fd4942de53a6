// Convolution, greatest-of lists and lattice edges of block drafters, in the order of ops/draft.cc.
#include "cuda/device.cuh"
#include "cuda/kernels.h"

namespace foretoken::cuda {
namespace {

// A thread an element; the lane's rows lie along the grid's second axis.
__global__ void __launch_bounds__(128)
    conv_kernel(Rows x, Rows base, Rows delta, int group, const BlockLaneDesc* lanes, Rows out, uint16_t* bf16) {
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, groups = x.cols / group;
  const BlockLaneDesc lane = lanes[blockIdx.z];
  const int t = blockIdx.y;
  begin_kernel();
  if (c >= x.cols || t >= lane.rows) return;
  const int64_t row = lane.first_row + int64_t{t};
  float acc = 0;
#pragma unroll 2
  for (int64_t j = 0; j < base.rows && j <= t; ++j)
    acc = fma(__fadd_rn(base.data[j * base.stride + c], delta.data[row * delta.stride + j * groups + c / group]),
              x.data[(row - j) * x.stride + c], acc);
  out.data[row * out.stride + c] = acc;
  if (bf16) bf16[row * out.cols + c] = __bfloat16_as_ushort(to_bf16(acc));
}

// ---- The k greatest of a row: each block of threads finds those of its share, then one block those of the shares. A
// candidate's rank is its value, then the lower id: a total order, so how the row was shared does not show.

constexpr int kTopThreads = 256, kTopWarps = kTopThreads / 32;
constexpr int kShareColumns = 31 * kTopThreads;  // of a share
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

// k rounds, in each of which the greatest of what all threads have left is taken. A thread keeps its own in registers.
template <int kOwn, class Write>
FORETOKEN_DEVICE void take_greatest(unsigned long long (&own)[kOwn], int k, Write write) {
  __shared__ unsigned long long warps[2][kTopWarps];
  const auto greatest_of_own = [&] {
    unsigned long long best[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) best[i] = own[i];
#pragma unroll
    for (int step = 1; step < kOwn; step *= 2)
#pragma unroll
      for (int i = 0; i + step < kOwn; i += 2 * step) best[i] = max(best[i], best[i + step]);
    return best[0];
  };
  unsigned long long mine = greatest_of_own();
  for (int round = 0; round < k; ++round) {
    unsigned long long best = mine;
    for (int s = 16; s > 0; s /= 2) best = max(best, __shfl_xor_sync(0xFFFFFFFFu, best, s));
    if ((threadIdx.x & 31) == 0) warps[round & 1][threadIdx.x >> 5] = best;
    __syncthreads();  // the other half is written in the next round: one barrier a round
    best = warps[round & 1][threadIdx.x % kTopWarps];
    for (int s = kTopWarps / 2; s > 0; s /= 2) best = max(best, __shfl_xor_sync(0xFFFFFFFFu, best, s));
    if (mine == best && best != 0) {
      write(round, best);
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        if (own[i] == best) own[i] = 0;
      mine = greatest_of_own();
    }
  }
}

// shares [rows][shares][k]: as many as a share has columns for, the rest 0.
__global__ void __launch_bounds__(kTopThreads) share_kernel(Rows logits, int k, unsigned long long* shares) {
  begin_kernel();
  const float* row = logits.data + blockIdx.y * logits.stride;
  const int64_t begin = blockIdx.x * int64_t{kShareColumns};
  unsigned long long* to = shares + (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * k;
  unsigned long long own[kShareColumns / kTopThreads];
#pragma unroll
  for (int i = 0; i < kShareColumns / kTopThreads; ++i) {
    const int64_t c = begin + threadIdx.x + i * kTopThreads;
    own[i] = c < logits.cols ? rank_of(row[c], static_cast<int>(c)) : 0;
  }
  if (threadIdx.x < static_cast<unsigned>(k) && begin + threadIdx.x >= logits.cols) to[threadIdx.x] = 0;
  take_greatest(own, k, [&](int round, unsigned long long rank) { to[round] = rank; });
}

__global__ void __launch_bounds__(kTopThreads)
    merge_kernel(Rows logits, const unsigned long long* shares, int share_count, int k, int32_t* ids, Rows values) {
  begin_kernel();
  const unsigned long long* from = shares + static_cast<int64_t>(blockIdx.x) * share_count * k;
  unsigned long long own[kMergedOfThread];
#pragma unroll
  for (int i = 0; i < kMergedOfThread; ++i) {
    const int at = threadIdx.x + i * kTopThreads;
    own[i] = at < share_count * k ? from[at] : 0;
  }
  take_greatest(own, k, [&](int round, unsigned long long rank) {
    const int id = id_of(rank);
    const float value = logits.data[blockIdx.x * logits.stride + id];
    ids[static_cast<int64_t>(blockIdx.x) * k + round] = id;
    values.data[blockIdx.x * values.stride + round] = value != value ? -infinity() : value;
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
  Launch{dim3(static_cast<unsigned>(count), static_cast<unsigned>(logits.rows)), kTopThreads, 0, queue}(
      share_kernel, logits, k, shares);
  Launch{static_cast<unsigned>(logits.rows), kTopThreads, 0, queue}(merge_kernel, logits, shares, count, k, ids,
                                                                    values);
}

void launch_selector_edges(Rows weights, Rows predecessors, Rows successors, Rows edges, Queue& queue) {
  const int64_t count = edges.rows * edges.cols;
  Launch{static_cast<unsigned>((count + 3) / 4), 128, 0, queue}(edges_kernel, weights, predecessors, successors, edges);
}

}  // namespace foretoken::cuda
