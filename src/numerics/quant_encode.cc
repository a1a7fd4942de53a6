// Encoding of weights. Each sub-block gets its scale (and minimum) by weighted least squares over a few candidate
// roundings; then the super-block's own scales are chosen together with the small integers that multiply them, so that
// the error that counts is that of the decoded values. Encoding never touches model outputs; it need not be bit-exact
// anywhere but is deterministic: eight fixed lanes, one order, and its own flush-to-zero mode.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "numerics/dtype.h"
#include "numerics/quant.h"

namespace foretoken {
namespace {

// ---- Eight lanes.

using F8 = __m256;

F8 all(float v) { return _mm256_set1_ps(v); }
F8 rounded(F8 v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
F8 limited(F8 v, float low, float high) { return _mm256_min_ps(_mm256_max_ps(v, all(low)), all(high)); }

float sum(F8 v) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// ---- A sub-block of 8 V values with their weights, and what least squares needs to know of it.

template <int V>
struct Piece {
  F8 x[V], w[V];
  float low = 0, high = 0;        // of x
  float farthest = 0;             // the x of largest magnitude
  float sw = 0, sx = 0, sxx = 0;  // sums of w, w x, w x x

  // `weights` may be null: all one. A piece whose weights are all zero is treated like that too.
  void load(const float* values, const float* weights) {
    F8 total = all(0), first = all(0), second = all(0);
    if (weights) {
      for (int v = 0; v < V; ++v) total = total + _mm256_loadu_ps(weights + 8 * v);
      if (!(sum(total) > 0)) weights = nullptr;
    }
    total = all(0);
    low = high = values[0];
    for (int i = 1; i < 8 * V; ++i) {
      low = std::min(low, values[i]);
      high = std::max(high, values[i]);
    }
    farthest = -low > high ? low : high;
    for (int v = 0; v < V; ++v) {
      x[v] = _mm256_loadu_ps(values + 8 * v);
      w[v] = weights ? _mm256_loadu_ps(weights + 8 * v) : all(1);
      const F8 wx = w[v] * x[v];
      total = total + w[v];
      first = first + wx;
      second = _mm256_fmadd_ps(wx, x[v], second);
    }
    sw = sum(total);
    sx = sum(first);
    sxx = sum(second);
  }
};

// Sums of w q, w q q, w x q over a piece for one assignment of codes q.
struct CodeSums {
  float q, qq, xq;
};

// The f16 scale nearest to `value`, as fp32: never infinite, and not zero unless `value` is, so that tiny blocks keep a
// grid.
float half_scale(float value) {
  constexpr float kLargest = 65504.0f, kSmallest = 5.9604645e-8f;
  const float magnitude = std::fabs(value);
  if (!(magnitude > 0)) return 0;
  return std::copysign(to_float(to_f16(std::clamp(magnitude, kSmallest, kLargest))), value);
}

void put_half(float value, std::byte* out) {
  const F16 half = to_f16(value);
  std::memcpy(out, &half.bits, 2);
}

std::byte to_byte(int value) { return static_cast<std::byte>(value & 255); }

float inverse(float scale) { return scale != 0 ? 1.0f / scale : 0.0f; }

// ---- Codes with a minimum: x ~ scale q - min, q in [0, 2^Bits - 1], scale and min >= 0. Q4_K and Q5_K.

struct Affine {
  float scale = 0, min = 0;
};

template <int Bits>
struct AffineCoder {
  static constexpr int kTop = (1 << Bits) - 1;
  using P = Piece<4>;

  static F8 codes(F8 x, float inv, float min) { return limited(rounded((x + all(min)) * all(inv)), 0, kTop); }

  static CodeSums sums(const P& piece, float inv, float min) {
    F8 q = all(0), qq = all(0), xq = all(0);
    for (int v = 0; v < 4; ++v) {
      const F8 code = codes(piece.x[v], inv, min), wq = piece.w[v] * code;
      q = q + wq;
      qq = _mm256_fmadd_ps(wq, code, qq);
      xq = _mm256_fmadd_ps(wq, piece.x[v], xq);
    }
    return {sum(q), sum(qq), sum(xq)};
  }

  static float error(const P& piece, float scale, float min) {
    const float inv = inverse(scale);
    F8 total = all(0);
    for (int v = 0; v < 4; ++v) {
      const F8 off = _mm256_fmsub_ps(all(scale), codes(piece.x[v], inv, min), all(min)) - piece.x[v];
      total = _mm256_fmadd_ps(piece.w[v] * off, off, total);
    }
    return sum(total);
  }

  // The best scale and min for fixed codes, and the error they leave.
  static float solve(const P& piece, const CodeSums& s, Affine& out) {
    const float determinant = piece.sw * s.qq - s.q * s.q;
    if (determinant > 0) {
      out.scale = (piece.sw * s.xq - piece.sx * s.q) / determinant;
      out.min = (s.q * s.xq - s.qq * piece.sx) / determinant;
    }
    if (!(determinant > 0) || out.min < 0) out = {s.qq > 0 ? s.xq / s.qq : 0.0f, 0.0f};
    if (out.scale < 0) out = {0.0f, std::max(0.0f, -piece.sx / piece.sw)};
    return piece.sxx + out.scale * (out.scale * s.qq - 2 * s.xq) + out.min * (2 * piece.sx - 2 * out.scale * s.q) +
           out.min * out.min * piece.sw;
  }

  static Affine fit(const P& piece) {
    const float low = std::min(piece.low, 0.0f);
    const float range = piece.high - low;
    if (!(range > 0)) return {0.0f, -low};
    Affine best;
    float best_error = std::numeric_limits<float>::infinity();
    const auto consider = [&](float inv, float min) {
      Affine a;
      const float error = solve(piece, sums(piece, inv, min), a);
      if (!(error < best_error)) return false;
      best_error = error;
      best = a;
      return true;
    };
    // From clipping both ends a little to leaving the top code unused.
    constexpr int kSteps = 16;
    for (int i = 0; i <= kSteps; ++i)
      consider((static_cast<float>(kTop) + kFirst + kStep * static_cast<float>(i)) / range, -low);
    for (int i = 0; i < 4 && best.scale > 0 && consider(1.0f / best.scale, best.min); ++i) {
    }
    return best;
  }
  static constexpr float kFirst = -1.0f, kStep = Bits == 4 ? 0.2f : 0.15f;

  struct Choice {
    float d = 0, dmin = 0;
    std::array<int, 8> scale{}, min{};
    float error = std::numeric_limits<float>::infinity();
  };

  // For given d and dmin: the pair of 6-bit integers of every sub-block, among the neighbours of the ideal ones.
  static Choice choose(const std::array<P, 8>& pieces, const std::array<Affine, 8>& ideal, float d, float dmin) {
    Choice out{d, dmin, {}, {}, 0};
    for (size_t k = 0; k < 8; ++k) {
      const P& piece = pieces[k];
      const int center = nearest_code(ideal[k].scale, d);
      float best = std::numeric_limits<float>::infinity();
      for (int s = std::max(center - 1, 0); s <= std::min(center + 1, 63); ++s) {
        const float scale = d * static_cast<float>(s);
        const CodeSums now = sums(piece, inverse(scale), ideal[k].min);
        const float min = (scale * now.q - piece.sx) / piece.sw;
        const int middle = nearest_code(min, dmin);
        for (int m = std::max(middle - 1, 0); m <= std::min(middle + 1, 63); ++m) {
          const float e = error(piece, scale, dmin * static_cast<float>(m));
          if (!(e < best)) continue;
          best = e;
          out.scale[k] = s;
          out.min[k] = m;
        }
      }
      out.error += best;
    }
    return out;
  }

  static int nearest_code(float value, float unit) {
    return static_cast<int>(std::clamp(std::nearbyint(value * inverse(unit)), 0.0f, 63.0f));
  }

  // d and dmin by least squares for fixed integers and codes.
  static Affine refit(const std::array<P, 8>& pieces, const Choice& now) {
    double a = 0, b = 0, c = 0, x = 0, y = 0;
    for (size_t k = 0; k < 8; ++k) {
      const float scale = now.d * static_cast<float>(now.scale[k]), min = now.dmin * static_cast<float>(now.min[k]);
      const CodeSums s = sums(pieces[k], inverse(scale), min);
      const double ls = now.scale[k], lm = now.min[k];
      a += ls * ls * s.qq;
      b += ls * lm * s.q;
      c += lm * lm * pieces[k].sw;
      x += ls * s.xq;
      y += lm * pieces[k].sx;
    }
    const double determinant = a * c - b * b;
    if (determinant > 0)
      return {static_cast<float>((x * c - b * y) / determinant), static_cast<float>((b * x - a * y) / determinant)};
    return {a > 0 ? static_cast<float>(x / a) : now.d, now.dmin};
  }

  static Choice search(const std::array<P, 8>& pieces) {
    std::array<Affine, 8> ideal;
    float scale = 0, min = 0;
    for (size_t k = 0; k < 8; ++k) {
      ideal[k] = fit(pieces[k]);
      scale = std::max(scale, ideal[k].scale);
      min = std::max(min, ideal[k].min);
    }
    Choice best = choose(pieces, ideal, half_scale(scale / 63), half_scale(min / 63));
    for (int round = 0; round < 3; ++round) {
      const Affine next = refit(pieces, best);
      const Choice choice =
          choose(pieces, ideal, half_scale(std::max(next.scale, 0.0f)), half_scale(std::max(next.min, 0.0f)));
      if (!(choice.error < best.error)) break;
      best = choice;
    }
    return best;
  }

  // Layout: d | dmin | 12 bytes of 6-bit scales and minimums | (Q5_K: 32 bytes of fifth bits) | 128 bytes of nibbles.
  static void encode(const float* x, const float* w, std::byte* out) {
    std::array<P, 8> pieces;
    for (int k = 0; k < 8; ++k) pieces[static_cast<size_t>(k)].load(x + 32 * k, w ? w + 32 * k : nullptr);
    const Choice choice = search(pieces);
    std::memset(out, 0, Bits == 4 ? 144 : 176);
    put_half(choice.d, out);
    put_half(choice.dmin, out + 2);
    std::byte* packed = out + 4;
    std::byte* high = out + 16;
    std::byte* low = out + (Bits == 4 ? 16 : 48);
    for (int k = 0; k < 8; ++k) {
      const int s = choice.scale[static_cast<size_t>(k)], m = choice.min[static_cast<size_t>(k)];
      if (k < 4) {
        packed[k] |= to_byte(s);
        packed[k + 4] |= to_byte(m);
      } else {
        packed[k + 4] |= to_byte((s & 15) | (m & 15) << 4);
        packed[k - 4] |= to_byte((s >> 4) << 6);
        packed[k] |= to_byte((m >> 4) << 6);
      }
      const float scale = choice.d * static_cast<float>(s), min = choice.dmin * static_cast<float>(m);
      alignas(32) float q[32];
      for (int v = 0; v < 4; ++v)
        _mm256_store_ps(q + 8 * v, codes(pieces[static_cast<size_t>(k)].x[v], inverse(scale), min));
      for (int l = 0; l < 32; ++l) {
        const int code = static_cast<int>(q[l]);
        low[32 * (k / 2) + l] |= to_byte((code & 15) << 4 * (k & 1));
        if (Bits == 5) high[l] |= to_byte((code >> 4) << k);
      }
    }
  }
};

// ---- Codes with a signed scale and no minimum: x ~ scale q, q from a fixed set. Q6_K and IQ4_XS.

// -32..31, uniform. `kTargets`: values that the element of largest magnitude may be scaled to.
struct SixBitCode {
  static constexpr int kPieceLanes = 2, kPieces = 16, kScaleLow = -128, kScaleHigh = 127;
  static constexpr float kTargets[] = {-33, -32.5f, -32, -31.5f, -31, -30.5f, -30, -29,
                                       32,  31.5f,  31,  30.5f,  30,  29,     28};
  static constexpr float kScaleTargets[] = {-128, 127};
  static F8 nearest(F8 v) { return limited(rounded(v), -32, 31); }
};

// The 16 values of the IQ4 table. The nearest one by a binary search over the midpoints, four comparisons per lane.
struct TableCode {
  static constexpr int kPieceLanes = 4, kPieces = 8, kScaleLow = -32, kScaleHigh = 31;
  static constexpr float kTargets[] = {-150, -140, -132, -126, -120, -114, -108, -102,
                                       135,  126,  118,  112,  106,  100,  94,   88};
  static constexpr float kScaleTargets[] = {-32, -31, -30, -29, 31, 30, 29};

  static constexpr float middle(int i) { return 0.5f * static_cast<float>(kIq4Values[i] + kIq4Values[i + 1]); }
  static F8 pick(const float (&table)[8], __m256i index) {
    return _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index);
  }
  static F8 nearest(F8 v) {
    static constexpr float kSecond[8] = {middle(3), middle(11)};
    static constexpr float kThird[8] = {middle(1), middle(5), middle(9), middle(13)};
    static constexpr float kFourth[8] = {middle(0), middle(2),  middle(4),  middle(6),
                                         middle(8), middle(10), middle(12), middle(14)};
    static constexpr float kLower[8] = {-127, -104, -83, -65, -49, -35, -22, -10},
                           kUpper[8] = {1, 13, 25, 38, 53, 69, 89, 113};
    const auto above = [&](F8 bound) { return _mm256_castps_si256(_mm256_cmp_ps(v, bound, _CMP_GT_OQ)); };
    // A true comparison is -1: doubling the index and subtracting it appends a bit.
    const auto append = [](__m256i index, __m256i bit) {
      return _mm256_sub_epi32(_mm256_add_epi32(index, index), bit);
    };
    const __m256i upper = above(all(middle(7)));
    __m256i index = append(_mm256_setzero_si256(), upper);
    index = append(index, above(pick(kSecond, index)));
    index = append(index, above(pick(kThird, index)));
    index = append(index, above(pick(kFourth, index)));
    return _mm256_blendv_ps(pick(kLower, index), pick(kUpper, index), _mm256_castsi256_ps(upper));
  }
};

template <class Code>
struct SignedCoder {
  static constexpr int kLanes = Code::kPieceLanes, kPieces = Code::kPieces, kElements = 8 * kLanes;
  using P = Piece<kLanes>;
  using Pieces = std::array<P, static_cast<size_t>(kPieces)>;

