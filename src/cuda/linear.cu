// Products of every layout without super-blocks (those: linear_q4k.cu): one chain of mma.m16n8k16 a part, four steps a
// tile of 64 inputs, weights rounded once to bf16 from fma(scale, code, -minimum). Also the rounding of activations,
// and f32 weights outside the tensor cores.
#include "cuda/linear.cuh"

namespace foretoken::cuda {
namespace {

FORETOKEN_DEVICE uint4 stream16(const void* p) {  // read once: not worth a place in L1
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

FORETOKEN_DEVICE uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// A signed byte, its sign bit flipped, as a float: 2^23 + 128 + code, exactly, minus the offset.
FORETOKEN_DEVICE float byte_value(uint32_t flipped, int i) {
  return __fadd_rn(__uint_as_float(__byte_perm(flipped, 0x4B000000u, 0x7440 + i)), -8388736.0f);
}

// One tile of a layout in registers. fragment(s): the A operand of step s, elements 4s..4s+3 of the lane's sixteen, of
// its two rows.
template <Layout kLayout>
struct Tile;

template <>
struct Tile<Layout::kBf16> {
  uint4 v[4];
  FORETOKEN_DEVICE Tile load(const Part& p, int64_t tile, int lane) {
    Tile r;
    const uint4* from = static_cast<const uint4*>(p.codes) + tile * 128 + lane;
#pragma unroll
    for (int i = 0; i < 4; ++i) r.v[i] = stream16(from + i * 32);
    return r;
  }
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void fragment(int s, uint32_t (&a)[4]) const {
    const int p = s / 2, w = s % 2 * 2;
    a[0] = word(v[p], w);
    a[1] = word(v[2 + p], w);
    a[2] = word(v[p], w + 1);
    a[3] = word(v[2 + p], w + 1);
  }
};

template <bool kHasMin>
struct CodesTile {
  uint4 c[2];
  float4 scale, minimum;  // of outputs g and g + 8 in the first half, then in the second
  FORETOKEN_DEVICE CodesTile load(const Part& p, int64_t tile, int lane) {
    CodesTile r;
    const uint4* from = static_cast<const uint4*>(p.codes) + tile * 64 + lane;
    r.c[0] = stream16(from);
    r.c[1] = stream16(from + 32);
    r.scale = __ldg(static_cast<const float4*>(p.scales) + tile * 16 + lane / 2);
    r.minimum = kHasMin ? __ldg(static_cast<const float4*>(p.minimums) + tile * 16 + lane / 2)
                        : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return r;
  }
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void fragment(int s, uint32_t (&a)[4]) const {
    const uint32_t low = word(c[0], s) ^ 0x80808080u, high = word(c[1], s) ^ 0x80808080u;
    const float s0 = s < 2 ? scale.x : scale.z, s1 = s < 2 ? scale.y : scale.w;
    const float m0 = s < 2 ? minimum.x : minimum.z, m1 = s < 2 ? minimum.y : minimum.w;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[2 * i] = bf16_pair(fma(s0, byte_value(low, 2 * i), -m0), fma(s0, byte_value(low, 2 * i + 1), -m0));
      a[2 * i + 1] = bf16_pair(fma(s1, byte_value(high, 2 * i), -m1), fma(s1, byte_value(high, 2 * i + 1), -m1));
    }
  }
};
template <>
struct Tile<Layout::kQ8> {
  uint4 c[2];
  uint2 packed;  // f16 scales of outputs g and g + 8: first half, second half
  float scale[4];
  FORETOKEN_DEVICE Tile load(const Part& p, int64_t tile, int lane) {
    Tile r;
    const uint4* from = static_cast<const uint4*>(p.codes) + tile * 64 + lane;
    r.c[0] = stream16(from);
    r.c[1] = stream16(from + 32);
    r.packed = __ldg(static_cast<const uint2*>(p.scales) + tile * 8 + lane / 4);
    return r;
  }
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t f = h ? packed.y : packed.x;
      scale[2 * h] = __half2float(__ushort_as_half(static_cast<unsigned short>(f)));
      scale[2 * h + 1] = __half2float(__ushort_as_half(static_cast<unsigned short>(f >> 16)));
    }
  }
  __device__ __forceinline__ void fragment(int s, uint32_t (&a)[4]) const {
    const uint32_t low = word(c[0], s) ^ 0x80808080u, high = word(c[1], s) ^ 0x80808080u;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float s0 = scale[s / 2 * 2], s1 = scale[s / 2 * 2 + 1];
      a[2 * i] = bf16_pair(__fmul_rn(s0, byte_value(low, 2 * i)), __fmul_rn(s0, byte_value(low, 2 * i + 1)));
      a[2 * i + 1] = bf16_pair(__fmul_rn(s1, byte_value(high, 2 * i)), __fmul_rn(s1, byte_value(high, 2 * i + 1)));
    }
  }
};

