// Few rows of the gated delta net in one kernel: convolution, factors, the delta rule and the gated norm, each in the
// order of its own kernel (delta.cu, elementwise.cu), so with their bits. A block of threads takes a value head of a
// lane, a thread a column of its state.
#include <type_traits>

#include "cuda/bulk.cuh"
#include "cuda/kernels.h"
#include "cuda/plans.h"

namespace foretoken::cuda {
namespace {

constexpr int kTaps = kCoreTaps, kChunkRows = kCoreChunkRows;
constexpr int kWindowRows = kChunkRows + kTaps - 1;

// What goes from group to group (kRelay).
template <int kDim>
struct Relayed {
  float o[2][kDim], u[2][kDim], d[kDim];
};
struct Nothing {};

// Threads of a block: the keys' and values' dimension. Loops over the state are short, since code that runs once is
// slow to fetch.
template <int kDim, int kMostRows>
struct Memory {
  float state[kDim][kDim];      // [key][column]
  float keys[kMostRows][kDim];  // of all rows: trees go back to them
  float queries[kChunkRows][kDim], values[kChunkRows][kDim];
  float window[kWindowRows][3][kDim];  // what the convolution reads; then results
  float decays[kChunkRows], betas[kChunkRows], roots[kChunkRows];
  // Where there is less room it is the state's, which groups that relay have in registers before.
  static constexpr bool kOwnRelayed = kMostRows == kMostCoreRows;
  std::conditional_t<kOwnRelayed, Relayed<kDim>, Nothing> own_relayed;
  int last_arrival;
  uint64_t state_here;
  __device__ __forceinline__ Relayed<kDim>& relayed() {
    if constexpr (kOwnRelayed) return own_relayed;
    else return *reinterpret_cast<Relayed<kDim>*>(&state[0][0]);
  }
};

// sum_of_squares of two vectors of n by the halves of a warp.
FORETOKEN_DEVICE float half_sum_of_squares(const float* x, int n) {
  const int lane = threadIdx.x & 15;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < n; i += 16) sum = fma(x[i + lane], x[i + lane], sum);
  for (int s = 8; s > 0; s /= 2) sum = __fadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, s, 16));
  return __shfl_sync(0xFFFFFFFFu, sum, 0, 16);
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

FORETOKEN_DEVICE void four(const float* from, float (&to)[4]) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

// ---- The rule by all three groups. Each keeps its own keys of a column in registers, and the sums go from group to
// group, so that they are one chain in the order of the keys; the last knows what joins the state, and tells the
// others. The loops are short enough to stay where code is fetched at once, and no cell goes through shared memory.

template <int kDim>
constexpr int kOwnKeys = (kDim / 4 + 2) / 3 * 4;

// Barriers of a warp of columns: from a group to the next, and from the last group to the others.
template <int kDim>
struct Relay {
  static constexpr int kWarps = kDim / 32;
  int columns;  // which warp of columns
  __device__ __forceinline__ void hand_on(int group) const {
    asm volatile("bar.arrive %0, 64;" ::"r"(1 + group * kWarps + columns) : "memory");
  }
  __device__ __forceinline__ void take_over(int group) const {
    asm volatile("bar.sync %0, 64;" ::"r"(1 + (group - 1) * kWarps + columns) : "memory");
  }
  __device__ __forceinline__ void announce() const {
    asm volatile("bar.arrive %0, 96;" ::"r"(1 + 2 * kWarps + columns) : "memory");
  }
  __device__ __forceinline__ void hear() const {
    asm volatile("bar.sync %0, 96;" ::"r"(1 + 2 * kWarps + columns) : "memory");
  }
};

// The state times the decay of the row that comes, and u with the own keys' terms.
template <int kDim>
FORETOKEN_DEVICE float enter_row(float (&s)[kOwnKeys<kDim>], int own, float decay, const float* key, float u) {
#pragma unroll
  for (int i = 0; i < kOwnKeys<kDim>; i += 4) {
    if (i >= own) break;
    float k[4];
    four(key + i, k);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[i + e] = __fmul_rn(decay, s[i + e]);
      u = fma(k[e], s[i + e], u);
    }
  }
  return u;
}

