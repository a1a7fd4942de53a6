// Products of Q4_K and Q6_K weights and many rows, by the matrix instruction of a warpgroup. A kernel of its own
// arranges the rows as that instruction reads them, with what meets the minimums behind them. Then blocks of threads
// stay on their multiprocessors and take items (64 outputs a warpgroup, kColumns rows, a slice) in turn: one warp
// brings weights, one rows, the others multiply. The order is that of few rows. Compiled for sm_90a only; elsewhere
// products of many rows are groups of few (linear_q4k.cu).
#include <algorithm>

#include "cuda/q4k.cuh"
#include "cuda/wgmma.cuh"

namespace foretoken::cuda {
namespace {

// A step is one sub-block of the weights, the last of Q4_K the minimums; steps come in chunks. A step is kChain
// instructions of sixteen inputs; kMatrices of eight inputs by eight rows lie side by side, behind those of Q4_K the
// powers of two of the eight rows (lift).
template <class Format>
struct Steps {
  static constexpr int kCount = 16, kChain = 1, kOfChunk = 4;
};
template <>
struct Steps<Q4K> {
  static constexpr int kCount = 9, kChain = 2, kOfChunk = 3;
};
constexpr int kMatrixBytes = 128;
template <class Format>
constexpr int kMatrices = Steps<Format>::kOfChunk* Steps<Format>::kChain * 2;
template <class Format>
constexpr int kChunks = Steps<Format>::kCount / Steps<Format>::kOfChunk;
template <class Format>
constexpr int kPowersAt = kMatrices<Format>* kMatrixBytes;
template <class Format>
constexpr int kChunkBytes = kPowersAt<Format> + (Format::kHasMinimums ? 32 : 0);  // of eight rows

// ---- Rows: [super-block][chunk][block of eight rows][matrix][row][8 inputs]. A warp a super-block and block of rows.

template <class Format>
__global__ void __launch_bounds__(128)
    arrange(const uint16_t* x, int64_t padded, int rows, int row_blocks, int units, uint8_t* arranged) {
  begin_kernel();
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3,
            unit = blockIdx.x * 4 + static_cast<int>(threadIdx.x >> 5), block = blockIdx.y;
  if (unit >= units) return;
  const int row = block * 8 + g;
  const uint16_t* from = x + static_cast<int64_t>(row < rows ? row : rows - 1) * padded + unit * 256;
  const auto put = [&](int matrix, uint32_t pair) {  // inputs 2 t and 2 t + 1 of row g
    const int64_t chunk = static_cast<int64_t>(unit) * kChunks<Format> + matrix / kMatrices<Format>;
    uint8_t* to = arranged + (chunk * row_blocks + block) * kChunkBytes<Format>;
    reinterpret_cast<uint32_t*>(to + matrix % kMatrices<Format> * kMatrixBytes)[lane] = pair;
  };
  uint4 v[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = inputs_at<Format>(from, j, t);
  if constexpr (Format::kHasMinimums) {
    const Totals totals = totals_of<Format>(v);
    put(32, totals.high);
    put(33, totals.middle);
    put(34, totals.low);
    put(35, 0u);
    const float power = lift(v);
    const int64_t last = static_cast<int64_t>(unit + 1) * kChunks<Format> - 1;
    if (t == 0)
      reinterpret_cast<float*>(arranged + (last * row_blocks + block) * kChunkBytes<Format> + kPowersAt<Format>)[g] =
          power;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    put(4 * j, v[j].x);
    put(4 * j + 1, v[j].y);
    put(4 * j + 2, v[j].z);
    put(4 * j + 3, v[j].w);
  }
}

// ---- Work

constexpr int kMostSlots = 8;

struct WideShape {
  Slices slices;
  int tiles = 0, row_blocks = 0, row_tiles = 0, output_tiles = 0, items = 0;
  int groups = 1, weight_slots = 1, row_slots = 1;
  int64_t plane = 0;
};

// Warpgroups of a block of threads that multiply. Five take 34,816 outputs in one round on an H200, for which the sums
// of Q6_K have no registers.
template <class Format, int kColumns>
constexpr int kMostGroups = kColumns == 128  ? 2
                            : kColumns == 64 ? 3
                                             : (Format::kHasMinimums ? 5 : 4);
constexpr int kCarriers = 128;  // threads that bring

#if FORETOKEN_HAS_WGMMA

// ---- Weights: the steps of sixteen packed outputs one after the other, as the instruction reads them.

template <class Format>
struct Operands;

template <>
struct Operands<Q4K> {
  uint4 word = {};
  uint32_t scales = 0;
  // Codes times scales, of the outputs g and g + 8.
  __device__ __forceinline__ void take(const uint8_t* at, int step, uint32_t (&a)[2][4]) {
    const int lane = threadIdx.x & 31;
    if (step % 2 == 0) {
      word = *reinterpret_cast<const uint4*>(at + step / 2 * 512 + lane * 16);
      scales = *reinterpret_cast<const uint32_t*>(at + Q4K::kScalesAt + lane / 4 * 16 + step / 2 * 4);
    }
    const uint32_t pair = scale_pair(scales, step % 2);
#pragma unroll
    for (int k = 0; k < 2; ++k) scaled_codes(step % 2 ? word.y : word.x, step % 2 ? word.w : word.z, k, pair, a[k]);
  }
  static __device__ __forceinline__ void take_minimums(const uint8_t* at, uint32_t (&a)[4]) {
    const uint32_t m = *reinterpret_cast<const uint32_t*>(at + Q4K::kMinimumsAt + (threadIdx.x & 31) * 4);
    a[0] = a[2] = minus_128(__byte_perm(m, 0x43434343u, 0x4140));
    a[1] = a[3] = minus_128(__byte_perm(m, 0x43434343u, 0x4342));
  }
};

template <>
struct Operands<Q6K> {
  uint4 low = {};
  uint2 high = {}, scales = {};
  __device__ __forceinline__ void take(const uint8_t* at, int step, uint32_t (&a)[1][4], float (&scale)[2]) {
    const int lane = threadIdx.x & 31, chunk = step / 4, h = step % 4 / 2, u = step % 2;
    if (step % 4 == 0) {
      low = *reinterpret_cast<const uint4*>(at + chunk * 512 + lane * 16);
      high = *reinterpret_cast<const uint2*>(at + Q6K::kHighAt + chunk / 2 * 512 + lane * 16 + chunk % 2 * 8);
      scales = *reinterpret_cast<const uint2*>(at + Q6K::kScalesAt + lane / 4 * 32 + chunk * 8);
    }
    const uint32_t first = h ? low.y : low.x, second = h ? low.w : low.z, s = h ? scales.y : scales.x;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[0][2 * i] = six_bit_codes(first, 2 * u + i, high.x, 4 * h + 2 * u + i);
      a[0][2 * i + 1] = six_bit_codes(second, 2 * u + i, high.y, 4 * h + 2 * u + i);
    }
    scale[0] = signed_byte(s, 2 * u);
    scale[1] = signed_byte(s, 2 * u + 1);
  }
};

// A super-block of an item; the next one in the order of a block's work.
struct Place {
  int item, unit, end;
  __device__ __forceinline__ Place(const WideShape& shape, int first) : item(first) { enter(shape); }
  __device__ __forceinline__ bool exists(const WideShape& shape) const { return item < shape.items; }
  __device__ __forceinline__ void next(const WideShape& shape, int stride) {
    if (++unit < end) return;
    item += stride;
    enter(shape);
  }
  __device__ __forceinline__ int row_tile(const WideShape& shape) const { return item % shape.row_tiles; }
  __device__ __forceinline__ int output_tile(const WideShape& shape) const {
    return item / shape.row_tiles % shape.output_tiles;
  }
  __device__ __forceinline__ int slice(const WideShape& shape) const {
    return item / shape.row_tiles / shape.output_tiles;
  }

