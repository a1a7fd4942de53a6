// Weights that were packed by an earlier load give the logits' bits that packing gives, in every file format and row order; a change of
// what is packed, or of how, is never answered from an older file.
#include "model/packed_set.h"

#include <gtest/gtest.h>

#include <cstring>

#include "decode/draft_models.h"
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

// Everything that a drafter packs, in the order of its file.
std::vector<const Matrix*> matrices_of(const DflashWeights& w) {
  std::vector<const Matrix*> all = {w.fusion.get()};
  for (const DflashLayer& layer : w.layers)
    for (const MatrixPtr* m : {&layer.qkv, &layer.out, &layer.ffn.gate_up, &layer.ffn.down, &layer.mixer_conv.projection,
                               &layer.ffn_conv.projection})
      all.push_back(m->get());
  all.push_back(w.context_kv.get());
  all.push_back(w.selector.get());
  all.push_back(w.markov.get());
  std::erase(all, nullptr);
  return all;
}

// Drafters of every kind, as stored and re-encoded: the found matrices are those that packing makes, byte for byte; one load's re-encoding
// never answers for another's, and a damaged file is made again.
TEST(PackedSet, DraftersAreCachedInTheFormatTheyAreRunIn) {
  const test::Golden target("qwen35");
  const Bundle target_bundle = test::value_or_throw(Bundle::open(target.path("hf")));
  const ModelConfig target_config = test::value_or_throw(ModelConfig::from_bundle(target_bundle));
  const auto backend = test::cpu_backend(Isa::kAuto, 2);
  for (const char* name : {"dflash1", "dflash2", "dspark"}) {
    SCOPED_TRACE(name);
    const Bundle bundle = test::value_or_throw(Bundle::open(test::Golden(name).path("hf")));
    const DflashConfig config = test::value_or_throw(DflashConfig::from_bundle(bundle, target_config));
    const testing::TempDir caches;
    std::vector<size_t> sizes;
    for (const std::optional<QuantFormat> format : {std::optional<QuantFormat>(), std::optional(QuantFormat::kQ8_0)}) {
      const DflashWeights plain = test::value_or_throw(DflashWeights::load(bundle, config, *backend, format));
      const auto expected = matrices_of(plain);
      sizes.push_back(plain.packed_bytes());
      const auto load = [&](bool found) {
        PackedCache cache(options(caches.path()));
        const DflashWeights cached = test::value_or_throw(DflashWeights::load(bundle, config, *backend, format, &cache));
        EXPECT_EQ(cached.packed_file.has_value(), found);
        const auto got = matrices_of(cached);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(std::ranges::equal(got[i]->packed(), expected[i]->packed())) << i;
      };
      load(false);
      load(true);
      for (const auto& file : fs::directory_iterator(caches.path()))
        if (file.path().extension() == kPackedSuffix) testing::flip_byte(file.path(), 100);
      load(false);
      load(true);
    }
    EXPECT_LT(sizes[1], sizes[0]) << "some matrix is re-encoded";
  }
}

// A first load of everything keeps three files, a second finds them all: a target, its head and its drafter.
TEST(PackedSet, ALoadKeepsTrunkHeadAndDrafter) {
  const test::Golden golden("qwen35");
  const Bundle bundle = test::value_or_throw(Bundle::open(golden.path("hf")));
  const ModelConfig config = test::value_or_throw(ModelConfig::from_bundle(bundle));
  const auto backend = test::cpu_backend(Isa::kAuto, 1);
  const testing::TempDir caches;
  std::vector<std::string> notes;
  const auto load = [&] {
    PackedCacheOptions o = options(caches.path());
    o.note = [&](const std::string& note) { notes.push_back(note); };
    PackedCache cache(o);
    const Weights weights = test::value_or_throw(Weights::load(bundle, config, *backend, {}, &cache));
    const auto settings = test::value_or_throw(DraftSettings::parse("copy,mtp,dflash", test::Golden("dflash2").path("hf").string()));
    const auto drafts = DraftModels::load(bundle, config, weights, *backend, settings, KvFormat::kF32, 64, &cache);
    EXPECT_TRUE(drafts->has(Route::kMtp));
    EXPECT_TRUE(drafts->has(Route::kBlock));
  };
  const auto files = [&] {
    std::vector<std::pair<std::string, fs::file_time_type>> all;
    for (const auto& file : fs::directory_iterator(caches.path()))
      if (file.path().extension() == kPackedSuffix) all.emplace_back(file.path().filename().string(), file.last_write_time());
    std::ranges::sort(all);
    return all;
  };
  load();
  const auto first = files();
  ASSERT_EQ(first.size(), 3u);
  for (const char* set : {"-trunk-", "-mtp-", "-drafter-"})
    EXPECT_EQ(std::ranges::count_if(first, [&](const auto& f) { return f.first.find(set) != std::string::npos; }), 1) << set;
  EXPECT_EQ(notes.size(), 1u) << "one line says that the disk is used";
  load();
  const auto second = files();
  ASSERT_EQ(second.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(second[i].first, first[i].first);
    EXPECT_GT(second[i].second, first[i].second) << "used by the second load";
  }
  EXPECT_EQ(notes.size(), 1u);
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
  std::vector<std::string> digests = {
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
  const auto reencoded = [&](QuantFormat format) {
    PackingOrder order;
    order.add({&plain, 1});
    order.reencoded(format);
    return order.digest();
  };
  digests.push_back(reencoded(QuantFormat::kQ8_0));
  digests.push_back(reencoded(QuantFormat::kQ4_K));
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
