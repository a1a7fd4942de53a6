// The whole cycle over a toy target: any drafter, any verify mode, greedy and sampled, gives plain decoding; counters add up; rules and
// budgets hold; and the sampled distribution is the exact one.
#include "decode/speculator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support/run_rules.h"
#include "support/toy_generation.h"

namespace foretoken {
namespace {

using namespace test;

SamplingParams sampling_of(int which, uint64_t seed = 5) {
  SamplingParams s;
  s.temperature = which == 0 ? 0.0f : which == 1 ? 0.7f : 1.0f;
  if (which == 1) s.top_p = 0.95f;
  if (which == 2) s.presence_penalty = 0.3f;
  s.seed = seed;
  return s;
}

enum class Forced { kRight, kWrong, kRandom, kRightThenWrong, kTree };

// Drafters that are always right, always wrong, random, right up to an offset that moves, or a tree with the truth somewhere in it.
ScriptedDrafter::Guess forced(Forced kind, const ToyTarget& target, const SamplingParams& sampling) {
  auto offset = std::make_shared<int>(0);
  return [=, &target, &sampling](std::span<const TokenId> sequence, const DraftRequest& request, Draft& draft) {
    TestRandom random(sequence.size() * 31 + 7);
    const int depth = std::min({request.depth, request.nodes, 8});
    std::vector<TokenId> context(sequence.begin(), sequence.end());
    *offset = (*offset + 1) % 9;
    int parent = -1;
    for (int i = 0; i < depth && static_cast<int>(draft.nodes.size()) < request.nodes; ++i) {
      const TokenId truth = toy_token(target, context, sampling, nullptr);
      const TokenId other = (truth + 1 + random.below(target.vocab() - 1)) % target.vocab();
      const bool right = kind == Forced::kRight || kind == Forced::kTree || (kind == Forced::kRandom && random.below(2)) ||
                         (kind == Forced::kRightThenWrong && i < *offset);
      if (kind == Forced::kTree && request.tree) draft.add(other, parent, 0.3f, 0);
      parent = draft.add(right ? truth : other, parent, 0.6f, kind == Forced::kTree && request.tree ? 1 : 0);
      if (static_cast<int>(draft.nodes.size()) > request.nodes) {
        draft.nodes.resize(static_cast<size_t>(request.nodes));
        return;
      }
      context.push_back(right ? truth : other);
    }
  };
}

// Every forced drafter, alone and with copy beside it, in every verify mode, pinned and free, greedy and sampled: the answer is plain
// decoding's, and the counters obey their definitions.
TEST(Speculator, AnyDrafterGivesPlainDecoding) {
  int64_t accepted = 0, rejected = 0;
  for (const Forced kind : {Forced::kRight, Forced::kWrong, Forced::kRandom, Forced::kRightThenWrong, Forced::kTree})
    for (const VerifyMode mode : {VerifyMode::kAuto, VerifyMode::kChain, VerifyMode::kLive, VerifyMode::kTree})
      for (int which = 0; which < 3; ++which)
        for (const int width : {0, 1, 5, 16})
          for (const bool copy : {false, true}) {
            const ToyTarget target(12, 40 + static_cast<uint64_t>(which), 2);
            // Penalties depend on counts that the forced drafter does not know: it is then only sometimes right.
            const SamplingParams sampling = sampling_of(which);
            SamplingParams guess = sampling;
            guess.presence_penalty = 0;
            ScriptedClock clock;
            std::vector<std::unique_ptr<Drafter>> drafters;
            drafters.push_back(std::make_unique<ScriptedDrafter>(forced(kind, target, guess)));
            if (copy) drafters.push_back(make_lookup_drafter());
            Speculator speculator(std::move(drafters), {.verify = mode, .width = width, .live_threshold = width == 5 ? 0.2f : -1.0f},
                                  nullptr, clock);
            const int tokens = 60 + width;
            const ToyAnswer answer = toy_generate(target, speculator, clock, {1, 2, 3}, tokens, sampling,
                                                  [](int rows) { return 1e-3 * (1 + 0.03 * rows); });
            ASSERT_EQ(answer.tokens, toy_plain(target, {1, 2, 3}, tokens, sampling))
                << static_cast<int>(kind) << " " << verify_mode_name(mode) << " " << which << " " << width << " " << copy;
            const SpeculationCounters& c = speculator.counters();
            ASSERT_EQ(c.accepted + c.cycles, tokens - 1);
            int64_t drafted = 0, verified = 0, by = 0;
            for (const auto& of : c.by_drafter) {
              drafted += of.drafted;
              verified += of.verified;
              by += of.accepted;
              ASSERT_LE(of.accepted, of.verified);
              ASSERT_LE(of.verified, of.drafted);
            }
            ASSERT_EQ(drafted, c.drafted);
            ASSERT_EQ(verified + c.cycles, c.verified_rows);
            ASSERT_EQ(by, c.accepted);
            int64_t plans = 0;
            for (const auto& [name, cycles] : c.plans) plans += cycles;
            ASSERT_EQ(plans, c.cycles);
            if (width > 0) { ASSERT_LE(answer.largest_proposal, width); }
            if (kind == Forced::kRight && width == 5 && which < 2 && !copy && mode == VerifyMode::kChain) {
              ASSERT_GT(c.tokens_per_cycle(), 5.0);  // always right: each cycle gives width + 1
            }
            accepted += c.accepted;
            rejected += verified - c.accepted;
          }
  EXPECT_GT(accepted, 5000);
  EXPECT_GT(rejected, 5000);
}

// A pinned plan does not follow the clock: equal proposals whatever passes cost.
TEST(Speculator, PinnedPlanIgnoresTheClock) {
  const ToyTarget target(12, 3, 2);
  const SamplingParams sampling;
  std::vector<int64_t> counts;
  for (const double slope : {0.0, 10.0}) {
    ScriptedClock clock;
    std::vector<std::unique_ptr<Drafter>> drafters;
    drafters.push_back(std::make_unique<ScriptedDrafter>(forced(Forced::kRandom, target, sampling)));
    Speculator speculator(std::move(drafters), {.verify = VerifyMode::kChain, .width = 4}, nullptr, clock);
    toy_generate(target, speculator, clock, {1, 2, 3}, 100, sampling, [slope](int rows) { return 1e-3 * (1 + slope * rows); });
    const auto& c = speculator.counters();
    counts.insert(counts.end(), {c.cycles, c.drafted, c.accepted});
  }
  EXPECT_EQ(counts[0], counts[3]);
  EXPECT_EQ(counts[1], counts[4]);
  EXPECT_EQ(counts[2], counts[5]);
  EXPECT_GT(counts[2], 0);
}

// The end of the answer takes effect at the exact token at every offset inside an accepted block, and nothing beyond it is emitted.
TEST(Speculator, EndsAtEveryOffset) {
  const ToyTarget target(50, 8, 3);
  const SamplingParams sampling;
  const auto expected = toy_plain(target, {4, 5}, 40, sampling);
  for (int offset = 0; offset < 24; ++offset) {
    ScriptedClock clock;
    std::vector<std::unique_ptr<Drafter>> drafters;
    drafters.push_back(std::make_unique<ScriptedDrafter>(forced(Forced::kRight, target, sampling)));
    Speculator speculator(std::move(drafters), {.verify = VerifyMode::kChain, .width = 8}, nullptr, clock);
    int seen = 0;
    const auto answer = toy_generate(target, speculator, clock, {4, 5}, 40, sampling, [](int) { return 1e-3; },
                                     [&](TokenId) { return seen++ == offset; });
    ASSERT_EQ(answer.tokens, std::vector<TokenId>(expected.begin(), expected.begin() + offset + 1));
    ASSERT_EQ(speculator.counters().accepted + speculator.counters().cycles, offset);
  }
}

// Forbids a fifth of the tokens, which ones depends on the last token and on how many there were: a rule whose state depends on every token, with an undo
// log instead of copies.
class AlternatingRules final : public TokenRules {
 public:
  explicit AlternatingRules(int vocab) : vocab_(vocab) {}
  TokenMask mask() override {
    bits_.assign(static_cast<size_t>(vocab_ + 63) / 64, 0);
    for (int t = 0; t < vocab_; ++t)
      if (ok(t)) bits_[static_cast<size_t>(t / 64)] |= uint64_t{1} << (t % 64);
    return bits_;
  }
  bool allows(TokenId token) override {
    ++asked;
    return ok(token);
  }
  bool advance(TokenId token) override {
    CHECK(ok(token));
    log_.push_back(token);
    return log_.size() == 30;
  }
  int64_t depth() const override { return static_cast<int64_t>(log_.size()); }
  void rewind(int64_t depth) override { log_.resize(static_cast<size_t>(depth)); }
  int asked = 0;

