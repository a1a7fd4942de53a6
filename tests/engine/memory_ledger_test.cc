// The ledger's rules: limits, floors, the order in which memory is reclaimed, and what is reported; then all of them at once against a
// model of it over random operations.
#include "engine/memory_ledger.h"

#include <gtest/gtest.h>

#include <random>

namespace foretoken {
namespace {

TEST(MemoryLedger, AccountsAndTheWholeAreBounded) {
  MemoryLedger ledger(100);
  const auto pages = ledger.open("pages", 80), cache = ledger.open("cache", 60);
  EXPECT_TRUE(ledger.take(pages, 70));
  EXPECT_FALSE(ledger.take(pages, 11));  // its own limit
  EXPECT_TRUE(ledger.take(cache, 30));
  EXPECT_FALSE(ledger.take(cache, 1));   // the whole
  ledger.give_back(pages, 50);
  EXPECT_TRUE(ledger.take(cache, 30));
  EXPECT_EQ(ledger.used(), 80u);
  EXPECT_EQ(ledger.peak(), 100u);
  EXPECT_EQ(ledger.accounts()[pages].peak, 70u);
  EXPECT_EQ(ledger.accounts()[pages].refused, 1u);
}

TEST(MemoryLedger, NobodyElseCanTakeAFloor) {
  MemoryLedger ledger(100);
  const auto scratch = ledger.open("scratch", 40, 40), pages = ledger.open("pages", 100);
  EXPECT_FALSE(ledger.take(pages, 61));
  EXPECT_TRUE(ledger.take(pages, 60));
  EXPECT_TRUE(ledger.take(scratch, 25));
  EXPECT_FALSE(ledger.take(pages, 1));  // 15 of the floor are unused, and still not free
  EXPECT_TRUE(ledger.take(scratch, 15));
}

// Reclaimers are asked in order, each for what is still missing, and only as many as it takes.
TEST(MemoryLedger, MemoryIsReclaimedInAFixedOrder) {
  MemoryLedger ledger(100);
  const auto cache = ledger.open("cache", 100), pages = ledger.open("pages", 100), state = ledger.open("state", 100);
  std::vector<std::pair<const char*, uint64_t>> asked;
  const auto gives = [&](const char* name, MemoryLedger::AccountId account, uint64_t most) {
    ledger.add_reclaimer(account, [&, name, account, most](uint64_t wanted) {
      asked.emplace_back(name, wanted);
      ledger.give_back(account, std::min({wanted, most, ledger.accounts()[account].used}));
    });
  };
  gives("cache", cache, 20);
  gives("pages", pages, 100);
  EXPECT_TRUE(ledger.take(cache, 40));
  EXPECT_TRUE(ledger.take(pages, 60));
  EXPECT_TRUE(ledger.take(state, 10));
  EXPECT_TRUE(ledger.take(state, 30));
  const std::vector<std::pair<const char*, uint64_t>> expected = {{"cache", 10}, {"cache", 30}, {"pages", 10}};
  EXPECT_EQ(asked, expected);
  EXPECT_EQ(ledger.used(), 100u);
}

// An account at its own limit is helped by its own reclaimer alone: what others give back would not be its to use.
TEST(MemoryLedger, AnAccountAtItsLimitReclaimsFromItself) {
  MemoryLedger ledger(100);
  const auto cache = ledger.open("cache", 50), pages = ledger.open("pages", 50);
  int cache_asked = 0, pages_asked = 0;
  ledger.add_reclaimer(cache, [&](uint64_t) { ++cache_asked; });
  ledger.add_reclaimer(pages, [&](uint64_t wanted) { ++pages_asked, ledger.give_back(pages, wanted); });
  EXPECT_TRUE(ledger.take(cache, 20));
  EXPECT_TRUE(ledger.take(pages, 50));
  EXPECT_TRUE(ledger.take(pages, 5));
  EXPECT_EQ(cache_asked, 0);
  EXPECT_EQ(pages_asked, 1);
  EXPECT_FALSE(ledger.take(pages, 51));  // more than it may ever have: nobody is asked in vain
  EXPECT_EQ(pages_asked, 1);
}

TEST(MemoryLedger, WhatIsMeasuredMayExceedThePlanAndIsReported) {
  MemoryLedger ledger(100);
  const auto scratch = ledger.open("scratch", 10, 10), pages = ledger.open("pages", 90);
  ledger.measured(scratch, 30);
  EXPECT_EQ(ledger.accounts()[scratch].peak, 30u);
  EXPECT_FALSE(ledger.take(pages, 71));
  EXPECT_FALSE(ledger.take(scratch, 1));
  EXPECT_TRUE(ledger.take(pages, 70));
  ledger.measured(scratch, 5);
  EXPECT_EQ(ledger.accounts()[scratch].peak, 30u);
}

TEST(MemoryLedgerDeath, GivingBackMoreThanWasTakenEndsTheProcess) {
  MemoryLedger ledger(100);
  const auto pages = ledger.open("pages", 50);
  EXPECT_TRUE(ledger.take(pages, 5));
  EXPECT_DEATH(ledger.give_back(pages, 6), "6 vs 5");
}

TEST(MemoryLedger, RandomOperationsKeepTheBooks) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto upto = [&](uint64_t most) { return std::uniform_int_distribution<uint64_t>(0, most)(random); };
    MemoryLedger ledger(1000);
    uint64_t floors = 0;
    for (int i = 0; i < 4; ++i) {
      const uint64_t planned = upto(1000), floor = std::min(upto(planned), 300 - std::min<uint64_t>(300, floors));
      floors += floor;
      ledger.open("account", planned, floor);
    }
    for (size_t id = 0; id < 2; ++id)
      ledger.add_reclaimer(id, [&ledger, id, &upto](uint64_t wanted) { ledger.give_back(id, std::min(ledger.accounts()[id].used, upto(wanted * 2))); });
    int taken = 0;
    for (int step = 0; step < 300; ++step) {
      const size_t id = upto(3);
      if (upto(2) == 0) {
        ledger.give_back(id, upto(ledger.accounts()[id].used));
      } else {
        const uint64_t before = ledger.accounts()[id].used, bytes = upto(400);
        if (ledger.take(id, bytes)) {
          ++taken;
          if (id >= 2) {
            EXPECT_EQ(ledger.accounts()[id].used, before + bytes);
          }
        } else if (id >= 2) {
          EXPECT_EQ(ledger.accounts()[id].used, before);
        }
      }
      uint64_t kept = 0;
      for (const auto& account : ledger.accounts()) {
        EXPECT_LE(account.used, account.planned);
        EXPECT_LE(account.used, account.peak);
        kept += std::max(account.used, account.floor);
      }
      EXPECT_LE(kept, ledger.limit());
    }
    EXPECT_GT(taken, 5);
  }
}

}  // namespace
}  // namespace foretoken
