// Few rows of the gated delta net in one kernel: convolution, factors, the delta rule and the gated norm, each in the
// order of its own kernel (delta.cu, elementwise.cu), so with their bits. A block of threads takes a value head of a
// lane.
#include "cuda/bulk.cuh"
#include "cuda/delta.cuh"
#include "cuda/kernels.h"
#include "cuda/plans.h"

namespace foretoken::cuda {
namespace {

constexpr int kTaps = kCoreTaps, kChunkRows = kCoreChunkRows;
constexpr int kWindowRows = kChunkRows + kTaps - 1;

template <int kDim>
struct Memory {
  using Places = KeyPlaces<kDim>;
  float keys[kMostCoreRows][Places::kFloats];  // of all rows: trees go back to them
  float queries[kChunkRows][Places::kFloats];
  float values[kChunkRows][kDim];      // then results
  float window[kWindowRows][3][kDim];  // of a chain: what the convolution reads
  float decays[kChunkRows], betas[kChunkRows], norm[kDim];
  DeltaMemory lane;  // not in every thread's registers, which have the state
  int sharing, last_arrival;
};

// A row's query (half of a warp) or key (the other half), made a unit vector; the query times 1 / sqrt(kDim) too.
// `tape` gets the key, or is null.
template <int kDim>
FORETOKEN_DEVICE void normalise(float* x, bool is_key, float* tape) {
  using Places = KeyPlaces<kDim>;
  constexpr int kOwn = kDim / 16;
  const int lane = threadIdx.x & 15;
  x += Places::of(lane);
  float v[kOwn], sum = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    v[i] = x[Places::of(16 * i)];
    sum = fma(v[i], v[i], sum);
  }
  for (int s = 8; s > 0; s /= 2) sum = __fadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, s, 16));
  const float root = inverse_root(__fadd_rn(__shfl_sync(0xFFFFFFFFu, sum, 0, 16), 1e-6f)),
              scale = inverse_root(static_cast<float>(kDim));
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    v[i] = __fmul_rn(v[i], root);
    x[Places::of(16 * i)] = is_key ? v[i] : __fmul_rn(v[i], scale);
    if (tape) tape[16 * i + lane] = v[i];
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

