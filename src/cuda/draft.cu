// Convolution, greatest-of lists and lattice edges of block drafters, in the order of ops/draft.cc.
#include "cuda/device.cuh"
#include "cuda/kernels.h"

namespace foretoken::cuda {
namespace {

__global__ void conv_kernel(Rows x, Rows base, Rows delta, int group, const BlockLaneDesc* lanes, Rows out) {
  begin_kernel();
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, groups = x.cols / group;
  if (c >= x.cols) return;
  const BlockLaneDesc lane = lanes[blockIdx.y];
  for (int t = 0; t < lane.rows; ++t) {
    const int64_t row = lane.first_row + int64_t{t};
    float acc = 0;
    for (int64_t j = 0; j < base.rows && j <= t; ++j)
      acc = fma(__fadd_rn(base.data[j * base.stride + c], delta.data[row * delta.stride + j * groups + c / group]),
                x.data[(row - j) * x.stride + c], acc);
    out.data[row * out.stride + c] = acc;
  }
}

// ---- The k greatest of a row: each of kTopBlocks blocks finds those of its share, then one block those of the shares.
// A candidate's rank is its value, then the lower id: a total order, so how the row was shared does not show.

constexpr int kTopThreads = 256;
constexpr int kTopBlocks = 32;

struct Candidate {
  float value;
  int32_t id;
};

FORETOKEN_DEVICE bool outranks(const Candidate& a, const Candidate& b) {
  if (b.id < 0) return a.id >= 0;
  if (a.id < 0) return false;
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

// k rounds: the greatest candidate that ranks after the round before's. `read(i)` gives candidate i of `count`. A thread
// remembers the greatest of its own that is left, and looks again only when that was taken.
template <class Read, class Write>
FORETOKEN_DEVICE void select_greatest(int count, int k, Read read, Write write) {
  __shared__ Candidate warps[2][kTopThreads / 32];
  Candidate last{0, -1}, own{0, -1};
  for (int round = 0; round < k; ++round) {
    if (round == 0 || own.id == last.id) {
      own = {0, -1};
#pragma unroll 8
      for (int i = threadIdx.x; i < count; i += kTopThreads) {
        const Candidate c = read(i);
        if (c.id >= 0 && (round == 0 || outranks(last, c)) && outranks(c, own)) own = c;
      }
    }
    Candidate best = own;
    const auto fold = [&](int s) {
      const Candidate other{__shfl_xor_sync(0xFFFFFFFFu, best.value, s), __shfl_xor_sync(0xFFFFFFFFu, best.id, s)};
      if (outranks(other, best)) best = other;
    };
    for (int s = 16; s > 0; s /= 2) fold(s);
    if ((threadIdx.x & 31) == 0) warps[round & 1][threadIdx.x >> 5] = best;
    __syncthreads();  // the other half is read in the next round: one barrier a round
    best = warps[round & 1][threadIdx.x % (kTopThreads / 32)];
    for (int s = kTopThreads / 64; s > 0; s /= 2) fold(s);
    last = best;
    if (threadIdx.x == 0) write(round, best);
  }
}

__global__ void __launch_bounds__(kTopThreads) share_kernel(Rows logits, int k, Candidate* shares) {
  begin_kernel();
  const float* row = logits.data + blockIdx.y * logits.stride;
  const int64_t begin = logits.cols * blockIdx.x / kTopBlocks, end = logits.cols * (blockIdx.x + 1) / kTopBlocks;
  Candidate* to = shares + (static_cast<int64_t>(blockIdx.y) * kTopBlocks + blockIdx.x) * k;
  select_greatest(
      static_cast<int>(end - begin), k,
      [&](int i) {
        const float v = row[begin + i];
        return Candidate{v != v ? -infinity() : v, static_cast<int32_t>(begin + i)};
      },
      [&](int round, const Candidate& c) { to[round] = c; });
}

__global__ void __launch_bounds__(kTopThreads) merge_kernel(const Candidate* shares, int k, int32_t* ids, Rows values) {
  begin_kernel();
  const Candidate* from = shares + static_cast<int64_t>(blockIdx.x) * kTopBlocks * k;
  select_greatest(
      kTopBlocks * k, k, [&](int i) { return from[i]; },
      [&](int round, const Candidate& c) {
        ids[static_cast<int64_t>(blockIdx.x) * k + round] = c.id;
        values.data[blockIdx.x * values.stride + round] = c.value;
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

void launch_block_conv(Rows x, Rows base, Rows delta, int group, const BlockLaneDesc* lanes, int lane_count, Rows out,
                       Queue& queue) {
  Launch{dim3(static_cast<unsigned>((x.cols + 127) / 128), static_cast<unsigned>(lane_count)), 128, 0, queue}(
      conv_kernel, x, base, delta, group, lanes, out);
}

size_t top_k_scratch_bytes(int64_t rows, int k) {
  return static_cast<size_t>(rows) * kTopBlocks * static_cast<size_t>(k) * sizeof(Candidate);
}

void launch_top_k(Rows logits, int k, void* scratch, int32_t* ids, Rows values, Queue& queue) {
  Candidate* shares = static_cast<Candidate*>(scratch);
  Launch{dim3(kTopBlocks, static_cast<unsigned>(logits.rows)), kTopThreads, 0, queue}(share_kernel, logits, k, shares);
  Launch{static_cast<unsigned>(logits.rows), kTopThreads, 0, queue}(merge_kernel, shares, k, ids, values);
}

void launch_selector_edges(Rows weights, Rows predecessors, Rows successors, Rows edges, Queue& queue) {
  const int64_t count = edges.rows * edges.cols;
  Launch{static_cast<unsigned>((count + 3) / 4), 128, 0, queue}(edges_kernel, weights, predecessors, successors, edges);
}

}  // namespace foretoken::cuda