// From the state times the row's decay to that times the next row's decay: the row's output and u of the next one with
// the own keys' terms. kStores: `cells` get the state between the two.
template <int kDim, bool kStores>
FORETOKEN_DEVICE void pass_row(float (&s)[kOwnKeys<kDim>], int own, float d, const float* key, const float* query,
                               float next_decay, const float* next_key, float* cells, float& o, float& u) {
#pragma unroll
  for (int i = 0; i < kOwnKeys<kDim>; i += 4) {
    if (i >= own) break;
    float k[4], q[4], n[4];
    four(key + i, k);
    four(query + i, q);
    four(next_key + i, n);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float cell = fma(k[e], d, s[i + e]);
      o = fma(q[e], cell, o);
      if constexpr (kStores) cells[(i + e) * kDim] = cell;
      s[i + e] = __fmul_rn(next_decay, cell);
      u = fma(n[e], s[i + e], u);
    }
  }
}

constexpr int core_threads(int dim) { return 3 * dim; }

// Threads are three groups of kDim: of the queries', the keys' and the values' channels, then of rows. The rule is the
// first group's, or with kRelay, for passes of several rows, of all three.
template <int kDim, int kMostRows, bool kRelay>
__global__ void __launch_bounds__(core_threads(kDim), kRelay ? 1 : 2)
    core_kernel(DeltaCore core, DeltaShape shape, PassDesc pass, DeltaLanes lanes) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto& m = *reinterpret_cast<Memory<kDim, kMostRows>*>(shared);
  constexpr int kWarps = core_threads(kDim) / 32;
  const int thread = threadIdx.x, group = thread / kDim, c = thread % kDim, warp = thread >> 5, lane_id = thread & 31;
  const int head = blockIdx.x, key_head = shape.key_head_of(head), heads = shape.value_heads;
  const int key_columns = shape.key_heads * kDim, channels = shape.channels();
  const int sharing = heads / shape.key_heads;                                         // value heads of a key head
  const bool owns_key = shape.grouped ? head % sharing == 0 : head < shape.key_heads;  // writes what they share
  const int channel = group == 2 ? 2 * key_columns + head * kDim + c : group * key_columns + key_head * kDim + c;
  float weight[kTaps];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) weight[j] = core.weight[static_cast<int64_t>(channel) * kTaps + j];
  const float norm_weight = core.norm[c], rate = core.decay_rate[head], bias = core.dt_bias[head];
  // Descriptions come from the host: they are there before the kernel before ends.
  const LaneDesc lane = pass.lanes[blockIdx.y];
  const DeltaMemory memory = lanes[blockIdx.y];
  if (!lanes.many) {  // the state comes from far: into L2 while the kernel before ends
    const char* from = reinterpret_cast<const char*>(lanes.one.state + static_cast<int64_t>(head) * kDim * kDim);
    for (int i = thread; i < kDim * kDim * 4 / 128; i += core_threads(kDim))
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i * 128));
  }
  if (thread == 0) {
    barrier_init(m.state_here, kRequesters);
    fence_barriers();
  }
  meet_requesters();
  begin_kernel();
  if (lane.rows == 0) return;
  float* const cells = memory.state + static_cast<int64_t>(head) * kDim * kDim + c;
  const int64_t tape_stride = static_cast<int64_t>(heads) * kDim, out_at = static_cast<int64_t>(head) * kDim + c;
  if (threadIdx.x < kRequesters) {  // each of them has its own column in `cells`
    barrier_expect(m.state_here, sizeof(m.state));
    bulk_copy(shared_address(m.state), cells - thread % kRequesters, sizeof(m.state), shared_address(&m.state_here));
    barrier_requested(m.state_here);
  }
  int done = -1;       // the lane's row whose state is held; -1: the committed one
  bool begun = false;  // u is that of the row that comes
  float u = 0;
  [[maybe_unused]] float held[kOwnKeys<kDim>];
  const int first_key = group * kOwnKeys<kDim>, own_keys = min(kOwnKeys<kDim>, kDim - first_key);
  // Rows of a short chain that become the tail.
  const bool keeps_tail = lane.chain && lane.rows <= kChunkRows;
  float tail_rows[kTaps - 1] = {};
