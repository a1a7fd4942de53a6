// Products of Q4_K weights. A warp streams the super-blocks of its part of the inputs through shared memory by bulk copies that it has
// requested well ahead, makes integer codes of them, and leaves its part's sums to be added in ascending order. Shape contract: split_of
// in linear.cuh. Every row count runs this kernel; it only varies how many blocks of eight columns share a weight's codes.
#include "cuda/linear.cuh"

namespace foretoken::cuda {
namespace {

constexpr int kStages = 3;
constexpr int kCodeBytes = 2048, kScaleBytes = 256, kFactorBytes = 64;  // of sixteen outputs' super-blocks
constexpr int kStageBytes = kCodeBytes + kScaleBytes + kFactorBytes + 64;

template <int kBlocks>
constexpr int kMostWarps = kBlocks <= 2 ? kMaxSplit : 8;

FORETOKEN_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

FORETOKEN_DEVICE void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
               "r"(barrier)
               : "memory");
}

FORETOKEN_DEVICE void wait_for(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\n"
      "bra again;\n"
      "ready:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Inputs 2 i and 2 i + 1 of a word: 128 + code has the code's bits at the end of its bf16 mantissa.
FORETOKEN_DEVICE uint32_t codes(uint32_t w, int i) {
  const uint32_t lifted = (w >> 4 * i & 0x000F000Fu) | 0x43004300u, offset = 0x43004300u;
  const __nv_bfloat162 pair = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&lifted), *reinterpret_cast<const __nv_bfloat162*>(&offset));
  return *reinterpret_cast<const uint32_t*>(&pair);
}

FORETOKEN_DEVICE float small(uint32_t bytes, int i) {
  return __fadd_rn(__uint_as_float(__byte_perm(bytes, 0x4B000000u, 0x7440 + i)), -8388608.0f);
}

FORETOKEN_DEVICE float half_of(uint32_t pair, int which) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16 * which)));
}

constexpr int kMostShared = 224 * 1024;  // of one block of threads

