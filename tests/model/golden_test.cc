// The forward pass against float64 results on tiny random bundles, in every form that files take; and the promise itself: a row's bits
// depend on its own prefix alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "decode/generation.h"
#include "support/golden.h"
#include "support/test_model.h"

namespace foretoken {
namespace {

std::filesystem::path golden_dir() { return test::Golden::root(); }

template <class T>
std::vector<T> read_raw(const std::filesystem::path& path) {
  const auto content = read_file(path);
  if (!content) throw std::runtime_error(content.error().message + "; write the golden set with: make golden");
  std::vector<T> values(content->size() / sizeof(T));
  std::memcpy(values.data(), content->data(), values.size() * sizeof(T));
  return values;
}

std::vector<int64_t> every(size_t n) {
  std::vector<int64_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Logits of all rows of `tokens`, through chunks of `chunk` rows.
std::vector<float> all_logits(test::TestModel& m, LaneState& lane, std::span<const TokenId> tokens, int chunk) {
  std::vector<float> logits;
  run_prompt(*m.target, lane, tokens, chunk, every(tokens.size()), [&](int64_t, int64_t, const ForwardResult& r) {
    for (int64_t i = 0; i < r.logits.rows; ++i) logits.insert(logits.end(), r.logits.f32(i), r.logits.f32(i) + r.logits.cols);
    return true;
  });
  return logits;
}

float largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, std::fabs(a[i] - b[i]));
  return worst;
}

// "" when equal bit for bit.
std::string bit_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return "sizes differ";
  for (size_t i = 0; i < a.size(); ++i)
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]))
      return "first difference at " + std::to_string(i) + ": " + std::to_string(a[i]) + " and " + std::to_string(b[i]);
  return "";
}

struct Form {
  const char* folder;     // of the results
  const char* path;       // of the bundle, below `folder`
  const char* logits;     // which result it must give
  float tolerance;        // largest difference of a logit; logits are a few units. Quantised forms quantise activations too.
};

void PrintTo(const Form& f, std::ostream* out) { *out << f.folder << "/" << f.path; }

class GoldenForm : public ::testing::TestWithParam<Form> {};

