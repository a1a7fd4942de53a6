// Drafters over several lanes, and their windows through save and restore, on real weights: what a lane is offered does not depend on the
// others or on the detour, and bytes that are no window of the model are refused.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "decode/rig.h"

namespace foretoken {
namespace {

using test::Rig;

std::vector<TokenId> text(int salt, int length) {
  std::vector<TokenId> ids;
  for (int i = 0; i < length; ++i) ids.push_back(300 + (i * (37 + 2 * salt) + i * i * salt) % 700);
  return ids;
}

// A lane decoded by a fixed text: its drafters saw everything but the text's last token, which is the anchor.
struct Lane {
  std::unique_ptr<LaneState> state;
  std::vector<TokenId> tokens;
};

// Commits tokens [from, to) of the text and shows them to `observe`, or to `drafters`.
void advance(Rig& rig, Lane& lane, const std::function<void(const Committed&)>& observe, size_t from, size_t to) {
  const std::vector<int>& taps = rig.block->config().taps;
  const std::span<const TokenId> chunk = std::span(lane.tokens).subspan(from, to - from);
  run_prompt(*rig.model->target, *lane.state, chunk, 512, {}, [&](int64_t first, int64_t rows, const ForwardResult& r) {
    std::vector<int> all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    const size_t at = from + static_cast<size_t>(first);
    observe({.first = static_cast<int64_t>(at), .tokens = std::span(lane.tokens).subspan(at, static_cast<size_t>(rows)),
             .next = lane.tokens[at + static_cast<size_t>(rows)], .rows = all, .hidden = r.hidden, .taps = r.taps});
    return true;
  }, taps);
}

void advance(Rig& rig, Lane& lane, std::span<Drafter* const> drafters, size_t from, size_t to) {
  advance(rig, lane, [drafters](const Committed& c) { for (Drafter* d : drafters) d->observe(c); }, from, to);
}

DraftRequest request_for(const Lane& lane, const SamplingParams& sampling, int depth, bool tree) {
  return {.position = lane.state->length() + 1, .anchor = lane.tokens[static_cast<size_t>(lane.state->length())], .depth = depth,
          .nodes = tree ? 3 * depth : depth, .tree = tree, .sampling = &sampling};
}

void expect_same(const Draft& a, const Draft& b) {
  ASSERT_EQ(a.nodes.size(), b.nodes.size());
  for (size_t i = 0; i < a.nodes.size(); ++i) {
    EXPECT_EQ(a.nodes[i].token, b.nodes[i].token);
    EXPECT_EQ(a.nodes[i].parent, b.nodes[i].parent);
    EXPECT_EQ(a.nodes[i].rank, b.nodes[i].rank);
    EXPECT_EQ(a.nodes[i].probability, b.nodes[i].probability);
  }
}

std::unique_ptr<Drafter> make(Rig& rig, Route route) {
  const Route one[] = {route};
  return std::move(rig.drafters(one)[0]);
}

// Three lanes of different lengths and texts, depths 3, 7 and 5, greedy and sampled, chains and trees: bit for bit what each is alone.
TEST(DrafterGroup, LanesTogetherAreLanesAlone) {
  FORETOKEN_NEEDS_DEMO("demo-dense");
  Rig& rig = Rig::dense();
  for (const Route route : {Route::kMtp, Route::kBlock})
    for (const float temperature : {0.0f, 0.8f}) {
      SCOPED_TRACE(std::string(route_name(route)) + " " + std::to_string(temperature));
      SamplingParams sampling;
      sampling.temperature = temperature;
      sampling.seed = 5;
      std::vector<Lane> lanes;
      std::vector<std::unique_ptr<Drafter>> alone, together;
      for (int l = 0; l < 3; ++l) {
        lanes.push_back({rig.model->target->make_lane(), text(l, 40 + 23 * l)});
        alone.push_back(make(rig, route));
        together.push_back(make(rig, route));
      }
      for (int cycle = 0; cycle < 3; ++cycle) {
        std::vector<Drafter*> group;
        std::vector<DraftRequest> requests;
        std::vector<Draft> expected(3), drafts(3);
        for (size_t l = 0; l < 3; ++l) {
          Drafter* both[] = {alone[l].get(), together[l].get()};
          const size_t from = static_cast<size_t>(lanes[l].state->length());
          advance(rig, lanes[l], both, from, from + (cycle == 0 ? 20 + 11 * l : 1 + l));
          requests.push_back(request_for(lanes[l], sampling, l == 0 ? 3 : l == 1 ? 7 : 5, cycle == 1));
          group.push_back(together[l].get());
          alone[l]->propose(requests[l], expected[l]);
        }
        group[0]->propose_group(group, requests, drafts);
        for (size_t l = 0; l < 3; ++l) {
          EXPECT_FALSE(drafts[l].empty());
          expect_same(drafts[l], expected[l]);
        }
      }
    }
}

// A drafter restored from what another saved goes on as that one does, at lengths around pages and beyond the ring's first turn.
TEST(DrafterGroup, RestoredIsUninterrupted) {
  FORETOKEN_NEEDS_DEMO("demo-dense");
  Rig& rig = Rig::dense();
  const SamplingParams sampling;
  for (const Route route : {Route::kMtp, Route::kBlock, Route::kCopy})
    for (const size_t length : {size_t{1}, size_t{31}, size_t{32}, size_t{33}, size_t{100}, size_t{700}}) {
      SCOPED_TRACE(std::string(route_name(route)) + " " + std::to_string(length));
      Lane lane{rig.model->target->make_lane(), text(3, static_cast<int>(length) + 20)};
      const auto kept = make(rig, route), restored = make(rig, route);
      Drafter* one[] = {kept.get()};
      advance(rig, lane, one, 0, length);
      const std::vector<std::byte> saved = kept->save();
      EXPECT_EQ(saved.empty(), route == Route::kCopy);
      const std::span<const TokenId> history = std::span(lane.tokens).first(length);
      EXPECT_TRUE(restored->restore(history, saved));
      Drafter* both[] = {kept.get(), restored.get()};
      for (int cycle = 0; cycle < 3; ++cycle) {
        const size_t from = static_cast<size_t>(lane.state->length());
        advance(rig, lane, both, from, from + 1 + static_cast<size_t>(cycle) * 2);
        Draft a, b;
        kept->propose(request_for(lane, sampling, 6, true), a);
        restored->propose(request_for(lane, sampling, 6, true), b);
        if (route != Route::kCopy) { EXPECT_FALSE(a.empty()); }
        expect_same(a, b);
      }
    }
}

// Truncated, lengthened, of another length of history, of another drafter, and bent headers: refused, and the drafter works without.
TEST(DrafterGroup, WhatIsNoWindowIsRefused) {
  FORETOKEN_NEEDS_DEMO("demo-dense");
  Rig& rig = Rig::dense();
  const SamplingParams sampling;
  for (const Route route : {Route::kMtp, Route::kBlock}) {
    SCOPED_TRACE(std::string(route_name(route)));
    Lane lane{rig.model->target->make_lane(), text(1, 80)};
    const auto from = make(rig, route), to = make(rig, route), other = make(rig, route == Route::kMtp ? Route::kBlock : Route::kMtp);
    Drafter* both[] = {from.get(), other.get()};
    advance(rig, lane, both, 0, 50);
    const std::vector<std::byte> good = from->save();
    const std::span<const TokenId> history = std::span(lane.tokens).first(50);
    std::vector<std::vector<std::byte>> bad = {{}, other->save(), good, good};
    bad[2].pop_back();
    bad[3].push_back(std::byte{0});
    for (size_t at = 0; at < 64; ++at) {
      bad.push_back(good);
      bad.back()[at] ^= std::byte{0x40};
    }
    for (const auto& bytes : bad) EXPECT_FALSE(to->restore(history, bytes));
    EXPECT_FALSE(to->restore(std::span(lane.tokens).first(49), good));
    Drafter* one[] = {to.get()};
    EXPECT_FALSE(to->restore(history, {}));
    advance(rig, lane, one, 50, 60);
    Draft draft;
    to->propose(request_for(lane, sampling, 5, false), draft);
    EXPECT_FALSE(draft.empty());
    EXPECT_TRUE(to->restore(history, good));
  }
}

// A speculator's memory holds every drafter's part, whatever their order, and a part that is absent or cut off costs only itself.
TEST(DrafterGroup, ASpeculatorKeepsEveryPart) {
  FORETOKEN_NEEDS_DEMO("demo-dense");
  Rig& rig = Rig::dense();
  const SteadyClock clock;
  const auto speculator = [&](std::initializer_list<Route> routes) {
    std::vector<std::unique_ptr<Drafter>> drafters;
    for (const Route route : routes) drafters.push_back(make(rig, route));
    return Speculator(std::move(drafters), {}, nullptr, clock);
  };
  Speculator kept = speculator({Route::kMtp, Route::kCopy, Route::kBlock});
  Lane lane{rig.model->target->make_lane(), text(2, 60)};
  advance(rig, lane, [&](const Committed& c) { kept.observe(c); }, 0, 50);
  const std::span<const TokenId> history = std::span(lane.tokens).first(50);
  const std::vector<std::byte> saved = kept.save();

  Speculator same = speculator({Route::kMtp, Route::kCopy, Route::kBlock});
  EXPECT_LT(same.save().size(), saved.size()) << "the reference is not trivial";
  same.restore(history, saved);
  EXPECT_EQ(same.save(), saved);

  // Another order: the same parts; restored into the first order again, the same bytes.
  Speculator turned = speculator({Route::kBlock, Route::kMtp, Route::kCopy});
  turned.restore(history, saved);
  const std::vector<std::byte> other = turned.save();
  EXPECT_EQ(other.size(), saved.size());
  EXPECT_NE(other, saved);
  Speculator back = speculator({Route::kMtp, Route::kCopy, Route::kBlock});
  back.restore(history, other);
  EXPECT_EQ(back.save(), saved);

  // The block drafter's part, the last, is cut off: the head's is taken, and the block drafter starts without.
  Speculator cut = speculator({Route::kMtp, Route::kCopy, Route::kBlock});
  cut.restore(history, std::span(saved).first(saved.size() - 1));
  Speculator head = speculator({Route::kMtp});
  head.restore(history, saved);
  const std::vector<std::byte> some = cut.save(), first = head.save();
  EXPECT_LT(some.size(), saved.size());
  ASSERT_LE(first.size(), some.size());
  EXPECT_TRUE(std::equal(first.begin(), first.end(), some.begin()));
}

}  // namespace
}  // namespace foretoken
