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
  float decays[kChunkRows], betas[kChunkRows], roots[kChunkRows];
  DeltaMemory lane;  // not in every thread's registers, which have the state
  int last_arrival;
};

// sum_of_squares of two heads in pieces by the halves of a warp.
template <int kDim>
FORETOKEN_DEVICE float half_sum_of_squares(const float* x) {
  const int lane = threadIdx.x & 15;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kDim; i += 16) {
    const float v = x[KeyPlaces<kDim>::of(i + lane)];
    sum = fma(v, v, sum);
  }
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

// Threads are two groups of kDim: of the queries' and the keys' channels, both also of the values', every second row
// each; then of rows. In the rule a thread has two pieces of the keys of two columns.
template <int kDim>
__global__ void __launch_bounds__(core_threads(kDim), 512 / core_threads(kDim))
    core_kernel(DeltaCore core, DeltaShape shape, PassDesc pass, DeltaLanes lanes) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto& m = *reinterpret_cast<Memory<kDim>*>(shared);
  using Places = KeyPlaces<kDim>;
  using Rule = RuleLane<kDim, 2, 2, false, false>;
  constexpr int kThreads = core_threads(kDim), kWarps = kThreads / 32;
  const int thread = threadIdx.x, group = thread / kDim, c = thread % kDim, warp = thread >> 5, lane_id = thread & 31;
  const int head = blockIdx.x, key_head = shape.key_head_of(head), heads = shape.value_heads;
  const int key_columns = shape.key_heads * kDim, channels = shape.channels();
  const int sharing = heads / shape.key_heads;                                         // value heads of a key head
  const bool owns_key = shape.grouped ? head % sharing == 0 : head < shape.key_heads;  // writes what they share
  const int own_channel = group * key_columns + key_head * kDim + c, value_channel = 2 * key_columns + head * kDim + c;
  into_l1(core.weight + static_cast<int64_t>(own_channel) * kTaps);
  into_l1(core.weight + static_cast<int64_t>(value_channel) * kTaps);
  // Descriptions come from the host: they are there before the kernel before ends.
  const LaneDesc lane = pass.lanes[blockIdx.y];
  const DeltaMemory& memory = m.lane;
  if (thread == 0) m.lane = lanes[blockIdx.y];
  const int64_t head_state = static_cast<int64_t>(head) * kDim * kDim;
  if (!lanes.many) {  // the state comes from far: into L2 while the kernel before ends
    const char* from = reinterpret_cast<const char*>(lanes.one.state + head_state);
    for (int i = thread; i < kDim * kDim * 4 / 128; i += kThreads)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i * 128));
  }
  __syncthreads();
  begin_kernel();
  if (lane.rows == 0) return;
  const int64_t tape_stride = static_cast<int64_t>(heads) * kDim, head_column = static_cast<int64_t>(head) * kDim;
  const int lanes_of_keys = lane_id / Rule::kColumnLanes;  // which two pieces
  const int column = (warp * Rule::kColumnLanes + lane_id % Rule::kColumnLanes) * 2,
            piece_at = lanes_of_keys * 2 * Places::kPitch;
  const int cells_at = lanes_of_keys * 2 * Places::kPiece * kDim + column;

  const uint32_t window_at = shared_address(m.window);
  Rule rule(Places::kPiece);
  typename Rule::Keys keys;
  int done = -1;  // the lane's row whose state is held; -1: the committed one
  const bool keeps_tail = lane.chain && lane.rows <= kChunkRows;  // in the window, to the end
  int arrived = 0;
  const auto arrive = [&] {  // all of this block have read the tail
    __threadfence();
    return atomicAdd(core.arrivals + static_cast<int64_t>(blockIdx.y) * shape.key_heads + key_head, 1);
  };
