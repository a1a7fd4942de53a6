// The export's readers of configurations and tokenizers: a folder whose JSON files hold the fuzzer's bytes beside one
// small real weight file. Input: config.json, 0x00, tokenizer.json, 0x00, tokenizer_config.json.
// Covers: src/model/gguf_export_tokenizer.cc src/model/gguf_export_plan.cc
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "fuzz/temporary_folder.h"
#include "model/gguf_export_plan.h"

namespace {

namespace fs = std::filesystem;

// Weights of one delta-net layer: 8 wide, 2 value heads over 1 key head of 4.
void write_weights(const fs::path& path) {
  struct Entry {
    const char *name, *shape;
    int elements;
  };
  constexpr Entry kEntries[] = {
      {"model.embed_tokens.weight", "[4,8]", 32},
      {"model.norm.weight", "[8]", 8},
      {"model.layers.0.input_layernorm.weight", "[8]", 8},
      {"model.layers.0.post_attention_layernorm.weight", "[8]", 8},
      {"model.layers.0.linear_attn.in_proj_qkv.weight", "[16,8]", 128},
      {"model.layers.0.linear_attn.in_proj_z.weight", "[8,8]", 64},
      {"model.layers.0.linear_attn.in_proj_a.weight", "[2,8]", 16},
      {"model.layers.0.linear_attn.in_proj_b.weight", "[2,8]", 16},
      {"model.layers.0.linear_attn.conv1d.weight", "[16,1,2]", 32},
      {"model.layers.0.linear_attn.dt_bias", "[2]", 2},
      {"model.layers.0.linear_attn.A_log", "[2]", 2},
      {"model.layers.0.linear_attn.norm.weight", "[4]", 4},
      {"model.layers.0.linear_attn.out_proj.weight", "[8,8]", 64},
      {"model.layers.0.mlp.gate_proj.weight", "[4,8]", 32},
      {"model.layers.0.mlp.up_proj.weight", "[4,8]", 32},
      {"model.layers.0.mlp.down_proj.weight", "[8,4]", 32},
  };
  std::string header;
  int offset = 0;
  for (const Entry& e : kEntries) {
    header += std::string(header.empty() ? "{" : ",") + "\"" + e.name + R"(":{"dtype":"BF16","shape":)" + e.shape +
              ",\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(offset + 2 * e.elements) + "]}";
    offset += 2 * e.elements;
  }
  header += "}";
  const uint64_t size = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), 8);
  file << header << std::string(static_cast<size_t>(offset), '\0');
}

// Inside a folder of its own, so that what is looked up around a bundle is nothing.
const fs::path& folder() {
  static const foretoken::TemporaryFolder around("export");
  static const fs::path bundle = [] {
    const fs::path made = around.path() / "bundle";
    fs::create_directories(made);
    write_weights(made / "model.safetensors");
    return made;
  }();
  return bundle;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
    const size_t end = std::min(rest.find('\0'), rest.size());
    std::ofstream(folder() / name, std::ios::binary) << rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const auto bundle = foretoken::Bundle::open(folder());
  if (bundle) (void)foretoken::plan_from_folder(*bundle);
  return 0;
}
