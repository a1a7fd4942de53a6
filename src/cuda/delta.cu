// The gated delta net: convolution, the delta rule token by token, and replay. The order of operations is the
// reference's (docs/numerics.md section 5), so prompt, decode, chain, tree and replay have its bits.
#include <cstddef>

#include "cuda/bulk.cuh"
#include "cuda/delta.cuh"
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

constexpr int kRuleWarps = 4, kWarpColumns = 32 / kKeyPieces, kRuleColumns = kRuleWarps * kWarpColumns;
constexpr int kStageRows = kRuleWarps;  // a warp brings one of them
constexpr int kStages = 4;  // the rows in use and the next, rows on their way, and room for those being asked for
constexpr int kRingRows = kStages * kStageRows;

// What one row brings to a block's columns.
template <int kKeys>
struct DeltaRow {
  float keys[KeyPlaces<kKeys>::kFloats], queries[KeyPlaces<kKeys>::kFloats], values[kRuleColumns];
  float decay, beta, unused[2];
};

// A column is eight lanes, each with a piece of the keys in registers for all rows of a lane; the columns of a block
// share what rows bring. kKeys: key_dim, or with kPadded at least that. Without it a row's keys begin at a multiple of
// sixteen bytes, and every column exists.
template <int kKeys, bool kPadded>
__global__ void __launch_bounds__(kRuleWarps * 32)
    delta_kernel(Rows conv, DeltaShape shape, PassDesc pass, DeltaLanes lanes, DeltaScratch scratch, Rows out) {
  begin_kernel();
  using Row = DeltaRow<kKeys>;
  using Places = KeyPlaces<kKeys>;
  __shared__ __align__(16) Row ring[kRingRows];
  const LaneDesc lane = pass.lanes[blockIdx.z];
  if (lane.rows == 0) return;
  const DeltaMemory memory = lanes[blockIdx.z];
  const int head = blockIdx.y, key_head = shape.key_head_of(head), warp = threadIdx.x >> 5, lane_id = threadIdx.x & 31;
  const int piece = lane_id / kWarpColumns, column_of_block = warp * kWarpColumns + lane_id % kWarpColumns;
  const int first_column = blockIdx.x * kRuleColumns, column = first_column + column_of_block;
  const bool active = !kPadded || column < shape.value_dim;
  const int key_dim = kPadded ? shape.key_dim : kKeys, key_columns = shape.key_heads * key_dim;
  const int piece_keys = kPadded ? shape.piece_keys() : Places::kPiece;
  const int piece_at = piece * Places::kPitch;  // in rows of keys and queries
  const int first_key = piece * piece_keys, own_keys = min(piece_keys, max(key_dim - first_key, 0));
  // Cells of idle lanes are another column's: loaded, never stored.
  float* const cells =
      memory.state + (static_cast<int64_t>(head) * key_dim + first_key) * shape.value_dim + (active ? column : 0);
  const int64_t out_at = static_cast<int64_t>(head) * shape.value_dim + (active ? column : 0);
  const int64_t tape_stride = static_cast<int64_t>(shape.value_heads) * shape.value_dim;

  // Rows are asked for in order, a stage at a time, and each warp brings its own of a stage: sixteen bytes of keys and
  // queries a lane (kPadded: every 32nd of them), and a value or a factor.
  constexpr int kCopies = kPadded ? 2 : kKeys / 64;
  const int64_t first_row = lane.first_row + int64_t{warp}, key_stride = int64_t{kStageRows} * key_columns;
  const float* from[kCopies];
  uint32_t to[kCopies];
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int n = i * 32 + lane_id;
    const bool is_query = kPadded ? i == 1 : n >= kKeys / 4;
    const int k = kPadded ? lane_id : n % (kKeys / 4) * 4;
    from[i] = (is_query ? scratch.query : scratch.key) + first_row * key_columns + key_head * key_dim + k;
    to[i] = static_cast<uint32_t>((is_query ? offsetof(Row, queries) : offsetof(Row, keys)) +
                                  static_cast<size_t>(kPadded ? 0 : Places::of(k)) * 4);
  }
  const bool is_value = lane_id<kRuleColumns, is_beta = lane_id> kRuleColumns;
  const bool exists = !kPadded || !is_value || first_column + lane_id < shape.value_dim;
  const float* small = is_value
                           ? conv.data + first_row * conv.stride + 2 * key_columns +
                                 static_cast<int64_t>(head) * shape.value_dim + (exists ? first_column + lane_id : 0)
                           : (is_beta ? scratch.beta : scratch.decay) + first_row * shape.value_heads + head;
  const int64_t small_stride = kStageRows * (is_value ? conv.stride : int64_t{shape.value_heads});
  const uint32_t small_to = static_cast<uint32_t>(is_value ? offsetof(Row, values) + static_cast<size_t>(lane_id) * 4
                                                           : (is_beta ? offsetof(Row, beta) : offsetof(Row, decay)));
  const uint32_t ring_at = kept(shared_address(ring));
  const auto request = [&](int first) {
    const int r = first + warp;
    if (r < lane.rows) {
      const uint32_t at = ring_at + static_cast<uint32_t>(r % kRingRows * static_cast<int>(sizeof(Row)));
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        if constexpr (kPadded) {
          for (int k = lane_id; k < key_dim; k += 32)
            copy_4(at + to[i] + static_cast<uint32_t>((k / piece_keys * Places::kPitch + k % piece_keys) * 4),
                   from[i] + (k - lane_id), true);
        } else {
          copy_16(at + to[i], from[i]);
        }
        from[i] += key_stride;
      }
      if (lane_id < kRuleColumns + 2) copy_4(at + small_to, small, exists);
      small += small_stride;
    }
    commit_copies();
  };
  for (int stage = 0; stage + 1 < kStages; ++stage) request(stage * kStageRows);

  using Rule = RuleLane<kKeys, 1, kPadded>;
  Rule rule(own_keys);
  typename Rule::Keys keys, next_keys;
  rule.load(cells, shape.value_dim);
  float u = 0;
  // The first piece's lanes store the output, the second's what the tape keeps.
  const bool keeps_delta = piece == 1;
  float* result = keeps_delta ? memory.tape.delta + out_at : out.data + lane.first_row * out.stride + out_at;
  const int64_t result_stride = keeps_delta ? tape_stride : out.stride;
  const int first_result = !active || piece > 1 ? lane.rows : keeps_delta ? lane.settled : 0;
  const auto put = [&](int r, float d, float o) {
    if (r >= first_result) *result = keeps_delta ? d : o;
    result += result_stride;
  };
  const auto delta_of = [&](const Row& row) { return __fmul_rn(row.beta, __fsub_rn(row.values[column_of_block], u)); };
  // Rows of a stage and the first behind it are there when the stage begins.
  const auto begin_stage = [&](int first) {
    wait_copies<kStages - 3>();
    __syncthreads();  // nobody needs the rows before any more
    request(first + (kStages - 1) * kStageRows);
  };
  // A row that another follows.
  const auto pass_row = [&](int r, const Row& now, const Row& next, const auto& keys_now, auto& keys_next) {
    const float d = delta_of(now);
    float o;
    rule.pass(keys_now, d, now.queries + piece_at, next.decay, next.keys + piece_at, keys_next, o, u);
    put(r, d, o);
  };
  int done = -1;  // the lane's row whose state is held; -1: the committed one