  static CodeSums sums(const P& piece, float inv) {
    F8 qq = all(0), xq = all(0);
    for (int v = 0; v < kLanes; ++v) {
      const F8 code = Code::nearest(piece.x[v] * all(inv)), wq = piece.w[v] * code;
      qq = _mm256_fmadd_ps(wq, code, qq);
      xq = _mm256_fmadd_ps(wq, piece.x[v], xq);
    }
    return {0, sum(qq), sum(xq)};
  }

  static float error(const P& piece, float scale) {
    const float inv = inverse(scale);
    F8 total = all(0);
    for (int v = 0; v < kLanes; ++v) {
      const F8 off = _mm256_fmsub_ps(all(scale), Code::nearest(piece.x[v] * all(inv)), piece.x[v]);
      total = _mm256_fmadd_ps(piece.w[v] * off, off, total);
    }
    return sum(total);
  }

  // The best positive and the best negative scale: which of them wins depends on how well the super-block can express
  // it.
  struct Ideal {
    float scale[2] = {0, 0};
  };

  static Ideal fit(const P& piece) {
    Ideal best;
    if (piece.farthest == 0) return best;
    float gain[2] = {0, 0};  // squared error removed
    const auto consider = [&](float inv) {
      const CodeSums s = sums(piece, inv);
      if (!(s.qq > 0)) return false;
      const float scale = s.xq / s.qq;
      const int sign = scale < 0;
      if (!(s.xq * scale > gain[sign])) return false;
      gain[sign] = s.xq * scale;
      best.scale[sign] = scale;
      return true;
    };
    for (const float target : Code::kTargets) consider(target / piece.farthest);
    for (int sign = 0; sign < 2; ++sign)
      for (int i = 0; i < 3 && best.scale[sign] != 0 && consider(1.0f / best.scale[sign]); ++i) {
      }
    return best;
  }

