// Whatever the disk does, an answer is right or absent: every operation fails once in every way, the power goes at every operation, and
// every file is damaged bit by bit and cut at every length. Each test also counts what came back, so that it cannot pass on misses alone.
#include <gtest/gtest.h>

#include "support/disk_world.h"

namespace foretoken {
namespace {

using namespace testing;

constexpr uint64_t kLimit = 70'000;

// Conversations that branch, grow and are asked for again, a few of them more than the limit holds.
struct Script {
  std::vector<Tokens> turns;
  Script() {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      Tokens tokens = random_tokens(seed, 45);
      for (uint64_t turn = 0; turn < 3; ++turn) turns.push_back(tokens = joined(tokens, random_tokens(100 * seed + turn, 30 + 11 * turn)));
      turns.push_back(joined(Tokens(tokens.begin(), tokens.begin() + 75), random_tokens(seed + 50, 60)));
    }
  }
  // Lengths restored, in all.
  int64_t run(DiskTier& tier) const {
    int64_t total = 0;
    for (size_t i = 0; i < turns.size(); ++i) {
      tier.store(ToyEntry(turns[i]).source());
      if (i % 3 == 2) tier.flush();
      total += restored(tier, turns[i / 2]);
      tier.poll();
    }
    tier.flush();
    return total + check(tier);
  }
  int64_t check(DiskTier& tier) const {
    int64_t total = 0;
    for (const Tokens& tokens : turns) total += restored(tier, tokens);
    return total;
  }
};

struct Baseline {
  int64_t operations = 0, restored = 0;
};
Baseline baseline(const Script& script) {
  DiskWorld world;
  world.options.limit_bytes = kLimit;
  auto tier = world.open();
  const int64_t total = script.run(*tier);
  EXPECT_GT(tier->statistics().evicted, 0u);
  tier.reset();
  return {world.files.operations(), total};
}

TEST(DiskTierDamage, AnyOperationMayFail) {
  const Script script;
  const Baseline whole = baseline(script);
  ASSERT_GT(whole.operations, 200);
  ASSERT_GT(whole.restored, 1000);
  int64_t total = 0, runs = 0;
  for (const auto how : {SimulatedFiles::Failure::kBefore, SimulatedFiles::Failure::kAfter})
    for (int64_t n = 0; n < whole.operations; ++n) {
      SCOPED_TRACE(n);
      DiskWorld world;
      world.options.limit_bytes = kLimit;
      world.files.fail(n, how);
      {
        auto tier = world.open();
        total += script.run(*tier);
      }
      world.files.heal();
      world.clock.advance(3600);
      auto tier = world.open();  // the next start finds nothing wrong either
      script.run(*tier);
      ASSERT_TRUE(tier->statistics().writable) << tier->statistics().note;
      ASSERT_LE(world.files.most_bytes(), kLimit);
      ASSERT_EQ(tier->statistics().bytes, world.files.total_bytes());
      ++runs;
    }
  EXPECT_GT(total, whole.restored * runs / 2) << "one failure costs little";
}

TEST(DiskTierDamage, ThePowerMayGoAtAnyOperation) {
  const Script script;
  const Baseline whole = baseline(script);
  int64_t survived = 0, unfinished = 0;
  for (int64_t n = 0; n < whole.operations; ++n)
    for (uint64_t seed = 0; seed < 3; ++seed) {
      SCOPED_TRACE(::testing::Message() << "operation " << n << " seed " << seed);
      DiskWorld world;
      world.options.limit_bytes = kLimit;
      world.files.fail(n, SimulatedFiles::Failure::kDead);
      {
        auto tier = world.open();
        script.run(*tier);
      }
      world.files.crash(static_cast<uint64_t>(n) * 3 + seed);
      auto tier = world.open();
      ASSERT_TRUE(tier->statistics().writable);
      survived += script.check(*tier);
      unfinished += static_cast<int64_t>(count(*tier, DiskFault::kUnfinished));
      ASSERT_EQ(count(*tier, DiskFault::kTruncated) + count(*tier, DiskFault::kDamaged), 0u) << "a name stands for flushed bytes";
      ASSERT_EQ(tier->statistics().bytes, world.files.total_bytes()) << "nothing is left that is not counted";
      script.run(*tier);
      ASSERT_LE(world.files.total_bytes(), kLimit);
    }
  EXPECT_GT(survived, whole.operations * 300) << "most of what was stored is there again";
  EXPECT_GT(unfinished, 50) << "writes were under way";
}

// The process alone ends, as by SIGKILL: whatever has its name is whole, and what was reported as stored is there.
TEST(DiskTierDamage, TheProcessMayEndAtAnyOperation) {
  const Script script;
  const Baseline whole = baseline(script);
  int64_t survived = 0, unfinished = 0;
  for (int64_t n = 0; n < whole.operations; ++n) {
    SCOPED_TRACE(n);
    DiskWorld world;
    uint64_t stored = 0, evicted = 0;
    world.files.fail(n, SimulatedFiles::Failure::kDead);
    {
      auto tier = world.open();
      script.run(*tier);
      stored = tier->statistics().stored;
      evicted = tier->statistics().evicted;
    }
    world.files.kill();
    auto tier = world.open();
    ASSERT_EQ(count(*tier, DiskFault::kTruncated) + count(*tier, DiskFault::kDamaged) + count(*tier, DiskFault::kNoParent), 0u);
    ASSERT_EQ(evicted, 0u);
    ASSERT_GE(tier->statistics().entries, stored);
    survived += script.check(*tier);
    unfinished += static_cast<int64_t>(count(*tier, DiskFault::kUnfinished));
  }
  EXPECT_GT(survived, whole.operations * 300);
  EXPECT_GT(unfinished, 20);
}

// A disk that lies about flushes: names and bytes are lost and kept in any combination, torn files under their final names too.
TEST(DiskTierDamage, FlushesMayBeLies) {
  const Script script;
  const int64_t whole = baseline(script).restored;
  int64_t survived = 0, damaged = 0, orphans = 0;
  constexpr int kSeeds = 200;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    DiskWorld world;
    world.files.lie_about_flushes();
    {
      auto tier = world.open();
      script.run(*tier);
    }
    world.files.crash(seed);
    auto tier = world.open();
    survived += script.check(*tier);
    damaged += static_cast<int64_t>(count(*tier, DiskFault::kTruncated) + count(*tier, DiskFault::kDamaged));
    orphans += static_cast<int64_t>(count(*tier, DiskFault::kNoParent));
  }
  EXPECT_GT(survived, whole / 2) << "some of it comes back, over all seeds";
  EXPECT_GT(damaged, kSeeds);
  EXPECT_GT(orphans, kSeeds / 4);
}