#pragma unroll 1
  for (int first = 0; first < lane.rows; first += kChunkRows) {
    const int count = min(kChunkRows, lane.rows - first);
    __syncthreads();
    // What is read late is asked for early.
    if (warp == kWarps - 1 && lane_id / 4 < count && lane_id % 4 * 32 < kDim)
      into_l1(core.gate.data + (lane.first_row + first + int64_t{lane_id / 4}) * core.gate.stride + head * kDim +
              lane_id % 4 * 32);
    float alpha = 0, beta = 0;
    if (group == 2 && c < count) {
      const float* ba = core.beta_alpha.data + (lane.first_row + first + int64_t{c}) * core.beta_alpha.stride;
      alpha = ba[heads + head];
      beta = ba[head];
    }
    // ---- Convolution. Every thread reads and writes its own column of the window.
    if (lane.chain) {
      float x[kWindowRows];
#pragma unroll
      for (int i = 0; i < kWindowRows; ++i) {
        const int at = first + i - (kTaps - 1);  // negative: in the tail
        const float* from = at >= 0 ? core.packed.data + (lane.first_row + int64_t{at}) * core.packed.stride
                                    : memory.tail + static_cast<int64_t>(kTaps - 1 + at) * channels;
        x[i] = i < count + kTaps - 1 ? from[channel] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kWindowRows; ++i) m.window[i][group][c] = x[i];
    }
#pragma unroll(kRelay ? 2 : 1)
    for (int r = 0; r < count; ++r) {
      const int64_t i_row = first + r, row = lane.first_row + i_row;
      int base = r;
      if (!lane.chain) {
        base = 0;
        const RowDesc desc = pass.rows[row];
        const int32_t* path = pass.paths + desc.path;
        float x[kTaps];
#pragma unroll
        for (int j = 0; j < kTaps; ++j) {
          const int at = desc.depth - (kTaps - 1) + j;  // along the path; negative: in the tail
          const float* from = at >= 0 ? core.packed.data + (lane.first_row + int64_t{path[at]}) * core.packed.stride
                                      : memory.tail + static_cast<int64_t>(kTaps - 1 + at) * channels;
          x[j] = from[channel];
        }
#pragma unroll
        for (int j = 0; j < kTaps; ++j) m.window[j][group][c] = x[j];
      }
      float acc = 0, x = 0;
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        x = m.window[base + j][group][c];
        acc = fma(weight[j], x, acc);
      }
      const float y = silu(acc);
      (group == 0 ? m.queries[r] : group == 1 ? m.keys[i_row] : m.values[r])[c] = y;
      if (group < 2 && !owns_key) continue;
      core.conv.data[row * core.conv.stride + channel] = y;
      if (i_row >= lane.settled) memory.tape.conv_row[i_row * channels + channel] = x;
    }
    if (keeps_tail) {
#pragma unroll
      for (int i = 0; i < kTaps - 1; ++i) {
        tail_rows[i] = m.window[lane.settled + i][group][c];
        if (group == 2 && lane.settled > 0) memory.tail[static_cast<int64_t>(i) * channels + channel] = tail_rows[i];
      }
    }
    if (group == 2 && c < count) {
      const float decay = exp(__fmul_rn(rate, softplus(__fadd_rn(alpha, bias))));
      m.decays[c] = decay;
      m.betas[c] = sigmoid(beta);
      if (first + c >= lane.settled) memory.tape.decay[(first + int64_t{c}) * heads + head] = decay;
    }
    __syncthreads();
    // ---- Factors: a warp a row, half of it the query, half the key.
    for (int r = warp; r < count; r += kWarps) {
      const bool is_key = lane_id >= 16;
      float* x = is_key ? m.keys[first + r] : m.queries[r];
      const float root = inverse_root(__fadd_rn(half_sum_of_squares(x, kDim), 1e-6f)),
                  scale = inverse_root(static_cast<float>(kDim));
      __syncwarp();
#pragma unroll 4
      for (int i = lane_id & 15; i < kDim; i += 16) {
        const float v = __fmul_rn(x[i], root);
        x[i] = is_key ? v : __fmul_rn(v, scale);
        if (is_key && owns_key && first + r >= lane.settled)
          memory.tape.key[(first + int64_t{r}) * key_columns + key_head * kDim + i] = v;
      }
    }
    if (first == 0) {
      barrier_wait(m.state_here, 0);
      if constexpr (kRelay)
#pragma unroll
        for (int i = 0; i < kOwnKeys<kDim>; ++i) held[i] = i < own_keys ? m.state[first_key + i][c] : 0.0f;
    }
    __syncthreads();
    if (keeps_tail && lane.settled > 0 && thread == 2 * kDim) {  // all of this block have read the tail
      int* arrivals = core.arrivals + static_cast<int64_t>(blockIdx.y) * shape.key_heads + key_head;
      __threadfence();
      m.last_arrival = atomicAdd(arrivals, 1) == sharing - 1;
      if (m.last_arrival) *arrivals = 0;
    }
    // ---- The rule. The window's room takes results.
    if constexpr (kRelay) {
      const Relay<kDim> relay{warp % (kDim / 32)};
      Relayed<kDim>& relayed = m.relayed();
      const bool is_first = group == 0, is_last = group == 2;
#pragma unroll 1
      for (int r = 0; r < count; ++r) {
        const int i_row = first + r;
        if (!lane.chain && pass.rows[lane.first_row + i_row].parent != done) {
          // A sibling came between: the parent's state again, from the tape.
          begun = false;
#pragma unroll
          for (int i = 0; i < kOwnKeys<kDim>; ++i)
            if (i < own_keys) held[i] = cells[(first_key + i) * kDim];
          const RowDesc desc = pass.rows[lane.first_row + i_row];
          const int32_t* path = pass.paths + desc.path;
#pragma unroll 1
          for (int j = lane.settled; j < desc.depth; ++j) {
            const int64_t ancestor = path[j];
            const float decay = memory.tape.decay[ancestor * heads + head],
                        d = memory.tape.delta[ancestor * tape_stride + out_at];
#pragma unroll
            for (int i = 0; i < kOwnKeys<kDim>; ++i)
              if (i < own_keys) held[i] = fma(m.keys[ancestor][first_key + i], d, __fmul_rn(decay, held[i]));
          }
        }
        if (!begun) {
          if (!is_first) relay.take_over(group);
          u = enter_row<kDim>(held, own_keys, m.decays[r], &m.keys[i_row][first_key],
                              is_first ? 0.0f : relayed.u[group - 1][c]);
          if (!is_last) {
            relayed.u[group][c] = u;
            relay.hand_on(group);
          }
        }
        float d;
        if (is_last) {
          d = __fmul_rn(m.betas[r], __fsub_rn(m.values[r][c], u));
          relayed.d[c] = d;
          if (i_row >= lane.settled) memory.tape.delta[static_cast<int64_t>(i_row) * tape_stride + out_at] = d;
          relay.announce();
        } else {
          relay.hear();
          d = relayed.d[c];
        }
        // The next row of a chain begins where this one ends: both run at once.
        begun = r + 1 < count && (lane.chain || pass.rows[lane.first_row + i_row + 1].parent == i_row);
        done = i_row;
        if (!is_first) relay.take_over(group);
        float o = is_first ? 0.0f : relayed.o[group - 1][c];
        u = is_first ? 0.0f : relayed.u[group - 1][c];
        // One where no child follows: the state as it is.
        const float next_decay = begun ? m.decays[r + 1] : 1.0f;
        const float *key = &m.keys[i_row][first_key], *query = &m.queries[r][first_key],
                    *next_key = &m.keys[begun ? i_row + 1 : i_row][first_key];
        if (i_row + 1 == lane.settled)
          pass_row<kDim, true>(held, own_keys, d, key, query, next_decay, next_key, cells + first_key * kDim, o, u);
        else pass_row<kDim, false>(held, own_keys, d, key, query, next_decay, next_key, nullptr, o, u);
        if (is_last) {
          m.window[r][1][c] = o;
        } else {
          relayed.o[group][c] = o;
          relayed.u[group][c] = u;
          relay.hand_on(group);
        }
        // Nobody begins another chain before this one has come to its end.
        if (!begun && r + 1 < count) {
          if (is_last) relay.announce();
          else relay.hear();
        }
      }
    } else {
      // A thread has its own column.
#pragma unroll 1
      for (int r = 0; group == 0 && r < count; ++r) {
        const int i_row = first + r;
        if (!lane.chain && pass.rows[lane.first_row + i_row].parent != done) {
          // A sibling came between: the parent's state again, from the tape.
          begun = false;
#pragma unroll 16
          for (int i = 0; i < kDim; ++i) m.state[i][c] = cells[i * kDim];
          const RowDesc desc = pass.rows[lane.first_row + i_row];
          const int32_t* path = pass.paths + desc.path;
#pragma unroll 1
          for (int j = lane.settled; j < desc.depth; ++j) {
            const int64_t ancestor = path[j];
            const float decay = memory.tape.decay[ancestor * heads + head],
                        d = memory.tape.delta[ancestor * tape_stride + out_at];
#pragma unroll 2
            for (int i = 0; i < kDim; i += 4) {
              float k[4];
              four(&m.keys[ancestor][i], k);
#pragma unroll
              for (int e = 0; e < 4; ++e) m.state[i + e][c] = fma(k[e], d, __fmul_rn(decay, m.state[i + e][c]));
            }
          }
        }
        const float decay = m.decays[r];
        if (!begun) {
          u = 0;
#pragma unroll 4
          for (int i = 0; i < kDim; i += 4) {
            float k[4];
            four(&m.keys[i_row][i], k);
#pragma unroll
            for (int e = 0; e < 4; ++e) u = fma(k[e], __fmul_rn(decay, m.state[i + e][c]), u);
          }
        }
        const float d = __fmul_rn(m.betas[r], __fsub_rn(m.values[r][c], u));
        const bool boundary = i_row + 1 == lane.settled;
        // The next row of a chain begins where this one ends: both run at once.
        begun = r + 1 < count && (lane.chain || pass.rows[lane.first_row + i_row + 1].parent == i_row);
        const float next_decay = begun ? m.decays[r + 1] : 0.0f;
        const float* next_key = m.keys[begun ? i_row + 1 : i_row];
        if (i_row >= lane.settled) memory.tape.delta[static_cast<int64_t>(i_row) * tape_stride + out_at] = d;
        done = i_row;
        float o = 0;
        u = 0;
        constexpr int kAtOnce = 16;  // cells that are read before one is written
#pragma unroll 1
        for (int first_key = 0; first_key < kDim; first_key += kAtOnce) {
          float s[kAtOnce];
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) s[i] = m.state[first_key + i][c];
#pragma unroll
          for (int i = 0; i < kAtOnce; i += 4) {
            float k[4], q[4], n[4];
            four(&m.keys[i_row][first_key + i], k);
            four(&m.queries[r][first_key + i], q);
            four(next_key + first_key + i, n);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              s[i + e] = fma(k[e], d, __fmul_rn(decay, s[i + e]));
              o = fma(q[e], s[i + e], o);
              u = fma(n[e], __fmul_rn(next_decay, s[i + e]), u);
            }
          }
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) m.state[first_key + i][c] = s[i];
          if (boundary)
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) cells[(first_key + i) * kDim] = s[i];
        }
        m.window[r][1][c] = o;
      }
    }
    __syncthreads();
    // ---- The gated norm.
    for (int r = warp; r < count; r += kWarps) {
      const float sum = sum_of_squares(m.window[r][1], kDim);
      if (lane_id == 0) m.roots[r] = inverse_root(__fadd_rn(__fdiv_rn(sum, static_cast<float>(kDim)), core.epsilon));
    }
    __syncthreads();
