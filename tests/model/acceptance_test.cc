// Greedy chain verification with the trained drafters: how many drafts each cycle accepts, against the traces of another
// implementation in fp32, and the answer against plain decoding.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "decode/verifier.h"
#include "model/dflash.h"
#include "model/mtp.h"
#include "support/drafting.h"
#include "support/reference_values.h"
#include "support/shared.h"
#include "support/test_model.h"

namespace foretoken {
namespace {

using test::value_or_throw;

constexpr float kClear = 0.02f;

// One guess after another, with the smallest margin among the decisions that led to each.
struct Guess {
  TokenId token;
  float margin;
};

// A drafter as the loop below drives it. The target has processed positions [0, lane length); the anchor follows.
class ChainDrafter {
 public:
  virtual ~ChainDrafter() = default;
  virtual std::span<const int> taps() const { return {}; }
  // Committed rows of the last pass, and the tokens that follow each of them.
  virtual void observe(const ForwardResult& result, std::span<const int> rows, std::span<const TokenId> next) = 0;
  virtual std::vector<Guess> propose(TokenId anchor) = 0;
};

class MtpChain final : public ChainDrafter {
 public:
  MtpChain(MtpHead& head, int depth) : head_(head), depth_(depth), lane_(head.make_lane()) {}

  void observe(const ForwardResult& result, std::span<const int> rows, std::span<const TokenId> next) override {
    lane_->truncate(true_end_);
    const int64_t hidden = result.hidden.cols;
    std::vector<float> values;
    std::vector<RowInput> inputs;
    for (size_t i = 0; i < rows.size(); ++i) {
      values.insert(values.end(), result.hidden.f32(rows[i]), result.hidden.f32(rows[i]) + hidden);
      inputs.push_back(text_row(next[i], true_end_ + static_cast<int64_t>(i)));
    }
    const int count = static_cast<int>(rows.size()), last = count - 1;
    const LaneRows lane_rows{.first_row = 0, .rows = count, .prefix = true_end_, .settled = count};
    MtpLane* lanes[] = {lane_.get()};
    first_ = head_.forward(View::of(values.data(), count, hidden), {.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = {&last, 1}},
                           lanes);
    true_end_ += count;
  }

  std::vector<Guess> propose(TokenId) override {
    std::vector<Guess> guesses;
    MtpResult result = first_;
    float margin = 1e9f;
    for (int depth = 0; depth < depth_; ++depth) {
      const test::Top top = test::top_of(result.logits.f32(), result.logits.cols);
      margin = std::min(margin, top.margin);
      guesses.push_back({top.token, margin});
      if (depth + 1 < depth_) result = test::chain_step(head_, *lane_, result, top.token);
    }
    return guesses;
  }

 private:
  MtpHead& head_;
  int depth_;
  std::unique_ptr<MtpLane> lane_;
  MtpResult first_;
  int64_t true_end_ = 0;
};

class BlockChain final : public ChainDrafter {
 public:
  explicit BlockChain(DflashModel& model) : model_(model), lane_(model.make_lane()) {}

  std::span<const int> taps() const override { return model_.config().taps; }
  void observe(const ForwardResult& result, std::span<const int> rows, std::span<const TokenId>) override {
    const DflashContext context{lane_.get(), rows};
    model_.extend(result.taps, {&context, 1});
  }
  std::vector<Guess> propose(TokenId anchor) override {
    const DflashBlock block{lane_.get(), anchor, model_.config().block_size};
    const DflashDraft& draft = model_.draft({&block, 1})[0];
    std::vector<int> path;
    draft.greedy_walk(path);
    std::vector<Guess> guesses;
    float margin = 1e9f;
    for (int slot = 0; slot < draft.slots; ++slot) {
      std::vector<float> scores;
      for (int k = 0; k < draft.top_k; ++k) scores.push_back(draft.score(slot, slot == 0 ? 0 : path[static_cast<size_t>(slot) - 1], k));
      margin = std::min(margin, test::top_of(scores.data(), draft.top_k).margin);
      guesses.push_back({draft.candidate(slot, path[static_cast<size_t>(slot)]), margin});
    }
    return guesses;
  }

