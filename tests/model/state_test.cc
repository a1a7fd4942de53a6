// The memory of lanes: pages with several holders, and checkpoints, which a lane continues from with the same bits.
#include "model/state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "decode/generation.h"
#include "support/far_backend.h"
#include "support/test_model.h"
#include "support/tiny_model.h"

namespace foretoken {
namespace {

using Ids = std::vector<TokenId>;

class StateTest : public ::testing::TestWithParam<KvFormat> {
 protected:
  static test::TestModel& model() {
    static const test::TinyBundle bundle;
    static const std::unique_ptr<test::TestModel> m = test::load_model(bundle.path(), {.max_rows = 64}, test::cpu_backend(Isa::kAuto, 1));
    return *m;
  }
  StateTest()
      : target_(model().config, model().weights, *model().backend, TargetOptions{.max_rows = 64, .kv_format = GetParam()}), lane_(target_.make_lane()) {
    test::TestRandom random(7);
    for (int i = 0; i < 200; ++i) ids_.push_back(random.below(model().config.vocab));
  }
  PagePool& pool() { return target_.pages(); }
  void feed(LaneState& lane, int64_t from, int64_t to) {
    run_prompt(target_, lane, std::span<const TokenId>(ids_).subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)), 23, {},
               [](int64_t, int64_t, const ForwardResult&) { return true; });
  }

  TargetModel target_;
  std::unique_ptr<LaneState> lane_;
  Ids ids_;
};

// At every residue of a page: a second lane that takes the checkpoint over has the first one's hash, and both, going on by different
// tokens, have the hash of a lane that never shared anything. Neither the other lane nor the checkpoint changes.
TEST_P(StateTest, ARestoredLaneContinuesWithTheSameBits) {
  std::set<std::string> distinct;
  for (int64_t length = 30; length <= 100; length += length < 66 ? 1 : 17) {
    lane_->reset();
    feed(*lane_, 0, length);
    const std::string at = lane_->hash();
    distinct.insert(at);
    const std::unique_ptr<Checkpoint> saved = lane_->checkpoint();
    ASSERT_EQ(saved->length(), length);
    ASSERT_EQ(saved->pages().size(), static_cast<size_t>((length + kPageTokens - 1) / kPageTokens));
    ASSERT_TRUE(saved->finite());
    const std::vector<std::byte> recurrent = saved->recurrent(), last_page = saved->page(saved->pages().size() - 1);
    auto other = target_.make_lane();
    other->restore(*saved);
    ASSERT_EQ(other->hash(), at) << length;
    ASSERT_EQ(other->length(), length);
    feed(*lane_, length, length + 40);   // the first goes on
    ASSERT_EQ(other->hash(), at) << "the other lane's memory changed";
    feed(*other, length + 50, length + 90);  // the second goes elsewhere
    auto third = target_.make_lane();
    third->restore(*saved);
    ASSERT_EQ(third->hash(), at) << "the checkpoint changed";
    ASSERT_EQ(saved->recurrent(), recurrent);
    ASSERT_EQ(saved->page(saved->pages().size() - 1), last_page);
    // What each would be without sharing.
    auto alone = target_.make_lane();
    feed(*alone, 0, length + 40);
    ASSERT_EQ(lane_->hash(), alone->hash());
    alone->reset();
    feed(*alone, 0, length);
    feed(*alone, length + 50, length + 90);
    ASSERT_EQ(other->hash(), alone->hash());
    ASSERT_NE(other->hash(), lane_->hash());
  }
  EXPECT_GT(distinct.size(), 35u);
}

