// Routing on the device: ranks, weights, and the pairs (row, rank) in the order of their experts. Placement uses no
// atomics: a pair's place is the number of pairs before it, so the lists are the same in every run; bits of a row would
// not depend on them anyway.
#include <algorithm>

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

// The greatest key of a lane and its place, the first of equal ones.
template <int kPerLane>
FORETOKEN_DEVICE void survey(const uint32_t (&key)[kPerLane], uint32_t& greatest, int& place) {
  uint32_t k[kPerLane];
  int at[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) k[i] = key[i], at[i] = i;
#pragma unroll
  for (int step = 1; step < kPerLane; step *= 2)
#pragma unroll
    for (int i = 0; i < kPerLane; i += 2 * step)
      if (k[i + step] > k[i]) k[i] = k[i + step], at[i] = at[i + step];
  greatest = k[0];
  place = at[0];
}

// The ranks of one row by a warp: top_k rounds of a greatest-of over the experts not taken, the lower id where keys are
// equal. Lane l holds experts l, l + 32, ... `kept`, where given, gets the row's experts once more.
template <int kPerLane>
FORETOKEN_DEVICE void route_row(const Rows& logits, int64_t row_at, const Routing& routing, int16_t* kept) {
  const int experts = static_cast<int>(logits.cols), lane = threadIdx.x & 31, top_k = static_cast<int>(routing.top_k);
  const float* row = logits.data + row_at * logits.stride;
  uint32_t key[kPerLane];  // 0: taken, or no expert
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) key[i] = i * 32 + lane < experts ? rank_key(row[i * 32 + lane]) : 0;
  int mine = 0;  // lane j: the expert of rank j
  for (int j = 0; j < top_k; ++j) {
    uint32_t best;
    int place;
    survey<kPerLane>(key, best, place);
    const uint32_t greatest = warp_max(best), own = static_cast<uint32_t>(place * 32 + lane),
                   first = __reduce_min_sync(0xFFFFFFFFu, best == greatest ? own : 0xFFFFFFFFu);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (own == first && i == place) key[i] = 0;
    if (lane == j) mine = static_cast<int>(first);
  }
  const float value = lane < top_k ? row[mine] : 0.0f, first_value = __shfl_sync(0xFFFFFFFFu, value, 0);
  const float e = exp(__fsub_rn(value, first_value));
  float sum = 0;
#pragma unroll 8
  for (int j = 0; j < top_k; ++j) sum = __fadd_rn(sum, __shfl_sync(0xFFFFFFFFu, e, j));
  const int64_t first_pair = row_at * routing.ranks;
  const auto choose = [&](int rank, int expert) {
    routing.chosen[first_pair + rank] = expert;
    if (kept) kept[first_pair + rank] = static_cast<int16_t>(expert);
  };
  if (lane < top_k) {
    choose(lane, mine);
    routing.weights[first_pair + lane] = __fdiv_rn(e, sum);
  }
  if (lane == 0 && routing.ranks > routing.top_k) choose(top_k, experts);
}

constexpr int kGroupThreads = 1024;
constexpr int kRowsAtOnce = kGroupThreads / 32;  // rows that the grouping block ranks itself
constexpr int kPlacedPairs = 512;                // pairs that have a thread each

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

// An item knows its weights, so that the kernels that multiply need not look for them in tables, which are read once a
// pass and lie far away.
FORETOKEN_DEVICE ExpertItem item_of(const Routing& routing, int expert, int first, int count) {
  ExpertItem item{expert, first, count};
  if (routing.gate_up) item.gate_up = routing.gate_up[expert].codes;
  if (routing.down) item.down = routing.down[expert].codes;
  return item;
}

constexpr int16_t kNone = 0x7FFF;  // behind the last pair: an expert after all others
constexpr int kAtOnce = 8;

// Calls use(index, value) for eight of a list in shared memory at a time, beyond its end for what fills the last eight.
template <class Use>
FORETOKEN_DEVICE void for_all(const int16_t* list, int count, Use use) {
  for (int first = 0; first < count; first += kAtOnce) {
    const uint4 eight = *reinterpret_cast<const uint4*>(list + first);
    const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      use(first + i, static_cast<int>(static_cast<int16_t>(words[i / 2] >> 16 * (i % 2))));
  }
}

