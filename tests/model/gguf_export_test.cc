// Exports of small made-up bundles, read back: names, shapes, every transform against its plain statement, formats per
// type, tokenizer keys, requantisation, and errors that leave no file behind.
#include "model/gguf_export.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <random>

#include "model/dflash_config.h"
#include "numerics/dtype.h"
#include "support/shared.h"

namespace foretoken {
namespace {

namespace fs = std::filesystem;

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Tensor>;

// A folder of its own for each test, removed at its end.
class GgufExport : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / fmt::format("foretoken-export-{}-{}", ::getpid(), info->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "in");
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path in() const { return folder_ / "in"; }
  fs::path out(const std::string& name) const { return folder_ / name; }

  void write_text(const std::string& name, const std::string& text) const { std::ofstream(in() / name) << text; }

  // One safetensors file of F32 tensors.
  void write_tensors(const Tensors& tensors) const {
    OrderedJson header = OrderedJson::object();
    uint64_t offset = 0;
    for (const auto& [name, tensor] : tensors) {
      const uint64_t bytes = tensor.values.size() * 4;
      header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
      offset += bytes;
    }
    const std::string text = header.dump();
    const uint64_t size = text.size();
    std::ofstream file(in() / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), 8);
    file << text;
    for (const auto& [name, tensor] : tensors)
      file.write(reinterpret_cast<const char*>(tensor.values.data()),
                 static_cast<std::streamsize>(tensor.values.size() * 4));
  }

  Result<ExportReport> run(const std::string& type, const fs::path& output, const fs::path& source = {},
                           int threads = 2) const {
    auto bundle = Bundle::open(source.empty() ? in() : source);
    if (!bundle) return bundle.error();
    ThreadPool pool(threads);
    return export_gguf(*bundle, output, {.type = type, .progress = {}}, pool);
  }

  // Exports and opens the result.
  Bundle exported(const std::string& type, const std::string& name = "out.gguf", const fs::path& source = {}) const {
    const auto report = run(type, out(name), source);
    EXPECT_TRUE(report.ok()) << (report.ok() ? "" : report.error().message);
    auto bundle = Bundle::open(out(name));
    EXPECT_TRUE(bundle.ok()) << (bundle.ok() ? "" : bundle.error().message);
    return *std::move(bundle);
  }

  fs::path folder_;
};

std::string file_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<float> decoded(const TensorInfo& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  dequantize(*tensor.format, tensor.data, values);
  return values;
}

void expect_tensor(const Bundle& bundle, const std::string& name, const std::vector<int64_t>& shape,
                   const std::vector<float>& values) {
  const TensorInfo* tensor = bundle.find(name);
  ASSERT_NE(tensor, nullptr) << name;
  EXPECT_EQ(tensor->shape, shape) << name;
  ASSERT_TRUE(tensor->format.has_value()) << name;
  EXPECT_EQ(decoded(*tensor), values) << name;
}

int64_t integer(const Bundle& bundle, const std::string& key) {
  const auto it = bundle.metadata().find(key);
  if (it == bundle.metadata().end()) return -1;
  return it->second.as_int().value_or(-2);
}

// ---- A dense model of two layers (delta net, attention) with an MTP head; every size differs from the others.

constexpr int64_t kHidden = 256, kVocab = 24, kFfn = 512, kQueryHeads = 3, kKvHeads = 1, kHeadDim = 64, kKeyHeads = 2,
                  kValueHeads = 6, kDim = 32, kKernel = 4, kExperts = 3, kExpertWidth = 32, kSharedWidth = 64;
constexpr int64_t kRatio = kValueHeads / kKeyHeads, kKeys = kKeyHeads * kDim, kValues = kValueHeads * kDim,
                  kChannels = 2 * kKeys + kValues;

struct Maker {
  Tensors tensors;
  std::mt19937 random{1};

