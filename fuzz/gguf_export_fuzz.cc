// The export's readers of configurations and tokenizers: a folder whose JSON files hold the fuzzer's bytes beside a small weight file, or
// a GGUF file. Input: config.json, 0x00, tokenizer.json, 0x00, tokenizer_config.json, and then, where the weights are other than
// kDefaultWeights, 0x00 and their list; inputs that begin with "GGUF" are the file.
// Covers: src/model/gguf_export_tokenizer.cc src/model/gguf_export_plan.cc
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/temporary.h"
#include "fuzz/weight_file.h"
#include "model/gguf_export_plan.h"

namespace {

namespace fs = std::filesystem;

// Weights of one delta-net layer: 8 wide, 2 value heads over 1 key head of 4.
constexpr std::string_view kDefaultWeights =
    "model.embed_tokens.weight 4 8\n"
    "model.norm.weight 8\n"
    "model.layers.0.input_layernorm.weight 8\n"
    "model.layers.0.post_attention_layernorm.weight 8\n"
    "model.layers.0.linear_attn.in_proj_qkv.weight 16 8\n"
    "model.layers.0.linear_attn.in_proj_z.weight 8 8\n"
    "model.layers.0.linear_attn.in_proj_a.weight 2 8\n"
    "model.layers.0.linear_attn.in_proj_b.weight 2 8\n"
    "model.layers.0.linear_attn.conv1d.weight 16 1 2\n"
    "model.layers.0.linear_attn.dt_bias 2\n"
    "model.layers.0.linear_attn.A_log 2\n"
    "model.layers.0.linear_attn.norm.weight 4\n"
    "model.layers.0.linear_attn.out_proj.weight 8 8\n"
    "model.layers.0.mlp.gate_proj.weight 4 8\n"
    "model.layers.0.mlp.up_proj.weight 4 8\n"
    "model.layers.0.mlp.down_proj.weight 8 4\n";

// Inside a folder of its own, so that what is looked up around a bundle is nothing.
const fs::path& folder() {
  static const foretoken::TemporaryFolder around("export");
  static const fs::path bundle = [] {
    const fs::path made = around.path() / "bundle";
    fs::create_directories(made);
    return made;
  }();
  return bundle;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  if (rest.starts_with("GGUF")) {
    const fs::path path = folder().parent_path() / "model.gguf";
    std::ofstream(path, std::ios::binary) << rest;
    const auto bundle = foretoken::Bundle::open(path);
    if (bundle) (void)foretoken::plan_from_gguf(*bundle);
    return 0;
  }
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
    const size_t end = std::min(rest.find('\0'), rest.size());
    std::ofstream(folder() / name, std::ios::binary) << rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  foretoken::write_weight_file(folder() / "model.safetensors", rest.empty() ? kDefaultWeights : rest);
  const auto bundle = foretoken::Bundle::open(folder());
  if (bundle) (void)foretoken::plan_from_folder(*bundle);
  return 0;
}
