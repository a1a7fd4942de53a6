// The gated delta rule, token by token, written once over simd.h: lanes are columns of the state, which never meet. A
// run of rows keeps its block of columns in the first-level cache. Definition: docs/numerics.md, the same operations
// per column.
namespace foretoken::cpu::FORETOKEN_ISA {
namespace {

// out = (x * r) * scale, r = 1 / sqrt(sum of squares + 1e-6); scale 1 leaves the product as it is.
FORETOKEN_SIMD void l2_normalise(const float* x, int n, float scale, float* out) {
  const F32x16 r = set_f32(1.0f / __builtin_sqrtf(sum_of_squares(x, n) + 1e-6f)), s = set_f32(scale);
  int i = 0;
  for (; i + 16 <= n; i += 16) store(out + i, mul(mul(load_f32(x + i), r), s));
  if (i < n) store_first(out + i, mul(mul(load_first_f32(x + i, n - i), r), s), n - i);
}

void prepare_row(const DeltaRowTask& task) {
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(task.key_dim));
  for (int h = 0; h < task.key_heads; ++h) {
    const int64_t head = int64_t{h} * task.key_dim;
    l2_normalise(task.conv + head, task.key_dim, scale, task.query + head);
    l2_normalise(task.conv + int64_t{task.key_heads} * task.key_dim + head, task.key_dim, 1.0f, task.key + head);
  }
  for (int h = 0; h < task.value_heads; h += 16) {
    const int count = task.value_heads - h < 16 ? task.value_heads - h : 16;
    const F32x16 b = load_first_f32(task.beta_alpha + h, count);
    const F32x16 a = load_first_f32(task.beta_alpha + task.value_heads + h, count);
    const F32x16 rate = load_first_f32(task.decay_rate + h, count), bias = load_first_f32(task.dt_bias + h, count);
    store_first(task.beta + h, sigmoid(b), count);
    store_first(task.decay + h, exp(mul(rate, softplus(add(a, bias)))), count);
  }
}

// The sums of a sweep over the keys, piece by piece. As a binary counter carries, a sum that is complete is added to what
// the pieces before it left: pieces, then pairs, then fours. Sweeps are unrolled by pieces, which leaves no branch here.
template <int kVectors>
struct PieceSums {
  F32x16 waiting[4][kVectors];

  // `sum` is that of piece `piece`; of the last piece it becomes the sum of all.
  FORETOKEN_SIMD void end_piece(PieceSums& sums, int piece, F32x16 (&sum)[kVectors]) {
    int level = 0;
    for (; piece >> level & 1; ++level)
      FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) sum[v] = add(sums.waiting[level][v], sum[v]);
    FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) sums.waiting[level][v] = sum[v];
  }
};

// kVectors * 16 columns; kPartial: the single vector has only `count` of them. In `work` lies the state after the row's
// decay and before its update, one row of kVectors vectors per key.
template <int kVectors, bool kPartial>
struct DeltaColumns {
  static constexpr int kWidth = 16 * kVectors;
  using Sums = PieceSums<kVectors>;
  static constexpr int kAhead = 32;  // keys that are fetched ahead of their use: a state is cold when a pass reaches it

  FORETOKEN_SIMD F32x16 load(const float* p, int vector, int count) {
    return kPartial ? load_first_f32(p, count) : load_f32(p + 16 * vector);
  }
  FORETOKEN_SIMD void put(float* p, int vector, F32x16 x, int count) {
    if (kPartial) store_first(p, x, count);
    else store(p + 16 * vector, x);
  }

