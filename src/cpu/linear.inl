// Products of packed weights with activation rows, written once over simd.h. Layouts: packed_layout.h; arithmetic:
// canonical::add_block for block formats, canonical::dot16 for floats. A row's operations and their order never depend on how
// many rows run together: tiles only choose which rows share a load of the weights.
//
// Shape contract: any outputs >= 1 and rows >= 1; cols a multiple of the format's block (floats: any cols >= 1).
// Plan: a group's unit of 256 columns passes over all row tiles before the next one. Up to kTileRows rows are multiplied
// straight from the packed planes; of more rows the first tile also stores the bytes it unpacks, and the others take those.
namespace foretoken::cpu::FORETOKEN_ISA {
namespace {

#if FORETOKEN_ISA_LEVEL == 0
inline constexpr int kTileRows = 1;
#elif FORETOKEN_ISA_LEVEL == 1
inline constexpr int kTileRows = 4;
#else
inline constexpr int kTileRows = 8;
#endif
// AVX2 has too few registers for the sums of both halves of a group.
inline constexpr bool kHalvesApart = FORETOKEN_ISA_LEVEL < 2;
inline constexpr int kUnitColumns = 256;
// How far ahead in the packed stream, which is contiguous over groups, a line is asked for: first into the second-level cache, then
// into the first.
inline constexpr int kPrefetchBytes = 16384, kNearPrefetchBytes = 1024;
inline constexpr int64_t kRowBlockBytes = 512 * 1024;  // activations that stay in L2 while all groups pass over them
inline constexpr int64_t kMaxRowBlock = 256;

template <bool kCondition, class Then, class Else>
struct Choose { using Type = Then; };
template <class Then, class Else>
struct Choose<false, Then, Else> { using Type = Else; };

// PackedLayout of one format as plain constants.
template <int kFormat>
struct Packed {
  static constexpr PackedLayout kLayout = packed_layout(static_cast<QuantFormat>(kFormat));
  static constexpr bool kNibble = kLayout.nibble, kTwoBit = kLayout.two_bit, kOneBit = kLayout.one_bit;
  static constexpr bool kByte = kLayout.byte, kTable = kLayout.table, kSumsBytes = kLayout.sums_bytes();
  static constexpr bool kHasMin = kLayout.has_min, kHasScales = kLayout.has_scales();
  static constexpr int kBlock = kLayout.block, kSub = kLayout.sub, kSubs = kLayout.subs(), kQuads = kLayout.quads();
  static constexpr int kBits = kLayout.bits();
  static constexpr int kDminAt = kLayout.dmin_at(), kScalesAt = kLayout.scales_at();
  static constexpr int kMinimumsAt = kLayout.minimums_at(), kPlanesAt = kLayout.planes_at();
  static constexpr int kTwoBitAt = kLayout.nibble_bytes(), kOneBitAt = kTwoBitAt + kLayout.two_bit_bytes();
  static constexpr int kSubBytes = kLayout.sub_bytes(), kBlockBytes = kLayout.block_bytes();
  // Where a dot product starts without activation sums.
  static constexpr bool kZeroStart = kSumsBytes ? kByteBias == 0 : kLayout.offset == 0;
};

// The sums of one half of a group (16 outputs) for one row.
template <int kFormat>
using Chain = typename Choose<Packed<kFormat>::kSumsBytes, ByteDot, Dot<(1 << Packed<kFormat>::kBits) - 1>>::Type;

// How a tile gets its weights: alone from the packed planes; from them while storing the unpacked bytes, if there is anything to
// unpack, for the other tiles; or from those bytes.
enum class Source { kPacked, kShared, kUnpacked };

// Bytes that hold nothing but two nibbles can be multiplied whole, which saves unpacking and costs two operations per row.
template <int kFormat, int kRows, Source kSource>
inline constexpr bool kWholeNibbles = kWideDot && kSource == Source::kPacked && kRows < 8 && Packed<kFormat>::kNibble &&
                                      Packed<kFormat>::kBits == 4 && !Packed<kFormat>::kTable;

// Formats whose scaled dot products are added as integers (canonical::add_block). One operation scales and adds a dot product
// that fits 16 bits, which holds when the magnitudes of the sub-block's activations add up to at most narrow_magnitude().
template <int kFormat>
inline constexpr bool kIntegerScales = adds_scaled_integers(static_cast<QuantFormat>(kFormat));
template <int kFormat>
constexpr int narrow_magnitude() {
  const int offset = Packed<kFormat>::kLayout.offset, above = (1 << Packed<kFormat>::kBits) - 1 - offset;
  return 32767 / (above > offset ? above : offset);
}

// Unpacked, formats differ only in their geometry and their kind of dot product: one instance serves several.
constexpr int unpacked_format(int format) {
  switch (static_cast<QuantFormat>(format)) {
    case QuantFormat::kIQ4_NL: return static_cast<int>(QuantFormat::kQ8_0);
    case QuantFormat::kQ4_0: return static_cast<int>(QuantFormat::kQ5_0);
    case QuantFormat::kQ4_1: return static_cast<int>(QuantFormat::kQ5_1);
    case QuantFormat::kQ3_K: return static_cast<int>(QuantFormat::kQ6_K);
    default: return format;
  }
}

// Asks for kBytes ahead in the packed stream.
template <int kBytes>
FORETOKEN_SIMD void prefetch_ahead(const uint8_t* at) {
  unroll<0, kBytes / 64>([&](auto i) FORETOKEN_INLINE_LAMBDA {
    const uint8_t* line = at + 64 * decltype(i)::value;
    prefetch(line + kPrefetchBytes);
    prefetch_near(line + kNearPrefetchBytes);
  });
}

// Tiles that share the weights share the asking, at an even pace: memory answers only so many requests at a time. A tile's
// lines of a block to come are [first, first + count); it asks for them in kParts portions.
struct Ahead {
  int64_t first, count;
};
FORETOKEN_SIMD Ahead ahead_of(int64_t block_bytes, int64_t tile, int64_t tiles) {
  const int64_t lines = block_bytes / 64, first = lines * tile / tiles;
  return {first, lines * (tile + 1) / tiles - first};
}
template <int kParts>
FORETOKEN_SIMD void prefetch_portion(const uint8_t* block, Ahead ahead, int part) {
  const int64_t end = ahead.first + ahead.count * (part + 1) / kParts;
  for (int64_t i = ahead.first + ahead.count * part / kParts; i < end; ++i) prefetch(block + 64 * i + kPrefetchBytes);
}

// ---- Operands: the unsigned weights of quad kQuad of a sub-block for outputs 16 * kHalf and on.

template <int kFormat, int kQuad, int kHalf>
FORETOKEN_SIMD Bytes operand(const uint8_t* sub) {
  using L = Packed<kFormat>;
  if constexpr (L::kByte) {
    return byte_operand(load_bytes(sub + 64 * (2 * kQuad + kHalf)));
  } else {
    const uint8_t* two_bits = sub + L::kTwoBitAt;
    const uint8_t* one_bits = sub + L::kOneBitAt;
    constexpr int kTwoAt = L::kNibble ? 4 : 0;                // where the plane's bits lie in u
    constexpr int kOneAt = kTwoAt + (L::kTwoBit ? 2 : 0);
    Bytes u;
    if constexpr (L::kTwoBit)
      u = shift_and<4 * (kQuad % 2) + 2 * kHalf - kTwoAt>(load_bytes(two_bits + 64 * (kQuad / 2)),
                                                          set_bytes(3 << kTwoAt));
    if constexpr (L::kOneBit) {
      const Bytes line = load_bytes(one_bits + 64 * (kQuad / 4));
      constexpr int kShift = 2 * (kQuad % 4) + kHalf - kOneAt;
      if constexpr (L::kTwoBit) u = shift_and_or<kShift>(line, set_bytes(1 << kOneAt), u);
      else u = shift_and<kShift>(line, set_bytes(1 << kOneAt));
    }
    if constexpr (L::kNibble) {
      const Bytes line = load_bytes(sub + 64 * kQuad);
      if constexpr (L::kTwoBit || L::kOneBit) u = shift_and_or<4 * kHalf>(line, set_bytes(15), u);
      else u = shift_and<4 * kHalf>(line, set_bytes(15));
    }
    if constexpr (L::kTable) u = byte_operand(lookup(kIq4Bytes, u));
    return u;
  }
}

// ---- The exact integer dots of one sub-block: lo[r] for outputs 0..15, hi[r] for outputs 16..31 of the group.
// Row r's activations are at x + r * block, its start at starts[r * subs]. `unpacked`: where kShared leaves the bytes.

template <int kFormat, int kRows, Source kSource>
FORETOKEN_SIMD void sub_block_dots(const uint8_t* planes, const int8_t* x, const int32_t* starts, uint8_t* unpacked,
                                   I32x16 (&lo)[kRows], I32x16 (&hi)[kRows]) {
  using L = Packed<kFormat>;
  constexpr bool kZeroStart = L::kZeroStart;
  I32x16 start[kRows];
  FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) start[r] = kZeroStart ? zero_i32() : set_i32(starts[r * L::kSubs]);

