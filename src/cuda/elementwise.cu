// Operators on single rows: embedding, norms, sums, copies, rotary angles, what is not finite. Norms over a whole row
// sum in an order of their own (512 chains, folded); everything else has the reference's order.
#include <algorithm>

#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "cuda/quant_device.cuh"

namespace foretoken::cuda {
namespace {

unsigned blocks(int64_t count, int threads) { return static_cast<unsigned>((count + threads - 1) / threads); }

__global__ void embed_kernel(const int32_t* tokens, const float* own, TokenTable table, Rows out) {
  begin_kernel();
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, r = blockIdx.y;
  if (c >= out.cols) return;
  const int32_t token = tokens[r];
  float value;
  if (token < 0) value = own[r * out.cols + c];
  else value = token_row(table, token)[c];
  out.data[r * out.stride + c] = value;
}

constexpr int kNormThreads = 512;
constexpr int kKeptFours = 3;  // fours of elements of a thread that stay in registers

// Elements c to c + 3; those behind the last count as zero.
template <bool kAligned>
FORETOKEN_DEVICE float4 load_four(const float* from, int c, int cols) {
  if constexpr (kAligned) return *reinterpret_cast<const float4*>(from + c);
  return make_float4(from[c], c + 1 < cols ? from[c + 1] : 0.0f, c + 2 < cols ? from[c + 2] : 0.0f,
                     c + 3 < cols ? from[c + 3] : 0.0f);
}
template <bool kAligned>
FORETOKEN_DEVICE void store_four(float* to, int c, int cols, float4 v) {
  if constexpr (kAligned) {
    *reinterpret_cast<float4*>(to + c) = v;
    return;
  }
  to[c] = v.x;
  if (c + 1 < cols) to[c + 1] = v.y;
  if (c + 2 < cols) to[c + 2] = v.z;
  if (c + 3 < cols) to[c + 3] = v.w;
}
FORETOKEN_DEVICE float4 plus(float4 a, float4 b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}
FORETOKEN_DEVICE float4 scaled_plus(float a, float4 b, float4 c) {
  return make_float4(fma(a, b.x, c.x), fma(a, b.y, c.y), fma(a, b.z, c.z), fma(a, b.w, c.w));
}

// Elements c to c + 3 of what a row's experts come to; the order is combine_kernel's.
template <bool kAligned>
FORETOKEN_DEVICE float4 combined_four(const Combination& of, float shared_weight, int64_t row, int c, int cols) {
  const int64_t first_pair = row * of.routing.ranks;
  const int top_k = static_cast<int>(of.routing.top_k);
  const float* const weights = of.routing.weights + first_pair;
  const float* const results = of.pairs.data + first_pair * of.pairs.stride;
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
  for (int j = 0; j < top_k; ++j)
    sum = scaled_plus(weights[j], load_four<kAligned>(results + j * of.pairs.stride, c, cols), sum);
  const float* const last =
      of.shared.data ? of.shared.data + row * of.shared.stride : results + top_k * of.pairs.stride;
  return scaled_plus(shared_weight, load_four<kAligned>(last, c, cols), sum);
}

// What the elements of a row are multiplied with: of the sum of squares, to which every thread has a part.
FORETOKEN_DEVICE float norm_factor(float sum, int64_t cols, float epsilon) {
  __shared__ float warps[kNormThreads / 32];
  for (int s = 16; s > 0; s /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, s));
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = sum;
  __syncthreads();
  sum = warps[0];
#pragma unroll
  for (int i = 1; i < kNormThreads / 32; ++i) sum = __fadd_rn(sum, warps[i]);
  return inverse_root(__fadd_rn(__fdiv_rn(sum, static_cast<float>(cols)), epsilon));
}
FORETOKEN_DEVICE float squares(float4 f, float sum) {
  return fma(f.w, f.w, fma(f.z, f.z, fma(f.y, f.y, fma(f.x, f.x, sum))));
}
template <bool kAligned>
FORETOKEN_DEVICE void put_normed(float* to, uint16_t* bf16, int c, int cols, float4 f, float r, float4 scale) {
  const auto scaled = [&](float value, float s) { return __fmul_rn(__fmul_rn(value, r), s); };
  const float4 y = make_float4(scaled(f.x, scale.x), scaled(f.y, scale.y), scaled(f.z, scale.z), scaled(f.w, scale.w));
  store_four<kAligned>(to, c, cols, y);
  if (bf16) *reinterpret_cast<uint2*>(bf16 + c) = make_uint2(bf16_pair(y.x, y.y), bf16_pair(y.z, y.w));
}

// Thread j adds the squares of elements 4 j to 4 j + 3, 2048 + 4 j to 2048 + 4 j + 3, ... in ascending order; lanes
// fold 16, 8, 4, 2, 1; warps are added in ascending order. Rows begin at multiples of 16 bytes and have whole fours, of
// which a thread keeps kFours. kCombines: the addend is a combination. Everything is requested before anything is
// stored.
constexpr int kPlanesAtOnce = 4;
template <int kFours, bool kCombines>
__global__ void __launch_bounds__(kNormThreads, kFours == 1 ? 2 : 1)
    rms_norm_kernel(Rows x, Rows addend, Planes planes, Combination combination, const float* w, float epsilon,
                    Rows out, uint16_t* bf16, Rows tap) {
  constexpr int kStep = 4 * kNormThreads;
  const int cols = static_cast<int>(x.cols), first = 4 * static_cast<int>(threadIdx.x);
  const auto exists = [&](int i) { return first + i * kStep < cols; };
  const auto load = [](const float* from, int i) { return *reinterpret_cast<const float4*>(from + i * kStep); };
  const auto store = [](float* to, int i, float4 v) { *reinterpret_cast<float4*>(to + i * kStep) = v; };
  const float4 zero = make_float4(0, 0, 0, 0);
  float4 weight[kFours], v[kFours], added[kFours];
  w += first;
#pragma unroll
  for (int i = 0; i < kFours; ++i) weight[i] = exists(i) ? load(w, i) : zero;
  begin_kernel();
  const int64_t r = blockIdx.x;
  float* const row = x.data + r * x.stride + first;
  float* const more = addend.data ? addend.data + r * addend.stride + first : nullptr;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    v[i] = exists(i) ? load(row, i) : zero;
    added[i] = zero;
  }
  if (kCombines) {
    const float shared_weight = sigmoid(combination.shared_gate.data[r * combination.shared_gate.stride]);
#pragma unroll
    for (int i = 0; i < kFours; ++i)
      if (exists(i)) added[i] = combined_four<true>(combination, shared_weight, r, first + i * kStep, cols);
  } else if (planes.count > 0) {
    const float* plane = planes.data + r * cols + first;
#pragma unroll 1
    for (int p = 0; p < planes.count; p += kPlanesAtOnce) {
      float4 part[kPlanesAtOnce][kFours];  // zeros where there is none, which change no sum that began at +0
#pragma unroll
      for (int q = 0; q < kPlanesAtOnce; ++q) {
        const bool counts = p + q < planes.count;
#pragma unroll
        for (int i = 0; i < kFours; ++i) part[q][i] = counts && exists(i) ? load(plane, i) : zero;
        plane += planes.stride;
      }
#pragma unroll
      for (int q = 0; q < kPlanesAtOnce; ++q)
#pragma unroll
        for (int i = 0; i < kFours; ++i) added[i] = plus(added[i], part[q][i]);
    }
  } else if (more) {
#pragma unroll
    for (int i = 0; i < kFours; ++i)
      if (exists(i)) added[i] = load(more, i);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    if (more) v[i] = plus(v[i], added[i]);
    sum = squares(v[i], sum);
  }
  if (more) {
    float* const tapped = tap.data ? tap.data + r * tap.stride + first : nullptr;
    const bool keeps = kCombines || planes.count > 0;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (!exists(i)) continue;
      store(row, i, v[i]);
      if (keeps) store(more, i, added[i]);
      if (tapped) store(tapped, i, v[i]);
    }
  }
  const float factor = norm_factor(sum, cols, epsilon);
  float* const to = out.data + r * out.stride;
  uint16_t* const rounded = bf16 ? bf16 + r * cols : nullptr;
