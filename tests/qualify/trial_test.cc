// The verdict rule: closed-form cases, and studies whose truth is planted.
#include "qualify/trial.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support/planted.h"

namespace foretoken {
namespace {

using test::planted_study;
using test::PlantedNoise;

TEST(Statistics, ClosedForms) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(quantile({10, 20, 30, 40, 50}, 0.25), 20);
  EXPECT_DOUBLE_EQ(quantile({10, 20}, 0.3), 13);
  EXPECT_EQ(quantile({10, 20}, 7), 20);
  const double values[] = {2, 8};
  EXPECT_DOUBLE_EQ(geometric_mean(values), 4);
  const double bad[] = {2, 0};
  EXPECT_EQ(geometric_mean(bad), 0);
}

TEST(Statistics, AnIntervalOfOneValueIsThatValueAndRepeatsExactly) {
  const double one[] = {0.25};
  EXPECT_EQ(bootstrap_median(one, 0.99).low, 0.25);
  EXPECT_EQ(bootstrap_median(one, 0.99).high, 0.25);
  const double some[] = {1, 2, 3, 4, 5, 6, 7};
  const Interval x = bootstrap_median(some, 0.95), y = bootstrap_median(some, 0.95);
  EXPECT_EQ(x.low, y.low);
  EXPECT_EQ(x.high, y.high);
  EXPECT_LT(x.low, 4);
  EXPECT_GT(x.high, 4);
}

TEST(TrialRule, BlocksAreMirroredAndAlternate) {
  EXPECT_EQ(block_order(2, 0), (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(block_order(2, 1), (std::vector<int>{1, 0, 0, 1}));
  EXPECT_EQ(block_order(3, 0), (std::vector<int>{0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(block_order(3, 3), (std::vector<int>{2, 1, 0, 0, 1, 2}));
}

std::vector<TrialBlock> repeated(TrialBlock block, int blocks) {
  return std::vector<TrialBlock>(static_cast<size_t>(blocks), block);
}

TEST(TrialRule, WithoutNoiseTheBoundIsTwoPercent) {
  EXPECT_EQ(judge(repeated({{100, 100}, {101.9, 101.9}}, 4)).verdict, TrialVerdict::kNoDifference);
  EXPECT_EQ(judge(repeated({{100, 100}, {102.1, 102.1}}, 4)).verdict, TrialVerdict::kGain);
  EXPECT_EQ(judge(repeated({{100, 100}, {98.1, 98.1}}, 4)).verdict, TrialVerdict::kNoDifference);
  EXPECT_EQ(judge(repeated({{100, 100}, {97.9, 97.9}}, 4)).verdict, TrialVerdict::kLoss);
  const TrialResult r = judge(repeated({{100, 100}, {103, 103}}, 4));
  EXPECT_NEAR(r.change, 0.03, 1e-12);
  EXPECT_EQ(r.spread, 0);
  EXPECT_EQ(r.bound, 0.02);
  EXPECT_NEAR(r.interval.low, 0.03, 1e-12);
}

TEST(TrialRule, LowerFiguresMayBeTheBetterOnes) {
  EXPECT_EQ(judge(repeated({{100, 100}, {103, 103}}, 4), Better::kLower).verdict, TrialVerdict::kLoss);
  EXPECT_EQ(judge(repeated({{103, 103}, {100, 100}}, 4), Better::kLower).verdict, TrialVerdict::kGain);
}

// Rounds that jump about their median by turns: the medians of first and second rounds agree, and yet nothing here is
// known to a percent.
TEST(TrialRule, JitterWithinBlocksCountsByTheRootOfTheirNumber) {
  std::vector<TrialBlock> blocks;
  for (int i = 0; i < 4; ++i)
    blocks.push_back(i % 2 == 0 ? TrialBlock{{98, 102}, {103, 103}} : TrialBlock{{102, 98}, {103, 103}});
  const TrialResult r = judge(blocks);
  EXPECT_NEAR(r.spread, 0.04 / 2, 1e-12);
  EXPECT_NEAR(r.bound, 0.04, 1e-12);
  EXPECT_NEAR(r.change, 0.03, 0.001);
  EXPECT_EQ(r.verdict, TrialVerdict::kNoDifference);
}

// One block is the rule in its simplest form: the two same-arm rounds' disagreement, and twice of it.
TEST(TrialRule, OneBlockSpreadIsTheDisagreementOfItsRounds) {
  const TrialResult r = judge(repeated({{100, 102}, {90, 90}}, 1));
  EXPECT_NEAR(r.spread, 2 / 101.0, 1e-12);
  EXPECT_NEAR(r.bound, 4 / 101.0, 1e-12);
  EXPECT_EQ(r.verdict, TrialVerdict::kLoss);
  EXPECT_EQ(judge(repeated({{100, 102}, {97.5, 97.5}}, 1)).verdict,
            TrialVerdict::kNoDifference);  // 3.5 % and a bound of 3.96 %
}

TEST(TrialRule, AWideSpreadDecidesNothing) {
  const TrialResult r = judge(repeated({{100, 106}, {50, 50}}, 8));
  EXPECT_EQ(r.verdict, TrialVerdict::kInconclusive);
  EXPECT_EQ(r.wide_blocks.size(), 8u);
  EXPECT_EQ(judge({}).verdict, TrialVerdict::kInconclusive);
  EXPECT_EQ(judge(repeated({{100, 0}, {50, 50}}, 8)).verdict, TrialVerdict::kInconclusive);
  EXPECT_EQ(judge(repeated({{100, std::nan("")}, {50, 50}}, 8)).verdict, TrialVerdict::kInconclusive);
}

TEST(TrialRule, FewBlocksWarnButClaimNothing) {
  EXPECT_EQ(judge(repeated({{100, 100}, {120, 120}}, 3)).verdict, TrialVerdict::kInconclusive);
  EXPECT_EQ(judge(repeated({{100, 100}, {80, 80}}, 3)).verdict, TrialVerdict::kLoss);
}

TEST(TrialRule, OneDisturbedBlockIsListedAndOutvoted) {
  std::vector<TrialBlock> blocks = repeated({{100, 100}, {104, 104}}, 7);
  blocks.push_back({{100, 60}, {104, 104}});
  const TrialResult r = judge(blocks);
  EXPECT_EQ(r.wide_blocks, (std::vector<int>{7}));
  EXPECT_EQ(r.verdict, TrialVerdict::kGain);
  EXPECT_NEAR(r.change, 0.04, 1e-9);
}

// Drift that both arms share cancels: the machine loses 20 % of its speed over the study.
TEST(TrialRule, DriftFallsOnBothArms) {
  std::vector<TrialBlock> blocks;
  for (int b = 0; b < 8; ++b) {
    TrialBlock block;
    int seen[2] = {0, 0}, slot = 0;
    for (const int arm : block_order(2, b)) {
      const double speed = 100 * (1 - 0.2 * (4 * b + slot++) / 32.0);
      (arm == 0 ? block.a : block.b)[seen[arm]++] = speed;
    }
    blocks.push_back(block);
  }
  const TrialResult r = judge(blocks);
  EXPECT_EQ(r.verdict, TrialVerdict::kNoDifference);
  EXPECT_LT(std::abs(r.change), 0.001);
}

// 200 studies each: of one program twice, of a program that is 3 % slower, and of one that is 4 % faster (a claim needs
// more than a warning). A round differs from the next by what a quiet machine shows.
TEST(TrialRule, APlantedSlowdownIsFoundAndTheSameProgramTwiceIsNeverAGain) {
  std::map<TrialVerdict, int> same, slower, faster;
  const PlantedNoise quiet{.round = 0.006, .drift = 0.05, .bursts = 0.02};
  for (uint64_t seed = 0; seed < 200; ++seed) {
    ++same[judge(planted_study(8, 0, quiet, seed)).verdict];
    ++slower[judge(planted_study(8, -0.03, quiet, seed)).verdict];
    ++faster[judge(planted_study(8, 0.04, quiet, seed)).verdict];
  }
  EXPECT_EQ(same[TrialVerdict::kGain], 0);
  EXPECT_EQ(same[TrialVerdict::kLoss], 0);
  EXPECT_GE(slower[TrialVerdict::kLoss], 190);
  EXPECT_EQ(slower[TrialVerdict::kGain], 0);
  EXPECT_GE(faster[TrialVerdict::kGain],
            170);  // this rule's power at 4 % (181 here), not a promise to users: it errs towards no claim
  EXPECT_EQ(faster[TrialVerdict::kLoss], 0);
}

// However noisy the machine, the same program twice never gains; where noise hides the truth, the verdict says so.
TEST(TrialRule, NoiseNeverMakesAGain) {
  for (const double noise : {0.01, 0.02, 0.04, 0.08}) {
    int gains = 0, undecided = 0;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const TrialResult r = judge(planted_study(8, 0, {.round = noise, .drift = 0.05, .bursts = 0.1}, seed + 1000));
      gains += r.verdict == TrialVerdict::kGain;
      undecided += r.verdict == TrialVerdict::kInconclusive;
    }
    EXPECT_EQ(gains, 0) << "at a noise of " << noise;
    if (noise == 0.08) {
      EXPECT_GT(undecided, 100);
    }
  }
}

}  // namespace
}  // namespace foretoken