#pragma unroll 1
  for (int first = 0; first < lane.rows; first += kChunkRows) {
    const int count = min(kChunkRows, lane.rows - first);
    // ---- What is read of the device's memory, late or early.
    if (lane.chain) {  // rows of the tail and of the chain, the values' by both groups in turn
      const float* from =
          first == 0 ? memory.tail : core.packed.data + (lane.first_row + first - (kTaps - 1)) * core.packed.stride;
      int64_t step = first == 0 ? channels : core.packed.stride;
      uint32_t to = window_at;
#pragma unroll 1
      for (int i = 0; i < count + kTaps - 1; ++i) {
        if (i == kTaps - 1) {
          from = core.packed.data + (lane.first_row + int64_t{first}) * core.packed.stride;
          step = core.packed.stride;
        }
        copy_4(to + static_cast<uint32_t>(thread) * 4, from + own_channel, true);
        if ((i & 1) == group) copy_4(to + static_cast<uint32_t>(2 * kDim + c) * 4, from + value_channel, true);
        from += step;
        to += 3 * kDim * 4;
      }
      commit_copies();
    }
    if (first == 0) rule.load(memory.state + head_state + cells_at, kDim);
    if (warp == 0 && lane_id / 4 < count && lane_id % 4 * 32 < kDim)
      into_l1(core.gate.data + (lane.first_row + first + int64_t{lane_id / 4}) * core.gate.stride + head * kDim +
              lane_id % 4 * 32);
    if (warp == kWarps - 1 && lane_id < count) {
      const float* ba = core.beta_alpha.data + (lane.first_row + first + int64_t{lane_id}) * core.beta_alpha.stride;
      const float beta = ba[head], alpha = ba[heads + head];
      const float decay = exp(__fmul_rn(core.decay_rate[head], softplus(__fadd_rn(alpha, core.dt_bias[head]))));
      m.decays[lane_id] = decay;
      m.betas[lane_id] = sigmoid(beta);
      if (first + lane_id >= lane.settled) memory.tape.decay[(first + int64_t{lane_id}) * heads + head] = decay;
    }
    wait_copies<0>();
    __syncthreads();
    // ---- Convolution.
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      const bool is_value = part == 1;
      const int step = 1 + part, kind = is_value ? 2 : group, channel = is_value ? value_channel : own_channel;
      float weight[kTaps];
#pragma unroll
      for (int j = 0; j < kTaps; ++j) weight[j] = core.weight[static_cast<int64_t>(channel) * kTaps + j];
#pragma unroll 2
      for (int r = is_value ? group : 0; r < count; r += step) {
        const int64_t i_row = first + r, row = lane.first_row + i_row;
        float acc = 0, x = 0;
        if (lane.chain) {
#pragma unroll
          for (int j = 0; j < kTaps; ++j) {
            x = m.window[r + j][kind][c];
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
        if (is_value) m.values[r][c] = y;
        else (group == 0 ? m.queries[r] : m.keys[i_row])[Places::of(c)] = y;
        if (!is_value && !owns_key) continue;
        core.conv.data[row * core.conv.stride + channel] = y;
        if (i_row >= lane.settled) memory.tape.conv_row[i_row * channels + channel] = x;
      }
    }
    __syncthreads();
    if (thread == 0 && keeps_tail && lane.settled > 0) arrived = arrive();
      // ---- Factors: a warp a row, half of it the query, half the key.
#pragma unroll 1
    for (int r = warp; r < count; r += kWarps) {
      const bool is_key = lane_id >= 16;
      float* x = is_key ? m.keys[first + r] : m.queries[r];
      const float root = inverse_root(__fadd_rn(half_sum_of_squares<kDim>(x), 1e-6f)),
                  scale = inverse_root(static_cast<float>(kDim));
      __syncwarp();
#pragma unroll 4
      for (int i = lane_id & 15; i < kDim; i += 16) {
        float& place = x[Places::of(i)];
        const float v = __fmul_rn(place, root);
        place = is_key ? v : __fmul_rn(v, scale);
        if (is_key && owns_key && first + r >= lane.settled)
          memory.tape.key[(first + int64_t{r}) * key_columns + key_head * kDim + i] = v;
      }
    }
    __syncthreads();
    // ---- The rule. Results take the values' room.
    float u[2] = {};
    const auto deltas = [&](int r, float(&d)[2]) {
      const float2 v = *reinterpret_cast<const float2*>(&m.values[r][column]);
      d[0] = __fmul_rn(m.betas[r], __fsub_rn(v.x, u[0]));
      d[1] = __fmul_rn(m.betas[r], __fsub_rn(v.y, u[1]));
    };
    const auto put = [&](int r, const float(&d)[2], const float(&o)[2]) {
      if (lanes_of_keys > 1) return;  // two of a column's four lanes write one each
      const int second = lanes_of_keys, written = column + second;
      m.values[r][written] = second ? o[1] : o[0];
      if (first + r >= lane.settled)
        memory.tape.delta[(first + int64_t{r}) * tape_stride + head_column + written] = second ? d[1] : d[0];
    };
    // A row that another follows.
    const auto pass_row = [&](int r) {
      float d[2], o[2];
      deltas(r, d);
      typename Rule::Keys next_keys;
      rule.pass(keys, d, m.queries[r] + piece_at, m.decays[r + 1], m.keys[first + r + 1] + piece_at, next_keys, o, u);
      keys = next_keys;
      put(r, d, o);
    };
#pragma unroll 1
    for (int r = 0; r < count;) {
      const int i_row = first + r;
      if (!lane.chain && pass.rows[lane.first_row + i_row].parent != done) {
        // A sibling came between: the parent's state again, from the tape, where this warp wrote its columns.
        __syncwarp();
        rule.load(memory.state + head_state + cells_at, kDim);
        const RowDesc desc = pass.rows[lane.first_row + i_row];
        const int32_t* path = pass.paths + desc.path;
#pragma unroll 1
        for (int j = lane.settled; j < desc.depth; ++j) {
          const int64_t ancestor = path[j];
          const float* delta = memory.tape.delta + ancestor * tape_stride + head_column + column;
          const float d[2] = {delta[0], delta[1]};
          const float* keys_there = m.keys[ancestor] + piece_at;
          rule.replay(memory.tape.decay[ancestor * heads + head], d,
                      [&](int p, int i, int) { return keys_there[p * Places::kPitch + i]; });
        }
      }
      // The last row before the state is stored, the chunk ends, or one comes that does not continue it.
      int last = (i_row < lane.settled ? min(lane.settled - first, count) : count) - 1;
      if (!lane.chain)
        for (int i = r; i < last; ++i)
          if (pass.rows[lane.first_row + first + i + 1].parent != first + i) last = i;
      rule.enter(m.decays[r], m.keys[i_row] + piece_at, keys, u);
#pragma unroll 1
      for (; r < last; ++r) pass_row(r);
      float d[2], o[2];
      deltas(r, d);
      rule.finish(keys, d, m.queries[r] + piece_at, o);
      put(r, d, o);
      done = first + r++;
      if (done + 1 == lane.settled) rule.store(memory.state + head_state + cells_at, kDim);
    }
    __syncthreads();
    // ---- The gated norm.
#pragma unroll 1
    for (int r = warp; r < count; r += kWarps) {
      const float sum = sum_of_squares(m.values[r], kDim);
      if (lane_id == 0) m.roots[r] = inverse_root(__fadd_rn(__fdiv_rn(sum, static_cast<float>(kDim)), core.epsilon));
    }
    __syncthreads();
#pragma unroll 1
    for (int r = group; r < count; r += 2) {
      const int64_t row = lane.first_row + first + int64_t{r}, at = head_column + c;
      const float g = core.gate.data[row * core.gate.stride + at], x = m.values[r][c];
      const float v =
          __fmul_rn(__fmul_rn(__fmul_rn(x, m.roots[r]), core.norm[c]), core.sigmoid_gate ? sigmoid(g) : silu(g));
      core.out.data[row * core.out.stride + at] = v;
      if (core.bf16) core.bf16[row * core.out.cols + at] = __bfloat16_as_ushort(to_bf16(v));
    }
  }
  if (lane.settled == 0) return;
  // ---- The tail: a value head's channels are its own; the last of those that read a key head's advances them.
  const auto put_tail = [&](int kind, int channel) {
    if (!keeps_tail) return advance(core.packed, lane, memory.tail, channels, channel);
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i)
      memory.tail[static_cast<int64_t>(i) * channels + channel] = m.window[lane.settled + i][kind][c];
  };
  if (group == 0) put_tail(2, value_channel);
  if (thread == 0) {
    if (!keeps_tail) arrived = arrive();
    m.last_arrival = arrived == sharing - 1;
    if (m.last_arrival) core.arrivals[static_cast<int64_t>(blockIdx.y) * shape.key_heads + key_head] = 0;
  }
  __syncthreads();
  if (m.last_arrival) put_tail(group, own_channel);
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
