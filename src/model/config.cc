// Two readers of the same numbers (Hugging Face config.json and GGUF metadata) and one validation.
#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "bundle/bundle.h"
#include "model/config_reader.h"

namespace foretoken {
namespace {

Error bad(const Bundle& bundle, std::string what) {
  return {ErrorCode::kInvalidFile, bundle.path().string() + ": " + std::move(what)};
}

// ---- config.json

struct RopeParameters {
  double theta = 1e7;
  double partial_rotary_factor = 0.25;
  int rotary_dim = 0;                // 0: from the factor
  std::vector<int> sections;         // empty: plain rotary embedding
  double yarn_factor = 0;            // 0: no YaRN
  double original_positions = 262144, beta_fast = 32, beta_slow = 1;
};

// Source: docs/model.md section 5 (M-RoPE interleaving and YaRN).
RotarySpec make_rotary(const RopeParameters& p, int head_dim) {
  const int dim = p.rotary_dim ? p.rotary_dim : static_cast<int>(std::lround(head_dim * p.partial_rotary_factor));
  RotarySpec spec;
  const double log_theta = std::log(p.theta);
  const auto correction = [&](double rotations) {
    return dim * std::log(p.original_positions / (2 * std::numbers::pi * rotations)) / (2 * log_theta);
  };
  const double low = std::max(0.0, std::floor(correction(p.beta_fast)));
  const double high = std::min(dim - 1.0, std::ceil(correction(p.beta_slow)));
  for (int j = 0; j < dim / 2; ++j) {
    double frequency = std::pow(p.theta, -2.0 * j / dim);
    if (p.yarn_factor > 0) {
      const double ramp = std::clamp((j - low) / std::max(0.001, high - low), 0.0, 1.0);
      frequency = (1 - ramp) * frequency + ramp * frequency / p.yarn_factor;
    }
    spec.inverse_frequency.push_back(static_cast<float>(frequency));
    uint8_t axis = 0;
    if (p.sections.size() >= 3) {
      if (j % 3 == 1 && j < 3 * p.sections[1]) axis = 1;
      if (j % 3 == 2 && j < 3 * p.sections[2]) axis = 2;
    }
    spec.axis.push_back(axis);
  }
  if (p.yarn_factor > 0) spec.magnitude = static_cast<float>(0.1 * std::log(p.yarn_factor) + 1.0);
  return spec;
}

Result<RopeParameters> hf_rope(HfReader& text) {
  RopeParameters rope;
  const Json* object = text.find("rope_parameters");
  if (!object) object = text.find("rope_scaling");
  rope.theta = text.number("rope_theta", 1e7);
  rope.partial_rotary_factor = text.number("partial_rotary_factor", 0.25);
  if (!object) return rope;
  if (!object->is_object()) return Error{ErrorCode::kInvalidFile, "config.json: \"rope_parameters\" must be an object"};
  HfReader reader(*object, "config.json: rope_parameters");
  rope.theta = reader.number("rope_theta", rope.theta);
  rope.partial_rotary_factor = reader.number("partial_rotary_factor", rope.partial_rotary_factor);
  if (const Json* sections = reader.find("mrope_section")) {
    if (!sections->is_array() || sections->size() > 4) reader.mistyped("mrope_section", "an array of three integers");
    else
      for (const Json& s : *sections) {
        if (!s.is_number_integer() || s.get<int64_t>() < 0 || s.get<int64_t>() > 4096)
          reader.mistyped("mrope_section", "an array of three small integers");
        else rope.sections.push_back(s.get<int>());
      }
  }
  const std::string type = reader.text("rope_type", reader.text("type", "default"));
  if (type == "yarn") {
    rope.yarn_factor = reader.number("factor");
    rope.original_positions = reader.number("original_max_position_embeddings", 262144);
    rope.beta_fast = reader.number("beta_fast", 32);
    rope.beta_slow = reader.number("beta_slow", 1);
  } else if (type != "default" && type != "mrope") {
    return Error{ErrorCode::kUnsupported, fmt::format("config.json: rope_type \"{}\" is not supported (default, yarn)", type)};
  }
  if (reader.error()) return Error{ErrorCode::kInvalidFile, *reader.error()};
  return rope;
}

void read_token_ids(const Json* value, std::vector<TokenId>& out) {
  if (!value) return;
  const auto add = [&](const Json& id) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) return;
    const TokenId token = id.get<TokenId>();
    if (std::find(out.begin(), out.end(), token) == out.end()) out.push_back(token);
  };
  if (value->is_array()) for (const Json& id : *value) add(id);
  else add(*value);
}

