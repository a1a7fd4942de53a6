// ModelConfig: the numbers of one model, parsed from any bundle, validated once, immutable afterwards. It does not know where
// they came from. Source: docs/model.md section 1 (HF keys) and docs/formats.md (GGUF keys).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ops/ops.h"

namespace foretoken {

class Bundle;

enum class Family : uint8_t { kQwen35, kQwen35Moe, kQwen3Next };
std::string_view family_name(Family family);  // "qwen3_5", "qwen3_5_moe", "qwen3_next"

struct ModelConfig {
  Family family = Family::kQwen35;
  std::string architecture;  // as the bundle names it
  int layers = 0;            // trunk layers, MTP not counted
  int hidden = 0;
  int vocab = 0;             // rows of the embedding
  int64_t max_positions = 0;
  float norm_epsilon = 1e-6f;
  std::vector<bool> attention_layer;  // [layers], true: full attention, false: gated delta net
  std::vector<bool> sparse_layer;     // [layers], true: mixture of experts
  AttentionShape attention;
  RotarySpec rotary;
  DeltaShape delta;
  bool sigmoid_output_gate = false;  // activation of the delta net's output gate: sigmoid instead of SiLU
  int ffn_width = 0;                 // dense layers
  MoeShape moe;                      // experts == 0: no sparse layer
  int expert_width = 0, shared_width = 0;
  bool tied_head = false;
  int mtp_layers = 0;                // declared
  std::vector<TokenId> stop_tokens;  // end of turn and end of text, from the bundle

  // Reads and validates. kUnsupported names a model type this build does not run.
  static Result<ModelConfig> from_bundle(const Bundle& bundle);

  bool is_attention(int layer) const { return attention_layer[size_t(layer)]; }
  bool is_sparse(int layer) const { return sparse_layer[size_t(layer)]; }
  int attention_layers() const;
  int delta_layers() const { return layers - attention_layers(); }
  // Index of `layer` among the layers of its own kind.
  int kind_index(int layer) const;

  // Columns of the delta net's packed projection: q | k | v, z, b, a.
  int delta_value_columns() const { return delta.value_heads * delta.value_dim; }
  int delta_packed_columns() const { return delta.channels() + delta_value_columns() + 2 * delta.value_heads; }

  KvLayout kv_layout(KvFormat format) const {
    return {.layers = attention_layers(), .heads = attention.kv_heads, .head_dim = attention.head_dim, .format = format};
  }
  size_t recurrent_bytes_per_lane() const {
    return size_t(delta_layers()) * (delta.state_floats() + delta.tail_floats()) * sizeof(float);
  }

 private:
  Status validate() const;
};

}  // namespace foretoken