// Few columns run a warp a part; many leave registers for half as many, which take several parts each.
template <int kBlocks>
constexpr int kMostWarps = kBlocks <= 2 ? kMaxSplit : 8;
constexpr int kAhead = 4;  // tiles on their way

template <class TileType, int kBlocks, bool kExperts>
__global__ void __launch_bounds__(32 * kMostWarps<kBlocks>) products(Part part, Split split, Columns columns) {
  extern __shared__ float sums[];  // [parts][columns][16, padded]
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = lane >> 2, t = lane & 3;
  const int64_t tiles_wide = columns.padded / 64, m = blockIdx.y;
  int first_column = static_cast<int>(blockIdx.x) * kBlocks * 8, count = static_cast<int>(columns.rows) - first_column;
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
  const int64_t base = m * tiles_wide;
  const auto boundary = [&](int p) { return p * split.units / split.parts * split.unit_tiles; };
  TileType ring[kAhead];
  const auto fill = [&](int begin, int end) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (begin + i < end) ring[i] = TileType::load(part, base + begin + i, lane);
  };
  fill(boundary(warp), boundary(warp + 1));
  if constexpr (!kExperts) begin_kernel();  // the weights are on their way while the kernel before ends
  const uint16_t* x[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    int row = first_column + min(b * 8 + g, count - 1);  // columns without a row read another's and are not written
    if constexpr (kExperts) row = order[g < count ? g : 0] / static_cast<int>(columns.divisor);
    x[b] = columns.x + static_cast<int64_t>(row) * columns.padded + t * 8;
  }
  for (int p = warp; p < split.parts; p += warps) {
    const int begin = boundary(p), end = boundary(p + 1);
    if (p != warp) fill(begin, end);
    float acc[kBlocks][4] = {};
    for (int k = begin; k < end; k += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (k + i >= end) break;
        TileType tile = ring[i];
        if (k + i + kAhead < end) ring[i] = TileType::load(part, base + k + i + kAhead, lane);
        tile.begin();
        const int64_t at = static_cast<int64_t>(k + i) * 64;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t a[2][4];
          tile.fragment(2 * h, a[0]);
          tile.fragment(2 * h + 1, a[1]);
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) {
            const uint4 v = *reinterpret_cast<const uint4*>(x[b] + at + h * 32);
            mma(acc[b], a[0], v.x, v.y);
            mma(acc[b], a[1], v.z, v.w);
          }
        }
      }
    }
    float* to = sums + static_cast<int64_t>(p) * kBlocks * 8 * 17;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      to[(b * 8 + 2 * t) * 17 + g] = acc[b][0];
      to[(b * 8 + 2 * t + 1) * 17 + g] = acc[b][1];
      to[(b * 8 + 2 * t) * 17 + g + 8] = acc[b][2];
      to[(b * 8 + 2 * t + 1) * 17 + g + 8] = acc[b][3];
    }
  }
  __syncthreads();
  add_parts<kBlocks, kExperts>(sums, split, columns, part.rows, m, first_column, count, order);
}