 private:
  __device__ __forceinline__ void enter(const WideShape& shape) {
    unit = shape.slices.begin(slice(shape));
    end = shape.slices.begin(slice(shape) + 1);
  }
};

// Slots of shared memory in turn.
struct Ring {
  int slot = 0;
  uint32_t turn = 0;
  __device__ __forceinline__ void next(int slots) {
    if (++slot == slots) slot = 0, turn ^= 1;
  }
};

// An instruction takes as long for few columns as for 64, since it is the weights that it waits for: only 128 columns
// are multiplied in two parts, one while the sums of the other are scaled. Of Q6_K, whose every step is scaled, 32
// columns have registers for the sums of two steps, 64 leave the waiting to other warpgroups.
template <int kColumns>
constexpr int kParts = kColumns == 128 ? 2 : 1;
template <int kColumns>
constexpr int kSums = kColumns == 64 ? 1 : 2;
// Registers of a thread that multiplies, which it gets from those that bring; they are given by whole warpgroups.
template <class Format, int kColumns>
constexpr int kRegisters = kColumns == 128  ? 232
                           : kColumns == 64 ? 152
                                            : (kMostGroups<Format, kColumns> == 5 ? 88 : 104);
constexpr int kCarrierRegisters = 40;
// What a block of threads has when it is launched is all that there is to give: as many registers as each of its
// threads can have alike.
template <class Format, int kColumns>
constexpr bool kRegistersFit = [] {
  constexpr int kMultipliers = 128 * kMostGroups<Format, kColumns>, kThreads = kMultipliers + kCarriers;
  return kMultipliers * kRegisters<Format, kColumns> + kCarriers * kCarrierRegisters <=
         65536 / kThreads / 8 * 8 * kThreads;
}();

#endif

template <class Format, int kColumns>
__global__ void __launch_bounds__(128 * kMostGroups<Format, kColumns> + kCarriers, 1)
    many_rows(Part part, WideShape shape, Columns columns, const uint8_t* arranged) {
#if FORETOKEN_HAS_WGMMA
  using Step = Steps<Format>;
  static_assert(kRegistersFit<Format, kColumns>);
  extern __shared__ __align__(128) uint8_t memory[];  // rows of every slot, then weights of every slot
  __shared__ __align__(8) uint64_t weights_here[kMostSlots], weights_read[kMostSlots], rows_here[kMostSlots],
      rows_read[kMostSlots];
  constexpr int kRowBytes = kColumns / 8 * kChunkBytes<Format>;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = 4 * shape.groups;
  const int weight_bytes = warps * Format::kBytes;
  uint8_t* const weights = memory + static_cast<size_t>(shape.row_slots) * kRowBytes;
  const int stride = static_cast<int>(gridDim.x);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMostSlots; ++i) {
      barrier_init(weights_here[i], 1);
      barrier_init(weights_read[i], static_cast<uint32_t>(warps));
      barrier_init(rows_here[i], 1);
      barrier_init(rows_read[i], static_cast<uint32_t>(warps));
    }
    fence_barriers();
  }
  __syncthreads();