// All threads of this block have read the tail: how many blocks had before. Not as slow as a fence of all memory, which
// would empty L1 too.
FORETOKEN_DEVICE int arrive(int* arrivals) {
  int before;
  asm volatile("atom.add.release.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(arrivals) : "memory");
  return before;
}

// Threads are four groups of kDim: of the queries', the keys' and the values' channels, and one for what else a row
// needs before the rule. In the rule a lane has a piece of the keys of two columns. The first warps normalise queries
// and keys of a row each, the last ones results. What comes from the device's memory is asked for long before.
template <int kDim>
__global__ void __launch_bounds__(core_threads(kDim), 512 / core_threads(kDim))
    core_kernel(DeltaCore core, DeltaShape shape, PassDesc pass, DeltaLanes lanes) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto& m = *reinterpret_cast<Memory<kDim>*>(shared);
  using Places = KeyPlaces<kDim>;
  using Rule = RuleLane<kDim, 2, false>;
  constexpr int kThreads = core_threads(kDim), kWarps = kThreads / 32, kOwn = kDim / 32;
  static_assert((kDim & (kDim - 1)) == 0 && kWarps >= kChunkRows && kThreads >= kDim * kDim / 32 && kDim / 32 >= 2);
  const int thread = threadIdx.x, group = thread / kDim, c = thread % kDim, warp = thread >> 5, lane_id = thread & 31;
  const int head = blockIdx.x, head_state = head * kDim * kDim;
  if (!lanes.many && thread < kDim * kDim / 32) {  // the state comes from far: into L2 while the kernel before ends
    const float* line = lanes.one.state + head_state + 32 * thread;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
  }
  // Descriptions come from the host: they are there before the kernel before ends.
  const LaneDesc lane = pass.lanes[blockIdx.y];
  const DeltaMemory& memory = m.lane;
  if (thread == 0) m.lane = lanes[blockIdx.y];
  const int key_head = shape.key_head_of(head), heads = shape.value_heads;
  const int key_columns = shape.key_heads * kDim, channels = shape.channels();
  const int sharing = heads / shape.key_heads;  // value heads of a key head
  if (thread == 0) m.sharing = sharing;
  const bool owns_key = shape.grouped ? head % sharing == 0 : head < shape.key_heads;  // writes what they share
  const bool convolves = group < 3, factors = warp == 3 * kDim / 32, arrives = thread == 3 * kDim + 32;
  const int channel = group < 2 ? group * key_columns + key_head * kDim + c : 2 * key_columns + head * kDim + c;
  const int result_row = kWarps - 1 - warp;  // of a chunk, whose result this warp normalises
  float weight[kTaps];
  const auto get_weights = [&] {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) weight[j] = core.weight[static_cast<int64_t>(channel) * kTaps + j];
  };
  get_weights();
  into_l1(core.norm + c);
  into_l1(core.decay_rate + head);
  into_l1(core.dt_bias + head);
  __syncthreads();
  begin_kernel();
  if (lane.rows == 0) return;
  const int tape_stride = heads * kDim, head_column = head * kDim;
  Rule rule(Places::kPiece);
  const int piece = lane_id / Rule::kColumnLanes, piece_at = piece * Places::kPitch;
  const int column = (warp * Rule::kColumnLanes + lane_id % Rule::kColumnLanes) * 2,
            own_column = column + rule.own_column();
  const int cells_at = head_state + piece * Places::kPiece * kDim + column;

  // A thread's own channel of the window: rows of the tail and of the chain.
  const uint32_t window_at = shared_address(&m.window[0][0][0]) + static_cast<uint32_t>(thread) * 4;
  const auto request_window = [&](int first) {
    if (!lane.chain || !convolves) return;
    const int count = min(kChunkRows, lane.rows - first);
    const float* rows = core.packed.data + (lane.first_row + int64_t{first}) * core.packed.stride + channel;
    const float* from = first == 0 ? memory.tail + channel : rows - (kTaps - 1) * core.packed.stride;
    int64_t step = first == 0 ? channels : core.packed.stride;
    uint32_t to = window_at;
#pragma unroll 1
    for (int i = 0; i < count + kTaps - 1; ++i) {
      if (i == kTaps - 1) from = rows, step = core.packed.stride;
      copy_4(to, from, true);
      from += step;
      to += 3 * kDim * 4;
    }
    commit_copies();
  };
  const auto arrivals = [&] { return core.arrivals + static_cast<int64_t>(blockIdx.y) * shape.key_heads + key_head; };
  const auto meet = [&](int arrived) {
    m.last_arrival = arrived == m.sharing - 1;
    if (m.last_arrival) *arrivals() = 0;
  };
  // Rows of a short chain that become the tail are in the window to the end.
  const bool keeps_tail = lane.chain && lane.rows <= kChunkRows;
  const auto put_tail = [&] {
    if (!keeps_tail) return advance(core.packed, lane, memory.tail, channels, channel);
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i)
      memory.tail[static_cast<int64_t>(i) * channels + channel] = m.window[lane.settled + i][group][c];
  };
  int done = -1;  // the lane's row whose state is held; -1: the committed one
  if (thread < kDim) copy_4(shared_address(m.norm + thread), core.norm + thread, true);
  commit_copies();
  request_window(0);