// Full pages are shared and the last one is a copy: what is in use is what somebody holds, each page once, whoever lets go first.
TEST_P(StateTest, PagesAreHeldOnceEach) {
  ASSERT_EQ(pool().pages_in_use(), 0u);
  feed(*lane_, 0, 70);
  ASSERT_EQ(pool().pages_in_use(), 3u);
  std::unique_ptr<Checkpoint> a = lane_->checkpoint();
  EXPECT_EQ(pool().pages_in_use(), 3u + Checkpoint::new_pages(70));
  EXPECT_EQ(Checkpoint::new_pages(64), 0u);
  EXPECT_EQ(a->pages()[0], lane_->pages()[0]);
  EXPECT_EQ(a->pages()[1], lane_->pages()[1]);
  EXPECT_NE(a->pages()[2], lane_->pages()[2]);
  auto other = target_.make_lane();
  other->restore(*a);
  EXPECT_EQ(pool().pages_in_use(), 5u);
  lane_->reset();
  EXPECT_EQ(pool().pages_in_use(), 4u);
  a.reset();
  EXPECT_EQ(pool().pages_in_use(), 3u);
  std::unique_ptr<Checkpoint> b = other->checkpoint();
  other->reset();
  EXPECT_EQ(pool().pages_in_use(), 3u);
  b.reset();
  EXPECT_EQ(pool().pages_in_use(), 0u);
}

// The limit is a count of distinct pages; a page comes back to whoever takes next only when its last holder gives it back.
TEST_P(StateTest, LimitsAndHolders) {
  pool().set_limit(3);
  std::byte *a = pool().take(), *b = pool().take();
  EXPECT_EQ(pool().pages_free(), 1u);
  pool().share(a);
  pool().share(a);
  EXPECT_EQ(pool().pages_free(), 1u);
  pool().give_back(a);
  pool().give_back(a);
  EXPECT_EQ(pool().pages_in_use(), 2u);
  std::byte* c = pool().take();
  EXPECT_NE(c, a);
  EXPECT_EQ(pool().pages_free(), 0u);
  EXPECT_DEATH(pool().take(), "in_use_ < limit_");
  pool().give_back(a);
  EXPECT_EQ(pool().take(), a);
  const size_t allocated = pool().allocated_bytes();
  for (std::byte* page : {a, b, c}) pool().give_back(page);
  EXPECT_DEATH(pool().give_back(a), "in_use_ > 0");
  for (int i = 0; i < 1000; ++i) pool().give_back(pool().take());
  EXPECT_EQ(pool().allocated_bytes(), allocated);
}

// Through host bytes and back: the same lane. Sizes of another model are refused.
TEST_P(StateTest, BytesThereAndBack) {
  for (const int64_t length : {1, 32, 33, 95, 96}) {
    lane_->reset();
    feed(*lane_, 0, length);
    const std::unique_ptr<Checkpoint> saved = lane_->checkpoint();
    std::vector<std::byte> pages;
    for (size_t i = 0; i < saved->pages().size(); ++i) {
      const std::vector<std::byte> page = saved->page(i);
      pages.insert(pages.end(), page.begin(), page.end());
    }
    std::vector<std::byte> recurrent = saved->recurrent();
    ASSERT_EQ(recurrent.size(), model().config.recurrent_bytes_per_lane());
    const auto loaded = Checkpoint::from_bytes(model().config, pool(), length, pages, recurrent);
    ASSERT_NE(loaded, nullptr);
    auto other = target_.make_lane();
    other->restore(*loaded);
    EXPECT_EQ(other->hash(), lane_->hash());
    feed(*other, length, length + 30);
    feed(*lane_, length, length + 30);
    EXPECT_EQ(other->hash(), lane_->hash());

    const size_t in_use = pool().pages_in_use();
    const std::span<const std::byte> p(pages), r(recurrent);
    EXPECT_EQ(Checkpoint::from_bytes(model().config, pool(), length, p.first(p.size() - 1), r), nullptr);
    EXPECT_EQ(Checkpoint::from_bytes(model().config, pool(), length, p, r.first(r.size() - 4)), nullptr);
    EXPECT_EQ(Checkpoint::from_bytes(model().config, pool(), length + kPageTokens, p, r), nullptr);
    EXPECT_EQ(Checkpoint::from_bytes(model().config, pool(), 0, {}, r), nullptr);
    EXPECT_EQ(pool().pages_in_use(), in_use);
    // One float of it that is no number.
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<std::byte> damaged = recurrent;
      std::memcpy(damaged.data() + damaged.size() - sizeof bad, &bad, sizeof bad);
      EXPECT_FALSE(Checkpoint::from_bytes(model().config, pool(), length, pages, damaged)->finite());
    }
  }
}

