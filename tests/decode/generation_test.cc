// Speculation on real weights: whatever drafts and however it is verified, ids and lane state are plain decoding's after every cycle.
#include "decode/generation.h"

#include <gtest/gtest.h>

#include <map>

#include "decode/rig.h"
#include "support/run_rules.h"
#include "support/toy_generation.h"

namespace foretoken {
namespace {

using test::Rig;

class GenerationTest : public ::testing::Test {
 protected:
  void SetUp() override { FORETOKEN_NEEDS_DEMO("demo-dense"); }
};

// Token ids of a text-like prompt that holds a repetition, so that copy has something to do.
std::vector<TokenId> prompt_ids() {
  std::vector<TokenId> ids;
  for (int i = 0; i < 24; ++i) ids.push_back(300 + (i * 37) % 700);
  for (int i = 0; i < 12; ++i) ids.push_back(300 + (i * 37) % 700);
  return ids;
}

SamplingParams sampling_of(float temperature) {
  SamplingParams s;
  s.temperature = temperature;
  if (temperature > 0) {
    s.top_p = 0.95f;
    s.top_k = 20;
  }
  s.seed = 1234;
  return s;
}

struct Answer {
  std::vector<TokenId> tokens;
  std::map<int64_t, std::string> hashes;  // of the lane, by its length
  FinishReason reason = FinishReason::kNone;
  SpeculationCounters counters;
};

struct Case {
  GenerationOptions options;
  std::vector<Route> routes;
  SpeculationOptions speculation;
  std::function<bool(TokenId)> on_token;
  std::vector<std::unique_ptr<Drafter>> extra;
};

Answer run(Case c, const std::vector<TokenId>& prompt, Rig& rig = Rig::dense()) {
  auto lane = rig.model->target->make_lane();
  auto drafters = rig.drafters(c.routes);
  for (auto& d : c.extra) drafters.push_back(std::move(d));
  Generation generation(*rig.model->target, *lane, c.options, rig.clock,
                        {.drafters = std::move(drafters), .options = c.speculation});
  if (c.on_token) generation.on_token(c.on_token);
  Answer a;
  if (const Status s = generation.start(prompt); !s) throw std::runtime_error(s.error().message);
  a.hashes[lane->length()] = lane->hash();
  while (!generation.finished()) {
    if (const Status s = generation.step(); !s) throw std::runtime_error(s.error().message);
    a.hashes[lane->length()] = lane->hash();
  }
  a.tokens.assign(generation.tokens().begin(), generation.tokens().end());
  a.reason = generation.reason();
  a.counters = generation.counters();
  return a;
}

const Answer& plain(float temperature, int max_tokens) {
  static std::map<std::pair<float, int>, Answer> known;
  const auto key = std::pair(temperature, max_tokens);
  if (!known.count(key)) known[key] = run({.options = {.sampling = sampling_of(temperature), .max_tokens = max_tokens}}, prompt_ids());
  return known[key];
}

void expect_same(const Answer& a, const Answer& reference) {
  ASSERT_EQ(a.tokens, reference.tokens);
  ASSERT_GE(a.hashes.size(), 2u);
  for (const auto& [length, hash] : a.hashes) {
    const auto found = reference.hashes.find(length);
    ASSERT_NE(found, reference.hashes.end()) << "length " << length;
    ASSERT_EQ(hash, found->second) << "the lane's state differs at length " << length;
  }
}

// Every drafter, alone at a fixed width and all together under the controller, in every verify mode, at three temperatures: the ids and
// the hash of the lane's state after every cycle are plain decoding's. The reference's hashes all differ from each other.
TEST_F(GenerationTest, SpeculationChangesNothing) {
  constexpr int kTokens = 48;
  std::map<Route, std::pair<int64_t, int64_t>> drafted_and_accepted;
  for (const float temperature : {0.0f, 0.7f, 1.0f}) {
    const Answer& reference = plain(temperature, kTokens);
    std::map<std::string, int> distinct;
    for (const auto& [length, hash] : reference.hashes) ++distinct[hash];
    ASSERT_EQ(distinct.size(), reference.hashes.size());
    for (const VerifyMode mode : {VerifyMode::kChain, VerifyMode::kLive, VerifyMode::kTree}) {
      for (const Route route : {Route::kCopy, Route::kMtp, Route::kBlock}) {
        SCOPED_TRACE(std::string(route_name(route)) + " " + std::string(verify_mode_name(mode)) + " T=" + std::to_string(temperature));
        const int width = mode == VerifyMode::kTree ? 16 : route == Route::kMtp ? 3 : 7;
        const Answer a = run({.options = {.sampling = sampling_of(temperature), .max_tokens = kTokens}, .routes = {route},
                              .speculation = {.verify = mode, .width = width}}, prompt_ids());
        expect_same(a, reference);
        drafted_and_accepted[route].first += a.counters.of(route).drafted;
        drafted_and_accepted[route].second += a.counters.of(route).accepted;
      }
    }
    for (const VerifyMode mode : {VerifyMode::kAuto, VerifyMode::kTree}) {
      SCOPED_TRACE("together, T=" + std::to_string(temperature));
      const Answer a = run({.options = {.sampling = sampling_of(temperature), .max_tokens = kTokens},
                            .routes = {Route::kCopy, Route::kMtp, Route::kBlock}, .speculation = {.verify = mode}}, prompt_ids());
      expect_same(a, reference);
    }
  }
  for (const auto& [route, n] : drafted_and_accepted) {
    std::printf("%s: %ld drafted, %ld accepted\n", std::string(route_name(route)).c_str(), static_cast<long>(n.first),
                static_cast<long>(n.second));
    if (route != Route::kCopy) {
      EXPECT_GT(n.second, 60) << route_name(route);
      EXPECT_GT(n.first - n.second, 60) << route_name(route);
    }
  }
}

// A drafter that knows the answer, so that one cycle accepts the whole width.
std::unique_ptr<Drafter> oracle(const std::vector<TokenId>& prompt, const std::vector<TokenId>& answer) {
  return std::make_unique<test::ScriptedDrafter>(
      [prompt, answer](std::span<const TokenId> sequence, const DraftRequest& request, Draft& draft) {
        const size_t at = sequence.size() - prompt.size();
        for (int i = 0; i < std::min(request.depth, request.nodes) && at + static_cast<size_t>(i) < answer.size(); ++i)
          draft.add(answer[at + static_cast<size_t>(i)], i - 1, 0.9f);
      });
}

// The same with experts, int8 K/V and fp32 K/V.
TEST_F(GenerationTest, SpeculationChangesNothingWithExperts) {
  FORETOKEN_NEEDS_DEMO("demo-moe");
  constexpr int kTokens = 32;
  for (const KvFormat kv : {KvFormat::kInt8, KvFormat::kF32}) {
    const auto rig = Rig::load("demo-moe", kv);
    int64_t accepted = 0, rejected = 0;
    for (const float temperature : {0.0f, 0.7f}) {
      const GenerationOptions options{.sampling = sampling_of(temperature), .max_tokens = kTokens};
      const Answer reference = run({.options = options}, prompt_ids(), *rig);
      for (const Route route : {Route::kMtp, Route::kBlock})
        for (const VerifyMode mode : {VerifyMode::kChain, VerifyMode::kLive, VerifyMode::kTree}) {
          SCOPED_TRACE(std::string(route_name(route)) + " " + std::string(verify_mode_name(mode)) + " T=" + std::to_string(temperature));
          const Answer a = run({.options = options, .routes = {route}, .speculation = {.verify = mode, .width = 12}}, prompt_ids(), *rig);
          expect_same(a, reference);
          accepted += a.counters.accepted;
          rejected += a.counters.verified_rows - a.counters.cycles - a.counters.accepted;
        }
    }
    EXPECT_GT(accepted, 60);
    EXPECT_GT(rejected, 60);
  }
}

// What the rules foresee is drafted, alone and inside the model drafters' branches, and whatever of it comes true: ids and states are those
// of plain decoding under the same rules. Guesses are accepted and rejected, and counted for the grammar alone.
TEST_F(GenerationTest, ForeseenRunsAreDraftedAndChangeNothing) {
  constexpr int kTokens = 40;
  const int vocab = Rig::dense().model->config.vocab;
  std::map<std::string, int64_t> cycles;
  int64_t foreseen = 0, wrong = 0;
  for (const float temperature : {0.0f, 0.8f}) {
    test::RunRules plain_rules(vocab, kTokens - 7);
    const Answer reference = run({.options = {.sampling = sampling_of(temperature), .max_tokens = kTokens, .rules = &plain_rules}}, prompt_ids());
    ASSERT_EQ(reference.tokens.size(), size_t{kTokens} - 7);
    ASSERT_EQ(reference.reason, FinishReason::kStop);
    const std::vector<Route> sets[] = {{Route::kGrammar}, {Route::kMtp, Route::kGrammar}, {Route::kBlock, Route::kGrammar}, {Route::kBlock},
                                       {Route::kCopy, Route::kMtp, Route::kBlock, Route::kGrammar}};
    for (const std::vector<Route>& routes : sets)
      for (const SpeculationOptions& plan : {SpeculationOptions{.verify = VerifyMode::kChain, .width = 7}, SpeculationOptions{.verify = VerifyMode::kTree, .width = 16},
                                             SpeculationOptions{.verify = VerifyMode::kAuto}}) {
        if ((routes.size() > 2) != (plan.width == 0)) continue;  // what the clock chooses is tried with all of them
        std::string name = std::string(verify_mode_name(plan.verify)) + " T=" + std::to_string(temperature);
        for (const Route route : routes) name += " " + std::string(route_name(route));
        SCOPED_TRACE(name);
        test::RunRules rules(vocab, kTokens - 7);
        const Answer a = run({.options = {.sampling = sampling_of(temperature), .max_tokens = kTokens, .rules = &rules}, .routes = routes, .speculation = plan}, prompt_ids());
        expect_same(a, reference);
        EXPECT_EQ(rules.depth(), kTokens - 7);
        const SpeculationCounters::Of& of = a.counters.of(Route::kGrammar);
        cycles[name] = a.counters.cycles;
        int64_t accepted = 0;
        for (const SpeculationCounters::Of& each : a.counters.by_drafter) accepted += each.accepted;
        EXPECT_EQ(accepted, a.counters.accepted);
        if (routes.back() != Route::kGrammar) {
          EXPECT_EQ(of.drafted, 0);
        } else if (plan.width > 0) {
          EXPECT_GT(of.accepted, 0);
          EXPECT_GT(of.verified - of.accepted, 5);
          foreseen += of.accepted;
          wrong += of.verified - of.accepted;
          EXPECT_GE(of.drafted, of.verified);
        }
      }
    const std::string chain = "chain T=" + std::to_string(temperature);
    EXPECT_LT(cycles[chain + " dflash grammar"], cycles[chain + " dflash"]);
  }
  EXPECT_GT(foreseen, 20);
  EXPECT_GT(wrong, 60);
}

// Rules that forbid tokens by what was emitted and end the answer, with an undo log for looking ahead.
class EveryOther final : public TokenRules {
 public:
  explicit EveryOther(int vocab) : vocab_(vocab) {}
  TokenMask mask() override {
    bits_.assign(static_cast<size_t>(vocab_ + 63) / 64, 0);
    for (int t = 0; t < vocab_; ++t)
      if (allows(t)) bits_[static_cast<size_t>(t / 64)] |= uint64_t{1} << (t % 64);
    return bits_;
  }
  bool allows(TokenId token) override { return (token + static_cast<TokenId>(log_.size())) % 3 != 0; }
  bool advance(TokenId token) override {
    CHECK(allows(token));
    log_.push_back(token);
    return log_.size() == 30;
  }
  int64_t depth() const override { return static_cast<int64_t>(log_.size()); }
  void rewind(int64_t depth) override { log_.resize(static_cast<size_t>(depth)); }