struct Filled {
  DiskWorld world;
  Script script;
  int64_t whole = 0;
  Filled() {
    auto tier = world.open();
    for (const Tokens& tokens : script.turns) DiskWorld::add(*tier, tokens);
    whole = script.check(*tier);
  }
};

// The tier may notice damage when it starts or when it reads; both are tried.
int64_t check_damaged(Filled& filled, DiskTier* running) {
  if (running) return filled.script.check(*running);
  return filled.script.check(*filled.world.open());
}

TEST(DiskTierDamage, FlippedBitsAreMisses) {
  std::mt19937_64 random(1);
  int64_t lost = 0, flips = 0, total = 0, whole = 0;
  for (const bool while_running : {false, true})
    for (size_t file = 0; file < Script().turns.size(); ++file)
      for (int flip = 0; flip < 25; ++flip) {
        Filled filled;
        whole = filled.whole;
        auto tier = while_running ? filled.world.open() : nullptr;
        const std::string path = filled.world.files.paths()[file];
        auto& bytes = filled.world.files.bytes(path);
        const size_t bit = flip < 8 ? random() % (kPageTokens * 8 * 10) : random() % (bytes.size() * 8);
        bytes[bit / 8] ^= std::byte(1u << bit % 8);
        const int64_t got = check_damaged(filled, tier.get());
        ASSERT_LE(got, whole);
        total += got;
        lost += got < whole;
        ++flips;
      }
  EXPECT_GT(lost, flips * 8 / 10) << "nearly every byte matters";
  EXPECT_GT(total, whole * flips / 2) << "the other entries are still there";
}

TEST(DiskTierDamage, CutAndGrownFilesAreMisses) {
  int64_t total = 0, whole = 0, cuts = 0;
  for (const bool while_running : {false, true})
    for (size_t file = 0; file < Script().turns.size(); ++file)
      for (const double part : {0.0, 0.01, 0.03, 0.5, 0.9, 0.9999, 1.5}) {
        Filled filled;
        whole = filled.whole;
        auto tier = while_running ? filled.world.open() : nullptr;
        auto& bytes = filled.world.files.bytes(filled.world.files.paths()[file]);
        bytes.resize(static_cast<size_t>(static_cast<double>(bytes.size()) * part));
        const int64_t got = check_damaged(filled, tier.get());
        ASSERT_LT(got, whole);
        total += got;
        ++cuts;
      }
  EXPECT_GT(total, whole * cuts / 2);
}

