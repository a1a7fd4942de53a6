// Products of Q4_K and Q6_K weights and many rows: 256 outputs by 32 rows a block of threads, a warp 32 of the outputs,
// super-blocks one after the other. Rows are staged once for all warps; what meets the minimums is made by a kernel of
// its own. The order is that of few rows.
#include "cuda/q4k.cuh"

namespace foretoken::cuda {
namespace {

constexpr int kWarps = 8, kTiles = 2, kBlocks = 4, kStages = 2;
constexpr int kColumns = kBlocks * 8;
constexpr int kPitch = 576;  // bytes of a staged row's 256 inputs: rows g and g + 1 meet different banks

// A warp a super-block and block of eight rows.
__global__ void __launch_bounds__(128)
    totals_kernel(const uint16_t* x, int64_t padded, int rows, int units, uint4* totals) {
  begin_kernel();
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3,
            unit = blockIdx.x * 4 + static_cast<int>(threadIdx.x >> 5);
  if (unit >= units) return;
  const int row = static_cast<int>(blockIdx.y) * 8 + g;
  const uint16_t* from = x + static_cast<int64_t>(row < rows ? row : rows - 1) * padded + unit * 256;
  uint4 v[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = inputs_at<Q4K>(from, j, t);
  const Totals made = totals_of<Q4K>([&](int j) { return v[j]; });
  totals[(static_cast<int64_t>(unit) * gridDim.y + blockIdx.y) * 32 + lane] =
      make_uint4(made.high, made.middle, made.low, 0);
}

struct WideShape {
  Slices slices;
  int tiles = 0, row_blocks = 0;  // row_blocks: of eight rows, as totals_kernel had them
  int64_t plane = 0;
};

FORETOKEN_DEVICE void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

template <class Format>
__global__ void __launch_bounds__(32 * kWarps, Format::kHasMinimums ? 2 : 1)
    many_rows(Part part, WideShape shape, Columns columns, const uint4* totals) {
  extern __shared__ __align__(128) uint8_t memory[];  // weights of every warp and stage, then rows of every stage
  __shared__ __align__(8) uint64_t arrived[kWarps][kStages];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int slice = blockIdx.z, begin = shape.slices.begin(slice), end = shape.slices.begin(slice + 1);
  const int first_column = static_cast<int>(blockIdx.x) * kColumns;
  const int tile = (static_cast<int>(blockIdx.y) * kWarps + warp) * kTiles;
  uint8_t* const ring = memory + static_cast<size_t>(warp) * kStages * kTiles * Format::kBytes;
  uint8_t* const staged = memory + static_cast<size_t>(kWarps) * kStages * kTiles * Format::kBytes;
  const auto request = [&](int unit) {  // by lane 0
    const int stage = (unit - begin) % kStages;
    barrier_expect(arrived[warp][stage], kTiles * Format::kBytes);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int64_t of = min(tile + j, shape.tiles - 1);
      bulk_copy(shared_address(ring + (stage * kTiles + j) * Format::kBytes),
                static_cast<const uint8_t*>(part.codes) + (of * shape.slices.units + unit) * Format::kBytes,
                Format::kBytes, shared_address(&arrived[warp][stage]));
    }
  };
  const auto stage_rows = [&](int unit) {  // by all: kColumns rows of 512 bytes
    uint8_t* const to = staged + (unit - begin) % kStages * kColumns * kPitch;
#pragma unroll
    for (int i = 0; i < kColumns * 32 / (32 * kWarps); ++i) {
      const int at = i * 32 * kWarps + static_cast<int>(threadIdx.x), row = at / 32, part_of = at % 32;
      const int64_t from = min(int64_t{first_column} + row, columns.rows - 1);
      copy_16(shared_address(to + row * kPitch + part_of * 16),
              columns.x + from * columns.padded + unit * 256 + part_of * 8);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  if (lane == 0) {
    for (int s = 0; s < kStages; ++s) barrier_init(arrived[warp][s], 1);
    fence_barriers();
    for (int unit = begin; unit < begin + kStages && unit < end; ++unit) request(unit);
  }
  __syncwarp();
  begin_kernel();
  stage_rows(begin);
  float sum[kTiles][kBlocks][4] = {};
#pragma unroll 1
  for (int unit = begin; unit < end; ++unit) {
    const int stage = (unit - begin) % kStages;
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();  // these rows are there, and nobody reads the other stage
    if (unit + 1 < end) stage_rows(unit + 1);
    const auto total = [&](int b) {
      const int block = min(static_cast<int>(blockIdx.x) * kBlocks + b, shape.row_blocks - 1);
      const uint4 v = totals[(static_cast<int64_t>(unit) * shape.row_blocks + block) * 32 + lane];
      return Totals{v.x, v.y, v.z};
    };
    barrier_wait(arrived[warp][stage], static_cast<uint32_t>((unit - begin) / kStages & 1));
    const uint8_t* rows = staged + stage * kColumns * kPitch + g * kPitch;
    float value[kTiles][kBlocks][4];
    super_blocks<kTiles, kBlocks>(
        Format{}, ring + stage * kTiles * Format::kBytes,
        [&](int b, int sub) {
          return inputs_at<Format>(reinterpret_cast<const uint16_t*>(rows + b * 8 * kPitch), sub, t);
        },
        total, value);
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[j][b][i] = __fadd_rn(sum[j][b][i], value[j][b][i]);
    __syncwarp();
    if (lane == 0 && unit + kStages < end) request(unit + kStages);
  }
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = first_column + b * 8 + 2 * t + i % 2;
        const int64_t o = (static_cast<int64_t>(tile) + j) * 16 + g + i / 2 * 8;
        if (column < columns.rows && o < part.rows)
          columns.out[slice * shape.plane + column * columns.stride + columns.first + o] = sum[j][b][i];
      }
}

template <class Format>
void run(const Part& part, const Columns& columns, int64_t plane, uint4* totals, Queue& queue) {
  const Slices slices = slices_of<Format>(part.cols);
  const unsigned row_blocks = static_cast<unsigned>((columns.rows + 7) / 8);
  if (Format::kHasMinimums)
    Launch{dim3(static_cast<unsigned>((slices.units + 3) / 4), row_blocks), 128, 0, queue}(
        totals_kernel, columns.x, columns.padded, static_cast<int>(columns.rows), slices.units, totals);
  constexpr size_t kShared = size_t{kWarps} * kStages * kTiles * Format::kBytes + size_t{kStages} * kColumns * kPitch;
  static const bool allowed = cudaFuncSetAttribute(many_rows<Format>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(kShared)) == cudaSuccess;
  static_cast<void>(allowed);
  const int tiles = static_cast<int>((part.rows + 15) / 16);
  Launch{dim3(static_cast<unsigned>((columns.rows + kColumns - 1) / kColumns),
              static_cast<unsigned>((tiles + kWarps * kTiles - 1) / (kWarps * kTiles)),
              static_cast<unsigned>(slices.count)),
         32 * kWarps, kShared, queue}(many_rows<Format>, part,
                                      WideShape{slices, tiles, static_cast<int>(row_blocks), plane}, columns, totals);
}

}  // namespace

size_t totals_bytes(const Part& part, int64_t rows) {
  if (part.layout != Layout::kQ4K) return 0;
  return static_cast<size_t>(part.cols / 256) * static_cast<size_t>((rows + 7) / 8) * 512;
}

void run_many(const Part& part, const Columns& columns, int64_t plane, void* totals, Queue& queue) {
  if (part.layout == Layout::kQ4K) run<Q4K>(part, columns, plane, static_cast<uint4*>(totals), queue);
  else run<Q6K>(part, columns, plane, nullptr, queue);
}

}  // namespace foretoken::cuda