#pragma unroll 1
    for (int r = group; r < count; r += 3) {
      const int64_t row = lane.first_row + first + int64_t{r};
      const float g = core.gate.data[row * core.gate.stride + out_at], x = m.window[r][1][c];
      const float v =
          __fmul_rn(__fmul_rn(__fmul_rn(x, m.roots[r]), norm_weight), core.sigmoid_gate ? sigmoid(g) : silu(g));
      core.out.data[row * core.out.stride + out_at] = v;
      if (core.bf16) core.bf16[row * core.out.cols + out_at] = __bfloat16_as_ushort(to_bf16(v));
    }
  }
  if (lane.settled == 0) return;
  // ---- The tail: a value head's channels are its own; the last of those that read a key head's advances them.
  if (keeps_tail) {
    if (!m.last_arrival || group == 2) return;
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i) memory.tail[static_cast<int64_t>(i) * channels + channel] = tail_rows[i];
    return;
  }
  __syncthreads();
  if (group == 2) advance(core.packed, lane, memory.tail, channels, channel);
  if (thread == 0) {
    int* arrivals = core.arrivals + static_cast<int64_t>(blockIdx.y) * shape.key_heads + key_head;
    __threadfence();
    m.last_arrival = atomicAdd(arrivals, 1) == sharing - 1;
    if (m.last_arrival) *arrivals = 0;
  }
  __syncthreads();
  if (!m.last_arrival || group == 2) return;
  advance(core.packed, lane, memory.tail, channels, channel);
}