#pragma unroll
  for (int i = 0; i < kFours; ++i)
    if (exists(i)) put_normed<true>(to, rounded, first + i * kStep, cols, v[i], factor, weight[i]);
}

// The same of any row, in the same order.
template <bool kCombines>
__global__ void __launch_bounds__(kNormThreads, 1)
    any_rms_norm_kernel(Rows x, Rows addend, Planes planes, Combination combination, const float* w, float epsilon,
                        Rows out, uint16_t* bf16, Rows tap) {
  const int cols = static_cast<int>(x.cols);
  const auto column = [](int i) { return 4 * (static_cast<int>(threadIdx.x) + i * kNormThreads); };
  const float4 zero = make_float4(0, 0, 0, 0);
  float4 weight[kKeptFours];
#pragma unroll
  for (int i = 0; i < kKeptFours; ++i) weight[i] = column(i) < cols ? load_four<false>(w, column(i), cols) : zero;
  begin_kernel();
  float* const row = x.data + blockIdx.x * x.stride;
  float* const more = addend.data ? addend.data + blockIdx.x * addend.stride : nullptr;
  float* const tapped = tap.data ? tap.data + blockIdx.x * tap.stride : nullptr;
  const float* const plane = planes.data + blockIdx.x * x.cols;
  const int plane_count = kCombines ? 0 : planes.count;
  float shared_weight = 0;
  if constexpr (kCombines)
    shared_weight = sigmoid(combination.shared_gate.data[blockIdx.x * combination.shared_gate.stride]);
  // Everything is requested before anything is stored.
  float4 v[kKeptFours], added[kKeptFours];
#pragma unroll
  for (int i = 0; i < kKeptFours; ++i) {
    v[i] = column(i) < cols ? load_four<false>(row, column(i), cols) : zero;
    added[i] = zero;
    if (column(i) >= cols || !more) continue;
    if constexpr (kCombines) added[i] = combined_four<false>(combination, shared_weight, blockIdx.x, column(i), cols);
    else if (plane_count == 0) added[i] = load_four<false>(more, column(i), cols);
  }
#pragma unroll 4
  for (int p = 0; p < plane_count; ++p)
#pragma unroll
    for (int i = 0; i < kKeptFours; ++i)
      if (column(i) < cols) added[i] = plus(added[i], load_four<false>(plane + p * planes.stride, column(i), cols));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kKeptFours; ++i) {
    if (more && column(i) < cols) {
      v[i] = plus(v[i], added[i]);
      store_four<false>(row, column(i), cols, v[i]);
      if (kCombines || plane_count > 0) store_four<false>(more, column(i), cols, added[i]);
      if (tapped) store_four<false>(tapped, column(i), cols, v[i]);
    }
    sum = squares(v[i], sum);
  }
