// What every backend's all_finite keeps: std::isfinite over the values of its views, wherever the one lies that is not,
// and nothing of what lies beside them.
#pragma once

#include <bit>
#include <cmath>
#include <tuple>

#include "support/ops_world.h"

namespace foretoken::test {

// Infinities and NaN: quiet, signalling with the least payload, and all ones.
inline constexpr uint32_t kNotFinite[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000,
                                          0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF};
// The greatest, the least normal, the greatest and the least denormal, zero; each of both signs.
inline constexpr uint32_t kExtremes[] = {0x7F7FFFFF, 0x00800000, 0x007FFFFF, 0x00000001, 0x00000000,
                                         0xFF7FFFFF, 0x80800000, 0x807FFFFF, 0x80000001, 0x80000000};

inline bool finite_one_by_one(View view) {
  for (int64_t r = 0; r < view.rows; ++r)
    for (int64_t c = 0; c < view.cols; ++c)
      if (!std::isfinite(view.f32(r)[c])) return false;
  return true;
}

inline void put_bits(float& place, uint32_t bits) { std::memcpy(&place, &bits, sizeof bits); }

// Random values with every extreme among them; NaN in what pads the rows.
inline Matrix2 finite_values(Random& random, int64_t rows, int64_t cols, int64_t pad) {
  Matrix2 m(rows, cols, pad);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      if (random.below(3) == 0) put_bits(m.at(r, c), kExtremes[random.below(static_cast<int>(std::size(kExtremes)))]);
      else m.at(r, c) = random.value();
  return m;
}

inline void expect_all_finite(Backend& backend, const std::string& name) {
  Random random(11);
  int asked = 0, found = 0;
  const auto answer = [&](std::initializer_list<View> views) {
    return backend.all_finite(std::span(views.begin(), views.size()));
  };
  // Of one value, around vectors and blocks, with every alignment of a row's first value (odd strides), and of more
  // rows than a grid has.
  for (const auto& [rows, cols, pad] :
       {std::tuple(1, 1, 0), std::tuple(1, 2, 0), std::tuple(1, 3, 0), std::tuple(1, 4, 0), std::tuple(1, 5, 0),
        std::tuple(1, 4095, 0), std::tuple(1, 4096, 0), std::tuple(1, 3 * 4096 + 7, 0), std::tuple(1, 100003, 1),
        std::tuple(7, 1, 5), std::tuple(9, 2, 1), std::tuple(8, 3, 2), std::tuple(17, 33, 5), std::tuple(5, 1023, 2),
        std::tuple(3, 9000, 3), std::tuple(70001, 1, 1), std::tuple(2000, 6, 0)}) {
    Matrix2 m = finite_values(random, rows, cols, pad);
    ASSERT_TRUE(finite_one_by_one(m.view()));
    EXPECT_TRUE(answer({m.view()})) << name << ", " << rows << " x " << cols;
    const int64_t count = int64_t{rows} * cols;
    for (int64_t i = 0; i < std::min<int64_t>(count, 60); ++i) {
      // All places of few values; else both ends and places between.
      const int64_t at = count <= 60 || i < 8 ? i
                         : i < 16             ? count - 1 - (i - 8)
                                              : static_cast<int64_t>(random.bits() % static_cast<uint64_t>(count));
      float& place = m.at(at / cols, at % cols);
      const float before = place;
      put_bits(place, kNotFinite[static_cast<size_t>(asked++) % std::size(kNotFinite)]);
      ASSERT_FALSE(finite_one_by_one(m.view()));
      EXPECT_FALSE(answer({m.view()})) << name << ", " << rows << " x " << cols << ", value " << at;
      found += !answer({m.view()});
      place = before;
    }
    EXPECT_TRUE(answer({m.view()})) << name << ", " << rows << " x " << cols << ", after what was not";
  }
  EXPECT_EQ(found, asked);
  EXPECT_GT(asked, 400);
  // Several views, some of them empty; whichever holds it.
  std::vector<Matrix2> parts;
  for (const int64_t cols : {5, 300, 4100}) parts.push_back(finite_values(random, 3, cols, 2));
  const View empty = parts[0].view().row_range(1, 1), narrow = parts[1].view().columns(7, 7);
  EXPECT_TRUE(answer({}));
  EXPECT_TRUE(answer({View(), empty, narrow}));
  EXPECT_TRUE(answer({parts[0].view(), empty, parts[1].view(), View(), parts[2].view(), narrow}));
  for (Matrix2& part : parts) {
    const float before = std::exchange(part.at(2, 4), std::numeric_limits<float>::infinity());
    EXPECT_FALSE(answer({parts[0].view(), empty, parts[1].view(), View(), parts[2].view(), narrow})) << name;
    // Views beside it do not see it.
    EXPECT_TRUE(answer({part.view().row_range(0, 2), part.view().columns(0, 4)})) << name;
    part.at(2, 4) = before;
  }
  EXPECT_TRUE(answer({parts[0].view(), parts[1].view(), parts[2].view()})) << name;
}

}  // namespace foretoken::test