#pragma unroll 1
  for (int r = 0; r < lane.rows;) {
    if (!lane.chain && pass.rows[lane.first_row + r].parent != done) {
      // A sibling came between: the parent's state again, from the tape, where this warp wrote its columns.
      __syncwarp();
      rule.load(cells, shape.value_dim);
      const RowDesc desc = pass.rows[lane.first_row + r];
      const int32_t* path = pass.paths + desc.path;
#pragma unroll 1
      for (int j = lane.settled; j < desc.depth; ++j) {
        const int64_t ancestor = path[j];
        const float* keys_there = memory.tape.key + ancestor * key_columns + key_head * key_dim + first_key;
        const float d[1] = {active ? memory.tape.delta[ancestor * tape_stride + out_at] : 0.0f};
        rule.replay(memory.tape.decay[ancestor * shape.value_heads + head], d, [&](int i) { return keys_there[i]; });
      }
    }
    // The last row before the state is stored, or before one that does not continue it.
    int last = (r < lane.settled ? lane.settled : lane.rows) - 1;
    if (!lane.chain)
      for (int i = r; i < last; ++i)
        if (pass.rows[lane.first_row + i + 1].parent != i) last = i;
    if (r % kStageRows == 0) begin_stage(r);
    u = rule.enter(ring[r % kRingRows].decay, ring[r % kRingRows].keys + piece_at, keys);
#pragma unroll 1
    while (r < last) {
      if (r % kStageRows == 0 && r + kStageRows <= last) {
        const Row* stage = &ring[r % kRingRows];
#pragma unroll
        for (int i = 0; i + 1 < kStageRows; i += 2) {
          pass_row(r + i, stage[i], stage[i + 1], keys, next_keys);
          pass_row(r + i + 1, stage[i + 1], i + 2 < kStageRows ? stage[i + 2] : ring[(r + kStageRows) % kRingRows],
                   next_keys, keys);
        }
        r += kStageRows;
        begin_stage(r);
      } else {
        pass_row(r, ring[r % kRingRows], ring[(r + 1) % kRingRows], keys, next_keys);
        keys = next_keys;
        if (++r % kStageRows == 0) begin_stage(r);
      }
    }
    const Row& now = ring[r % kRingRows];
    const float d = delta_of(now);
    put(r, d, rule.finish(keys, d, now.queries + piece_at));
    if (r + 1 == lane.settled && active) rule.store(cells, shape.value_dim);
    done = r++;
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
  const dim3 grid(blocks(shape.value_dim, kRuleColumns), static_cast<unsigned>(shape.value_heads),
                  static_cast<unsigned>(pass.lane_count));
  const auto launch = [&](auto kernel) {
    Launch{grid, kRuleWarps * 32, 0, queue}(kernel, conv, shape, pass, lanes, scratch, out);
  };
  const bool whole = shape.value_dim % kRuleColumns == 0;
  if (whole && shape.key_dim == 128) launch(delta_kernel<128, false>);
  else if (whole && shape.key_dim == 64) launch(delta_kernel<64, false>);
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