  if constexpr (kWholeNibbles<kFormat, kRows, kSource>) {
    // A byte is lo + 16 * hi: one sum over whole bytes, one over the high nibbles in place, and the difference is lo.
    Dot<255> both[kRows], high[kRows];
    FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) {
      const I32x16 high_start = shift_left<4>(start[r]);
      high[r] = Dot<255>::from(kZeroStart ? start[r] : high_start);
      both[r] = Dot<255>::from(kZeroStart ? start[r] : add(high_start, start[r]));
    }
    unroll<0, L::kQuads>([&](auto i) FORETOKEN_INLINE_LAMBDA {
      constexpr int kQuad = decltype(i)::value;
      const Bytes line = load_bytes(planes + 64 * kQuad);
      const Bytes high_nibbles = and_(line, set_bytes(0xF0));
      FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) {
        const Bytes a = set_quad(x + r * L::kBlock + 4 * kQuad);
        both[r].step(kQuad, line, a);
        high[r].step(kQuad, high_nibbles, a);
      }
    });
    FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) {
      const I32x16 high_sum = high[r].finish();
      lo[r] = sub(both[r].finish(), high_sum);
      hi[r] = shift_right_signed<4>(high_sum);
    }
  } else {
    Chain<kFormat> low[kRows], high[kRows];
    FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) {
      low[r] = Chain<kFormat>::from(start[r]);
      high[r] = Chain<kFormat>::from(start[r]);
    }
    constexpr int kPasses = kHalvesApart ? 2 : 1;
    unroll<0, kPasses>([&](auto pass) FORETOKEN_INLINE_LAMBDA {
      constexpr bool kLow = kPasses == 1 || decltype(pass)::value == 0, kHigh = kPasses == 1 || decltype(pass)::value == 1;
      unroll<0, L::kQuads>([&](auto i) FORETOKEN_INLINE_LAMBDA {
        constexpr int kQuad = decltype(i)::value;
        Bytes w_lo, w_hi;
        if constexpr (kSource == Source::kUnpacked) {
          if constexpr (kLow) w_lo = load_bytes(planes + 128 * kQuad);
          if constexpr (kHigh) w_hi = load_bytes(planes + 128 * kQuad + 64);
        } else {
          if constexpr (kLow) w_lo = operand<kFormat, kQuad, 0>(planes);
          if constexpr (kHigh) w_hi = operand<kFormat, kQuad, 1>(planes);
        }
        if constexpr (kSource == Source::kShared && !L::kByte) {
          if constexpr (kLow) store_bytes(unpacked + 128 * kQuad, w_lo);
          if constexpr (kHigh) store_bytes(unpacked + 128 * kQuad + 64, w_hi);
        }
        FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) {
          const Bytes a = set_quad(x + r * L::kBlock + 4 * kQuad);
          if constexpr (kLow) low[r].step(kQuad, w_lo, a);
          if constexpr (kHigh) high[r].step(kQuad, w_hi, a);
        }
      });
    });
    FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) {
      lo[r] = low[r].finish();
      hi[r] = high[r].finish();
    }
  }
}