#pragma unroll 1
  for (int i = kKeptFours; column(i) < cols; ++i) {
    float4 f = load_four<false>(row, column(i), cols);
    if (more) {
      float4 addend_here = zero;
      if constexpr (kCombines)
        addend_here = combined_four<false>(combination, shared_weight, blockIdx.x, column(i), cols);
      else if (plane_count == 0) addend_here = load_four<false>(more, column(i), cols);
      for (int p = 0; p < plane_count; ++p)
        addend_here = plus(addend_here, load_four<false>(plane + p * planes.stride, column(i), cols));
      if (kCombines || plane_count > 0) store_four<false>(more, column(i), cols, addend_here);
      f = plus(f, addend_here);
      store_four<false>(row, column(i), cols, f);
      if (tapped) store_four<false>(tapped, column(i), cols, f);
    }
    sum = squares(f, sum);
  }
  const float r = norm_factor(sum, x.cols, epsilon);
  float* const to = out.data + blockIdx.x * out.stride;
  uint16_t* const rounded = bf16 ? bf16 + blockIdx.x * x.cols : nullptr;
#pragma unroll
  for (int i = 0; i < kKeptFours; ++i)
    if (column(i) < cols) put_normed<false>(to, rounded, column(i), cols, v[i], r, weight[i]);
#pragma unroll 1
  for (int i = kKeptFours; column(i) < cols; ++i)
    put_normed<false>(to, rounded, column(i), cols, load_four<false>(row, column(i), cols), r,
                      load_four<false>(w, column(i), cols));
}

