// Bundles that a backend's kernels do not hold are refused with one sentence, before anything is packed.
#include <gtest/gtest.h>

#include <cstring>

#include "model/weights.h"
#include "support/golden.h"
#include "support/mirrored.h"
#include "support/temp_dir.h"
#include "support/test_model.h"

namespace foretoken {
namespace {

namespace fs = std::filesystem;

Status load_within(const fs::path& path, const BackendLimits& limits) {
  const Bundle bundle = test::value_or_throw(Bundle::open(path));
  const ModelConfig config = test::value_or_throw(ModelConfig::from_bundle(bundle));
  test::Mirrored backend(test::cpu_backend(Isa::kAuto, 1), limits);
  const auto weights = Weights::load(bundle, config, backend);
  if (weights) return {};
  return weights.error();
}

void expect_refused(const fs::path& path, const BackendLimits& limits, std::string_view words) {
  const Status status = load_within(path, limits);
  ASSERT_FALSE(status.ok()) << words;
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(status.error().message.find(words), std::string::npos) << status.error().message;
  EXPECT_EQ(status.error().message.find('\n'), std::string::npos);
}

TEST(BackendLimits, AreCheckedBeforeLoading) {
  const fs::path path = test::Golden("qwen3next").path("hf");
  const ModelConfig config = test::value_or_throw(ModelConfig::from_bundle(test::value_or_throw(Bundle::open(path))));
  const BackendLimits fits{.key_dim = config.delta.key_dim, .experts = config.moe.experts, .top_k = config.moe.top_k, .vocabulary = config.vocab, .like_experts = true};
  ASSERT_GT(config.moe.top_k, 1);
  EXPECT_TRUE(load_within(path, fits).ok());
  BackendLimits tight = fits;
  --tight.key_dim;
  expect_refused(path, tight, "elements in a linear key head");
  tight = fits;
  --tight.experts;
  expect_refused(path, tight, "experts in a layer");
  tight = fits;
  --tight.top_k;
  expect_refused(path, tight, "experts for a token");
  tight = fits;
  --tight.vocabulary;
  expect_refused(path, tight, "tokens of a vocabulary");
}

// The same bundle with one expert's matrix stored as BF16: loaded where experts may differ, refused by name where they may not.
TEST(BackendLimits, ExpertsStoredDifferently) {
  const auto file = read_file(test::Golden("qwen3next").path("hf/model.safetensors"));
  ASSERT_TRUE(file.ok());
  uint64_t length = 0;
  std::memcpy(&length, file->data(), 8);
  const OrderedJson header = OrderedJson::parse(file->substr(8, length));
  const std::string_view data = std::string_view(*file).substr(8 + length);
  OrderedJson mixed;
  std::string bytes;
  int changed = 0;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = entry["data_offsets"][0].get<size_t>(), end = entry["data_offsets"][1].get<size_t>();
    std::string values(data.substr(begin, end - begin));
    OrderedJson tensor = entry;
    if (name.ends_with("layers.1.mlp.experts.2.down_proj.weight")) {
      std::string halves;  // the upper half of every float
      for (size_t i = 0; i < values.size(); i += 4) halves += values.substr(i + 2, 2);
      values = halves;
      tensor["dtype"] = "BF16";
      ++changed;
    }
    tensor["data_offsets"] = {bytes.size(), bytes.size() + values.size()};
    mixed[name] = tensor;
    bytes += values;
  }
  ASSERT_EQ(changed, 1);
  const testing::TempDir dir;
  std::string text = mixed.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  dir.write("model.safetensors", std::string(reinterpret_cast<const char*>(&size), 8) + text + bytes);
  const auto config = read_file(test::Golden("qwen3next").path("hf/config.json"));
  ASSERT_TRUE(config.ok());
  dir.write("config.json", *config);
  EXPECT_TRUE(load_within(dir.path(), {}).ok());
  expect_refused(dir.path(), {.like_experts = true}, "expert 2 of model.layers.1.");
}

}  // namespace
}  // namespace foretoken