// ---- Scratch of one thread: a unit of unpacked weights, and the sums of a row block.

struct Unpacked {
  uint8_t planes[kUnitColumns / 4][2][64];  // [quad][half]
  // Of formats with scales, as the tiles use them: words or floats.
  int32_t scales[16][2][16];                // [sub-block][half][output]
  int32_t minimums[2][8][16];               // [half][pair of sub-blocks][output]
};
struct Scratch {
  alignas(64) Unpacked unit;
  alignas(64) float sums[kMaxRowBlock][32], up[kMaxRowBlock][32];
};
static_assert(sizeof(Scratch) <= kLinearScratchBytes);

template <int kFormat, Source kSource>
FORETOKEN_SIMD I32x16 scale_of(const uint8_t* block, Unpacked* unit, int sub, int half) {
  if constexpr (kSource == Source::kUnpacked) return load_i32(unit->scales[sub][half]);
  using L = Packed<kFormat>;
  I32x16 scale = load_s8(reinterpret_cast<const int8_t*>(block) + L::kScalesAt + 32 * sub + 16 * half);
  scale = kIntegerScales<kFormat> ? bits_of(low_words(scale)) : bits_i32(to_f32(scale));
  if constexpr (kSource == Source::kShared) store(unit->scales[sub][half], scale);
  return scale;
}

template <int kFormat, Source kSource>
FORETOKEN_SIMD Words minimums_of(const uint8_t* block, Unpacked* unit, int half, int pair) {
  if constexpr (kSource == Source::kUnpacked) return as_words(load_i32(unit->minimums[half][pair]));
  using L = Packed<kFormat>;
  const Words words = load_u8_words(block + L::kMinimumsAt + 32 * (half * L::kSubs / 2 + pair));
  if constexpr (kSource == Source::kShared) store(unit->minimums[half][pair], bits_of(words));
  return words;
}

// ---- Adds blocks [begin, end) of one group to the sums of kRows rows from `row` on. sums[r][32]. With kUnpacked, kFormat is
// unpacked_format(...) and `block_bytes` that of the packed format, whose headers are still read; `unit` begins at `begin`.

