// Products of Q4_K and Q6_K weights and few rows. A block of threads keeps its slice of the inputs in registers, a warp
// one super-block of it, and streams tiles of sixteen outputs through shared memory by bulk copies requested well
// ahead: before the kernel that makes the rows has ended, and across tiles. Every value of a super-block is left in
// shared memory; the warps take turns in adding up a tile's.
//
// What a kernel does once is fetched anew at every launch, so it is short, and nothing is written twice.
#include <algorithm>
#include <array>
#include <bit>

#include "cuda/q4k.cuh"

namespace foretoken::cuda {
namespace {

template <int kBlocks>
constexpr uint32_t kBuffers = buffers_of(kBlocks);
template <int kBlocks>
constexpr int kValues = values_of(kBlocks);

struct Plan {
  Slices slices;
  int tiles = 0, stage_bits = 0;  // a warp has 2^stage_bits stages
  int64_t plane = 0;              // floats from the sums of one slice to those of the next
};

// The super-blocks of a warp in the order of its work, of which it asks for one after the other.
struct Cursor {
  const uint8_t* weights = nullptr;
  uint32_t next = 0;       // behind `weights`, in units of 16 bytes
  int item = 0, left = 0;  // experts: the item, and how many of its tiles are left
};

// kGated: what becomes of gates and ups (Hidden) in place of the products. Where no kernel of many rows exists, rows
// beyond a block's are groups in the grid's second dimension: their blocks stream the same tiles at about the same
// time, so that weights come from memory once.
template <class Format, int kBlocks, bool kExperts, bool kGated>
__global__ void __launch_bounds__(32 * Format::kMostUnits, 1) few_rows(Part part, Plan plan, Columns columns) {
  extern __shared__ __align__(128)
      uint8_t memory[];  // stages of every warp, kept inputs of every warp, values of every tile and warp
  __shared__ __align__(8) uint64_t arrived[Format::kMostUnits][kMostStages], complete[kBuffers<kBlocks>],
      vacant[kBuffers<kBlocks>];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = lane >> 2, t = lane & 3;
  const int slice = blockIdx.x % plan.slices.count, place = blockIdx.x / plan.slices.count,
            places = gridDim.x / plan.slices.count;
  const int first_unit = plan.slices.begin(slice), used = plan.slices.begin(slice + 1) - first_unit,
            unit = first_unit + warp;
  const uint32_t stages = 1u << plan.stage_bits;
  uint8_t* const ring = memory + static_cast<size_t>(warp) * stages * Format::kBytes;
  uint8_t* const kept =
      memory + static_cast<size_t>(warps) * stages * Format::kBytes + static_cast<size_t>(warp) * kKeptBytes;
  float* const values = reinterpret_cast<float*>(
      memory + static_cast<size_t>(warps) * (stages * Format::kBytes + (kBlocks > 1 ? kKeptBytes : 0)));

#if !FORETOKEN_HAS_WGMMA
  if constexpr (!kExperts) {  // this group's rows
    const int64_t first = int64_t{blockIdx.y} * (kBlocks * 8);
    columns.x += first * columns.padded;
    columns.rows = min(columns.rows - first, int64_t{kBlocks * 8});
    if constexpr (kGated) {
      if (columns.hidden.bf16) columns.hidden.bf16 += first * columns.hidden.width;
      if (columns.hidden.floats) columns.hidden.floats += first * columns.hidden.width;
    } else {
      columns.out += first * columns.stride;
    }
  }
#endif
  if (lane == 0) {
#pragma unroll 1
    for (uint32_t s = 0; s < stages; ++s) barrier_init(arrived[warp][s], kRequesters);
    if (warp == 0)
#pragma unroll 1
      for (uint32_t b = 0; b < kBuffers<kBlocks>; ++b)
        barrier_init(complete[b], static_cast<uint32_t>(used)), barrier_init(vacant[b], 1);
    fence_barriers();
  }
  meet_requesters();
  if constexpr (kExperts) {
    // Which weights: routing says. What leads to them is on its way at once rather than one behind the other.
    const char* const table = reinterpret_cast<const char*>(columns.parts);
    if (columns.codes_at == 0)
      for (int64_t at = threadIdx.x * 128; at < columns.experts * int64_t{sizeof(Part)}; at += blockDim.x * 128)
        into_l1(table + at);
    begin_kernel();
    if (warp == 0) {
      if (lane < columns.item_limit) into_l1(columns.items + lane);
      if (lane * 32 < columns.pairs) into_l1(columns.order + lane * 32);
    }
  }

  // Work of this block: tiles of outputs, or pairs of an expert's item and a tile.
  int begin = 0;
  uint32_t count;
  const uint32_t tile_size = static_cast<uint32_t>(plan.slices.units) * (Format::kBytes / 16);
  Cursor cursor;
  const auto weights_of = [&](int at) {
    const ExpertItem& item = columns.items[at];
    const void* const codes =
        columns.codes_at == 0
            ? columns.parts[item.expert].codes
            : *reinterpret_cast<const void* const*>(reinterpret_cast<const char*>(&item) + columns.codes_at);
    return static_cast<const uint8_t*>(codes) + unit * Format::kBytes;
  };
  if constexpr (kExperts) {
    const int64_t all = int64_t{*columns.item_count} * plan.tiles;
    begin = static_cast<int>(place * all / places);
    count = static_cast<uint32_t>((place + 1) * all / places) - static_cast<uint32_t>(begin);
    if (count == 0) return;
    const int item = begin / plan.tiles, tile = begin % plan.tiles;
    cursor = {weights_of(item), static_cast<uint32_t>(tile) * tile_size, item, plan.tiles - tile};
  } else {
    count = place < plan.tiles ? (plan.tiles - place - 1) / places + 1 : 0;
    cursor.next = static_cast<uint32_t>(place) * tile_size;
  }
  const uint32_t ring_address = shared_address(ring), arrived_address = shared_address(arrived[warp]);
  const auto request = [&](uint32_t i, int stage) {  // tile i: the next one
    if (lane < kRequesters) {
      barrier_expect(arrived[warp][stage], Format::kBytes);
      const uint8_t* weights =
          kExperts ? cursor.weights : static_cast<const uint8_t*>(part.codes) + unit * Format::kBytes;
      bulk_copy(ring_address + static_cast<uint32_t>(stage * Format::kBytes), weights + uint64_t{cursor.next} * 16,
                Format::kBytes, arrived_address + 8 * static_cast<uint32_t>(stage));
      barrier_requested(arrived[warp][stage]);
    }
    if constexpr (kExperts) {
      cursor.next += tile_size;
      if (--cursor.left == 0 && i + 1 < count) {
        cursor.left = plan.tiles;
        cursor.weights = weights_of(++cursor.item);
        cursor.next = 0;
      }
    } else {
      cursor.next += static_cast<uint32_t>(places) * tile_size;
    }
  };
  if (warp < used)
#pragma unroll 1
    for (uint32_t i = 0; i < stages && i < count; ++i) request(i, static_cast<int>(i));
  __syncthreads();
  if constexpr (!kExperts) begin_kernel();  // the weights are on their way while the kernel before ends
  if (warp >= used || count == 0) return;

  uint4 x0[8];
  Totals totals[kBlocks];
  int rows = static_cast<int>(columns.rows);
  const auto load_rows = [&](int item) {
    const int* order = nullptr;
    if constexpr (kExperts) {
      const ExpertItem& of = columns.items[item];
      order = columns.order + of.first;
      rows = of.count;
    }
#pragma unroll
    for (int b = kBlocks - 1; b >= 0; --b) {
      const int column = min(b * 8 + g, rows - 1);  // columns without a row have another's, and leave nothing
      int64_t row = column;
      if constexpr (kExperts) row = order[column] / static_cast<int>(columns.divisor);
      const uint16_t* from = columns.x + row * columns.padded + unit * 256;
      uint4 v[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = inputs_at<Format>(from, j, t);
      totals[b] = totals_of<Format>(v);
      if constexpr (Format::kHasMinimums) lift(v, totals[b].power);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (b == 0) x0[j] = v[j];
        else *reinterpret_cast<uint4*>(kept + j * 512 + lane * 16) = v[j];  // read by this lane alone
      }
      asm volatile("" ::: "memory");  // one block after the other: registers have room for no more
    }
  };
  // Sixteen outputs of a tile: a lane takes four of one column.
  const auto add_up = [&](uint32_t i) {
    const int buffer = static_cast<int>(i % kBuffers<kBlocks>);
    barrier_wait(complete[buffer], i / kBuffers<kBlocks> & 1);
    int64_t tile;
    const int* to = nullptr;
    int existing = static_cast<int>(columns.rows);
    if constexpr (kExperts) {
      const ExpertItem& of = columns.items[(begin + static_cast<int>(i)) / plan.tiles];
      tile = (begin + static_cast<int>(i)) % plan.tiles;
      to = columns.order + of.first;
      existing = of.count;
    } else {
      tile = place + int64_t{i} * places;
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int column = b * 8 + lane / 4, output = lane % 4 * 4;
      const float* from = values + buffer * warps * kValues<kBlocks> + column * kColumnStride + output;
      float sum[4] = {};
#pragma unroll 5
      for (int w = 0; w < used; ++w) {
        const float4 v = *reinterpret_cast<const float4*>(from + w * kValues<kBlocks>);
        sum[0] = __fadd_rn(sum[0], v.x);
        sum[1] = __fadd_rn(sum[1], v.y);
        sum[2] = __fadd_rn(sum[2], v.z);
        sum[3] = __fadd_rn(sum[3], v.w);
      }
      if constexpr (kGated) {  // lanes two apart hold the gates and the ups of four: each takes two
        const bool ups = (lane & 2) != 0;
        const float first = __shfl_xor_sync(0xFFFFFFFFu, ups ? sum[0] : sum[2], 2),
                    second = __shfl_xor_sync(0xFFFFFFFFu, ups ? sum[1] : sum[3], 2);
        if (column < existing) {
          const int64_t row = kExperts ? to[column] : column, n = tile * 8 + lane % 2 * 4 + (ups ? 2 : 0),
                        at = row * columns.hidden.width + n;
          const float even = __fmul_rn(silu(ups ? first : sum[0]), ups ? sum[2] : first),
                      odd = __fmul_rn(silu(ups ? second : sum[1]), ups ? sum[3] : second);
          if (columns.hidden.bf16) *reinterpret_cast<uint32_t*>(columns.hidden.bf16 + at) = bf16_pair(even, odd);
          if (columns.hidden.floats) *reinterpret_cast<float2*>(columns.hidden.floats + at) = make_float2(even, odd);
        }
      } else if (column < existing) {
        const int64_t row = kExperts ? to[column] : column, o = tile * 16 + output;
        float* out = columns.out + slice * plan.plane + row * columns.stride + columns.first + o;
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (o + j < part.rows) out[j] = sum[j];
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(vacant[buffer]);
  };

  // Counted along, since a division takes as long as a tenth of a tile.
  int item = -1, left = 0;  // left: tiles of the item
  int others = warp + 1;    // tiles that other warps add up before it is this one's turn
  if constexpr (kExperts) item += begin / plan.tiles;
  else load_rows(0);
#pragma unroll 1
  for (uint32_t i = 0; i <= count; ++i) {
    if (i < count) {
      if constexpr (kExperts) {
        if (left == 0) load_rows(++item), left = plan.tiles - (i == 0 ? begin % plan.tiles : 0);
        --left;
      }
      const int stage = static_cast<int>(i & (stages - 1));
      barrier_wait(arrived[warp][stage], i >> plan.stage_bits & 1);
      float value[kBlocks][4];
      super_block<kBlocks>(
          Format{}, ring + stage * Format::kBytes,
          [&](int b, int j) { return b == 0 ? x0[j] : *reinterpret_cast<const uint4*>(kept + j * 512 + lane * 16); },
          [&](int b) { return totals[b]; }, value);
      __syncwarp();
      if (i + stages < count) request(i + stages, stage);

      const int buffer = static_cast<int>(i % kBuffers<kBlocks>);
      barrier_wait(vacant[buffer], i / kBuffers<kBlocks> & 1 ^ 1);
      float* to = values + (buffer * warps + warp) * kValues<kBlocks>;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        if (b * 8 + 2 * t >= rows) continue;
        to[(b * 8 + 2 * t) * kColumnStride + g] = value[b][0];
        to[(b * 8 + 2 * t + 1) * kColumnStride + g] = value[b][1];
        to[(b * 8 + 2 * t) * kColumnStride + g + 8] = value[b][2];
        to[(b * 8 + 2 * t + 1) * kColumnStride + g + 8] = value[b][3];
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(complete[buffer]);
    }
    if (others == 0) {  // the tile before
      others = used;
      add_up(i - 1);
    }
    --others;
  }
}

// Blocks of so many warps whose registers a multiprocessor has at once: one more would wait for another to end.
template <int kMostWarps, class Kernel>
std::array<int, kMostWarps + 1> residents_of(Kernel kernel) {
  std::array<int, kMostWarps + 1> residents = {};
  for (int warps = 1; warps <= kMostWarps; ++warps)
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&residents[static_cast<size_t>(warps)], kernel, 32 * warps, 0);
  return residents;
}

template <class Format, int kBlocks, bool kExperts, bool kGated>
void run_kernel(const Part& part, const Columns& columns, int64_t plane, int64_t most_items, Queue& queue) {
  const auto kernel = few_rows<Format, kBlocks, kExperts, kGated>;
  static const std::array<int, Format::kMostUnits + 1> residents = residents_of<Format::kMostUnits>(kernel);
  const int64_t groups = kExperts ? 1 : (columns.rows + kBlocks * 8 - 1) / (kBlocks * 8);
  const Slices slices = slices_of<Format>(part.cols);
  const FewRowsTask task{.slices = slices,
                         .unit_bytes = Format::kBytes,
                         .blocks = kBlocks,
                         .experts = kExperts,
                         .residents = residents[static_cast<size_t>(slices.most())],
                         .tiles = static_cast<int>((part.rows + 15) / 16),
                         .items = most_items,
                         .groups = groups};
  const FewRowsPlan plan = plan_few_rows(task, queue.limits());
  CHECK(plan.stages > 0);
  Launch{dim3(static_cast<unsigned>(plan.places * slices.count), static_cast<unsigned>(groups)),
         static_cast<unsigned>(32 * plan.warps), plan.shared, queue}(
      kernel, part, Plan{slices, task.tiles, std::countr_zero(static_cast<unsigned>(plan.stages)), plane}, columns);
}

template <class Format, int kBlocks, bool kExperts>
void run(const Part& part, const Columns& columns, int64_t plane, int64_t most_items, Queue& queue) {
  if (columns.hidden.width > 0) run_kernel<Format, kBlocks, kExperts, true>(part, columns, plane, most_items, queue);
  else run_kernel<Format, kBlocks, kExperts, false>(part, columns, plane, most_items, queue);
}

template <class Format>
void run_rows(const Part& part, const Columns& columns, int64_t plane, Queue& queue) {
  const int most = few_rows_at_once(slices_of<Format>(part.cols), Format::kBytes, queue.limits());
  const auto some = [&](const Columns& of) {
    if (of.rows <= 8 || most == 8) run<Format, 1, false>(part, of, plane, 1, queue);
    else run<Format, 2, false>(part, of, plane, 1, queue);
  };
  if (!queue.limits().code.wgmma) return some(columns);
  for (int64_t first = 0; first < columns.rows; first += most) {
    Columns of = columns;
    of.rows = std::min<int64_t>(most, columns.rows - first);
    of.x += first * columns.padded;
    if (of.out) of.out += first * columns.stride;
    if (of.hidden.bf16) of.hidden.bf16 += first * of.hidden.width;
    if (of.hidden.floats) of.hidden.floats += first * of.hidden.width;
    some(of);
  }
}

}  // namespace

int super_block_slices(const Part& part) {
  return (part.layout == Layout::kQ4K ? slices_of<Q4K>(part.cols) : slices_of<Q6K>(part.cols)).count;
}

void run_few(const Part& part, const Columns& columns, int64_t plane, Queue& queue) {
  if (part.layout == Layout::kQ4K) run_rows<Q4K>(part, columns, plane, queue);
  else run_rows<Q6K>(part, columns, plane, queue);
}

void run_few_experts(const Part& like, const Columns& columns, int64_t plane, int item_limit, Queue& queue) {
  if (like.layout == Layout::kQ4K) run<Q4K, 1, true>(like, columns, plane, item_limit, queue);
  else run<Q6K, 1, true>(like, columns, plane, item_limit, queue);
}

}  // namespace foretoken::cuda