  if (warp >= warps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCarrierRegisters));
    if (warp == warps && lane == 0) {  // weights: no kernel writes them
      Ring ring;
      for (Place p(shape, static_cast<int>(blockIdx.x)); p.exists(shape);
           p.next(shape, stride), ring.next(shape.weight_slots)) {
        barrier_wait(weights_read[ring.slot], ring.turn ^ 1);
        barrier_expect(weights_here[ring.slot], static_cast<uint32_t>(weight_bytes));
        const int first = p.output_tile(shape) * warps;
        for (int i = 0; i < warps; ++i) {
          const int64_t tile = min(first + i, shape.tiles - 1);
          bulk_copy(shared_address(weights + ring.slot * weight_bytes + i * Format::kBytes),
                    static_cast<const uint8_t*>(part.codes) + (tile * shape.slices.units + p.unit) * Format::kBytes,
                    Format::kBytes, shared_address(&weights_here[ring.slot]));
        }
      }
    }
    if (warp == warps + 1) {  // rows
      begin_kernel();
      Ring ring;
      if (lane == 0)
        for (Place p(shape, static_cast<int>(blockIdx.x)); p.exists(shape); p.next(shape, stride))
          for (int chunk = 0; chunk < kChunks<Format>; ++chunk, ring.next(shape.row_slots)) {
            barrier_wait(rows_read[ring.slot], ring.turn ^ 1);
            barrier_expect(rows_here[ring.slot], kRowBytes);
            const int64_t block = (static_cast<int64_t>(p.unit) * kChunks<Format> + chunk) * shape.row_blocks +
                                  static_cast<int64_t>(p.row_tile(shape)) * (kColumns / 8);
            bulk_copy(shared_address(memory + ring.slot * kRowBytes), arranged + block * kChunkBytes<Format>, kRowBytes,
                      shared_address(&rows_here[ring.slot]));
          }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters<Format, kColumns>));
    begin_kernel();  // what comes is written where an earlier kernel may still read
    constexpr int kPart = kColumns / kParts<kColumns>, kValues = kPart / 2;
    const uint64_t matrices = columns_descriptor(shared_address(memory), kMatrixBytes, kChunkBytes<Format>);
    float sum[kParts<kColumns>][kValues] = {};
    Operands<Format> operands;
    Ring held, rows;
    Place p(shape, static_cast<int>(blockIdx.x));
    const auto weights_at = [&] { return weights + held.slot * weight_bytes + warp * Format::kBytes; };
    const auto rows_at = [&](int slot, int of_columns, int step) {
      return matrices + static_cast<uint32_t>(slot * kRowBytes + of_columns * (kPart / 8) * kChunkBytes<Format> +
                                              step % Step::kOfChunk * Step::kChain * 2 * kMatrixBytes) /
                            16;
    };
    const auto store = [&] {
      const int64_t o = static_cast<int64_t>(p.output_tile(shape) * warps + warp) * 16 + lane / 4;
      int64_t column = p.row_tile(shape) * kColumns + lane % 4 * 2;
      float* to = columns.out + p.slice(shape) * shape.plane + column * columns.stride + columns.first + o;
      const bool low = o < part.rows, high = o + 8 < part.rows;
#pragma unroll
      for (int i = 0; i < kParts<kColumns> * kValues; i += 2) {
        float(&of)[kValues] = sum[i / kValues];
        const int at = i % kValues / 4 * 4 + i % 4 / 2;
        if (column < columns.rows) {
          if (low) to[0] = of[at];
          if (high) to[8] = of[at + 2];
        }
        of[at] = of[at + 2] = 0;
        const int step = i % 4 == 0 ? 1 : 7;
        column += step, to += step * columns.stride;
      }
    };
    const auto take_weights = [&](bool more) {  // of the next super-block
      __syncwarp();
      if (lane == 0) barrier_arrive(weights_read[held.slot]);
      held.next(shape.weight_slots);
      if (more) barrier_wait(weights_here[held.slot], held.turn);
    };
    if constexpr (Format::kHasMinimums) {
      Ring before;  // of rows, of the chunk before
      // The inputs of a super-block are one chain; a step's operands are made while the one before multiplies.
      float dot[kParts<kColumns>][kValues], least[kValues], factor[2], minimum_factor[2];
      uint32_t a[2][2][4], minimums[4];
      constexpr int kLast = Step::kCount - 1;  // the minimums
      const auto issue = [&](int of_columns, int step) {
        const uint64_t b = rows_at(rows.slot, of_columns, step);
        wgmma_fence();
        if (step == 0) wgmma_f16<kPart, false>(dot[of_columns], a[0][0], b);
        else wgmma_f16<kPart, true>(dot[of_columns], a[step % 2][0], b);
        wgmma_f16<kPart, true>(dot[of_columns], a[step % 2][1], b + 2 * kMatrixBytes / 16);
      };
      const auto issue_least = [&](int of_columns) {
        const uint64_t b = rows_at(rows.slot, of_columns, kLast);
        wgmma_fence();
        wgmma<kPart, false>(least, minimums, b);
        wgmma<kPart, true>(least, minimums, b + 2 * kMatrixBytes / 16);
      };
      const auto apply = [&](int of_columns) {
        settle(dot[of_columns]);
        settle(least);
        const uint8_t* powers = memory + rows.slot * kRowBytes + of_columns * (kPart / 8) * kChunkBytes<Format> +
                                kPowersAt<Format> + lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < kValues; i += 4, powers += kChunkBytes<Format>) {
          const float2 power = *reinterpret_cast<const float2*>(powers);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float value =
                fma(minimum_factor[e / 2], least[i + e],
                    __fmul_rn(factor[e / 2], __fmul_rn(dot[of_columns][i + e], e % 2 ? power.y : power.x)));
            sum[of_columns][i + e] = __fadd_rn(sum[of_columns][i + e], value);
          }
        }
      };
      barrier_wait(weights_here[0], 0);
      operands.take(weights_at(), 0, a[0]);
      barrier_wait(rows_here[0], 0);