  void add(const std::string& name, std::vector<int64_t> shape) {
    std::normal_distribution<float> normal(0, 0.05f);
    int64_t n = 1;
    for (const int64_t size : shape) n *= size;
    Tensor tensor{std::move(shape), std::vector<float>(static_cast<size_t>(n))};
    for (float& v : tensor.values) v = normal(random);
    tensors[name] = std::move(tensor);
  }
  void attention(const std::string& p) {
    add(p + "self_attn.q_proj.weight", {2 * kQueryHeads * kHeadDim, kHidden});
    add(p + "self_attn.k_proj.weight", {kKvHeads * kHeadDim, kHidden});
    add(p + "self_attn.v_proj.weight", {kKvHeads * kHeadDim, kHidden});
    add(p + "self_attn.o_proj.weight", {kHidden, kQueryHeads * kHeadDim});
    add(p + "self_attn.q_norm.weight", {kHeadDim});
    add(p + "self_attn.k_norm.weight", {kHeadDim});
  }
  void delta(const std::string& p, bool next) {
    if (next) {
      add(p + "linear_attn.in_proj_qkvz.weight", {kChannels + kValues, kHidden});
      add(p + "linear_attn.in_proj_ba.weight", {2 * kValueHeads, kHidden});
    } else {
      add(p + "linear_attn.in_proj_qkv.weight", {kChannels, kHidden});
      add(p + "linear_attn.in_proj_z.weight", {kValues, kHidden});
      add(p + "linear_attn.in_proj_b.weight", {kValueHeads, kHidden});
      add(p + "linear_attn.in_proj_a.weight", {kValueHeads, kHidden});
    }
    add(p + "linear_attn.conv1d.weight", {kChannels, 1, kKernel});
    add(p + "linear_attn.dt_bias", {kValueHeads});
    add(p + "linear_attn.A_log", {kValueHeads});
    add(p + "linear_attn.norm.weight", {kDim});
    add(p + "linear_attn.out_proj.weight", {kHidden, kValues});
  }
  void dense(const std::string& p, int64_t width) {
    add(p + "gate_proj.weight", {width, kHidden});
    add(p + "up_proj.weight", {width, kHidden});
    add(p + "down_proj.weight", {kHidden, width});
  }
  void sparse(const std::string& p) {
    add(p + "gate.weight", {kExperts, kHidden});
    add(p + "experts.gate_up_proj", {kExperts, 2 * kExpertWidth, kHidden});
    add(p + "experts.down_proj", {kExperts, kHidden, kExpertWidth});
    dense(p + "shared_expert.", kSharedWidth);
    add(p + "shared_expert_gate.weight", {1, kHidden});
  }
  void layer(const std::string& p, bool is_attention, bool is_sparse, bool next = false) {
    add(p + "input_layernorm.weight", {kHidden});
    add(p + "post_attention_layernorm.weight", {kHidden});
    if (is_attention) attention(p);
    else delta(p, next);
    if (is_sparse) sparse(p + "mlp.");
    else dense(p + "mlp.", kFfn);
  }
  void model(bool is_sparse, bool next, bool with_mtp) {
    add("model.embed_tokens.weight", {kVocab, kHidden});
    add("model.norm.weight", {kHidden});
    add("lm_head.weight", {kVocab, kHidden});
    for (int i = 0; i < 2; ++i) layer(fmt::format("model.layers.{}.", i), i == 1, is_sparse, next);
    if (!with_mtp) return;
    layer("mtp.layers.0.", true, is_sparse);
    add("mtp.fc.weight", {kHidden, 2 * kHidden});
    for (const char* name : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"})
      add(fmt::format("mtp.{}.weight", name), {kHidden});
  }
};

OrderedJson config(const std::string& type) {
  return {{"model_type", type},
          {"num_hidden_layers", 2},
          {"hidden_size", kHidden},
          {"intermediate_size", kFfn},
          {"num_attention_heads", kQueryHeads},
          {"num_key_value_heads", kKvHeads},
          {"head_dim", kHeadDim},
          {"linear_num_key_heads", kKeyHeads},
          {"linear_num_value_heads", kValueHeads},
          {"linear_key_head_dim", kDim},
          {"linear_value_head_dim", kDim},
          {"linear_conv_kernel_dim", kKernel},
          {"full_attention_interval", 2},
          {"max_position_embeddings", 4096},
          {"vocab_size", kVocab},
          {"tie_word_embeddings", false},
          {"num_experts", kExperts},
          {"num_experts_per_tok", 2},
          {"moe_intermediate_size", kExpertWidth},
          {"shared_expert_intermediate_size", kSharedWidth},
          {"rope_parameters", {{"rope_theta", 5e6}, {"partial_rotary_factor", 0.25}, {"mrope_section", {3, 3, 2}}}}};
}

std::vector<float> plus_one(std::vector<float> x) {
  for (float& v : x) v += 1.0f;
  return x;
}

// The stored (grouped) index behind each index of a file (tiled over key heads), written as the two nested indices.
int64_t stored_head(int64_t tiled) { return tiled % kKeyHeads * kRatio + tiled / kKeyHeads; }

// Rows of `x` where value head blocks of `width` rows after `fixed` rows are tiled.
std::vector<float> tiled_rows(const Tensor& x, int64_t cols, int64_t width, int64_t fixed) {
  std::vector<float> y = x.values;
  for (int64_t head = 0; head < kValueHeads; ++head)
    for (int64_t i = 0; i < width; ++i)
      for (int64_t c = 0; c < cols; ++c)
        y[static_cast<size_t>((fixed + head * width + i) * cols + c)] =
            x.values[static_cast<size_t>((fixed + stored_head(head) * width + i) * cols + c)];
  return y;
}

// Every tensor of a dense model arrives under its name with its transform, and the keys say the sizes.
TEST_F(GgufExport, DenseNamesKeysAndTransforms) {
  Maker maker;
  maker.model(false, false, true);
  auto& t = maker.tensors;
  write_tensors(t);
  write_text("config.json", config("qwen3_5_text").dump());
  const Bundle b = exported("F32");

  expect_tensor(b, "token_embd.weight", {kVocab, kHidden}, t["model.embed_tokens.weight"].values);
  expect_tensor(b, "output.weight", {kVocab, kHidden}, t["lm_head.weight"].values);
  expect_tensor(b, "output_norm.weight", {kHidden}, plus_one(t["model.norm.weight"].values));
  const std::string d = "model.layers.0.linear_attn.";
  const auto qkv = tiled_rows(t[d + "in_proj_qkv.weight"], kHidden, kDim, 2 * kKeys);
  EXPECT_NE(qkv, t[d + "in_proj_qkv.weight"].values);  // the order does change something
  expect_tensor(b, "blk.0.attn_qkv.weight", {kChannels, kHidden}, qkv);
  expect_tensor(b, "blk.0.attn_gate.weight", {kValues, kHidden},
                tiled_rows(t[d + "in_proj_z.weight"], kHidden, kDim, 0));
  expect_tensor(b, "blk.0.ssm_beta.weight", {kValueHeads, kHidden},
                tiled_rows(t[d + "in_proj_b.weight"], kHidden, 1, 0));
  expect_tensor(b, "blk.0.ssm_alpha.weight", {kValueHeads, kHidden},
                tiled_rows(t[d + "in_proj_a.weight"], kHidden, 1, 0));
  expect_tensor(b, "blk.0.ssm_conv1d.weight", {kChannels, kKernel},
                tiled_rows(t[d + "conv1d.weight"], kKernel, kDim, 2 * kKeys));
  expect_tensor(b, "blk.0.ssm_dt.bias", {kValueHeads}, tiled_rows(t[d + "dt_bias"], 1, 1, 0));
  auto decay = tiled_rows(t[d + "A_log"], 1, 1, 0);
  for (float& v : decay) v = static_cast<float>(-std::exp(static_cast<double>(v)));
  expect_tensor(b, "blk.0.ssm_a", {kValueHeads}, decay);
  expect_tensor(b, "blk.0.ssm_norm.weight", {kDim}, t[d + "norm.weight"].values);
  std::vector<float> columns(static_cast<size_t>(kHidden * kValues));
  for (int64_t r = 0; r < kHidden; ++r)
    for (int64_t c = 0; c < kValues; ++c)
      columns[static_cast<size_t>(r * kValues + c)] =
          t[d + "out_proj.weight"].values[static_cast<size_t>(r * kValues + stored_head(c / kDim) * kDim + c % kDim)];
  expect_tensor(b, "blk.0.ssm_out.weight", {kHidden, kValues}, columns);
  expect_tensor(b, "blk.0.ffn_gate.weight", {kFfn, kHidden}, t["model.layers.0.mlp.gate_proj.weight"].values);
  expect_tensor(b, "blk.0.ffn_down.weight", {kHidden, kFfn}, t["model.layers.0.mlp.down_proj.weight"].values);
  const std::string a = "model.layers.1.";
  expect_tensor(b, "blk.1.attn_norm.weight", {kHidden}, plus_one(t[a + "input_layernorm.weight"].values));
  expect_tensor(b, "blk.1.post_attention_norm.weight", {kHidden},
                plus_one(t[a + "post_attention_layernorm.weight"].values));
  expect_tensor(b, "blk.1.attn_q.weight", {2 * kQueryHeads * kHeadDim, kHidden},
                t[a + "self_attn.q_proj.weight"].values);
  expect_tensor(b, "blk.1.attn_v.weight", {kKvHeads * kHeadDim, kHidden}, t[a + "self_attn.v_proj.weight"].values);
  expect_tensor(b, "blk.1.attn_output.weight", {kHidden, kQueryHeads * kHeadDim},
                t[a + "self_attn.o_proj.weight"].values);
  expect_tensor(b, "blk.1.attn_q_norm.weight", {kHeadDim}, plus_one(t[a + "self_attn.q_norm.weight"].values));
  expect_tensor(b, "blk.2.attn_k.weight", {kKvHeads * kHeadDim, kHidden},
                t["mtp.layers.0.self_attn.k_proj.weight"].values);
  expect_tensor(b, "blk.2.nextn.eh_proj.weight", {kHidden, 2 * kHidden}, t["mtp.fc.weight"].values);
  expect_tensor(b, "blk.2.nextn.enorm.weight", {kHidden}, plus_one(t["mtp.pre_fc_norm_embedding.weight"].values));
  expect_tensor(b, "blk.2.nextn.hnorm.weight", {kHidden}, plus_one(t["mtp.pre_fc_norm_hidden.weight"].values));
  expect_tensor(b, "blk.2.nextn.shared_head_norm.weight", {kHidden}, plus_one(t["mtp.norm.weight"].values));
  EXPECT_EQ(b.tensors().size(), t.size());

  EXPECT_EQ(b.metadata().at("general.architecture").as_text(), "qwen35");
  const std::map<std::string, int64_t> expected = {{"block_count", 3},
                                                   {"nextn_predict_layers", 1},
                                                   {"context_length", 4096},
                                                   {"embedding_length", kHidden},
                                                   {"feed_forward_length", kFfn},
                                                   {"attention.head_count", kQueryHeads},
                                                   {"attention.head_count_kv", kKvHeads},
                                                   {"attention.key_length", kHeadDim},
                                                   {"attention.value_length", kHeadDim},
                                                   {"rope.dimension_count", 16},
                                                   {"full_attention_interval", 2},
                                                   {"ssm.conv_kernel", kKernel},
                                                   {"ssm.state_size", kDim},
                                                   {"ssm.group_count", kKeyHeads},
                                                   {"ssm.time_step_rank", kValueHeads},
                                                   {"ssm.inner_size", kValues}};
  for (const auto& [key, value] : expected) EXPECT_EQ(integer(b, "qwen35." + key), value) << key;
  EXPECT_EQ(*b.metadata().at("qwen35.rope.dimension_sections").as_ints(), (std::vector<int64_t>{3, 3, 2, 0}));
  EXPECT_EQ(b.metadata().at("qwen35.rope.freq_base").as_double(), 5e6);
  EXPECT_EQ(integer(b, "general.file_type"), 0);
  EXPECT_EQ(integer(b, "general.quantization_version"), 2);
}

// An MTP head whose norms already hold their 1 (their mean says so) is not shifted again; the trunk still is.
TEST_F(GgufExport, MtpNormsThatAreFull) {
  Maker maker;
  maker.model(false, false, true);
  for (auto& [name, tensor] : maker.tensors)
    if (name.starts_with("mtp.") && tensor.shape.size() == 1) tensor.values = plus_one(tensor.values);
  write_tensors(maker.tensors);
  write_text("config.json", config("qwen3_5_text").dump());
  const Bundle b = exported("F32");
  expect_tensor(b, "blk.2.nextn.enorm.weight", {kHidden}, maker.tensors["mtp.pre_fc_norm_embedding.weight"].values);
  expect_tensor(b, "blk.2.attn_norm.weight", {kHidden}, maker.tensors["mtp.layers.0.input_layernorm.weight"].values);
  expect_tensor(b, "output_norm.weight", {kHidden}, plus_one(maker.tensors["model.norm.weight"].values));
}

// Experts: the fused bank is split in halves, separate experts are stacked; both give the same tensors. The multimodal
// wrapper and its prefix change nothing, vision tensors are left out with a note, and irregular layers are listed.
TEST_F(GgufExport, SparseLayouts) {
  Maker maker;
  maker.model(true, false, false);
  write_tensors(maker.tensors);
  write_text("config.json", config("qwen3_5_moe_text").dump());
  const Bundle fused = exported("F32", "fused.gguf");
  const auto& bank = maker.tensors["model.layers.1.mlp.experts.gate_up_proj"].values;
  std::vector<float> gate, up;
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto begin = bank.begin() + e * 2 * kExpertWidth * kHidden, middle = begin + kExpertWidth * kHidden;
    gate.insert(gate.end(), begin, middle);
    up.insert(up.end(), middle, middle + kExpertWidth * kHidden);
  }
  expect_tensor(fused, "blk.1.ffn_gate_exps.weight", {kExperts, kExpertWidth, kHidden}, gate);
  expect_tensor(fused, "blk.1.ffn_up_exps.weight", {kExperts, kExpertWidth, kHidden}, up);
  expect_tensor(fused, "blk.1.ffn_down_exps.weight", {kExperts, kHidden, kExpertWidth},
                maker.tensors["model.layers.1.mlp.experts.down_proj"].values);
  expect_tensor(fused, "blk.0.ffn_gate_inp.weight", {kExperts, kHidden},
                maker.tensors["model.layers.0.mlp.gate.weight"].values);
  expect_tensor(fused, "blk.0.ffn_gate_inp_shexp.weight", {kHidden},
                maker.tensors["model.layers.0.mlp.shared_expert_gate.weight"].values);
  expect_tensor(fused, "blk.0.ffn_down_shexp.weight", {kHidden, kSharedWidth},
                maker.tensors["model.layers.0.mlp.shared_expert.down_proj.weight"].values);
  EXPECT_EQ(integer(fused, "qwen35moe.expert_count"), kExperts);
  EXPECT_EQ(integer(fused, "qwen35moe.expert_used_count"), 2);
  EXPECT_EQ(integer(fused, "qwen35moe.expert_feed_forward_length"), kExpertWidth);
  EXPECT_EQ(integer(fused, "qwen35moe.expert_shared_feed_forward_length"), kSharedWidth);

