// Configurations of models and drafters as foreign bytes: config.json beside a small real weight file, or a whole GGUF file. What is
// accepted is within the limits that the forward pass counts on; tensors that are absent or misshapen are told, never read. Inputs that
// begin with "GGUF" are a GGUF file, others config.json, 0x00, generation_config.json, and then, where wanted, 0x00 and a list of tensors.
// Covers: src/model/config.cc src/model/config_reader.h src/model/dflash_config.cc
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/temporary.h"
#include "fuzz/weight_file.h"
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
  if (const auto block = DflashConfig::from_bundle(bundle, drafted)) {
    check(block->hidden == drafted.hidden && block->vocab == drafted.vocab && block->block_size >= 2);
    check(block->window.size() == static_cast<size_t>(block->layers) && block->context_reach() >= -1);
    check(!drafter_kind_name(block->kind).empty());
  }
  const auto config = ModelConfig::from_bundle(bundle);
  if (!config) {
    check(!config.error().message.empty());
    return;
  }
  check(family_name(config->family) != "?");
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
    const std::string_view rest = input.substr(std::min(end + 1, input.size()));
    const size_t second = std::min(rest.find('\0'), rest.size());
    write(path / "generation_config.json", rest.substr(0, second));
    const std::string_view weights = rest.substr(std::min(second + 1, rest.size()));
    write_weight_file(path / "model.safetensors", weights.empty() ? "model.embed_tokens.weight 4 8\nfc.weight 8 8\n" : weights);
  }
  if (const auto bundle = Bundle::open(path)) use(*bundle);
  return 0;
}
