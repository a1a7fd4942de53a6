// Few rows of the gated delta net in one kernel: convolution, factors, the delta rule and the gated norm, each in the
// order of its own kernel (delta.cu, elementwise.cu), so with their bits. A block of threads takes a value head of a
// lane, a thread a column of its state.
#include "cuda/device.cuh"
#include "cuda/kernels.h"

namespace foretoken::cuda {
namespace {

constexpr int kTaps = 4;
constexpr int kChunkRows = 8;
constexpr int kMostRows = 64;

struct Columns {
  int query, key, value;  // channels of this thread
};

template <int kDim>  // of keys and values; threads of a block
constexpr int kWarps = kDim / 32;

// silu of the convolution of `count` rows from `first` on, for the thread's three channels.
template <class Put>
FORETOKEN_DEVICE void convolve(const Rows& packed, const float (&weight)[3][kTaps], const Columns& of, int channels,
                               const PassDesc& pass, const LaneDesc& lane, const float* tail, int first, int count,
                               Put put) {
  constexpr int kAtOnce = 2;  // rows whose inputs are on their way
  const int channel[3] = {of.query, of.key, of.value};
#pragma unroll 1
  for (int r = 0; r < count; r += kAtOnce) {
    float x[kAtOnce][3][kTaps];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (r + i >= count) break;
      const RowDesc desc = pass.rows[lane.first_row + first + r + i];
      const int32_t* path = pass.paths + desc.path;
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        const int at = desc.depth - (kTaps - 1) + j;  // along the path; negative: in the tail
        const float* from = at >= 0 ? packed.data + (lane.first_row + path[at]) * packed.stride
                                    : tail + static_cast<int64_t>(kTaps - 1 + at) * channels;
#pragma unroll
        for (int k = 0; k < 3; ++k) x[i][k][j] = from[channel[k]];
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (r + i >= count) break;
      float y[3];
#pragma unroll
      for (int k = 0; k < 3; ++k) {
        float acc = 0;
#pragma unroll
        for (int j = 0; j < kTaps; ++j) acc = fma(weight[k][j], x[i][k][j], acc);
        y[k] = silu(acc);
      }
      put(r + i, y, x[i][0][kTaps - 1], x[i][1][kTaps - 1], x[i][2][kTaps - 1]);
    }
  }
}

// The last rows of tail ++ settled rows, of one channel.
FORETOKEN_DEVICE void advance(const Rows& packed, const LaneDesc& lane, float* tail, int channels, int c) {
#pragma unroll
  for (int i = 0; i < kTaps - 1; ++i) {
    const int from = i + lane.settled - (kTaps - 1);
    tail[static_cast<int64_t>(i) * channels + c] =
        from < 0 ? tail[static_cast<int64_t>(from + kTaps - 1) * channels + c]
                 : packed.data[(lane.first_row + int64_t{from}) * packed.stride + c];
  }
}

template <int kDim>
__global__ void __launch_bounds__(kDim, 1)
    core_kernel(DeltaCore core, DeltaShape shape, PassDesc pass, DeltaLanes lanes) {
  __shared__ __align__(16) float keys[kMostRows][kDim];  // of all rows: trees go back to them
  __shared__ __align__(16) float queries[kChunkRows][kDim], values[kChunkRows][kDim], outs[kChunkRows][kDim];
  __shared__ float decays[kChunkRows], betas[kChunkRows];
  __shared__ int last_arrival;
  const int c = threadIdx.x, warp = c >> 5, lane_id = c & 31;
  const int head = blockIdx.x, key_head = shape.key_head_of(head), heads = shape.value_heads;
  const int key_columns = shape.key_heads * kDim, channels = shape.channels();
  const int sharing = heads / shape.key_heads;                                         // value heads of a key head
  const bool owns_key = shape.grouped ? head % sharing == 0 : head < shape.key_heads;  // writes what they share
  const Columns of{key_head * kDim + c, key_columns + key_head * kDim + c, 2 * key_columns + head * kDim + c};
  float weight[3][kTaps];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    weight[0][j] = core.weight[static_cast<int64_t>(of.query) * kTaps + j];
    weight[1][j] = core.weight[static_cast<int64_t>(of.key) * kTaps + j];
    weight[2][j] = core.weight[static_cast<int64_t>(of.value) * kTaps + j];
  }
  const float decay_rate = core.decay_rate[head], dt_bias = core.dt_bias[head];
  if (!lanes.many) {  // the state comes from far: into L2 while the kernel before ends
    const char* from = reinterpret_cast<const char*>(lanes.one.state + static_cast<int64_t>(head) * kDim * kDim);
#pragma unroll
    for (int i = 0; i < kDim * 4 / 128; ++i)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from + (i * kDim + c) * 128));
  }
  begin_kernel();
  const LaneDesc lane = pass.lanes[blockIdx.y];
  if (lane.rows == 0) return;
  const DeltaMemory memory = lanes[blockIdx.y];
  float* const cells = memory.state + static_cast<int64_t>(head) * kDim * kDim + c;
  const int64_t tape_stride = static_cast<int64_t>(heads) * kDim, out_at = static_cast<int64_t>(head) * kDim + c;

  float state[kDim];
  const auto load_state = [&] {
    const float* p = cells;
#pragma unroll
    for (int i = 0; i < kDim; ++i) {
      state[i] = *p;
      p += kDim;
      asm volatile(
          ""
          : "+l"(
              p)::"memory");  // an address at a time: 128 of them, kept for the next load, would not fit the registers
    }
  };
  const auto store_state = [&] {
    float* p = cells;
#pragma unroll
    for (int i = 0; i < kDim; ++i) {
      *p = state[i];
      p += kDim;
      asm volatile("" : "+l"(p)::"memory");
    }
  };
  load_state();
  int done = -1;       // the lane's row whose state is held; -1: the committed one
  bool begun = false;  // the state is decayed for the row that comes, and u is its product with the key
  float u = 0;