  Tensors separate;
  for (const auto& [name, tensor] : maker.tensors) {
    std::string renamed = name;
    if (name.starts_with("model.")) renamed = "model.language_model." + name.substr(6);
    const bool is_bank = name.ends_with("gate_up_proj"), is_down = name.ends_with("experts.down_proj");
    if (!is_bank && !is_down) {
      separate[renamed] = tensor;
      continue;
    }
    const std::string base = renamed.substr(0, renamed.rfind('.') + 1);
    const int64_t part = kExpertWidth * kHidden;
    for (int64_t e = 0; e < kExperts; ++e) {
      const auto slice = [&](int64_t begin) {
        return std::vector<float>(tensor.values.begin() + begin, tensor.values.begin() + begin + part);
      };
      if (is_down) {
        separate[fmt::format("{}{}.down_proj.weight", base, e)] = {{kHidden, kExpertWidth}, slice(e * part)};
      } else {
        separate[fmt::format("{}{}.gate_proj.weight", base, e)] = {{kExpertWidth, kHidden}, slice(2 * e * part)};
        separate[fmt::format("{}{}.up_proj.weight", base, e)] = {{kExpertWidth, kHidden}, slice((2 * e + 1) * part)};
      }
    }
  }
  separate["model.visual.patch_embed.proj.weight"] = {{2, 2}, {1, 2, 3, 4}};
  write_tensors(separate);
  write_text("config.json",
             OrderedJson{{"model_type", "qwen3_5_moe"}, {"text_config", config("qwen3_5_moe_text")}}.dump());
  const auto report = run("F32", out("separate.gguf"));
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_TRUE(std::any_of(report->notes.begin(), report->notes.end(),
                          [](const std::string& n) { return n.find("vision") != std::string::npos; }));
  const auto other = Bundle::open(out("separate.gguf"));
  ASSERT_TRUE(other.ok());
  ASSERT_EQ(other->tensors().size(), fused.tensors().size());
  for (const TensorInfo& tensor : fused.tensors()) expect_tensor(*other, tensor.name, tensor.shape, decoded(tensor));
}