template <int kFormat, int kRows, Source kSource>
void add_blocks(const uint8_t* group, int64_t block_bytes, Unpacked* unit, int64_t begin, int64_t end,
                const Activations& acts, int64_t row, Ahead ahead, float (*sums)[32]) {
  using L = Packed<kFormat>;
  constexpr bool kUnpacked = kSource == Source::kUnpacked;
  F32x16 acc[2][kRows];
  FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) {
    acc[0][r] = begin == 0 ? zero_f32() : load_f32(sums[r]);
    acc[1][r] = begin == 0 ? zero_f32() : load_f32(sums[r] + 16);
  }
  for (int64_t b = begin; b < end; ++b) {
    const uint8_t* block = group + b * (kUnpacked ? block_bytes : L::kBlockBytes);
    uint8_t* unpacked = kSource == Source::kPacked ? nullptr : unit->planes[0][0] + (b - begin) * (L::kBlock / 4) * 128;
    const uint8_t* planes = kUnpacked ? unpacked : block + L::kPlanesAt;
    constexpr int kSubBytes = kUnpacked ? 128 * L::kQuads : L::kSubBytes;
    const int64_t at = b * acts.rows + row;
    const int8_t* x = acts.values + at * L::kBlock;
    const int32_t* starts = acts.starts + at * L::kSubs;
    const float* x_scales = acts.scales + at;
    const auto* d_bits = reinterpret_cast<const uint16_t*>(block);
    const auto* dmin_bits = reinterpret_cast<const uint16_t*>(block + L::kDminAt);
    if constexpr (kSource == Source::kPacked && !L::kHasScales) prefetch_ahead<L::kBlockBytes>(block);
    if constexpr (kSource != Source::kPacked && !L::kHasScales) prefetch_portion<1>(block, ahead, 0);

    F32x16 t[2][kRows];  // the block's scaled dot products
    const auto sub_block = [&](int s, I32x16 (&lo)[kRows], I32x16 (&hi)[kRows]) FORETOKEN_INLINE_LAMBDA {
      const uint8_t* sub = planes + s * kSubBytes;
      if constexpr (kSource == Source::kPacked && L::kHasScales) prefetch_ahead<kSubBytes>(sub);
      if constexpr (kSource != Source::kPacked && L::kHasScales)
        prefetch_portion<L::kSubs>(block, ahead, s);
      // The activations of the next tile follow these.
      if constexpr (kSource != Source::kPacked)
        FORETOKEN_UNROLL for (int k = 0; k < kRows * L::kSub / 64; ++k) prefetch_near(x + kRows * (L::kBlock + s * L::kSub) + 64 * k);
      sub_block_dots<kFormat, kRows, kSource>(sub, x + s * L::kSub, starts + s, unpacked + s * 128 * L::kQuads, lo, hi);
    };
    if constexpr (!L::kHasScales) {
      I32x16 dots[2][kRows];
      sub_block(0, dots[0], dots[1]);
      FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) {
        t[0][r] = to_f32(dots[0][r]);
        t[1][r] = to_f32(dots[1][r]);
      }
    } else if constexpr (kIntegerScales<kFormat>) {
      constexpr int kNarrow = narrow_magnitude<kFormat>();
      bool wide = false;
      if constexpr (kNarrow < 127 * L::kSub)
        FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) wide |= acts.magnitudes[at + r] > kNarrow;
      I32x16 sum[2][kRows];
      FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) sum[0][r] = sum[1][r] = zero_i32();
      for (int s = 0; s < L::kSubs; ++s) {
        I32x16 dots[2][kRows];
        sub_block(s, dots[0], dots[1]);
        FORETOKEN_UNROLL for (int h = 0; h < 2; ++h) {
          const I32x16 scale = scale_of<kFormat, kSource>(block, unit, s, h);
          if (wide) {
            const I32x16 factor = signed_low_words(scale);
            FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) sum[h][r] = add(sum[h][r], mul(factor, dots[h][r]));
          } else {
            FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r)
              sum[h][r] = dot_pairs(sum[h][r], as_words(scale), as_words(dots[h][r]));
          }
        }
      }
      FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) {
        t[0][r] = to_f32(sum[0][r]);
        t[1][r] = to_f32(sum[1][r]);
      }
    } else {
      FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) t[0][r] = t[1][r] = zero_f32();
      for (int s = 0; s < L::kSubs; ++s) {
        I32x16 dots[2][kRows];
        sub_block(s, dots[0], dots[1]);
        FORETOKEN_UNROLL for (int h = 0; h < 2; ++h) {
          const F32x16 scale = bits_f32(scale_of<kFormat, kSource>(block, unit, s, h));
          FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) t[h][r] = fma(scale, to_f32(dots[h][r]), t[h][r]);
        }
      }
    }

    FORETOKEN_UNROLL for (int h = 0; h < 2; ++h) {
      const F32x16 d = load_f16(d_bits + 16 * h);
      if constexpr (L::kHasMin) {
        const F32x16 dmin = load_f16(dmin_bits + 16 * h);
        F32x16 min_sum[kRows];
        if constexpr (L::kHasScales) {
          constexpr int kPairs = L::kSubs / 2;
          Words minimums[kPairs];
          FORETOKEN_UNROLL for (int k = 0; k < kPairs; ++k)
            minimums[k] = minimums_of<kFormat, kSource>(block, unit, h, k);
          FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) {
            const int16_t* x_sums = acts.sums + (at + r) * L::kSubs;
            I32x16 sum = zero_i32();
            FORETOKEN_UNROLL for (int k = 0; k < kPairs; ++k) sum = dot_pairs(sum, minimums[k], set_pair(x_sums + 2 * k));
            min_sum[r] = to_f32(sum);
          }
        } else {
          FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) min_sum[r] = set_f32(static_cast<float>(acts.sums[at + r]));
        }
        FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r)
          acc[h][r] = fma(set_f32(x_scales[r]), fnma(dmin, min_sum[r], mul(d, t[h][r])), acc[h][r]);
      } else {
        FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) acc[h][r] = fma(mul(d, set_f32(x_scales[r])), t[h][r], acc[h][r]);
      }
    }
  }
  FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) {
    store(sums[r], acc[0][r]);
    store(sums[r] + 16, acc[1][r]);
  }
}

