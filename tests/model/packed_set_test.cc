// Weights that were packed by an earlier load give the logits' bits that packing gives, in every file format and row order; a change of
// what is packed, or of how, is never answered from an older file.
#include "model/packed_set.h"

#include <gtest/gtest.h>

#include <cstring>

#include "decode/generation.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "support/test_model.h"

namespace foretoken {
namespace {

namespace fs = std::filesystem;

PackedCacheOptions options(const fs::path& folder) { return {.folder = folder, .least_bytes = 0, .threads = 2}; }

// Logits of the last row after a few tokens.
std::vector<float> logits_of(const fs::path& path, PackedCache* cache, bool* found = nullptr) {
  const Bundle bundle = test::value_or_throw(Bundle::open(path));
  const ModelConfig config = test::value_or_throw(ModelConfig::from_bundle(bundle));
  const auto backend = test::cpu_backend(Isa::kAuto, 2);
  const Weights weights = test::value_or_throw(Weights::load(bundle, config, *backend, {}, cache));
  if (found) *found = weights.packed_file.has_value();
  TargetModel target(config, weights, *backend, {.kv_format = KvFormat::kF32});
  const auto lane = target.make_lane();
  std::vector<float> logits;
  const TokenId tokens[] = {3, 1, 4, 1, 5};
  const int64_t wanted[] = {4};
  run_prompt(target, *lane, tokens, 8, wanted, [&](int64_t, int64_t, const ForwardResult& r) {
    logits.assign(r.logits.f32(0), r.logits.f32(0) + r.logits.cols);
    return true;
  });
  return logits;
}

// Every bundle of the golden set: floats with reordered rows and columns, block formats, sparse layers, fused and separate experts.
TEST(PackedSet, CachedWeightsGiveTheSameBits) {
  int bundles = 0;
  for (const auto& entry : fs::recursive_directory_iterator(test::Golden::root())) {
    const fs::path path = entry.path();
    const bool gguf = path.extension() == ".gguf", folder = entry.is_directory() && fs::exists(path / "model.safetensors");
    if (!gguf && !folder) continue;
    const auto bundle = Bundle::open(path);
    if (!bundle) continue;
    const auto config = ModelConfig::from_bundle(*bundle);
    if (!config || !check_trunk(*bundle, *config)) continue;
    SCOPED_TRACE(path.string());
    ++bundles;
    const testing::TempDir caches;
    const std::vector<float> plain = logits_of(path, nullptr);
    for (const bool expected : {false, true, true}) {
      PackedCache cache(options(caches.path()));
      bool found = false;
      const std::vector<float> cached = logits_of(path, &cache, &found);
      EXPECT_EQ(found, expected);
      ASSERT_EQ(cached.size(), plain.size());
      EXPECT_EQ(std::memcmp(cached.data(), plain.data(), plain.size() * sizeof(float)), 0);
    }
  }
  EXPECT_GE(bundles, 8) << "write the golden set with: make golden";
}

// The head is a set of its own.
TEST(PackedSet, TheHeadIsCachedToo) {
  const test::Golden golden("qwen35");
  const testing::TempDir caches;
  const Bundle bundle = test::value_or_throw(Bundle::open(golden.path("hf")));
  const ModelConfig config = test::value_or_throw(ModelConfig::from_bundle(bundle));
  if (!inspect_mtp(bundle, config).complete) FAIL() << "this golden bundle has a head";
  const auto backend = test::cpu_backend(Isa::kAuto, 1);
  const MtpWeights plain = test::value_or_throw(load_mtp(bundle, config, *backend));
  for (const bool expected : {false, true}) {
    PackedCache cache(options(caches.path()));
    const MtpWeights head = test::value_or_throw(load_mtp(bundle, config, *backend, &cache));
    EXPECT_EQ(head.packed_file.has_value(), expected);
    EXPECT_TRUE(std::ranges::equal(head.fusion->packed(), plain.fusion->packed()));
    EXPECT_TRUE(std::ranges::equal(head.layer.dense().down->packed(), plain.layer.dense().down->packed()));
  }
}

// ---- Keys

TEST(PackedSet, ThePackingIsOneForAllInstructionSetsAndThreads) {
  const std::string packing = packing_of(*test::cpu_backend(Isa::kAuto, 1));
  EXPECT_FALSE(packing.empty());
  EXPECT_EQ(packing_of(*test::cpu_backend(Isa::kScalar, 2)), packing);
  EXPECT_EQ(packing_of(*test::cpu_backend(Isa::kAvx2, 1)), packing);
  EXPECT_TRUE(packing_of(*make_reference_backend()).empty()) << "the reference keeps nothing";
}

// The order's text tells apart every difference that changes what is packed.
TEST(PackedSet, EveryPartOfTheOrderCounts) {
  const TensorInfo a{.name = "a", .format = QuantFormat::kF32, .shape = {8, 4}}, b{.name = "b", .format = QuantFormat::kF32, .shape = {8, 4}},
      c{.name = "a", .format = QuantFormat::kBF16, .shape = {8, 4}};
  const auto digest = [](std::vector<std::vector<Slice>> matrices) {
    PackingOrder order;
    for (const auto& slices : matrices) order.add(slices);
    return order.digest();
  };
  const Slice plain{&a, 0, 4, 4, {}, {}};
  const std::vector<std::string> digests = {
      digest({{plain}}),
      digest({{plain}, {plain}}),
      digest({{plain, plain}}),
      digest({{{&b, 0, 4, 4, {}, {}}}}),
      digest({{{&c, 0, 4, 4, {}, {}}}}),
      digest({{{&a, 4, 4, 4, {}, {}}}}),
      digest({{{&a, 0, 3, 4, {}, {}}}}),
      digest({{{&a, 0, 4, 8, {}, {}}}}),
      digest({{{&a, 0, 4, 4, {0, 1, 2, 3}, {}}}}),
      digest({{{&a, 0, 4, 4, {3, 2, 1, 0}, {}}}}),
      digest({{{&a, 0, 4, 4, {}, {3, 2, 1, 0}}}}),
      digest({}),
  };
  for (size_t i = 0; i < digests.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(digests[i], digests[j]) << i << " and " << j;
}

// Bytes of another size are not taken.
TEST(PackedSet, AdoptingChecksTheSize) {
  const auto backend = test::cpu_backend(Isa::kAuto, 1);
  const std::vector<std::byte> data(70 * row_bytes(QuantFormat::kQ4_K, 256));
  const MatrixSource source{.format = QuantFormat::kQ4_K, .rows = 70, .cols = 256, .data = data};
  const MatrixPtr packed = backend->pack({&source, 1});
  const auto bytes = packed->packed();
  const MatrixPtr adopted = backend->adopt({&source, 1}, bytes);
  ASSERT_NE(adopted, nullptr);
  EXPECT_EQ(adopted->rows(), 70);
  EXPECT_EQ(adopted->cols(), 256);
  EXPECT_EQ(adopted->packed().data(), bytes.data());
  EXPECT_EQ(backend->adopt({&source, 1}, bytes.first(bytes.size() - 64)), nullptr);
}

// Sources are released piece by piece while they are packed: all of each, and nothing twice.
TEST(PackedSet, SourcesAreReleasedWhilePacking) {
  const auto backend = test::cpu_backend(Isa::kAuto, 2);
  constexpr int64_t kRows = 9000, kCols = 4096;  // 73 MB: several pieces
  const std::vector<std::byte> data(kRows * row_bytes(QuantFormat::kBF16, kCols));
  MatrixSource source{.format = QuantFormat::kBF16, .rows = kRows, .cols = kCols, .data = data};
  size_t released = 0, calls = 0;
  source.release = [&](std::span<const std::byte> part) {
    EXPECT_EQ(part.data(), data.data() + released);
    released += part.size();
    ++calls;
  };
  const MatrixPtr packed = backend->pack({&source, 1});
  EXPECT_EQ(released, data.size());
  EXPECT_GE(calls, 2u);
}

}  // namespace
}  // namespace foretoken
