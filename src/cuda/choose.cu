// What can be found out about rows of logits so that tokens are chosen without them (ops/choice.h), with the bits of
// ops/choice.cc: every element's expressions are those, and the largest, the lowest id and the sum of integers do not
// depend on the order.
#include "cuda/device.cuh"
#include "cuda/kernels.h"

namespace foretoken::cuda {
namespace {

constexpr int kThreads = 256, kShares = 32;

// canonical::log, of a normal x > 0.
FORETOKEN_DEVICE float log(float x) {
  const uint32_t bits = __float_as_uint(x);
  const int e = static_cast<int>((bits - 0x3F3504F3u) >> 23 << 23) >> 23;
  const float m = __uint_as_float(bits - (static_cast<uint32_t>(e) << 23));
  const float z = __fdiv_rn(__fadd_rn(m, -1.0f), __fadd_rn(m, 1.0f)), s = __fmul_rn(z, z);
  float p = 1.0f / 13;
  p = fma(p, s, 1.0f / 11);
  p = fma(p, s, 1.0f / 9);
  p = fma(p, s, 1.0f / 7);
  p = fma(p, s, 1.0f / 5);
  p = fma(p, s, 1.0f / 3);
  p = fma(p, s, 1.0f);
  const float n = static_cast<float>(e);
  return fma(n, 0.693145751953125f, fma(n, 1.42860682030941723212e-6f, __fmul_rn(__fmul_rn(2.0f, z), p)));
}

FORETOKEN_DEVICE float negative_log_complement(float v) {
  if (v > 0.5f) return -log(__fsub_rn(1.0f, v));
  return twice_atanh(__fdiv_rn(v, __fsub_rn(2.0f, v)));
}

// The first word of Philox 4x32-10 (base/rng.h).
FORETOKEN_DEVICE uint32_t philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0, high1 = __umulhi(0xCD9E8D57u, c2),
                   low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return c0;
}

FORETOKEN_DEVICE float gumbel(const ChoiceSpec& spec, int token) {
  const uint32_t draw = philox(static_cast<uint32_t>(token), static_cast<uint32_t>(spec.position),
                               static_cast<uint32_t>(spec.position >> 32), spec.choice,
                               static_cast<uint32_t>(spec.seed), static_cast<uint32_t>(spec.seed >> 32));
  const float u = __double2float_rn(__dmul_rn(__dadd_rn(static_cast<double>(draw), 0.5), 0x1p-32));
  constexpr float kMost = 1.0f - 0x1p-24f;
  return -log(negative_log_complement(kMost < u ? kMost : u));
}

struct Best {
  float value;
  int id;  // -1: none
};
FORETOKEN_DEVICE Best better(Best a, Best b) {
  if (b.id < 0) return a;
  if (a.id < 0) return b;
  return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}
FORETOKEN_DEVICE Best warp_best(Best best) {
  for (int s = 16; s > 0; s /= 2)
    best = better(best, {__shfl_xor_sync(0xFFFFFFFFu, best.value, s), __shfl_xor_sync(0xFFFFFFFFu, best.id, s)});
  return best;
}

// Of one share of a row.
struct Share {
  Best largest, noisy;
  int finite, unused;  // the latter fills the word
  unsigned long long mass;
};

FORETOKEN_DEVICE void share_of(int64_t cols, int64_t& begin, int64_t& end) {
  begin = cols * blockIdx.x / kShares, end = cols * (blockIdx.x + 1) / kShares;
}

__global__ void __launch_bounds__(kThreads) largest_kernel(Rows logits, Share* shares) {
  __shared__ Best warps[kThreads / 32];
  begin_kernel();
  const float* row = logits.data + blockIdx.y * logits.stride;
  int64_t begin, end;
  share_of(logits.cols, begin, end);
  Best best{0, -1};
  bool finite = true;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const float l = __fadd_rn(row[i], 0.0f);
    finite = finite && l == l && l != infinity();
    if (l > (best.id < 0 ? -infinity() : best.value)) best = {l, static_cast<int>(i)};
  }
  best = warp_best(best);
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = best;
  const int all = __syncthreads_and(finite);
  if (threadIdx.x > 0) return;
  for (int w = 1; w < kThreads / 32; ++w) best = better(best, warps[w]);
  shares[blockIdx.y * kShares + blockIdx.x] = {best, {0, -1}, all, 0, 0};
}

