// Operators on single rows: embedding, norms, sums, copies, rotary angles, what is not finite. Norms over a whole row
// sum in an order of their own (512 chains, folded); everything else has the reference's order.
#include <algorithm>

#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "cuda/quant_device.cuh"

namespace foretoken::cuda {
namespace {

unsigned blocks(int64_t count, int threads) { return static_cast<unsigned>((count + threads - 1) / threads); }

__global__ void embed_kernel(const int32_t* tokens, const float* own, QuantFormat format, const uint8_t* table,
                             size_t row_bytes, const int32_t* row_order, Rows out) {
  begin_kernel();
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, r = blockIdx.y;
  if (c >= out.cols) return;
  const int32_t token = tokens[r];
  float value;
  if (token < 0) value = own[r * out.cols + c];
  else value = value_at(format, table + static_cast<size_t>(row_order ? row_order[token] : token) * row_bytes, c);
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

// Thread j adds the squares of elements 4 j to 4 j + 3, 2048 + 4 j to 2048 + 4 j + 3, ... in ascending order; lanes
// fold 16, 8, 4, 2, 1; warps are added in ascending order. kAligned: every row begins at a multiple of 16 bytes and has
// whole fours. kCombines: the addend is a combination.
template <bool kAligned, bool kCombines>
__global__ void __launch_bounds__(kNormThreads, 1)
    rms_norm_kernel(Rows x, Rows addend, Planes planes, Combination combination, const float* w, float epsilon,
                    Rows out, uint16_t* bf16) {
  __shared__ float warps[kNormThreads / 32];
  const int cols = static_cast<int>(x.cols);
  const auto column = [](int i) { return 4 * (static_cast<int>(threadIdx.x) + i * kNormThreads); };
  const float4 zero = make_float4(0, 0, 0, 0);
  float4 weight[kKeptFours];
#pragma unroll
  for (int i = 0; i < kKeptFours; ++i) weight[i] = column(i) < cols ? load_four<kAligned>(w, column(i), cols) : zero;
  begin_kernel();
  float* const row = x.data + blockIdx.x * x.stride;
  float* const more = addend.data ? addend.data + blockIdx.x * addend.stride : nullptr;
  const float* const plane = planes.data + blockIdx.x * x.cols;
  const int plane_count = kCombines ? 0 : planes.count;
  float shared_weight = 0;
  if constexpr (kCombines)
    shared_weight = sigmoid(combination.shared_gate.data[blockIdx.x * combination.shared_gate.stride]);
  // Everything is requested before anything is stored.
  float4 v[kKeptFours], added[kKeptFours];
#pragma unroll
  for (int i = 0; i < kKeptFours; ++i) {
    v[i] = column(i) < cols ? load_four<kAligned>(row, column(i), cols) : zero;
    added[i] = zero;
    if (column(i) >= cols || !more) continue;
    if constexpr (kCombines)
      added[i] = combined_four<kAligned>(combination, shared_weight, blockIdx.x, column(i), cols);
    else if (plane_count == 0) added[i] = load_four<kAligned>(more, column(i), cols);
  }
#pragma unroll 4
  for (int p = 0; p < plane_count; ++p)
#pragma unroll
    for (int i = 0; i < kKeptFours; ++i)
      if (column(i) < cols) added[i] = plus(added[i], load_four<kAligned>(plane + p * planes.stride, column(i), cols));
  float sum = 0;
  const auto add_squares = [&](float4 f) { sum = fma(f.w, f.w, fma(f.z, f.z, fma(f.y, f.y, fma(f.x, f.x, sum)))); };
#pragma unroll
  for (int i = 0; i < kKeptFours; ++i) {
    if (more && column(i) < cols) {
      v[i] = plus(v[i], added[i]);
      store_four<kAligned>(row, column(i), cols, v[i]);
      if (kCombines || plane_count > 0) store_four<kAligned>(more, column(i), cols, added[i]);
    }
    add_squares(v[i]);
  }
#pragma unroll 1
  for (int i = kKeptFours; column(i) < cols; ++i) {
    float4 f = load_four<kAligned>(row, column(i), cols);
    if (more) {
      float4 addend_here = zero;
      if constexpr (kCombines)
        addend_here = combined_four<kAligned>(combination, shared_weight, blockIdx.x, column(i), cols);
      else if (plane_count == 0) addend_here = load_four<kAligned>(more, column(i), cols);
      for (int p = 0; p < plane_count; ++p)
        addend_here = plus(addend_here, load_four<kAligned>(plane + p * planes.stride, column(i), cols));
      if (kCombines || plane_count > 0) store_four<kAligned>(more, column(i), cols, addend_here);
      f = plus(f, addend_here);
      store_four<kAligned>(row, column(i), cols, f);
    }
    add_squares(f);
  }
  for (int s = 16; s > 0; s /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, s));
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = sum;
  __syncthreads();
  sum = warps[0];
#pragma unroll
  for (int i = 1; i < kNormThreads / 32; ++i) sum = __fadd_rn(sum, warps[i]);
  const float r = inverse_root(__fadd_rn(__fdiv_rn(sum, static_cast<float>(x.cols)), epsilon));
  float* const to = out.data + blockIdx.x * out.stride;
  const auto put = [&](int c, float4 f, float4 scale) {
    const auto scaled = [&](float value, float s) { return __fmul_rn(__fmul_rn(value, r), s); };
    const float4 y =
        make_float4(scaled(f.x, scale.x), scaled(f.y, scale.y), scaled(f.z, scale.z), scaled(f.w, scale.w));
    store_four<kAligned>(to, c, cols, y);
    if (bf16)
      *reinterpret_cast<uint2*>(bf16 + blockIdx.x * x.cols + c) = make_uint2(bf16_pair(y.x, y.y), bf16_pair(y.z, y.w));
  };
#pragma unroll
  for (int i = 0; i < kKeptFours; ++i)
    if (column(i) < cols) put(column(i), v[i], weight[i]);
#pragma unroll 1
  for (int i = kKeptFours; column(i) < cols; ++i)
    put(column(i), load_four<kAligned>(row, column(i), cols), load_four<kAligned>(w, column(i), cols));
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
__global__ void gather_kernel(Rows x, const int32_t* rows, Rows out) {
  begin_kernel();
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (c >= out.cols) return;
  const int64_t from = rows ? rows[blockIdx.y] : blockIdx.y;
  out.data[blockIdx.y * out.stride + c] = x.data[from * x.stride + c];
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

void launch_embed(const int32_t* tokens, const float* own, QuantFormat format, const uint8_t* table, size_t row_bytes,
                  const int32_t* row_order, Rows out, Queue& queue) {
  Launch{grid_of(out), 256, 0, queue}(embed_kernel, tokens, own, format, table, row_bytes, row_order, out);
}
void launch_rms_norm(Rows x, Rows addend, Planes planes, const Combination* combination, const float* w, float epsilon,
                     Rows out, uint16_t* bf16, Queue& queue) {
  const auto aligned = [](const void* p, int64_t stride) {
    return p == nullptr || (reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 4 == 0);
  };
  const Combination experts = combination ? *combination : Combination{};
  const bool fours = x.cols % 4 == 0 && aligned(x.data, x.stride) && aligned(addend.data, addend.stride) &&
                     aligned(planes.data, planes.stride) && aligned(experts.pairs.data, experts.pairs.stride) &&
                     aligned(experts.shared.data, experts.shared.stride) && aligned(w, 0) &&
                     aligned(out.data, out.stride);
  const auto kernel = combination ? (fours ? rms_norm_kernel<true, true> : rms_norm_kernel<false, true>)
                                  : (fours ? rms_norm_kernel<true, false> : rms_norm_kernel<false, false>);
  Launch{static_cast<unsigned>(x.rows), kNormThreads, 0, queue}(kernel, x, addend, planes, experts, w, epsilon, out,
                                                                bf16);
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
void launch_gather(Rows x, const int32_t* rows, Rows out, Queue& queue) {
  Launch{grid_of(out), 256, 0, queue}(gather_kernel, x, rows, out);
}
void launch_copy(Rows from, Rows to, Queue& queue) {
  Launch{grid_of(to), 256, 0, queue}(gather_kernel, from, nullptr, to);
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
