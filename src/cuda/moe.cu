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

constexpr int kRouteThreads = 128;
constexpr int kMaxTopExperts = 32;

// A block a row: top_k rounds of a greatest-of over the experts not taken.
__global__ void __launch_bounds__(kRouteThreads) route_kernel(Rows logits, int top_k, Routing routing) {
  begin_kernel();
  extern __shared__ float value[];
  __shared__ float best_value[kRouteThreads / 32];
  __shared__ int best_index[kRouteThreads / 32], chosen[kMaxTopExperts];
  const int experts = static_cast<int>(logits.cols);
  const float* row = logits.data + blockIdx.x * logits.stride;
  for (int e = threadIdx.x; e < experts; e += kRouteThreads) value[e] = row[e];
  for (int j = 0; j < top_k; ++j) {
    __syncthreads();
    int best = -1;
    float best_at = 0;
    for (int e = threadIdx.x; e < experts; e += kRouteThreads) {
      bool taken = false;
      for (int i = 0; i < j; ++i) taken = taken || chosen[i] == e;
      if (!taken && (best < 0 || outranks(value[e], e, best_at, best))) best = e, best_at = value[e];
    }
    for (int s = 16; s > 0; s /= 2) {
      const int other = __shfl_xor_sync(0xFFFFFFFFu, best, s);
      const float other_at = __shfl_xor_sync(0xFFFFFFFFu, best_at, s);
      if (other >= 0 && (best < 0 || outranks(other_at, other, best_at, best))) best = other, best_at = other_at;
    }
    if ((threadIdx.x & 31) == 0) best_index[threadIdx.x >> 5] = best, best_value[threadIdx.x >> 5] = best_at;
    __syncthreads();
    if (threadIdx.x == 0) {
      best = best_index[0], best_at = best_value[0];
      for (int w = 1; w < kRouteThreads / 32; ++w)
        if (best_index[w] >= 0 && (best < 0 || outranks(best_value[w], best_index[w], best_at, best)))
          best = best_index[w], best_at = best_value[w];
      chosen[j] = best;
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  float e[kMaxTopExperts], sum = 0;
  for (int j = 0; j < top_k; ++j) {
    e[j] = exp(__fsub_rn(value[chosen[j]], value[chosen[0]]));
    sum = __fadd_rn(sum, e[j]);
  }
  for (int j = 0; j < top_k; ++j) {
    routing.chosen[blockIdx.x * top_k + j] = chosen[j];
    routing.weights[blockIdx.x * top_k + j] = __fdiv_rn(e[j], sum);
  }
}

// One block: a thread an expert counts its pairs, then places them and cuts them into items.
__global__ void __launch_bounds__(1024) group_kernel(Routing routing, int pairs, int experts) {
  begin_kernel();
  extern __shared__ int first[];  // [experts + 1] pairs, then [experts + 1] items
  int* first_item = first + experts + 1;
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    int count = 0;
    for (int p = 0; p < pairs; ++p) count += routing.chosen[p] == e;
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
      if (routing.chosen[p] == e) routing.order[place++] = p;
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
  Launch{static_cast<unsigned>(logits.rows), kRouteThreads, static_cast<size_t>(experts) * 4, stream}(route_kernel, logits, top_k, routing);
  Launch{1, 1024, 2 * static_cast<size_t>(experts + 1) * 4, stream}(group_kernel, routing, static_cast<int>(logits.rows) * top_k, experts);
}

void launch_combine(Rows pairs, const Routing& routing, int top_k, Rows shared, Rows shared_gate, Rows out, cudaStream_t stream) {
  Launch{dim3(static_cast<unsigned>((out.cols + 255) / 256), static_cast<unsigned>(out.rows)), 256, 0, stream}(combine_kernel, pairs, routing, top_k, shared, shared_gate, out);
}

}  // namespace foretoken::cuda
