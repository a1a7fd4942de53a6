// The gated delta net: convolution, the delta rule token by token, and replay. A thread owns one column of the state,
// in registers, for all rows of a lane; the order of operations is the reference's (docs/numerics.md section 5), so
// prompt, decode, chain, tree and replay have its bits.
#include <cstddef>

#include "cuda/bulk.cuh"
#include "cuda/kernels.h"

namespace foretoken::cuda {
namespace {

unsigned blocks(int64_t count, int threads) { return static_cast<unsigned>((count + threads - 1) / threads); }

// ---- Convolution. One thread a channel of kConvRows rows.

constexpr int kConvRows = 8, kTaps = 4;

FORETOKEN_DEVICE void put_conv(const Rows& packed, const DeltaShape& shape, const DeltaMemory& memory,
                               const LaneDesc& lane, int64_t row, int row_of_lane, int c, float acc, const Rows& out) {
  out.data[row * out.stride + c] = silu(acc);
  if (row_of_lane >= lane.settled)
    memory.tape.conv_row[static_cast<int64_t>(row_of_lane) * shape.channels() + c] =
        packed.data[row * packed.stride + c];
}

__global__ void conv_kernel(Rows packed, const float* weight, DeltaShape shape, PassDesc pass, DeltaLanes lanes,
                            Rows out) {
  begin_kernel();
  const int channels = shape.channels(), kernel = shape.kernel;
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  const int64_t first = blockIdx.y * int64_t{kConvRows};
  const int count = static_cast<int>(min(int64_t{kConvRows}, pass.row_count - first));
  const RowDesc begin = pass.rows[first];
  const LaneDesc lane = pass.lanes[begin.lane];
  if (kernel == kTaps && lane.chain && begin.row + count <= lane.rows) {  // rows of one chain read most of it once
    const DeltaMemory memory = lanes[begin.lane];
    float w[kTaps], x[kConvRows + kTaps - 1];
#pragma unroll
    for (int j = 0; j < kTaps; ++j) w[j] = weight[static_cast<int64_t>(c) * kTaps + j];
#pragma unroll
    for (int i = 0; i < kConvRows + kTaps - 1; ++i) {
      const int at = begin.row + i - (kTaps - 1);  // along the chain; negative: in the tail
      const float* from = at >= 0 ? packed.data + (lane.first_row + int64_t{at}) * packed.stride
                                  : memory.tail + static_cast<int64_t>(kTaps - 1 + at) * channels;
      x[i] = i < count + kTaps - 1 ? from[c] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kConvRows; ++i) {
      if (i >= count) break;
      float acc = 0;
#pragma unroll
      for (int j = 0; j < kTaps; ++j) acc = fma(w[j], x[i + j], acc);
      put_conv(packed, shape, memory, lane, first + i, begin.row + i, c, acc, out);
    }
    return;
  }
  for (int64_t row = first; row < first + count; ++row) {
    const RowDesc desc = pass.rows[row];
    const LaneDesc owner = pass.lanes[desc.lane];
    const DeltaMemory memory = lanes[desc.lane];
    const int32_t* path = pass.paths + desc.path;
    float acc = 0;
    for (int j = 0; j < kernel; ++j) {
      const int at = desc.depth - (kernel - 1) + j;  // along the path; negative: in the tail
      const float x = at >= 0 ? packed.data[(owner.first_row + path[at]) * packed.stride + c]
                              : memory.tail[static_cast<int64_t>(kernel - 1 + at) * channels + c];
      acc = fma(weight[static_cast<int64_t>(c) * kernel + j], x, acc);
    }
    put_conv(packed, shape, memory, owner, row, desc.row, c, acc, out);
  }
}

// The last kernel - 1 rows of tail ++ appended; `row(i)` is the i-th of `count`. One thread a channel, so nothing is
// overwritten early.
template <class Row>
FORETOKEN_DEVICE void advance_tail(const DeltaShape& shape, float* tail, int c, int count, Row row) {
  const int keep = shape.kernel - 1, channels = shape.channels();
  for (int i = 0; i < keep; ++i) {
    const int from = i + count;
    tail[static_cast<int64_t>(i) * channels + c] =
        from < keep ? tail[static_cast<int64_t>(from) * channels + c] : row(from - keep);
  }
}

__global__ void advance_kernel(Rows packed, DeltaShape shape, PassDesc pass, DeltaLanes lanes) {
  begin_kernel();
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  const LaneDesc lane = pass.lanes[blockIdx.y];
  if (c >= shape.channels() || lane.settled == 0) return;
  advance_tail(shape, lanes[blockIdx.y].tail, c, lane.settled,
               [&](int i) { return packed.data[(lane.first_row + int64_t{i}) * packed.stride + c]; });
}

// ---- Delta rule

// One warp normalises one key head's query or key, or computes a row's factors.
__global__ void __launch_bounds__(128)
    prepare_kernel(Rows conv, Rows beta_alpha, const float* decay_rate, const float* dt_bias, DeltaShape shape,
                   PassDesc pass, DeltaLanes lanes, DeltaScratch scratch) {
  begin_kernel();
  const int warp = threadIdx.x >> 5, lane_id = threadIdx.x & 31;
  const int64_t row = blockIdx.y;
  const int item = blockIdx.x * 4 + warp;
  const RowDesc desc = pass.rows[row];
  const bool on_tape = desc.row >= pass.lanes[desc.lane].settled;
  const DeltaTape tape = lanes[desc.lane].tape;
  const int key_columns = shape.key_heads * shape.key_dim;
  if (item < 2 * shape.key_heads) {
    const bool is_key = item >= shape.key_heads;
    const int first = (is_key ? item - shape.key_heads : item) * shape.key_dim;
    const float* x = conv.data + row * conv.stride + (is_key ? key_columns : 0) + first;
    const float r = inverse_root(__fadd_rn(sum_of_squares(x, shape.key_dim), 1e-6f));
    const float scale = inverse_root(static_cast<float>(shape.key_dim));
    float* to = (is_key ? scratch.key : scratch.query) + row * key_columns + first;
    for (int i = lane_id; i < shape.key_dim; i += 32) {
      const float v = __fmul_rn(x[i], r);
      to[i] = is_key ? v : __fmul_rn(v, scale);
      if (is_key && on_tape) tape.key[static_cast<int64_t>(desc.row) * key_columns + first + i] = v;
    }
  } else if (item == 2 * shape.key_heads) {
    const int heads = shape.value_heads;
    const float* ba = beta_alpha.data + row * beta_alpha.stride;
    for (int h = lane_id; h < heads; h += 32) {
      const float decay = exp(__fmul_rn(decay_rate[h], softplus(__fadd_rn(ba[heads + h], dt_bias[h]))));
      scratch.beta[row * heads + h] = sigmoid(ba[h]);
      scratch.decay[row * heads + h] = decay;
      if (on_tape) tape.decay[static_cast<int64_t>(desc.row) * heads + h] = decay;
    }
  }
}

constexpr int kColumns = 32;  // columns of one block: a warp
constexpr int kAhead = 8;     // rows whose keys, queries, values and factors are on their way or in use

// What one row brings to a block's columns.
template <int kKeys>
struct DeltaRow {
  float keys[kKeys], queries[kKeys], values[kColumns], decay, beta, unused[2];
};

// kKeys: key_dim, or with kPadded at least that: keys beyond key_dim are zeros and change nothing. Without it a row's
// keys begin at a multiple of sixteen bytes, and every column exists.
template <int kKeys, bool kPadded>
__global__ void __launch_bounds__(kColumns)
    delta_kernel(Rows conv, DeltaShape shape, PassDesc pass, DeltaLanes lanes, DeltaScratch scratch, Rows out) {
  begin_kernel();
  __shared__ __align__(16) DeltaRow<kKeys> ring[kAhead];
  __shared__ __align__(16) float ancestor_key[kKeys];
  const LaneDesc lane = pass.lanes[blockIdx.z];
  if (lane.rows == 0) return;
  const DeltaMemory memory = lanes[blockIdx.z];
  const int head = blockIdx.y, key_head = shape.key_head_of(head), thread = threadIdx.x;
  const int column = blockIdx.x * kColumns + thread;
  const bool active = !kPadded || column < shape.value_dim;
  const int key_dim = kPadded ? shape.key_dim : kKeys, key_columns = shape.key_heads * key_dim;
  float* cells = memory.state + static_cast<int64_t>(head) * key_dim * shape.value_dim + (active ? column : 0);
  const int64_t out_at = static_cast<int64_t>(head) * shape.value_dim + (active ? column : 0);
  const int64_t tape_stride = static_cast<int64_t>(shape.value_heads) * shape.value_dim;

  // Rows are asked for in order; threads 0 and 1 bring the factors.
  using Row = DeltaRow<kKeys>;
  constexpr int kOfThread = kPadded ? 0 : 4;  // keys
  static_assert(kPadded || kKeys <= kColumns * kOfThread);
  const int64_t key_at = lane.first_row * int64_t{key_columns} + key_head * key_dim + thread * kOfThread,
                factor_at = lane.first_row * int64_t{shape.value_heads} + head;
  const float *next_keys = scratch.key + key_at, *next_queries = scratch.query + key_at,
              *next_values = conv.data + lane.first_row * conv.stride + 2 * key_columns + out_at,
              *next_factor = (thread == 0 ? scratch.decay : scratch.beta) + factor_at;
  const uint32_t ring_at = kept(shared_address(ring) + static_cast<uint32_t>(thread) * 4);
  const auto request = [&](int r) {
    const uint32_t to = ring_at + static_cast<uint32_t>(r % kAhead * sizeof(Row));
    if (r < lane.rows) {
      if constexpr (kPadded) {
        for (int k = thread, at = 0; k < kKeys; k += kColumns, at += kColumns * 4) {
          copy_4(to + offsetof(Row, keys) + at, next_keys + (k < key_dim ? k : 0), k < key_dim);
          copy_4(to + offsetof(Row, queries) + at, next_queries + (k < key_dim ? k : 0), k < key_dim);
        }
      } else if (thread * kOfThread < kKeys) {
        copy_16(to + offsetof(Row, keys) + thread * 12, next_keys);
        copy_16(to + offsetof(Row, queries) + thread * 12, next_queries);
      }
      copy_4(to + offsetof(Row, values), next_values, active);
      if (thread < 2) copy_4(to + offsetof(Row, decay), next_factor, true);
      next_keys += key_columns, next_queries += key_columns, next_values += conv.stride;
      next_factor += shape.value_heads;
    }
    commit_copies();
  };
  for (int r = 0; r < kAhead; ++r) request(r);

  float state[kKeys];
  // Cells of idle threads are their block's first: loaded, never stored.
  const auto load_state = [&] {
    const float* p = cells;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      state[i] = !kPadded || i < key_dim ? *p : 0.0f;
      if (!kPadded || i + 1 < key_dim) p += shape.value_dim;
      asm volatile(
          ""
          : "+l"(
              p)::"memory");  // an address at a time: 128 of them, kept for the next load, would not fit the registers
    }
  };
  const auto store_state = [&] {
    if (!active) return;
    float* p = cells;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (!kPadded || i < key_dim) *p = state[i];
      p += shape.value_dim;
      asm volatile("" : "+l"(p)::"memory");
    }
  };
  load_state();
  int done = -1;       // the lane's row whose state is held; -1: the committed one
  bool begun = false;  // the state is decayed for the row that comes, and u is its product with the key
  float u = 0;
  float *result = out.data + lane.first_row * out.stride + out_at, *delta = memory.tape.delta + out_at;
#pragma unroll 1
  for (int r = 0; r < lane.rows; ++r) {
    const Row& now = ring[r % kAhead];
    const Row& next = ring[(r + 1) % kAhead];
    wait_copies<kAhead - 2>();  // this row and the next are here
    __syncwarp();
    const bool boundary = r + 1 == lane.settled;
    // The next row of a chain begins where this one ends: both run at once.
    bool begins = !boundary && r + 1 < lane.rows;
    if (!lane.chain) {
      const RowDesc desc = pass.rows[lane.first_row + r];
      begins = begins && pass.rows[lane.first_row + r + 1].parent == r;
      if (desc.parent != done) {
        // A sibling came between: the parent's state again, from the tape.
        load_state();
        begun = false;
        const int32_t* path = pass.paths + desc.path;
#pragma unroll 1
        for (int j = lane.settled; j < desc.depth; ++j) {
          const int64_t ancestor = path[j];
          const float decay = memory.tape.decay[ancestor * shape.value_heads + head];
          const float d = active ? memory.tape.delta[ancestor * tape_stride + out_at] : 0.0f;
          const float* k = memory.tape.key + ancestor * key_columns + static_cast<int64_t>(key_head) * key_dim;
          __syncwarp();
          for (int i = thread; i < kKeys; i += kColumns) ancestor_key[i] = i < key_dim ? k[i] : 0.0f;
          __syncwarp();
#pragma unroll
          for (int i = 0; i < kKeys; i += 4) {
            const float4 four = *reinterpret_cast<const float4*>(&ancestor_key[i]);
            state[i] = fma(four.x, d, __fmul_rn(decay, state[i]));
            state[i + 1] = fma(four.y, d, __fmul_rn(decay, state[i + 1]));
            state[i + 2] = fma(four.z, d, __fmul_rn(decay, state[i + 2]));
            state[i + 3] = fma(four.w, d, __fmul_rn(decay, state[i + 3]));
          }
        }
      }
    }
    if (!begun) {
      u = 0;
#pragma unroll
      for (int i = 0; i < kKeys; i += 4) {
        const float4 k = *reinterpret_cast<const float4*>(&now.keys[i]);
        const float kk[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          state[i + j] = __fmul_rn(now.decay, state[i + j]);
          u = fma(kk[j], state[i + j], u);
        }
      }
    }
    const float d = __fmul_rn(now.beta, __fsub_rn(now.values[thread], u)), decay = next.decay;
    asm volatile("" ::: "memory");  // keys are read again, not kept
    float o = 0;
    if (begins) {
      u = 0;
#pragma unroll
      for (int i = 0; i < kKeys; i += 4) {
        const float4 k = *reinterpret_cast<const float4*>(&now.keys[i]),
                     q = *reinterpret_cast<const float4*>(&now.queries[i]),
                     n = *reinterpret_cast<const float4*>(&next.keys[i]);
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
      for (int i = 0; i < kKeys; i += 4) {
        const float4 k = *reinterpret_cast<const float4*>(&now.keys[i]),
                     q = *reinterpret_cast<const float4*>(&now.queries[i]);
        const float kk[4] = {k.x, k.y, k.z, k.w}, qq[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          state[i + j] = fma(kk[j], d, state[i + j]);
          o = fma(qq[j], state[i + j], o);
        }
      }
    }
    begun = begins;
    done = r;
    if (active) *result = o;
    if (active && r >= lane.settled) *delta = d;
    result += out.stride, delta += tape_stride;
    if (boundary) {
      store_state();
      __threadfence_block();
    }
    __syncwarp();
    request(r + kAhead);
  }
}

constexpr int kReplayKeys = 8;  // of a thread, by four columns

// Rows in ascending order. Threads of the blocks from `state_blocks` on advance a channel of the tail each. Lanes of
// one shape in turn.
template <bool kVector>
__global__ void __launch_bounds__(128)
    replay_kernel(DeltaShape shape, const DeltaMemory* lanes, const int32_t* rows, int64_t state_blocks) {
  begin_kernel();
  const DeltaMemory lane = lanes[blockIdx.y];
  const int count = *rows++;
  if (blockIdx.x >= state_blocks) {
    const int c =
        static_cast<int>(blockIdx.x - state_blocks) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    const int channels = shape.channels();
    if (c >= channels) return;
    advance_tail(shape, lane.tail, c, count,
                 [&](int i) { return lane.tape.conv_row[static_cast<int64_t>(rows[i]) * channels + c]; });
    return;
  }
  const int64_t index = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  constexpr int kKeys = kVector ? kReplayKeys : 1, kColumns = kVector ? 4 : 1;
  const int64_t wide = shape.value_dim / kColumns, per_head = shape.key_dim / kKeys * wide;
  if (index >= per_head * shape.value_heads) return;
  const int head = static_cast<int>(index / per_head), key = static_cast<int>(index % per_head / wide) * kKeys;
  const int column = static_cast<int>(index % wide) * kColumns, key_head = shape.key_head_of(head);
  float* cells = lane.state + (static_cast<int64_t>(head) * shape.key_dim + key) * shape.value_dim + column;
  const auto load = [](float(&to)[kColumns], const float* from) {
    if constexpr (kVector) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else {
      to[0] = *from;
    }
  };
  float s[kKeys][kColumns];
#pragma unroll
  for (int k = 0; k < kKeys; ++k) load(s[k], cells + static_cast<int64_t>(k) * shape.value_dim);
#pragma unroll 4
  for (int j = 0; j < count; ++j) {
    const int64_t row = rows[j];
    const float decay = lane.tape.decay[row * shape.value_heads + head];
    const float* keys = lane.tape.key + (row * shape.key_heads + key_head) * shape.key_dim + key;
    float d[kColumns];
    load(d, lane.tape.delta + (row * shape.value_heads + head) * shape.value_dim + column);
#pragma unroll
    for (int k = 0; k < kKeys; ++k)
#pragma unroll
      for (int i = 0; i < kColumns; ++i) s[k][i] = fma(keys[k], d[i], __fmul_rn(decay, s[k][i]));
  }
#pragma unroll
  for (int k = 0; k < kKeys; ++k) {
    float* to = cells + static_cast<int64_t>(k) * shape.value_dim;
    if constexpr (kVector) *reinterpret_cast<float4*>(to) = make_float4(s[k][0], s[k][1], s[k][2], s[k][3]);
    else *to = s[k][0];
  }
}

}  // namespace

