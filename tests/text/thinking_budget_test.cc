// A thinking budget forces its mark at the exact token, along any path of drafted tokens and back, alone and joined with a rule that begins
// behind the mark.
#include "text/thinking_budget.h"

#include <gtest/gtest.h>

#include <random>

namespace foretoken {
namespace {

constexpr int kVocab = 100;
constexpr TokenId kThink = 70, kThinkEnd = 71;

ThinkingBudget budget_of(int64_t tokens, bool in_reasoning = true) {
  return ThinkingBudget({.think_begin = kThink, .think_end = kThinkEnd, .in_reasoning = in_reasoning, .tokens = tokens, .vocab = kVocab});
}

bool bit(std::span<const uint64_t> mask, TokenId token) {
  return mask.empty() || (mask[static_cast<size_t>(token) / 64] >> (token % 64) & 1) != 0;
}

template <class Rules>
int allowed(Rules& rules) {
  int count = 0;
  for (TokenId token = 0; token < kVocab; ++token) {
    EXPECT_EQ(rules.allows(token), bit(rules.mask(), token)) << token;
    count += rules.allows(token);
  }
  return count;
}

TEST(ThinkingBudget, TheMarkIsForcedAtTheExactToken) {
  for (int64_t tokens = 0; tokens < 40; ++tokens) {
    ThinkingBudget budget = budget_of(tokens);
    for (int64_t i = 0; i < tokens; ++i) {
      EXPECT_EQ(allowed(budget), kVocab);
      EXPECT_FALSE(budget.advance(static_cast<TokenId>(i)));
    }
    EXPECT_EQ(allowed(budget), 1);
    EXPECT_TRUE(budget.allows(kThinkEnd));
    budget.advance(kThinkEnd);
    EXPECT_EQ(allowed(budget), kVocab);
    EXPECT_EQ(budget.used(), tokens);
  }
}

TEST(ThinkingBudget, AModelThatEndsEarlierIsFree) {
  ThinkingBudget budget = budget_of(3);
  budget.advance(1);
  budget.advance(kThinkEnd);
  for (int i = 0; i < 10; ++i) budget.advance(5);
  EXPECT_EQ(allowed(budget), kVocab);
}

TEST(ThinkingBudget, ReasoningThatTheModelOpensCountsFromThere) {
  ThinkingBudget budget = budget_of(2, false);
  for (int i = 0; i < 5; ++i) budget.advance(3);
  EXPECT_EQ(allowed(budget), kVocab);
  budget.advance(kThink);
  budget.advance(3);
  EXPECT_EQ(allowed(budget), kVocab);
  budget.advance(3);
  EXPECT_EQ(allowed(budget), 1);
  budget.advance(kThinkEnd);
  budget.advance(kThink);  // opened again with nothing left
  EXPECT_EQ(allowed(budget), 1);
}

TEST(ThinkingBudget, RewindingAlongRandomPathsGivesThePathsOwnState) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const auto tokens = static_cast<int64_t>(random() % 6);
    ThinkingBudget budget = budget_of(tokens, random() % 2 == 0);
    const ThinkingBudget fresh = budget;
    std::vector<TokenId> path;
    for (int step = 0; step < 60; ++step) {
      if (random() % 3 == 0) {
        path.resize(random() % (path.size() + 1));
        budget.rewind(static_cast<int64_t>(path.size()));
      } else {
        const TokenId token = random() % 4 == 0 ? kThink + static_cast<TokenId>(random() % 2) : static_cast<TokenId>(random() % kVocab);
        budget.advance(token);
        path.push_back(token);
      }
      ThinkingBudget again = fresh;
      for (const TokenId token : path) again.advance(token);
      ASSERT_EQ(budget.depth(), static_cast<int64_t>(path.size()));
      ASSERT_EQ(budget.must_end(), again.must_end());
      ASSERT_EQ(budget.used(), again.used());
    }
  }
}

// Stands for a grammar that begins behind the mark: all but token 0 until then, afterwards only tokens 10 and 11, and 11 ends the answer.
class AfterMark {
 public:
  AfterMark() : trail_{false}, before_(2, ~uint64_t{0}), behind_(2, 0) {
    before_[0] &= ~uint64_t{1};
    behind_[0] = uint64_t{3} << 10;
  }
  std::span<const uint64_t> mask() const { return trail_.back() ? behind_ : before_; }
  bool allows(TokenId token) const { return bit(mask(), token); }
  bool advance(TokenId token) {
    trail_.push_back(trail_.back() || token == kThinkEnd);
    return trail_.size() > 1 && trail_[trail_.size() - 2] && token == 11;
  }
  int64_t depth() const { return static_cast<int64_t>(trail_.size()) - 1; }
  void rewind(int64_t depth) { trail_.resize(static_cast<size_t>(depth) + 1); }

 private:
  std::vector<bool> trail_;
  std::vector<uint64_t> before_, behind_;
};

TEST(AllRules, ABudgetAndAGrammarThatBeginsBehindTheMark) {
  ThinkingBudget budget = budget_of(2);
  AfterMark grammar;
  AllRules rules(budget, grammar);
  EXPECT_EQ(allowed(rules), kVocab - 1);
  rules.advance(4);
  rules.advance(5);
  EXPECT_EQ(allowed(rules), 1);
  EXPECT_TRUE(rules.allows(kThinkEnd));
  EXPECT_FALSE(rules.advance(kThinkEnd));
  EXPECT_EQ(allowed(rules), 2);
  EXPECT_TRUE(rules.advance(11));
  EXPECT_EQ(rules.depth(), 4);
  rules.rewind(1);
  EXPECT_EQ(budget.depth(), 1);
  EXPECT_EQ(grammar.depth(), 1);
  EXPECT_EQ(allowed(rules), kVocab - 1);
}

}  // namespace
}  // namespace foretoken