template <int kDim, int kMostRows, bool kRelay>
void launch(const DeltaCore& core, const DeltaShape& shape, const PassDesc& pass, const DeltaLanes& lanes,
            Queue& queue) {
  using MemoryType = Memory<kDim, kMostRows>;
  static_assert(sizeof(MemoryType) <= core_bytes(kDim, kMostRows));
  Launch{dim3(static_cast<unsigned>(shape.value_heads), static_cast<unsigned>(pass.lane_count)), core_threads(kDim),
         sizeof(MemoryType), queue}(core_kernel<kDim, kMostRows, kRelay>, core, shape, pass, lanes);
}

template <int kDim, int kMostRows>
void launch(const DeltaCore& core, const DeltaShape& shape, const PassDesc& pass, const DeltaLanes& lanes,
            int most_rows, Queue& queue) {
  if (most_rows > 1 && core_relays(kDim, kMostRows, int64_t{shape.value_heads} * pass.lane_count, queue.limits()))
    launch<kDim, kMostRows, true>(core, shape, pass, lanes, queue);
  else launch<kDim, kMostRows, false>(core, shape, pass, lanes, queue);
}

}  // namespace

bool delta_core_runs(const DeltaShape& shape, int most_rows, const Limits& limits) {
  return (shape.key_dim == 128 || shape.key_dim == 64) && shape.value_dim == shape.key_dim && shape.kernel == kTaps &&
         most_rows <= core_rows(shape.key_dim, limits) && shape.value_heads % shape.key_heads == 0;
}

void launch_delta_core(const DeltaCore& core, const DeltaShape& shape, const PassDesc& pass, const DeltaLanes& lanes,
                       int most_rows, Queue& queue) {
  if (shape.key_dim == 64) launch<64, kMostCoreRows>(core, shape, pass, lanes, most_rows, queue);
  else if (core_rows(128, queue.limits()) == kMostCoreRows)
    launch<128, kMostCoreRows>(core, shape, pass, lanes, most_rows, queue);
  else launch<128, kFewCoreRows>(core, shape, pass, lanes, most_rows, queue);
}

}  // namespace foretoken::cuda