// A backend with memory of its own: what is not finite is found wherever it lies in a checkpoint's recurrent memory, and no byte of that
// comes to the host for it.
TEST(StateElsewhere, WhatIsNotFiniteIsFoundWhereItLies) {
  const test::TinyBundle bundle;
  auto made = std::make_unique<test::FarBackend>(test::cpu_backend(Isa::kAuto, 1));
  const test::FarBackend& far = *made;
  const auto m = test::load_model(bundle.path(), {.max_rows = 64}, std::move(made));
  auto lane = m->target->make_lane();
  Ids ids;
  for (int i = 0; i < 70; ++i) ids.push_back(i * 37 % m->config.vocab);
  run_prompt(*m->target, *lane, ids, 23, {}, [](int64_t, int64_t, const ForwardResult&) { return true; });
  const std::unique_ptr<Checkpoint> saved = lane->checkpoint();
  const std::vector<std::byte> recurrent = saved->recurrent();
  std::vector<float> values(recurrent.size() / sizeof(float));
  std::memcpy(values.data(), recurrent.data(), recurrent.size());
  ASSERT_TRUE(std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }));
  ASSERT_GT(std::count_if(values.begin(), values.end(), [](float v) { return v != 0; }), static_cast<ptrdiff_t>(values.size() / 2));
  const uint64_t brought = far.counts().downloaded;
  ASSERT_GE(brought, recurrent.size());  // recurrent() did
  EXPECT_TRUE(saved->finite());

  const std::vector<std::byte> pages(saved->pages().size() * m->target->pages().layout().page_bytes());
  const size_t layer = m->config.delta.state_floats() + m->config.delta.tail_floats();
  for (const size_t place : {size_t{0}, size_t{1}, m->config.delta.state_floats() - 1, m->config.delta.state_floats(), layer - 1, layer, values.size() - 1})
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      std::vector<float> damaged = values;
      damaged[place] = bad;
      const auto loaded =
          Checkpoint::from_bytes(m->config, m->target->pages(), saved->length(), pages, std::as_bytes(std::span<const float>(damaged)));
      ASSERT_NE(loaded, nullptr);
      EXPECT_FALSE(loaded->finite()) << "float " << place << " of " << values.size() << " is " << bad;
    }
  std::vector<float> least = values;
  least[3] = std::numeric_limits<float>::denorm_min();
  least[4] = std::numeric_limits<float>::max();
  EXPECT_TRUE(
      Checkpoint::from_bytes(m->config, m->target->pages(), saved->length(), pages, std::as_bytes(std::span<const float>(least)))->finite());
  EXPECT_EQ(far.counts().downloaded, brought);
}

// The memory of a dropped checkpoint serves the next one.
TEST_P(StateTest, CheckpointsReuseMemory) {
  feed(*lane_, 0, 40);
  std::set<const void*> places;
  for (int i = 0; i < 20; ++i) {
    Buffer memory = pool().take_memory(4096);
    places.insert(memory.data());
    Buffer second = pool().take_memory(4096);
    places.insert(second.data());
    EXPECT_NE(memory.data(), second.data());
    pool().give_back_memory(std::move(memory));
    pool().give_back_memory(std::move(second));
  }
  EXPECT_EQ(places.size(), 2u);
  EXPECT_EQ(pool().take_memory(64).size(), 64u);  // of its own size, not a spare one
}

INSTANTIATE_TEST_SUITE_P(Formats, StateTest, ::testing::Values(KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8), [](const auto& info) {
  return std::string(info.param == KvFormat::kF32 ? "F32" : info.param == KvFormat::kBF16 ? "BF16" : "Int8");
});

}  // namespace
}  // namespace foretoken