Result<ModelConfig> from_hf(const Bundle& bundle) {
  const Json& outer = bundle.config();
  if (!outer.is_object()) return bad(bundle, "config.json must hold an object");
  HfReader top(outer, "config.json");
  const Json* nested = top.find("text_config");
  if (nested && !nested->is_object()) return bad(bundle, "config.json: \"text_config\" must be an object");
  HfReader text(nested ? *nested : outer, nested ? "config.json: text_config" : "config.json");

  ModelConfig c;
  const std::string type = top.text("model_type", text.text("model_type", ""));
  if (type == "qwen3_5" || type == "qwen3_5_text") c.family = Family::kQwen35;
  else if (type == "qwen3_5_moe" || type == "qwen3_5_moe_text") c.family = Family::kQwen35Moe;
  else if (type == "qwen3_next") c.family = Family::kQwen3Next;
  else
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{}: model_type \"{}\" is not supported; this program runs qwen3_5, qwen3_5_moe and qwen3_next",
                             bundle.path().string(), type)};
  c.architecture = type;
  if (const Json* names = top.find("architectures"); names && names->is_array() && !names->empty() && names->front().is_string())
    c.architecture = names->front().get<std::string>();

  c.layers = bounded(text.integer("num_hidden_layers"));
  c.hidden = bounded(text.integer("hidden_size"));
  c.vocab = bounded(text.integer("vocab_size"));
  c.max_positions = text.integer("max_position_embeddings", 262144);
  c.norm_epsilon = static_cast<float>(text.number("rms_norm_eps", 1e-6));
  c.attention.query_heads = bounded(text.integer("num_attention_heads"));
  c.attention.kv_heads = bounded(text.integer("num_key_value_heads"));
  c.attention.head_dim = bounded(text.integer("head_dim", 256));
  c.delta.key_heads = bounded(text.integer("linear_num_key_heads", 16));
  c.delta.value_heads = bounded(text.integer("linear_num_value_heads", 32));
  c.delta.key_dim = bounded(text.integer("linear_key_head_dim", 128));
  c.delta.value_dim = bounded(text.integer("linear_value_head_dim", 128));
  c.delta.kernel = bounded(text.integer("linear_conv_kernel_dim", 4));
  const std::string gate = text.text("output_gate_type", "silu");
  if (gate == "sigmoid") c.sigmoid_output_gate = true;
  else if (gate != "silu" && gate != "swish")
    return bad(bundle, fmt::format("config.json: output_gate_type \"{}\" is not known (silu, swish, sigmoid)", gate));
  if (const std::string act = text.text("hidden_act", "silu"); act != "silu")
    return bad(bundle, fmt::format("config.json: hidden_act \"{}\" is not supported (silu)", act));
  if (text.boolean("attention_bias", false)) return bad(bundle, "config.json: attention_bias is not part of this model family");

  if (c.layers < 1 || c.layers > 1024) return bad(bundle, "config.json: num_hidden_layers must be between 1 and 1024");
  c.attention_layer.assign(size_t(c.layers), false);
  if (const Json* types = text.find("layer_types")) {
    if (!types->is_array() || types->size() < size_t(c.layers))
      return bad(bundle, fmt::format("config.json: \"layer_types\" must list all {} layers", c.layers));
    for (int i = 0; i < c.layers; ++i) {
      const Json& kind = (*types)[size_t(i)];
      if (kind == "full_attention") c.attention_layer[size_t(i)] = true;
      else if (kind != "linear_attention")
        return bad(bundle, fmt::format("config.json: layer_types[{}] must be linear_attention or full_attention", i));
    }
  } else {
    const int64_t interval = text.integer("full_attention_interval", 4);
    if (interval < 1) return bad(bundle, "config.json: full_attention_interval must be positive");
    for (int i = 0; i < c.layers; ++i) c.attention_layer[size_t(i)] = (i + 1) % interval == 0;
  }

  c.sparse_layer.assign(size_t(c.layers), false);
  if (c.family == Family::kQwen35) {
    c.ffn_width = bounded(text.integer("intermediate_size"));
  } else {
    c.moe.experts = bounded(text.integer("num_experts"));
    c.moe.top_k = bounded(text.integer("num_experts_per_tok", 8));
    c.expert_width = bounded(text.integer("moe_intermediate_size"));
    c.shared_width = bounded(text.integer("shared_expert_intermediate_size"));
    if (!text.boolean("norm_topk_prob", true)) return bad(bundle, "config.json: norm_topk_prob false is not supported");
    const int64_t step = c.family == Family::kQwen3Next ? text.integer("decoder_sparse_step", 1) : 1;
    for (int i = 0; i < c.layers; ++i) c.sparse_layer[size_t(i)] = step > 0 && (i + 1) % step == 0;
    if (const Json* dense = text.find("mlp_only_layers"); dense && dense->is_array() && c.family == Family::kQwen3Next)
      for (const Json& i : *dense)
        if (i.is_number_integer() && i.get<int64_t>() >= 0 && i.get<int64_t>() < c.layers)
          c.sparse_layer[i.get<size_t>()] = false;
    if (std::count(c.sparse_layer.begin(), c.sparse_layer.end(), false) > 0)
      c.ffn_width = bounded(text.integer("intermediate_size"));
  }
  auto rope = hf_rope(text);
  if (!rope) return Error{rope.error().code, bundle.path().string() + ": " + rope.error().message};
  if (c.family == Family::kQwen3Next) rope->sections.clear();
  if (!(rope->theta > 1) || !(rope->partial_rotary_factor > 0 && rope->partial_rotary_factor <= 1))
    return bad(bundle, "config.json: rope_theta must exceed 1 and partial_rotary_factor lie in (0, 1]");
  if (c.attention.head_dim < 1 || c.attention.head_dim > 1024)
    return bad(bundle, "config.json: head_dim must be between 1 and 1024");
  c.rotary = make_rotary(*rope, c.attention.head_dim);

  c.tied_head = top.boolean("tie_word_embeddings", text.boolean("tie_word_embeddings", false));
  c.mtp_layers = bounded(text.integer("mtp_num_hidden_layers", 0));
  if (bundle.generation_config().is_object()) {
    const auto it = bundle.generation_config().find("eos_token_id");
    if (it != bundle.generation_config().end()) read_token_ids(&*it, c.stop_tokens);
  }
  read_token_ids(text.find("eos_token_id"), c.stop_tokens);
  if (text.error()) return bad(bundle, *text.error());
  if (top.error()) return bad(bundle, *top.error());
  return c;
}

