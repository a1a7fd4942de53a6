// Who goes next: priorities, the shortest rest, the bound on overtaking, and shares of the time.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

namespace foretoken {
namespace {

TEST(Scheduler, ShortestFirstWithinAPriority) {
  Scheduler s({});
  const std::vector<WaitingRequest> waiting = {{.id = 1, .arrival = 1, .rows_left = 900}, {.id = 2, .arrival = 2, .rows_left = 30},
                                               {.id = 3, .priority = 1, .arrival = 3, .rows_left = 5000}, {.id = 4, .arrival = 4, .rows_left = 3, .held = true}};
  EXPECT_EQ(s.next(waiting), 3u);
  EXPECT_EQ(s.next(std::span(waiting).first(2)), 2u);
  EXPECT_EQ(s.overtaken(1), 1);
  EXPECT_EQ(s.next(std::span(waiting).last(1)), std::nullopt);
  const std::vector<WaitingRequest> resumed = {{.id = 1, .arrival = 1, .rows_left = 9}, {.id = 5, .arrival = 5, .rows_left = 900, .resumed = true}};
  EXPECT_EQ(s.next(resumed), 5u);
}

// A long prompt among endless short ones waits for a bounded number of them.
TEST(Scheduler, NobodyStarves) {
  Scheduler s({.most_overtaken = 8});
  int before = 0;
  for (uint64_t id = 2;; ++id) {
    const std::vector<WaitingRequest> waiting = {{.id = 1, .arrival = 1, .rows_left = 100000}, {.id = id, .arrival = id, .rows_left = 1}};
    if (s.next(waiting) == 1u) break;
    ASSERT_LT(++before, 100);
  }
  EXPECT_EQ(before, 8);
}

TEST(Scheduler, LanesTakeTurnsInPromptPasses) {
  Scheduler s({.most_overtaken = 4});
  int passes = 0;
  for (;; ++passes) {
    const std::vector<WaitingRequest> lanes = {{.id = 1, .arrival = 1, .rows_left = 5000}, {.id = 2, .arrival = 2, .rows_left = 100}};
    const auto order = s.prefill_order(lanes);
    ASSERT_EQ(order.size(), 2u);
    if (order.front() == 1) break;
    ASSERT_LT(passes, 100);
  }
  EXPECT_EQ(passes, 4);
}

// Over many passes each side gets its share of the seconds, whatever one pass takes.
TEST(Scheduler, SharesOfTheTime) {
  for (const double share : {0.2, 0.5, 0.9}) {
    Scheduler s({.decode_share = share});
    double decode = 0, prefill = 0;
    for (int i = 0; i < 20000; ++i) {
      const Turn turn = s.turn(true, true);
      const double seconds = turn == Turn::kDecode ? 0.004 : 0.05;
      (turn == Turn::kDecode ? decode : prefill) += seconds;
      s.ran(turn, seconds);
    }
    EXPECT_NEAR(decode / (decode + prefill), share, 0.03);
  }
  Scheduler s({});
  EXPECT_EQ(s.turn(false, false), Turn::kIdle);
  EXPECT_EQ(s.turn(true, false), Turn::kDecode);
  EXPECT_EQ(s.turn(false, true), Turn::kPrefill);
}

}  // namespace
}  // namespace foretoken