  struct Choice {
    float d = 0;
    std::array<int, static_cast<size_t>(kPieces)> scale{};
    float error = std::numeric_limits<float>::infinity();
  };

  static Choice choose(const Pieces& pieces, const std::array<Ideal, static_cast<size_t>(kPieces)>& ideal, float d) {
    Choice out{d, {}, 0};
    for (size_t k = 0; k < pieces.size(); ++k) {
      float best = error(pieces[k], 0);
      out.scale[k] = 0;
      for (const float wanted : ideal[k].scale) {
        if (wanted == 0) continue;
        const int below =
            static_cast<int>(std::clamp(std::floor(wanted * inverse(d)), static_cast<float>(Code::kScaleLow),
                                        static_cast<float>(Code::kScaleHigh)));
        for (int s = below; s <= std::min(below + 1, Code::kScaleHigh); ++s) {
          const float e = error(pieces[k], d * static_cast<float>(s));
          if (!(e < best)) continue;
          best = e;
          out.scale[k] = s;
        }
      }
      out.error += best;
    }
    return out;
  }

  static float refit(const Pieces& pieces, const Choice& now) {
    double a = 0, x = 0;
    for (size_t k = 0; k < pieces.size(); ++k) {
      const CodeSums s = sums(pieces[k], inverse(now.d * static_cast<float>(now.scale[k])));
      a += static_cast<double>(now.scale[k]) * now.scale[k] * s.qq;
      x += static_cast<double>(now.scale[k]) * s.xq;
    }
    return a > 0 ? static_cast<float>(x / a) : now.d;
  }

