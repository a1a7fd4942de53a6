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

// What one lane has of the state: kPieces neighbouring pieces of kColumns columns. The lanes of a column are
// kColumnLanes apart, those of one piece beside each other, so that they read the same words of shared memory. Pointers
// to keys and queries are to the lane's first piece. kPadded: pieces have `own` keys, fewer than there is room for.
// kKeepsKeys: a row's keys stay in registers from the one to the other time they are needed.
template <int kKeys, int kPieces, int kColumns, bool kKeepsKeys, bool kPadded>
class RuleLane {
 public:
  using Places = KeyPlaces<kKeys>;
  static constexpr int kPiece = Places::kPiece;
  static constexpr int kColumnLanes = 32 * kPieces / kKeyPieces;
  static_assert(!kPadded || kPieces == 1);

  // A row's keys.
  class Keys {
   public:
    // Four from the i-th of piece p, and that they are these.
    __device__ __forceinline__ void get(int p, int i, float (&to)[4]) const {
      if constexpr (kKeepsKeys)
#pragma unroll
        for (int e = 0; e < 4; ++e) to[e] = kept_[p][i + e];
      else four(row_ + p * Places::kPitch + i, to);
    }
    __device__ __forceinline__ void read(const float* row, int p, int i, float (&to)[4]) {
      four(row + p * Places::kPitch + i, to);
      if constexpr (kKeepsKeys)
#pragma unroll
        for (int e = 0; e < 4; ++e) kept_[p][i + e] = to[e];
      else row_ = row;
    }

   private:
    float kept_[kPieces][kPiece];
    const float* row_ = nullptr;
  };

  __device__ __forceinline__ explicit RuleLane(int own) : own_(own) {}

  // `cells` of the lane's first key and column; `stride` of a key. Columns beyond the first need whole pairs.
  __device__ __forceinline__ void load(const float* cells, int64_t stride) {
    every_key([&](int p, int i, int key) {
      const float* from = cells + key * stride;
      if constexpr (kColumns == 2) {
        const float2 two = *reinterpret_cast<const float2*>(from);
        cell_[p][i][0] = two.x, cell_[p][i][1] = two.y;
      } else {
        cell_[p][i][0] = *from;
      }
    });
  }
  __device__ __forceinline__ void store(float* cells, int64_t stride) const {
    every_key([&](int p, int i, int key) {
      float* to = cells + key * stride;
      if constexpr (kColumns == 2) *reinterpret_cast<float2*>(to) = make_float2(cell_[p][i][0], cell_[p][i][1]);
      else *to = cell_[p][i][0];
    });
  }

  // A row of the tape: from the state before it to the state after it. `key(i)` is the lane's i-th.
  template <class Key>
  __device__ __forceinline__ void replay(float decay, const float (&d)[kColumns], Key key_of) {
    every_key([&](int p, int i, int key) {
      const float k = key_of(p, i, key);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) cell_[p][i][c] = fma(k, d[c], __fmul_rn(decay, cell_[p][i][c]));
    });
  }

  // The state times the decay of the row that comes; u, in every lane of a column.
  __device__ __forceinline__ void enter(float decay, const float* key_row, Keys& keys, float (&u)[kColumns]) {
    float sum[kPieces][kColumns] = {};
#pragma unroll
    for (int p = 0; p < kPieces; ++p)
#pragma unroll
      for (int i = 0; i < kPiece; i += 4) {
        float k[4];
        keys.read(key_row, p, i, k);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (kPadded && i + e >= own_) continue;
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            float& cell = cell_[p][i + e][c];
            cell = __fmul_rn(decay, cell);
            sum[p][c] = fma(k[e], cell, sum[p][c]);
          }
        }
      }
    fold(sum, u);
  }

  // From there to the state times the next row's decay: the row's output, and keys and u of the next one.
  __device__ __forceinline__ void pass(const Keys& keys, const float (&d)[kColumns], const float* queries,
                                       float next_decay, const float* next_key_row, Keys& next_keys,
                                       float (&o)[kColumns], float (&u)[kColumns]) {
    float o_sum[kPieces][kColumns] = {}, u_sum[kPieces][kColumns] = {};
#pragma unroll
    for (int p = 0; p < kPieces; ++p)
#pragma unroll
      for (int i = 0; i < kPiece; i += 4) {
        float k[4], q[4], next[4];
        keys.get(p, i, k);
        four(queries + p * Places::kPitch + i, q);
        next_keys.read(next_key_row, p, i, next);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (kPadded && i + e >= own_) continue;
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            float& cell = cell_[p][i + e][c];
            cell = fma(k[e], d[c], cell);
            o_sum[p][c] = fma(q[e], cell, o_sum[p][c]);
            cell = __fmul_rn(next_decay, cell);
            u_sum[p][c] = fma(next[e], cell, u_sum[p][c]);
          }
        }
      }
    fold(u_sum, u);
    fold(o_sum, o);
  }

  // From there to the state after the row.
  __device__ __forceinline__ void finish(const Keys& keys, const float (&d)[kColumns], const float* queries,
                                         float (&o)[kColumns]) {
    float sum[kPieces][kColumns] = {};
#pragma unroll
    for (int p = 0; p < kPieces; ++p)
#pragma unroll
      for (int i = 0; i < kPiece; i += 4) {
        float k[4], q[4];
        keys.get(p, i, k);
        four(queries + p * Places::kPitch + i, q);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (kPadded && i + e >= own_) continue;
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            float& cell = cell_[p][i + e][c];
            cell = fma(k[e], d[c], cell);
            sum[p][c] = fma(q[e], cell, sum[p][c]);
          }
        }
      }
    fold(sum, o);
  }

 private:
  template <class Body>
  __device__ __forceinline__ void every_key(Body body) const {
#pragma unroll
    for (int p = 0; p < kPieces; ++p)
#pragma unroll
      for (int i = 0; i < kPiece; ++i)
        if (!kPadded || i < own_) body(p, i, p * kPiece + i);
  }

  // Neighbours first. Lanes that meet get the same bits, since an addition may be turned round.
  static __device__ __forceinline__ void fold(const float (&sum)[kPieces][kColumns], float (&all)[kColumns]) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) all[c] = kPieces == 2 ? __fadd_rn(sum[0][c], sum[kPieces - 1][c]) : sum[0][c];
#pragma unroll
    for (int apart = kColumnLanes; apart < 32; apart *= 2)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) all[c] = __fadd_rn(all[c], __shfl_xor_sync(0xFFFFFFFFu, all[c], apart));
  }

  float cell_[kPieces][kPiece][kColumns];
  int own_;  // kPadded
};

}  // namespace foretoken::cuda
