// The prefix cache against a plain list of what was published: lookups, what is shared, order of use, and bytes.
#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <set>

#include "support/test_model.h"
#include "support/tiny_model.h"

namespace foretoken {
namespace {

using Ids = std::vector<TokenId>;

// A pool and checkpoints of any length without running a model: their bytes are a function of their tokens.
struct CacheWorld {
  static test::TestModel& model() {
    static const test::TinyBundle bundle;
    static const std::unique_ptr<test::TestModel> m = test::load_model(bundle.path(), {.max_rows = 64}, test::cpu_backend(Isa::kAuto, 1));
    return *m;
  }
  TargetModel target{model().config, model().weights, *model().backend, TargetOptions{.max_rows = 64}};
  PagePool& pool = target.pages();
  size_t page_bytes = pool.layout().page_bytes(), recurrent_bytes = model().config.recurrent_bytes_per_lane();

  static float mark(const Ids& ids) {
    uint64_t h = 17;
    for (const TokenId id : ids) h = h * 31 + static_cast<uint64_t>(id);
    return static_cast<float>(h % 1000003);
  }
  std::unique_ptr<Checkpoint> checkpoint(const Ids& ids, bool finite = true) {
    const size_t pages = (ids.size() + kPageTokens - 1) / kPageTokens;
    std::vector<float> recurrent(recurrent_bytes / sizeof(float), finite ? mark(ids) : INFINITY);
    return Checkpoint::from_bytes(model().config, pool, static_cast<int64_t>(ids.size()), std::vector<std::byte>(pages * page_bytes),
                                  std::as_bytes(std::span<const float>(recurrent)));
  }
  static float mark(const Checkpoint& c) {
    float first;
    std::memcpy(&first, c.recurrent().data(), sizeof first);
    return first;
  }
};

Ids random_ids(test::TestRandom& random, const std::vector<Ids>& earlier, int longest) {
  Ids ids;
  if (!earlier.empty() && random.below(4) != 0) {  // continues, or parts from, an earlier one
    const Ids& from = earlier[static_cast<size_t>(random.below(static_cast<int>(earlier.size())))];
    ids.assign(from.begin(), from.begin() + random.below(static_cast<int>(from.size()) + 1));
  }
  const int more = random.below(random.below(2) == 0 ? 6 : longest);
  for (int i = 0; i < more; ++i) ids.push_back(random.below(3));
  if (ids.empty()) ids.push_back(0);
  return ids;
}

int64_t shared_with(const Ids& a, const Ids& b) {
  return std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(std::min(a.size(), b.size())), b.begin()).first - a.begin();
}

// Thousands of random publications, lookups and evictions: every match is the longest entry that a walk over all of them finds, entries
// leave in the order of their last use, and everything that was given up is free.
TEST(PrefixCache, AgainstAListOfAllEntries) {
  CacheWorld world;
  int hits = 0, misses = 0, longer_shared = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    test::TestRandom random(seed);
    PrefixCache cache({.limit_bytes = size_t{1} << 30}, world.pool);
    std::list<Ids> known;  // most recently used first
    std::vector<Ids> all;
    for (int step = 0; step < 1500; ++step) {
      const Ids ids = random_ids(random, all, 120);
      const int what = random.below(10);
      if (what < 3) {
        const auto held = std::find(known.begin(), known.end(), ids);
        const Checkpoint* published = cache.publish(ids, world.checkpoint(ids), {});
        ASSERT_NE(published, nullptr);
        ASSERT_EQ(CacheWorld::mark(*published), CacheWorld::mark(ids));
        if (held != known.end()) known.splice(known.begin(), known, held);
        else known.push_front(ids);
        all.push_back(ids);
      } else if (what < 4) {
        ASSERT_EQ(cache.evict(), !known.empty());
        if (!known.empty()) known.pop_back();
      } else {
        const int64_t at_most = random.below(3) == 0 ? random.below(static_cast<int>(ids.size()) + 1) : static_cast<int64_t>(ids.size());
        auto best = known.end();
        int64_t shared = 0;
        for (auto it = known.begin(); it != known.end(); ++it) {
          const int64_t length = static_cast<int64_t>(it->size()), same = shared_with(*it, ids);
          shared = std::max(shared, same);
          if (same == length && length <= at_most && (best == known.end() || it->size() > best->size())) best = it;
        }
        const PrefixCache::Match peeked = cache.peek(ids, at_most), match = cache.lookup(ids, at_most);
        ASSERT_EQ(match.length, best == known.end() ? 0 : static_cast<int64_t>(best->size())) << "seed " << seed << " step " << step;
        ASSERT_EQ(match.shared, shared) << "seed " << seed << " step " << step;
        ASSERT_EQ(peeked.checkpoint, match.checkpoint);
        ASSERT_EQ(cache.contains(ids), std::find(known.begin(), known.end(), ids) != known.end());
        longer_shared += match.shared > match.length;
        if (best == known.end()) {
          ASSERT_EQ(match.checkpoint, nullptr);
          ++misses;
        } else {
          ASSERT_EQ(match.checkpoint->length(), match.length);
          ASSERT_EQ(CacheWorld::mark(*match.checkpoint), CacheWorld::mark(*best));
          known.splice(known.begin(), known, best);
          ++hits;
        }
      }
      size_t pages = 0;
      for (const Ids& k : known) pages += (k.size() + kPageTokens - 1) / kPageTokens;
      ASSERT_EQ(world.pool.pages_in_use(), pages);
      ASSERT_EQ(cache.statistics().entries, known.size());
      ASSERT_EQ(cache.statistics().bytes, pages * world.page_bytes + known.size() * world.recurrent_bytes);
    }
    cache.clear();
    EXPECT_EQ(world.pool.pages_in_use(), 0u);
    EXPECT_EQ(cache.statistics().bytes, 0u);
  }
  EXPECT_GT(hits, 1000);
  EXPECT_GT(misses, 200);
  EXPECT_GT(longer_shared, 1000);
}