// Any number of rows in tiles of kRows, kRows / 2, ...: few instances. The first is tile `tile` of `tiles`.
template <int kFormat, int kRows, Source kSource>
FORETOKEN_SIMD void add_tiles(const uint8_t* group, Unpacked& unit, int64_t begin, int64_t end, const Activations& acts, int64_t row,
                              int64_t rows, int64_t tile, int64_t tiles, float (*sums)[32]) {
  constexpr int64_t kBytes = Packed<kFormat>::kBlockBytes;
  constexpr int kTileFormat = kSource == Source::kUnpacked ? unpacked_format(kFormat) : kFormat;
  for (; rows >= kRows; row += kRows, rows -= kRows, sums += kRows, ++tile)
    add_blocks<kTileFormat, kRows, kSource>(group, kBytes, &unit, begin, end, acts, row,
                                            tile < tiles ? ahead_of(kBytes, tile, tiles) : Ahead{}, sums);
  if constexpr (kRows > 1) {
    if (rows > 0) add_tiles<kFormat, kRows / 2, kSource>(group, unit, begin, end, acts, row, rows, tile, tiles, sums);
  }
}

// 1 to kMost rows as one tile.
template <int kFormat, int kMost>
FORETOKEN_SIMD void add_packed(const uint8_t* group, int64_t begin, int64_t end, const Activations& acts, int64_t row,
                               int64_t rows, float (*sums)[32]) {
  if (rows == kMost) {
    add_blocks<kFormat, kMost, Source::kPacked>(group, 0, nullptr, begin, end, acts, row, {}, sums);
  } else if constexpr (kMost > 1) {
    add_packed<kFormat, kMost - 1>(group, begin, end, acts, row, rows, sums);
  }
}

// Sums of group `group` to the task's output; of gated tasks silu(sums) * up.
template <bool kGated>
FORETOKEN_SIMD void store_sums(const LinearTask& task, int64_t group, int64_t row, int64_t rows, const float (*sums)[32],
                               const float (*up)[32]) {
  const int64_t first = group * kGroupOutputs;
  const int64_t left = task.part.outputs - first;
  const auto value = [&](int64_t r, int half) FORETOKEN_INLINE_LAMBDA {
    const F32x16 sum = load_f32(sums[r] + 16 * half);
    if constexpr (kGated) return mul(silu(sum), load_f32(up[r] + 16 * half));
    else return sum;
  };
  for (int64_t r = 0; r < rows; ++r) {
    float* out = task.out.data + (row + r) * task.out.stride + first;
    if (left >= kGroupOutputs) {
      store(out, value(r, 0));
      store(out + 16, value(r, 1));
    } else {
      store_first(out, value(r, 0), static_cast<int>(left < 16 ? left : 16));
      if (left > 16) store_first(out + 16, value(r, 1), static_cast<int>(left - 16));
    }
  }
}

// Asks for the output's lines, which a product of many rows has pushed out of the near caches.
FORETOKEN_SIMD void prefetch_outputs(const LinearTask& task, int64_t group, int64_t row, int64_t end) {
  for (; row < end; ++row) {
    const float* out = task.out.data + row * task.out.stride + group * kGroupOutputs;
    __builtin_prefetch(out, 1);
    __builtin_prefetch(out + 16, 1);
  }
}