// Qwen3-Next: q, k, v and z leave their per-key-head interleaving, value heads stay grouped, b and a stay as stored.
TEST_F(GgufExport, NextProjections) {
  Maker maker;
  maker.model(true, true, false);
  auto& t = maker.tensors;
  write_tensors(t);
  write_text("config.json", config("qwen3_next").dump());
  const Bundle b = exported("F32");
  const std::string d = "model.layers.0.linear_attn.";
  const auto& fused = t[d + "in_proj_qkvz.weight"].values;
  const int64_t block = 2 * kDim + 2 * kRatio * kDim;
  const auto row = [&](int64_t kh, int64_t i) {
    const auto begin = fused.begin() + (kh * block + i) * kHidden;
    return std::vector<float>(begin, begin + kHidden);
  };
  std::vector<float> q, k, v, z;
  for (int64_t kh = 0; kh < kKeyHeads; ++kh)
    for (int64_t i = 0; i < block; ++i) {
      auto& to = i < kDim ? q : i < 2 * kDim ? k : i < 2 * kDim + kRatio * kDim ? v : z;
      const auto values = row(kh, i);
      to.insert(to.end(), values.begin(), values.end());
    }
  std::vector<float> qkv = q;
  qkv.insert(qkv.end(), k.begin(), k.end());
  qkv.insert(qkv.end(), v.begin(), v.end());
  expect_tensor(b, "blk.0.attn_qkv.weight", {kChannels, kHidden}, qkv);
  expect_tensor(b, "blk.0.attn_gate.weight", {kValues, kHidden}, z);
  expect_tensor(b, "blk.0.ssm_ba.weight", {2 * kValueHeads, kHidden}, t[d + "in_proj_ba.weight"].values);
  expect_tensor(b, "blk.0.ssm_dt.bias", {kValueHeads}, t[d + "dt_bias"].values);
  expect_tensor(b, "blk.0.ssm_out.weight", {kHidden, kValues}, t[d + "out_proj.weight"].values);
  EXPECT_EQ(b.metadata().at("general.architecture").as_text(), "qwen3next");
  EXPECT_FALSE(b.metadata().contains("qwen3next.rope.dimension_sections"));
}