// Entries of one lane share its full pages: they are counted once, and stay until the last entry with them is gone.
TEST(PrefixCache, SharedPagesCountOnce) {
  CacheWorld world;
  PrefixCache cache({.limit_bytes = size_t{1} << 30}, world.pool);
  auto lane = world.target.make_lane();
  Ids ids;
  std::vector<RowInput> inputs;
  const auto grow = [&](int rows) {
    for (int i = 0; i < rows; ++i) ids.push_back(static_cast<TokenId>(ids.size() % 100));
    inputs.clear();
    std::vector<int> path;
    for (int i = 0; i < rows; ++i) {
      const int32_t at = static_cast<int32_t>(ids.size()) - rows + i;
      inputs.push_back({.token = ids[static_cast<size_t>(at)], .position = {at, at, at}});
      path.push_back(i);
    }
    const LaneRows lane_rows{.first_row = 0, .rows = rows, .prefix = lane->length(), .settled = rows, .parent = {}};
    LaneState* lanes[] = {lane.get()};
    world.target.forward({.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = {}}, lanes);
    world.target.commit(*lane, path);
    ASSERT_NE(cache.publish(ids, lane->checkpoint(), {}), nullptr);
  };
  grow(50);  // one full page of the lane's, one copy
  EXPECT_EQ(cache.statistics().bytes, 2 * world.page_bytes + world.recurrent_bytes);
  grow(30);  // 80: two full pages, one copy; the first entry's copy stays
  EXPECT_EQ(cache.statistics().bytes, 4 * world.page_bytes + 2 * world.recurrent_bytes);
  grow(16);  // 96: three full pages, no copy
  EXPECT_EQ(cache.statistics().bytes, 5 * world.page_bytes + 3 * world.recurrent_bytes);
  EXPECT_EQ(world.pool.pages_in_use(), 5u);  // all pages of the lane are held
  lane->reset();
  EXPECT_EQ(world.pool.pages_in_use(), 5u);
  cache.evict();  // the entry of 50 goes with its copy alone
  EXPECT_EQ(world.pool.pages_in_use(), 4u);
  EXPECT_EQ(cache.statistics().bytes, 4 * world.page_bytes + 2 * world.recurrent_bytes);
  EXPECT_EQ(cache.peek(ids, 95).length, 80);
  cache.evict();
  EXPECT_EQ(world.pool.pages_in_use(), 3u);
  EXPECT_EQ(cache.peek(ids, 95).length, 0);
  EXPECT_EQ(cache.peek(ids, 96).length, 96);
  cache.evict();
  EXPECT_EQ(world.pool.pages_in_use(), 0u);
  EXPECT_FALSE(cache.evict());
}

