// Packs raw rows of any storage format into a device layout, on the device: one thread takes eight inputs of one
// output. The layouts are described in kernels.h and docs/gpu.md; what they decode to is numerics/quant.cc's
// definition.
#include "cuda/kernels.h"
#include "cuda/q4k.cuh"
#include "cuda/quant_device.cuh"

namespace foretoken::cuda {

int64_t padded_cols(int64_t cols) { return (cols + 63) / 64 * 64; }

namespace {

size_t tiles(const Part& part) {
  return static_cast<size_t>((part.rows + 15) / 16) * static_cast<size_t>(padded_cols(part.cols) / 64);
}

}  // namespace

Layout layout_of(QuantFormat format, int64_t cols) {
  switch (format) {
    case QuantFormat::kF32:
    case QuantFormat::kF16:
      return Layout::kFloats;
    case QuantFormat::kBF16:
      return Layout::kBf16;
    case QuantFormat::kQ8_0:
      return Layout::kQ8;
    case QuantFormat::kQ4_K:
      return cols % 256 == 0 ? Layout::kQ4K : Layout::kCodes;
    case QuantFormat::kQ6_K:
      return cols % 256 == 0 ? Layout::kQ6K : Layout::kCodes;
    default:
      return Layout::kCodes;
  }
}

size_t code_bytes(const Part& part) {
  switch (part.layout) {
    case Layout::kFloats:
      return static_cast<size_t>(part.rows * part.cols) * 4;
    case Layout::kBf16:
      return tiles(part) * 2048;
    case Layout::kQ4K:
      return tiles(part) / 4 * Q4K::kBytes;
    case Layout::kQ6K:
      return tiles(part) / 4 * Q6K::kBytes;
    default:
      return tiles(part) * 1024;
  }
}

size_t scale_bytes(const Part& part) {
  switch (part.layout) {
    case Layout::kCodes:
      return tiles(part) * 256;
    case Layout::kQ8:
      return tiles(part) * 64;
    default:
      return 0;
  }
}

size_t minimum_bytes(const Part& part) { return part.layout == Layout::kCodes && part.has_min ? tiles(part) * 256 : 0; }

namespace {

__global__ void pack_floats(PackTask task, Part part) {
  begin_kernel();
  const int64_t index = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t r = task.first_row + index / part.cols, c = index % part.cols;
  if (index / part.cols >= task.rows) return;
  const int64_t from = (task.row_order ? task.row_order[r] : r) - task.source_first;
  const uint8_t* row = task.source + static_cast<size_t>(from) * task.row_bytes;
  const_cast<float*>(static_cast<const float*>(part.codes))[r * part.cols + c] =
      value_at(task.format, row, task.column_order ? task.column_order[c] : c);
}

// Eight inputs of one output: half h of a tile (inputs 32 h + 8 t ...), for lane 4 g + t, output g or g + 8 of its
// sixteen.
__global__ void pack_tiles(PackTask task, Part part) {
  begin_kernel();
  const int64_t groups = (part.cols + 63) / 64 * 8;
  const int64_t index = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t r = task.first_row + index / groups, group = index % groups, first = group * 8;
  if (index / groups >= (task.rows + 15) / 16 * 16) return;
  const bool exists = r < task.first_row + task.rows;
  if (part.paired && !exists) return;  // its tiles are full
  const int64_t place = packed_row(part, r), tile = place / 16 * (groups / 8) + group / 8;
  const int half = static_cast<int>(place % 16 / 8), g = static_cast<int>(place % 8);
  const int h = static_cast<int>(group % 8 / 4), t = static_cast<int>(group % 4), lane = g * 4 + t;
  const int64_t from = exists ? (task.row_order ? task.row_order[r] : r) - task.source_first : 0;
  const uint8_t* row = task.source + static_cast<size_t>(from) * task.row_bytes;

  if (part.layout == Layout::kBf16) {
    uint32_t w[4] = {};
    for (int i = 0; i < 8; ++i) {
      const int64_t c = first + i;
      if (!exists || c >= part.cols) continue;
      const int64_t column = task.column_order ? task.column_order[c] : c;
      w[i / 2] |= static_cast<uint32_t>(row[2 * column] | row[2 * column + 1] << 8) << 16 * (i % 2);
    }
    const_cast<uint4*>(static_cast<const uint4*>(part.codes))[(tile * 4 + half * 2 + h) * 32 + lane] =
        make_uint4(w[0], w[1], w[2], w[3]);
    return;
  }

  const bool inside = exists && first < part.cols;  // blocks are whole: all eight are inside or none is
  Code code[8];
  for (int i = 0; i < 8; ++i)
    if (inside) code[i] = code_at(task.format, row, first + i);
  if (part.layout == Layout::kQ4K) {
    uint8_t* const super = const_cast<uint8_t*>(static_cast<const uint8_t*>(part.codes)) + tile / 4 * Q4K::kBytes;
    uint32_t w = 0;  // even inputs in the lower half, odd ones in the upper
    for (int i = 0; i < 8; ++i) w |= static_cast<uint32_t>(code[i].code) << (4 * (i / 2) + 16 * (i % 2));
    reinterpret_cast<uint32_t*>(super + tile % 4 * 512)[lane * 4 + 2 * half + h] = w;
    const uint8_t* block = row + static_cast<size_t>(first / 256) * 144;
    if (t == 0) {
      const int sub = static_cast<int>(first % 256 / 32);
      int scale = 0, minimum = 0;
      if (inside) six_bits(block + 4, sub, scale, minimum);
      super[Q4K::kScalesAt + g * 16 + sub * 2 + half] = static_cast<uint8_t>(scale);
      super[Q4K::kMinimumsAt + (g * 4 + sub / 2) * 4 + half * 2 + sub % 2] = static_cast<uint8_t>(minimum);
    }
    if (first % 256 == 0) {
      const uint32_t factors =
          inside ? block[0] | block[1] << 8 | block[2] << 16 | static_cast<uint32_t>(block[3]) << 24 : 0;
      reinterpret_cast<uint32_t*>(super + Q4K::kFactorsAt)[g * 2 + half] = factors;
    }
    return;
  }

  uint32_t w[2] = {};
  for (int i = 0; i < 8; ++i) w[i / 4] |= static_cast<uint32_t>(code[i].code & 255) << 8 * (i % 4);
  const_cast<uint2*>(static_cast<const uint2*>(part.codes))[((tile * 2 + half) * 32 + lane) * 2 + h] =
      make_uint2(w[0], w[1]);
  if (part.layout == Layout::kQ8) {
    if (t != 0) return;
    const uint8_t* block = row + static_cast<size_t>(first / 32) * 34;
    const_cast<uint16_t*>(static_cast<const uint16_t*>(part.scales))[((tile * 8 + g) * 2 + h) * 2 + half] =
        inside ? static_cast<uint16_t>(block[0] | block[1] << 8) : uint16_t{0};
    return;
  }
  if (t % 2 != 0) return;
  const int64_t at = ((tile * 16 + g * 2 + t / 2) * 2 + h) * 2 + half;
  const_cast<float*>(static_cast<const float*>(part.scales))[at] = code[0].scale;
  if (part.has_min) const_cast<float*>(static_cast<const float*>(part.minimums))[at] = code[0].minimum;
}

// A lane's 64 codes of a super-block of one output: thread t of four.
__global__ void pack_q6k(PackTask task, Part part) {
  begin_kernel();
  const int64_t units = part.cols / 256, index = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int t = static_cast<int>(index % 4);
  const int64_t unit = index / 4 % units, r = task.first_row + index / 4 / units;
  if (index / 4 / units >= (task.rows + 15) / 16 * 16) return;
  const bool exists = r < task.first_row + task.rows;
  if (part.paired && !exists) return;
  const int64_t place = packed_row(part, r);
  const int half = static_cast<int>(place % 16 / 8), g = static_cast<int>(place % 8), lane = g * 4 + t;
  const int64_t from = exists ? (task.row_order ? task.row_order[r] : r) - task.source_first : 0;
  const uint8_t* row = task.source + static_cast<size_t>(from) * task.row_bytes;
  const uint8_t* block = row + static_cast<size_t>(unit) * 210;  // low bits, high bits, sixteen scales, factor
  uint8_t* const super =
      const_cast<uint8_t*>(static_cast<const uint8_t*>(part.codes)) + (place / 16 * units + unit) * Q6K::kBytes;
  for (int chunk = 0; chunk < 4; ++chunk) {
    uint32_t low[2] = {}, high = 0;
    for (int sub = 0; sub < 4; ++sub)
      for (int e = 0; e < 4; ++e) {
        const int64_t column = unit * 256 + chunk * 64 + sub * 16 + t * 4 + e;
        const uint32_t code = exists ? static_cast<uint32_t>(code_at(QuantFormat::kQ6_K, row, column).code + 32) : 32u;
        low[sub / 2] |= (code & 15) << (4 * (sub % 2 * 2 + e / 2) + 16 * (e % 2));
        high |= code >> 4 << (2 * (2 * sub + e / 2) + 16 * (e % 2));
      }
    uint32_t* words = reinterpret_cast<uint32_t*>(super + chunk * 512 + lane * 16);
    words[half * 2] = low[0];
    words[half * 2 + 1] = low[1];
    reinterpret_cast<uint32_t*>(super + Q6K::kHighAt + chunk / 2 * 512 + lane * 16)[chunk % 2 * 2 + half] = high;
  }
  for (int sub = t * 4; sub < t * 4 + 4; ++sub)
    super[Q6K::kScalesAt + g * 32 + sub * 2 + half] = exists ? block[192 + sub] : uint8_t{0};
  if (t == 0)
    reinterpret_cast<uint16_t*>(super + Q6K::kFactorsAt)[g * 2 + half] =
        exists ? static_cast<uint16_t>(block[208] | block[209] << 8) : uint16_t{0};
}

}  // namespace

void launch_pack(const PackTask& task, const Part& part, Queue& queue) {
  constexpr int kThreads = 128;
  if (part.layout == Layout::kFloats) {
    const int64_t count = task.rows * part.cols;
    Launch{static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, queue}(pack_floats, task, part);
    return;
  }
  if (part.layout == Layout::kQ6K) {
    const int64_t count = (task.rows + 15) / 16 * 16 * (part.cols / 64);
    Launch{static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, queue}(pack_q6k, task, part);
    return;
  }
  const int64_t count = (task.rows + 15) / 16 * 16 * (padded_cols(part.cols) / 8);
  Launch{static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, queue}(pack_tiles, task, part);
}

}  // namespace foretoken::cuda
