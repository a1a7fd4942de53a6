// A random model of the family, small enough for tens of thousands of answers a minute: six layers, two of them attention, 128 tokens
// and an MTP head. Its weights are drawn so that each next token depends on everything a lane remembers; tests/sim shows that it does.
// Why no mocked target: docs/decisions/011-simulated-engine.md. Test-only.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/safetensors_builder.h"
#include "support/temp_dir.h"
#include "support/toy_target.h"

namespace foretoken::test {

struct TinyShape {
  bool sparse = false;  // mixture of experts instead of dense feed-forward layers
  int vocab = 128, hidden = 32, layers = 6;
  int query_heads = 2, kv_heads = 1, head_dim = 16;
  int key_heads = 1, value_heads = 2, key_dim = 8, value_dim = 8, kernel = 4;
  int ffn = 32, experts = 4, top_k = 2, expert_width = 16;

  bool attention(int layer) const { return layer % 3 == 1; }
  int channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

class TinyBundle {
 public:
  explicit TinyBundle(TinyShape shape = {}, uint64_t seed = 1) : shape_(shape), random_(seed) {
    write();
  }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  using Dims = std::vector<int64_t>;

  // Roughly normal: the sum of four uniform draws.
  float draw() {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += random_.uniform() - 0.5;
    return static_cast<float>(sum * std::sqrt(3.0));
  }
  void add(const std::string& name, const Dims& dims, float deviation, float mean = 0) {
    int64_t count = 1;
    for (const int64_t d : dims) count *= d;
    std::string bytes(static_cast<size_t>(count) * sizeof(float), '\0');
    for (int64_t i = 0; i < count; ++i) {
      const float value = mean + deviation * draw();
      std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
    }
    tensors_.add(name, "F32", dims, bytes);
  }
  // y = W x that keeps the size of x times `gain`.
  void matrix(const std::string& name, int64_t rows, int64_t cols, float gain = 1) {
    add(name, {rows, cols}, gain / std::sqrt(static_cast<float>(cols)));
  }

  void attention_mixer(const std::string& at) {
    const TinyShape& s = shape_;
    matrix(at + "self_attn.q_proj.weight", 2 * s.query_heads * s.head_dim, s.hidden);
    matrix(at + "self_attn.k_proj.weight", s.kv_heads * s.head_dim, s.hidden);
    matrix(at + "self_attn.v_proj.weight", s.kv_heads * s.head_dim, s.hidden);
    matrix(at + "self_attn.o_proj.weight", s.hidden, s.query_heads * s.head_dim, kMixerGain);
    add(at + "self_attn.q_norm.weight", {s.head_dim}, 0.1f);
    add(at + "self_attn.k_norm.weight", {s.head_dim}, 0.1f);
  }
  void delta_mixer(const std::string& at) {
    const TinyShape& s = shape_;
    const int value = s.value_heads * s.value_dim;
    matrix(at + "linear_attn.in_proj_qkv.weight", s.channels(), s.hidden);
    matrix(at + "linear_attn.in_proj_z.weight", value, s.hidden);
    matrix(at + "linear_attn.in_proj_b.weight", s.value_heads, s.hidden);
    matrix(at + "linear_attn.in_proj_a.weight", s.value_heads, s.hidden, 0.5f);
    add(at + "linear_attn.conv1d.weight", {s.channels(), 1, s.kernel}, 0.7f);
    add(at + "linear_attn.dt_bias", {s.value_heads}, 0.2f, -3);  // softplus of it is small: the state fades slowly
    add(at + "linear_attn.A_log", {s.value_heads}, 0.2f, -1);
    add(at + "linear_attn.norm.weight", {s.value_dim}, 0.1f, 1);
    matrix(at + "linear_attn.out_proj.weight", s.hidden, value, kMixerGain);
  }
  void swiglu(const std::string& at, int width) {
    matrix(at + "gate_proj.weight", width, shape_.hidden);
    matrix(at + "up_proj.weight", width, shape_.hidden);
    matrix(at + "down_proj.weight", shape_.hidden, width);
  }
  void feed_forward(const std::string& at) {
    const TinyShape& s = shape_;
    if (!s.sparse) return swiglu(at + "mlp.", s.ffn);
    matrix(at + "mlp.gate.weight", s.experts, s.hidden, 2);
    add(at + "mlp.experts.gate_up_proj", {s.experts, 2 * s.expert_width, s.hidden}, 1 / std::sqrt(static_cast<float>(s.hidden)));
    add(at + "mlp.experts.down_proj", {s.experts, s.hidden, s.expert_width}, 1 / std::sqrt(static_cast<float>(s.expert_width)));
    swiglu(at + "mlp.shared_expert.", s.expert_width);
    matrix(at + "mlp.shared_expert_gate.weight", 1, s.hidden, 2);
  }
  void layer(const std::string& at, bool attention) {
    add(at + "input_layernorm.weight", {shape_.hidden}, 0.1f);
    if (attention) attention_mixer(at);
    else delta_mixer(at);
    add(at + "post_attention_layernorm.weight", {shape_.hidden}, 0.1f);
    feed_forward(at);
  }

  void write() {
    const TinyShape& s = shape_;
    add("model.embed_tokens.weight", {s.vocab, s.hidden}, 1);
    for (int i = 0; i < s.layers; ++i) layer(fmt::format("model.layers.{}.", i), s.attention(i));
    add("model.norm.weight", {s.hidden}, 0.1f);
    matrix("lm_head.weight", s.vocab, s.hidden, 2);
    layer("mtp.layers.0.", true);
    matrix("mtp.fc.weight", s.hidden, 2 * s.hidden);
    for (const char* norm : {"pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"}) add(fmt::format("mtp.{}.weight", norm), {s.hidden}, 0.1f);
    folder_.write("model.safetensors", tensors_.build());
    folder_.write("config.json", config());
  }
  std::string config() const {
    const TinyShape& s = shape_;
    std::string kinds;
    for (int i = 0; i < s.layers; ++i) kinds += fmt::format("{}\"{}\"", i > 0 ? ", " : "", s.attention(i) ? "full_attention" : "linear_attention");
    std::string text = fmt::format(
        R"("model_type": "{}", "vocab_size": {}, "hidden_size": {}, "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {},)"
        R"("linear_num_key_heads": {}, "linear_num_value_heads": {}, "linear_key_head_dim": {}, "linear_value_head_dim": {}, "linear_conv_kernel_dim": {},)"
        R"("rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "tie_word_embeddings": false, "layer_types": [{}], "mtp_num_hidden_layers": 1,)"
        R"("rope_parameters": {{"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1], "mrope_interleaved": true}},)",
        s.sparse ? "qwen3_5_moe_text" : "qwen3_5_text", s.vocab, s.hidden, s.layers, s.query_heads, s.kv_heads, s.head_dim, s.key_heads, s.value_heads,
        s.key_dim, s.value_dim, s.kernel, kinds);
    text += s.sparse ? fmt::format(R"("num_experts": {}, "num_experts_per_tok": {}, "moe_intermediate_size": {}, "shared_expert_intermediate_size": {})", s.experts,
                                   s.top_k, s.expert_width, s.expert_width)
                     : fmt::format(R"("intermediate_size": {})", s.ffn);
    return "{" + text + "}";
  }

  // What mixers bring outweighs the token itself, so that the next token is about the whole prefix.
  static constexpr float kMixerGain = 8;

  TinyShape shape_;
  TestRandom random_;
  testing::SafetensorsBuilder tensors_;
  testing::TempDir folder_;
};

}  // namespace foretoken::test
