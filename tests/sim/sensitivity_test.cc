// What the simulation's answers prove rests on this: the tiny model's next tokens depend on everything that a lane remembers. One K/V slot,
// one float of recurrent state, one row of a convolution tail or a shifted position that is wrong changes what follows; nothing wrong
// changes nothing.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/sim_model.h"

namespace foretoken::sim {
namespace {

struct Continuation {
  SimModel& model;
  TargetModel& target;

  // Greedy tokens behind `prompt`, whose lane `change` may touch after the prompt; rows behind it stand `shift` positions too far.
  Ids operator()(const Ids& prompt, const std::function<void(LaneState&)>& change, int shift = 0) {
    const auto lane = target.make_lane();
    TokenId next = -1;
    run_prompt(target, *lane, prompt, 64, std::vector<int64_t>{static_cast<int64_t>(prompt.size()) - 1}, [&](int64_t, int64_t, const ForwardResult& r) {
      if (r.logits.rows > 0) next = best(r.logits);
      return true;
    });
    if (change) change(*lane);
    Ids tokens;
    for (int i = 0; i < 40; ++i) {
      tokens.push_back(next);
      const RowInput row = text_row(next, lane->length() + shift);
      const LaneRows rows{.first_row = 0, .rows = 1, .prefix = lane->length(), .settled = 1, .parent = {}};
      const int wanted = 0;
      LaneState* lanes[] = {lane.get()};
      next = best(target.forward({.inputs = {&row, 1}, .lanes = {&rows, 1}, .logits_rows = {&wanted, 1}}, lanes).logits);
      target.commit(*lane, std::vector<int>{0});
    }
    return tokens;
  }
  static TokenId best(View logits) { return static_cast<TokenId>(std::max_element(logits.f32(), logits.f32() + logits.cols) - logits.f32()); }
};

TEST(Sensitivity, EveryPartOfALaneMatters) {
  constexpr int kCases = 40;
  for (const bool sparse : {false, true}) {
    SimModel model(sparse);
    const auto target = model.make_target(KvFormat::kBF16);
    const KvLayout& kv = target->pages().layout();
    const ModelConfig& config = model.config();
    Continuation continuation{model, *target};
    test::TestRandom random(3);
    std::map<std::string, int> changed;
    int untouched = 0, distinct = 0;
    for (int i = 0; i < kCases; ++i) {
      Ids prompt;
      for (int n = 20 + random.below(100); n > 0; --n) prompt.push_back(random.below(config.vocab));
      const Ids alone = continuation(prompt, {});
      untouched += continuation(prompt, [](LaneState&) {}) == alone;
      Ids sorted = alone;
      std::sort(sorted.begin(), sorted.end());
      distinct += static_cast<int>(std::unique(sorted.begin(), sorted.end()) - sorted.begin());
      const auto count = [&](const std::string& what, const std::function<void(LaneState&)>& change, int shift = 0) {
        changed[what] += continuation(prompt, change, shift) != alone;
      };
      const int slot = random.below(static_cast<int>(prompt.size())), layer = random.below(config.attention_layers());
      const auto halves = [&](LaneState& lane, size_t offset) { return reinterpret_cast<uint16_t*>(lane.pages()[static_cast<size_t>(slot / kPageTokens)] + offset); };
      count("key", [&](LaneState& lane) {
        for (int d = 0; d < kv.head_dim; ++d) halves(lane, kv.key_offset(layer, 0))[d * kPageTokens + slot % kPageTokens] ^= 0x8000;
      });
      count("value", [&](LaneState& lane) {
        for (int d = 0; d < kv.head_dim; ++d) halves(lane, kv.value_offset(layer, 0))[slot % kPageTokens * kv.head_dim + d] ^= 0x8000;
      });
      const int delta = random.below(config.delta_layers()), at = random.below(static_cast<int>(config.delta.state_floats()));
      count("state", [&](LaneState& lane) {
        float& value = lane.delta()[static_cast<size_t>(delta)].state[at];
        value = -value - 0.1f;
      });
      const int row = random.below(config.delta.kernel - 1), channels = config.delta.channels();
      count("tail", [&](LaneState& lane) {
        float* tail = lane.delta()[static_cast<size_t>(delta)].tail + row * channels;
        std::fill(tail, tail + channels, 0.0f);
      });
      count("position", {}, 1);
    }
    EXPECT_EQ(untouched, kCases);
    EXPECT_GT(distinct, kCases * 15);  // no model that repeats itself
    EXPECT_GE(changed["key"], kCases * 7 / 10);
    EXPECT_GE(changed["value"], kCases * 8 / 10);
    EXPECT_GE(changed["tail"], kCases * 9 / 10);
    EXPECT_GE(changed["position"], kCases * 9 / 10);
    EXPECT_GE(changed["state"], kCases / 2);  // one float of 512 that feeds one of eight columns of one head
    for (const auto& [what, cases] : changed) std::printf("%s: %s changed the tokens in %d of %d cases\n", sparse ? "sparse" : "dense", what.c_str(), cases, kCases);
  }
}

}  // namespace
}  // namespace foretoken::sim
