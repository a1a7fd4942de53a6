// Malformed heads and drafters, one line each: never an error, always a reason that names what is wrong. Every case is a whole
// bundle of the golden set with one thing changed, so that nothing else can be what is refused.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "model/dflash.h"
#include "support/golden.h"
#include "support/safetensors_builder.h"
#include "support/temp_dir.h"
#include "support/test_model.h"

namespace foretoken {
namespace {

using testing::TempDir;

// A safetensors folder in memory: configuration and tensors that a case may change before it is written.
struct Folder {
  struct Tensor {
    std::string type;
    std::vector<int64_t> shape;
    std::string data;
  };
  Json config;
  std::map<std::string, Tensor> tensors;
  // What a case does to the written folder.
  std::function<void(const TempDir&)> after = [](const TempDir&) {};

  static Folder read(const std::filesystem::path& path) {
    const Bundle bundle = test::value_or_throw(Bundle::open(path));
    Folder folder;
    folder.config = bundle.config();
    for (const TensorInfo& t : bundle.tensors())
      folder.tensors[t.name] = {t.stored_type, t.shape, std::string(reinterpret_cast<const char*>(t.data.data()), t.data.size())};
    return folder;
  }
  void write(const TempDir& dir) const {
    testing::SafetensorsBuilder builder;
    for (const auto& [name, t] : tensors) builder.add(name, t.type, t.shape, t.data);
    dir.write("model.safetensors", builder.build());
    dir.write("config.json", config.dump());
    after(dir);
  }
  Json& dflash() { return config["dflash_config"]; }
  Json& text() { return config.contains("text_config") ? config["text_config"] : config; }
  // Keeps the first rows only, so that shape and data agree.
  void shorten(const std::string& name) {
    Tensor& t = tensors.at(name);
    t.data.resize(t.data.size() / static_cast<size_t>(t.shape[0]) * static_cast<size_t>(t.shape[0] - 1));
    --t.shape[0];
  }
};

void truncate_file(const TempDir& dir, const char* name, uintmax_t bytes) {
  std::filesystem::resize_file(dir.path() / name, std::filesystem::file_size(dir.path() / name) - bytes);
}

struct Case {
  const char* name;
  std::function<void(Folder&)> change;
  const char* reason;  // a part of it
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

// ---- Drafters

class MalformedDrafter : public ::testing::TestWithParam<Case> {};

TEST_P(MalformedDrafter, HasAReason) {
  const auto target = test::load_model(test::Golden("qwen35").path("hf"));
  Folder folder = Folder::read(test::Golden("dflash2").path("hf"));
  {
    TempDir intact;
    folder.write(intact);
    const DrafterStatus status = inspect_drafter(intact.path(), target->config);
    ASSERT_TRUE(status.fits) << status.reason;
    ASSERT_EQ(status.kind, DrafterKind::kDflash2);
  }
  GetParam().change(folder);
  TempDir dir;
  folder.write(dir);
  const DrafterStatus status = inspect_drafter(dir.path(), target->config);
  EXPECT_FALSE(status.fits);
  EXPECT_NE(status.reason.find(GetParam().reason), std::string::npos) << status.reason;
  EXPECT_EQ(status.reason.find('\n'), std::string::npos);
  // Loading says the same instead of running it.
  if (const auto bundle = Bundle::open(dir.path()); bundle) {
    const auto model = DflashModel::load(*bundle, target->config, target->weights, *target->backend, {});
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().message, status.reason);
  }
}

const Case kDrafterCases[] = {
    {"MissingFusion", [](Folder& f) { f.tensors.erase("fc.weight"); }, "without the fusion"},
    {"HalfASplitFusion",
     [](Folder& f) {
       f.tensors["fc_hidden.weight"] = f.tensors.at("fc.weight");
       f.tensors.erase("fc.weight");
     },
     "half of a split fusion"},
    {"FusionOfOtherTaps", [](Folder& f) { f.dflash()["target_layer_ids"] = {1, 4}; }, "fc.weight has"},
    {"MissingLayerTensor", [](Folder& f) { f.tensors.erase("layers.1.mlp.up_proj.weight"); }, "layers.1.mlp.up_proj.weight is missing"},
    {"MissingConvolution", [](Folder& f) { f.tensors.erase("layers.0.mlp_conv.base_kernel"); }, "layers.0.mlp_conv.base_kernel is missing"},
    {"MissingSelector",
     [](Folder& f) {
       for (const char* name : {"hidden_projection.weight", "predecessor_codebook", "successor_codebook"})
         f.tensors.erase(std::string("candidate_selector.") + name);
     },
     "candidate_selector.hidden_projection.weight is missing"},
    {"ShortCodebook", [](Folder& f) { f.shorten("candidate_selector.successor_codebook"); }, "candidate_selector.successor_codebook has"},
    {"OneLayerDeclaredAsTwo",
     [](Folder& f) {
       std::erase_if(f.tensors, [](const auto& t) { return t.first.starts_with("layers.1."); });
     },
     "layers.1.input_layernorm.weight is missing"},
    {"ThreeLayersDeclared",
     [](Folder& f) {
       f.config["num_hidden_layers"] = 3;
       f.config["layer_types"] = {"sliding_attention", "sliding_attention", "sliding_attention"};
     },
     "layers.2.input_layernorm.weight is missing"},
    {"TruncatedPayload", [](Folder& f) { f.after = [](const TempDir& dir) { truncate_file(dir, "model.safetensors", 100); }; }, "model.safetensors"},
    {"ReversedSpan",
     [](Folder& f) {
       f.after = [](const TempDir& dir) {
         dir.write("model.safetensors", testing::safetensors_file(R"({"fc.weight":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "12345678"));
       };
     },
     "fc.weight"},
    {"NegativeSpan",
     [](Folder& f) {
       f.after = [](const TempDir& dir) {
         dir.write("model.safetensors", testing::safetensors_file(R"({"fc.weight":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", "12345678"));
       };
     },
     "fc.weight"},
    {"IndexNamesAnAbsentShard",
     [](Folder& f) {
       f.after = [](const TempDir& dir) {
         std::filesystem::rename(dir.path() / "model.safetensors", dir.path() / "model-00001-of-00002.safetensors");
         dir.write("model.safetensors.index.json",
                   R"({"weight_map":{"norm.weight":"model-00001-of-00002.safetensors","fc.weight":"model-00002-of-00002.safetensors"}})");
       };
     },
     "model-00002-of-00002.safetensors"},
    {"NoConfiguration", [](Folder& f) { f.after = [](const TempDir& dir) { std::filesystem::remove(dir.path() / "config.json"); }; }, "config.json"},
    {"ConfigurationIsNotJson", [](Folder& f) { f.after = [](const TempDir& dir) { dir.write("config.json", "{"); }; }, "config.json"},
    {"NoDrafterConfiguration",
     [](Folder& f) {
       f.config.erase("dflash_config");
       f.config["architectures"] = {"Qwen3ForCausalLM"};
     },
     "does not describe a DFlash drafter"},
    {"OtherVocabulary", [](Folder& f) { f.config["vocab_size"] = 9999; }, "vocabulary of 9999"},
    {"OtherWidth", [](Folder& f) { f.config["hidden_size"] = 128; }, "width 128"},
    {"OtherTargetDepth", [](Folder& f) { f.config["num_target_layers"] = 64; }, "target of 64 layers"},
    {"TapBeyondTheTarget", [](Folder& f) { f.dflash()["target_layer_ids"] = {1, 4, 8}; }, "taps layer 8"},
    {"NegativeTap", [](Folder& f) { f.dflash()["target_layer_ids"] = {-1, 4, 6}; }, "taps layer -1"},
    {"NoTap", [](Folder& f) { f.dflash()["target_layer_ids"] = Json::array(); }, "taps no target layer"},
    {"TapsAreText", [](Folder& f) { f.dflash()["target_layer_ids"] = "all"; }, "array of integers"},
    {"NoMaskToken", [](Folder& f) { f.dflash().erase("mask_token_id"); }, "no mask token"},
    {"MaskTokenOutsideTheVocabulary", [](Folder& f) { f.dflash()["mask_token_id"] = 640; }, "mask token 640"},
    {"BlockOfOne", [](Folder& f) { f.dflash()["block_size"] = 1; }, "block_size 1"},
    {"HugeBlock", [](Folder& f) { f.dflash()["block_size"] = int64_t{1} << 40; }, "block_size"},
    {"NoHeads", [](Folder& f) { f.config["num_key_value_heads"] = 0; }, "heads"},
    {"HeadsDoNotDivide", [](Folder& f) { f.config["num_key_value_heads"] = 3; }, "do not divide"},
    {"GroupDoesNotDivide", [](Folder& f) { f.dflash()["conv_group_size"] = 24; }, "conv_group_size 24"},
    {"NoCandidates", [](Folder& f) { f.dflash()["selector_top_k"] = 0; }, "selector_top_k 0"},
    {"ZeroWindow", [](Folder& f) { f.config["sliding_window"] = 0; }, "sliding_window 0"},
    {"UnknownLayerType", [](Folder& f) { f.config["layer_types"][1] = "linear_attention"; }, "layer_types[1]"},
    {"OtherRotary", [](Folder& f) { f.config["rope_parameters"] = {{"rope_type", "yarn"}, {"rope_theta", 1e6}}; }, "yarn"},
    {"WidthIsText", [](Folder& f) { f.config["hidden_size"] = "64"; }, "\"hidden_size\" must be an integer"},
    {"NormOfIntegers", [](Folder& f) { f.tensors.at("norm.weight").type = "I32"; }, "norm.weight is stored as I32"},
    {"ReducedVocabulary", [](Folder& f) { f.tensors["d2t"] = {"I64", {1}, "12345678"}; }, "reduced vocabulary"},
};
INSTANTIATE_TEST_SUITE_P(Table, MalformedDrafter, ::testing::ValuesIn(kDrafterCases), case_name);

TEST(DrafterStatus, OfPathsThatAreNoDrafter) {
  const auto target = test::load_model(test::Golden("qwen35").path("hf"));
  TempDir empty;
  EXPECT_FALSE(inspect_drafter(empty.path(), target->config).reason.empty());
  EXPECT_FALSE(inspect_drafter(empty.path() / "absent", target->config).reason.empty());
  const DrafterStatus itself = inspect_drafter(test::Golden("qwen35").path("model-f32.gguf"), target->config);
  EXPECT_FALSE(itself.fits);
  EXPECT_NE(itself.reason.find("is not a drafter"), std::string::npos) << itself.reason;
  // The same drafters for a target of another shape.
  const auto other = test::load_model(test::Golden("quant").path("model.gguf"));
  for (const char* kind : {"dflash1", "dspark", "dflash2"})
    for (const char* form : {"hf", "drafter.gguf"}) {
      const DrafterStatus fits = inspect_drafter(test::Golden(kind).path(form), target->config);
      EXPECT_TRUE(fits.fits) << fits.reason;
      const DrafterStatus status = inspect_drafter(test::Golden(kind).path(form), other->config);
      EXPECT_FALSE(status.fits) << kind;
      EXPECT_NE(status.kind, DrafterKind::kNone);
    }
}

// ---- MTP heads

class MalformedMtp : public ::testing::TestWithParam<Case> {};

TEST_P(MalformedMtp, HasAReason) {
  Folder folder = Folder::read(test::Golden("qwen35").path("hf"));
  GetParam().change(folder);
  TempDir dir;
  folder.write(dir);
  const Bundle bundle = test::value_or_throw(Bundle::open(dir.path()));
  const ModelConfig config = test::value_or_throw(ModelConfig::from_bundle(bundle));
  const MtpStatus status = inspect_mtp(bundle, config);
  EXPECT_FALSE(status.complete);
  EXPECT_NE(status.reason.find(GetParam().reason), std::string::npos) << status.reason;
  EXPECT_TRUE(check_trunk(bundle, config)) << "a broken head leaves the model usable";
}

const Case kMtpCases[] = {
    {"Absent", [](Folder& f) { std::erase_if(f.tensors, [](const auto& t) { return t.first.starts_with("mtp."); }); },
     "declared by the configuration, but no tensor"},
    {"MissingFusion", [](Folder& f) { f.tensors.erase("mtp.fc.weight"); }, "mtp.fc.weight"},
    {"HalfASplitFusion",
     [](Folder& f) {
       f.tensors["mtp.fc_hidden.weight"] = f.tensors.at("mtp.fc.weight");
       f.tensors.erase("mtp.fc.weight");
     },
     "half of a split fusion"},
    {"MissingNorm", [](Folder& f) { f.tensors.erase("mtp.norm.weight"); }, "mtp.norm.weight is missing"},
    {"NoLayer", [](Folder& f) { std::erase_if(f.tensors, [](const auto& t) { return t.first.starts_with("mtp.layers."); }); },
     "mtp.layers.0."},
    {"OneLayerDeclaredAsTwo", [](Folder& f) { f.text()["mtp_num_hidden_layers"] = 2; }, "declares 2 MTP layers, the bundle holds one"},
    {"ShortFusion", [](Folder& f) { f.shorten("mtp.fc.weight"); }, "mtp.fc.weight has"},
    {"ShortQueries", [](Folder& f) { f.shorten("mtp.layers.0.self_attn.q_proj.weight"); }, "mtp.layers.0.self_attn.q_proj.weight has"},
    {"FusionOfIntegers", [](Folder& f) { f.tensors.at("mtp.fc.weight").type = "I32"; }, "stored as I32"},
};
INSTANTIATE_TEST_SUITE_P(Table, MalformedMtp, ::testing::ValuesIn(kMtpCases), case_name);

// A fusion split into its two halves is the same head.
TEST(Mtp, SplitFusionIsTheSameHead) {
  Folder folder = Folder::read(test::Golden("qwen35").path("hf"));
  const Folder::Tensor whole = folder.tensors.at("mtp.fc.weight");
  const size_t half = static_cast<size_t>(whole.shape[1]) / 2 * sizeof(float);
  Folder::Tensor embedding{whole.type, {whole.shape[0], whole.shape[1] / 2}, ""}, hidden = embedding;
  for (size_t r = 0; r < static_cast<size_t>(whole.shape[0]); ++r) {
    embedding.data += whole.data.substr(2 * r * half, half);
    hidden.data += whole.data.substr((2 * r + 1) * half, half);
  }
  folder.tensors.erase("mtp.fc.weight");
  folder.tensors["mtp.fc_embedding.weight"] = embedding;
  folder.tensors["mtp.fc_hidden.weight"] = hidden;
  TempDir dir;
  folder.write(dir);
  const auto m = test::load_model(test::Golden("qwen35").path("hf"));
  const Bundle split = test::value_or_throw(Bundle::open(dir.path()));
  const MtpStatus status = inspect_mtp(split, m->config);
  ASSERT_TRUE(status.complete) << status.reason;
  const MtpWeights a = test::value_or_throw(load_mtp(m->bundle, m->config, *m->backend)), b = test::value_or_throw(load_mtp(split, m->config, *m->backend));
  Buffer memory(size_t(4 * m->config.hidden) * sizeof(float));
  const View x = View::of(reinterpret_cast<float*>(memory.data()), 1, 2 * m->config.hidden);
  for (int64_t i = 0; i < x.cols; ++i) x.f32()[i] = 0.01f * static_cast<float>(i % 37) - 0.1f;
  const View ya = View::of(x.f32() + x.cols, 1, m->config.hidden), yb = View::of(x.f32() + x.cols + ya.cols, 1, m->config.hidden);
  m->backend->linear(x, *a.fusion, ya);
  m->backend->linear(x, *b.fusion, yb);
  EXPECT_EQ(difference_in_bits(ya, yb), "");
}

}  // namespace
}  // namespace foretoken
