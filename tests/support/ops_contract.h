// What every backend's row operators keep, as one test each: the bits of the scalar reference, and a row's bits alone
// and in company. The files of a backend say which backends run them.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>

#include "support/ops_rows.h"

namespace foretoken::test {

inline constexpr int kRowCounts[] = {1, 2, 3, 4, 5, 8, 15, 16, 17, 33};

struct Tested {
  std::string name;
  std::unique_ptr<Backend> backend;
};

inline Backend& reference() {
  static const std::unique_ptr<Backend> backend = make_reference_backend();
  return *backend;
}

// Lanes of a batch: a chain that leaves tape, a prompt chunk, and a tree behind settled rows, dealt from `rows`.
inline std::vector<LanePlan> mixed_lanes(Random& random, int rows, int64_t prefix) {
  if (rows == 1) return {{1, prefix, random.below(2), {}}};
  if (rows < 4) return {random_tree(random, rows, prefix, random.below(2))};
  const int a = 1 + rows / 4, b = 1 + rows / 3;
  std::vector<LanePlan> plans = {{a, prefix, random.below(a + 1), {}}, {b, prefix / 2, b, {}}};
  if (rows - a - b > 0)
    plans.push_back(random_tree(random, rows - a - b, prefix + 1, random.below(3) % (rows - a - b + 1)));
  return plans;
}

inline void expect_gated_norm(const std::vector<Tested>& backends) {
  Random random(2);
  for (int rows : kRowCounts) {
    for (int dim : {6, 16, 40, 128}) {
      const int heads = 3;
      const Matrix2 x = Matrix2::random(random, rows, heads * dim),
                    gate = Matrix2::random(random, rows, heads * dim, 4.0f);
      const Matrix2 w = Matrix2::random(random, 1, dim, 0.3f, 1.0f);
      for (bool use_sigmoid : {false, true}) {
        Matrix2 expected(rows, heads * dim);
        reference().gated_norm(x.view(), gate.view(), w.view(), 1e-6f, use_sigmoid, expected.view());
        ASSERT_TRUE(is_informative(expected.view()));
        for (const Tested& tested : backends) {
          Matrix2 out = x;
          tested.backend->gated_norm(out.view(), gate.view(), w.view(), 1e-6f, use_sigmoid, out.view());
          expect_same_bits(out, expected, "gated_norm on " + tested.name);
          EXPECT_TRUE(out.padding_untouched());
        }
      }
    }
  }
}

inline void expect_rotary_table(const std::vector<Tested>& backends) {
  Random random(3);
  const RotarySpec spec = test_rotary(44);
  std::vector<RowInput> inputs(33);
  for (RowInput& input : inputs)
    for (int32_t& position : input.position) position = random.below(1 << 20);
  Matrix2 expected(33, 44);
  reference().rotary_table(inputs, spec, expected.view());
  for (const Tested& tested : backends) {
    Matrix2 out(33, 44);
    tested.backend->rotary_table(inputs, spec, out.view());
    expect_same_bits(out, expected, "rotary_table on " + tested.name);
  }
}

// Convolution and delta rule: outputs, state, tail and tape of every lane, then of a commit.
inline void expect_delta_net(const std::vector<Tested>& backends) {
  Random random(4);
  const DeltaShape shapes[] = {{2, 4, 8, 6, 4, false},     {2, 4, 16, 80, 4, true},   {1, 3, 24, 16, 2, false},
                               {2, 2, 128, 128, 4, false}, {1, 2, 33, 100, 1, false}, {3, 18, 16, 16, 5, false}};
  for (const DeltaShape& shape : shapes) {
    for (int rows : kRowCounts) {
      for (int variant = 0; variant < 3; ++variant) {
        std::vector<LanePlan> plans;
        if (variant == 0) plans = mixed_lanes(random, rows, 10);
        else if (variant == 1) plans = {random_tree(random, rows, 3, 0)};
        else plans = {{rows, 3, rows, {}}};
        const std::vector<LaneRows> lanes = lane_rows(plans);
        const DeltaWorld world(shape, rows, random.bits());
        const uint64_t seed = random.bits();
        std::vector<DeltaLane> expected;
        for (const LanePlan& plan : plans) expected.emplace_back(shape, plan.rows, seed + expected.size());
        const std::vector<DeltaLane> start = expected;
        const Matrix2 out = world.forward(reference(), lanes, memories(expected));
        ASSERT_TRUE(is_informative(out.view()));
        std::vector<DeltaLane> committed = expected;
        std::vector<std::vector<int>> paths(lanes.size());
        for (size_t l = 0; l < lanes.size(); ++l) {
          path_to(lanes[l], lanes[l].rows - 1, paths[l]);
          reference().commit_delta(shape, committed[l].memory(), lanes[l].settled, paths[l]);
        }
        for (const Tested& tested : backends) {
          std::vector<DeltaLane> actual = start;
          const Matrix2 result = world.forward(*tested.backend, lanes, memories(actual));
          const std::string what =
              "delta, " + std::to_string(rows) + " rows, variant " + std::to_string(variant) + " on " + tested.name;
          expect_same_bits(result, out, what);
          for (size_t l = 0; l < lanes.size(); ++l) {
            expect_same_lane(actual[l], expected[l], what + ", lane " + std::to_string(l));
            tested.backend->commit_delta(shape, actual[l].memory(), lanes[l].settled, paths[l]);
            expect_same_lane(actual[l], committed[l], what + ", committed lane " + std::to_string(l));
          }
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

struct AttentionCase {
  AttentionShape shape;
  std::vector<int64_t> prefixes;
  std::vector<int> rows;
  bool prompt = false;  // one chain
};

// Attention and its inputs: outputs, and every byte of the pages, for every format, from empty prefixes to several
// spans. Where a backend says that it has an order of its own, outputs are within `tolerance` of the reference's, of
// the greatest.
struct OwnOrder {
  std::function<bool(const AttentionShape&, KvFormat)> of;
  double tolerance = 0;
};
inline void expect_attention(const std::vector<Tested>& backends, const OwnOrder& own = {}) {
  Random random(5);
  const std::vector<int> all(std::begin(kRowCounts), std::end(kRowCounts));
  const AttentionCase cases[] = {{{4, 2, 16, 1e-6f}, {0, 1, 30, 32, 63, 511, 513, 1100}, all},
                                 {{5, 1, 24, 1e-6f}, {0, 40, 505}, {1, 3, 8, 17}},
                                 {{3, 3, 64, 1e-5f}, {17, 480}, {1, 5, 33}},
                                 {{40, 1, 20, 1e-6f}, {600}, {1, 2}},
                                 {{6, 1, 256, 1e-6f}, {33}, {1, 8, 16}},
                                 {{7, 1, 48, 1e-6f}, {40}, {3}},
                                 {{6, 2, 128, 1e-6f}, {100}, {1, 4, 16}},
                                 {{8, 2, 256, 1e-6f}, {0, 530}, {1, 8}},
                                 {{6, 1, 256, 1e-6f}, {0, 479}, {37}, true},
                                 {{8, 1, 64, 1e-6f}, {500}, {66}, true},
                                 {{12, 3, 128, 1e-6f}, {30}, {37}, true},
                                 {{7, 1, 96, 1e-6f}, {470}, {60}, true},
                                 {{4, 2, 32, 1e-6f}, {490}, {100}, true}};
  for (const AttentionCase& test : cases) {
    for (KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8}) {
      const KvLayout layout{2, test.shape.kv_heads, test.shape.head_dim, format};
      for (int64_t prefix : test.prefixes) {
        for (int rows : test.rows) {
          const std::vector<LanePlan> plans =
              test.prompt ? std::vector<LanePlan>{{rows, prefix, rows, {}}} : mixed_lanes(random, rows, prefix);
          const std::vector<LaneRows> lanes = lane_rows(plans);
          const AttentionWorld world(test.shape, layout, rows, random.bits());
          std::vector<Pages> start;
          for (const LanePlan& plan : plans) {
            start.emplace_back(layout, plan.prefix + plan.rows + 33);
            fill_prefix(reference(), test.shape, layout, 1, start.back(), plan.prefix, random.bits());
          }
          const std::vector<Pages> expected_pages = start;
          const Matrix2 expected = world.forward(reference(), lanes, tables(expected_pages), 1);
          ASSERT_TRUE(is_informative(expected.view()));
          for (const Tested& tested : backends) {
            const std::vector<Pages> pages = start;
            const Matrix2 out = world.forward(*tested.backend, lanes, tables(pages), 1);
            const std::string what = "attention, dim " + std::to_string(test.shape.head_dim) + ", format " +
                                     std::to_string(int(format)) + ", prefix " + std::to_string(prefix) + ", " +
                                     std::to_string(rows) + " rows on " + tested.name;
            if (own.of && own.of(test.shape, format)) {
              float greatest = 0;
              for (int64_t r = 0; r < expected.rows(); ++r)
                for (int64_t c = 0; c < expected.cols(); ++c)
                  greatest = std::max(greatest, std::fabs(expected.at(r, c)));
              EXPECT_LT(max_abs_difference(out.view(), expected.view()), own.tolerance * greatest) << what;
            } else {
              expect_same_bits(out, expected, what);
            }
            for (size_t l = 0; l < pages.size(); ++l) EXPECT_TRUE(pages[l].same_bytes(expected_pages[l])) << what;
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

// A row's bits are those of its own path alone, on each backend by itself; commit moves what it should and nothing
// else.
inline void expect_trees_equal_token_by_token(const std::vector<Tested>& backends) {
  Random random(6);
  for (const Tested& tested : backends) {
    SCOPED_TRACE(tested.name);
    for (int settled : {0, 1, 2}) {
      expect_delta_paths(*tested.backend, {2, 4, 24, 40, 4, false}, random_tree(random, 8, 3, settled), random.bits());
      for (KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8})
        expect_attention_paths(*tested.backend, {4, 2, 32, 1e-6f}, format, random_tree(random, 8, 507, settled),
                               random.bits());
      for (const auto& [shape, prefix] :
           {std::pair(AttentionShape{8, 2, 64, 1e-6f}, 251), std::pair(AttentionShape{6, 1, 256, 1e-6f}, 30),
            std::pair(AttentionShape{20, 1, 128, 1e-6f}, 60), std::pair(AttentionShape{8, 2, 64, 1e-6f}, 2043)})
        expect_attention_paths(*tested.backend, shape, KvFormat::kBF16, random_tree(random, 8, prefix, settled),
                               random.bits());
    }
  }
}

// Rows of a chain in one pass, in chunks, and one by one: the same bits and the same state, for every row count.
inline void expect_rows_equal_rows_alone(const std::vector<Tested>& backends) {
  Random random(7);
  const DeltaShape shape{2, 4, 16, 32, 4, false};
  for (const AttentionShape& attention :
       {AttentionShape{4, 2, 32, 1e-6f}, AttentionShape{8, 2, 64, 1e-6f}, AttentionShape{6, 1, 256, 1e-6f}})
    for (const Tested& tested : backends) {
      const KvLayout layout{1, attention.kv_heads, attention.head_dim, KvFormat::kBF16};
      const DeltaWorld delta_world(shape, 33, 70);
      const AttentionWorld attention_world(attention, layout, 33, 71);
      Backend& backend = *tested.backend;
      Pages start(layout, 100);
      fill_prefix(backend, attention, layout, 0, start, 40, 72);
      for (int rows : kRowCounts) {
        DeltaLane whole(shape, rows, 73), single(shape, 1, 73);
        const Pages pages = start, single_pages = start;
        const Matrix2 d = delta_world.forward(backend, {LaneRows{0, rows, 40, rows, {}}}, {whole.memory()});
        const Matrix2 a = attention_world.forward(backend, {LaneRows{0, rows, 40, 0, {}}}, {pages.table()});
        for (int i = 0; i < rows; ++i) {
          expect_same_bits(delta_world.forward(backend, {LaneRows{0, 1, 40 + i, 1, {}}}, {single.memory()}, i).row(0),
                           d.row(i), "delta row alone on " + tested.name);
          expect_same_bits(
              attention_world.forward(backend, {LaneRows{0, 1, 40 + i, 0, {}}}, {single_pages.table()}, 0, i).row(0),
              a.row(i), "attention row alone on " + tested.name);
        }
        expect_same_floats(single.state, whole.state, "state on " + tested.name);
        expect_same_floats(single.tail, whole.tail, "tail on " + tested.name);
        EXPECT_TRUE(pages.same_bytes(single_pages));
      }
    }
}

// A lane full of NaN and infinities leaves the bits of the lanes beside it alone, and says so in its own rows.
inline void expect_bad_lane_alone(const std::vector<Tested>& backends) {
  const DeltaShape shape{2, 4, 16, 32, 4, false};
  const int rows = 9;
  const std::vector<LanePlan> plans = {{3, 40, 1, {}}, {3, 40, 1, {}}, {3, 40, 1, {-1, 0, 0}}};
  const std::vector<LaneRows> lanes = lane_rows(plans);
  const std::pair<AttentionShape, KvFormat> cases[] = {{{4, 2, 32, 1e-6f}, KvFormat::kInt8},
                                                       {{4, 2, 64, 1e-6f}, KvFormat::kBF16},
                                                       {{6, 1, 256, 1e-6f}, KvFormat::kBF16}};
  for (const auto& [attention, format] : cases)
    for (const Tested& tested : backends) {
      const KvLayout layout{1, attention.kv_heads, attention.head_dim, format};
      Matrix2 out[2][2];
      for (int bad : {0, 1}) {
        DeltaWorld delta(shape, rows, 80);
        AttentionWorld world(attention, layout, rows, 81);
        if (bad)
          for (int64_t c = 0; c < world.packed.cols(); ++c)
            world.packed.at(4, c) = c % 2 ? kNaN : std::numeric_limits<float>::infinity();
        if (bad)
          for (int64_t c = 0; c < delta.packed.cols(); ++c) delta.packed.at(4, c) = kNaN;
        std::vector<DeltaLane> memory;
        std::vector<Pages> pages;
        for (size_t l = 0; l < plans.size(); ++l) {
          memory.emplace_back(shape, 3, 82 + l);
          pages.emplace_back(layout, 80);
          fill_prefix(*tested.backend, attention, layout, 0, pages.back(), 40, 83 + l);
        }
        out[bad][0] = delta.forward(*tested.backend, lanes, memories(memory));
        out[bad][1] = world.forward(*tested.backend, lanes, tables(pages));
      }
      for (int op : {0, 1}) {
        for (int row = 0; row < rows; ++row) {
          if (row == 4 || row == 5) continue;  // the bad row and the row behind it
          expect_same_bits(out[1][op].row(row), out[0][op].row(row),
                           "row " + std::to_string(row) + " on " + tested.name);
        }
        for (int64_t c = 0; c < out[1][op].cols(); ++c) {
          EXPECT_TRUE(std::isnan(out[1][op].at(4, c)));
          EXPECT_TRUE(std::isnan(out[1][op].at(5, c)));
        }
        EXPECT_TRUE(is_informative(out[0][op].view()));
      }
    }
}

}  // namespace foretoken::test
