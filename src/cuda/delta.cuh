// The delta rule of some columns by lanes that have pieces of the keys each (docs/numerics.md section 5): what the
// kernels of prompts (delta.cu) and of few rows (delta_core.cu) share.
#pragma once

#include "cuda/device.cuh"
#include "ops/batch.h"

namespace foretoken::cuda {

// Where keys lie in shared memory: pieces so far apart that their sixteen bytes of one time are in different banks.
template <int kKeys>
struct KeyPlaces {
  static constexpr int kPiece = kKeys / kKeyPieces, kPitch = kPiece + 4, kFloats = kKeyPieces * kPitch;
  static_assert(kKeys % (4 * kKeyPieces) == 0);
  static __device__ __forceinline__ int of(int key) { return key / kPiece * kPitch + key % kPiece; }
};

FORETOKEN_DEVICE void four(const float* from, float (&to)[4]) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

// What one lane has of the state: a piece of the keys of kColumns neighbouring columns, which all lanes of these
// columns have. They are kColumnLanes apart, lanes of one piece beside each other, so that they read the same words of
// shared memory. What a row sums belongs to one column a lane, its own: the first in lanes of even pieces. Pointers to
// keys and queries are to the lane's piece. kPadded: pieces have `own` keys, fewer than there is room for.
template <int kKeys, int kColumns, bool kPadded>
class RuleLane {
 public:
  using Places = KeyPlaces<kKeys>;
  static constexpr int kPiece = Places::kPiece, kColumnLanes = 32 / kKeyPieces;
  static_assert(kColumns == 1 || kColumns == 2);

  // A row's keys stay in registers from the one to the other time they are needed.
  struct Keys {
    float at[kPiece];
  };

  __device__ __forceinline__ explicit RuleLane(int own)
      : second_(kColumns == 2 && (threadIdx.x & kColumnLanes) != 0), own_(own) {}

  // Which of the columns is the lane's own.
  __device__ __forceinline__ int own_column() const { return second_ ? 1 : 0; }

  // `cells` of the lane's first key and column; `stride` of a key. Two columns need whole pairs. Of keys in
  // [kFirst, kEnd).
  template <int kFirst = 0, int kEnd = kPiece>
  __device__ __forceinline__ void load(const float* cells, int64_t stride) {
    every_key<kFirst, kEnd>([&](int i) {
      const float* from = cells + i * stride;
      if constexpr (kColumns == 2) {
        const float2 two = *reinterpret_cast<const float2*>(from);
        cell_[i][0] = two.x, cell_[i][1] = two.y;
      } else {
        cell_[i][0] = *from;
      }
    });
  }
  __device__ __forceinline__ void store(float* cells, int64_t stride) const {
    every_key<0, kPiece>([&](int i) {
      float* to = cells + i * stride;
      if constexpr (kColumns == 2) *reinterpret_cast<float2*>(to) = make_float2(cell_[i][0], cell_[i][1]);
      else *to = cell_[i][0];
    });
  }

  // A row of the tape: from the state before it to the state after it. `key_of(i)` is the lane's i-th.
  template <class Key>
  __device__ __forceinline__ void replay(float decay, const float (&d)[kColumns], Key key_of) {
    every_key<0, kPiece>([&](int i) {
      const float k = key_of(i);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) cell_[i][c] = fma(k, d[c], __fmul_rn(decay, cell_[i][c]));
    });
  }

  // The state times the decay of the row that comes; u of the own column.
  __device__ __forceinline__ float enter(float decay, const float* key_row, Keys& keys) {
    float sum[kColumns] = {};
    every_four([&](int i) {
      float k[4];
      read(key_row, i, k, keys);
      every_cell(i, [&](int e, int c, float& cell) {
        cell = __fmul_rn(decay, cell);
        sum[c] = fma(k[e], cell, sum[c]);
      });
    });
    return fold(sum);
  }

  // From there to the state times the next row's decay: the own column's output of the row, and keys and u of the next.
  // `own` is what joins the own column.
  __device__ __forceinline__ void pass(const Keys& keys, float own, const float* queries, float next_decay,
                                       const float* next_key_row, Keys& next_keys, float& o, float& u) {
    float d[kColumns], o_sum[kColumns] = {}, u_sum[kColumns] = {};
    spread(own, d);
    every_four([&](int i) {
      float q[4], next[4];
      four(queries + i, q);
      read(next_key_row, i, next, next_keys);
      every_cell(i, [&](int e, int c, float& cell) {
        cell = fma(keys.at[i + e], d[c], cell);
        o_sum[c] = fma(q[e], cell, o_sum[c]);
        cell = __fmul_rn(next_decay, cell);
        u_sum[c] = fma(next[e], cell, u_sum[c]);
      });
    });
    u = fold(u_sum);
    o = fold(o_sum);
  }

  // From there to the state after the row.
  __device__ __forceinline__ float finish(const Keys& keys, float own, const float* queries) {
    float d[kColumns], sum[kColumns] = {};
    spread(own, d);
    every_four([&](int i) {
      float q[4];
      four(queries + i, q);
      every_cell(i, [&](int e, int c, float& cell) {
        cell = fma(keys.at[i + e], d[c], cell);
        sum[c] = fma(q[e], cell, sum[c]);
      });
    });
    return fold(sum);
  }

 private:
  template <int kFirst, int kEnd, class Body>
  __device__ __forceinline__ void every_key(Body body) const {
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i)
      if (!kPadded || i < own_) body(i);
  }
  template <class Body>
  static __device__ __forceinline__ void every_four(Body body) {
#pragma unroll
    for (int i = 0; i < kPiece; i += 4) body(i);
  }
  // Of four keys from the i-th.
  template <class Body>
  __device__ __forceinline__ void every_cell(int i, Body body) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (kPadded && i + e >= own_) continue;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) body(e, c, cell_[i + e][c]);
    }
  }
  static __device__ __forceinline__ void read(const float* row, int i, float (&to)[4], Keys& keys) {
    four(row + i, to);
#pragma unroll
    for (int e = 0; e < 4; ++e) keys.at[i + e] = to[e];
  }

  static __device__ __forceinline__ float from_lane(float x, int apart) {
    return __shfl_xor_sync(0xFFFFFFFFu, x, apart);
  }
  // Neighbours first, each of which gives away the column that is not its own. Lanes that meet get the same bits, since
  // an addition may be turned round.
  __device__ __forceinline__ float fold(const float (&sum)[kColumns]) const {
    const float own = second_ ? sum[kColumns - 1] : sum[0], other = second_ ? sum[0] : sum[kColumns - 1];
    float all = __fadd_rn(own, from_lane(other, kColumnLanes));
#pragma unroll
    for (int apart = 2 * kColumnLanes; apart < 32; apart *= 2) all = __fadd_rn(all, from_lane(all, apart));
    return all;
  }
  // What the own column has, and what the neighbour's has.
  __device__ __forceinline__ void spread(float own, float (&all)[kColumns]) const {
    if constexpr (kColumns == 2) {
      const float other = from_lane(own, kColumnLanes);
      all[0] = second_ ? other : own, all[1] = second_ ? own : other;
    } else {
      all[0] = own;
    }
  }

  float cell_[kPiece][kColumns];
  bool second_;
  int own_;  // kPadded
};

}  // namespace foretoken::cuda