// Every type: small parameters stay fp32, matrices get the type's format or the next that fits their rows, decoded
// values are near the originals, and the report adds up.
TEST_F(GgufExport, FormatsOfEveryType) {
  Maker maker;
  maker.model(false, false, true);
  write_tensors(maker.tensors);
  write_text("config.json", config("qwen3_5_text").dump());
  const Bundle exact = exported("F32", "exact.gguf");
  std::vector<std::string> seen;
  for (const std::string_view type : export_types()) {
    SCOPED_TRACE(std::string(type));
    seen.emplace_back(type);
    const auto report = run(std::string(type), out("t.gguf"));
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->file_bytes, fs::file_size(out("t.gguf")));
    const auto b = Bundle::open(out("t.gguf"));
    ASSERT_TRUE(b.ok());
    const auto base = format_from_name(type.substr(0, type.find("_M")));
    ASSERT_TRUE(base.has_value());
    int64_t elements = 0, in_base = 0;
    for (const TensorInfo& tensor : b->tensors()) {
      elements += tensor.elements();
      if (tensor.format == base) in_base += tensor.elements();
      const bool is_small = tensor.shape.size() == 1 || tensor.name.find("conv1d") != std::string::npos;
      if (is_small) {
        EXPECT_EQ(tensor.format, QuantFormat::kF32) << tensor.name;
      } else if (!is_float_format(*base)) {
        EXPECT_FALSE(is_float_format(*tensor.format)) << tensor.name;
      }
      const bool is_plain = !type.ends_with("_M") && tensor.name.find("ssm_") == std::string::npos;
      if (!is_small && is_plain && tensor.cols() % 256 == 0) {
        EXPECT_EQ(tensor.format, base) << tensor.name;
      }
      const auto wanted = decoded(*exact.find(tensor.name)), got = decoded(tensor);
      double error = 0, size = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        error += std::pow(static_cast<double>(got[i]) - wanted[i], 2);
        size += std::pow(static_cast<double>(wanted[i]), 2);
      }
      EXPECT_LT(error, size * 0.0065) << tensor.name;
      EXPECT_EQ(error == 0, tensor.format == QuantFormat::kF32) << tensor.name;
    }
    EXPECT_GT(in_base, elements / 4);
    int64_t reported = 0;
    for (const auto& [format, count] : report->elements) reported += count;
    EXPECT_EQ(reported, elements);
    if (!is_float_format(*base)) {
      EXPECT_EQ(b->find("blk.0.ssm_out.weight")->format, QuantFormat::kQ8_0);  // rows of 192
      EXPECT_EQ(b->find("blk.0.ssm_alpha.weight")->format, QuantFormat::kQ8_0);
    }
    if (type.ends_with("_M")) {
      EXPECT_EQ(b->find("output.weight")->format, QuantFormat::kQ6_K);
    }
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_K_M", "Q4_K", "Q4_K_M",
                                            "IQ4_XS"}));
}