// The same behind a block's convolution (draft.cu, in its order) of rows or of slices of them, for rows of whole fours
// that a block of threads keeps. Everything is requested before anything is stored.
constexpr int kFusedTaps = 2;
__global__ void __launch_bounds__(kNormThreads, 1)
    convolved_norm_kernel(Rows x, Rows addend, Planes planes, Convolved of, const float* w, float epsilon, Rows out,
                          uint16_t* bf16, Rows tap) {
  const int cols = static_cast<int>(x.cols);
  const auto column = [](int i) { return 4 * (static_cast<int>(threadIdx.x) + i * kNormThreads); };
  const float4 zero = make_float4(0, 0, 0, 0);
  const int64_t r = blockIdx.x;
  float4 weight[kKeptFours], base[kFusedTaps][kKeptFours];
  // The description comes from the host: it is there before the kernel before ends.
  const int taps = min(static_cast<int>(of.base.rows), of.place[r] + 1);  // that lie within the block
#pragma unroll
  for (int i = 0; i < kKeptFours; ++i) {
    weight[i] = column(i) < cols ? load_four<true>(w, column(i), cols) : zero;
#pragma unroll
    for (int j = 0; j < kFusedTaps; ++j)
      base[j][i] =
          j < taps && column(i) < cols ? load_four<true>(of.base.data + j * of.base.stride, column(i), cols) : zero;
  }
  begin_kernel();
  float* const row = x.data + r * x.stride;
  float4 v[kKeptFours], in[kFusedTaps][kKeptFours];
  float delta[kFusedTaps][kKeptFours];
#pragma unroll
  for (int i = 0; i < kKeptFours; ++i) {
    const bool exists = column(i) < cols;
    v[i] = exists ? load_four<true>(row, column(i), cols) : zero;
#pragma unroll
    for (int j = 0; j < kFusedTaps; ++j) {
      const bool wanted = exists && j < taps;
      in[j][i] =
          wanted && planes.count == 0 ? load_four<true>(of.x.data + (r - j) * of.x.stride, column(i), cols) : zero;
      delta[j][i] = wanted ? of.delta.data[r * of.delta.stride + ((j * cols + column(i)) >> of.group_bits)] : 0.0f;
    }
  }
#pragma unroll 4
  for (int p = 0; p < planes.count; ++p)
#pragma unroll
    for (int i = 0; i < kKeptFours; ++i)
#pragma unroll
      for (int j = 0; j < kFusedTaps; ++j)
        if (j < taps && column(i) < cols)
          in[j][i] = plus(in[j][i], load_four<true>(planes.data + p * planes.stride + (r - j) * cols, column(i), cols));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kKeptFours; ++i) {
    float4 acc = zero;
#pragma unroll
    for (int j = 0; j < kFusedTaps; ++j) {
      if (j >= taps) continue;
      const float4 k = base[j][i];
      const float more = delta[j][i];
      acc = make_float4(fma(__fadd_rn(k.x, more), in[j][i].x, acc.x), fma(__fadd_rn(k.y, more), in[j][i].y, acc.y),
                        fma(__fadd_rn(k.z, more), in[j][i].z, acc.z), fma(__fadd_rn(k.w, more), in[j][i].w, acc.w));
    }
    if (column(i) < cols) {
      v[i] = plus(v[i], acc);
      store_four<true>(row, column(i), cols, v[i]);
      store_four<true>(addend.data + r * addend.stride, column(i), cols, acc);
      if (planes.count > 0) store_four<true>(of.x.data + r * of.x.stride, column(i), cols, in[0][i]);
      if (tap.data) store_four<true>(tap.data + r * tap.stride, column(i), cols, v[i]);
    }
    sum = squares(v[i], sum);
  }
  const float factor = norm_factor(sum, x.cols, epsilon);
#pragma unroll
  for (int i = 0; i < kKeptFours; ++i)
    if (column(i) < cols)
      put_normed<true>(out.data + r * out.stride, bf16 ? bf16 + r * x.cols : nullptr, column(i), cols, v[i], factor,
                       weight[i]);
}

// One warp a head.
__global__ void __launch_bounds__(128) gated_norm_kernel(Rows x, Rows gate, const float* w, int dim, float epsilon,
                                                         bool sigmoid_gate, Rows out, uint16_t* bf16) {
  begin_kernel();
  const int64_t heads = x.cols / dim, item = blockIdx.x * int64_t{4} + (threadIdx.x >> 5);
  if (item >= x.rows * heads) return;
  const int64_t row = item / heads, first = item % heads * dim;
  const float* from = x.data + row * x.stride + first;
  const float* g = gate.data + row * gate.stride + first;
  const float r = inverse_root(__fadd_rn(__fdiv_rn(sum_of_squares(from, dim), static_cast<float>(dim)), epsilon));
  for (int c = threadIdx.x & 31; c < dim; c += 32) {
    const float n = __fmul_rn(__fmul_rn(from[c], r), w[c]);
    const float v = __fmul_rn(n, sigmoid_gate ? sigmoid(g[c]) : silu(g[c]));
    out.data[row * out.stride + first + c] = v;
    if (bf16) bf16[row * x.cols + first + c] = __bfloat16_as_ushort(to_bf16(v));
  }
}

