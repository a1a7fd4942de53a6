// The table of kernels that one instruction set provides, and the plain structs they take. Each *.inl file implements one
// group; isa_*.cc instantiates them all; backend.cc picks a table from cpuid and splits work over threads. Only plain data
// here: an inline function in this header would be compiled with the flags of every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/draft_kernels.h"
#include "cpu/operator_kernels.h"

namespace foretoken::cpu {

// ---- Products with packed weights (linear.inl). Layouts: packed_layout.h.

// Rows of fp32 values: row r starts at data + r * stride.
struct Rows {
  const float* data;
  int64_t stride;
};
struct MutableRows {
  float* data;
  int64_t stride;
};

// Activation rows as integers, as one weight format needs them: canonical::quantize_activation per block, blocks outermost so
// that a tile of rows is contiguous.
struct Activations {
  int8_t* values;    // [blocks][rows][block], 64 readable bytes behind
  float* scales;     // [blocks][rows]
  int16_t* sums;     // [blocks][rows][block / sub]: sum of a sub-block's values
  int32_t* starts;   // [blocks][rows][block / sub]: where the integer dot product starts, -offset * sum
  uint16_t* magnitudes;  // [blocks][rows], blocks of 256 only: the greatest sum of absolute values of a sub-block
  int64_t rows, blocks;
  int block, sub;
  int offset;        // what packing added to every weight
  bool sums_bytes;   // the format's dot product takes bytes of value + 128 (kByteBias instead of offset)
};

// Consecutive outputs of one format.
struct PackedPart {
  const std::byte* data;  // groups
  size_t group_bytes;
  int64_t outputs, cols;
  int format;             // QuantFormat
};

struct LinearTask {
  PackedPart part;
  const Activations* activations;  // block formats
  Rows x;                          // float formats
  int64_t first_row, rows;         // of x, the activations and out
  MutableRows out;                 // column 0 is the part's first output
  // Gated tasks: as many outputs of another part, and its activations; out becomes silu(part's) * up's. Block formats only.
  PackedPart up{};
  const Activations* up_activations = nullptr;
};

inline constexpr int kLinearScratchBytes = 96 * 1024;

struct LinearKernels {
  // Blocks [begin, end) of x, counted as block * rows + row.
  void (*quantize)(const Rows& x, int64_t begin, int64_t end, const Activations& a);
  // Groups [begin, end) of one part for the task's rows. `scratch`: kLinearScratchBytes, 64-byte aligned, one per thread.
  void (*multiply)(const LinearTask& task, int64_t group_begin, int64_t group_end, std::byte* scratch);
  // out[i] = silu(gate[i]) * up[i].
  void (*silu_product)(const float* gate, const float* up, int64_t count, float* out);
};

// ---- Probes (probe.inl): the limits that products are measured against.

struct ProbeKernels {
  uint64_t (*read_bytes)(const std::byte* data, size_t bytes);
  int64_t (*dot_bytes)(int64_t steps, int32_t* sink);  // sink [16]
};

struct KernelTable {
  const char* name;  // "scalar", "avx2", "avx512"
  LinearKernels linear;
  ElementwiseKernels elementwise;
  MoeKernels moe;
  AttentionKernels attention;
  DeltaKernels delta;
  ProbeKernels probe;
  DraftKernels draft;
};

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;

}  // namespace foretoken::cpu