TEST(DiskTierDamage, ExchangedAndCopiedFilesAreMisses) {
  const size_t files = Script().turns.size();
  int64_t total = 0;
  for (const bool while_running : {false, true})
    for (size_t from = 0; from < files; ++from)
      for (size_t to = 0; to < files; ++to) {
        if (from == to) continue;
        Filled filled;
        auto tier = while_running ? filled.world.open() : nullptr;
        const auto paths = filled.world.files.paths();
        filled.world.files.bytes(paths[to]) = filled.world.files.bytes(paths[from]);
        const int64_t got = check_damaged(filled, tier.get());
        ASSERT_LT(got, filled.whole);
        total += got;
      }
  EXPECT_GT(total, 0);
}

TEST(DiskTierDamage, WhatIsFoundIsRemovedAndCounted) {
  const auto with = [](auto&& change) {
    Filled filled;
    const std::string path = filled.world.files.paths().front();
    change(filled.world.files, DiskFiles::Path(path));
    auto tier = filled.world.open();
    EXPECT_EQ(filled.world.files.total_bytes(), tier->statistics().bytes);
    return tier->statistics().faults;
  };
  const auto of = [](const auto& faults, DiskFault fault) { return faults[static_cast<size_t>(fault)]; };
  const auto foreign = with([](SimulatedFiles& files, const DiskFiles::Path& path) { files.bytes(path)[0] = std::byte{'X'}; });
  EXPECT_EQ(of(foreign, DiskFault::kForeign), 1u);
  const auto version = with([](SimulatedFiles& files, const DiskFiles::Path& path) { files.bytes(path)[16] = std::byte{9}; });
  EXPECT_EQ(of(version, DiskFault::kVersion), 1u);
  const auto unfinished = with([](SimulatedFiles& files, const DiskFiles::Path& path) { files.add(path.string() + ".tmp", {}); });
  EXPECT_EQ(of(unfinished, DiskFault::kUnfinished), 1u);
  const auto renamed = with([](SimulatedFiles& files, const DiskFiles::Path& path) {
    files.add(path.parent_path() / (std::string(64, '0') + ".entry"), files.bytes(path));
  });
  EXPECT_EQ(of(renamed, DiskFault::kDamaged), 1u);
  const auto users_file = with([](SimulatedFiles& files, const DiskFiles::Path& path) { files.add(path.parent_path() / "notes.txt", {}); });
  EXPECT_EQ(std::count(users_file.begin(), users_file.end(), 0u), static_cast<ptrdiff_t>(kDiskFaults)) << "not ours";
}

// The children of a damaged entry go with it, and what cannot be read for now stays.
TEST(DiskTierDamage, ChildrenOfADamagedEntryGo) {
  const Tokens tokens = random_tokens(1, 200);
  const auto prefix = [&](size_t n) { return Tokens(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n)); };
  for (const bool damaged : {true, false}) {
    DiskWorld world;
    auto tier = world.open();
    std::string first_path;
    for (const size_t n : {50, 100, 150}) {
      ASSERT_TRUE(DiskWorld::add(*tier, prefix(n)));
      if (n == 50) first_path = world.files.paths().front();
    }
    if (damaged) world.files.bytes(first_path)[330] ^= std::byte{1};
    else world.files.refuse("read " + first_path);
    EXPECT_EQ(restored(*tier, prefix(150)), 0);
    EXPECT_EQ(tier->statistics().entries, 0u);
    EXPECT_EQ(count(*tier, damaged ? DiskFault::kDamaged : DiskFault::kUnreadable), 1u);
    EXPECT_EQ(count(*tier, DiskFault::kNoParent), 2u);
    EXPECT_EQ(world.files.paths().size(), damaged ? 0u : 3u);
    EXPECT_EQ(tier->statistics().bytes, world.files.total_bytes());
    world.files.heal();
    tier.reset();
    tier = world.open();
    EXPECT_EQ(restored(*tier, prefix(150)), damaged ? 0 : 150);
  }
}

}  // namespace
}  // namespace foretoken