 private:
  int vocab_;
  std::vector<TokenId> log_;
  std::vector<uint64_t> bits_;
};

// Rules act at the exact token inside accepted blocks: same ids, same state, same end as plain decoding under the same rules.
TEST_F(GenerationTest, RulesInsideABlock) {
  const int vocab = Rig::dense().model->config.vocab;
  EveryOther plain_rules(vocab);
  const Answer reference = run({.options = {.max_tokens = 64, .rules = &plain_rules}}, prompt_ids());
  ASSERT_EQ(reference.tokens.size(), 30u);
  ASSERT_EQ(reference.reason, FinishReason::kStop);
  ASSERT_FALSE(std::equal(reference.tokens.begin(), reference.tokens.end(), plain(0.0f, 48).tokens.begin()));
  for (const VerifyMode mode : {VerifyMode::kChain, VerifyMode::kTree}) {
    EveryOther rules(vocab);
    Case c{.options = {.max_tokens = 64, .rules = &rules}, .routes = {}, .speculation = {.verify = mode, .width = 7}, .on_token = {}, .extra = {}};
    c.extra.push_back(oracle(prompt_ids(), reference.tokens));
    const Answer a = run(std::move(c), prompt_ids());
    expect_same(a, reference);
    EXPECT_EQ(a.reason, FinishReason::kStop);
    EXPECT_LT(a.hashes.size(), 8u);
    EveryOther more(vocab);
    expect_same(run({.options = {.max_tokens = 64, .rules = &more}, .routes = {Route::kBlock}, .speculation = {.verify = mode, .width = 7}},
                    prompt_ids()),
                reference);
  }
}

// Budget, stop token and stop text at every offset inside a fully accepted block: tokens and state are those of decoding as many
// tokens plainly. The drafter offers the tokens beyond the end too.
TEST_F(GenerationTest, EveryEndInsideABlock) {
  const auto prompt = prompt_ids();
  const Answer& reference = plain(0.7f, 48);
  for (int offset = 0; offset < 18; ++offset) {
    SCOPED_TRACE("offset " + std::to_string(offset));
    const size_t count = static_cast<size_t>(offset) + 1;
    const std::vector<TokenId> expected(reference.tokens.begin(), reference.tokens.begin() + offset + 1);
    const auto check = [&](const Answer& a, FinishReason reason) {
      ASSERT_EQ(a.tokens, expected);
      ASSERT_EQ(a.reason, reason);
      const auto last = a.hashes.rbegin();
      ASSERT_EQ(last->first, static_cast<int64_t>(prompt.size() + count) - 1);
      ASSERT_EQ(last->second, reference.hashes.at(last->first));
      if (offset > 1) { ASSERT_LT(a.hashes.size(), count); }  // blocks were accepted
    };
    const auto with = [&](GenerationOptions options, std::function<bool(TokenId)> on_token = {}) {
      Case c{.options = std::move(options), .routes = {}, .speculation = {.verify = VerifyMode::kChain, .width = 7}, .on_token = std::move(on_token), .extra = {}};
      c.options.sampling = sampling_of(0.7f);
      c.extra.push_back(oracle(prompt, reference.tokens));
      return run(std::move(c), prompt);
    };
    check(with({.max_tokens = static_cast<int64_t>(count)}), FinishReason::kLength);
    int seen = 0;
    check(with({.max_tokens = 48}, [&](TokenId) { return ++seen == static_cast<int>(count); }), FinishReason::kStop);
    const TokenId stop = expected.back();
    if (std::count(expected.begin(), expected.end(), stop) == 1)
      check(with({.max_tokens = 48, .stop_tokens = {stop}}), FinishReason::kStop);
  }
}

// Penalties count along the accepted path: strong ones change the answer, and speculation gives the same changed answer.
TEST_F(GenerationTest, PenaltiesInsideABlock) {
  GenerationOptions options{.sampling = sampling_of(0.0f), .max_tokens = 40};
  options.sampling.presence_penalty = 1.5f;
  options.sampling.frequency_penalty = 0.5f;
  options.sampling.repetition_penalty = 1.2f;
  const Answer reference = run({.options = options}, prompt_ids());
  ASSERT_NE(reference.tokens, plain(0.0f, 40).tokens);
  for (const Route route : {Route::kMtp, Route::kBlock}) {
    const Answer a = run({.options = options, .routes = {route}, .speculation = {.verify = VerifyMode::kTree, .width = 12}}, prompt_ids());
    expect_same(a, reference);
    EXPECT_GT(a.counters.accepted, 0) << route_name(route);
  }
}

// A restored lane (its prefix known, its drafters' windows absent) drafts again, and answers as the uninterrupted one.
TEST_F(GenerationTest, RestoredPrefixWithoutDrafterWindows) {
  Rig& rig = Rig::dense();
  const auto prompt = prompt_ids();
  const Answer& reference = plain(0.0f, 40);
  auto lane = rig.model->target->make_lane();
  const std::span<const TokenId> all(prompt);
  const size_t cut = 21;
  run_prompt(*rig.model->target, *lane, all.first(cut), 512, {}, [](int64_t, int64_t, const ForwardResult&) { return true; });
  const Route routes[] = {Route::kCopy, Route::kMtp, Route::kBlock};
  Generation generation(*rig.model->target, *lane, {.max_tokens = 40}, rig.clock, {.drafters = rig.drafters(routes)});
  ASSERT_TRUE(generation.start(all.subspan(cut), {}, all.first(cut)));
  while (!generation.finished()) ASSERT_TRUE(generation.step());
  EXPECT_EQ(std::vector<TokenId>(generation.tokens().begin(), generation.tokens().end()), reference.tokens);
  for (const auto& [length, hash] : reference.hashes)
    if (length == lane->length()) { EXPECT_EQ(lane->hash(), hash); }
}

// Prompts of every small length and chunk size, and answers of every small length.
TEST_F(GenerationTest, ShortPromptsAndAnswers) {
  const auto all = prompt_ids();
  for (int length = 1; length <= 12; length += 3)
    for (int tokens = 1; tokens <= 9; tokens += 2)
      for (const int chunk : {1, 5, 512}) {
        const std::vector<TokenId> prompt(all.begin(), all.begin() + length);
        const GenerationOptions options{.max_tokens = tokens, .prefill_chunk = chunk};
        const Answer reference = run({.options = options}, prompt);
        const Answer a = run({.options = options, .routes = {Route::kCopy, Route::kMtp, Route::kBlock},
                              .speculation = {.verify = VerifyMode::kTree, .width = 9}}, prompt);
        ASSERT_EQ(a.tokens, reference.tokens);
        ASSERT_EQ(a.hashes.rbegin()->second, reference.hashes.rbegin()->second);
      }
}

}  // namespace
}  // namespace foretoken