// The sums of one group of `part` for rows [row, row + rows), at most kMaxRowBlock. The task says where they will go.
template <int kFormat>
void sum_group(const LinearTask& task, const PackedPart& part, const Activations& acts, int64_t g, int64_t row, int64_t rows, Unpacked& unit,
               float (*sums)[32]) {
  using L = Packed<kFormat>;
  constexpr int64_t kUnitBlocks = kUnitColumns / L::kBlock;
  const uint8_t* group = reinterpret_cast<const uint8_t*>(part.data) + static_cast<size_t>(g) * part.group_bytes;
  if (rows <= kTileRows) return add_packed<kFormat, kTileRows>(group, 0, acts.blocks, acts, row, rows, sums);
  for (int64_t b = 0; b < acts.blocks; b += kUnitBlocks) {
    const int64_t end = b + kUnitBlocks < acts.blocks ? b + kUnitBlocks : acts.blocks;
    prefetch_outputs(task, g, row + rows * b / acts.blocks, row + rows * end / acts.blocks);
    const int64_t full_tiles = rows / kTileRows;
    if constexpr (L::kByte) {
      add_tiles<kFormat, kTileRows, Source::kShared>(group, unit, b, end, acts, row, rows, 0, full_tiles, sums);
    } else {
      add_blocks<kFormat, kTileRows, Source::kShared>(group, L::kBlockBytes, &unit, b, end, acts, row, ahead_of(L::kBlockBytes, 0, full_tiles),
                                                      sums);
      add_tiles<kFormat, kTileRows, Source::kUnpacked>(group, unit, b, end, acts, row + kTileRows, rows - kTileRows, 1, full_tiles,
                                                       sums + kTileRows);
    }
  }
}

// Calls body(row, rows) for blocks of the task's rows whose activations stay in the second-level cache.
template <class Body>
FORETOKEN_SIMD void for_row_blocks(const LinearTask& task, const Body& body) {
  int64_t row_block = kRowBlockBytes / task.part.cols / kTileRows * kTileRows;
  row_block = row_block < 4 * kTileRows ? 4 * kTileRows : row_block > kMaxRowBlock ? kMaxRowBlock : row_block;
  const int64_t end = task.first_row + task.rows;
  for (int64_t row = task.first_row; row < end; row += row_block) body(row, end - row < row_block ? end - row : row_block);
}

template <int kFormat>
void multiply_blocks(const LinearTask& task, int64_t group_begin, int64_t group_end, Scratch& scratch) {
  for_row_blocks(task, [&](int64_t row, int64_t rows) FORETOKEN_INLINE_LAMBDA {
    for (int64_t g = group_begin; g < group_end; ++g) {
      sum_group<kFormat>(task, task.part, *task.activations, g, row, rows, scratch.unit, scratch.sums);
      store_sums<false>(task, g, row, rows, scratch.sums, nullptr);
    }
  });
}

// ---- Float formats: 16 lanes along K per output, folded sixteen sums at a time.

template <int kFormat>
inline constexpr int kBlocksPerLine = kFormat == static_cast<int>(QuantFormat::kF32) ? 1 : 2;

// Elements 16 * kBlock and on of one line.
template <int kFormat, int kBlock>
FORETOKEN_SIMD F32x16 widen_line(const std::byte* line) {
  if constexpr (kFormat == static_cast<int>(QuantFormat::kF32)) {
    return load_f32(reinterpret_cast<const float*>(line));
  } else if constexpr (kFormat == static_cast<int>(QuantFormat::kF16)) {
    return load_f16(reinterpret_cast<const uint16_t*>(line) + 16 * kBlock);
  } else {
    const I32x16 words = load_i32(reinterpret_cast<const int32_t*>(line));
    return bits_f32(kBlock == 0 ? shift_left<16>(words) : and_(words, set_i32(static_cast<int32_t>(0xFFFF0000u))));
  }
}

