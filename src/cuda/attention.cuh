// What the kernels of gated attention share.
#pragma once

#include "cuda/device.cuh"
#include "cuda/kernels.h"

namespace foretoken::cuda {

constexpr int kMaxDim = 256;
constexpr int kSpanBlocks = kSpanTokens / kPageTokens;  // 16

struct SpanTask {
  Rows queries, packed, out;
  HeadShape shape;
  PassDesc pass;
  KvLayout layout;
  int layer, first_row, spans, head_groups;  // head_groups: blocks per K/V head
  float* partial;                            // [rows][query_heads][spans][dim + 2]: m, l, o
  uint16_t* bf16;                            // the result once more, or null
};

FORETOKEN_DEVICE void put_result(const SpanTask& task, int64_t row, int64_t head, int d, float o, float l) {
  const int64_t dim = task.shape.dim, c = head * dim + d;
  const float gate = task.packed.data[row * task.packed.stride + (2 * head + 1) * dim + d];
  const float v = __fmul_rn(__fdiv_rn(o, l), sigmoid(gate));
  task.out.data[row * task.out.stride + c] = v;
  if (task.bf16) task.bf16[row * task.out.cols + c] = __bfloat16_as_ushort(to_bf16(v));
}

// Where a logical position of a row lies.
FORETOKEN_DEVICE int64_t slot_of(int64_t position, int64_t prefix, const int32_t* path) {
  return position < prefix ? position : prefix + path[position - prefix];
}

// The maximum before and after each block of one head, in ascending order: what was summed before block b counts
// `factor[b]`. The last one.
FORETOKEN_DEVICE float carry_maxima(float* largest, float* factor, int used) {
  float m = -infinity();
  for (int b = 0; b < used; ++b) {
    const float next = m < largest[b] ? largest[b] : m;
    factor[b] = exp(__fsub_rn(m, next));
    largest[b] = next;
    m = next;
  }
  return m;
}

// The sum of the weights of one head, block by block.
FORETOKEN_DEVICE float carry_sums(const float* sums, const float* factor, int used) {
  float l = 0;
  for (int b = 0; b < used; ++b) l = __fadd_rn(__fmul_rn(l, factor[b]), sums[b]);
  return l;
}

// Spans of bf16 keys and values through shared memory (attention_staged.cu); false when the shape is not theirs.
bool run_staged_spans(SpanTask task, int rows, Queue& queue);
// The same for rows of one chain that share what is staged (attention_prompt.cu): many, or few that see many positions.
bool run_prompt_spans(const SpanTask& task, int rows, Queue& queue);

// What these two take, in microseconds of an H200 as measured there: a block of threads has a multiprocessor for itself
// and takes a fixed time for what it stages, and some for each head of each row. It says which blocks there are; no
// result depends on it.
double staged_cost(const SpanTask& task, int rows);
// Blocks of one row, one of each K/V head. Not all places for spans are taken (backend.cc).
double blocks_of(const SpanTask& task);
// Blocks that follow each other on a multiprocessor.
double rounds_of(double blocks);

}  // namespace foretoken::cuda
