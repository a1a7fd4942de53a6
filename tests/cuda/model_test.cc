// The embedded model and tiny golden bundles on the CUDA backend: near the CPU backend's logits, the same greedy choices where the
// choice is clear, and a row's bits alone, in chunks, in chains and in trees. Without a device nothing runs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "support/cuda_device.h"
#include "support/test_model.h"

namespace foretoken::test {
namespace {

namespace fs = std::filesystem;

std::vector<float> run(TestModel& m, LaneState& lane, std::span<const TokenId> tokens, int settled, std::span<const int16_t> parent = {},
                       bool commit = true) {
  std::vector<RowInput> inputs;
  std::vector<int> wanted;
  std::vector<int> depth;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int before = parent.empty() ? static_cast<int>(i) - 1 : parent[i];
    depth.push_back(before < 0 ? 0 : depth[static_cast<size_t>(before)] + 1);
    const int32_t position = static_cast<int32_t>(lane.length()) + depth.back();
    inputs.push_back({.token = tokens[i], .position = {position, position, position}});
    wanted.push_back(static_cast<int>(i));
  }
  const LaneRows rows{0, static_cast<int>(tokens.size()), lane.length(), settled, parent};
  LaneState* lanes[] = {&lane};
  const ForwardResult result = m.target->forward({inputs, {&rows, 1}, wanted}, lanes);
  std::vector<float> logits(result.logits.f32(), result.logits.f32() + result.logits.rows * result.logits.cols);
  if (commit) m.target->commit(lane, wanted);
  return logits;
}

std::vector<float> in_chunks(TestModel& m, LaneState& lane, std::span<const TokenId> tokens, size_t chunk, bool settled) {
  std::vector<float> all;
  for (size_t first = 0; first < tokens.size(); first += chunk) {
    const auto part = tokens.subspan(first, std::min(chunk, tokens.size() - first));
    const std::vector<float> logits = run(m, lane, part, settled ? static_cast<int>(part.size()) : 0);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

std::vector<TokenId> some_tokens(int count, int vocab) {
  std::vector<TokenId> tokens;
  uint64_t state = 12345;
  for (int i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<TokenId>((state >> 33) % static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

// The models that travel with the repository or were made by its tools.
std::vector<fs::path> models() {
  std::vector<fs::path> found;
  for (const fs::path& path : {fs::path(FORETOKEN_SOURCE_DIR) / "models" / "demo-dense", fs::path("models/demo-dense")})
    if (found.empty() && fs::exists(path)) found.push_back(path);
  for (const char* folder : {FORETOKEN_BINARY_DIR "/golden", ".cuda_drop/golden"})
    for (const char* name : {"qwen35/model-f32.gguf", "qwen35moe/model-f32.gguf", "qwen3next/model-bf16.gguf", "quant/model.gguf", "quantmoe/model.gguf"})
      if (const fs::path path = fs::path(folder) / name; fs::exists(path)) found.push_back(path);
  return found;
}

class CudaModel : public DeviceTest {};

TEST_F(CudaModel, NearTheCpuBackend) {
  for (const fs::path& path : models()) {
    const auto cpu = load_model(path), cuda = load_model(path, {.kv_format = KvFormat::kF32}, cuda_or_null());
    const int vocab = cpu->config.vocab;
    const std::vector<TokenId> tokens = some_tokens(64, vocab);
    const auto a_lane = cpu->target->make_lane(), b_lane = cuda->target->make_lane();
    const std::vector<float> a = in_chunks(*cpu, *a_lane, tokens, 64, true), b = in_chunks(*cuda, *b_lane, tokens, 64, true);
    ASSERT_EQ(a.size(), b.size());
    double divergence = 0;
    int same = 0;
    const int rows = static_cast<int>(tokens.size());
    for (int r = 0; r < rows; ++r) {
      const float *p = a.data() + r * vocab, *q = b.data() + r * vocab;
      int best_p = 0, best_q = 0;
      for (int i = 1; i < vocab; ++i) {
        if (p[i] > p[best_p]) best_p = i;
        if (q[i] > q[best_q]) best_q = i;
      }
      double zp = 0, zq = 0;
      for (int i = 0; i < vocab; ++i) zp += std::exp(double{p[i]} - p[best_p]), zq += std::exp(double{q[i]} - q[best_q]);
      for (int i = 0; i < vocab; ++i) {
        const double lp = double{p[i]} - p[best_p] - std::log(zp), lq = double{q[i]} - q[best_q] - std::log(zq);
        divergence += std::exp(lp) * (lp - lq);
      }
      same += best_p == best_q;
    }
    std::printf("%s: divergence from the CPU backend %.2e nats a token, greedy choice equal in %d of %d rows\n", path.filename().c_str(),
                divergence / rows, same, rows);
    // Both backends round what enters a product, the one to 8-bit integers and the other to bf16; f32 weights round nothing.
    EXPECT_LT(divergence / rows, path.filename() == "model-f32.gguf" ? 1e-9 : 2e-2) << path;
    EXPECT_GE(same, rows * 8 / 10) << path;
  }
}

TEST_F(CudaModel, RowsKeepTheirBits) {
  for (const fs::path& path : models()) {
    for (const KvFormat format : {KvFormat::kBF16, KvFormat::kInt8}) {
      const auto m = load_model(path, {.max_rows = 512, .kv_format = format}, cuda_or_null());
      const std::vector<TokenId> tokens = some_tokens(150, m->config.vocab);
      const auto alone = m->target->make_lane();
      const std::vector<float> expected = in_chunks(*m, *alone, tokens, 1, true);
      const std::string hash = alone->hash();
      for (const auto& [chunk, settled] : {std::pair<size_t, bool>(1, false), std::pair<size_t, bool>(2, true), std::pair<size_t, bool>(3, false),
                                           std::pair<size_t, bool>(7, true), std::pair<size_t, bool>(8, false), std::pair<size_t, bool>(16, false),
                                           std::pair<size_t, bool>(17, true), std::pair<size_t, bool>(64, true), std::pair<size_t, bool>(150, true)}) {
        const auto lane = m->target->make_lane();
        const std::vector<float> logits = in_chunks(*m, *lane, tokens, chunk, settled);
        ASSERT_EQ(logits.size(), expected.size());
        EXPECT_EQ(std::memcmp(logits.data(), expected.data(), expected.size() * sizeof(float)), 0)
            << path << ", passes of " << chunk << " rows, settled " << settled;
        EXPECT_EQ(lane->hash(), hash) << path << ", state after passes of " << chunk << " rows";
      }
      // A tree whose first path is the text and whose others are strangers.
      const auto lane = m->target->make_lane();
      in_chunks(*m, *lane, std::span(tokens).first(40), 40, true);
      const int16_t parent[] = {-1, 0, 0, 1, 2, 3, 1, 5};
      const TokenId tree[] = {tokens[40], tokens[41], 7, tokens[42], 9, tokens[43], 11, tokens[44]};
      const std::vector<float> logits = run(*m, *lane, tree, 1, parent, false);
      const size_t vocab = static_cast<size_t>(m->config.vocab);
      const int on_path[] = {0, 1, 3, 5, 7};
      for (size_t i = 0; i < 5; ++i)
        EXPECT_EQ(std::memcmp(logits.data() + static_cast<size_t>(on_path[i]) * vocab, expected.data() + (40 + i) * vocab, vocab * sizeof(float)), 0)
            << path << ", tree row " << on_path[i];
      m->target->commit(*lane, on_path);
      const std::vector<float> next = run(*m, *lane, std::span(tokens).subspan(45, 1), 1);
      EXPECT_EQ(std::memcmp(next.data(), expected.data() + 45 * vocab, vocab * sizeof(float)), 0) << path << ", after the tree";
    }
  }
}

}  // namespace
}  // namespace foretoken::test