// Requantising a GGUF gives the same tensors as quantising the original, keeps its metadata, copies what already has
// the format, and the bytes of a file do not depend on the number of threads.
TEST_F(GgufExport, FromGguf) {
  Maker maker;
  maker.model(true, false, true);
  write_tensors(maker.tensors);
  write_text("config.json", config("qwen3_5_moe_text").dump());
  const Bundle exact = exported("F32", "exact.gguf");
  const Bundle direct = exported("Q4_K_M", "direct.gguf");
  const Bundle twice = exported("Q4_K_M", "twice.gguf", out("exact.gguf"));
  const Bundle thrice = exported("Q4_K_M", "thrice.gguf", out("direct.gguf"));
  ASSERT_EQ(twice.tensors().size(), direct.tensors().size());
  for (const TensorInfo& tensor : direct.tensors())
    for (const Bundle* other : {&twice, &thrice}) {
      const TensorInfo* same = other->find(tensor.name);
      ASSERT_NE(same, nullptr);
      EXPECT_EQ(same->format, tensor.format) << tensor.name;
      EXPECT_EQ(same->shape, tensor.shape);
      EXPECT_TRUE(std::equal(same->data.begin(), same->data.end(), tensor.data.begin(), tensor.data.end()))
          << tensor.name;
    }
  EXPECT_EQ(twice.metadata().size(), direct.metadata().size());
  EXPECT_EQ(integer(twice, "general.file_type"), 15);
  EXPECT_EQ(integer(twice, "qwen35moe.expert_count"), kExperts);
  ASSERT_TRUE(run("Q4_K_M", out("one.gguf"), {}, 1).ok());
  ASSERT_TRUE(run("Q4_K_M", out("three.gguf"), {}, 3).ok());
  EXPECT_EQ(file_bytes(out("one.gguf")), file_bytes(out("three.gguf")));
}

// Tokens in id order with their kinds, placeholders for unused rows, merges of both spellings, special ids and the
// template.
TEST_F(GgufExport, Tokenizer) {
  Maker maker;
  maker.model(false, false, false);
  write_tensors(maker.tensors);
  write_text("config.json", config("qwen3_5_text").dump());
  write_text("tokenizer.json", R"({"model": {"vocab": {"b": 1, "a": 0, "ab": 2}, "merges": [["a", "b"], "ab a"]},
    "pre_tokenizer": {"pattern": {"Regex": "[\\p{L}\\p{M}]+"}},
    "added_tokens": [{"id": 4, "content": "<|end|>", "special": true}, {"id": 5, "content": "<think>", "special": false}]})");
  write_text("tokenizer_config.json",
             R"({"eos_token": {"content": "<|end|>"}, "pad_token": "<|pad|>", "add_bos_token": false,
    "chat_template": "from config", "added_tokens_decoder": {"7": {"content": "<|pad|>", "special": true}}})");
  {
    const Bundle b = exported("F32", "config.gguf");
    EXPECT_EQ(b.metadata().at("tokenizer.chat_template").as_text(), "from config");
  }
  write_text("chat_template.jinja", "from file");
  const Bundle b = exported("Q8_0");
  const auto& m = b.metadata();
  const auto& tokens = *m.at("tokenizer.ggml.tokens").as_texts();
  const auto& kinds = *m.at("tokenizer.ggml.token_type").as_ints();
  ASSERT_EQ(tokens.size(), static_cast<size_t>(kVocab));
  const std::vector<std::string_view> first(tokens.begin(), tokens.begin() + 9);
  EXPECT_EQ(first, (std::vector<std::string_view>{"a", "b", "ab", "[PAD3]", "<|end|>", "<think>", "[PAD6]", "<|pad|>",
                                                  "[PAD8]"}));
  EXPECT_EQ(std::vector<int64_t>(kinds.begin(), kinds.begin() + 9), (std::vector<int64_t>{1, 1, 1, 5, 3, 4, 5, 3, 5}));
  EXPECT_EQ(*m.at("tokenizer.ggml.merges").as_texts(), (std::vector<std::string_view>{"a b", "ab a"}));
  EXPECT_EQ(m.at("tokenizer.ggml.pre").as_text(), "qwen35");
  EXPECT_EQ(m.at("tokenizer.ggml.model").as_text(), "gpt2");
  EXPECT_EQ(integer(b, "tokenizer.ggml.eos_token_id"), 4);
  EXPECT_EQ(integer(b, "tokenizer.ggml.padding_token_id"), 7);
  EXPECT_FALSE(m.contains("tokenizer.ggml.bos_token_id"));
  EXPECT_EQ(m.at("tokenizer.chat_template").as_text(), "from file");

  write_text("tokenizer.json", R"({"model": {"vocab": {"a": 99}, "merges": []}})");
  const auto beyond = run("F32", out("beyond.gguf"));
  ASSERT_FALSE(beyond.ok());
  EXPECT_NE(beyond.error().message.find("id 99"), std::string::npos) << beyond.error().message;
}