__global__ void add_kernel(Rows x, Rows inout) {
  begin_kernel();
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (c >= x.cols) return;
  float& to = inout.data[blockIdx.y * inout.stride + c];
  to = __fadd_rn(to, x.data[blockIdx.y * x.stride + c]);
}

__global__ void scale_kernel(Rows inout, float factor) {
  begin_kernel();
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (c >= inout.cols) return;
  float& to = inout.data[blockIdx.y * inout.stride + c];
  to = __fmul_rn(to, factor);
}

// rows null: row i is i.
__global__ void gather_kernel(Rows x, const int32_t* rows, Rows out, uint16_t* bf16) {
  begin_kernel();
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (c >= out.cols) return;
  const int64_t from = rows ? rows[blockIdx.y] : blockIdx.y;
  const float v = x.data[from * x.stride + c];
  out.data[blockIdx.y * out.stride + c] = v;
  if (bf16) bf16[blockIdx.y * out.cols + c] = __bfloat16_as_ushort(to_bf16(v));
}

__global__ void rotary_kernel(const int32_t* positions, const float* frequency, const uint8_t* axis, float magnitude,
                              Rows table) {
  begin_kernel();
  const int half = static_cast<int>(table.cols / 2);
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, row = i / half;
  const int j = static_cast<int>(i % half);
  if (row >= table.rows) return;
  const int32_t position = positions[3 * row + axis[j]];
  const SinCos angle = sin_cos(__dmul_rn(static_cast<double>(position), static_cast<double>(frequency[j])));
  table.data[row * table.stride + j] = __fmul_rn(angle.cos, magnitude);
  table.data[row * table.stride + half + j] = __fmul_rn(angle.sin, magnitude);
}

__global__ void differences_kernel(const uint32_t* a, const uint32_t* b, int64_t count, int* differences) {
  begin_kernel();
  int mine = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x)
    mine += a[i] != b[i];
  if (mine > 0) atomicAdd(differences, mine);
}

constexpr int kReadThreads = 256, kReads = 4;  // of a block; vectors that a thread has on their way

// The bits of a magnitude: those of infinities and NaN are above all others'.
FORETOKEN_DEVICE uint32_t magnitude(uint32_t bits) { return bits & 0x7FFFFFFFu; }
FORETOKEN_DEVICE uint32_t magnitude(uint4 v) {
  return max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
}

__global__ void __launch_bounds__(kReadThreads) find_non_finite_kernel(Rows x, int* found) {
  begin_kernel();
  const int64_t thread = blockIdx.x * int64_t{kReadThreads} + threadIdx.x, threads = int64_t{gridDim.x} * kReadThreads;
  uint32_t greatest = 0;
  for (int64_t r = blockIdx.y; r < x.rows; r += gridDim.y) {
    const uint32_t* row = reinterpret_cast<const uint32_t*>(x.data + r * x.stride);
    // Whole vectors, and at most three words on either side of them.
    const int64_t to_vector = -(reinterpret_cast<intptr_t>(row) / 4) & 3,
                  first = to_vector < x.cols ? to_vector : x.cols, count = (x.cols - first) / 4,
                  apart = x.cols - 4 * count;
    const uint4* vectors = reinterpret_cast<const uint4*>(row + first);
    int64_t i = thread;
    for (; i + (kReads - 1) * threads < count; i += kReads * threads) {
      uint4 v[kReads];
#pragma unroll
      for (int n = 0; n < kReads; ++n) v[n] = vectors[i + n * threads];
#pragma unroll
      for (int n = 0; n < kReads; ++n) greatest = max(greatest, magnitude(v[n]));
    }
    for (; i < count; i += threads) greatest = max(greatest, magnitude(vectors[i]));
    for (i = thread; i < apart; i += threads) greatest = max(greatest, magnitude(row[i < first ? i : i + 4 * count]));
  }
  if (warp_max(greatest) >= 0x7F800000u && (threadIdx.x & 31) == 0) *found = 1;
}

dim3 grid_of(const Rows& rows) { return dim3(blocks(rows.cols, 256), static_cast<unsigned>(rows.rows)); }

}  // namespace

void launch_embed(const int32_t* tokens, const float* own, const TokenTable& table, Rows out, Queue& queue) {
  Launch{grid_of(out), 256, 0, queue}(embed_kernel, tokens, own, table, out);
}
namespace {

bool begins_fours(const void* p, int64_t stride) {
  return p == nullptr || (reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 4 == 0);
}
bool begins_fours(const Rows& rows) { return begins_fours(rows.data, rows.stride); }

}  // namespace