void launch_causal_conv(Rows packed, const float* weight, const DeltaShape& shape, const PassDesc& pass,
                        const DeltaLanes& lanes, bool advances, Rows out, Queue& queue) {
  const unsigned wide = blocks(shape.channels(), 256);
  Launch{dim3(wide, blocks(pass.row_count, kConvRows)), 256, 0, queue}(conv_kernel, packed, weight, shape, pass, lanes,
                                                                       out);
  if (advances && shape.kernel > 1)
    Launch{dim3(wide, static_cast<unsigned>(pass.lane_count)), 256, 0, queue}(advance_kernel, packed, shape, pass,
                                                                              lanes);
}

void launch_delta_rule(Rows conv, Rows beta_alpha, const float* decay_rate, const float* dt_bias,
                       const DeltaShape& shape, const PassDesc& pass, const DeltaLanes& lanes,
                       const DeltaScratch& scratch, Rows out, Queue& queue) {
  Launch{dim3(blocks(2 * shape.key_heads + 1, 4), static_cast<unsigned>(pass.row_count)), 128, 0, queue}(
      prepare_kernel, conv, beta_alpha, decay_rate, dt_bias, shape, pass, lanes, scratch);
  const dim3 grid(blocks(shape.value_dim, kColumns), static_cast<unsigned>(shape.value_heads),
                  static_cast<unsigned>(pass.lane_count));
  const auto launch = [&](auto kernel) {
    Launch{grid, kColumns, 0, queue}(kernel, conv, shape, pass, lanes, scratch, out);
  };
  const bool whole = shape.value_dim % kColumns == 0;
  if (whole && shape.key_dim == 128) launch(delta_kernel<128, false>);
  else if (whole && shape.key_dim == 64) launch(delta_kernel<64, false>);
  else if (shape.key_dim <= 16) launch(delta_kernel<16, true>);
  else launch(delta_kernel<128, true>);
}

void launch_commit_delta(const DeltaShape& shape, const DeltaMemory* lanes, int lane_count, const int32_t* rows,
                         Queue& queue) {
  constexpr int kThreads = 128;
  const bool vector = shape.key_dim % kReplayKeys == 0 && shape.value_dim % 4 == 0;
  const int64_t cells = static_cast<int64_t>(shape.state_floats());
  const unsigned state = blocks(vector ? cells / (4 * kReplayKeys) : cells, kThreads),
                 tail = shape.kernel > 1 ? blocks(shape.channels(), kThreads) : 0;
  const Launch launch{dim3(state + tail, static_cast<unsigned>(lane_count)), kThreads, 0, queue};
  if (vector) launch(replay_kernel<true>, shape, lanes, rows, state);
  else launch(replay_kernel<false>, shape, lanes, rows, state);
}

}  // namespace foretoken::cuda