#pragma unroll 1
  for (int first = 0; first < lane.rows; first += kChunkRows) {
    const int count = min(kChunkRows, lane.rows - first);
    const int first_row = lane.first_row + first;
    float alpha = 0, beta = 0, rate = 0, bias = 0, gate[kOwn] = {};
    if (factors && lane_id < count) {
      const float* ba = core.beta_alpha.data + int64_t{first_row + lane_id} * core.beta_alpha.stride + head;
      beta = ba[0], alpha = ba[heads], rate = core.decay_rate[head], bias = core.dt_bias[head];
    }
    if (result_row < count) {
      const float* from = core.gate.data + int64_t{first_row + result_row} * core.gate.stride + head_column + lane_id;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) gate[i] = from[32 * i];
    }
    // In two parts: threads that convolve shall not wait until all of it is asked for.
    if (first == 0) rule.template load<0, Places::kPiece / 2>(memory.state + cells_at, kDim);
    wait_copies<0>();
    __syncthreads();
    // ---- Convolution.
    int arrived = 0;
    if (arrives && keeps_tail && lane.settled > 0) arrived = arrive(arrivals());
    float exponent = 0;  // of the decay
    if (factors && lane_id < count) exponent = __fmul_rn(rate, softplus(__fadd_rn(alpha, bias)));
    if (convolves) {
      const bool is_value = group == 2, writes = is_value || owns_key;
      float* to = is_value ? &m.values[0][c] : (group == 0 ? m.queries[0] : m.keys[first]) + Places::of(c);
#pragma unroll 2
      for (int r = 0; r < count; ++r) {
        const int64_t i_row = first + r, row = first_row + r;
        float acc = 0, x = 0;
        if (lane.chain) {
#pragma unroll
          for (int j = 0; j < kTaps; ++j) {
            x = m.window[r + j][group][c];
            acc = fma(weight[j], x, acc);
          }
        } else {
          const RowDesc desc = pass.rows[row];
          const int32_t* path = pass.paths + desc.path;
#pragma unroll
          for (int j = 0; j < kTaps; ++j) {
            const int at = desc.depth - (kTaps - 1) + j;  // along the path; negative: in the tail
            const float* from = at >= 0 ? core.packed.data + (lane.first_row + int64_t{path[at]}) * core.packed.stride
                                        : memory.tail + static_cast<int64_t>(kTaps - 1 + at) * channels;
            x = from[channel];
            acc = fma(weight[j], x, acc);
          }
        }
        const float y = silu(acc);
        to[r * (is_value ? kDim : Places::kFloats)] = y;
        if (!writes) continue;
        core.conv.data[row * core.conv.stride + channel] = y;
        if (i_row >= lane.settled) memory.tape.conv_row[i_row * channels + channel] = x;
      }
    }
    if (first == 0) rule.template load<Places::kPiece / 2, Places::kPiece>(memory.state + cells_at, kDim);
    if (first + kChunkRows < lane.rows) request_window(first + kChunkRows);  // arrives during the rule
    __syncthreads();
    // ---- Unit vectors, decays, gates, and the values' part of the tail, whose channels are this head's alone.
    if (warp < count) {
      const bool is_key = lane_id >= 16, on_tape = is_key && owns_key && first + warp >= lane.settled;
      normalise<kDim>(is_key ? m.keys[first + warp] : m.queries[warp], is_key,
                      on_tape ? memory.tape.key + (first + int64_t{warp}) * key_columns + key_head * kDim : nullptr);
    }
    if (result_row < count) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) gate[i] = core.sigmoid_gate ? sigmoid(gate[i]) : silu(gate[i]);
    }
    if (factors && lane_id < count) {
      const float decay = exp(exponent);
      m.decays[lane_id] = decay;
      m.betas[lane_id] = sigmoid(beta);
      if (first + lane_id >= lane.settled) memory.tape.decay[(first + int64_t{lane_id}) * heads + head] = decay;
    }
    if (group == 2 && keeps_tail && lane.settled > 0) put_tail();
    __syncthreads();
    // ---- The rule. Results take the values' room. Two of a column's lanes have it for their own, and are in the first
    // two pieces.
    const bool writes = piece < 2;
    const int first_on_tape = writes ? lane.settled - first : count;
    float* on_tape = memory.tape.delta + int64_t{first} * tape_stride + head_column + own_column;
    const auto delta_of = [&](int r, float u) { return __fmul_rn(m.betas[r], __fsub_rn(m.values[r][own_column], u)); };
    const auto put = [&](int r, float d, float o) {
      if (writes) m.values[r][own_column] = o;
      if (r >= first_on_tape) *on_tape = d;
      on_tape += tape_stride;
    };
    typename Rule::Keys keys, next_keys;
    float u;
    // A row that another follows, and one that none does.
    const auto pass_row = [&](int r, const auto& keys_now, auto& keys_next) {
      const float d = delta_of(r, u);
      float o;
      rule.pass(keys_now, d, m.queries[r] + piece_at, m.decays[r + 1], m.keys[first + r + 1] + piece_at, keys_next, o,
                u);
      put(r, d, o);
    };
    const auto end_row = [&](int r, const auto& keys_now) {
      const float d = delta_of(r, u);
      put(r, d, rule.finish(keys_now, d, m.queries[r] + piece_at));
    };