// A thread a pair: its place is the number of pairs of earlier experts and of earlier pairs of its own. Both lists end
// with kNone up to whole eights.
FORETOKEN_DEVICE void place_pairs(const Routing& routing, int pairs, const int16_t* kept) {
  const int p = threadIdx.x;
  int earlier = 0, own_before = 0, own = 0, items_before = 0;
  const int e = p < pairs ? kept[p] : -1;
  for_all(kept, pairs, [&](int q, int other) {
    earlier += other < e;
    own += other == e;
    own_before += other == e && q < p;
  });
  __shared__ __align__(16)
      int16_t leads[kPlacedPairs + kAtOnce];  // expert of the pair when it begins an item, else kNone
  if (p < pairs) leads[p] = own_before % kItemRows == 0 ? static_cast<int16_t>(e) : kNone;
  if (p < kAtOnce) leads[pairs + p] = kNone;
  __syncthreads();
  if (p >= pairs) return;
  routing.order[earlier + own_before] = p;
  int all = 0;
  for_all(leads, pairs, [&](int, int other) {
    all += other != kNone;
    items_before += other < e;
  });
  if (p == 0) *routing.item_count = all;
  if (own_before % kItemRows == 0)
    routing.items[items_before + own_before / kItemRows] =
        item_of(routing, e, earlier + own_before, min(kItemRows, own - own_before));
}

// One block: ranks few rows; few pairs are placed by a thread each, of many a thread counts an expert's, places them
// and cuts them into items.
template <int kPerLane>
__global__ void __launch_bounds__(kGroupThreads)
    group_kernel(Rows logits, Routing routing, int64_t pairs, int64_t experts, int64_t ranks_rows) {
  for (int64_t at = threadIdx.x * 128; at < routing.experts * int64_t{sizeof(Part)}; at += blockDim.x * 128) {
    if (routing.gate_up) into_l1(reinterpret_cast<const char*>(routing.gate_up) + at);
    if (routing.down) into_l1(reinterpret_cast<const char*>(routing.down) + at);
  }
  begin_kernel();
  __shared__ int2 warps[kGroupThreads / 32];
  constexpr int kKept = 4096;
  __shared__ __align__(16) int16_t kept[kKept + kAtOnce];
  const bool keeps = pairs <= kKept;
  if (ranks_rows) {  // so few that all pairs are kept
    const int warp = threadIdx.x >> 5;
    if (warp < logits.rows) route_row<kPerLane>(logits, warp, routing, kept);
  } else if (keeps) {
    for (int p = threadIdx.x; p < pairs; p += blockDim.x) kept[p] = static_cast<int16_t>(routing.chosen[p]);
  }
  if (keeps && threadIdx.x < kAtOnce) kept[pairs + threadIdx.x] = kNone;
  __syncthreads();
  if (pairs <= kPlacedPairs) return place_pairs(routing, static_cast<int>(pairs), kept);
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
    routing.items[before.y + i] = item_of(routing, e, before.x + i * kItemRows, min(kItemRows, count - i * kItemRows));
}

// A warp a row.
template <int kPerLane>
__global__ void __launch_bounds__(32) route_kernel(Rows logits, Routing routing) {
  begin_kernel();
  route_row<kPerLane>(logits, blockIdx.x, routing, nullptr);
}

__global__ void combine_kernel(Combination from, Rows out) {
  begin_kernel();
  const auto& [pairs, routing, shared, shared_gate] = from;
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
  const bool few = logits.rows <= kRowsAtOnce, eight = logits.cols <= 8 * 32;
  const int64_t pairs = logits.rows * routing.ranks;
  if (!few)
    Launch{static_cast<unsigned>(logits.rows), 32, 0, queue}(eight ? route_kernel<8> : route_kernel<kMaxPerLane>,
                                                             logits, routing);
  const bool placed_by_threads = few && pairs <= kPlacedPairs;  // a warp a row, a thread a pair
  const unsigned threads =
      placed_by_threads ? static_cast<unsigned>(std::max(logits.rows * 32, (pairs + 31) / 32 * 32)) : kGroupThreads;
  Launch{1, threads, 0, queue}(eight ? group_kernel<8> : group_kernel<kMaxPerLane>, logits, routing, pairs,
                               logits.cols + (routing.ranks - routing.top_k), few ? 1 : 0);
}

void launch_combine(const Combination& combination, Rows out, Queue& queue) {
  Launch{dim3(static_cast<unsigned>((out.cols + 255) / 256), static_cast<unsigned>(out.rows)), 256, 0, queue}(
      combine_kernel, combination, out);
}

}  // namespace foretoken::cuda
