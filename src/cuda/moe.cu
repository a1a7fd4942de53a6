// Routing on the device: ranks, weights, and the pairs (row, rank) in the order of their experts. Placement uses no
// atomics: a pair's place is the number of pairs before it, so the lists are the same in every run; bits of a row would
// not depend on them anyway.
#include "cuda/device.cuh"
#include "cuda/kernels.h"

namespace foretoken::cuda {
namespace {

constexpr int kMaxPerLane = 16;  // logits of one lane: up to 512 experts

// A logit's rank as an integer above 0: NaN first, then falling; zeros alike.
FORETOKEN_DEVICE uint32_t rank_key(float v) {
  if (v != v) return 0xFFFFFFFFu;
  const uint32_t bits = __float_as_uint(__fadd_rn(v, 0.0f));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The ranks of one row by a warp: top_k rounds of a greatest-of over the experts not taken, the lower id where keys are
// equal. Lane l holds experts l, l + 32, ...
FORETOKEN_DEVICE void route_row(const Rows& logits, int64_t row_at, const Routing& routing) {
  const int experts = static_cast<int>(logits.cols), lane = threadIdx.x & 31, top_k = static_cast<int>(routing.top_k);
  const float* row = logits.data + row_at * logits.stride;
  uint32_t key[kMaxPerLane];  // 0: taken, or no expert
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) key[i] = i * 32 + lane < experts ? rank_key(row[i * 32 + lane]) : 0;
  int mine = 0;  // lane j: the expert of rank j
  for (int j = 0; j < top_k; ++j) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kMaxPerLane; ++i) best = max(best, key[i]);
    const uint32_t greatest = warp_max(best);
    int first = kMaxPerLane * 32;
#pragma unroll
    for (int i = kMaxPerLane; i-- > 0;)
      if (key[i] == greatest) first = i * 32 + lane;
    first = static_cast<int>(__reduce_min_sync(0xFFFFFFFFu, static_cast<uint32_t>(first)));
#pragma unroll
    for (int i = 0; i < kMaxPerLane; ++i)
      if (i * 32 + lane == first) key[i] = 0;
    if (lane == j) mine = first;
  }
  const float value = lane < top_k ? row[mine] : 0.0f, first_value = __shfl_sync(0xFFFFFFFFu, value, 0);
  const float e = exp(__fsub_rn(value, first_value));
  float sum = 0;
  for (int j = 0; j < top_k; ++j) sum = __fadd_rn(sum, __shfl_sync(0xFFFFFFFFu, e, j));
  if (lane < top_k) {
    routing.chosen[row_at * routing.ranks + lane] = mine;
    routing.weights[row_at * routing.ranks + lane] = __fdiv_rn(e, sum);
  }
  if (lane == 0 && routing.ranks > routing.top_k) routing.chosen[row_at * routing.ranks + top_k] = experts;
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

// A thread a pair: its place is the number of pairs of earlier experts and of earlier pairs of its own.
FORETOKEN_DEVICE void place_pairs(const Routing& routing, int pairs, const int16_t* kept) {
  const int p = threadIdx.x;
  int earlier = 0, own_before = 0, own = 0, items_before = 0;
  const int e = p < pairs ? kept[p] : -1;
  for (int q = 0; q < pairs; ++q) {
    const int other = kept[q];
    earlier += other < e;
    own += other == e;
    own_before += other == e && q < p;
  }
  __shared__ int leads[512];  // expert of the pair when it begins an item, else -1
  if (p < pairs) leads[p] = own_before % kItemRows == 0 ? e : -1;
  __syncthreads();
  if (p >= pairs) return;
  routing.order[earlier + own_before] = p;
  int all = 0;
  for (int q = 0; q < pairs; ++q) {
    const int other = leads[q];
    all += other >= 0;
    items_before += other >= 0 && other < e;
  }
  if (p == 0) *routing.item_count = all;
  if (own_before % kItemRows == 0)
    routing.items[items_before + own_before / kItemRows] = {e, earlier + own_before, min(kItemRows, own - own_before)};
}

// One block: ranks few rows; few pairs are placed by a thread each, of many a thread counts an expert's, places them
// and cuts them into items.
__global__ void __launch_bounds__(kGroupThreads)
    group_kernel(Rows logits, Routing routing, int64_t pairs, int64_t experts, int64_t ranks_rows) {
  begin_kernel();
  __shared__ int2 warps[kGroupThreads / 32];
  constexpr int kKept = 4096;
  __shared__ int16_t kept[kKept];
  if (ranks_rows) {
    const int warp = threadIdx.x >> 5;
    if (warp < logits.rows) route_row(logits, warp, routing);
    __syncthreads();
  }
  const bool keeps = pairs <= kKept;
  if (keeps)
    for (int p = threadIdx.x; p < pairs; p += blockDim.x) kept[p] = static_cast<int16_t>(routing.chosen[p]);
  __syncthreads();
  if (pairs <= 512) return place_pairs(routing, static_cast<int>(pairs), kept);
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
  route_row(logits, blockIdx.x, routing);
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