// 16 / kRows outputs of one group for kRows rows: all sixteen sums live in registers.
template <int kFormat, int kRows>
FORETOKEN_SIMD void float_tile(const std::byte* lines, const Rows& x, int64_t row, int64_t cols, float* sums) {
  constexpr int kOutputs = 16 / kRows;
  constexpr int kBlocks = kBlocksPerLine<kFormat>;
  F32x16 acc[16];  // [row][output]
  FORETOKEN_UNROLL for (int i = 0; i < 16; ++i) acc[i] = zero_f32();
  const float* p = x.data + row * x.stride;
  int64_t k = 0;
  for (; k + 16 * kBlocks <= cols; k += 16 * kBlocks, lines += 64 * kFloatGroupOutputs) {
    unroll<0, kBlocks>([&](auto i) FORETOKEN_INLINE_LAMBDA {
      constexpr int kBlock = decltype(i)::value;
      F32x16 a[kRows];
      FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) a[r] = load_f32(p + r * x.stride + k + 16 * kBlock);
      FORETOKEN_UNROLL for (int o = 0; o < kOutputs; ++o) {
        if (kBlock == 0) prefetch(lines + 64 * o + kPrefetchBytes);
        const F32x16 w = widen_line<kFormat, kBlock>(lines + 64 * o);
        FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) acc[r * kOutputs + o] = fma(w, a[r], acc[r * kOutputs + o]);
      }
    });
  }
  unroll<0, kBlocks>([&](auto i) FORETOKEN_INLINE_LAMBDA {
    constexpr int kBlock = decltype(i)::value;
    const int64_t left = cols - k - 16 * kBlock;
    if (left <= 0) return;
    F32x16 a[kRows];
    FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r)
      a[r] = load_first_f32(p + r * x.stride + k + 16 * kBlock, static_cast<int>(left < 16 ? left : 16));
    FORETOKEN_UNROLL for (int o = 0; o < kOutputs; ++o) {
      const F32x16 w = widen_line<kFormat, kBlock>(lines + 64 * o);
      FORETOKEN_UNROLL for (int r = 0; r < kRows; ++r) acc[r * kOutputs + o] = fma(w, a[r], acc[r * kOutputs + o]);
    }
  });
  store(sums, fold_sums(acc));
}

template <int kFormat, int kRows>
void float_rows(const LinearTask& task, const std::byte* group, int64_t g, int64_t row) {
  constexpr int kOutputs = 16 / kRows;
  const int64_t first = g * kFloatGroupOutputs;
  for (int o = 0; o < kFloatGroupOutputs; o += kOutputs) {
    const int64_t left = task.part.outputs - first - o;
    if (left <= 0) return;
    alignas(64) float sums[16];
    float_tile<kFormat, kRows>(group + 64 * o, task.x, row, task.part.cols, sums);
    const int64_t valid = left < kOutputs ? left : kOutputs;
    for (int r = 0; r < kRows; ++r)
      for (int64_t i = 0; i < valid; ++i)
        task.out.data[(row + r) * task.out.stride + first + o + i] = sums[r * kOutputs + i];
  }
}

template <int kFormat>
void multiply_floats(const LinearTask& task, int64_t group_begin, int64_t group_end, Scratch&) {
  const int64_t row_bytes = task.part.cols * static_cast<int64_t>(sizeof(float));
  int64_t row_block = kRowBlockBytes / row_bytes / 4 * 4;
  row_block = row_block < 8 ? 8 : row_block > kMaxRowBlock ? kMaxRowBlock : row_block;
  const int64_t end_row = task.first_row + task.rows;
  for (int64_t begin = task.first_row; begin < end_row; begin += row_block) {
    const int64_t end = begin + row_block < end_row ? begin + row_block : end_row;
    for (int64_t g = group_begin; g < group_end; ++g) {
      const std::byte* group = task.part.data + static_cast<size_t>(g) * task.part.group_bytes;
      int64_t row = begin;
      for (; row + 4 <= end; row += 4) float_rows<kFormat, 4>(task, group, g, row);
      for (; row + 2 <= end; row += 2) float_rows<kFormat, 2>(task, group, g, row);
      for (; row < end; ++row) float_rows<kFormat, 1>(task, group, g, row);
    }
  }
}

constexpr bool is_float(int format) { return format <= static_cast<int>(QuantFormat::kBF16); }

template <int kFormat>
FORETOKEN_SIMD void multiply_format(const LinearTask& task, int64_t group_begin, int64_t group_end, Scratch& scratch) {
  if constexpr (is_float(kFormat)) multiply_floats<kFormat>(task, group_begin, group_end, scratch);
  else multiply_blocks<kFormat>(task, group_begin, group_end, scratch);
}

using SumGroup = void (*)(const LinearTask&, const PackedPart&, const Activations&, int64_t, int64_t, int64_t, Unpacked&, float (*)[32]);
SumGroup sum_group_of(int format) {
  SumGroup found = nullptr;
  unroll<0, kQuantFormatCount>([&](auto candidate) FORETOKEN_INLINE_LAMBDA {
    constexpr int kFormat = decltype(candidate)::value;
    if constexpr (!is_float(kFormat))
      if (format == kFormat) found = sum_group<kFormat>;
  });
  return found;
}

