// MTP head and DFlash 2 drafter of the trained bundles against values computed by another implementation in fp32.
#include <gtest/gtest.h>

#include <cmath>

#include "model/dflash.h"
#include "model/mtp.h"
#include "support/drafting.h"
#include "support/loaded_bundle.h"
#include "support/reference_values.h"
#include "support/shared.h"

namespace foretoken {
namespace {

using test::value_of;

constexpr float kClear = 0.02f;  // margins below it may fall either way in another summation order

std::string two_digits(size_t index) { return (index < 10 ? "0" : "") + std::to_string(index); }

double worst_difference(const std::vector<float>& expected, const float* actual) {
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) worst = std::max<double>(worst, std::fabs(expected[i] - actual[i]));
  return worst;
}

class DrafterOracleTest : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

// The head's first logits at an anchor, and its chain of seven drafts fed back on themselves, at three anchors of one lane: between
// anchors, entries made from drafts are truncated and replaced by true ones.
TEST_P(DrafterOracleTest, MtpLogitsAndChains) {
  const auto [model, oracle] = GetParam();
  FORETOKEN_NEEDS_SHARED(std::string("oracle/") + oracle + "_dev.json");
  const auto m = test::load_bundle(test::shared_dir() / "models" / model);
  ASSERT_TRUE(inspect_mtp(m->bundle, m->config).complete);
  const MtpWeights weights = value_of(load_mtp(m->bundle, m->config, *m->backend));
  MtpHead head(m->config, m->weights, weights, *m->backend, {.kv_format = KvFormat::kF32});
  const Json values = test::read_json(test::shared_dir() / "oracle" / (std::string(oracle) + "_dev.json"));
  const auto tensors = test::read_tensors(test::shared_dir() / "oracle" / (std::string(oracle) + "_dev.safetensors"));
  double worst = 0;
  int compared = 0, logits_rows = 0;
  for (size_t index = 0; index < values["prompts"].size(); ++index) {
    const Json& prompt = values["prompts"][index];
    SCOPED_TRACE(prompt["name"].get<std::string>());
    const auto full = test::prompt_and_greedy(prompt);
    auto target_lane = m->target->make_lane();
    const test::TargetTrace trace = test::trace_target(*m->target, *target_lane, full, {});
    auto lane = head.make_lane();
    int64_t done = 0;
    for (const Json& chain : prompt["mtp"]) {
      const int64_t anchor = chain["anchor"];
      const auto expected = chain["tokens"].get<std::vector<TokenId>>();
      lane->truncate(done);
      MtpResult result = test::append_pairs(head, *lane, trace.hidden, full, done, anchor);
      done = anchor;
      if (const auto stored = tensors.find(two_digits(index) + ".mtp_logits." + std::to_string(anchor)); stored != tensors.end()) {
        worst = std::max(worst, worst_difference(stored->second.values, result.logits.f32()));
        ++logits_rows;
      }
      for (size_t depth = 0; depth < expected.size(); ++depth) {
        const test::Top top = test::top_of(result.logits.f32(), m->config.vocab);
        if (top.margin < kClear) break;
        ASSERT_EQ(top.token, expected[depth]) << "anchor " << anchor << ", depth " << depth;
        ++compared;
        if (depth + 1 < expected.size()) result = test::chain_step(head, *lane, result, top.token);
      }
    }
  }
  std::printf("%s: MTP logits within %.2e in %d rows, %d chain tokens equal\n", oracle, worst, logits_rows, compared);
  EXPECT_LT(worst, 2e-3);
  EXPECT_GE(logits_rows, 16);
  EXPECT_GT(compared, 180);
}

// Hidden rows, candidates, their logits, transition scores and the greedy walk of a block at three anchors of one lane.
TEST_P(DrafterOracleTest, DflashBlocks) {
  const auto [model, oracle] = GetParam();
  FORETOKEN_NEEDS_SHARED(std::string("oracle/") + oracle + "_dev.json");
  const auto m = test::load_bundle(test::shared_dir() / "models" / model);
  const Bundle drafter_bundle = value_of(Bundle::open(test::shared_dir() / "models" / model / "dflash2"));
  const DrafterStatus status = inspect_drafter(drafter_bundle, m->config);
  ASSERT_TRUE(status.fits) << status.reason;
  EXPECT_EQ(status.kind, DrafterKind::kDflash2);
  const auto drafter = value_of(DflashModel::load(drafter_bundle, m->config, m->weights, *m->backend, {.kv_format = KvFormat::kF32}));
  const Json values = test::read_json(test::shared_dir() / "oracle" / (std::string(oracle) + "_dev.json"));
  const auto tensors = test::read_tensors(test::shared_dir() / "oracle" / (std::string(oracle) + "_dev.safetensors"));
  double worst_hidden = 0, worst_unary = 0, worst_score = 0;
  int candidates = 0, path_tokens = 0;
  for (size_t index = 0; index < values["prompts"].size(); ++index) {
    const Json& prompt = values["prompts"][index];
    SCOPED_TRACE(prompt["name"].get<std::string>());
    const auto full = test::prompt_and_greedy(prompt);
    auto target_lane = m->target->make_lane();
    const test::TargetTrace trace = test::trace_target(*m->target, *target_lane, full, drafter->config().taps);
    auto lane = drafter->make_lane();
    for (const Json& block : prompt["dflash2"]) {
      const int64_t anchor = block["anchor"];
      SCOPED_TRACE("anchor " + std::to_string(anchor));
      test::extend_to(*drafter, *lane, trace.taps, anchor);
      const DflashBlock request{lane.get(), full[static_cast<size_t>(anchor)], drafter->config().block_size};
      const DflashDraft draft = drafter->draft({&request, 1})[0];
      const std::string suffix = "." + std::to_string(anchor);
      const auto tensor = [&](const char* name) { return tensors.find(two_digits(index) + name + suffix); };
      if (const auto hidden = tensor(".dflash_hidden"); hidden != tensors.end())
        worst_hidden = std::max(worst_hidden, worst_difference(hidden->second.values, draft.hidden.f32()));
      const auto unary = tensor(".dflash_unary"), scores = tensor(".dflash_scores"), ids = tensor(".dflash_cand");
      ASSERT_NE(unary, tensors.end());
      worst_unary = std::max(worst_unary, worst_difference(unary->second.values, draft.unary.data()));
      if (ids != tensors.end())
        for (int i = 0; i < draft.slots * draft.top_k; ++i) {
          const size_t at = static_cast<size_t>(i);
          const bool clear = (i % draft.top_k == 0 || draft.unary[at - 1] - draft.unary[at] > 1e-3f) &&
                             (i % draft.top_k == draft.top_k - 1 || draft.unary[at] - draft.unary[at + 1] > 1e-3f);
          if (!clear) continue;
          EXPECT_EQ(draft.candidates[at], static_cast<TokenId>(ids->second.values[at])) << i;
          ++candidates;
        }
      const auto expected = block["path"].get<std::vector<TokenId>>();
      std::vector<int> path;
      draft.greedy_walk(path);
      for (int slot = 0; slot < draft.slots; ++slot) {
        const int previous = slot == 0 ? 0 : path[static_cast<size_t>(slot - 1)];
        std::vector<float> row;
        for (int k = 0; k < draft.top_k; ++k) row.push_back(draft.score(slot, previous, k));
        for (size_t k = 0; k < row.size(); ++k)  // near ties among candidates may swap two of them
          if (scores != tensors.end() && draft.candidates[static_cast<size_t>(slot * draft.top_k) + k] ==
                  static_cast<TokenId>(ids->second.values[static_cast<size_t>(slot * draft.top_k) + k]))
            worst_score = std::max<double>(worst_score, std::fabs(row[k] - scores->second.values[static_cast<size_t>(slot * draft.top_k) + k]));
        if (test::top_of(row.data(), draft.top_k).margin < kClear) break;
        ASSERT_EQ(draft.candidate(slot, path[static_cast<size_t>(slot)]), expected[static_cast<size_t>(slot)]) << "slot " << slot;
        ++path_tokens;
      }
    }
  }
  std::printf("%s: hidden within %.2e, unary %.2e, scores %.2e; %d candidates and %d path tokens equal\n", oracle, worst_hidden,
              worst_unary, worst_score, candidates, path_tokens);
  EXPECT_LT(worst_hidden, 1e-2);
  EXPECT_LT(worst_unary, 5e-3);
  EXPECT_LT(worst_score, 5e-3);
  EXPECT_GT(candidates, 2000);
  EXPECT_GT(path_tokens, 200);
}

// Documents of 2000 tokens, several windows long: the ring has wrapped, and MTP attends to every entry.
TEST_P(DrafterOracleTest, BeyondTheWindow) {
  const auto [model, oracle] = GetParam();
  FORETOKEN_NEEDS_SHARED(std::string("oracle/") + oracle + "_dev_long.json");
  const auto m = test::load_bundle(test::shared_dir() / "models" / model);
  const Bundle drafter_bundle = value_of(Bundle::open(test::shared_dir() / "models" / model / "dflash2"));
  const auto drafter = value_of(DflashModel::load(drafter_bundle, m->config, m->weights, *m->backend, {.kv_format = KvFormat::kF32}));
  const MtpWeights weights = value_of(load_mtp(m->bundle, m->config, *m->backend));
  MtpHead head(m->config, m->weights, weights, *m->backend, {.kv_format = KvFormat::kF32});
  const Json values = test::read_json(test::shared_dir() / "oracle" / (std::string(oracle) + "_dev_long.json"));
  const auto tensors = test::read_tensors(test::shared_dir() / "oracle" / (std::string(oracle) + "_dev_long.safetensors"));
  double worst_unary = 0;
  int tokens = 0;
  for (const Json& document : values["long"]) {
    const std::string name = document["name"];
    SCOPED_TRACE(name);
    const auto full = test::prompt_and_greedy(document);
    ASSERT_GT(full.size(), 3u * 512);
    auto target_lane = m->target->make_lane();
    const test::TargetTrace trace = test::trace_target(*m->target, *target_lane, full, drafter->config().taps);
    auto lane = drafter->make_lane();
    auto mtp_lane = head.make_lane();
    int64_t done = 0;
    for (const Json& drafts : document["drafts"]) {
      const int64_t anchor = drafts["anchor"];
      SCOPED_TRACE(anchor);
      test::extend_to(*drafter, *lane, trace.taps, anchor);
      const DflashBlock request{lane.get(), full[static_cast<size_t>(anchor)], drafter->config().block_size};
      const DflashDraft draft = drafter->draft({&request, 1})[0];
      const auto unary = tensors.at(name + ".dflash_unary." + std::to_string(anchor));
      worst_unary = std::max(worst_unary, worst_difference(unary.values, draft.unary.data()));
      const auto path = drafts["dflash2_path"].get<std::vector<TokenId>>();
      std::vector<int> walk;
      draft.greedy_walk(walk);
      for (int slot = 0; slot < draft.slots; ++slot) {
        std::vector<float> row;
        for (int k = 0; k < draft.top_k; ++k) row.push_back(draft.score(slot, slot == 0 ? 0 : walk[static_cast<size_t>(slot - 1)], k));
        if (test::top_of(row.data(), draft.top_k).margin < kClear) break;
        ASSERT_EQ(draft.candidate(slot, walk[static_cast<size_t>(slot)]), path[static_cast<size_t>(slot)]) << "slot " << slot;
        ++tokens;
      }
      mtp_lane->truncate(done);
      MtpResult result = test::append_pairs(head, *mtp_lane, trace.hidden, full, done, anchor);
      done = anchor;
      for (const TokenId expected : drafts["mtp7"].get<std::vector<TokenId>>()) {
        const test::Top top = test::top_of(result.logits.f32(), m->config.vocab);
        if (top.margin < kClear) break;
        ASSERT_EQ(top.token, expected);
        ++tokens;
        result = test::chain_step(head, *mtp_lane, result, top.token);
      }
    }
  }
  std::printf("%s long: unary within %.2e, %d tokens equal\n", oracle, worst_unary, tokens);
  EXPECT_LT(worst_unary, 5e-3);
  EXPECT_GT(tokens, 50);
}

INSTANTIATE_TEST_SUITE_P(Trained, DrafterOracleTest, ::testing::Values(std::pair("demo-dense", "dense"), std::pair("demo-moe", "moe")),
                         [](const auto& info) { return std::string(info.param.second); });

}  // namespace
}  // namespace foretoken
