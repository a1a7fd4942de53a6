// The disk tier's properties one by one, over simulated files and time; a few over the system's files and with its threads.
#include "engine/disk_tier.h"

#include <gtest/gtest.h>

#include <thread>

#include "support/disk_world.h"
#include "support/temp_dir.h"

namespace foretoken {
namespace {

using namespace testing;

Tokens first(const Tokens& tokens, size_t count) { return {tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count)}; }

constexpr uint64_t kEntryBytes = 8192;  // of a toy entry of 80 tokens

TEST(DiskTier, ToyEntriesDiffer) {
  const Tokens tokens = random_tokens(1, 70);
  DiskWorld world;
  auto tier = world.open();
  ASSERT_TRUE(world.add(*tier, tokens));
  const DiskLoad load = tier->load(*tier->find(tokens, 70), tokens);
  ASSERT_FALSE(load.fault);
  EXPECT_TRUE(ToyEntry(tokens).is(load.entry));
  EXPECT_FALSE(ToyEntry(first(tokens, 69)).is(load.entry));
  Tokens other = tokens;
  other[3] ^= 1;
  EXPECT_FALSE(ToyEntry(other).is(load.entry));
  load.entry.pages.data()[5] ^= std::byte{1};
  EXPECT_FALSE(ToyEntry(tokens).is(load.entry));
}

// Every length up to three pages, each continuing the one before, at every residue of a page; then from another process's view.
TEST(DiskTier, RestoresEveryLengthOfAChain) {
  const Tokens tokens = random_tokens(2, 3 * kPageTokens + 5);
  DiskWorld world;
  auto tier = world.open();
  for (size_t n = 1; n <= tokens.size(); ++n) ASSERT_TRUE(world.add(*tier, first(tokens, n)));
  for (const bool reopened : {false, true}) {
    if (reopened) tier.reset(), tier = world.open();
    for (size_t n = 1; n <= tokens.size(); ++n) {
      EXPECT_EQ(restored(*tier, first(tokens, n)), static_cast<int64_t>(n));
      EXPECT_EQ(tier->find(tokens, static_cast<int64_t>(n))->tokens, static_cast<int64_t>(n));
    }
    EXPECT_FALSE(tier->find(tokens, 0));
  }
  EXPECT_EQ(tier->statistics().entries, tokens.size());
  EXPECT_EQ(tier->statistics().hits, tokens.size());
}

TEST(DiskTier, FindsTheLongestPrefixAndNothingElse) {
  const Tokens system = random_tokens(3, 50), a = joined(system, random_tokens(4, 40)), b = joined(system, random_tokens(5, 90));
  DiskWorld world;
  auto tier = world.open();
  EXPECT_FALSE(tier->find(a, 1000));
  for (const Tokens& tokens : {system, a, b}) ASSERT_TRUE(world.add(*tier, tokens));
  EXPECT_EQ(restored(*tier, joined(a, {1, 2})), 90);
  EXPECT_EQ(restored(*tier, first(a, 89)), 50) << "one token less than an entry";
  EXPECT_EQ(restored(*tier, joined(system, {9})), 50);
  EXPECT_EQ(tier->find(b, 139)->tokens, 50);
  EXPECT_EQ(restored(*tier, first(system, 49)), 0);
  Tokens other = system;
  other[0] ^= 1;
  EXPECT_EQ(restored(*tier, other), 0);
}

// Hashes that collide would lead here; the load compares the tokens themselves.
TEST(DiskTier, AnEntryOfOtherTokensIsNotLoaded) {
  const Tokens a = random_tokens(1, 80);
  DiskWorld world;
  auto tier = world.open();
  ASSERT_TRUE(world.add(*tier, a));
  for (const size_t place : {0, 40, 79}) {
    Tokens other = a;
    other[place] ^= 1;
    EXPECT_EQ(tier->load(*tier->find(a, 80), other).fault, DiskFault::kOtherTokens);
  }
  EXPECT_EQ(restored(*tier, a), 80) << "it stays for its own prompt";
}

// A file holds what its parent lacks, and pages are asked for no more than that.
TEST(DiskTier, AChildStoresItsPartOnly) {
  const Tokens tokens = random_tokens(6, 320);
  DiskWorld world;
  auto tier = world.open();
  const ToyEntry parent(first(tokens, 300)), child(tokens);
  ASSERT_FALSE(tier->store(parent.source()));
  EXPECT_EQ(parent.copied_pages, 10);
  ASSERT_FALSE(tier->store(child.source())) << "the parent is still queued";
  EXPECT_EQ(child.copied_pages, 1);  // slots 288 to 319
  tier->flush();
  const uint64_t bytes = tier->statistics().bytes_written;
  EXPECT_GT(bytes, ToyShape{}.page_bytes() * 11 + ToyShape{}.state_bytes * 2);
  EXPECT_LT(bytes, ToyShape{}.page_bytes() * 12 + ToyShape{}.state_bytes * 2 + 6000);
  EXPECT_EQ(restored(*tier, tokens), 320);
}

TEST(DiskTier, EqualEntriesAreStoredOnce) {
  const Tokens tokens = random_tokens(7, 100);
  DiskWorld world;
  auto tier = world.open();
  const ToyEntry entry(tokens);
  EXPECT_FALSE(tier->store(entry.source()));
  EXPECT_FALSE(tier->store(entry.source()));
  EXPECT_EQ(tier->statistics().queued, 1u);
  tier->flush();
  EXPECT_FALSE(tier->store(entry.source()));
  EXPECT_EQ(entry.copied_pages, 4);
  EXPECT_EQ(tier->statistics().stored, 1u);
}

TEST(DiskTier, SmallGainsAreNotWorthAFile) {
  DiskWorld world;
  world.options.least_gain_tokens = 64;
  auto tier = world.open();
  const Tokens tokens = random_tokens(8, 300);
  EXPECT_EQ(tier->store(ToyEntry(first(tokens, 63)).source()), DiskFault::kSmallGain);
  EXPECT_EQ(tier->store(ToyEntry(first(tokens, 64)).source()), std::nullopt);
  EXPECT_EQ(tier->store(ToyEntry(first(tokens, 127)).source()), DiskFault::kSmallGain);
  EXPECT_EQ(tier->store(ToyEntry(first(tokens, 128)).source()), std::nullopt);
  EXPECT_EQ(count(*tier, DiskFault::kSmallGain), 2u);
}

TEST(DiskTier, TheQueueIsBoundedAndCountsWhatItHolds) {
  DiskWorld world;
  world.options.queue_bytes = 30'000;
  auto tier = world.open();
  int queued = 0;
  while (!tier->store(ToyEntry(random_tokens(100 + static_cast<uint64_t>(queued), 100)).source())) ++queued;
  EXPECT_EQ(queued, 3);  // 2 KiB of pages, 5.7 KB of state and drafter, a header and tokens each
  EXPECT_EQ(count(*tier, DiskFault::kQueueFull), 1u);
  EXPECT_LE(tier->statistics().queue_bytes, 30'000u);
  EXPECT_EQ(tier->statistics().queued, 3u);
  tier->poll();
  EXPECT_EQ(tier->statistics().queued, 2u) << "a poll does one piece of work";
  tier->flush();
  EXPECT_EQ(tier->statistics().queue_bytes, 0u);
  EXPECT_EQ(tier->statistics().stored, 3u);
  EXPECT_FALSE(tier->store(ToyEntry(random_tokens(1, 100)).source()));
  tier->drop_queue();
  EXPECT_EQ(tier->statistics().queued, 0u);
  EXPECT_FALSE(tier->store(ToyEntry(random_tokens(1, 100)).source())) << "what was dropped may come again";
  EXPECT_EQ(tier->statistics().queued, 1u);
}

TEST(DiskTier, TheHoursWritesAreBounded) {
  DiskWorld world;
  world.options.write_bytes_per_hour = 30'000;
  auto tier = world.open();
  const auto add = [&](uint64_t seed) { return tier->store(ToyEntry(random_tokens(seed, 100)).source()); };
  EXPECT_FALSE(add(1));
  world.clock.advance(1800);
  EXPECT_FALSE(add(2));
  EXPECT_FALSE(add(3));
  EXPECT_EQ(add(4), DiskFault::kWriteBudget);
  world.clock.advance(1799);
  EXPECT_EQ(add(4), DiskFault::kWriteBudget);
  world.clock.advance(1);
  EXPECT_FALSE(add(4)) << "the first write is an hour old";
  EXPECT_EQ(add(5), DiskFault::kWriteBudget);
  tier->flush();
  EXPECT_LE(tier->statistics().bytes_written, 2 * 30'000u);
}

// Random stores and loads in a small folder: the limit holds at every moment, also while files are written and while a page is replaced.
TEST(DiskTier, TheLimitIsStrict) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    DiskWorld world;
    world.options.limit_bytes = 150'000;
    auto tier = world.open();
    std::mt19937_64 random(seed);
    std::vector<Tokens> known{{}};
    for (int step = 0; step < 150; ++step) {
      const Tokens& base = known[random() % known.size()];
      const Tokens tokens = joined(base, random_tokens(random(), 1 + random() % 200));
      if (tokens.size() < 2000) known.push_back(tokens);
      tier->store(ToyEntry(tokens).source());
      if (random() % 2) tier->flush();
      restored(*tier, known[random() % known.size()]);
    }
    tier->flush();
    EXPECT_LE(world.files.most_bytes(), 150'000u);
    EXPECT_EQ(tier->statistics().bytes, world.files.total_bytes());
    EXPECT_GT(tier->statistics().evicted, 20u);
    EXPECT_GT(tier->statistics().hits, 20u);
    EXPECT_EQ(count(*tier, DiskFault::kDamaged) + count(*tier, DiskFault::kGone) + count(*tier, DiskFault::kNoParent), 0u);
  }
}

TEST(DiskTier, EvictsTheLeastRecentlyUsedLeafFirst) {
  DiskWorld world;
  world.options.limit_bytes = 4 * kEntryBytes;
  const auto conversation = [](uint64_t seed) { return random_tokens(seed, 80); };
  auto tier = world.open();
  for (uint64_t seed = 0; seed < 4; ++seed) ASSERT_TRUE(world.add(*tier, conversation(seed)));
  EXPECT_EQ(tier->statistics().bytes, world.options.limit_bytes);
  ASSERT_EQ(restored(*tier, conversation(0)), 80);
  tier.reset();
  tier = world.open();  // times of use survive
  ASSERT_TRUE(world.add(*tier, joined(conversation(2), random_tokens(9, 30))));  // 1 goes
  EXPECT_EQ(restored(*tier, conversation(1)), 0);
  ASSERT_TRUE(world.add(*tier, conversation(10)));  // 3 goes; 2 is older than 0 but has a child
  EXPECT_EQ(restored(*tier, conversation(3)), 0);
  EXPECT_EQ(tier->find(conversation(2), 80)->tokens, 80);
  ASSERT_TRUE(world.add(*tier, conversation(11)));  // 0 goes
  EXPECT_FALSE(tier->find(conversation(0), 80));
  EXPECT_TRUE(tier->find(joined(conversation(2), random_tokens(9, 30)), 110));
  EXPECT_EQ(tier->statistics().evicted, 3u);
}

TEST(DiskTier, WhatIsWantedOrStoredAgainStays) {
  DiskWorld world;
  world.options.limit_bytes = 2 * kEntryBytes;
  auto tier = world.open();
  const Tokens a = random_tokens(1, 80), b = random_tokens(2, 80), c = random_tokens(3, 80);
  for (const Tokens& tokens : {a, b}) ASSERT_TRUE(world.add(*tier, tokens));
  EXPECT_FALSE(world.add(*tier, a)) << "is there, and is used now";
  const auto match = tier->find(b, 80);
  const DiskLoadId id = tier->begin_load(*match, b);
  ASSERT_TRUE(world.add(*tier, c));  // b is older, but on its way
  EXPECT_FALSE(tier->find(a, 80));
  const auto done = tier->poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, id);
  EXPECT_TRUE(ToyEntry(b).is(done[0].entry));
  ASSERT_EQ(restored(*tier, c), 80);
  ASSERT_TRUE(world.add(*tier, a)) << "what was loaded may go again";
  EXPECT_FALSE(tier->find(b, 80));
}

TEST(DiskTier, AnEntryStoredAgainIsRecent) {
  DiskWorld world;
  world.options.limit_bytes = 2 * kEntryBytes;
  auto tier = world.open();
  for (uint64_t seed : {1, 2, 1}) world.add(*tier, random_tokens(seed, 80));
  ASSERT_TRUE(world.add(*tier, random_tokens(3, 80)));
  EXPECT_TRUE(tier->find(random_tokens(1, 80), 80));
  EXPECT_FALSE(tier->find(random_tokens(2, 80), 80));
}

TEST(DiskTier, AnEntryLargerThanItsRoomIsNotStored) {
  DiskWorld world;
  world.options.limit_bytes = 2 * kEntryBytes - 1;
  auto tier = world.open();
  EXPECT_EQ(tier->store(ToyEntry(random_tokens(1, 1000)).source()), DiskFault::kNoRoom);
  ASSERT_TRUE(world.add(*tier, random_tokens(2, 80)));
  // Its parent must stay, and there is no room for both.
  EXPECT_FALSE(world.add(*tier, joined(random_tokens(2, 80), random_tokens(3, 80))));
  EXPECT_EQ(count(*tier, DiskFault::kNoRoom), 2u);
  EXPECT_EQ(restored(*tier, random_tokens(2, 80)), 80);
}

TEST(DiskTier, ASmallerLimitHoldsFromTheStart) {
  DiskWorld world;
  auto tier = world.open();
  for (uint64_t seed = 0; seed < 8; ++seed) ASSERT_TRUE(world.add(*tier, random_tokens(seed, 80)));
  tier.reset();
  world.options.limit_bytes = 3 * kEntryBytes;
  tier = world.open();
  EXPECT_EQ(world.files.total_bytes(), world.options.limit_bytes);
  EXPECT_EQ(restored(*tier, random_tokens(7, 80)), 80);
  EXPECT_EQ(restored(*tier, random_tokens(4, 80)), 0);
}

TEST(DiskTier, OtherFingerprintsAreNeverSeen) {
  const Tokens tokens = random_tokens(1, 80);
  DiskWorld world;
  ASSERT_TRUE(world.add(*world.open(), tokens));
  world.options.fingerprint = "toy 2";
  auto tier = world.open();
  EXPECT_EQ(restored(*tier, tokens), 0);
  EXPECT_EQ(tier->statistics().other_bytes, kEntryBytes);
  world.options.page_bytes *= 2;
  EXPECT_EQ(restored(*world.open(), tokens), 0) << "pages of another size are another fingerprint";
}

TEST(DiskTier, OtherFingerprintsGiveWayUnlessTheyAreInUse) {
  DiskWorld world;
  world.options.limit_bytes = 4 * kEntryBytes;
  auto other = world.open();
  for (uint64_t seed = 0; seed < 3; ++seed) ASSERT_TRUE(world.add(*other, random_tokens(seed, 80)));
  world.options.fingerprint = "toy 2";
  auto tier = world.open();
  ASSERT_TRUE(world.add(*tier, random_tokens(10, 80)));
  ASSERT_TRUE(world.add(*tier, random_tokens(11, 80))) << "gives up its own";
  EXPECT_EQ(tier->statistics().entries, 1u);
  EXPECT_EQ(other->statistics().entries, 3u);
  other.reset();
  world.clock.advance(61);  // others are measured once a minute
  for (uint64_t seed = 12; seed < 15; ++seed) ASSERT_TRUE(world.add(*tier, random_tokens(seed, 80)));
  EXPECT_EQ(tier->statistics().entries, 4u);
  EXPECT_EQ(tier->statistics().other_bytes, 0u);
  EXPECT_LE(world.files.most_bytes(), world.options.limit_bytes);
}

TEST(DiskTier, ASecondProcessReadsAndTakesOver) {
  const Tokens a = random_tokens(1, 80), b = random_tokens(2, 80);
  DiskWorld world;
  auto writer = world.open();
  ASSERT_TRUE(world.add(*writer, a));
  auto reader = world.open();
  EXPECT_TRUE(writer->statistics().writable);
  EXPECT_FALSE(reader->statistics().writable);
  EXPECT_NE(reader->statistics().note.find("another process"), std::string::npos);
  EXPECT_EQ(restored(*reader, a), 80);
  EXPECT_EQ(reader->store(ToyEntry(b).source()), DiskFault::kWritesOff);

  ASSERT_TRUE(world.add(*writer, b));
  EXPECT_FALSE(reader->find(b, 80));
  world.clock.advance(30);
  EXPECT_FALSE(reader->find(b, 80)) << "asks for another look";
  reader->poll();
  EXPECT_EQ(restored(*reader, b), 80);
  EXPECT_FALSE(reader->statistics().writable);

  writer->discard(writer->find(a, 80)->entry);
  EXPECT_EQ(restored(*reader, a), 0) << "gone since";
  writer.reset();
  world.clock.advance(30);
  EXPECT_FALSE(reader->find(a, 80));
  reader->poll();
  EXPECT_TRUE(reader->statistics().writable);
  EXPECT_EQ(reader->statistics().note, "");
  EXPECT_TRUE(world.add(*reader, a));
  EXPECT_EQ(restored(*reader, b), 80);
}

TEST(DiskTier, AReaderRemovesNothing) {
  DiskWorld world;
  auto writer = world.open();
  ASSERT_TRUE(world.add(*writer, random_tokens(1, 80)));
  const std::string path = world.files.paths().front();
  world.files.bytes(path)[400] ^= std::byte{1};
  const std::string folder = DiskFiles::Path(path).parent_path();
  world.files.add(DiskFiles::Path(folder) / (std::string(64, 'a') + ".entry.tmp"), {});
  world.files.add(DiskFiles::Path(folder) / (std::string(64, 'b') + ".entry"), {});
  auto reader = world.open();
  EXPECT_EQ(restored(*reader, random_tokens(1, 80)), 0);
  EXPECT_EQ(count(*reader, DiskFault::kDamaged), 1u);
  EXPECT_EQ(count(*reader, DiskFault::kTruncated), 1u);
  EXPECT_EQ(world.files.paths().size(), 3u);
}

TEST(DiskTier, AFullDiskTurnsWritesOffForAWhile) {
  const Tokens a = random_tokens(1, 80), b = random_tokens(2, 80);
  DiskWorld world;
  auto tier = world.open();
  ASSERT_TRUE(world.add(*tier, a));
  world.files.refuse("write ");
  EXPECT_FALSE(tier->store(ToyEntry(b).source()));
  EXPECT_FALSE(tier->store(ToyEntry(joined(b, b)).source()));
  tier->flush();
  EXPECT_EQ(count(*tier, DiskFault::kWriteFailed), 1u);
  EXPECT_EQ(count(*tier, DiskFault::kWritesOff), 1u) << "what waits behind it is not tried";
  EXPECT_FALSE(tier->statistics().writable);
  EXPECT_NE(tier->statistics().note.find("No space left on device"), std::string::npos);
  EXPECT_EQ(tier->store(ToyEntry(b).source()), DiskFault::kWritesOff);
  EXPECT_EQ(restored(*tier, a), 80) << "reads go on";
  EXPECT_EQ(world.files.paths().size(), 1u) << "nothing half-written is left";

  world.clock.advance(30);
  EXPECT_FALSE(world.add(*tier, b)) << "still full";
  world.clock.advance(30);
  EXPECT_EQ(tier->store(ToyEntry(b).source()), DiskFault::kWritesOff) << "the second wait is longer";
  world.clock.advance(30);
  world.files.heal();
  EXPECT_TRUE(world.add(*tier, b));
  EXPECT_TRUE(tier->statistics().writable);
  EXPECT_EQ(tier->statistics().note, "");
  EXPECT_EQ(restored(*tier, b), 80);
}

TEST(DiskTier, LeavesSpaceToOthers) {
  DiskWorld world;
  world.options.least_free_bytes = 1 << 30;
  world.files.set_free_bytes((1 << 30) + 5'000);
  auto tier = world.open();
  EXPECT_FALSE(world.add(*tier, random_tokens(1, 80)));
  EXPECT_NE(tier->statistics().note.find("are free"), std::string::npos);
  EXPECT_TRUE(world.files.paths().empty());
  EXPECT_EQ(tier->statistics().bytes, 0u);
  world.clock.advance(30);
  world.files.set_free_bytes(uint64_t{2} << 30);
  EXPECT_TRUE(world.add(*tier, random_tokens(1, 80)));
}

TEST(DiskTier, AFolderThatCannotBeUsedIsAnEmptyTier) {
  DiskWorld world;
  world.files.refuse("make_folder", "Read-only file system");
  auto tier = world.open();
  EXPECT_FALSE(tier->statistics().writable);
  EXPECT_NE(tier->statistics().note.find("Read-only file system"), std::string::npos);
  EXPECT_EQ(tier->store(ToyEntry(random_tokens(1, 80)).source()), DiskFault::kWritesOff);
  EXPECT_FALSE(tier->find(random_tokens(1, 80), 80));
  world.files.heal();
  world.clock.advance(30);
  EXPECT_FALSE(tier->find(random_tokens(1, 80), 80));
  tier->poll();
  EXPECT_TRUE(world.add(*tier, random_tokens(1, 80)));
}

TEST(DiskTier, AReadOnlyFolderIsRead) {
  DiskWorld world;
  ASSERT_TRUE(world.add(*world.open(), random_tokens(1, 80)));
  world.files.refuse("lock", "Read-only file system");
  auto tier = world.open();
  EXPECT_EQ(restored(*tier, random_tokens(1, 80)), 80);
  EXPECT_NE(tier->statistics().note.find("entries are read, none are added"), std::string::npos);
}

TEST(DiskTier, DiscardTakesWhatContinuesAnEntry) {
  const Tokens tokens = random_tokens(1, 200);
  DiskWorld world;
  auto tier = world.open();
  for (const size_t n : {50, 100, 150}) ASSERT_TRUE(world.add(*tier, first(tokens, n)));
  ASSERT_FALSE(tier->store(ToyEntry(tokens).source()));  // queued behind them
  tier->discard(tier->find(tokens, 100)->entry);
  tier->flush();
  EXPECT_EQ(restored(*tier, tokens), 50);
  EXPECT_EQ(count(*tier, DiskFault::kParentGone), 1u);
  EXPECT_EQ(world.files.paths().size(), 1u);
  ASSERT_TRUE(world.add(*tier, tokens)) << "stands on what is left";
  EXPECT_EQ(restored(*tier, tokens), 200);
}

TEST(DiskTier, BorrowedBytesAreHeldUntilTheyAreWritten) {
  DiskWorld world;
  auto tier = world.open();
  const ToyEntry entry(random_tokens(1, 80));
  EntrySource source = entry.source();
  const auto state = std::make_shared<std::vector<std::byte>>(source.state.bytes.begin(), source.state.bytes.end());
  source.state = {.bytes = *state, .owner = state};
  ASSERT_FALSE(tier->store(source));
  EXPECT_EQ(state.use_count(), 3);
  source = {};
  EXPECT_EQ(state.use_count(), 2);
  tier->flush();
  EXPECT_EQ(state.use_count(), 1);
  EXPECT_EQ(restored(*tier, entry.tokens()), 80);
}

TEST(DiskTier, LoadsRunBesideTheEngine) {
  const Tokens a = random_tokens(1, 80), b = random_tokens(2, 90);
  DiskWorld world;
  auto tier = world.open();
  for (const Tokens& tokens : {a, b}) ASSERT_TRUE(world.add(*tier, tokens));
  const DiskLoadId first_id = tier->begin_load(*tier->find(a, 80), a), second_id = tier->begin_load(*tier->find(b, 90), b);
  EXPECT_NE(first_id, second_id);
  std::vector<DiskLoad> done;
  for (int i = 0; i < 2; ++i)
    for (DiskLoad& load : tier->poll()) done.push_back(std::move(load));
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].id, first_id);
  EXPECT_TRUE(ToyEntry(a).is(done[0].entry));
  EXPECT_TRUE(ToyEntry(b).is(done[1].entry));
  EXPECT_TRUE(tier->poll().empty());
  EXPECT_EQ(tier->statistics().restored_tokens, 170u);
}