 private:
  bool ok(TokenId token) const { return log_.empty() || (token + log_.back() + static_cast<int>(log_.size())) % 5 != 0; }
  int vocab_;
  std::vector<TokenId> log_;
  std::vector<uint64_t> bits_;
};

// Drafts are pruned by the rules without touching their state: what is proposed is allowed along its whole path.
TEST(Speculator, RulesPruneWithoutCopies) {
  AlternatingRules rules(40);
  rules.advance(7);
  ScriptedClock clock;
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(std::make_unique<ScriptedDrafter>([](std::span<const TokenId>, const DraftRequest& request, Draft& draft) {
    TestRandom random(17);
    for (int i = 0; i < request.nodes; ++i) {
      const int parent = random.below(i + 1) - 1;
      draft.add(random.below(40), parent, 0.9f, i % 3);
    }
  }));
  Speculator speculator(std::move(drafters), {.verify = VerifyMode::kTree, .width = 60}, nullptr, clock);
  speculator.restart({});
  speculator.observe({.first = 0, .tokens = std::vector<TokenId>{1}, .next = 7});
  const SamplingParams sampling;
  const Proposal& p = speculator.propose({.context = 1, .anchor = 7, .budget = 100, .sampling = &sampling, .rules = &rules});
  EXPECT_EQ(rules.depth(), 1);
  EXPECT_GT(rules.asked, 20);
  ASSERT_GT(p.size(), 5);
  ASSERT_LT(p.size(), 60);
  for (int node = 0; node < p.size(); ++node) {
    AlternatingRules fresh(40);
    fresh.advance(7);
    std::vector<TokenId> path;
    for (int n = node; n >= 0; n = p.parent(n)) path.insert(path.begin(), p.token(n));
    for (const TokenId t : path) {
      ASSERT_TRUE(fresh.allows(t));
      fresh.advance(t);
    }
  }
}

// A run that fills the plan's width leaves nothing to a model drafter; a shorter one is where it goes on.
TEST(Speculator, AForeseenRunComesFirst) {
  test::RunRules rules(40);
  int drafts = 0;
  for (const auto& [width, run] : {std::pair(2, 4), std::pair(4, 4), std::pair(6, 4)}) {
    rules.rewind(0);
    rules.advance(8);  // begins a run of four
    ScriptedClock clock;
    std::vector<std::unique_ptr<Drafter>> drafters;
    drafters.push_back(std::make_unique<ScriptedDrafter>([&](std::span<const TokenId>, const DraftRequest& request, Draft& draft) {
      ++drafts;
      std::vector<TokenId> path, ahead;
      std::vector<RankedCandidate> ranked;
      std::vector<ScoredCandidate> all;
      for (TokenId t = 0; t < 40; ++t) all.push_back({t, static_cast<float>(t)});
      for (int i = 0; i < request.depth; ++i) {
        rank_successors(request, all, path, request.position + i, ahead, ranked);
        if (ranked.empty()) break;
        draft.add(ranked[0].token, i - 1, ranked[0].probability, 0, ranked[0].foreseen ? Route::kGrammar : draft.by);
        path.push_back(ranked[0].token);
        if (ranked[0].foreseen) ahead.erase(ahead.begin());
      }
    }));
    drafters.push_back(make_grammar_drafter());
    Speculator speculator(std::move(drafters), {.verify = VerifyMode::kChain, .width = width}, nullptr, clock);
    speculator.restart({});
    speculator.observe({.first = 0, .tokens = std::vector<TokenId>{1}, .next = 8});
    const SamplingParams sampling;
    const Proposal& p = speculator.propose({.context = 1, .anchor = 8, .budget = 100, .sampling = &sampling, .rules = &rules});
    EXPECT_EQ(rules.depth(), 1);
    EXPECT_EQ(p.size(), width);
    EXPECT_TRUE(p.is_chain());
    TokenId last = 8;
    for (int node = 0; node < std::min(width, run); ++node) {
      EXPECT_EQ(p.token(node), last = (last * 7 + 3) % 40);
      EXPECT_EQ(p.by(node), Route::kGrammar);
    }
    for (int node = run; node < width; ++node) EXPECT_EQ(p.by(node), Route::kScripted);
    EXPECT_EQ(drafts, width > run);
    EXPECT_EQ(speculator.counters().of(Route::kGrammar).drafted, std::min(width, run));
  }
}

// What candidates may follow a path and what they are worth: forbidden ones go, and take the certainty of what is left with them.
TEST(Speculator, CandidatesUnderRules) {
  const SamplingParams sampling;
  std::vector<RankedCandidate> all, masked;
  const std::vector<ScoredCandidate> candidates = {{5, 4.0f}, {7, 3.0f}, {9, 1.0f}};
  rank_candidates(candidates, sampling, nullptr, {}, 10, all);
  ASSERT_EQ(all.size(), 3u);
  const uint64_t mask[] = {uint64_t{1} << 7 | uint64_t{1} << 9};
  rank_candidates(candidates, sampling, nullptr, {}, 10, masked, mask);
  ASSERT_EQ(masked.size(), 2u);
  EXPECT_EQ(masked[0].token, 7);
  EXPECT_EQ(masked[0].index, 1);
  EXPECT_GT(masked[0].probability, all[1].probability);
  EXPECT_LT(masked[0].probability, all[1].probability / (all[1].probability + all[2].probability));
  const uint64_t nothing[] = {0};
  rank_candidates(candidates, sampling, nullptr, {}, 10, masked, nothing);
  EXPECT_TRUE(masked.empty());
  const uint64_t everything[] = {~uint64_t{0}};
  rank_candidates(candidates, sampling, nullptr, {}, 10, masked, everything);
  ASSERT_EQ(masked.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(masked[i].probability, all[i].probability);
}

// ---- Sampled distributions

// The exact probability of each pair of tokens: products of the filtered distributions, by enumeration.
std::map<std::pair<TokenId, TokenId>, double> exact_pairs(const ToyTarget& target, const std::vector<TokenId>& prompt, SamplingParams s) {
  std::map<std::pair<TokenId, TokenId>, double> p;
  Sampler sampler;
  const auto distribution = [&](const std::vector<TokenId>& context) {
    const auto kept = *sampler.kept(target.logits(context), s);
    std::vector<std::pair<TokenId, double>> d;
    double sum = 0;
    for (const auto& c : kept) sum += std::exp(c.z);
    for (const auto& c : kept) d.emplace_back(c.id, std::exp(c.z) / sum);
    return d;
  };
  for (const auto& [a, pa] : distribution(prompt)) {
    auto context = prompt;
    context.push_back(a);
    for (const auto& [b, pb] : distribution(context)) p[{a, b}] += pa * pb;
  }
  return p;
}

// A drafter that sees the target's logits distorted and draws with the same noise, as model drafters do; adds a second branch.
ScriptedDrafter::Guess coupled(const ToyTarget& target, const SamplingParams& sampling) {
  return [&](std::span<const TokenId> sequence, const DraftRequest& request, Draft& draft) {
    std::vector<TokenId> context(sequence.begin(), sequence.end()), path;
    int parent = -1;
    for (int i = 0; i < std::min(request.depth, 4); ++i) {
      const auto logits = target.logits(context);
      std::vector<ScoredCandidate> scored;
      for (int t = 0; t < target.vocab(); ++t)
        scored.push_back({t, logits[static_cast<size_t>(t)] + 0.8f * static_cast<float>((t * 7 + static_cast<int>(context.size())) % 3)});
      std::vector<RankedCandidate> ranked;
      rank_candidates(scored, sampling, nullptr, path, request.position + i, ranked);
      if (ranked.size() > 1) draft.add(ranked[1].token, parent, ranked[1].probability, 1);
      parent = draft.add(ranked[0].token, parent, ranked[0].probability, 0);
      context.push_back(ranked[0].token);
      path.push_back(ranked[0].token);
    }
  };
}

// Chi-square of the pair of tokens at answer positions `at`, at + 1 against `expected`; degrees of freedom = cells - 1. Rare cells pool.
double chi_square_excess(const std::map<std::pair<TokenId, TokenId>, double>& expected,
                         const std::map<std::pair<TokenId, TokenId>, int>& seen, int total) {
  double chi = 0, pooled_expected = 0, pooled_seen = 0;
  int cells = 0;
  for (const auto& [pair, p] : expected) {
    const double e = p * total;
    const double o = seen.count(pair) ? seen.at(pair) : 0;
    if (e < 5) {
      pooled_expected += e;
      pooled_seen += o;
      continue;
    }
    chi += (o - e) * (o - e) / e;
    ++cells;
  }
  for (const auto& [pair, count] : seen)
    if (!expected.count(pair)) return 1e9;  // impossible under the exact distribution
  if (pooled_expected > 0) {
    chi += (pooled_seen - pooled_expected) * (pooled_seen - pooled_expected) / std::max(pooled_expected, 1.0);
    ++cells;
  }
  const double freedom = cells - 1;
  return (chi - freedom) / std::sqrt(2 * freedom);  // about normal
}

// 2,000 seeds: the first two answer tokens behind a speculated cycle follow the enumerated distribution; an acceptance that prefers what
// was drafted (the classic mistake) does not.
TEST(Speculator, SampledDistributionIsExact) {
  const ToyTarget target(6, 21, 3, 2.5f);
  const std::vector<TokenId> prompt = {1, 4};
  for (int which = 1; which <= 2; ++which) {
    SamplingParams sampling = sampling_of(which);
    sampling.presence_penalty = 0;
    if (which == 2) sampling.top_k = 4;
    const auto expected = exact_pairs(target, prompt, sampling);
    ASSERT_GT(expected.size(), 8u);
    std::map<std::pair<TokenId, TokenId>, int> seen, biased;
    constexpr int kSeeds = 2000;
    int64_t accepted = 0, drafted = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      sampling.seed = static_cast<uint64_t>(seed) * 7919 + 1;
      ScriptedClock clock;
      std::vector<std::unique_ptr<Drafter>> drafters;
      drafters.push_back(std::make_unique<ScriptedDrafter>(coupled(target, sampling)));
      Speculator speculator(std::move(drafters), {.verify = VerifyMode::kTree, .width = 8}, nullptr, clock);
      const auto answer = toy_generate(target, speculator, clock, prompt, 6, sampling, [](int) { return 1e-3; });
      ++seen[{answer.tokens[0], answer.tokens[1]}];
      accepted += speculator.counters().accepted;
      drafted += speculator.counters().drafted;
      // Control arm: the drafted token is taken whenever it is possible at all.
      Draft draft;
      std::vector<TokenId> sequence = prompt;
      sequence.push_back(answer.tokens[0]);
      const DraftRequest request{.position = 3, .anchor = answer.tokens[0], .depth = 1, .nodes = 8};
      coupled(target, sampling)(sequence, request, draft);
      ++biased[{answer.tokens[0], expected.count({answer.tokens[0], draft.nodes.back().token}) ? draft.nodes.back().token : answer.tokens[1]}];
    }
    const double excess = chi_square_excess(expected, seen, kSeeds), control = chi_square_excess(expected, biased, kSeeds);
    std::printf("%zu pairs: chi-square %.2f standard deviations above its mean, control arm %.1f; %.0f%% of drafted accepted\n",
                expected.size(), excess, control, 100.0 * static_cast<double>(accepted) / static_cast<double>(drafted));
    EXPECT_LT(excess, 4.0);
    EXPECT_GT(control, 10.0);
    EXPECT_GT(accepted, kSeeds);
  }
}

// A drafter that proposes nothing for 64 cycles is reported, with a reason.
TEST(Speculator, DormantRoutesAreReported) {
  const ToyTarget target(5000, 8, 30);
  const SamplingParams sampling;
  ScriptedClock clock;
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(make_lookup_drafter());
  Speculator speculator(std::move(drafters), {}, nullptr, clock);
  toy_generate(target, speculator, clock, {4, 5}, 60, sampling, [](int) { return 1e-3; });
  EXPECT_TRUE(speculator.dormant().empty());
  toy_generate(target, speculator, clock, {4, 5}, 60, sampling, [](int) { return 1e-3; });
  ASSERT_EQ(speculator.dormant().size(), 1u);
  EXPECT_NE(speculator.dormant()[0].find("copy has proposed nothing for"), std::string::npos);
  EXPECT_EQ(speculator.counters().drafted, 0);
}

}  // namespace
}  // namespace foretoken
