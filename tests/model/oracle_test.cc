// The trained bundles against values computed by another implementation in fp32: logits, recurrent state, greedy continuations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "decode/generation.h"
#include "support/reference_values.h"
#include "support/shared.h"
#include "support/test_model.h"

namespace foretoken {
namespace {

double kl_divergence(const float* p_logits, const float* q_logits, int n) {
  const auto log_normaliser = [n](const float* l) {
    const double top = *std::max_element(l, l + n);
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += std::exp(l[i] - top);
    return top + std::log(sum);
  };
  const double zp = log_normaliser(p_logits), zq = log_normaliser(q_logits);
  double kl = 0;
  for (int i = 0; i < n; ++i) kl += std::exp(p_logits[i] - zp) * ((p_logits[i] - zp) - (q_logits[i] - zq));
  return kl;
}

class OracleTest : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

// For every prompt: top-1 at every position whose margin is clear, KL of the last two positions below 1e-4, recurrent and convolution
// state, and the 64-token greedy continuation up to the first position whose margin is below 0.02.
TEST_P(OracleTest, LogitsStateAndGreedyContinuation) {
  const auto [model, oracle] = GetParam();
  FORETOKEN_NEEDS_SHARED(std::string("oracle/") + oracle + ".json");
  const Json values = test::read_json(test::shared_dir() / "oracle" / (std::string(oracle) + ".json"));
  const auto tensors = test::read_tensors(test::shared_dir() / "oracle" / (std::string(oracle) + ".safetensors"));
  const auto m = test::load_model(test::shared_dir() / "models" / model);
  const int vocab = m->config.vocab;
  const DeltaShape& d = m->config.delta;
  const int ratio = d.value_heads / d.key_heads;
  double worst_kl = 0, worst_logit = 0, worst_state = 0;
  int clear_positions = 0, compared_tokens = 0, states = 0;
  const Json& prompts = values["prompts"];
  ASSERT_GE(prompts.size(), 12u);
  for (size_t index = 0; index < prompts.size(); ++index) {
    const Json& prompt = prompts[index];
    SCOPED_TRACE(prompt["name"].get<std::string>());
    const std::string key = std::string(index < 10 ? "0" : "") + std::to_string(index) + ".";
    const auto ids = prompt["ids"].get<std::vector<TokenId>>();
    const auto argmax = prompt["argmax_all"].get<std::vector<TokenId>>();
    const int n = static_cast<int>(ids.size());
    auto lane = m->target->make_lane();
    std::vector<int64_t> all(ids.size());
    std::iota(all.begin(), all.end(), 0);
    const test::ReferenceTensor& expected = tensors.at(key + "logits");
    run_prompt(*m->target, *lane, ids, 512, all, [&](int64_t first, int64_t rows, const ForwardResult& result) {
      for (int64_t r = 0; r < rows; ++r) {
        const float* logits = result.logits.f32(r);
        const int64_t position = first + r;
        std::vector<float> sorted(logits, logits + vocab);
        std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
        if (sorted[0] - sorted[1] > 0.04f) {
          ++clear_positions;
          EXPECT_EQ(std::max_element(logits, logits + vocab) - logits, argmax[static_cast<size_t>(position)]) << "position " << position;
        }
        if (position < n - 2) continue;
        const float* reference = expected.values.data() + (position - (n - 2)) * vocab;
        worst_kl = std::max(worst_kl, kl_divergence(reference, logits, vocab));
        for (int i = 0; i < vocab; ++i) worst_logit = std::max<double>(worst_logit, std::fabs(reference[i] - logits[i]));
      }
      return true;
    });
    for (int layer = 0; layer < m->config.layers; ++layer) {
      if (m->config.is_attention(layer)) continue;
      const DeltaMemory& memory = lane->delta()[static_cast<size_t>(m->config.kind_index(layer))];
      const auto stored = tensors.find(key + "gdn_state." + std::to_string(layer));
      if (stored == tensors.end()) continue;  // the oracle keeps two layers
      const test::ReferenceTensor& state = stored->second;
      ++states;
      const int64_t size = int64_t{d.key_dim} * d.value_dim;
      for (int h = 0; h < d.value_heads; ++h) {
        const int source = (h % d.key_heads) * ratio + h / d.key_heads;  // ours is tiled, the oracle's grouped
        for (int64_t i = 0; i < size; ++i)
          worst_state = std::max<double>(worst_state, std::fabs(memory.state[h * size + i] - state.values[static_cast<size_t>(source * size + i)]));
      }
    }
    const auto greedy = prompt["greedy"].get<std::vector<TokenId>>();
    const auto gap = prompt["top2_gap"].get<std::vector<double>>();
    const SteadyClock clock;
    auto fresh = m->target->make_lane();
    Generation generation(*m->target, *fresh, {.max_tokens = 64}, clock);
    ASSERT_TRUE(generation.start(ids));
    while (!generation.finished()) ASSERT_TRUE(generation.step());
    ASSERT_EQ(generation.tokens().size(), greedy.size());
    for (size_t i = 0; i < greedy.size() && gap[i] >= 0.02; ++i) {
      ASSERT_EQ(generation.tokens()[i], greedy[i]) << "token " << i;
      ++compared_tokens;
    }
  }
  std::printf("%s: KL at most %.2e, logits within %.2e, states within %.2e; %d clear positions, %d greedy tokens\n", oracle, worst_kl,
              worst_logit, worst_state, clear_positions, compared_tokens);
  EXPECT_LT(worst_kl, 1e-4);
  EXPECT_LT(worst_logit, 2e-3);
  EXPECT_LT(worst_state, 2e-3);
  EXPECT_GT(clear_positions, 200);
  EXPECT_GT(compared_tokens, 300);
  EXPECT_GE(states, 2);
}

INSTANTIATE_TEST_SUITE_P(Trained, OracleTest,
                         ::testing::Values(std::pair("demo-dense", "dense_dev"), std::pair("demo-moe", "moe_dev")),
                         [](const auto& info) { return std::string(info.param.second); });

}  // namespace
}  // namespace foretoken