// The gate's group and up's, then their product.
void multiply_gated(const LinearTask& task, int64_t group_begin, int64_t group_end, Scratch& scratch) {
  const SumGroup gate = sum_group_of(task.part.format), up = sum_group_of(task.up.format);
  for_row_blocks(task, [&](int64_t row, int64_t rows) FORETOKEN_INLINE_LAMBDA {
    for (int64_t g = group_begin; g < group_end; ++g) {
      gate(task, task.part, *task.activations, g, row, rows, scratch.unit, scratch.sums);
      up(task, task.up, *task.up_activations, g, row, rows, scratch.unit, scratch.up);
      store_sums<true>(task, g, row, rows, scratch.sums, scratch.up);
    }
  });
}

void multiply(const LinearTask& task, int64_t group_begin, int64_t group_end, std::byte* scratch) {
  if (task.up.data) return multiply_gated(task, group_begin, group_end, *reinterpret_cast<Scratch*>(scratch));
  unroll<0, kQuantFormatCount>([&](auto format) FORETOKEN_INLINE_LAMBDA {
    if (task.part.format == decltype(format)::value)
      multiply_format<decltype(format)::value>(task, group_begin, group_end, *reinterpret_cast<Scratch*>(scratch));
  });
}

// ---- Activations: canonical::quantize_activation, sixteen elements at a time.

// magnitudes[i]: of the sub-blocks of block i, the greatest sum of absolute values.
FORETOKEN_SIMD void measure_magnitudes(const Activations& acts, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    int32_t most = 0;
    for (int k = 0; k < 256; k += 64) {
      Dot<127> dot = Dot<127>::from(zero_i32());
      dot.step(0, absolute(load_bytes(acts.values + i * 256 + k)), set_bytes(1));
      int32_t lanes[16];
      store(lanes, fold_fours(dot.finish()));  // sums of 16 values in lanes 0, 4, 8 and 12
      for (int l = 0; l < 16; l += 4) {
        const int32_t sum = acts.sub == 16 ? lanes[l] : lanes[l / 8 * 8] + lanes[l / 8 * 8 + 4];
        most = sum > most ? sum : most;
      }
    }
    acts.magnitudes[i] = static_cast<uint16_t>(most);
  }
}

void quantize(const Rows& x, int64_t begin, int64_t end, const Activations& acts) {
  const int block = acts.block;
  for (int64_t i = begin; i < end; ++i) {
    const float* from = x.data + i % acts.rows * x.stride + i / acts.rows * block;
    int8_t* to = acts.values + i * block;
    I32x16 largest_bits = zero_i32();
    for (int k = 0; k < block; k += 16) largest_bits = max(largest_bits, bits_i32(absolute(load_f32(from + k))));
    const int32_t largest = fold_max(largest_bits);
    float amax;
    __builtin_memcpy(&amax, &largest, 4);
    const bool finite = largest < 0x7F800000;
    if (!finite || amax < 1e-30f) {
      acts.scales[i] = finite ? 0.0f : __builtin_nanf("");
      for (int k = 0; k < block; k += 16) store_s8(to + k, zero_i32());
    } else {
      acts.scales[i] = amax / 127.0f;
      const F32x16 inverse = set_f32(127.0f / amax);
      for (int k = 0; k < block; k += 16) store_s8(to + k, to_i32(mul(load_f32(from + k), inverse)));
    }
  }
  // Sums of sub-blocks of 16 or 32, 64 values at a time; what lies behind the last block is read and not used.
  const int offset = acts.sums_bytes ? -kByteBias : acts.offset;
  const int per_line = 64 / acts.sub;
  const int64_t first = begin * (block / acts.sub), last = end * (block / acts.sub);
  for (int64_t s = first; s < last; s += per_line) {
    Dot<1> dot = Dot<1>::from(zero_i32());
    dot.step(0, set_bytes(1), load_bytes(acts.values + s * acts.sub));
    int32_t lanes[16];
    store(lanes, fold_fours(dot.finish()));
    if (per_line == 2) {
      lanes[0] += lanes[4];
      lanes[4] = lanes[8] + lanes[12];
    }
    const int count = last - s < per_line ? static_cast<int>(last - s) : per_line;
    for (int i = 0; i < count; ++i) {
      acts.sums[s + i] = static_cast<int16_t>(lanes[4 * i]);
      acts.starts[s + i] = -offset * lanes[4 * i];
    }
  }
  if (block == 256) measure_magnitudes(acts, begin, end);
}

void silu_product(const float* gate, const float* up, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(out + i, mul(silu(load_f32(gate + i)), load_f32(up + i)));
  const int rest = static_cast<int>(count - i);
  if (rest > 0) store_first(out + i, mul(silu(load_first_f32(gate + i, rest)), load_first_f32(up + i, rest)), rest);
}

constexpr LinearKernels linear_kernels() {
  return {.quantize = quantize, .multiply = multiply, .silu_product = silu_product};
}

}  // namespace
}  // namespace foretoken::cpu::FORETOKEN_ISA
