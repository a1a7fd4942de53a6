// Configurations of models and drafters as foreign bytes: config.json beside a small real weight file, or a whole GGUF file. What is
// accepted is within the limits that the forward pass counts on; tensors that are absent or misshapen are told, never read. Inputs that
// begin with "GGUF" are a GGUF file, others config.json, 0x00, generation_config.json.
// Covers: src/model/config.cc src/model/config_reader.h src/model/dflash_config.cc
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "fuzz/temporary_folder.h"
#include "model/config.h"
#include "model/dflash_weights.h"
#include "model/weights.h"

namespace {

using namespace foretoken;
namespace fs = std::filesystem;

void check(bool condition) {
  if (!condition) std::abort();
}

const fs::path& folder() {
  static const TemporaryFolder made("config");
  static const bool written = [] {
    fs::create_directories(made.path() / "hf");
    const std::string header = R"({"model.embed_tokens.weight":{"dtype":"BF16","shape":[4,8],"data_offsets":[0,64]},)"
                               R"("fc.weight":{"dtype":"BF16","shape":[8,8],"data_offsets":[64,192]}})";
    const uint64_t size = header.size();
    std::ofstream file(made.path() / "hf" / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), 8);
    file << header << std::string(192, '\0');
    return true;
  }();
  check(written);
  return made.path();
}

void write(const fs::path& path, std::string_view text) { std::ofstream(path, std::ios::binary) << text; }

void use(const Bundle& bundle) {
  ModelConfig drafted;
  drafted.layers = 4;
  drafted.hidden = 8;
  drafted.vocab = 4;
  (void)inspect_drafter(bundle, drafted);
  const auto config = ModelConfig::from_bundle(bundle);
  if (!config) {
    check(!config.error().message.empty());
    return;
  }
  check(config->layers >= 1 && config->layers <= 1024 && config->hidden >= 1 && config->vocab >= 1);
  check(config->attention_layer.size() == static_cast<size_t>(config->layers));
  check(config->attention_layers() >= 0 && config->kind_index(config->layers - 1) >= 0);
  check(config->rotary.axis.size() == config->rotary.inverse_frequency.size());
  check(config->recurrent_bytes_per_lane() < size_t{1} << 56);
  (void)check_trunk(bundle, *config);
  (void)inspect_mtp(bundle, *config);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  fs::path path = folder() / "hf";
  if (input.starts_with("GGUF")) {
    path = folder() / "model.gguf";
    write(path, input);
  } else {
    const size_t end = std::min(input.find('\0'), input.size());
    write(path / "config.json", input.substr(0, end));
    write(path / "generation_config.json", input.substr(std::min(end + 1, input.size())));
  }
  if (const auto bundle = Bundle::open(path)) use(*bundle);
  return 0;
}