// f32 weights: one warp an output, lane l takes inputs l, l + 32, ...; then lanes fold 16, 8, 4, 2, 1.
constexpr int kFloatRows = 8;
__global__ void __launch_bounds__(128) float_products(Part part, Rows x, Rows out, int64_t first) {
  const int lane = threadIdx.x & 31;
  const int64_t o = blockIdx.x * int64_t{4} + (threadIdx.x >> 5);
  const float* w = static_cast<const float*>(part.codes) + o * part.cols;
  const int64_t row = blockIdx.y * int64_t{kFloatRows};
  const auto bring = [&](const float* from) {
    for (int64_t at = lane * 32; at < part.cols; at += 32 * 32) into_l1(from + at);
  };
  if (o < part.rows) bring(w);  // the weights are on their way while the kernel before ends
  begin_kernel();
  if (o >= part.rows) return;
  if (x.rows == 1) bring(x.data);
  float acc[kFloatRows] = {};
  constexpr int kWeights = 8;  // on their way
  for (int64_t first = lane; first < part.cols; first += 32 * kWeights) {
    float value[kWeights];
#pragma unroll
    for (int i = 0; i < kWeights; ++i) value[i] = first + i * 32 < part.cols ? w[first + i * 32] : 0.0f;
#pragma unroll
    for (int r = 0; r < kFloatRows; ++r) {
      if (row + r >= x.rows) continue;
      const float* from = x.data + (row + r) * x.stride;
      float input[kWeights];
#pragma unroll
      for (int i = 0; i < kWeights; ++i) input[i] = first + i * 32 < part.cols ? from[first + i * 32] : 0.0f;
#pragma unroll
      for (int i = 0; i < kWeights; ++i)
        if (first + i * 32 < part.cols) acc[r] = fma(value[i], input[i], acc[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kFloatRows; ++r) {
    float sum = acc[r];
    for (int s = 16; s > 0; s /= 2) sum = __fadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, s));
    if (lane == 0 && row + r < x.rows) out.data[(row + r) * out.stride + first + o] = sum;
  }
}

__global__ void expert_float_products(const Part* parts, Routing routing, int divisor, Rows x, Rows out,
                                      int64_t first) {
  begin_kernel();
  if (static_cast<int>(blockIdx.y) >= *routing.item_count) return;
  const ExpertItem item = routing.items[blockIdx.y];
  const Part part = parts[item.expert];
  const int lane = threadIdx.x & 31;
  const int64_t o = blockIdx.x * int64_t{4} + (threadIdx.x >> 5);
  if (o >= part.rows) return;
  const float* w = static_cast<const float*>(part.codes) + o * part.cols;
  for (int r = 0; r < item.count; ++r) {
    const int pair = routing.order[item.first + r];
    const float* row = x.data + static_cast<int64_t>(pair / divisor) * x.stride;
    float sum = 0;
    for (int64_t k = lane; k < part.cols; k += 32) sum = fma(w[k], row[k], sum);
    for (int s = 16; s > 0; s /= 2) sum = __fadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, s));
    if (lane == 0) out.data[static_cast<int64_t>(pair) * out.stride + first + o] = sum;
  }
}

template <class TileType, int kBlocks, bool kExperts>
void run_blocks(const Part& part, const Columns& columns, unsigned wide, Queue& queue) {
  const Split split = split_of(part);
  const size_t shared = sums_bytes<kBlocks>(split);
  const auto kernel = products<TileType, kBlocks, kExperts>;
  const unsigned warps = static_cast<unsigned>(split.parts < kMostWarps<kBlocks> ? split.parts : kMostWarps<kBlocks>);
  Launch{dim3(wide, static_cast<unsigned>((part.rows + 15) / 16)), 32 * warps, shared, queue}(kernel, part, split,
                                                                                              columns);
}

template <class TileType>
void run_products(const Part& part, const Columns& columns, Queue& queue) {
  if (columns.rows <= 8) run_blocks<TileType, 1, false>(part, columns, 1, queue);
  else if (columns.rows <= 16) run_blocks<TileType, 2, false>(part, columns, 1, queue);
  else if (columns.rows <= 32) run_blocks<TileType, 4, false>(part, columns, 1, queue);
  else run_blocks<TileType, 8, false>(part, columns, static_cast<unsigned>((columns.rows + 63) / 64), queue);
}

template <class TileType>
void run_experts(const Part& like, const Columns& columns, int item_limit, Queue& queue) {
  run_blocks<TileType, 1, true>(like, columns, static_cast<unsigned>(item_limit), queue);
}

__global__ void to_bf16_kernel(Rows x, int64_t padded, uint16_t* out) {
  begin_kernel();
  const int64_t i = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * 2;
  if (i >= padded) return;
  const int64_t c = i;
  const float* row = x.data + blockIdx.y * x.stride;
  const float a = c < x.cols ? row[c] : 0.0f, b = c + 1 < x.cols ? row[c + 1] : 0.0f;
  *reinterpret_cast<uint32_t*>(out + blockIdx.y * padded + i) = bf16_pair(a, b);
}

// Where the gate of column c lies in a row; its up follows `up_behind(paired, width)` later.
FORETOKEN_DEVICE int64_t gate_at(bool paired, int64_t c) { return paired ? c / 8 * 16 + c % 8 : c; }
FORETOKEN_DEVICE int64_t up_behind(bool paired, int64_t width) { return paired ? 8 : width; }