// The limit holds after every publication, whatever is published; what cannot fit alone, or holds no numbers, is dropped and counted.
TEST(PrefixCache, Limits) {
  CacheWorld world;
  const size_t one = world.recurrent_bytes + 2 * world.page_bytes;  // an entry of 33 to 64 tokens
  PrefixCache cache({.limit_bytes = 3 * one + 100}, world.pool);
  test::TestRandom random(5);
  std::vector<Ids> published;
  for (int i = 0; i < 200; ++i) {
    Ids ids = {i};
    while (ids.size() < 40) ids.push_back(random.below(50));
    ASSERT_NE(cache.publish(ids, world.checkpoint(ids), std::vector<std::byte>(static_cast<size_t>(random.below(60)))), nullptr);
    published.push_back(ids);
    ASSERT_LE(cache.statistics().bytes, cache.statistics().limit_bytes);
  }
  EXPECT_EQ(cache.statistics().published, 200u);
  EXPECT_EQ(cache.statistics().entries + cache.statistics().evictions, 200u);
  EXPECT_GE(cache.statistics().entries, 2u);
  EXPECT_TRUE(cache.contains(published.back()));
  // Refreshed, it stays while the others go.
  EXPECT_NE(cache.refresh(published.back()).checkpoint, nullptr);
  EXPECT_EQ(cache.refresh({}).checkpoint, nullptr);
  const Ids large(400, 1);
  EXPECT_EQ(cache.publish(large, world.checkpoint(large), {}), nullptr);
  EXPECT_EQ(cache.statistics().dropped_no_room, 1u);
  const Ids bad(40, 2);
  EXPECT_EQ(cache.publish(bad, world.checkpoint(bad, false), {}), nullptr);
  EXPECT_EQ(cache.statistics().dropped_non_finite, 1u);
  EXPECT_FALSE(cache.contains(bad));
  // Known already: what the drafters remember joins the entry, and counts.
  const Ids plain(40, 3);
  cache.publish(plain, world.checkpoint(plain), {});
  while (cache.statistics().entries > 1) cache.evict();
  const size_t before = cache.statistics().bytes;
  cache.publish(plain, world.checkpoint(plain), std::vector<std::byte>(50));
  EXPECT_EQ(cache.statistics().bytes, before + 50);
  EXPECT_EQ(cache.peek(plain, 40).drafts.size(), 50u);
  // Too much of it for the limit: the entry stays without.
  const Ids other(40, 4);
  cache.publish(other, world.checkpoint(other), {});
  ASSERT_NE(cache.publish(other, world.checkpoint(other), std::vector<std::byte>(3 * one)), nullptr);
  EXPECT_TRUE(cache.peek(other, 40).drafts.empty());
  EXPECT_LE(cache.statistics().bytes, cache.statistics().limit_bytes);
  cache.clear();
  EXPECT_EQ(world.pool.pages_in_use(), 0u);
}

}  // namespace
}  // namespace foretoken