#pragma unroll 1
      while (p.exists(shape)) {
        const bool ends = p.unit + 1 == p.end, more = !ends || p.item + stride < shape.items;
#pragma unroll
        for (int step = 0; step < kLast; ++step) {
          issue(0, step);
          if (step + 1 == kLast) {
            // Its part of the minimums is ready with the first part of the columns.
            if constexpr (kParts<kColumns> == 2) wgmma_commit();
            issue_least(0);
          }
          wgmma_commit();
          if constexpr (kParts<kColumns> == 2) issue(1, step), wgmma_commit();
          if (step + 1 == kLast) break;
          wgmma_wait<kParts<kColumns>>();  // the step before
          if (step > 0 && step % Step::kOfChunk == 0) {
            if (lane == 0) barrier_arrive(rows_read[before.slot]);
          }
          operands.take(weights_at(), step + 1, a[(step + 1) % 2]);
          if (step + 2 == kLast) {
            operands.take_minimums(weights_at(), minimums);
            const uint2 f = *reinterpret_cast<const uint2*>(weights_at() + Q4K::kFactorsAt + lane / 4 * 8);
            factor[0] = half_of(f.x, 0), factor[1] = half_of(f.y, 0);
            minimum_factor[0] = -half_of(f.x, 1), minimum_factor[1] = -half_of(f.y, 1);
          }
          if ((step + 1) % Step::kOfChunk == 0) {
            before = rows;
            rows.next(shape.row_slots);
            barrier_wait(rows_here[rows.slot], rows.turn);
          }
        }
        if constexpr (kParts<kColumns> == 2) {
          wgmma_wait<1>();
          apply(0);
          issue_least(1);
          wgmma_commit();
        }
        take_weights(more);
        operands.take(weights_at(), 0, a[0]);
        wgmma_wait<0>();
        apply(kParts<kColumns> - 1);
        __syncwarp();  // all have read the powers
        if (lane == 0) barrier_arrive(rows_read[rows.slot]);
        rows.next(shape.row_slots);
        if (more) barrier_wait(rows_here[rows.slot], rows.turn);
        if (ends) store();
        p.next(shape, stride);
      }
    } else {
      float dot[kSums<kColumns>][kValues] = {}, scaled[kParts<kColumns>][kValues], scale[2][2], factor[2];
      uint32_t a[2][1][4];
      Ring ahead;  // of rows, of the step whose first half is issued
      const auto leave_rows = [&] {
        if (lane == 0) barrier_arrive(rows_read[rows.slot]);
        rows = ahead;
      };
      const auto sums_of = [&](int part_of, int step) {
        return kParts<kColumns> == 2 ? part_of : step % kSums<kColumns>;
      };
      // One part of the columns of one step.
      const auto issue = [&](int of_columns, int step, int slot) {
        wgmma_fence();
        wgmma<kPart, false>(dot[sums_of(of_columns, step)], a[step % 2][0], rows_at(slot, of_columns, step));
        wgmma_commit();
      };
      const auto apply = [&](int of_columns, int step) {
        float(&from)[kValues] = dot[sums_of(of_columns, step)];
        settle(from);
        const bool last = step + 1 == Step::kCount;
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
          const int of = i % 4 / 2;
          float& s = scaled[of_columns][i];
          s = fma(scale[step % 2][of], from[i], step == 0 ? 0.0f : s);
          if (last) sum[of_columns][i] = __fadd_rn(sum[of_columns][i], __fmul_rn(factor[of], s));
        }
      };
      barrier_wait(weights_here[0], 0);
      operands.take(weights_at(), 0, a[0], scale[0]);
      barrier_wait(rows_here[0], 0);
