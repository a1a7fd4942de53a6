// Plans of the CUDA kernels: what they ask for fits the device, for every card that releases are built for and every
// shape; those of the H200 are the measured ones. No GPU takes part.
#include "cuda/plans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace foretoken::cuda {
namespace {

struct Card {
  const char* name;
  int architecture, multiprocessors;
  size_t block_kib, multiprocessor_kib;
};
// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
constexpr Card kCards[] = {{"A100", 80, 108, 163, 164},    {"RTX 3060", 86, 28, 99, 100},
                           {"RTX 3090", 86, 82, 99, 100},  {"RTX 4060", 89, 24, 99, 100},
                           {"RTX 4090", 89, 128, 99, 100}, {"H200", 90, 132, 227, 228},
                           {"RTX 5060", 120, 30, 99, 100}, {"RTX 5090", 120, 170, 99, 100}};

Limits limits_of(const Card& card) {
  return limited({.code = {.architecture = card.architecture,
                           .wgmma = card.architecture == 90,
                           .dependent_launch = card.architecture >= 90},
                  .multiprocessors = card.multiprocessors,
                  .block_shared = card.block_kib * 1024,
                  .multiprocessor_shared = card.multiprocessor_kib * 1024},
                 0);
}
const Limits kH200 = limits_of({"H200", 90, 132, 227, 228});
const Limits kAda = limits_of({"RTX 4090", 89, 128, 99, 100});

constexpr size_t kBarriers = 1024;  // static shared memory of few_rows

// Blocks of threads that a multiprocessor's 65,536 registers have room for, by the 96 of a thread that Q4_K takes.
int residents_of(int warps) { return 65536 / (96 * 32 * warps); }

TEST(CudaPlans, FewRowsFitEveryCard) {
  for (const Card& card : kCards) {
    const Limits limits = limits_of(card);
    int checked = 0;
    for (const SuperBlock& block : {kQ4KBlock, kQ6KBlock})
      for (int64_t cols = 256; cols <= 256 * 200; cols += 256)
        for (const int blocks : {1, 2}) {
          const Slices slices = cut(cols, block.most_units);
          if (blocks == 2 && few_rows_at_once(slices, block.bytes, limits) == 8) continue;
          for (const int tiles : {1, 7, 100, 320, 2176, 15520})
            for (const auto& [experts, items, groups] :
                 {std::tuple(false, 1, 1), std::tuple(false, 1, 3), std::tuple(false, 1, 64), std::tuple(true, 8, 1),
                  std::tuple(true, 300, 1)}) {
              if (experts && blocks == 2) continue;
              const FewRowsPlan plan = plan_few_rows({.slices = slices,
                                                      .unit_bytes = block.bytes,
                                                      .blocks = blocks,
                                                      .experts = experts,
                                                      .residents = residents_of(slices.most()),
                                                      .tiles = tiles,
                                                      .items = items,
                                                      .groups = groups},
                                                     limits);
              ASSERT_EQ(plan.warps, slices.most());
              ASSERT_GE(plan.stages, 1) << card.name << ", " << cols << " inputs, " << blocks;
              ASSERT_LE(plan.stages, kMostStages);
              ASSERT_GE(plan.places, 1);
              ASSERT_LE(plan.places, int64_t{tiles} * items);
              ASSERT_LE(plan.shared + kBarriers, limits.block_shared) << card.name << ", " << cols << " inputs";
              ASSERT_LE((plan.shared + kBarriers + kReservedShared) * static_cast<size_t>(plan.resident),
                        limits.multiprocessor_shared)
                  << card.name << ", " << cols << " inputs, " << plan.resident << " blocks";
              ++checked;
            }
        }
    EXPECT_GT(checked, 5000) << card.name;
  }
}

// One row of the 27B shape's products, then sixteen; experts of A3B. What was measured there (docs/gpu.md).
TEST(CudaPlans, FewRowsOfTheH200) {
  struct Expected {
    int64_t outputs, cols;
    int blocks;
    bool experts;
    int64_t items;
    int warps, stages, resident, places;
    size_t shared;
  };
  for (const Expected& e : {Expected{34816, 5120, 1, false, 1, 20, 2, 1, 132, 133120},
                            {5120, 17408, 1, false, 1, 17, 2, 1, 33, 113152},
                            {16480, 5120, 1, false, 1, 20, 2, 1, 132, 133120},
                            {34816, 5120, 2, false, 1, 20, 2, 1, 132, 227840},
                            {1024, 2048, 1, true, 9, 8, 4, 2, 264, 91136}}) {
    const FewRowsPlan plan = plan_few_rows({.slices = cut(e.cols, kQ4KBlock.most_units),
                                            .unit_bytes = kQ4KBlock.bytes,
                                            .blocks = e.blocks,
                                            .experts = e.experts,
                                            .residents = residents_of(cut(e.cols, kQ4KBlock.most_units).most()),
                                            .tiles = static_cast<int>(e.outputs / 16),
                                            .items = e.items},
                                           kH200);
    EXPECT_EQ(plan.warps, e.warps) << e.outputs << " x " << e.cols;
    EXPECT_EQ(plan.stages, e.stages) << e.outputs << " x " << e.cols;
    EXPECT_EQ(plan.resident, e.resident) << e.outputs << " x " << e.cols;
    EXPECT_EQ(plan.places, e.places) << e.outputs << " x " << e.cols;
    EXPECT_EQ(plan.shared, e.shared) << e.outputs << " x " << e.cols;
  }
}

// Sixteen columns of twenty super-blocks need 177 KiB: elsewhere eight at a time, as groups that run beside each other.
TEST(CudaPlans, RowsAtOnce) {
  EXPECT_EQ(few_rows_at_once(cut(5120, kQ4KBlock.most_units), kQ4KBlock.bytes, kH200), 16);
  EXPECT_EQ(few_rows_at_once(cut(5120, kQ4KBlock.most_units), kQ4KBlock.bytes, kAda), 8);
  EXPECT_EQ(few_rows_at_once(cut(2048, kQ4KBlock.most_units), kQ4KBlock.bytes, kAda), 16);
  const FewRowsTask task{
      .slices = cut(5120, kQ4KBlock.most_units), .unit_bytes = kQ4KBlock.bytes, .tiles = 2176, .groups = 64};
  EXPECT_EQ(plan_few_rows(task, kAda).places, 2);  // 128 blocks of threads in all
}

// Slices are the order of sums: of the number of inputs, never of the device.
TEST(CudaPlans, SlicesAreOfTheInputsAlone) {
  for (const SuperBlock& block : {kQ4KBlock, kQ6KBlock})
    for (int64_t cols = 256; cols <= 256 * 200; cols += 256) {
      const Slices slices = cut(cols, block.most_units);
      EXPECT_EQ(slices.begin(0), 0);
      EXPECT_EQ(slices.begin(slices.count), slices.units);
      for (int s = 0; s < slices.count; ++s) {
        EXPECT_GT(slices.begin(s + 1), slices.begin(s));
        EXPECT_LE(slices.begin(s + 1) - slices.begin(s), slices.most());
      }
      EXPECT_LE(slices.most(), block.most_units);
    }
}

// Two blocks of threads find room on every card, those of many lanes beside each other.
TEST(CudaPlans, DeltaCore) {
  for (const Card& card : kCards)
    for (const int dim : {64, 128}) {
      EXPECT_LE(core_bytes(dim), limits_of(card).block_shared) << card.name;
      EXPECT_LE(2 * (core_bytes(dim) + kReservedShared), limits_of(card).multiprocessor_shared) << card.name;
    }
}

TEST(CudaPlans, Spans) {
  for (const int group : {1, 2, 3, 4, 6, 7, 8, 40})
    for (const double blocks : {1.0, 4.0, 16.0, 64.0, 1024.0})
      for (const Card& card : kCards) {
        const Limits limits = limits_of(card);
        const SpanPlan plan = plan_staged_spans(group, blocks, limits);
        ASSERT_GT(plan.heads, 0) << card.name;
        EXPECT_LT(plan.heads, std::max(2, 2 * group)) << card.name;
        EXPECT_EQ(plan.small, card.architecture == 90 ? false : card.block_kib < 200) << card.name;
        EXPECT_LE(staged_bytes(plan.small ? kSmallSpans : kLargeSpans, plan.heads), limits.block_shared) << card.name;
        const SpanPlan prompt = plan_prompt_spans(group, blocks, limits);
        ASSERT_GT(prompt.heads, 0) << card.name;
        EXPECT_LE(prompt_bytes(prompt.small ? kSmallPrompt : large_prompt(prompt.heads), prompt.heads),
                  limits.block_shared)
            << card.name;
      }
  const auto heads_of = [](const SpanPlan& plan) { return std::pair(plan.heads, plan.small); };
  EXPECT_EQ(heads_of(plan_prompt_spans(6, 1, kH200)), std::pair(6, false));
  EXPECT_EQ(heads_of(plan_prompt_spans(8, 1, kH200)), std::pair(8, false));
  EXPECT_EQ(heads_of(plan_prompt_spans(6, 1, kAda)), std::pair(4, true));
  EXPECT_EQ(heads_of(plan_prompt_spans(2, 1, kAda)), std::pair(2, true));
  const Limits tiny = limited(kAda, 48 * 1024);  // no room for staging: the general kernel
  EXPECT_EQ(plan_staged_spans(6, 1024, tiny).heads, 0);
  EXPECT_EQ(plan_prompt_spans(6, 1024, tiny).heads, 0);
  EXPECT_FALSE(plan_prompt_spans(6, 1024, tiny).cost < plan_staged_spans(6, 1024, tiny).cost);
}

// On the H200, six query heads a K/V head, four K/V heads: alone while all find a multiprocessor, sharing as soon as
// they would follow each other, and rows of a chain together once that takes less than every row by itself.
TEST(CudaPlans, SpansOfTheH200) {
  EXPECT_EQ(span_blocks(1, 4), 4);
  EXPECT_EQ(span_blocks(2, 4), 6);
  EXPECT_EQ(span_blocks(8, 4), 24);
  const auto heads = [](double blocks) { return plan_staged_spans(6, blocks, kH200).heads; };
  EXPECT_EQ(heads(4), 1);
  EXPECT_EQ(heads(22), 1);
  EXPECT_EQ(heads(44), 2);
  EXPECT_EQ(heads(66), 3);
  EXPECT_EQ(heads(132), 6);
  EXPECT_DOUBLE_EQ(plan_staged_spans(6, 22, kH200).cost, 11 + 3.8);
  EXPECT_DOUBLE_EQ(plan_staged_spans(6, 132, kH200).cost, 11 + 3.8 * 6);
  EXPECT_DOUBLE_EQ(plan_prompt_spans(6, 132, kH200).cost, 11 + 2.4 * 24);
  EXPECT_GT(plan_prompt_spans(6, 4, kH200).cost, plan_staged_spans(6, 16, kH200).cost);
  EXPECT_LT(plan_prompt_spans(6, 130, kH200).cost, plan_staged_spans(6, 520, kH200).cost);
}

// Code of an older architecture keeps to that architecture's memory on a newer card, so its plans can be tried there.
TEST(CudaPlans, LimitsFollowTheCode) {
  Limits device{.code = {.architecture = 86, .from_text = true},
                .multiprocessors = 132,
                .block_shared = 227 * 1024,
                .multiprocessor_shared = 228 * 1024};
  EXPECT_EQ(limited(device, 0).block_shared, 99u * 1024);
  EXPECT_EQ(limited(device, 0).multiprocessor_shared, 100u * 1024);
  device.code.architecture = 80;
  EXPECT_EQ(limited(device, 0).block_shared, 163u * 1024);
  EXPECT_EQ(limited(device, 99 * 1024).multiprocessor_shared, 100u * 1024);
  device.block_shared = 99 * 1024;
  device.multiprocessor_shared = 100 * 1024;
  EXPECT_EQ(limited(device, 0).block_shared, 99u * 1024);  // and the device's where that is less
  device.code.architecture = 150;
  EXPECT_EQ(limited(device, 0).block_shared, 99u * 1024);
  EXPECT_EQ(name_of(device.code), "sm_150, compiled by the driver");
  EXPECT_EQ(name_of({.architecture = 90, .wgmma = true}), "sm_90a");
}

}  // namespace
}  // namespace foretoken::cuda