// ---- GGUF metadata

Result<ModelConfig> from_gguf(const Bundle& bundle) {
  const GgufMetadata& metadata = bundle.metadata();
  const auto named = metadata.find("general.architecture");
  if (named == metadata.end() || !named->second.as_text()) return bad(bundle, "GGUF key general.architecture is missing");
  const std::string architecture(*named->second.as_text());
  ModelConfig c;
  c.architecture = architecture;
  if (architecture == "qwen35") c.family = Family::kQwen35;
  else if (architecture == "qwen35moe") c.family = Family::kQwen35Moe;
  else if (architecture == "qwen3next") c.family = Family::kQwen3Next;
  else
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{}: architecture \"{}\" is not supported; this program runs qwen35, qwen35moe and qwen3next",
                             bundle.path().string(), architecture)};
  GgufReader g(metadata, architecture);
  c.mtp_layers = bounded(g.integer("nextn_predict_layers", 0));
  c.layers = bounded(g.integer("block_count")) - c.mtp_layers;
  c.hidden = bounded(g.integer("embedding_length"));
  c.max_positions = g.integer("context_length", 262144);
  c.norm_epsilon = static_cast<float>(g.number("attention.layer_norm_rms_epsilon", 1e-6));
  c.attention.query_heads = bounded(g.integer("attention.head_count"));
  c.attention.kv_heads = bounded(g.integer("attention.head_count_kv"));
  c.attention.head_dim = bounded(g.integer("attention.key_length", 256));
  if (g.integer("attention.value_length", c.attention.head_dim) != c.attention.head_dim)
    return bad(bundle, "attention.value_length must equal attention.key_length");
  c.delta.kernel = bounded(g.integer("ssm.conv_kernel"));
  c.delta.key_dim = c.delta.value_dim = bounded(g.integer("ssm.state_size"));
  c.delta.key_heads = bounded(g.integer("ssm.group_count"));
  c.delta.value_heads = bounded(g.integer("ssm.time_step_rank"));
  if (const int64_t inner = g.integer("ssm.inner_size", 0); inner > 0 && c.delta.value_heads > 0) {
    if (inner % c.delta.value_heads != 0) return bad(bundle, "ssm.inner_size must be a multiple of ssm.time_step_rank");
    c.delta.value_dim = bounded(inner / c.delta.value_heads);
  }
  if (c.layers < 1 || c.layers > 1024) return bad(bundle, "block_count must name between 1 and 1024 trunk layers");

  c.attention_layer.assign(size_t(c.layers), false);
  const GgufValue* recurrent = g.find("attention.recurrent_layers");
  if (recurrent && recurrent->as_bools() && recurrent->as_bools()->size() >= size_t(c.layers)) {
    for (int i = 0; i < c.layers; ++i) c.attention_layer[size_t(i)] = !(*recurrent->as_bools())[size_t(i)];
  } else {
    const int64_t interval = g.integer("full_attention_interval", 4);
    if (interval < 1) return bad(bundle, "full_attention_interval must be positive");
    for (int i = 0; i < c.layers; ++i) c.attention_layer[size_t(i)] = (i + 1) % interval == 0;
  }
  const bool sparse = c.family != Family::kQwen35;
  c.sparse_layer.assign(size_t(c.layers), sparse);
  if (sparse) {
    c.moe.experts = bounded(g.integer("expert_count"));
    c.moe.top_k = bounded(g.integer("expert_used_count"));
    c.expert_width = bounded(g.integer("expert_feed_forward_length"));
    c.shared_width = bounded(g.integer("expert_shared_feed_forward_length"));
  } else {
    c.ffn_width = bounded(g.integer("feed_forward_length"));
  }
  RopeParameters rope;
  rope.theta = g.number("rope.freq_base", 1e7);
  rope.rotary_dim = bounded(g.integer("rope.dimension_count", 64));
  if (const GgufValue* sections = g.find("rope.dimension_sections"); sections && sections->as_ints() && c.family != Family::kQwen3Next)
    for (int64_t s : *sections->as_ints()) {
      if (s < 0 || s > 4096) return bad(bundle, "rope.dimension_sections must hold small numbers");
      rope.sections.push_back(static_cast<int>(s));
    }
  if (const GgufValue* type = g.find("rope.scaling.type"); type && type->as_text()) {
    if (*type->as_text() == "yarn") {
      rope.yarn_factor = g.number("rope.scaling.factor");
      rope.original_positions = g.number("rope.scaling.original_context_length", 262144);
      rope.beta_fast = g.number("rope.scaling.yarn_beta_fast", 32);
      rope.beta_slow = g.number("rope.scaling.yarn_beta_slow", 1);
    } else if (*type->as_text() != "none") {
      return bad(bundle, fmt::format("rope.scaling.type \"{}\" is not supported (none, yarn)", *type->as_text()));
    }
  }
  if (g.error()) return bad(bundle, *g.error());
  if (!(rope.theta > 1)) return bad(bundle, "rope.freq_base must exceed 1");
  if (c.attention.head_dim < 1 || c.attention.head_dim > 1024) return bad(bundle, "attention.key_length must be between 1 and 1024");
  if (rope.rotary_dim < 2 || rope.rotary_dim > c.attention.head_dim)
    return bad(bundle, "rope.dimension_count must be between 2 and attention.key_length");
  c.rotary = make_rotary(rope, c.attention.head_dim);

  const TensorInfo* embedding = bundle.find("token_embd.weight");
  if (!embedding || embedding->shape.size() != 2) return bad(bundle, "tensor token_embd.weight is missing");
  c.vocab = bounded(embedding->shape[0]);
  c.tied_head = bundle.find("output.weight") == nullptr;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"})
    if (const auto it = metadata.find(key); it != metadata.end() && it->second.as_int()) {
      const int64_t id = *it->second.as_int();
      if (id >= 0 && id < c.vocab && std::find(c.stop_tokens.begin(), c.stop_tokens.end(), id) == c.stop_tokens.end())
        c.stop_tokens.push_back(static_cast<TokenId>(id));
    }
  // The files name one end token; the family stops at both the end of a turn and the end of text.
  if (const auto it = metadata.find("tokenizer.ggml.tokens"); it != metadata.end() && it->second.as_texts()) {
    const auto& tokens = *it->second.as_texts();
    for (size_t id = 0; id < tokens.size() && id < size_t(c.vocab); ++id)
      if ((tokens[id] == "<|im_end|>" || tokens[id] == "<|endoftext|>") &&
          std::find(c.stop_tokens.begin(), c.stop_tokens.end(), TokenId(id)) == c.stop_tokens.end())
        c.stop_tokens.push_back(TokenId(id));
  }
  return c;
}

}  // namespace

