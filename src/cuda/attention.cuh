// What the kernels of attention share.
#pragma once

#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "cuda/plans.h"

namespace foretoken::cuda {

struct SpanTask {
  Rows queries, packed, out;
  HeadShape shape;
  PassDesc pass;
  KvLayout layout;
  int layer, first_row, spans, head_groups;  // head_groups: blocks per K/V head
  float* partial;                            // [rows][query_heads][spans][dim + 2]: m, l, o
  uint16_t* bf16;                            // the result once more, or null
};

// What attention_tiles.cu takes beside it: units are its spans, or whole groups (plans.h).
struct TileTask {
  SpanTask span;
  const SpanItem* items;
  int end_row, stages, spans_of_unit;
};

// 2^x: the unit's own, a function of x alone; one at zero, zero at minus infinity.
FORETOKEN_DEVICE float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Operands of the matrix unit out of shared memory: sixteen rows of sixteen bf16.
FORETOKEN_DEVICE void load_rows(uint32_t (&to)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
// Columns of eight, two blocks or one, of sixteen rows.
FORETOKEN_DEVICE void load_columns(uint32_t (&to)[2][2], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0][0]), "=r"(to[0][1]), "=r"(to[1][0]), "=r"(to[1][1])
               : "r"(from)
               : "memory");
}
FORETOKEN_DEVICE void load_columns(uint32_t (&to)[1][2], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0][0]), "=r"(to[0][1])
               : "r"(from)
               : "memory");
}

// x as two bf16: pairs of the nearest and of the nearest of what is left.
FORETOKEN_DEVICE void halves(float x, float y, uint32_t& upper, uint32_t& lower) {
  upper = bf16_pair(x, y);
  lower = bf16_pair(__fsub_rn(x, __uint_as_float(upper << 16)), __fsub_rn(y, __uint_as_float(upper & 0xFFFF0000u)));
}

FORETOKEN_DEVICE bool finite_pairs(uint32_t pairs) {
  return (pairs & 0x7F80u) != 0x7F80u && (pairs & 0x7F800000u) != 0x7F800000u;
}

// Two parts become one: the common maximum, and the factors of what came before and of what joins it.
struct Joint {
  float m, keep, join;
};
// kBase2: maxima are those of scores to the base of two, powers the unit's own.
template <bool kBase2>
FORETOKEN_DEVICE Joint join(float m, float m_here) {
  const float next = m < m_here ? m_here : m, before = __fsub_rn(m, next), here = __fsub_rn(m_here, next);
  if constexpr (kBase2) return {next, exp2(before), exp2(here)};
  else return {next, exp(before), exp(here)};
}

FORETOKEN_DEVICE float gate_of(const SpanTask& task, int64_t row, int64_t head, int d) {
  return task.packed.data[row * task.packed.stride + (2 * head + 1) * task.shape.dim + d];
}
FORETOKEN_DEVICE void put_result(const SpanTask& task, int64_t row, int64_t head, int d, float o, float l, float gate) {
  const int64_t c = head * task.shape.dim + d;
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

// `rows` from span.first_row on, by a plan with tiles (attention_tiles.cu).
void run_tiles(const SpanTask& span, const SpanPlan& plan, const SpanItem* items, int rows, Queue& queue);

}  // namespace foretoken::cuda