// Each form gives the float64 logits, hidden rows, recurrent states and convolution tails within fp32 rounding.
TEST_P(GoldenForm, MatchesFloat64) {
  const Form form = GetParam();
  const auto folder = golden_dir() / form.folder;
  const auto m = test::load_model(folder / form.path);
  const auto tokens = read_raw<TokenId>(folder / "tokens.i32");
  const auto expected = read_raw<float>(folder / (std::string(form.logits) + ".f32"));
  auto lane = m->target->make_lane();
  const auto logits = all_logits(*m, *lane, tokens, 512);
  ASSERT_GT(*std::max_element(expected.begin(), expected.end()), 1.0f) << "a trivial reference proves nothing";
  EXPECT_LT(largest_difference(logits, expected), form.tolerance);
  if (std::string(form.logits) != "logits") return;
  const auto states = read_raw<float>(folder / "states.f32");
  std::vector<float> ours;
  for (const DeltaMemory& d : lane->delta()) ours.insert(ours.end(), d.state, d.state + m->config.delta.state_floats());
  EXPECT_LT(largest_difference(ours, states), form.tolerance);
  const auto tails = read_raw<float>(folder / "tails.f32");
  ours.clear();
  for (const DeltaMemory& d : lane->delta()) ours.insert(ours.end(), d.tail, d.tail + m->config.delta.tail_floats());
  EXPECT_LT(largest_difference(ours, tails), form.tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    AllForms, GoldenForm,
    ::testing::Values(Form{"qwen35", "hf", "logits", 1e-4f}, Form{"qwen35", "hf-bf16", "logits", 1e-4f},
                      Form{"qwen35", "hf-f16", "logits", 1e-4f}, Form{"qwen35", "model-f32.gguf", "logits", 1e-4f},
                      Form{"qwen35", "model-f16.gguf", "logits", 1e-4f}, Form{"qwen35", "model-bf16.gguf", "logits", 1e-4f},
                      Form{"qwen35", "split", "logits", 1e-4f}, Form{"qwen35", "hf-yarn", "yarn_logits", 1e-4f},
                      Form{"qwen35", "model-yarn.gguf", "yarn_logits", 1e-4f}, Form{"qwen35", "hf-sigmoid", "sigmoid_logits", 1e-4f},
                      Form{"qwen35moe", "hf", "logits", 1e-4f}, Form{"qwen35moe", "hf-bf16", "logits", 1e-4f},
                      Form{"qwen35moe", "model-f32.gguf", "logits", 1e-4f}, Form{"qwen35moe", "model-bf16.gguf", "logits", 1e-4f},
                      Form{"qwen3next", "hf", "logits", 1e-4f}, Form{"qwen3next", "hf-bf16", "logits", 1e-4f},
                      Form{"qwen3next", "model-f32.gguf", "logits", 1e-4f}, Form{"qwen3next", "model-bf16.gguf", "logits", 1e-4f}));

// Weights with the same values give the same bits, whatever file holds them.
TEST(GoldenBits, EveryFormOfOneModelGivesTheSameBits) {
  const std::pair<const char*, std::vector<const char*>> families[] = {
      {"qwen35", {"hf", "hf-bf16", "hf-f16", "model-f32.gguf", "model-f16.gguf", "model-bf16.gguf", "split"}},
      {"qwen35moe", {"hf", "hf-bf16", "model-f32.gguf", "model-bf16.gguf"}},
      {"qwen3next", {"hf", "hf-bf16", "model-f32.gguf", "model-bf16.gguf"}}};
  for (const auto& [folder, forms] : families) {
    std::vector<float> first;
    for (const char* form : forms) {
      SCOPED_TRACE(std::string(folder) + "/" + form);
      const auto m = test::load_model(golden_dir() / folder / form);
      auto lane = m->target->make_lane();
      const auto logits = all_logits(*m, *lane, read_raw<TokenId>(golden_dir() / folder / "tokens.i32"), 512);
      if (first.empty()) first = logits;
      EXPECT_EQ(bit_difference(logits, first), "");
    }
  }
}

// A long prompt crosses pages and an attention span.
TEST(GoldenLong, LastRowsOfALongPrompt) {
  const auto folder = golden_dir() / "qwen35";
  const auto m = test::load_model(folder / "hf-bf16");
  const auto tokens = read_raw<TokenId>(folder / "long_tokens.i32");
  const auto expected = read_raw<float>(folder / "long_logits.f32");
  ASSERT_GT(tokens.size(), size_t{kSpanTokens});
  auto lane = m->target->make_lane();
  const auto logits = all_logits(*m, *lane, tokens, 512);
  EXPECT_LT(largest_difference(std::span(logits).last(expected.size()), expected), 1e-4f);
}

// Rows fed as embeddings with three-axis positions.
TEST(GoldenMrope, EmbeddingRowsWithPositions) {
  for (const char* name : {"qwen35", "qwen35moe"}) {
    const auto folder = golden_dir() / name;
    const auto m = test::load_model(folder / "hf");
    const auto embeddings = read_raw<float>(folder / "mrope_embeddings.f32");
    const auto positions = read_raw<int32_t>(folder / "mrope_positions.i32");
    const auto expected = read_raw<float>(folder / "mrope_logits.f32");
    const int rows = static_cast<int>(positions.size() / 3);
    std::vector<RowInput> inputs;
    std::vector<int> wanted;
    for (int r = 0; r < rows; ++r) {
      inputs.push_back({.embedding = embeddings.data() + size_t(r * m->config.hidden), .position = {positions[size_t(3 * r)], positions[size_t(3 * r + 1)], positions[size_t(3 * r + 2)]}});
      wanted.push_back(r);
    }
    auto lane = m->target->make_lane();
    LaneState* lanes[] = {lane.get()};
    const LaneRows lane_rows{.rows = rows, .settled = rows};
    const ForwardResult result = m->target->forward({.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = wanted}, lanes);
    EXPECT_LT(largest_difference({result.logits.f32(), expected.size()}, expected), 1e-4f) << name;
  }
}

// The greedy continuation, up to the first step whose margin is not clear.
TEST(GoldenGreedy, Continuation) {
  for (const char* name : {"qwen35", "qwen35moe", "qwen3next"}) {
    const auto folder = golden_dir() / name;
    const auto m = test::load_model(folder / "model-f32.gguf");
    const auto tokens = read_raw<TokenId>(folder / "tokens.i32"), greedy = read_raw<TokenId>(folder / "greedy.i32");
    const auto gap = read_raw<float>(folder / "greedy_gap.f32");
    auto lane = m->target->make_lane();
    const SteadyClock clock;
    Generation generation(*m->target, *lane, {.max_tokens = static_cast<int64_t>(greedy.size())}, clock);
    ASSERT_TRUE(generation.start(tokens));
    while (!generation.finished()) ASSERT_TRUE(generation.step());
    size_t compared = 0;
    for (; compared < greedy.size() && gap[compared] > 1e-3f; ++compared) ASSERT_EQ(generation.tokens()[compared], greedy[compared]) << name;
    EXPECT_GE(compared, 4u) << name;
  }
}

// A file whose matrices take every storage type in turn: near the float64 results of its decoded values (activations are quantised, so
// not equal), and the reference backend's bits exactly.
TEST(GoldenQuantised, EveryStorageType) {
  // Random experts are routed by near ties, and an expert that changes moves a row more than quantisation does.
  for (const auto& [name, bound] : {std::pair("quant", 0.05), std::pair("quantmoe", 0.1)}) {
    const auto folder = golden_dir() / name;
    const auto tokens = read_raw<TokenId>(folder / "tokens.i32");
    const auto expected = read_raw<float>(folder / "logits.f32");
    const auto m = test::load_model(folder / "model.gguf");
    auto lane = m->target->make_lane();
    const auto logits = all_logits(*m, *lane, tokens, 512);
    double error = 0, size = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      error += std::pow(logits[i] - expected[i], 2);
      size += std::pow(expected[i], 2);
    }
    EXPECT_LT(std::sqrt(error / size), bound) << name;
    const auto reference = test::load_model(folder / "model.gguf", {.kv_format = KvFormat::kF32}, make_reference_backend());
    auto reference_lane = reference->target->make_lane();
    EXPECT_EQ(bit_difference(logits, all_logits(*reference, *reference_lane, tokens, 512)), "") << name;
  }
}