  // d = beta * (v - u), kept on the tape when there is one.
  FORETOKEN_SIMD void deltas(const DeltaRow& row, int64_t column, int count, const F32x16 (&u)[kVectors],
                             F32x16 (&d)[kVectors]) {
    FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) {
      d[v] = mul(set_f32(row.beta), sub(load(row.value + column, v, count), u[v]));
      if (row.delta) put(row.delta + column, v, d[v], count);
    }
  }

  FORETOKEN_SIMD void clear(F32x16 (&sum)[kVectors]) {
    FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) sum[v] = zero_f32();
  }
  // One behind the last key of a piece.
  FORETOKEN_SIMD int end_of(const DeltaRun& run, int piece) {
    const int end = (piece + 1) * run.piece_keys;
    return end < run.key_dim ? end : run.key_dim;
  }

  // Asks for a row that is read soon: those of a long prompt are cold, and lie too far apart for the processor to foresee.
  FORETOKEN_SIMD void fetch(const DeltaRow& row, int64_t column, int key_dim) {
    for (int i = 0; i < key_dim; i += 16) {
      prefetch_near(row.key + i);
      prefetch_near(row.query + i);
    }
    FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) {
      prefetch_near(row.value + column + 16 * v);
      __builtin_prefetch(row.out + column + 16 * v, 1);
      if (row.delta) __builtin_prefetch(row.delta + column + 16 * v, 1);
    }
  }

  // A single row needs no copy of the block: the second sweep finds it in the cache. `target` may be the source.
  static void single(const DeltaRun& run, int64_t column, int count) {
    const DeltaRow& row = run.rows[0];
    const float* source = run.source + column;
    float* target = run.target ? run.target + column : nullptr;
    const F32x16 decay = set_f32(row.decay);
    F32x16 u[kVectors], d[kVectors], o[kVectors];
    Sums sums;
    FORETOKEN_UNROLL for (int piece = 0, i = 0; piece < kDeltaPieces; ++piece) {
      clear(u);
      for (const int end = end_of(run, piece); i < end; ++i) {
        const float* cells = source + i * run.source_stride;
        FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v)
            __builtin_prefetch(cells + kAhead * run.source_stride + 16 * v);
        const F32x16 k = set_f32(row.key[i]);
        FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) u[v] = fma(k, mul(decay, load(cells, v, count)), u[v]);
      }
      Sums::end_piece(sums, piece, u);
    }
    deltas(row, column, count, u, d);
    FORETOKEN_UNROLL for (int piece = 0, i = 0; piece < kDeltaPieces; ++piece) {
      clear(o);
      for (const int end = end_of(run, piece); i < end; ++i) {
        const F32x16 k = set_f32(row.key[i]), q = set_f32(row.query[i]);
        FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) {
          const F32x16 s = fma(k, d[v], mul(decay, load(source + i * run.source_stride, v, count)));
          o[v] = fma(q, s, o[v]);
          if (target) put(target + i * run.target_stride, v, s, count);
        }
      }
      Sums::end_piece(sums, piece, o);
    }
    FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) put(row.out + column, v, o[v], count);
  }

  static void run(const DeltaRun& run, int64_t column, int count) {
    if (run.row_count == 1) return single(run, column, count);
    const DeltaRow* rows = run.rows;
    float* work = run.work;
    F32x16 u[kVectors], d[kVectors], o[kVectors];
    Sums u_sums, o_sums;
    const float* source = run.source + column;
    const F32x16 first_decay = set_f32(rows[0].decay);
    FORETOKEN_UNROLL for (int piece = 0, i = 0; piece < kDeltaPieces; ++piece) {
      clear(u);
      for (const int end = end_of(run, piece); i < end; ++i) {
        const F32x16 k = set_f32(rows[0].key[i]);
        FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) {
          const F32x16 s = mul(first_decay, load(source + i * run.source_stride, v, count));
          u[v] = fma(k, s, u[v]);
          store(work + i * kWidth + 16 * v, s);
        }
      }
      Sums::end_piece(u_sums, piece, u);
    }
    // A row's update and output, and the next row's prediction, in one sweep.
    for (int r = 0; r + 1 < run.row_count; ++r) {
      if (r + 2 < run.row_count) fetch(rows[r + 2], column, run.key_dim);
      deltas(rows[r], column, count, u, d);
      const float *key = rows[r].key, *query = rows[r].query, *next_key = rows[r + 1].key;
      const F32x16 decay = set_f32(rows[r + 1].decay);
      FORETOKEN_UNROLL for (int piece = 0, i = 0; piece < kDeltaPieces; ++piece) {
        clear(u);
        clear(o);
        for (const int end = end_of(run, piece); i < end; ++i) {
          const F32x16 k = set_f32(key[i]), q = set_f32(query[i]), n = set_f32(next_key[i]);
          FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) {
            float* cell = work + i * kWidth + 16 * v;
            F32x16 s = fma(k, d[v], load_f32(cell));
            o[v] = fma(q, s, o[v]);
            s = mul(decay, s);
            u[v] = fma(n, s, u[v]);
            store(cell, s);
          }
        }
        Sums::end_piece(u_sums, piece, u);
        Sums::end_piece(o_sums, piece, o);
      }
      FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) put(rows[r].out + column, v, o[v], count);
    }
    const DeltaRow& last = rows[run.row_count - 1];
    deltas(last, column, count, u, d);
    float* target = run.target ? run.target + column : nullptr;
    FORETOKEN_UNROLL for (int piece = 0, i = 0; piece < kDeltaPieces; ++piece) {
      clear(o);
      for (const int end = end_of(run, piece); i < end; ++i) {
        const F32x16 k = set_f32(last.key[i]), q = set_f32(last.query[i]);
        FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) {
          const F32x16 s = fma(k, d[v], load_f32(work + i * kWidth + 16 * v));
          o[v] = fma(q, s, o[v]);
          if (target) put(target + i * run.target_stride, v, s, count);
        }
      }
      Sums::end_piece(o_sums, piece, o);
    }
    FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) put(last.out + column, v, o[v], count);
  }
};