__global__ void silu_to_bf16_kernel(Rows x, int64_t width, bool paired, int64_t padded, uint16_t* out) {
  begin_kernel();
  const int64_t c = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * 4;
  if (c >= padded) return;
  const float* gate = x.data + blockIdx.y * x.stride + gate_at(paired, c);
  const float* up = gate + up_behind(paired, width);
  float v[4] = {};
  if (c + 4 <= width && width % 4 == 0 && reinterpret_cast<uint64_t>(gate) % 16 == 0) {
    const float4 g = *reinterpret_cast<const float4*>(gate), u = *reinterpret_cast<const float4*>(up);
    v[0] = __fmul_rn(silu(g.x), u.x), v[1] = __fmul_rn(silu(g.y), u.y);
    v[2] = __fmul_rn(silu(g.z), u.z), v[3] = __fmul_rn(silu(g.w), u.w);
  } else {
    for (int i = 0; i < 4 && c + i < width; ++i) v[i] = __fmul_rn(silu(gate[i]), up[i]);
  }
  *reinterpret_cast<uint2*>(out + blockIdx.y * padded + c) = make_uint2(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]));
}

__global__ void silu_kernel(Rows x, int64_t width, bool paired, Rows out) {
  begin_kernel();
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (c >= width) return;
  const float* gate = x.data + blockIdx.y * x.stride + gate_at(paired, c);
  out.data[blockIdx.y * out.stride + c] = __fmul_rn(silu(*gate), gate[up_behind(paired, width)]);
}

unsigned blocks(int64_t count, int threads) { return static_cast<unsigned>((count + threads - 1) / threads); }

}  // namespace

void launch_to_bf16(Rows x, uint16_t* out, Queue& queue) {
  const int64_t padded = padded_cols(x.cols);
  Launch{dim3(blocks(padded / 2, 256), static_cast<unsigned>(x.rows)), 256, 0, queue}(to_bf16_kernel, x, padded, out);
}

void launch_silu_to_bf16(Rows gate_up, int64_t width, bool paired, uint16_t* out, Queue& queue) {
  const int64_t padded = padded_cols(width);
  Launch{dim3(blocks(padded / 4, 256), static_cast<unsigned>(gate_up.rows)), 256, 0, queue}(
      silu_to_bf16_kernel, gate_up, width, paired, padded, out);
}

void launch_silu(Rows gate_up, int64_t width, bool paired, Rows out, Queue& queue) {
  Launch{dim3(blocks(width, 256), static_cast<unsigned>(gate_up.rows)), 256, 0, queue}(silu_kernel, gate_up, width,
                                                                                       paired, out);
}

int plane_count(const Part& part) { return has_super_blocks(part) ? super_block_slices(part) : 1; }

bool may_pair(const Part& part) {
  return has_super_blocks(part) && plane_count(part) == 1 && part.rows % 2 == 0 && part.rows / 2 % 64 == 0;
}

bool gives_hidden(const Part& part, int64_t rows) { return part.paired && (rows <= kFewRows || !part.wide); }

namespace {

size_t plane_floats(const Part& part, int64_t rows) {
  const int planes = plane_count(part);
  return planes > 1 ? static_cast<size_t>(planes) * static_cast<size_t>(rows * part.rows) : 0;
}

__global__ void merge_kernel(Planes planes, Rows out) {
  begin_kernel();
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, row = blockIdx.y;
  if (c >= out.cols) return;
  float sum = 0;
  for (int p = 0; p < planes.count; ++p) sum = __fadd_rn(sum, planes.data[p * planes.stride + row * out.cols + c]);
  out.data[row * out.stride + c] = sum;
}

Rows columns_of(Rows rows, int64_t first, int64_t count) { return {rows.data + first, rows.rows, count, rows.stride}; }

void super_block_linear(const Part& part, const Columns& columns, Rows x, void* work, Queue& queue) {
  const size_t floats = plane_floats(part, x.rows);
  Columns to = columns;
  int64_t plane = 0;
  if (floats > 0) {
    plane = x.rows * part.rows;
    to.out = static_cast<float*>(work);
    to.stride = part.rows;
    to.first = 0;
  }
  if (x.rows > kFewRows && part.wide)
    return run_many(part, to, plane, static_cast<float*>(work) + (floats + 3) / 4 * 4, queue);
  run_few(part, to, plane, queue);
}

}  // namespace

size_t linear_work_bytes(const Part& part, int64_t rows) {
  if (!has_super_blocks(part)) return 0;
  return (plane_floats(part, rows) + 3) / 4 * 16 + (rows > kFewRows && part.wide ? arranged_bytes(part, rows) : 0);
}

Planes planes_of(const Part& part, int64_t rows, const void* work) {
  return {static_cast<const float*>(work), plane_count(part), rows * part.rows};
}