// Prompt chunks of any size, one or two threads and every instruction set give the same bits in logits and in the lane's whole state, for
// each K/V format.
TEST(RowInvariance, ChunksThreadsAndInstructionSets) {
  const auto isas = test::available_isas();
  for (const char* bundle : {"qwen35/hf-bf16", "qwen35moe/model-bf16.gguf", "qwen3next/hf", "quant/model.gguf", "quantmoe/model.gguf"})
    for (const KvFormat kv : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8}) {
      std::vector<float> first;
      std::string first_state;
      for (const Isa isa : isas)
        for (const int threads : {1, 2}) {
          const auto m = test::load_model(golden_dir() / bundle, {.kv_format = kv}, test::cpu_backend(isa, threads));
          const auto tokens = read_raw<TokenId>(golden_dir() / std::filesystem::path(bundle).parent_path() / "tokens.i32");
          for (const int chunk : {1, 7, 64, 512}) {
            if (chunk == 1 && isa != isas.back()) continue;  // the slow pair once
            SCOPED_TRACE(std::string(bundle) + " kv " + std::to_string(int(kv)) + " isa " + std::to_string(int(isa)) + " threads " + std::to_string(threads) + " chunk " + std::to_string(chunk));
            auto lane = m->target->make_lane();
            const auto logits = all_logits(*m, *lane, tokens, chunk);
            if (first.empty()) {
              first = logits;
              first_state = lane->hash();
            }
            ASSERT_EQ(bit_difference(logits, first), "");
            ASSERT_EQ(lane->hash(), first_state);
          }
        }
    }
}