#pragma unroll 1
      while (p.exists(shape)) {
        const bool ends = p.unit + 1 == p.end, more = !ends || p.item + stride < shape.items;
        issue(0, 0, rows.slot);
#pragma unroll
        for (int step = 0; step < Step::kCount; ++step) {
          const int next = (step + 1) % Step::kCount;
          if constexpr (kParts<kColumns> == 2) issue(1, step, rows.slot);
          if (next == Step::kCount - 1) {  // and what comes after it
            const uint32_t f = *reinterpret_cast<const uint32_t*>(weights_at() + Q6K::kFactorsAt + lane / 4 * 4);
            factor[0] = half_of(f, 0), factor[1] = half_of(f, 1);
          }
          if (next == 0) take_weights(more);
          operands.take(weights_at(), next, a[next % 2], scale[next % 2]);
          if constexpr (kParts<kColumns> == 2) {
            wgmma_wait<1>();
            apply(0, step);
          }
          if (next % Step::kOfChunk == 0) {
            ahead.next(shape.row_slots);
            if (next != 0 || more) barrier_wait(rows_here[ahead.slot], ahead.turn);
          }
          // No compiler lets sums be read beside an instruction that began in another round.
          const bool goes_on = next != 0 && kSums<kColumns> == 2;
          if (goes_on) issue(0, next, ahead.slot), wgmma_wait<1>();
          else wgmma_wait<0>();
          apply(kParts<kColumns> - 1, step);
          if (!goes_on && next != 0) issue(0, next, ahead.slot);
          if (next % Step::kOfChunk == 0) leave_rows();
        }
        if (ends) store();
        p.next(shape, stride);
      }
    }
  }