// Lane l of a warp reads share l.
FORETOKEN_DEVICE Best largest_of(const Share* shares, bool& finite) {
  const Share& share = shares[threadIdx.x & 31];
  finite = __all_sync(0xFFFFFFFFu, share.finite != 0);
  return warp_best(share.largest);
}
static_assert(kShares == 32);

__global__ void __launch_bounds__(kThreads) candidates_kernel(Rows logits, const ChoiceSpec* specs, Share* shares) {
  __shared__ Best warps[kThreads / 32];
  __shared__ unsigned long long masses[kThreads / 32];
  begin_kernel();
  const ChoiceSpec spec = specs[blockIdx.y];
  if (!spec.noisy && !spec.mass) return;
  Share* const own = shares + static_cast<int64_t>(blockIdx.y) * kShares;
  bool finite;
  const Best largest = largest_of(own, finite);
  if (!finite || largest.id < 0) return;
  const float* row = logits.data + blockIdx.y * logits.stride;
  int64_t begin, end;
  share_of(logits.cols, begin, end);
  Best best{0, -1};
  unsigned long long mass = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const float z = __fdiv_rn(__fsub_rn(row[i], largest.value), spec.temperature);
    if (!(z >= spec.least && z > -infinity())) continue;
    if (spec.mass) mass += __float2ull_rz(__fmul_rn(exp(z), 1099511627776.0f));
    if (spec.noisy) best = better(best, {__fadd_rn(z, gumbel(spec, static_cast<int>(i))), static_cast<int>(i)});
  }
  best = warp_best(best);
  for (int s = 16; s > 0; s /= 2) mass += __shfl_xor_sync(0xFFFFFFFFu, mass, s);
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = best, masses[threadIdx.x >> 5] = mass;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < kThreads / 32; ++w) best = better(best, warps[w]), mass += masses[w];
  own[blockIdx.x].noisy = best;
  own[blockIdx.x].mass = mass;
}

// One warp a row.
__global__ void __launch_bounds__(32) choice_kernel(const Share* shares, RowChoice* choices) {
  begin_kernel();
  const Share* own = shares + static_cast<int64_t>(blockIdx.x) * kShares;
  bool finite;
  const Best largest = largest_of(own, finite), noisy = warp_best(own[threadIdx.x].noisy);
  unsigned long long mass = own[threadIdx.x].mass;
  for (int s = 16; s > 0; s /= 2) mass += __shfl_xor_sync(0xFFFFFFFFu, mass, s);
  if (threadIdx.x > 0) return;
  choices[blockIdx.x] = {.largest = largest.id < 0 ? -infinity() : largest.value,
                         .best = largest.id,
                         .noisy = noisy.id,
                         .finite = finite,
                         .mass = mass};
}

}  // namespace

size_t choose_scratch_bytes(int64_t rows) { return static_cast<size_t>(rows) * kShares * sizeof(Share); }

void launch_choose(Rows logits, const ChoiceSpec* specs, bool any_candidates, void* scratch, RowChoice* choices,
                   Queue& queue) {
  Share* shares = static_cast<Share*>(scratch);
  const dim3 grid(kShares, static_cast<unsigned>(logits.rows));
  Launch{grid, kThreads, 0, queue}(largest_kernel, logits, shares);
  if (any_candidates) Launch{grid, kThreads, 0, queue}(candidates_kernel, logits, specs, shares);
  Launch{static_cast<unsigned>(logits.rows), 32, 0, queue}(choice_kernel, shares, choices);
}

}  // namespace foretoken::cuda