void delta_run(const DeltaRun& run) {
  constexpr int kWide = FORETOKEN_ISA_LEVEL == 2 ? kDeltaColumns / 16 : 2;
  constexpr int kWidest = FORETOKEN_ISA_LEVEL == 2 ? 8 : kWide;  // sums and deltas of 8 vectors fit 32 registers
  int64_t column = 0;
  if (run.row_count == 1)
    for (; column + 16 * kWidest <= run.columns; column += 16 * kWidest)
      DeltaColumns<kWidest, false>::single(run, column, 16);
  for (; column + 16 * kWide <= run.columns; column += 16 * kWide) DeltaColumns<kWide, false>::run(run, column, 16);
  for (; column + 16 <= run.columns; column += 16) DeltaColumns<1, false>::run(run, column, 16);
  if (column < run.columns) DeltaColumns<1, true>::run(run, column, static_cast<int>(run.columns - column));
}

// S = fma(k, d, decay * S) for each row in turn, on kVectors vectors of one key's cells, the last of `count`.
template <int kVectors>
FORETOKEN_SIMD void replay_cells(const ReplayTask& task, int key, int64_t column, int count) {
  float* cells = task.state + int64_t{key} * task.value_dim + column;
  F32x16 s[kVectors];
  FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) s[v] = load_part(cells + 16 * v, count);
  for (int r = 0; r < task.row_count; ++r) {
    const ReplayRow& row = task.rows[r];
    const F32x16 k = set_f32(row.key[key]), decay = set_f32(row.decay);
    FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v)
      s[v] = fma(k, load_part(row.delta + column + 16 * v, count), mul(decay, s[v]));
  }
  FORETOKEN_UNROLL for (int v = 0; v < kVectors; ++v) store_part(cells + 16 * v, s[v], count);
}

void delta_replay(const ReplayTask& task) {
  for (int key = 0; key < task.key_dim; ++key) {
    int64_t column = 0;
    for (; column + 64 <= task.value_dim; column += 64) replay_cells<4>(task, key, column, 16);
    for (; column < task.value_dim; column += 16)
      replay_cells<1>(task, key, column, static_cast<int>(task.value_dim - column));
  }
}

constexpr DeltaKernels delta_kernels() {
  return {.prepare_row = prepare_row, .run = delta_run, .replay = delta_replay};
}

}  // namespace
}  // namespace foretoken::cpu::FORETOKEN_ISA
