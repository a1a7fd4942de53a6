// Every operator but the products, on every instruction set of this machine and with several thread counts, against the
// scalar reference bit for bit: all row counts, trees and chains, K/V formats, page and span boundaries, poisoned
// padding.
#include <algorithm>
#include <cmath>

#include "support/finite_contract.h"
#include "support/ops_contract.h"

namespace foretoken::test {
namespace {

// Every instruction set present, alone and with two threads; and more threads than the tests have heads.
const std::vector<Tested>& backends() {
  static const std::vector<Tested> all = [] {
    std::vector<Tested> list;
    for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
      for (int threads : {1, 2, 5}) {
        if (threads == 5 && isa == Isa::kScalar) continue;
        Result<std::unique_ptr<Backend>> backend = make_cpu_backend({isa, threads});
        if (!backend) continue;
        const std::string name =
            (*backend)->info().detail + " isa " + std::to_string(int(isa)) + ", threads " + std::to_string(threads);
        list.push_back({name, *std::move(backend)});
      }
    }
    return list;
  }();
  return all;
}

TEST(CpuOps, ScalarAndAvx2AreTested) { ASSERT_GE(backends().size(), 5u); }

TEST(CpuOps, WhatIsNotFiniteIsFound) { expect_all_finite(*backends().back().backend, backends().back().name); }

// Norms, sums and copies for all row counts and for widths around the vector length; in place gives the same bits.
TEST(CpuOps, RowOperators) {
  Random random(1);
  for (int rows : kRowCounts) {
    for (int cols : {1, 7, 16, 33, 256, 1040}) {
      const Matrix2 x = Matrix2::random(random, rows, cols), w = Matrix2::random(random, 1, cols, 0.3f, 1.0f);
      const Matrix2 y = Matrix2::random(random, rows, cols);
      Matrix2 norm(rows, cols), sum = y;
      reference().rms_norm(x.view(), w.view(), 1e-6f, norm.view());
      reference().add(x.view(), sum.view());
      ASSERT_TRUE(is_informative(norm.view()) || cols == 1);
      for (const Tested& tested : backends()) {
        Matrix2 out(rows, cols), in_place = x, added = y;
        tested.backend->rms_norm(x.view(), w.view(), 1e-6f, out.view());
        expect_same_bits(out, norm, "rms_norm on " + tested.name);
        EXPECT_TRUE(out.padding_untouched());
        tested.backend->rms_norm(in_place.view(), w.view(), 1e-6f, in_place.view());
        expect_same_bits(in_place, norm, "rms_norm in place on " + tested.name);
        tested.backend->add(x.view(), added.view());
        expect_same_bits(added, sum, "add on " + tested.name);
        EXPECT_TRUE(added.padding_untouched());
        std::vector<int> picked;
        for (int r = rows - 1; r >= 0; r -= 2) picked.push_back(r);
        Matrix2 gathered(static_cast<int64_t>(picked.size()), cols);
        tested.backend->gather_rows(x.view(), picked, gathered.view());
        for (size_t i = 0; i < picked.size(); ++i)
          expect_same_bits(gathered.row(static_cast<int64_t>(i)), x.row(picked[i]), "gather_rows on " + tested.name);
      }
    }
  }
}

TEST(CpuOps, GatedNorm) { expect_gated_norm(backends()); }
TEST(CpuOps, RotaryTable) { expect_rotary_table(backends()); }

TEST(CpuOps, DeltaNet) { expect_delta_net(backends()); }
TEST(CpuOps, Attention) { expect_attention(backends()); }
TEST(CpuOps, TreesEqualTokenByToken) { expect_trees_equal_token_by_token(backends()); }
TEST(CpuOps, RowsEqualRowsAlone) { expect_rows_equal_rows_alone(backends()); }
TEST(CpuOps, BadLaneFailsAlone) { expect_bad_lane_alone(backends()); }

// The routed sum of every row count, with ties between experts and more rows than experts.
TEST(CpuOps, Moe) {
  for (QuantFormat format : {QuantFormat::kF32, QuantFormat::kBF16, QuantFormat::kQ8_0}) {
    const MoeShape shape{7, 3};
    const int hidden = 96, width = 32;
    Random random(9);
    std::vector<Weight> weights;
    weights.reserve(64);
    auto add = [&](QuantFormat f, int64_t rows, int64_t cols) -> const Weight& {
      weights.emplace_back(random, f, rows, cols);
      return weights.back();
    };
    Weight& router = const_cast<Weight&>(add(QuantFormat::kF32, shape.experts, hidden));
    std::memcpy(router.bytes.data() + 5 * hidden * 4, router.bytes.data() + 2 * hidden * 4,
                hidden * 4);  // experts 2 and 5 tie
    for (int e = 0; e <= shape.experts; ++e) {
      add(format, 2 * width, hidden);
      add(format, hidden, width);
    }
    add(QuantFormat::kF32, 1, hidden);
    auto pack = [&](Backend& backend) {
      MoeWeights w;
      size_t next = 0;
      auto one = [&] { return backend.pack({&weights[next++].source, 1}); };
      w.router = one();
      for (int e = 0; e <= shape.experts; ++e) {
        ExpertWeights expert;
        expert.gate_up = one();
        expert.down = one();
        if (e < shape.experts) w.experts.push_back(std::move(expert));
        else w.shared = std::move(expert);
      }
      w.shared_gate = one();
      return w;
    };
    const MoeWeights reference_weights = pack(reference());
    std::vector<MoeWeights> packed;
    for (const Tested& tested : backends()) packed.push_back(pack(*tested.backend));
    for (int rows : kRowCounts) {
      Matrix2 x = Matrix2::random(random, rows, hidden), expected(rows, hidden);
      reference().moe(x.view(), shape, reference_weights, expected.view());
      ASSERT_TRUE(is_informative(expected.view()));
      for (size_t b = 0; b < packed.size(); ++b) {
        Matrix2 out(rows, hidden), alone(1, hidden);
        backends()[b].backend->moe(x.view(), shape, packed[b], out.view());
        expect_same_bits(out, expected, "moe, " + std::to_string(rows) + " rows on " + backends()[b].name);
        EXPECT_TRUE(out.padding_untouched());
        backends()[b].backend->moe(x.row(rows - 1), shape, packed[b], alone.view());
        expect_same_bits(alone.row(0), out.row(rows - 1), "moe row alone on " + backends()[b].name);
      }
    }
    Matrix2 x = Matrix2::random(random, 3, hidden), clean(3, hidden), bad(3, hidden);
    Backend& backend = *backends()[0].backend;
    backend.moe(x.view(), shape, packed[0], clean.view());
    x.at(1, 3) = kNaN;
    backend.moe(x.view(), shape, packed[0], bad.view());
    expect_same_bits(bad.row(0), clean.row(0), "row before a NaN row");
    expect_same_bits(bad.row(2), clean.row(2), "row behind a NaN row");
    for (int c = 0; c < hidden; ++c) EXPECT_TRUE(std::isnan(bad.at(1, c)));
  }
}

}  // namespace
}  // namespace foretoken::test
