// Operators on single rows: embedding, norms, sums, copies, rotary angles. Norms over a whole row sum in an order of
// their own (512 chains, folded); everything else has the reference's order.
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
constexpr int kKept = 12;  // elements of a thread that stay in registers

// Thread j adds the squares of elements j, j + 512, ...; lanes fold 16, 8, 4, 2, 1; warps are added in ascending order.
__global__ void __launch_bounds__(kNormThreads)
    rms_norm_kernel(Rows x, Rows addend, Planes planes, const float* w, float epsilon, Rows out, uint16_t* bf16) {
  __shared__ float warps[kNormThreads / 32];
  float weight[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int64_t c = threadIdx.x + i * kNormThreads;
    weight[i] = c < x.cols ? __ldg(w + c) : 0.0f;
  }
  begin_kernel();
  float* row = x.data + blockIdx.x * x.stride;
  float* more = addend.data ? addend.data + blockIdx.x * addend.stride : nullptr;
  const int64_t at = blockIdx.x * x.cols;
  // Everything is requested before anything is stored.
  float v[kKept], added[kKept] = {}, sum = 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int64_t c = threadIdx.x + i * kNormThreads;
    v[i] = c < x.cols ? row[c] : 0.0f;
    if (more && planes.count == 0) added[i] = c < x.cols ? more[c] : 0.0f;
  }
#pragma unroll 4
  for (int p = 0; p < planes.count; ++p) {
    float plane[kKept];
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const int64_t c = threadIdx.x + i * kNormThreads;
      plane[i] = c < x.cols ? planes.data[p * planes.stride + at + c] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kKept; ++i) added[i] = __fadd_rn(added[i], plane[i]);
  }
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int64_t c = threadIdx.x + i * kNormThreads;
    if (more) v[i] = __fadd_rn(v[i], added[i]);
    if (more && c < x.cols) {
      row[c] = v[i];
      if (planes.count > 0) more[c] = added[i];
    }
    sum = fma(v[i], v[i], sum);
  }
  for (int64_t c = threadIdx.x + kKept * kNormThreads; c < x.cols; c += kNormThreads) {
    float y = row[c];
    if (more) {
      float addend = planes.count == 0 ? more[c] : 0.0f;
      for (int p = 0; p < planes.count; ++p) addend = __fadd_rn(addend, planes.data[p * planes.stride + at + c]);
      if (planes.count > 0) more[c] = addend;
      row[c] = y = __fadd_rn(y, addend);
    }
    sum = fma(y, y, sum);
  }
  for (int s = 16; s > 0; s /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, s));
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = sum;
  __syncthreads();
  sum = warps[0];
#pragma unroll
  for (int i = 1; i < kNormThreads / 32; ++i) sum = __fadd_rn(sum, warps[i]);
  const float r = inverse_root(__fadd_rn(__fdiv_rn(sum, static_cast<float>(x.cols)), epsilon));
  float* to = out.data + blockIdx.x * out.stride;
  uint16_t* rounded = bf16 ? bf16 + at : nullptr;
  const auto put = [&](int64_t c, float value, float scale) {
    const float y = __fmul_rn(__fmul_rn(value, r), scale);
    to[c] = y;
    if (rounded) rounded[c] = __bfloat16_as_ushort(to_bf16(y));
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int64_t c = threadIdx.x + i * kNormThreads;
    if (c < x.cols) put(c, v[i], weight[i]);
  }
  for (int64_t c = threadIdx.x + kKept * kNormThreads; c < x.cols; c += kNormThreads) put(c, row[c], __ldg(w + c));
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

dim3 grid_of(const Rows& rows) { return dim3(blocks(rows.cols, 256), static_cast<unsigned>(rows.rows)); }

}  // namespace

void launch_embed(const int32_t* tokens, const float* own, QuantFormat format, const uint8_t* table, size_t row_bytes,
                  const int32_t* row_order, Rows out, Queue& queue) {
  Launch{grid_of(out), 256, 0, queue}(embed_kernel, tokens, own, format, table, row_bytes, row_order, out);
}
void launch_rms_norm(Rows x, Rows addend, Planes planes, const float* w, float epsilon, Rows out, uint16_t* bf16,
                     Queue& queue) {
  Launch{static_cast<unsigned>(x.rows), kNormThreads, 0, queue}(rms_norm_kernel, x, addend, planes, w, epsilon, out,
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
void launch_rotary(const int32_t* positions, const float* frequency, const uint8_t* axis, float magnitude, Rows table,
                   Queue& queue) {
  Launch{blocks(table.rows * (table.cols / 2), 128), 128, 0, queue}(rotary_kernel, positions, frequency, axis,
                                                                    magnitude, table);
}

}  // namespace foretoken::cuda