#pragma unroll 1
  for (int first = 0; first < lane.rows; first += kChunkRows) {
    const int count = min(kChunkRows, lane.rows - first);
    __syncthreads();
    convolve(core.packed, weight, of, channels, pass, lane, memory.tail, first, count,
             [&](int r, const float(&y)[3], float query_in, float key_in, float value_in) {
               queries[r][c] = y[0];
               keys[first + r][c] = y[1];
               values[r][c] = y[2];
               const int64_t i_row = first + r, row = lane.first_row + i_row;
               float* conv = core.conv.data + row * core.conv.stride;
               float* tape = memory.tape.conv_row + i_row * channels;
               const bool on_tape = i_row >= lane.settled;
               conv[of.value] = y[2];
               if (on_tape) tape[of.value] = value_in;
               if (!owns_key) return;
               conv[of.query] = y[0];
               conv[of.key] = y[1];
               if (on_tape) tape[of.query] = query_in, tape[of.key] = key_in;
             });
    if (c < count) {
      const int64_t row = lane.first_row + first + int64_t{c};
      const float* ba = core.beta_alpha.data + row * core.beta_alpha.stride;
      const float decay = exp(__fmul_rn(decay_rate, softplus(__fadd_rn(ba[heads + head], dt_bias))));
      decays[c] = decay;
      betas[c] = sigmoid(ba[head]);
      if (first + c >= lane.settled) memory.tape.decay[(first + int64_t{c}) * heads + head] = decay;
    }
    __syncthreads();
    for (int item = warp; item < 2 * count; item += kWarps<kDim>) {  // a warp a row's query or key
      const int r = item / 2;
      const bool is_key = item % 2 != 0;
      float* x = is_key ? keys[first + r] : queries[r];
      const float root = inverse_root(__fadd_rn(sum_of_squares(x, kDim), 1e-6f)),
                  scale = inverse_root(static_cast<float>(kDim));
      __syncwarp();
      for (int i = lane_id; i < kDim; i += 32) {
        const float v = __fmul_rn(x[i], root);
        x[i] = is_key ? v : __fmul_rn(v, scale);
        if (is_key && owns_key && first + r >= lane.settled)
          memory.tape.key[(first + int64_t{r}) * key_columns + key_head * kDim + i] = v;
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int r = 0; r < count; ++r) {
      const int i_row = first + r;
      const RowDesc desc = pass.rows[lane.first_row + i_row];
      if (desc.parent != done) {  // a sibling came between: the parent's state again, from the tape
        load_state();
        begun = false;
        const int32_t* path = pass.paths + desc.path;
#pragma unroll 1
        for (int j = lane.settled; j < desc.depth; ++j) {
          const int64_t ancestor = path[j];
          const float decay = memory.tape.decay[ancestor * heads + head],
                      d = memory.tape.delta[ancestor * tape_stride + out_at];
#pragma unroll
          for (int i = 0; i < kDim; i += 4) {
            const float4 four = *reinterpret_cast<const float4*>(&keys[ancestor][i]);
            state[i] = fma(four.x, d, __fmul_rn(decay, state[i]));
            state[i + 1] = fma(four.y, d, __fmul_rn(decay, state[i + 1]));
            state[i + 2] = fma(four.z, d, __fmul_rn(decay, state[i + 2]));
            state[i + 3] = fma(four.w, d, __fmul_rn(decay, state[i + 3]));
          }
        }
      }
      if (!begun) {
        const float decay = decays[r];
        u = 0;
#pragma unroll
        for (int i = 0; i < kDim; i += 4) {
          const float4 k = *reinterpret_cast<const float4*>(&keys[i_row][i]);
          const float kk[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            state[i + j] = __fmul_rn(decay, state[i + j]);
            u = fma(kk[j], state[i + j], u);
          }
        }
      }
      const float d = __fmul_rn(betas[r], __fsub_rn(values[r][c], u));
      asm volatile("" ::: "memory");  // keys are read again, not kept
      const bool boundary = i_row + 1 == lane.settled;
      // The next row of a chain begins where this one ends: both run at once.
      begun = !boundary && r + 1 < count && pass.rows[lane.first_row + i_row + 1].parent == i_row;
      float o = 0;
      if (begun) {
        const float decay = decays[r + 1];
        u = 0;
#pragma unroll
        for (int i = 0; i < kDim; i += 4) {
          const float4 k = *reinterpret_cast<const float4*>(&keys[i_row][i]),
                       q = *reinterpret_cast<const float4*>(&queries[r][i]);
          const float4 n = *reinterpret_cast<const float4*>(&keys[i_row + 1][i]);
          const float kk[4] = {k.x, k.y, k.z, k.w}, qq[4] = {q.x, q.y, q.z, q.w}, nn[4] = {n.x, n.y, n.z, n.w};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float s = fma(kk[j], d, state[i + j]);
            o = fma(qq[j], s, o);
            state[i + j] = __fmul_rn(decay, s);
            u = fma(nn[j], state[i + j], u);
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < kDim; i += 4) {
          const float4 k = *reinterpret_cast<const float4*>(&keys[i_row][i]),
                       q = *reinterpret_cast<const float4*>(&queries[r][i]);
          const float kk[4] = {k.x, k.y, k.z, k.w}, qq[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            state[i + j] = fma(kk[j], d, state[i + j]);
            o = fma(qq[j], state[i + j], o);
          }
        }
      }
      outs[r][c] = o;
      if (i_row >= lane.settled) memory.tape.delta[static_cast<int64_t>(i_row) * tape_stride + out_at] = d;
      done = i_row;
      if (boundary) store_state();
    }
    __syncthreads();
    for (int r = warp; r < count; r += kWarps<kDim>) {  // a warp a row's norm
      const int64_t row = lane.first_row + first + int64_t{r};
      const float root =
          inverse_root(__fadd_rn(__fdiv_rn(sum_of_squares(outs[r], kDim), static_cast<float>(kDim)), core.epsilon));
      const float* gate = core.gate.data + row * core.gate.stride + static_cast<int64_t>(head) * kDim;
      for (int i = lane_id; i < kDim; i += 32) {
        const float g = gate[i], v = __fmul_rn(__fmul_rn(__fmul_rn(outs[r][i], root), core.norm[i]),
                                               core.sigmoid_gate ? sigmoid(g) : silu(g));
        const int64_t column = static_cast<int64_t>(head) * kDim + i;
        core.out.data[row * core.out.stride + column] = v;
        if (core.bf16) core.bf16[row * core.out.cols + column] = __bfloat16_as_ushort(to_bf16(v));
      }
    }
  }
  if (lane.settled == 0) return;
  // The tail: a value head's channels are its own; the last of those that read a key head's advances them.
  __syncthreads();
  advance(core.packed, lane, memory.tail, channels, of.value);
  if (c == 0) {
    int* arrivals = core.arrivals + static_cast<int64_t>(blockIdx.y) * shape.key_heads + key_head;
    __threadfence();
    last_arrival = atomicAdd(arrivals, 1) == sharing - 1;
    if (last_arrival) *arrivals = 0;
  }
  __syncthreads();
  if (!last_arrival) return;
  advance(core.packed, lane, memory.tail, channels, of.query);
  advance(core.packed, lane, memory.tail, channels, of.key);
}

}  // namespace

bool delta_core_runs(const DeltaShape& shape, int most_rows) {
  return (shape.key_dim == 128 || shape.key_dim == 64) && shape.value_dim == shape.key_dim && shape.kernel == kTaps &&
         most_rows <= kMostRows && shape.value_heads % shape.key_heads == 0;
}

void launch_delta_core(const DeltaCore& core, const DeltaShape& shape, const PassDesc& pass, const DeltaLanes& lanes,
                       Queue& queue) {
  const Launch launch{dim3(static_cast<unsigned>(shape.value_heads), static_cast<unsigned>(pass.lane_count)),
                      static_cast<unsigned>(shape.key_dim), 0, queue};
  if (shape.key_dim == 128) launch(core_kernel<128>, core, shape, pass, lanes);
  else launch(core_kernel<64>, core, shape, pass, lanes);
}

}  // namespace foretoken::cuda
