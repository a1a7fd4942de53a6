// Norms, sums and the causal convolution, written once over simd.h. Definition: docs/numerics.md, the same operations
// per lane.
namespace foretoken::cpu::FORETOKEN_ISA {
namespace {

// The first `count` values, 1..16 and more: the last vector of a row may be partial.
FORETOKEN_SIMD F32x16 load_part(const float* p, int count) {
  return count >= 16 ? load_f32(p) : load_first_f32(p, count);
}
FORETOKEN_SIMD void store_part(float* p, F32x16 x, int count) {
  if (count >= 16) store(p, x);
  else store_first(p, x, count);
}

// canonical::sum_of_squares: element i in lane i mod 16, zeros behind the end.
FORETOKEN_SIMD float sum_of_squares(const float* x, int64_t n) {
  F32x16 lanes = zero_f32();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F32x16 v = load_f32(x + i);
    lanes = fma(v, v, lanes);
  }
  if (i < n) {
    const F32x16 v = load_first_f32(x + i, static_cast<int>(n - i));
    lanes = fma(v, v, lanes);
  }
  return fold_sum(lanes);
}

FORETOKEN_SIMD float rms_scale(const float* x, int64_t n, float epsilon) {
  return 1.0f / __builtin_sqrtf(sum_of_squares(x, n) / static_cast<float>(n) + epsilon);
}

FORETOKEN_SIMD void scale_by_weight(const float* x, float r, const float* weight, int64_t n, float* out) {
  const F32x16 factor = set_f32(r);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(out + i, mul(mul(load_f32(x + i), factor), load_f32(weight + i)));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    store_first(out + i, mul(mul(load_first_f32(x + i, rest), factor), load_first_f32(weight + i, rest)), rest);
  }
}

void rms_norm(const NormTask& task, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item / task.heads, column = item % task.heads * task.dim;
    const float* x = task.x + row * task.x_stride + column;
    scale_by_weight(x, rms_scale(x, task.dim, task.epsilon), task.weight, task.dim,
                    task.out + row * task.out_stride + column);
  }
}

FORETOKEN_SIMD F32x16 gate_of(F32x16 g, bool use_sigmoid) { return use_sigmoid ? sigmoid(g) : silu(g); }

void gated_norm(const NormTask& task, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item / task.heads, column = item % task.heads * task.dim;
    const float* x = task.x + row * task.x_stride + column;
    const float* gate = task.gate + row * task.gate_stride + column;
    float* out = task.out + row * task.out_stride + column;
    const F32x16 factor = set_f32(rms_scale(x, task.dim, task.epsilon));
    int i = 0;
    for (; i + 16 <= task.dim; i += 16) {
      const F32x16 n = mul(mul(load_f32(x + i), factor), load_f32(task.weight + i));
      store(out + i, mul(n, gate_of(load_f32(gate + i), task.sigmoid_gate)));
    }
    if (i < task.dim) {
      const int rest = task.dim - i;
      const F32x16 n = mul(mul(load_first_f32(x + i, rest), factor), load_first_f32(task.weight + i, rest));
      store_first(out + i, mul(n, gate_of(load_first_f32(gate + i, rest), task.sigmoid_gate)), rest);
    }
  }
}

void add_rows(const float* x, float* inout, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(inout + i, add(load_f32(inout + i), load_f32(x + i)));
  if (i < count) {
    const int rest = static_cast<int>(count - i);
    store_first(inout + i, add(load_first_f32(inout + i, rest), load_first_f32(x + i, rest)), rest);
  }
}

FORETOKEN_SIMD void copy_floats(const float* from, int64_t count, float* to) {
  __builtin_memmove(to, from, static_cast<size_t>(count) * sizeof(float));
}

// kKernel taps, or task.kernel of them when 0.
template <int kKernel>
void conv_channels(const ConvTask& task, int64_t begin, int64_t end) {
  alignas(64) float taps[kMaxConvKernel][kConvChannels];  // transposed, so that lanes are channels
  const int kernel = kKernel ? kKernel : task.kernel;
  const int count = static_cast<int>(end - begin);
  int transposed = 0;
  if (kKernel == 4 && task.weight_stride == 4) {
    for (; transposed + 16 <= count; transposed += 16) {
      F32x16 columns[4];
      load_columns_of_4(task.weight + (begin + transposed) * 4, columns);
      FORETOKEN_UNROLL for (int j = 0; j < 4; ++j) store(taps[j] + transposed, columns[j]);
    }
  }
  for (int c = transposed; c < count; ++c)
    for (int j = 0; j < kernel; ++j) taps[j][c] = task.weight[(begin + c) * task.weight_stride + j];
  for (int64_t r = 0; r < task.row_count; ++r) {
    const ConvRow& row = task.rows[r];
    int c = 0;
    for (; c + 16 <= count; c += 16) {
      F32x16 acc = zero_f32();
      for (int j = 0; j < kernel; ++j) acc = fma(load_f32(taps[j] + c), load_f32(row.inputs[j] + begin + c), acc);
      store(row.out + begin + c, silu(acc));
    }
    if (c < count) {
      const int rest = count - c;
      F32x16 acc = zero_f32();
      for (int j = 0; j < kernel; ++j)
        acc = fma(load_first_f32(taps[j] + c, rest), load_first_f32(row.inputs[j] + begin + c, rest), acc);
      store_first(row.out + begin + c, silu(acc), rest);
    }
    if (row.tape) copy_floats(row.inputs[kernel - 1] + begin, count, row.tape + begin);
  }
  for (int64_t m = 0; m < task.move_count; ++m)
    copy_floats(task.moves[m].from + begin, count, task.moves[m].to + begin);
}

void causal_conv(const ConvTask& task, int64_t begin, int64_t end) {
  for (int64_t c = begin; c < end; c += kConvChannels) {
    const int64_t last = c + kConvChannels < end ? c + kConvChannels : end;
    if (task.kernel == 4) conv_channels<4>(task, c, last);
    else conv_channels<0>(task, c, last);
  }
}

constexpr ElementwiseKernels elementwise_kernels() {
  return {.rms_norm = rms_norm, .gated_norm = gated_norm, .add = add_rows, .causal_conv = causal_conv};
}

}  // namespace
}  // namespace foretoken::cpu::FORETOKEN_ISA