std::string_view family_name(Family family) {
  switch (family) {
    case Family::kQwen35: return "qwen3_5";
    case Family::kQwen35Moe: return "qwen3_5_moe";
    case Family::kQwen3Next: return "qwen3_next";
  }
  return "?";
}

Result<ModelConfig> ModelConfig::from_bundle(const Bundle& bundle) {
  ASSIGN_OR_RETURN(ModelConfig config, bundle.format() == BundleFormat::kGguf ? from_gguf(bundle) : from_hf(bundle));
  config.delta.grouped = config.family == Family::kQwen3Next;
  config.attention.norm_epsilon = config.norm_epsilon;
  if (const Status valid = config.validate(); !valid)
    return Error{valid.error().code, bundle.path().string() + ": " + valid.error().message};
  return config;
}

Status ModelConfig::validate() const {
  const auto in_range = [](const char* name, int64_t value, int64_t low, int64_t high) -> Status {
    if (value >= low && value <= high) return {};
    return Error{ErrorCode::kInvalidFile, fmt::format("configuration: {} is {}, expected {} to {}", name, value, low, high)};
  };
  TRY(in_range("hidden size", hidden, 1, 1 << 17));
  TRY(in_range("vocabulary", vocab, 1, 1 << 24));
  TRY(in_range("context length", max_positions, 1, int64_t{1} << 31));
  TRY(in_range("attention heads", attention.query_heads, 1, 4096));
  TRY(in_range("K/V heads", attention.kv_heads, 1, attention.query_heads));
  TRY(in_range("head dimension", attention.head_dim, 1, 256));
  TRY(in_range("linear key heads", delta.key_heads, 1, 4096));
  TRY(in_range("linear value heads", delta.value_heads, delta.key_heads, 4096));
  TRY(in_range("linear key dimension", delta.key_dim, 1, 256));
  TRY(in_range("linear value dimension", delta.value_dim, 1, 1024));
  TRY(in_range("convolution kernel", delta.kernel, 2, 16));
  TRY(in_range("rotary dimensions", rotary.rotary_dim(), 2, attention.head_dim));
  TRY(in_range("MTP layers", mtp_layers, 0, 16));
  if (attention.query_heads % attention.kv_heads != 0)
    return Error{ErrorCode::kInvalidFile, "configuration: attention heads must be a multiple of K/V heads"};
  if (delta.value_heads % delta.key_heads != 0)
    return Error{ErrorCode::kInvalidFile, "configuration: linear value heads must be a multiple of key heads"};
  if (!(norm_epsilon > 0 && norm_epsilon < 1))
    return Error{ErrorCode::kInvalidFile, "configuration: the norm epsilon must lie between 0 and 1"};
  const bool any_sparse = std::count(sparse_layer.begin(), sparse_layer.end(), true) > 0;
  const bool any_dense = std::count(sparse_layer.begin(), sparse_layer.end(), false) > 0;
  if (any_dense) TRY(in_range("feed-forward width", ffn_width, 1, 1 << 20));
  if (any_sparse) {
    TRY(in_range("experts", moe.experts, 1, 4096));
    TRY(in_range("experts per token", moe.top_k, 1, moe.experts));
    TRY(in_range("expert width", expert_width, 1, 1 << 20));
    TRY(in_range("shared expert width", shared_width, 1, 1 << 20));
  }
  return {};
}

int ModelConfig::attention_layers() const {
  return static_cast<int>(std::count(attention_layer.begin(), attention_layer.end(), true));
}

int ModelConfig::kind_index(int layer) const {
  const bool kind = is_attention(layer);
  return static_cast<int>(std::count(attention_layer.begin(), attention_layer.begin() + layer, kind));
}

}  // namespace foretoken