// kTiles: groups of sixteen outputs that share what is read of the rows.
template <int kBlocks, int kTiles, bool kExperts>
__global__ void __launch_bounds__(32 * kMostWarps<kBlocks>) q4k_products(Part part, Split split, Columns columns) {
  extern __shared__ __align__(128) uint8_t shared[];  // stages of every warp, then sums [parts][columns][16, padded]
  __shared__ __align__(8) uint64_t barriers[kMaxSplit][kStages];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = lane >> 2, t = lane & 3;
  float* sums = reinterpret_cast<float*>(shared + static_cast<size_t>(warps) * kStages * kTiles * kStageBytes);
  const int64_t blocks_wide = columns.padded / 256, m = int64_t{blockIdx.y} * kTiles, last_m = (part.rows + 15) / 16 - 1;
  int first_column = static_cast<int>(blockIdx.x) * kBlocks * 8, count = columns.rows - first_column;
  const int* order = nullptr;
  if constexpr (kExperts) {
    begin_kernel();
    if (static_cast<int>(blockIdx.x) >= *columns.item_count) return;
    const ExpertItem item = columns.items[blockIdx.x];
    part = columns.parts[item.expert];
    order = columns.order + item.first;
    first_column = 0;
    count = item.count;
  }
  const auto boundary = [&](int p) { return p * split.units / split.parts; };  // a unit is a super-block
  const int first_part = warp * split.parts / warps, last_part = (warp + 1) * split.parts / warps;
  const int begin = boundary(first_part), end = boundary(last_part);
  uint8_t* stages = shared + static_cast<size_t>(warp) * kStages * kTiles * kStageBytes;
  const auto request = [&](int k) {  // by lane 0
    const int stage = (k - begin) % kStages;
    const uint32_t barrier = shared_address(&barriers[warp][stage]);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(kTiles * (kCodeBytes + kScaleBytes + kFactorBytes))
                 : "memory");
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int64_t block = min(m + j, last_m) * blocks_wide + k;
      const uint32_t to = shared_address(stages + (stage * kTiles + j) * kStageBytes);
      bulk_copy(to, static_cast<const uint8_t*>(part.codes) + block * kCodeBytes, kCodeBytes, barrier);
      bulk_copy(to + kCodeBytes, static_cast<const uint8_t*>(part.scales) + block * kScaleBytes, kScaleBytes, barrier);
      bulk_copy(to + kCodeBytes + kScaleBytes, static_cast<const uint8_t*>(part.minimums) + block * kFactorBytes, kFactorBytes, barrier);
    }
  };
  if (lane == 0) {
    for (int s = 0; s < kStages; ++s)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barriers[warp][s])) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    for (int k = begin; k < end && k < begin + kStages; ++k) request(k);
  }
  __syncwarp();
  if constexpr (!kExperts) begin_kernel();  // the weights are on their way while the kernel before ends
  const uint16_t* x[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    int row = first_column + b * 8 + g;
    if constexpr (kExperts) row = order[g < count ? g : 0] / columns.divisor;
    x[b] = columns.x + static_cast<int64_t>(row) * columns.padded + t * 8;
  }
  const uint32_t ones[4] = {0x3F803F80u, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u};
  for (int p = first_part; p < last_part; ++p) {
    float sum[kTiles][kBlocks][4] = {};
    for (int k = boundary(p); k < boundary(p + 1); ++k) {
      const int turn = k - begin, stage = turn % kStages;
      const uint8_t* at = stages + stage * kTiles * kStageBytes;
      // Outputs g and g + 8 of columns 2 t and 2 t + 1, over the super-block's sub-blocks.
      float scaled[kTiles][kBlocks][4] = {}, least[kTiles][kBlocks][4] = {};
      wait_for(shared_address(&barriers[warp][stage]), static_cast<uint32_t>(turn / kStages & 1));
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        uint4 v[kBlocks][2];
#pragma unroll
        for (int b = 0; b < kBlocks; ++b)
#pragma unroll
          for (int h = 0; h < 2; ++h) v[b][h] = *reinterpret_cast<const uint4*>(x[b] + static_cast<int64_t>(k) * 256 + tile * 64 + h * 32);
        float total[kBlocks][2][4] = {};
#pragma unroll
        for (int b = 0; b < kBlocks; ++b)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            mma(total[b][h], ones, v[b][h].x, v[b][h].y);
            mma(total[b][h], ones, v[b][h].z, v[b][h].w);
          }
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const uint8_t* from = at + j * kStageBytes;
          const uint4 c = *reinterpret_cast<const uint4*>(from + tile * 512 + lane * 16);
          const uint2 scales = *reinterpret_cast<const uint2*>(from + kCodeBytes + tile * 64 + g * 8);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint32_t low = h ? c.y : c.x, high = h ? c.w : c.z, s = h ? scales.y : scales.x;
            const uint32_t a0[4] = {codes(low, 0), codes(high, 0), codes(low, 1), codes(high, 1)};
            const uint32_t a1[4] = {codes(low, 2), codes(high, 2), codes(low, 3), codes(high, 3)};
            const float scale[2] = {small(s, 0), small(s, 2)}, minimum[2] = {small(s, 1), small(s, 3)};
#pragma unroll
            for (int b = 0; b < kBlocks; ++b) {
              float dot[4] = {};
              mma(dot, a0, v[b][h].x, v[b][h].y);
              mma(dot, a1, v[b][h].z, v[b][h].w);
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                scaled[j][b][i] = fma(scale[i / 2], dot[i], scaled[j][b][i]);
                least[j][b][i] = fma(minimum[i / 2], total[b][h][i], least[j][b][i]);
              }
            }
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const uint2 factors = *reinterpret_cast<const uint2*>(at + j * kStageBytes + kCodeBytes + kScaleBytes + g * 8);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint32_t f = i < 2 ? factors.x : factors.y;
            sum[j][b][i] = fma(half_of(f, 0), scaled[j][b][i], sum[j][b][i]);
            sum[j][b][i] = fma(-half_of(f, 1), least[j][b][i], sum[j][b][i]);
          }
      }
      __syncwarp();
      if (lane == 0 && k + kStages < end) request(k + kStages);
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      float* to = sums + (static_cast<int64_t>(j) * split.parts + p) * kBlocks * 8 * 17;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        to[(b * 8 + 2 * t) * 17 + g] = sum[j][b][0];
        to[(b * 8 + 2 * t + 1) * 17 + g] = sum[j][b][1];
        to[(b * 8 + 2 * t) * 17 + g + 8] = sum[j][b][2];
        to[(b * 8 + 2 * t + 1) * 17 + g + 8] = sum[j][b][3];
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
    add_parts<kBlocks, kExperts>(sums + static_cast<int64_t>(j) * split.parts * kBlocks * 8 * 17, split, columns, part.rows, m + j, first_column,
                                 count, order);
}

template <int kBlocks, int kTiles, bool kExperts>
void run(const Part& part, const Columns& columns, unsigned wide, cudaStream_t stream) {
  const Split split = split_of(part);
  const unsigned warps = static_cast<unsigned>(split.parts < kMostWarps<kBlocks> ? split.parts : kMostWarps<kBlocks>);
  const auto kernel = q4k_products<kBlocks, kTiles, kExperts>;
  static const bool allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   kMostShared) == cudaSuccess;
  static_cast<void>(allowed);
  const size_t shared = warps * size_t{kStages * kTiles * kStageBytes} + kTiles * sums_bytes<kBlocks>(split);
  Launch{dim3(wide, static_cast<unsigned>((part.rows + 16 * kTiles - 1) / (16 * kTiles))), 32 * warps, shared, stream}(kernel, part, split, columns);
}

}  // namespace

void run_q4k(const Part& part, const Columns& columns, cudaStream_t stream) {
  // Eight columns are cheap to read again; of sixteen, two tiles of outputs share a read where there are enough of them (measured with
  // cuda_bench --products on an H200: 52 us against 58 for 34816 x 5120 and 8 rows, 70 against 96 for 16).
  const bool many = part.rows >= 16 * 1024 && split_of(part).parts <= 12;
  if (columns.rows <= 8) {
    run<1, 1, false>(part, columns, 1, stream);
  } else if (columns.rows <= 16) {
    if (many) run<2, 2, false>(part, columns, 1, stream);
    else run<2, 1, false>(part, columns, 1, stream);
  } else {
    run<4, 2, false>(part, columns, static_cast<unsigned>((columns.rows + 31) / 32), stream);
  }
}

void run_q4k_experts(const Part& like, const Columns& columns, int item_limit, cudaStream_t stream) {
  run<1, 1, true>(like, columns, static_cast<unsigned>(item_limit), stream);
}

}  // namespace foretoken::cuda