// A DFlash 2 drafter: its names, plain norms, taps counted as inputs, and the codebooks' short rows in Q8_0.
TEST_F(GgufExport, Drafter) {
  constexpr int64_t kRank = 32, kGroup = 16, kTaps = 2, kWidth = 64;
  Maker maker;
  maker.add("fc.weight", {kHidden, 2 * kHidden});
  maker.add("hidden_norm.weight", {kHidden});
  maker.add("norm.weight", {kHidden});
  maker.add("layers.0.input_layernorm.weight", {kHidden});
  maker.add("layers.0.post_attention_layernorm.weight", {kHidden});
  maker.add("layers.0.self_attn.q_proj.weight", {kQueryHeads * kHeadDim, kHidden});
  maker.add("layers.0.self_attn.k_proj.weight", {kKvHeads * kHeadDim, kHidden});
  maker.add("layers.0.self_attn.v_proj.weight", {kKvHeads * kHeadDim, kHidden});
  maker.add("layers.0.self_attn.o_proj.weight", {kHidden, kQueryHeads * kHeadDim});
  maker.add("layers.0.self_attn.q_norm.weight", {kHeadDim});
  maker.add("layers.0.self_attn.k_norm.weight", {kHeadDim});
  maker.dense("layers.0.mlp.", kWidth);
  for (const char* conv : {"attention_conv", "mlp_conv"}) {
    maker.add(fmt::format("layers.0.{}.base_kernel", conv), {2, kTaps, kHidden});
    maker.add(fmt::format("layers.0.{}.kernel_projection.weight", conv), {2 * kTaps * kHidden / kGroup, kHidden});
  }
  maker.add("candidate_selector.hidden_projection.weight", {kRank, kHidden});
  maker.add("candidate_selector.predecessor_codebook", {kVocab, kRank});
  maker.add("candidate_selector.successor_codebook", {kVocab, kRank});
  auto& t = maker.tensors;
  write_tensors(t);
  write_text("config.json", OrderedJson{{"architectures", {"DFlash2DraftModel"}},
                                        {"num_hidden_layers", 1},
                                        {"hidden_size", kHidden},
                                        {"intermediate_size", kWidth},
                                        {"num_attention_heads", kQueryHeads},
                                        {"num_key_value_heads", kKvHeads},
                                        {"head_dim", kHeadDim},
                                        {"vocab_size", kVocab},
                                        {"layer_types", {"sliding_attention"}},
                                        {"sliding_window", 128},
                                        {"is_causal", false},
                                        {"dflash_config",
                                         {{"block_size", 8},
                                          {"conv_group_size", kGroup},
                                          {"conv_kernel_size", kTaps},
                                          {"final_logit_softcapping", 20.0},
                                          {"input_embedding_scale", 8.0},
                                          {"mask_token_id", 9},
                                          {"output_multiplier", 0.25},
                                          {"selector_rank", kRank},
                                          {"selector_top_k", 4},
                                          {"target_layer_ids", {0, 1}}}}}
                                .dump());
  const Bundle b = exported("F32");
  expect_tensor(b, "fc.weight", {kHidden, 2 * kHidden}, t["fc.weight"].values);
  expect_tensor(b, "enc.output_norm.weight", {kHidden}, t["hidden_norm.weight"].values);
  expect_tensor(b, "output_norm.weight", {kHidden}, t["norm.weight"].values);
  expect_tensor(b, "blk.0.ffn_norm.weight", {kHidden}, t["layers.0.post_attention_layernorm.weight"].values);
  expect_tensor(b, "blk.0.attn_conv_base", {2, kTaps, kHidden}, t["layers.0.attention_conv.base_kernel"].values);
  expect_tensor(b, "blk.0.ffn_conv_proj.weight", {2 * kTaps * kHidden / kGroup, kHidden},
                t["layers.0.mlp_conv.kernel_projection.weight"].values);
  expect_tensor(b, "selector_predecessor.weight", {kVocab, kRank}, t["candidate_selector.predecessor_codebook"].values);
  EXPECT_EQ(b.tensors().size(), t.size());
  const auto& m = b.metadata();
  EXPECT_EQ(m.at("general.architecture").as_text(), "dflash");
  EXPECT_EQ(*m.at("dflash.target_layers").as_ints(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(m.at("dflash.attention.causal").as_bool(), false);
  EXPECT_EQ(*m.at("dflash.attention.sliding_window_pattern").as_bools(), std::vector<bool>{true});
  EXPECT_EQ(integer(b, "dflash.attention.sliding_window"), 128);
  EXPECT_EQ(integer(b, "dflash.block_size"), 8);
  EXPECT_EQ(integer(b, "dflash.selector_top_k"), 4);
  EXPECT_EQ(integer(b, "tokenizer.ggml.mask_token_id"), 9);
  EXPECT_EQ(m.at("tokenizer.ggml.model").as_text(), "none");

  // Read back, the file says what the folder said.
  ModelConfig target;
  target.hidden = kHidden, target.vocab = kVocab, target.layers = 2, target.max_positions = 4096;
  const auto written = DflashConfig::from_bundle(b, target);
  ASSERT_TRUE(written.ok()) << written.error().message;
  EXPECT_EQ(written->embedding_scale, 8.0f);
  EXPECT_EQ(written->output_multiplier, 0.25f);
  EXPECT_EQ(written->softcap, 20.0f);
  EXPECT_EQ(written->top_k, 4);
  EXPECT_EQ(written->block_size, 8);

  const Bundle packed = exported("Q4_K", "packed.gguf");
  EXPECT_EQ(packed.find("selector_predecessor.weight")->format, QuantFormat::kQ8_0);
  EXPECT_EQ(packed.find("fc.weight")->format, QuantFormat::kQ4_K);
  EXPECT_EQ(packed.find("blk.0.attn_conv_base")->format, QuantFormat::kF32);
}

// Each mistake is one sentence that names what is wrong, and leaves no file.
TEST_F(GgufExport, Errors) {
  Maker maker;
  maker.model(false, false, true);
  write_text("config.json", config("qwen3_5_text").dump());
  const auto expect_error = [&](ErrorCode code, std::string_view words, const std::string& type = "Q4_K") {
    const auto report = run(type, out("bad.gguf"));
    ASSERT_FALSE(report.ok()) << words;
    EXPECT_EQ(report.error().code, code) << report.error().message;
    EXPECT_NE(report.error().message.find(words), std::string::npos) << report.error().message;
    for (const auto& entry : fs::directory_iterator(folder_)) EXPECT_EQ(entry.path().filename(), "in") << entry.path();
  };
  write_tensors(maker.tensors);
  expect_error(ErrorCode::kUsage, "choose one of F32", "Q3_K");
  auto broken = maker.tensors;
  broken.erase("model.layers.1.self_attn.k_proj.weight");
  write_tensors(broken);
  expect_error(ErrorCode::kInvalidFile, "model.layers.1.self_attn.k_proj.weight is missing");
  broken = maker.tensors;
  broken["model.norm.weight"] = {{2}, {1, 2}};
  write_tensors(broken);
  expect_error(ErrorCode::kInvalidFile, "model.norm.weight has 2 elements");
  for (const float bad : {HUGE_VALF, std::nanf("")}) {
    broken = maker.tensors;
    broken["model.layers.0.mlp.up_proj.weight"].values[5 * kHidden + 3] = bad;
    write_tensors(broken);
    expect_error(ErrorCode::kInvalidFile, "row 5 of 'blk.0.ffn_up.weight' holds a value that is not finite");
  }
  broken = maker.tensors;
  broken["lm_head.weight"].values[0] = 70000.0f;
  write_tensors(broken);
  expect_error(ErrorCode::kInvalidFile, "too large for F16", "F16");
  write_tensors(maker.tensors);
  write_text("config.json", config("llama").dump());
  expect_error(ErrorCode::kUnsupported, "'llama' cannot be exported");
  auto odd = config("qwen3_5_text");
  odd["linear_num_value_heads"] = 5;
  write_text("config.json", odd.dump());
  expect_error(ErrorCode::kInvalidFile, "must be a multiple");
  odd = config("qwen3_5_text");
  odd.erase("hidden_size");
  write_text("config.json", odd.dump());
  expect_error(ErrorCode::kInvalidFile, "\"hidden_size\" must be a whole number");

  write_text("config.json", config("qwen3_5_text").dump());
  ASSERT_TRUE(run("F32", out("a.gguf")).ok());
  const auto onto_itself = run("Q8_0", out("a.gguf"), out("a.gguf"));
  ASSERT_FALSE(onto_itself.ok());
  EXPECT_EQ(onto_itself.error().code, ErrorCode::kUsage);
}

// Progress ends at the size of the tensor data and never goes back.
TEST_F(GgufExport, Progress) {
  Maker maker;
  maker.model(false, false, false);
  write_tensors(maker.tensors);
  write_text("config.json", config("qwen3_5_text").dump());
  const auto bundle = Bundle::open(in());
  ASSERT_TRUE(bundle.ok());
  ThreadPool pool(1);
  uint64_t last = 0, total = 0, calls = 0;
  const auto report = export_gguf(*bundle, out("p.gguf"),
                                  {.type = "Q8_0",
                                   .progress =
                                       [&](const ExportProgress& p) {
                                         EXPECT_GE(p.done_bytes, last);
                                         EXPECT_LE(p.done_bytes, p.total_bytes);
                                         EXPECT_FALSE(p.tensor.empty());
                                         last = p.done_bytes, total = p.total_bytes, ++calls;
                                       }},
                                  pool);
  ASSERT_TRUE(report.ok());
  EXPECT_LT(total, report->file_bytes);
  EXPECT_GT(total, report->file_bytes * 9 / 10);
  EXPECT_EQ(last, total);
  EXPECT_GT(calls, maker.tensors.size());
}

// The real small models export whole, with nothing left out, where they are present.
TEST_F(GgufExport, DemoModels) {
  FORETOKEN_NEEDS_SHARED("models");
  for (const char* name : {"demo-moe", "demo-moe/dflash2"}) {
    const auto report = run("Q8_0", out("demo.gguf"), test::shared_dir() / "models" / name);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_TRUE(report->notes.empty()) << report->notes[0];
    const auto b = Bundle::open(out("demo.gguf"));
    ASSERT_TRUE(b.ok());
    EXPECT_GT(b->tensors().size(), 50u);
    EXPECT_LT(report->bits_per_weight(), 8.7);
    // A drafter in its target's folder has the target's tokenizer.
    EXPECT_EQ(b->metadata().at("tokenizer.ggml.model").as_text(), "gpt2") << name;
    EXPECT_EQ(b->metadata().at("tokenizer.ggml.tokens").as_texts()->size(), 8192u) << name;
  }
}

}  // namespace
}  // namespace foretoken
