// Routing on the device: ranks, weights, and the pairs (row, rank) in the order of their experts. Placement uses no atomics: a pair's
// place is the number of pairs before it, so the lists are the same in every run; bits of a row would not depend on them anyway.
#include "cuda/device.cuh"
#include "cuda/kernels.h"

namespace foretoken::cuda {
namespace {

// True when logit a of expert i ranks before logit b of expert j.
FORETOKEN_DEVICE bool outranks(float a, int i, float b, int j) {
  const bool a_nan = a != a, b_nan = b != b;
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && a != b) return a > b;
  return i < j;
}

constexpr int kMaxTopExperts = 32;
constexpr int kMaxPerLane = 16;  // logits of one lane: up to 512 experts

// A warp a row: top_k rounds of a greatest-of over the experts not taken. Lane l holds experts l, l + 32, ...
__global__ void __launch_bounds__(32) route_kernel(Rows logits, int top_k, Routing routing) {
  begin_kernel();
  __shared__ float chosen_value[kMaxTopExperts];
  const int experts = static_cast<int>(logits.cols), lane = threadIdx.x;
  const float* row = logits.data + blockIdx.x * logits.stride;
  float value[kMaxPerLane];
  uint32_t open = 0;
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    const bool exists = i * 32 + lane < experts;
    value[i] = exists ? row[i * 32 + lane] : 0.0f;
    if (exists) open |= 1u << i;
  }
  for (int j = 0; j < top_k; ++j) {
    int best = -1;
    float best_at = 0;
#pragma unroll
    for (int i = 0; i < kMaxPerLane; ++i)
      if ((open >> i & 1) && (best < 0 || outranks(value[i], i * 32 + lane, best_at, best))) best = i * 32 + lane, best_at = value[i];
    for (int s = 16; s > 0; s /= 2) {
      const int other = __shfl_xor_sync(0xFFFFFFFFu, best, s);
      const float other_at = __shfl_xor_sync(0xFFFFFFFFu, best_at, s);
      if (other >= 0 && (best < 0 || outranks(other_at, other, best_at, best))) best = other, best_at = other_at;
    }
    if (best % 32 == lane) open &= ~(1u << best / 32);
    if (lane == 0) {
      chosen_value[j] = best_at;
      routing.chosen[blockIdx.x * top_k + j] = best;
    }
  }
  __syncwarp();
  // Every lane computes all, in order; lane j writes the weight of rank j.
  float sum = 0, mine = 0;
  for (int j = 0; j < top_k; ++j) {
    const float e = exp(__fsub_rn(chosen_value[j], chosen_value[0]));
    sum = __fadd_rn(sum, e);
    if (j == lane) mine = e;
  }
  if (lane < top_k) routing.weights[blockIdx.x * top_k + lane] = __fdiv_rn(mine, sum);
}

// One block: a thread an expert counts its pairs, then places them and cuts them into items.
__global__ void __launch_bounds__(1024) group_kernel(Routing routing, int pairs, int experts) {
  begin_kernel();
  extern __shared__ int first[];  // [experts + 1] pairs, then [experts + 1] items
  int* first_item = first + experts + 1;
  constexpr int kKept = 4096;
  __shared__ int16_t kept[kKept];
  const bool keeps = pairs <= kKept;
  if (keeps)
    for (int p = threadIdx.x; p < pairs; p += blockDim.x) kept[p] = static_cast<int16_t>(routing.chosen[p]);
  __syncthreads();
  const auto expert_of = [&](int p) { return keeps ? int{kept[p]} : routing.chosen[p]; };
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    int count = 0;
    for (int p = 0; p < pairs; ++p) count += expert_of(p) == e;
    first[e + 1] = count;
    first_item[e + 1] = (count + kItemRows - 1) / kItemRows;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    first[0] = first_item[0] = 0;
    for (int e = 0; e < experts; ++e) first[e + 1] += first[e], first_item[e + 1] += first_item[e];
    *routing.item_count = first_item[experts];
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    const int count = first[e + 1] - first[e];
    if (count == 0) continue;
    int place = first[e];
    for (int p = 0; p < pairs; ++p)
      if (expert_of(p) == e) routing.order[place++] = p;
    for (int i = 0; i * kItemRows < count; ++i)
      routing.items[first_item[e] + i] = {e, first[e] + i * kItemRows, min(kItemRows, count - i * kItemRows)};
  }
}

__global__ void combine_kernel(Rows pairs, Routing routing, int top_k, Rows shared, Rows shared_gate, Rows out) {
  begin_kernel();
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, row = blockIdx.y;
  if (c >= out.cols) return;
  float sum = 0;
  for (int j = 0; j < top_k; ++j) {
    const int64_t pair = row * top_k + j;
    sum = fma(routing.weights[pair], pairs.data[pair * pairs.stride + c], sum);
  }
  const float weight = sigmoid(shared_gate.data[row * shared_gate.stride]);
  out.data[row * out.stride + c] = fma(weight, shared.data[row * shared.stride + c], sum);
}

}  // namespace

int max_items(int rows, int top_k, int experts) {
  const int pairs = rows * top_k;
  return min(pairs, experts + pairs / kItemRows);
}

void launch_route(Rows logits, int top_k, const Routing& routing, cudaStream_t stream) {
  const int experts = static_cast<int>(logits.cols);
  Launch{static_cast<unsigned>(logits.rows), 32, 0, stream}(route_kernel, logits, top_k, routing);
  Launch{1, 1024, 2 * static_cast<size_t>(experts + 1) * 4, stream}(group_kernel, routing, static_cast<int>(logits.rows) * top_k, experts);
}

void launch_combine(Rows pairs, const Routing& routing, int top_k, Rows shared, Rows shared_gate, Rows out, cudaStream_t stream) {
  Launch{dim3(static_cast<unsigned>((out.cols + 255) / 256), static_cast<unsigned>(out.rows)), 256, 0, stream}(combine_kernel, pairs, routing, top_k, shared, shared_gate, out);
}

}  // namespace foretoken::cuda