 private:
  DflashModel& model_;
  std::unique_ptr<DflashLane> lane_;
};

struct Cycle {
  int64_t anchor;  // sequence index
  int accepted;
  bool clear;      // no decision that could have changed `accepted` was close
};
struct Trace {
  std::vector<Cycle> cycles;
  std::vector<TokenId> tokens;
};

Trace run(TargetModel& target, ChainDrafter& drafter, std::span<const TokenId> prompt, int64_t tokens_wanted) {
  auto lane = target.make_lane();
  LaneState* lanes[] = {lane.get()};
  const int64_t n = static_cast<int64_t>(prompt.size());
  std::vector<RowInput> inputs;
  for (int64_t i = 0; i < n; ++i) inputs.push_back(text_row(prompt[static_cast<size_t>(i)], i));
  std::vector<int> rows(prompt.size());
  std::iota(rows.begin(), rows.end(), 0);
  const int last = static_cast<int>(n) - 1;
  const LaneRows prompt_rows{.first_row = 0, .rows = static_cast<int>(n), .prefix = 0, .settled = static_cast<int>(n)};
  ForwardResult result = target.forward({.inputs = inputs, .lanes = {&prompt_rows, 1}, .logits_rows = {&last, 1}}, lanes, drafter.taps());
  Trace trace;
  trace.tokens.push_back(test::top_of(result.logits.f32(), result.logits.cols).token);
  std::vector<TokenId> next(prompt.begin() + 1, prompt.end());
  next.push_back(trace.tokens.back());
  target.commit(*lane, rows);
  drafter.observe(result, rows, next);

  while (static_cast<int64_t>(trace.tokens.size()) <= tokens_wanted) {
    const TokenId anchor = trace.tokens.back();
    const std::vector<Guess> guesses = drafter.propose(anchor);
    Proposal proposal;
    inputs.assign(1, text_row(anchor, lane->length()));
    std::vector<int> wanted(1, 0);
    for (const Guess& guess : guesses) {
      proposal.add(guess.token, proposal.size() - 1);
      wanted.push_back(static_cast<int>(inputs.size()));
      inputs.push_back(text_row(guess.token, lane->length() + static_cast<int64_t>(inputs.size())));
    }
    const LaneRows lane_rows{.first_row = 0, .rows = static_cast<int>(inputs.size()), .prefix = lane->length(), .settled = 1};
    result = target.forward({.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = wanted}, lanes, drafter.taps());
    Cycle cycle{.anchor = lane->length(), .accepted = 0, .clear = true};
    const auto choose = [&](int row, int) -> Result<TokenId> {
      const test::Top top = test::top_of(result.logits.f32(row), result.logits.cols);
      // The guess compared here, and the target's own choice, decide whether the walk goes on.
      const float draft_margin = static_cast<size_t>(row) < guesses.size() ? guesses[static_cast<size_t>(row)].margin : 1e9f;
      cycle.clear = cycle.clear && top.margin >= kClear && draft_margin >= kClear;
      return top.token;
    };
    const Accepted accepted = value_or_throw(Verifier::accept(proposal, 1 << 20, choose, [](TokenId) { return false; }));
    cycle.accepted = static_cast<int>(accepted.rows().size()) - 1;
    trace.tokens.insert(trace.tokens.end(), accepted.tokens().begin(), accepted.tokens().end());
    trace.cycles.push_back(cycle);
    target.commit(*lane, accepted.rows());
    drafter.observe(result, accepted.rows(), accepted.tokens());
  }
  return trace;
}

class AcceptanceTest : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

// Every cycle that begins where the reference's did, and whose decisions were clear, accepts as many drafts; totals over all prompts
// are within 3 %; and what is emitted is the greedy continuation.
TEST_P(AcceptanceTest, TracesMatch) {
  const auto [name, oracle] = GetParam();
  FORETOKEN_NEEDS_SHARED(std::string("oracle/") + oracle + "_dev.json");
  const auto m = test::load_model(test::shared_dir() / "models" / name);
  const MtpWeights mtp_weights = value_or_throw(load_mtp(m->bundle, m->config, *m->backend));
  MtpHead head(m->config, m->weights, mtp_weights, *m->backend, {.kv_format = KvFormat::kF32});
  const Bundle drafter_bundle = value_or_throw(Bundle::open(test::shared_dir() / "models" / name / "dflash2"));
  const auto drafter = value_or_throw(DflashModel::load(drafter_bundle, m->config, m->weights, *m->backend, {.kv_format = KvFormat::kF32}));
  const Json values = test::read_json(test::shared_dir() / "oracle" / (std::string(oracle) + "_dev.json"));
  for (const std::string route : {"mtp3", "dflash2"}) {
    int64_t cycles = 0, accepted = 0, expected_cycles = 0, expected_accepted = 0, clear = 0;
    for (const Json& prompt : values["prompts"]) {
      SCOPED_TRACE(route + " " + prompt["name"].get<std::string>());
      const auto ids = prompt["ids"].get<std::vector<TokenId>>();
      std::unique_ptr<ChainDrafter> chain;
      if (route == "mtp3") chain = std::make_unique<MtpChain>(head, 3);
      else chain = std::make_unique<BlockChain>(*drafter);
      const Trace trace = run(*m->target, *chain, ids, 56);
      std::map<int64_t, int> reference;
      int64_t anchor = static_cast<int64_t>(ids.size());
      for (const int a : prompt["accepted_" + route].get<std::vector<int>>()) {
        reference[anchor] = a;
        anchor += a + 1;
        expected_accepted += a;
        ++expected_cycles;
      }
      for (const Cycle& cycle : trace.cycles) {
        accepted += cycle.accepted;
        ++cycles;
        const auto found = reference.find(cycle.anchor);
        if (found == reference.end() || !cycle.clear) continue;
        EXPECT_EQ(cycle.accepted, found->second) << "anchor " << cycle.anchor;
        ++clear;
      }
      const auto greedy = prompt["greedy"].get<std::vector<TokenId>>();
      const auto gap = prompt["top2_gap"].get<std::vector<double>>();
      for (size_t i = 0; i < std::min(greedy.size(), trace.tokens.size()) && gap[i] >= kClear; ++i)
        ASSERT_EQ(trace.tokens[i], greedy[i]) << "token " << i;
    }
    const double per_cycle = 1.0 + static_cast<double>(accepted) / static_cast<double>(cycles);
    const double expected = 1.0 + static_cast<double>(expected_accepted) / static_cast<double>(expected_cycles);
    std::printf("%s %s: %.3f tokens per cycle, reference %.3f; %ld of %ld cycles clear and equal\n", oracle, route.c_str(), per_cycle,
                expected, static_cast<long>(clear), static_cast<long>(cycles));
    EXPECT_NEAR(per_cycle / expected, 1.0, 0.03);
    EXPECT_GT(clear, cycles / 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Trained, AcceptanceTest, ::testing::Values(std::pair("demo-dense", "dense"), std::pair("demo-moe", "moe")),
                         [](const auto& info) { return std::string(info.param.second); });

}  // namespace
}  // namespace foretoken
