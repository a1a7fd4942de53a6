// The table of kernels that one instruction set provides, and the plain structs they take. Each *.inl file implements one
// group; isa_*.cc instantiates them all; backend.cc picks a table from cpuid and splits work over threads. Only plain data
// here: an inline function in this header would be compiled with the flags of every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/operator_kernels.h"

namespace foretoken::cpu {

// ---- Products with packed weights (linear.inl). Layouts: packing.h.

// Rows of fp32 values: row r starts at data + r * stride.
struct Rows {
  const float* data;
  int64_t stride;
};
struct MutableRows {
  float* data;
  int64_t stride;
};

// Activation rows as integers, quantised by the block size of the weights: what canonical::quantize_activation gives, with
// the sums that zero points and minimums need. Row r of an array starts at its r-th stride.
struct QuantizedRows {
  int8_t* values;    // [rows, cols]
  float* scales;     // [rows, cols / block]
  int32_t* sums;     // [rows, cols / 16]: sums of 16 consecutive values
  int64_t cols;
  int block;         // 32 or 256
};

// One part of a matrix: consecutive outputs of one format.
struct PackedPart {
  const std::byte* data;   // groups of kGroupOutputs outputs
  size_t group_bytes;
  int64_t outputs, cols;
  int format;              // QuantFormat
};

struct LinearTask {
  PackedPart part;
  Rows x;                  // float formats
  QuantizedRows q;         // block formats
  int64_t rows;
  MutableRows out;         // already moved to the part's first output
};

struct LinearKernels {
  // Rows [begin, end) of x to integers.
  void (*quantize_rows)(const Rows& x, int64_t begin, int64_t end, const QuantizedRows& q);
  // Groups [begin, end) of one part for all rows. `scratch` has kLinearScratchBytes, 64-byte aligned, one per thread.
  void (*multiply)(const LinearTask& task, int64_t group_begin, int64_t group_end, std::byte* scratch);
  // out[i] = silu(gate[i]) * up[i].
  void (*silu_product)(const float* gate, const float* up, int64_t count, float* out);
};

struct KernelTable {
  const char* name;  // "scalar", "avx2", "avx512"
  LinearKernels linear;
  ElementwiseKernels elementwise;
  MoeKernels moe;
  AttentionKernels attention;
  DeltaKernels delta;
};

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;

}  // namespace foretoken::cpu
