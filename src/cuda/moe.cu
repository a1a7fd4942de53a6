// Routing on the device: ranks, weights, and the pairs (row, rank) in the order of their experts. Placement uses no
// atomics: a pair's place is the number of pairs before it, so the lists are the same in every run; bits of a row would
// not depend on them anyway.
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

// The ranks of one row by a warp: top_k rounds of a greatest-of over the experts not taken. Lane l holds experts l, l +
// 32, ...
FORETOKEN_DEVICE void route_row(const Rows& logits, int64_t row_at, const Routing& routing, float* chosen_value) {
  const int experts = static_cast<int>(logits.cols), lane = threadIdx.x & 31, top_k = static_cast<int>(routing.top_k);
  const float* row = logits.data + row_at * logits.stride;
  int* chosen = routing.chosen + row_at * routing.ranks;
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
      if ((open >> i & 1) && (best < 0 || outranks(value[i], i * 32 + lane, best_at, best)))
        best = i * 32 + lane, best_at = value[i];
    for (int s = 16; s > 0; s /= 2) {
      const int other = __shfl_xor_sync(0xFFFFFFFFu, best, s);
      const float other_at = __shfl_xor_sync(0xFFFFFFFFu, best_at, s);
      if (other >= 0 && (best < 0 || outranks(other_at, other, best_at, best))) best = other, best_at = other_at;
    }
    if (best % 32 == lane) open &= ~(1u << best / 32);
    if (lane == 0) {
      chosen_value[j] = best_at;
      chosen[j] = best;
    }
  }
  if (lane == 0 && routing.ranks > routing.top_k) chosen[top_k] = experts;
  __syncwarp();
  // Every lane computes all, in order; lane j writes the weight of rank j.
  float sum = 0, mine = 0;
  for (int j = 0; j < top_k; ++j) {
    const float e = exp(__fsub_rn(chosen_value[j], chosen_value[0]));
    sum = __fadd_rn(sum, e);
    if (j == lane) mine = e;
  }
  if (lane < top_k) routing.weights[row_at * routing.ranks + lane] = __fdiv_rn(mine, sum);
}

constexpr int kGroupThreads = 1024;
constexpr int kRowsAtOnce = kGroupThreads / 32;  // rows that the grouping block ranks itself

// Exclusive sums over the threads of a block, of two counts at once.
FORETOKEN_DEVICE int2 sums_before(int2 mine, int2* warps) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int2 sum = mine;
  for (int s = 1; s < 32; s *= 2) {
    const int a = __shfl_up_sync(0xFFFFFFFFu, sum.x, s), b = __shfl_up_sync(0xFFFFFFFFu, sum.y, s);
    if (lane >= s) sum.x += a, sum.y += b;
  }
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  int2 before = make_int2(sum.x - mine.x, sum.y - mine.y);
  for (int w = 0; w < warp; ++w) before.x += warps[w].x, before.y += warps[w].y;
  return before;
}

// One block: ranks few rows; then a thread an expert counts its pairs, places them and cuts them into items.
__global__ void __launch_bounds__(kGroupThreads)
    group_kernel(Rows logits, Routing routing, int64_t pairs, int64_t experts, int64_t ranks_rows) {
  begin_kernel();
  __shared__ float chosen_value[kRowsAtOnce][kMaxTopExperts];
  __shared__ int2 warps[kGroupThreads / 32];
  constexpr int kKept = 4096;
  __shared__ int16_t kept[kKept];
  if (ranks_rows) {
    const int warp = threadIdx.x >> 5;
    if (warp < logits.rows) route_row(logits, warp, routing, chosen_value[warp]);
    __syncthreads();
  }
  const bool keeps = pairs <= kKept;
  if (keeps)
    for (int p = threadIdx.x; p < pairs; p += blockDim.x) kept[p] = static_cast<int16_t>(routing.chosen[p]);
  __syncthreads();
  const auto expert_of = [&](int p) { return keeps ? int{kept[p]} : routing.chosen[p]; };
  const int e = threadIdx.x;  // experts are fewer than threads
  int count = 0;
  if (e < experts)
    for (int p = 0; p < pairs; ++p) count += expert_of(p) == e;
  const int items = (count + kItemRows - 1) / kItemRows;
  const int2 before = sums_before(make_int2(count, items), warps);
  if (e == experts - 1) *routing.item_count = before.y + items;
  if (count == 0) return;
  int place = before.x;
  for (int p = 0; p < pairs; ++p)
    if (expert_of(p) == e) routing.order[place++] = p;
  for (int i = 0; i < items; ++i)
    routing.items[before.y + i] = {e, before.x + i * kItemRows, min(kItemRows, count - i * kItemRows)};
}

// A warp a row.
__global__ void __launch_bounds__(32) route_kernel(Rows logits, Routing routing) {
  begin_kernel();
  __shared__ float chosen_value[kMaxTopExperts];
  route_row(logits, blockIdx.x, routing, chosen_value);
}

__global__ void combine_kernel(Rows pairs, Routing routing, Rows shared, Rows shared_gate, Rows out) {
  begin_kernel();
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, row = blockIdx.y;
  if (c >= out.cols) return;
  float sum = 0;
  for (int64_t j = 0; j < routing.top_k; ++j) {
    const int64_t pair = row * routing.ranks + j;
    sum = fma(routing.weights[pair], pairs.data[pair * pairs.stride + c], sum);
  }
  const float weight = sigmoid(shared_gate.data[row * shared_gate.stride]);
  const float last = shared.data ? shared.data[row * shared.stride + c]
                                 : pairs.data[(row * routing.ranks + routing.top_k) * pairs.stride + c];
  out.data[row * out.stride + c] = fma(weight, last, sum);
}

}  // namespace

int max_items(int rows, int ranks, int experts) {
  const int pairs = rows * ranks;
  return min(pairs, experts + pairs / kItemRows);
}

void launch_route(Rows logits, const Routing& routing, Queue& queue) {
  const bool few = logits.rows <= kRowsAtOnce;
  if (!few) Launch{static_cast<unsigned>(logits.rows), 32, 0, queue}(route_kernel, logits, routing);
  Launch{1, kGroupThreads, 0, queue}(group_kernel, logits, routing, logits.rows * routing.ranks,
                                     logits.cols + (routing.ranks - routing.top_k), few ? 1 : 0);
}

void launch_combine(Rows pairs, const Routing& routing, Rows shared, Rows shared_gate, Rows out, Queue& queue) {
  Launch{dim3(static_cast<unsigned>((out.cols + 255) / 256), static_cast<unsigned>(out.rows)), 256, 0, queue}(
      combine_kernel, pairs, routing, shared, shared_gate, out);
}

}  // namespace foretoken::cuda