// The real files and threads: the same answers, and a cache that a second object finds again.
TEST(DiskTier, WorksOnTheSystemsFilesInTheBackground) {
  TempDir temp;
  PosixFiles files;
  SteadyClock clock;
  DiskTierOptions options = DiskWorld{}.options;
  options.folder = temp.path() / "cache";
  options.background = true;
  options.limit_bytes = 600'000;
  std::vector<Tokens> all;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    Tokens tokens = random_tokens(seed, 40);
    for (int turn = 0; turn < 4; ++turn) all.push_back(tokens = joined(tokens, random_tokens(seed * 10 + static_cast<uint64_t>(turn), 37)));
  }
  {
    auto tier = DiskTier::open(options, files, clock);
    EXPECT_TRUE(tier->statistics().writable) << tier->statistics().note;
    std::vector<std::pair<DiskLoadId, const Tokens*>> wanted;
    for (const Tokens& tokens : all) {
      EXPECT_FALSE(tier->store(ToyEntry(tokens).source()));
      if (const auto match = tier->find(tokens, static_cast<int64_t>(tokens.size()))) wanted.emplace_back(tier->begin_load(*match, tokens), &tokens);
    }
    tier->flush();
    for (const Tokens& tokens : all) wanted.emplace_back(tier->begin_load(*tier->find(tokens, static_cast<int64_t>(tokens.size())), tokens), &tokens);
    size_t finished = 0;
    while (finished < wanted.size()) {
      for (const DiskLoad& load : tier->poll()) {
        ASSERT_EQ(load.id, wanted[finished].first);
        ASSERT_FALSE(load.fault);
        const Tokens& prompt = *wanted[finished++].second;
        EXPECT_TRUE(ToyEntry(first(prompt, load.entry.tokens.size())).is(load.entry));
      }
      std::this_thread::yield();
    }
    EXPECT_EQ(tier->statistics().entries, all.size());
    auto second = DiskTier::open(options, files, clock);
    EXPECT_FALSE(second->statistics().writable);
    EXPECT_EQ(restored(*second, all.back()), static_cast<int64_t>(all.back().size()));
  }
  auto tier = DiskTier::open(options, files, clock);
  for (const Tokens& tokens : all) EXPECT_EQ(restored(*tier, tokens), static_cast<int64_t>(tokens.size()));
}

TEST(DiskTier, TheEndOfATierWritesItsQueue) {
  TempDir temp;
  PosixFiles files;
  SteadyClock clock;
  DiskTierOptions options = DiskWorld{}.options;
  options.folder = temp.path();
  options.background = true;
  for (uint64_t seed = 0; seed < 10; ++seed) DiskTier::open(options, files, clock)->store(ToyEntry(random_tokens(seed, 80)).source());
  auto tier = DiskTier::open(options, files, clock);
  EXPECT_EQ(tier->statistics().entries, 10u);
}

}  // namespace
}  // namespace foretoken