void launch_merge(Planes planes, Rows out, Queue& queue) {
  Launch{dim3(blocks(out.cols, 256), static_cast<unsigned>(out.rows)), 256, 0, queue}(merge_kernel, planes, out);
}

void launch_linear(const Part& part, Rows x, const uint16_t* bf16, Rows out, int64_t first, void* work, Queue& queue) {
  const Columns columns{.x = bf16,
                        .padded = padded_cols(part.cols),
                        .out = out.data,
                        .stride = out.stride,
                        .first = first,
                        .rows = x.rows};
  switch (part.layout) {
    case Layout::kFloats:
      Launch{dim3(blocks(part.rows, 4), blocks(x.rows, kFloatRows)), 128, 0, queue}(float_products, part, x, out,
                                                                                    first);
      break;
    case Layout::kBf16:
      run_products<Tile<Layout::kBf16>>(part, columns, queue);
      break;
    case Layout::kCodes:
      if (part.has_min) run_products<CodesTile<true>>(part, columns, queue);
      else run_products<CodesTile<false>>(part, columns, queue);
      break;
    case Layout::kQ8:
      run_products<Tile<Layout::kQ8>>(part, columns, queue);
      break;
    case Layout::kQ4K:
    case Layout::kQ6K:
      super_block_linear(part, columns, x, work, queue);
      break;
  }
}

void launch_gated(const Part& part, const uint16_t* bf16, int64_t rows, const Hidden& hidden, Queue& queue) {
  run_few(part, {.x = bf16, .padded = padded_cols(part.cols), .rows = rows, .hidden = hidden}, 0, queue);
}

namespace {

// The pairs of a routing as inputs; where results go is left open.
Columns columns_of(const Part* parts, const Part& like, const Routing& routing, int item_limit, int input_divisor,
                   const uint16_t* bf16) {
  return {.x = bf16,
          .padded = padded_cols(like.cols),
          .rows = kItemRows,
          .parts = parts,
          .codes_at = parts == routing.gate_up ? int64_t{offsetof(ExpertItem, gate_up)}
                      : parts == routing.down  ? int64_t{offsetof(ExpertItem, down)}
                                               : 0,
          .experts = routing.experts,
          .pairs = routing.pairs,
          .item_limit = item_limit,
          .items = routing.items,
          .item_count = routing.item_count,
          .order = routing.order,
          .divisor = input_divisor};
}

}  // namespace

void launch_expert_gated(const Part* parts, const Part& like, const Routing& routing, int item_limit, int input_divisor,
                         const uint16_t* bf16, const Hidden& hidden, Queue& queue) {
  Columns columns = columns_of(parts, like, routing, item_limit, input_divisor, bf16);
  columns.hidden = hidden;
  run_few_experts(like, columns, 0, item_limit, queue);
}

void launch_expert_linear(const Part* parts, const Part& like, const Routing& routing, int item_limit,
                          int input_divisor, Rows x, const uint16_t* bf16, Rows out, int64_t first, void* work,
                          Queue& queue) {
  Columns columns = columns_of(parts, like, routing, item_limit, input_divisor, bf16);
  columns.out = out.data;
  columns.stride = out.stride;
  columns.first = first;
  switch (like.layout) {
    case Layout::kFloats:
      Launch{dim3(blocks(like.rows, 4), static_cast<unsigned>(item_limit)), 128, 0, queue}(
          expert_float_products, parts, routing, input_divisor, x, out, first);
      break;
    case Layout::kBf16:
      run_experts<Tile<Layout::kBf16>>(like, columns, item_limit, queue);
      break;
    case Layout::kCodes:
      if (like.has_min) run_experts<CodesTile<true>>(like, columns, item_limit, queue);
      else run_experts<CodesTile<false>>(like, columns, item_limit, queue);
      break;
    case Layout::kQ8:
      run_experts<Tile<Layout::kQ8>>(like, columns, item_limit, queue);
      break;
    case Layout::kQ4K:
    case Layout::kQ6K: {
      if (plane_count(like) == 1) {
        run_few_experts(like, columns, 0, item_limit, queue);
        break;
      }
      columns.out = static_cast<float*>(work);
      columns.stride = like.rows;
      columns.first = 0;
      run_few_experts(like, columns, out.rows * like.rows, item_limit, queue);
      launch_merge(planes_of(like, out.rows, work), columns_of(out, first, like.rows), queue);
      break;
    }
  }
}

}  // namespace foretoken::cuda