#else
  __trap();  // no plan leads here
#endif
}

// Columns of a block of threads.
int columns_of(int64_t rows) { return rows <= 32 ? 32 : rows <= 64 ? 64 : 128; }

template <class Format, int kColumns>
void run(const Part& part, const Columns& columns, int64_t plane, uint8_t* arranged, Queue& queue) {
  constexpr int kRowBlocks = kColumns / 8, kRowBytes = kRowBlocks * kChunkBytes<Format>;
  WideShape shape{
      .slices = slices_of<Format>(part.cols), .tiles = static_cast<int>((part.rows + 15) / 16), .plane = plane};
  shape.row_tiles = static_cast<int>((columns.rows + kColumns - 1) / kColumns);
  shape.row_blocks = shape.row_tiles * kRowBlocks;
  shape.groups = kMostGroups<Format, kColumns>;
  if (kColumns < 128)
    shape.groups = wide_groups(int64_t{(shape.tiles + 3) / 4} * shape.slices.count * shape.row_tiles, shape.groups,
                               queue.limits());
  const int warps = 4 * shape.groups;
  shape.output_tiles = (shape.tiles + warps - 1) / warps;
  const size_t weight_bytes = static_cast<size_t>(warps) * Format::kBytes;
  shape.weight_slots =
      kColumns == 128 ? 3 : std::min<int>(kMostSlots, static_cast<int>(kWideShared * 2 / 3 / weight_bytes));
  const size_t room = kWideShared - static_cast<size_t>(shape.weight_slots) * weight_bytes;
  shape.row_slots = std::min(kMostSlots, static_cast<int>(room / kRowBytes));
  Launch{dim3(static_cast<unsigned>((shape.slices.units + 3) / 4), static_cast<unsigned>(shape.row_blocks)), 128, 0,
         queue}(arrange<Format>, columns.x, columns.padded, static_cast<int>(columns.rows), shape.row_blocks,
                shape.slices.units, arranged);
  shape.items = shape.row_tiles * shape.output_tiles * shape.slices.count;
  Launch{static_cast<unsigned>(std::min(shape.items, queue.limits().multiprocessors)),
         static_cast<unsigned>(32 * warps + kCarriers),
         static_cast<size_t>(shape.row_slots) * kRowBytes + static_cast<size_t>(shape.weight_slots) * weight_bytes,
         queue}(many_rows<Format, kColumns>, part, shape, columns, arranged);
}

template <class Format>
void run(const Part& part, const Columns& columns, int64_t plane, uint8_t* arranged, Queue& queue) {
  switch (columns_of(columns.rows)) {
    case 32:
      return run<Format, 32>(part, columns, plane, arranged, queue);
    case 64:
      return run<Format, 64>(part, columns, plane, arranged, queue);
    default:
      return run<Format, 128>(part, columns, plane, arranged, queue);
  }
}

template <class Format>
size_t bytes_of(const Part& part, int64_t rows) {
  const int64_t wide = columns_of(rows), row_blocks = (rows + wide - 1) / wide * wide / 8;
  return static_cast<size_t>(part.cols / 256 * kChunks<Format> * row_blocks * kChunkBytes<Format>);
}

}  // namespace

size_t arranged_bytes(const Part& part, int64_t rows) {
  return part.layout == Layout::kQ4K ? bytes_of<Q4K>(part, rows) : bytes_of<Q6K>(part, rows);
}

void run_many(const Part& part, const Columns& columns, int64_t plane, void* arranged, Queue& queue) {
  if (part.layout == Layout::kQ4K) run<Q4K>(part, columns, plane, static_cast<uint8_t*>(arranged), queue);
  else run<Q6K>(part, columns, plane, static_cast<uint8_t*>(arranged), queue);
}

}  // namespace foretoken::cuda