// Row i of an n-row pass has the bits of the same row decoded alone, for chains and trees; committing a path leaves the state of
// decoding its tokens one by one; a pass that commits nothing changes nothing.
TEST(RowInvariance, ChainsAndTreesAgreeWithOneByOne) {
  for (const char* bundle : {"qwen35/hf-bf16", "qwen35moe/hf", "qwen3next/model-bf16.gguf", "quant/model.gguf", "quantmoe/model.gguf"}) {
    SCOPED_TRACE(bundle);
    const auto m = test::load_model(golden_dir() / bundle, {.kv_format = KvFormat::kBF16});
    const auto tokens = read_raw<TokenId>(golden_dir() / std::filesystem::path(bundle).parent_path() / "tokens.i32");
    const std::span<const TokenId> prompt = std::span(tokens).first(40);
    const std::vector<TokenId> fed(tokens.begin() + 40, tokens.begin() + 40 + 33);
    uint64_t random = 12345;
    for (const int rows : {1, 2, 3, 4, 5, 8, 15, 16, 17, 33})
      for (const bool tree : {false, true})
        for (const int settled : {0, 1}) {
          SCOPED_TRACE("rows " + std::to_string(rows) + (tree ? " tree" : " chain") + " settled " + std::to_string(settled));
          std::vector<int16_t> parent;
          for (int r = 0; r < rows; ++r) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            parent.push_back(static_cast<int16_t>(r == 0 ? -1 : tree ? int((random >> 33) % uint64_t(r)) : r - 1));
          }
          auto lane = m->target->make_lane();
          all_logits(*m, *lane, prompt, 512);
          const std::string before = lane->hash();
          std::vector<RowInput> inputs;
          std::vector<int> wanted, depth;
          for (int r = 0; r < rows; ++r) {
            depth.push_back(parent[size_t(r)] < 0 ? 0 : depth[size_t(parent[size_t(r)])] + 1);
            inputs.push_back(text_row(fed[size_t(r)], lane->length() + depth.back()));
            wanted.push_back(r);
          }
          const LaneRows lane_rows{.rows = rows, .prefix = lane->length(), .settled = settled, .parent = parent};
          LaneState* lanes[] = {lane.get()};
          const ForwardResult result = m->target->forward({.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = wanted}, lanes);
          std::vector<float> logits(result.logits.f32(), result.logits.f32() + result.logits.rows * result.logits.cols);
          if (settled == 0) {
            ASSERT_EQ(lane->hash(), before);
          }

          // The path to the last row, one token at a time on a fresh lane.
          std::vector<int> path;
          for (int r = rows - 1; r >= 0; r = parent[size_t(r)]) path.insert(path.begin(), r);
          auto alone = m->target->make_lane();
          all_logits(*m, *alone, prompt, 7);
          for (const int r : path) {
            const auto one = all_logits(*m, *alone, {&fed[size_t(r)], 1}, 1);
            ASSERT_EQ(bit_difference(one, std::span(logits).subspan(size_t(r) * one.size(), one.size())), "") << "row " << r;
          }
          m->target->commit(*lane, path);
          ASSERT_EQ(lane->hash(), alone->hash());
        }
  }
}

// Lanes of different lengths in one pass leave each other's bits alone, even when one of them holds NaN.
TEST(RowInvariance, LanesDoNotSeeEachOther) {
  for (const char* bundle : {"qwen35/hf-bf16", "quantmoe/model.gguf"}) {
    SCOPED_TRACE(bundle);
    const auto m = test::load_model(golden_dir() / bundle, {.kv_format = KvFormat::kBF16});
    const auto tokens = read_raw<TokenId>(golden_dir() / std::filesystem::path(bundle).parent_path() / "tokens.i32");
    std::vector<std::unique_ptr<LaneState>> lanes;
    std::vector<std::vector<float>> expected;
    for (const int length : {5, 33, 64}) {
      auto alone = m->target->make_lane();
      all_logits(*m, *alone, std::span(tokens).first(size_t(length)), 512);
      expected.push_back(all_logits(*m, *alone, std::span(tokens).subspan(size_t(length), 3), 1));
      lanes.push_back(m->target->make_lane());
      all_logits(*m, *lanes.back(), std::span(tokens).first(size_t(length)), 512);
    }
    std::vector<RowInput> inputs;
    std::vector<LaneRows> rows;
    std::vector<LaneState*> pointers;
    std::vector<int> wanted;
    const std::vector<float> poison(size_t(m->config.hidden), std::numeric_limits<float>::quiet_NaN());
    for (size_t l = 0; l < lanes.size(); ++l) {
      rows.push_back({.first_row = static_cast<int>(inputs.size()), .rows = 3, .prefix = lanes[l]->length(), .settled = 1});
      for (int r = 0; r < 3; ++r) {
        wanted.push_back(static_cast<int>(inputs.size()));
        inputs.push_back(text_row(tokens[size_t(lanes[l]->length() + r)], lanes[l]->length() + r));
        if (l == 1) inputs.back().embedding = poison.data();
      }
      pointers.push_back(lanes[l].get());
    }
    const ForwardResult result = m->target->forward({.inputs = inputs, .lanes = rows, .logits_rows = wanted}, pointers);
    const size_t row = size_t(m->config.vocab);
    for (size_t l = 0; l < lanes.size(); ++l) {
      const std::span<const float> ours(result.logits.f32(int64_t(3 * l)), 3 * row);
      if (l == 1) {
        EXPECT_TRUE(std::isnan(ours[0]));
      } else {
        EXPECT_EQ(bit_difference(ours, expected[l]), "") << "lane " << l;
      }
    }
  }
}

}  // namespace
}  // namespace foretoken
