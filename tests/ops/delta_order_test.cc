// The order of the delta rule's sums, by numbers for which every other order has other bits.
#include <gtest/gtest.h>

#include <array>

#include "support/ops_rows.h"

namespace foretoken::test {
namespace {

constexpr float kBig = 1 << 24;  // 1 less than the spacing of fp32 above it
constexpr int kKeys = 16;        // two keys a piece

// Terms of one sum, key by key, and what orders make of them.
struct Terms {
  std::array<float, kKeys> value;
  float in_pieces;
};

// With 16 equal keys of 1024 and no decay, k_i is 1/4 and q_i 1/16, both exactly.
struct OneRow {
  DeltaShape shape{1, 1, kKeys, 1, 2, false};
  DeltaLane lane{shape, 1, 3};
  float out = 0;

  // `terms` are those of u; the value row is `v`.
  void run(const Terms& terms, float v) {
    for (size_t i = 0; i < kKeys; ++i) lane.state[i] = 4 * terms.value[i];
    std::vector<float> conv(2 * kKeys, 1024.0f), beta_alpha{100, 0}, zero{0};
    conv.push_back(v);
    const LaneRows rows{0, 1, 0, 0, {}};
    const DeltaMemory memory = lane.memory();
    const auto row = [](std::vector<float>& x) { return View::of(x.data(), 1, static_cast<int64_t>(x.size())); };
    make_reference_backend()->delta_rule(row(conv), row(beta_alpha), row(zero), row(zero), shape, {{}, {&rows, 1}, {}},
                                         {&memory, 1}, View::of(&out, 1, 1));
  }
};

float in_one_chain(const Terms& terms) {
  float sum = 0;
  for (float term : terms.value) sum += term;
  return sum;
}

// The same pieces, folded 4, 2, 1 apart.
float folded_far(const Terms& terms) {
  std::array<float, 8> piece{};
  for (size_t j = 0; j < 8; ++j) piece[j] = terms.value[2 * j] + terms.value[2 * j + 1];
  for (size_t s = 4; s > 0; s /= 2)
    for (size_t j = 0; j < s; ++j) piece[j] += piece[j + s];
  return piece[0];
}

// Pieces of consecutive keys, then neighbours: in u (the tape's delta is -u for a value of zero) and, the update being
// nothing for a value of u, in o, whose terms are u's by four.
TEST(DeltaOrder, PiecesThenNeighbours) {
  const Terms sums[] = {
      {{kBig, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, kBig + 14},  // a chain loses every one, the first piece its
      {{kBig, 0, 1, 0, 1, 0, -kBig, 0}, 1},                              // (B + 1) + (1 - B); in turn 0
      {{kBig, 0, 1, 0, -kBig, 0, 0, 0, 0, 0, 0, 0, 3, 0}, 3},            // ((B + 1) - B) + 3; far (B - B) + 1 + 3
      {{0, 0, 0, 0, 0, 0, 0, 0, kBig, 0, 1, 0, 1, 0, -kBig, 0}, 1},
  };
  bool chain_differs = false, far_differs = false;
  for (const Terms& terms : sums) {
    OneRow with_zero, with_sum;
    with_zero.run(terms, 0);
    EXPECT_EQ(with_zero.lane.delta[0], -terms.in_pieces);
    with_sum.run(terms, terms.in_pieces);
    EXPECT_EQ(with_sum.lane.delta[0], 0.0f);
    EXPECT_EQ(with_sum.out, terms.in_pieces / 4);
    chain_differs |= in_one_chain(terms) != terms.in_pieces;
    far_differs |= folded_far(terms) != terms.in_pieces;
  }
  EXPECT_TRUE(chain_differs && far_differs);
}

// Pieces are ceil(key_dim / 8) keys, so that the last may have fewer or none.
TEST(DeltaOrder, PiecesOfEveryDimension) {
  for (const auto& [key_dim, keys] : {std::pair(8, 1), {9, 2}, {16, 2}, {24, 3}, {33, 5}, {64, 8}, {128, 16}})
    EXPECT_EQ((DeltaShape{1, 1, key_dim, 1, 2, false}.piece_keys()), keys) << key_dim;
}

}  // namespace
}  // namespace foretoken::test