#pragma unroll 1
    for (int r = 0; r < count; ++r) {
      const int i_row = first + r;
      if (!lane.chain && pass.rows[lane.first_row + i_row].parent != done) {
        // A sibling came between: the parent's state again, from the tape, where this warp wrote its columns.
        __syncwarp();
        rule.load(memory.state + cells_at, kDim);
        const RowDesc desc = pass.rows[lane.first_row + i_row];
        const int32_t* path = pass.paths + desc.path;
#pragma unroll 1
        for (int j = lane.settled; j < desc.depth; ++j) {
          const int64_t ancestor = path[j];
          const float* delta = memory.tape.delta + ancestor * tape_stride + head_column + column;
          const float d[2] = {delta[0], delta[1]};
          const float* keys_there = m.keys[ancestor] + piece_at;
          rule.replay(memory.tape.decay[ancestor * heads + head], d, [&](int i) { return keys_there[i]; });
        }
      }
      // The last row before the state is stored, the chunk ends, or one comes that does not continue it.
      int last = (i_row < lane.settled ? min(lane.settled - first, count) : count) - 1;
      if (!lane.chain)
        for (int i = r; i < last; ++i)
          if (pass.rows[lane.first_row + first + i + 1].parent != first + i) last = i;
      u = rule.enter(m.decays[r], m.keys[i_row] + piece_at, keys);
      // Two at a time, so that keys stay in their registers.
      while (true) {
        if (r == last) {
          end_row(r, keys);
          break;
        }
        pass_row(r++, keys, next_keys);
        if (r == last) {
          end_row(r, next_keys);
          break;
        }
        pass_row(r++, next_keys, keys);
      }
      done = first + r;
      if (done + 1 == lane.settled) rule.store(memory.state + cells_at, kDim);
    }
    if (arrives && keeps_tail && lane.settled > 0) meet(arrived);
    __syncthreads();
    // ---- The gated norm.
    if (result_row < count) {
      const float* x = m.values[result_row];
      const float mean = __fmul_rn(sum_of_squares(x, kDim), 1.0f / kDim);  // as if divided, by a power of two
      const float root = inverse_root(__fadd_rn(mean, core.epsilon));
      const int64_t row = first_row + result_row, at = head_column + lane_id;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const float v = __fmul_rn(__fmul_rn(__fmul_rn(x[32 * i + lane_id], root), m.norm[32 * i + lane_id]), gate[i]);
        core.out.data[row * core.out.stride + at + 32 * i] = v;
        if (core.bf16) core.bf16[row * core.out.cols + at + 32 * i] = __bfloat16_as_ushort(to_bf16(v));
      }
    }
    if (first + kChunkRows < lane.rows) get_weights();  // which the rule has no registers for
  }
  if (lane.settled == 0) return;
  // ---- The tail. Of queries and keys the last of those that read a key head's channels advances them.
  if (!keeps_tail) {
    if (group == 2) put_tail();
    if (arrives) meet(arrive(arrivals()));
    __syncthreads();
  }
  if (group < 2 && m.last_arrival) put_tail();
}

template <int kDim>
void launch(const DeltaCore& core, const DeltaShape& shape, const PassDesc& pass, const DeltaLanes& lanes,
            Queue& queue) {
  static_assert(sizeof(Memory<kDim>) <= core_bytes(kDim));
  Launch{dim3(static_cast<unsigned>(shape.value_heads), static_cast<unsigned>(pass.lane_count)), core_threads(kDim),
         core_bytes(kDim), queue}(core_kernel<kDim>, core, shape, pass, lanes);
}

}  // namespace

bool delta_core_runs(const DeltaShape& shape, int most_rows) {
  return (shape.key_dim == 128 || shape.key_dim == 64) && shape.value_dim == shape.key_dim && shape.kernel == kTaps &&
         most_rows <= kMostCoreRows && shape.value_heads % shape.key_heads == 0;
}

void launch_delta_core(const DeltaCore& core, const DeltaShape& shape, const PassDesc& pass, const DeltaLanes& lanes,
                       Queue& queue) {
  if (shape.key_dim == 64) launch<64>(core, shape, pass, lanes, queue);
  else launch<128>(core, shape, pass, lanes, queue);
}

}  // namespace foretoken::cuda