bool norm_convolves(const Convolved& of, Planes planes) {
  return of.base.rows <= kFusedTaps && of.group_bits >= 2 && of.x.cols <= 4 * kNormThreads * kKeptFours &&
         begins_fours(of.x) && begins_fours(of.base) && begins_fours(planes.data, planes.stride);
}
bool norm_convolves(Rows x, const NormAddend& add, const float* w, Rows out, Rows tap) {
  return begins_fours(x) && begins_fours(add.rows) && begins_fours(w, 0) && begins_fours(out) && begins_fours(tap);
}
void launch_rms_norm(Rows x, const NormAddend& add, const float* w, float epsilon, Rows out, uint16_t* bf16, Rows tap,
                     Queue& queue) {
  const bool fours = x.cols % 4 == 0 && begins_fours(x) && begins_fours(add.rows) &&
                     begins_fours(add.planes.data, add.planes.stride) && begins_fours(add.experts.pairs) &&
                     begins_fours(add.experts.shared) && begins_fours(w, 0) && begins_fours(out) && begins_fours(tap);
  const Launch launch{static_cast<unsigned>(x.rows), kNormThreads, 0, queue};
  if (add.convolved.x.data) {
    launch(convolved_norm_kernel, x, add.rows, add.planes, add.convolved, w, epsilon, out, bf16, tap);
    return;
  }
  const bool combines = add.experts.pairs.data != nullptr;
  const auto kernel = !fours || x.cols > 3 * 4 * kNormThreads
                          ? (combines ? any_rms_norm_kernel<true> : any_rms_norm_kernel<false>)
                      : x.cols <= 4 * kNormThreads ? (combines ? rms_norm_kernel<1, true> : rms_norm_kernel<1, false>)
                                                   : (combines ? rms_norm_kernel<3, true> : rms_norm_kernel<3, false>);
  launch(kernel, x, add.rows, add.planes, add.experts, w, epsilon, out, bf16, tap);
}
void launch_gated_norm(Rows x, Rows gate, const float* w, int dim, float epsilon, bool sigmoid_gate, Rows out,
                       uint16_t* bf16, Queue& queue) {
  Launch{blocks(x.rows * (x.cols / dim), 4), 128, 0, queue}(gated_norm_kernel, x, gate, w, dim, epsilon, sigmoid_gate,
                                                            out, bf16);
}
void launch_add(Rows x, Rows inout, Queue& queue) { Launch{grid_of(x), 256, 0, queue}(add_kernel, x, inout); }
void launch_scale(Rows inout, float factor, Queue& queue) {
  Launch{grid_of(inout), 256, 0, queue}(scale_kernel, inout, factor);
}
void launch_gather(Rows x, const int32_t* rows, Rows out, uint16_t* bf16, Queue& queue) {
  Launch{grid_of(out), 256, 0, queue}(gather_kernel, x, rows, out, bf16);
}
void launch_copy(Rows from, Rows to, Queue& queue) {
  Launch{grid_of(to), 256, 0, queue}(gather_kernel, from, nullptr, to, nullptr);
}
void launch_find_non_finite(Rows x, int* found, Queue& queue) {
  if (x.stride == x.cols) x = {x.data, 1, x.rows * x.cols, x.rows * x.cols};
  // Eight blocks fill the largest multiprocessors; more would only begin and end.
  const int64_t most = 8 * int64_t{queue.limits().multiprocessors}, rows = std::min(x.rows, most),
                of_row = (x.cols + 4 * kReadThreads - 1) / (4 * kReadThreads);
  const dim3 grid(static_cast<unsigned>(std::min(of_row, most / rows)), static_cast<unsigned>(rows));
  Launch{grid, kReadThreads, 0, queue}(find_non_finite_kernel, x, found);
}
void launch_differences(const float* a, const float* b, int64_t count, int* differences, Queue& queue) {
  Launch{1024, 256, 0, queue}(differences_kernel, reinterpret_cast<const uint32_t*>(a),
                              reinterpret_cast<const uint32_t*>(b), count, differences);
}
void launch_rotary(const int32_t* positions, const float* frequency, const uint8_t* axis, float magnitude, Rows table,
                   Queue& queue) {
  Launch{blocks(table.rows * (table.cols / 2), 128), 128, 0, queue}(rotary_kernel, positions, frequency, axis,
                                                                    magnitude, table);
}

}  // namespace foretoken::cuda