  static Choice search(const Pieces& pieces) {
    std::array<Ideal, static_cast<size_t>(kPieces)> ideal;
    float largest = 0;
    for (size_t k = 0; k < pieces.size(); ++k) {
      ideal[k] = fit(pieces[k]);
      for (const float scale : ideal[k].scale)
        if (std::fabs(scale) > std::fabs(largest)) largest = scale;
    }
    Choice best;
    if (largest == 0) return best;
    for (const float target : Code::kScaleTargets) {
      const Choice choice = choose(pieces, ideal, half_scale(largest / target));
      if (choice.error < best.error) best = choice;
    }
    for (int round = 0; round < 3; ++round) {
      const Choice choice = choose(pieces, ideal, half_scale(refit(pieces, best)));
      if (!(choice.error < best.error)) break;
      best = choice;
    }
    return best;
  }

  // The chosen integers, with every code as the value it stands for.
  struct Encoded {
    float d;
    std::array<int, static_cast<size_t>(kPieces)> scale;
    alignas(32) float q[256];
  };

  static Encoded encode(const float* x, const float* w) {
    Pieces pieces;
    for (int k = 0; k < kPieces; ++k)
      pieces[static_cast<size_t>(k)].load(x + kElements * k, w ? w + kElements * k : nullptr);
    const Choice choice = search(pieces);
    Encoded out{choice.d, choice.scale, {}};
    for (int k = 0; k < kPieces; ++k) {
      const size_t piece = static_cast<size_t>(k);
      const float inv = inverse(choice.d * static_cast<float>(choice.scale[piece]));
      for (int v = 0; v < kLanes; ++v)
        _mm256_store_ps(out.q + kElements * k + 8 * v, Code::nearest(pieces[piece].x[v] * all(inv)));
    }
    return out;
  }
};

// Layout: 128 bytes of low nibbles | 64 bytes of two high bits | 16 i8 scales | d.
void encode_q6_k(const float* x, const float* w, std::byte* out) {
  const auto block = SignedCoder<SixBitCode>::encode(x, w);
  std::memset(out, 0, 210);
  for (int n = 0; n < 2; ++n)
    for (int j = 0; j < 4; ++j)
      for (int l = 0; l < 32; ++l) {
        const int code = static_cast<int>(block.q[128 * n + 32 * j + l]) + 32;
        out[64 * n + 32 * (j & 1) + l] |= to_byte((code & 15) << 4 * (j / 2));
        out[128 + 32 * n + l] |= to_byte((code >> 4) << 2 * j);
      }
  for (int k = 0; k < 16; ++k) out[192 + k] = to_byte(block.scale[static_cast<size_t>(k)]);
  put_half(block.d, out + 208);
}

// Layout: d | u16 of high scale bits | 4 bytes of low scale bits | 128 bytes of nibbles.
void encode_iq4_xs(const float* x, const float* w, std::byte* out) {
  const auto block = SignedCoder<TableCode>::encode(x, w);
  std::memset(out, 0, 136);
  put_half(block.d, out);
  for (int k = 0; k < 8; ++k) {
    const int scale = block.scale[static_cast<size_t>(k)] + 32;
    out[2 + k / 4] |= to_byte((scale >> 4) << 2 * (k % 4));
    out[4 + k / 2] |= to_byte((scale & 15) << 4 * (k & 1));
    for (int l = 0; l < 32; ++l) {
      const auto value = static_cast<int16_t>(block.q[32 * k + l]);
      const auto code = std::lower_bound(std::begin(kIq4Values), std::end(kIq4Values), value) - std::begin(kIq4Values);
      out[8 + 16 * k + l % 16] |= to_byte(static_cast<int>(code) << (l >= 16 ? 4 : 0));
    }
  }
}

// Layout: d | 32 i8. The best of a few f16 scales: the largest value may end half a step inside or outside the last
// code.
void encode_q8_0(const float* x, const float* w, std::byte* out) {
  Piece<4> piece;
  piece.load(x, w);
  const auto codes = [](F8 v, float inv) { return limited(rounded(v * all(inv)), -127, 127); };
  float d = 0, best = std::numeric_limits<float>::infinity();
  const auto consider = [&](float scale) {
    const float inv = inverse(scale);
    F8 total = all(0), qq = all(0), xq = all(0);
    for (int v = 0; v < 4; ++v) {
      const F8 code = codes(piece.x[v], inv), wq = piece.w[v] * code;
      const F8 off = _mm256_fmsub_ps(all(scale), code, piece.x[v]);
      total = _mm256_fmadd_ps(piece.w[v] * off, off, total);
      qq = _mm256_fmadd_ps(wq, code, qq);
      xq = _mm256_fmadd_ps(wq, piece.x[v], xq);
    }
    if (const float error = sum(total); error < best) {
      best = error;
      d = scale;
    }
    const float bottom = sum(qq);
    return bottom > 0 ? sum(xq) / bottom : 0.0f;
  };
  const float amax = std::fabs(piece.farthest);
  if (amax > 0)
    for (const float target : {127.0f, 126.7f, 126.3f, 126.0f, 125.5f, 127.2f, 127.4f})
      consider(half_scale(consider(half_scale(amax / target))));
  put_half(d, out);
  alignas(32) float q[32];
  for (int v = 0; v < 4; ++v) _mm256_store_ps(q + 8 * v, codes(piece.x[v], inverse(d)));
  for (int i = 0; i < 32; ++i) out[2 + i] = to_byte(static_cast<int>(q[i]));
}

// Flush-to-zero and denormals-are-zero for the encoder's lifetime: the same bytes from every thread.
class FloatMode {
 public:
  FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~FloatMode() { _mm_setcsr(saved_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  unsigned saved_;
};

void encode_floats(QuantFormat format, std::span<const float> values, std::byte* out) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (format == QuantFormat::kF32) {
      std::memcpy(out + 4 * i, &values[i], 4);
    } else {
      const uint16_t half = format == QuantFormat::kF16 ? to_f16(values[i]).bits : to_bf16(values[i]).bits;
      std::memcpy(out + 2 * i, &half, 2);
    }
  }
}

using Encoder = void (*)(const float* x, const float* w, std::byte* out);

Encoder encoder_of(QuantFormat format) {
  switch (format) {
    case QuantFormat::kQ8_0:
      return encode_q8_0;
    case QuantFormat::kQ4_K:
      return AffineCoder<4>::encode;
    case QuantFormat::kQ5_K:
      return AffineCoder<5>::encode;
    case QuantFormat::kQ6_K:
      return encode_q6_k;
    case QuantFormat::kIQ4_XS:
      return encode_iq4_xs;
    default:
      return nullptr;
  }
}

}  // namespace

bool can_quantize(QuantFormat format) { return is_float_format(format) || encoder_of(format) != nullptr; }

void quantize(QuantFormat format, std::span<const float> values, std::span<const float> importance,
              std::span<std::byte> out) {
  CHECK(can_quantize(format));
  if (!importance.empty()) CHECK(importance.size() == values.size());
  CHECK(out.size() == row_bytes(format, static_cast<int64_t>(values.size())));
  if (is_float_format(format)) return encode_floats(format, values, out.data());
  const FloatMode mode;
  const Encoder encode = encoder_of(format);
  const auto elements = static_cast<size_t>(format_info(format).block_elements);
  const auto bytes = static_cast<size_t>(format_info(format).block_bytes);
  for (size_t block = 0; block * elements < values.size(); ++block)
    encode(values.data() + block * elements, importance.empty() ? nullptr : importance.data() + block * elements,
           out.data() + block * bytes);
}

}  // namespace foretoken
