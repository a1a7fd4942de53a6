// Plans of the CUDA kernels: what they ask for fits the device, for every card that releases are built for and every
// shape; those of the H200 are the measured ones. No GPU takes part.
#include "cuda/plans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/lift.h"

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
  for (const Expected& e : {Expected{34816, 5120, 1, false, 1, 20, 2, 1, 132, 145920},
                            {5120, 17408, 1, false, 1, 17, 2, 1, 33, 124032},
                            {16480, 5120, 1, false, 1, 20, 2, 1, 132, 145920},
                            {34816, 5120, 2, false, 1, 20, 2, 1, 132, 227840},
                            {1024, 2048, 1, true, 9, 8, 4, 2, 264, 96256}}) {
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

// More than sixteen rows, outputs of the released shapes by 64: as many warpgroups as leave the fewest rounds.
TEST(CudaPlans, WideGroups) {
  EXPECT_EQ(wide_groups(544, 5, kH200), 5);  // 34,816 outputs: one round, where four groups need two
  EXPECT_EQ(wide_groups(544, 4, kH200), 3);
  EXPECT_EQ(wide_groups(258, 5, kH200), 2);  // 16,480
  EXPECT_EQ(wide_groups(160, 5, kH200), 2);  // 5,120, two slices
  EXPECT_EQ(wide_groups(1, 5, kH200), 1);
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

// Shared memory has room for two blocks of threads on every card.
TEST(CudaPlans, DeltaCore) {
  for (const Card& card : kCards)
    for (const int dim : {64, 128}) {
      EXPECT_LE(core_bytes(dim), limits_of(card).block_shared) << card.name;
      EXPECT_LE(2 * (core_bytes(dim) + kReservedShared), limits_of(card).multiprocessor_shared) << card.name;
    }
}

// Inputs of Q4_K: what is done to them is undone exactly, for every exponent of the largest, or it is infinite.
TEST(CudaPlans, Lift) {
  int brought = 0, infinite = 0;
  for (int largest = 0; largest <= 255; ++largest) {
    const Lift lift = lift_of(largest);
    ASSERT_TRUE(0 <= lift.floor && 0 < lift.back && lift.back <= 255) << largest;
    EXPECT_LE(largest - lift.floor, 30) << largest;  // f16's exponents end there
    brought += largest - lift.floor == 30;
    if (lift.back == 255) ++infinite;
    else EXPECT_EQ((112 - lift.floor) + (lift.back - 127), 24) << largest;
    EXPECT_EQ(lift.back == 255, largest >= 246) << largest;
  }
  EXPECT_EQ(brought, 226);
  EXPECT_EQ(infinite, 10);
}

TEST(CudaPlans, Spans) {
  for (const int group : {1, 2, 3, 4, 6, 7, 8, 40, 64})
    for (const int dim : {64, 128, 256})
      for (const int rows : {1, 3, 8, 64, 2048})
        for (const int64_t visible : {1, 256, 300, 2049, 130'000})
          for (const Card& card : kCards) {
            const Limits limits = limits_of(card);
            const SpanLane lanes[] = {{rows, false}, {1, false}}, trees[] = {{rows, true}, {1, false}};
            const SpanShape shape{
                .query_heads = 2 * group, .kv_heads = 2, .dim = dim, .most_visible = visible, .lanes = lanes};
            const SpanPlan plan = plan_spans(shape, limits);
            if (plan.tiles == 0) {  // a row's heads do not fit
              EXPECT_GT(tile_bytes(dim, (group + 15) / 16, 2) + kTileStatic, limits.block_shared) << card.name;
              continue;
            }
            EXPECT_GE(plan.stages, 2) << card.name;
            EXPECT_LE(tile_bytes(dim, plan.tiles, plan.stages) + kTileStatic, limits.block_shared) << card.name;
            EXPECT_GE(16 * plan.tiles, group);
            EXPECT_EQ(plan.items, items_of(lanes[0], group, plan.tiles) + 1);
            EXPECT_GE(int64_t{16} * plan.tiles * (plan.items - 1), int64_t{rows} * group);
            EXPECT_GE(plan.units * plan.unit_tokens, visible);
            EXPECT_EQ(plan.unit_tokens * plan.units_of_group, kTileSpan * kTileGroup);
            SpanShape tree = shape;
            tree.lanes = trees;
            EXPECT_GE(plan_spans(tree, limits).items, rows + 1);
          }
  // Other shapes and formats, and devices without room: the general kernel.
  const SpanLane one[] = {{1, false}};
  const SpanShape whole{.query_heads = 24, .kv_heads = 4, .dim = 256, .most_visible = 1000, .lanes = one};
  SpanShape other = whole;
  other.format = KvFormat::kInt8;
  EXPECT_EQ(plan_spans(other, kH200).tiles, 0);
  EXPECT_EQ(plan_spans(other, kH200).unit_tokens, kSpanTokens);
  EXPECT_EQ(plan_spans(other, kH200).units, 2);
  other = whole, other.dim = 96;
  EXPECT_EQ(plan_spans(other, kH200).tiles, 0);
  EXPECT_EQ(plan_spans(whole, limited(kAda, 48 * 1024)).tiles, 0);
}

// On the H200, six query heads a K/V head, four K/V heads: spans side by side while there are multiprocessors for them,
// in turn where lanes, rows or a long context fill the device.
TEST(CudaPlans, SpansOfTheH200) {
  const auto plan = [](int lanes, int rows, int64_t visible) {
    const std::vector<SpanLane> all(static_cast<size_t>(lanes), SpanLane{rows, false});
    return plan_spans({.query_heads = 24, .kv_heads = 4, .dim = 256, .most_visible = visible, .lanes = all}, kH200);
  };
  EXPECT_EQ(plan(1, 1, 600).unit_tokens, kTileSpan);
  EXPECT_EQ(plan(1, 8, 600).unit_tokens, kTileSpan);
  EXPECT_EQ(plan(1, 8, 600).tiles, 1);
  EXPECT_EQ(plan(1, 8, 600).items, 3);
  EXPECT_EQ(plan(1, 8, 130'000).tiles, 3);
  EXPECT_EQ(plan(32, 1, 400).unit_tokens, kTileSpan * kTileGroup);
  EXPECT_EQ(plan(1, 512, 512).unit_tokens, kTileSpan * kTileGroup);
  EXPECT_EQ(plan(1, 512, 512).items, 48);
  EXPECT_EQ(plan(1, 1, 130'000).unit_tokens, kTileSpan * kTileGroup);
  EXPECT_EQ(plan(1, 1, 130'000).units, 64);
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
