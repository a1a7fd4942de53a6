// A token chosen from what Backend::choose found out about a row is the one chosen from the row.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/rng.h"
#include "decode/sampling.h"
#include "ops/ops.h"

namespace foretoken {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Outcome {
  int settled = 0, unsettled = 0;
  std::set<TokenId> tokens;
};

// Rows of one vector of logits at `positions` successive positions.
Outcome compare(const std::vector<float>& logits, SamplingParams params, int positions = 12) {
  const auto backend = make_reference_backend();
  const int64_t vocab = static_cast<int64_t>(logits.size());
  Outcome outcome;
  Sampler whole, apart;
  Choices choices;
  for (int position = 0; position < positions; ++position) {
    const ChoiceSpec spec = Sampler::spec(params, static_cast<uint64_t>(position));
    backend->choose(View::of(const_cast<float*>(logits.data()), 1, vocab), {&spec, 1}, choices);
    const auto token = apart.select(choices, 0, vocab, params, static_cast<uint64_t>(position));
    const auto expected = whole.select(logits, params, static_cast<uint64_t>(position));
    if (!token) {
      ++outcome.unsettled;
      continue;
    }
    EXPECT_TRUE(expected) << "a token was chosen from a row that gives an error";
    if (!expected) continue;
    EXPECT_EQ(*token, *expected) << "position " << position << " T " << params.temperature << " top_k " << params.top_k << " top_p "
                                 << params.top_p << " min_p " << params.min_p;
    outcome.tokens.insert(*token);
    ++outcome.settled;
  }
  return outcome;
}

std::vector<float> random_logits(int vocab, float spread, uint32_t seed) {
  std::vector<float> logits;
  for (int i = 0; i < vocab; ++i) {
    const float u = (static_cast<float>(philox4x32({static_cast<uint32_t>(i), seed, 0, 0}, {1, 2})[0]) + 0.5f) * 0x1p-32f;
    logits.push_back(-spread * std::log(u));
  }
  return logits;
}

TEST(Choice, EveryFilterGivesTheRowsToken) {
  int settled = 0, unsettled = 0;
  size_t most_tokens = 0;
  for (const int vocab : {1, 7, kLeaders, kLeaders + 1, 3000})
    for (const float spread : {0.3f, 2.0f})
      for (const float temperature : {0.0f, 0.6f, 1.0f, 1.7f})
        for (const int top_k : {0, 1, 20, kLeaders - 1, kLeaders, 400})
          for (const float top_p : {1.0f, 0.8f, 0.3f})
            for (const float min_p : {0.0f, 0.05f}) {
              SamplingParams params;
              params.temperature = temperature, params.top_k = top_k, params.top_p = top_p, params.min_p = min_p;
              params.seed = static_cast<uint64_t>(vocab) * 31 + static_cast<uint64_t>(top_k);
              const Outcome outcome = compare(random_logits(vocab, spread, static_cast<uint32_t>(vocab)), params, 6);
              settled += outcome.settled;
              unsettled += outcome.unsettled;
              most_tokens = std::max(most_tokens, outcome.tokens.size());
              const bool always = temperature == 0 || (top_k == 0 && top_p == 1) || (top_k > 0 && top_k < kLeaders);
              EXPECT_TRUE(!always || outcome.unsettled == 0) << vocab << " " << top_k << " " << top_p;
            }
  EXPECT_GT(settled, 4000);
  EXPECT_GT(unsettled, 100) << "no case needed its row: the test does not reach the boundary";
  EXPECT_GT(most_tokens, 4u);
}

// Logits that differ and have one z: the sampler goes by the lower id, the leaders by the logit.
TEST(Choice, EqualAfterDivisionGoesByTheId) {
  std::vector<float> logits(200, -20.0f);
  logits[150] = 100.0f;
  const float top = -0.25f;
  float next = top;
  for (int i = 120; i > 20; --i) {  // falling ids, ever so slightly falling logits: 100 of them, more than the leaders
    logits[static_cast<size_t>(i)] = next;
    next = std::nextafterf(next, -1.0f);
  }
  SamplingParams params;
  params.temperature = 1.0f;
  int settled = 0, unsettled = 0;
  for (const int top_k : {1, 2, 10, 30, 47}) {
    params.top_k = top_k;
    const Outcome outcome = compare(logits, params, 20);
    settled += outcome.settled;
    unsettled += outcome.unsettled;
  }
  EXPECT_GT(settled, 0);
  EXPECT_GT(unsettled, 0);
}

TEST(Choice, DamagedRowsAreLeftToTheSampler) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf})
    for (const float temperature : {0.0f, 1.0f}) {
      std::vector<float> logits = random_logits(500, 1, 3);
      logits[277] = bad;
      SamplingParams params;
      params.temperature = temperature;
      EXPECT_EQ(compare(logits, params).settled, 0);
    }
  std::vector<float> nothing(100, -kInf);
  EXPECT_EQ(compare(nothing, {}).settled, 0);
  nothing[40] = -3;  // all but one are out of the question
  SamplingParams params;
  params.temperature = 1.0f;
  EXPECT_EQ(compare(nothing, params).tokens, std::set<TokenId>{40});
  params.top_p = 0.9f;
  EXPECT_EQ(compare(nothing, params).tokens, std::set<TokenId>{40});
  std::vector<float> zeros(60, -1.0f);
  zeros[50] = -0.0f, zeros[55] = 0.0f;
  EXPECT_EQ(compare(zeros, {}).tokens, std::set<TokenId>{50});
}

}  // namespace
}  // namespace foretoken
