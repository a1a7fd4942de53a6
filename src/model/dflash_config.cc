// Two readers of a drafter's numbers (config.json and GGUF metadata), one validation, and its agreement with the target.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/config_reader.h"
#include "model/dflash_config.h"
#include "model/tensor_table.h"

namespace foretoken {
namespace {

Error bad(const Bundle& bundle, std::string what) {
  return {ErrorCode::kInvalidFile, bundle.path().string() + ": " + std::move(what)};
}

constexpr int kMaxDrafterLayers = 256, kMaxBlock = 64, kMaxTaps = 1024, kMaxTopK = 64;

// A drafter that calls itself DFlash 2 without holding a selector or a convolution is a broken DFlash 2, not a DFlash 1.
DrafterKind settled_kind(const Bundle& bundle, bool declared_second) {
  const DrafterKind kind = DflashConfig::kind_of(bundle);
  if (kind != DrafterKind::kDspark && declared_second) return DrafterKind::kDflash2;
  return kind == DrafterKind::kNone ? DrafterKind::kDflash : kind;
}

RotarySpec full_rotary(double theta, int head_dim) {
  RotarySpec spec;
  for (int j = 0; j < head_dim / 2; ++j) spec.inverse_frequency.push_back(static_cast<float>(std::pow(theta, -2.0 * j / head_dim)));
  spec.axis.assign(spec.inverse_frequency.size(), 0);
  return spec;
}

// What a configuration says before the layers' masks are resolved.
struct Declared {
  bool second = false;            // names itself DFlash 2
  std::optional<bool> causal;     // absent: sliding layers are causal inside the block, full layers are not
  int64_t window = 0;
  std::vector<bool> sliding;      // [layers]
  std::optional<std::vector<int64_t>> taps;
  double rope_theta = 10000;
};

// Taps when the configuration names none: spread over the target's depth.
std::vector<int64_t> default_taps(int target_layers, int layers) {
  if (layers == 1) return {target_layers / 2};
  std::vector<int64_t> taps;
  for (int i = 0; i < layers; ++i)
    taps.push_back(static_cast<int64_t>(std::nearbyint(1.0 + i * (target_layers - 4.0) / (layers - 1.0))));
  return taps;
}

// The integers of a JSON array, or nothing when it holds anything else.
std::optional<std::vector<int64_t>> integers(const Json& array) {
  if (!array.is_array() || array.size() > kMaxTaps) return {};
  std::vector<int64_t> values;
  for (const Json& v : array) {
    if (!v.is_number_integer()) return {};
    values.push_back(v.get<int64_t>());
  }
  return values;
}

Result<Declared> read_hf(const Bundle& bundle, const ModelConfig& target, DflashConfig& c) {
  if (!bundle.config().is_object()) return bad(bundle, "the drafter has no config.json");
  HfReader top(bundle.config(), "config.json");
  const Json empty = Json::object();
  const Json* inner = top.find("dflash_config");
  if (inner && !inner->is_object()) return bad(bundle, "config.json: \"dflash_config\" must be an object");
  HfReader dflash(inner ? *inner : empty, "config.json: dflash_config");

  Declared d;
  bool known = inner != nullptr;
  if (const Json* names = top.find("architectures"); names && names->is_array())
    for (const Json& name : *names) {
      if (!name.is_string()) continue;
      const std::string text = name.get<std::string>();
      d.second = d.second || text.find("DFlash2") != std::string::npos;
      known = known || text.find("DFlash") != std::string::npos || text.find("DSpark") != std::string::npos;
    }
  if (!known)
    return Error{ErrorCode::kUnsupported, bundle.path().string() + ": config.json does not describe a DFlash drafter (no dflash_config)"};

  c.layers = bounded(top.integer("num_hidden_layers"));
  c.hidden = bounded(top.integer("hidden_size"));
  c.ffn_width = bounded(top.integer("intermediate_size"));
  c.vocab = bounded(top.integer("vocab_size", target.vocab));
  c.query_heads = bounded(top.integer("num_attention_heads"));
  c.kv_heads = bounded(top.integer("num_key_value_heads", c.query_heads));
  c.head_dim = bounded(top.integer("head_dim", c.query_heads > 0 ? c.hidden / c.query_heads : 0));
  c.norm_epsilon = static_cast<float>(top.number("rms_norm_eps", 1e-6));
  c.target_layers = bounded(top.integer("num_target_layers", 0));
  c.block_size = bounded(dflash.integer("block_size", top.integer("block_size", 16)));
  c.mask_token = bounded(dflash.integer("mask_token_id", top.integer("mask_token_id", -1)));
  if (const std::string act = top.text("hidden_act", "silu"); act != "silu")
    return bad(bundle, fmt::format("config.json: hidden_act \"{}\" is not supported (silu)", act));
  if (top.boolean("attention_bias", false)) return bad(bundle, "config.json: attention_bias is not part of this drafter family");
  if (c.layers < 1 || c.layers > kMaxDrafterLayers)
    return bad(bundle, fmt::format("config.json: num_hidden_layers must be between 1 and {}", kMaxDrafterLayers));

  d.rope_theta = top.number("rope_theta", 10000);
  const Json* rope = top.find("rope_parameters");
  if (!rope) rope = top.find("rope_scaling");
  if (rope && rope->is_object()) {
    HfReader parameters(*rope, "config.json: rope_parameters");
    d.rope_theta = parameters.number("rope_theta", d.rope_theta);
    if (const std::string type = parameters.text("rope_type", parameters.text("type", "default")); type != "default")
      return Error{ErrorCode::kUnsupported, fmt::format("{}: config.json: rope_type \"{}\" is not supported in a drafter (default)",
                                                        bundle.path().string(), type)};
    if (parameters.error()) return bad(bundle, *parameters.error());
  }
  if (top.find("is_causal")) d.causal = top.boolean("is_causal", false);
  else if (dflash.find("causal")) d.causal = dflash.boolean("causal", false);

  d.window = top.integer("sliding_window", 0);
  d.sliding.assign(size_t(c.layers), false);
  if (const Json* types = top.find("layer_types")) {
    if (!types->is_array() || types->size() < size_t(c.layers))
      return bad(bundle, fmt::format("config.json: \"layer_types\" must list all {} layers", c.layers));
    for (int i = 0; i < c.layers; ++i) {
      const Json& kind = (*types)[size_t(i)];
      if (kind == "sliding_attention") d.sliding[size_t(i)] = true;
      else if (kind != "full_attention")
        return bad(bundle, fmt::format("config.json: layer_types[{}] must be full_attention or sliding_attention", i));
    }
  } else if (top.boolean("use_sliding_window", false)) {
    const int64_t full = top.integer("max_window_layers", 28);
    for (int i = 0; i < c.layers; ++i) d.sliding[size_t(i)] = i >= full;
  }

  const Json* taps = dflash.find("target_layer_ids");
  if (!taps) taps = top.find("target_layer_ids");
  if (taps) {
    d.taps = integers(*taps);
    if (!d.taps) return bad(bundle, "config.json: \"target_layer_ids\" must be an array of integers");
  }
  c.conv_taps = bounded(dflash.integer("conv_kernel_size", 0));
  c.conv_group = bounded(dflash.integer("conv_group_size", 0));
  c.selector_rank = bounded(dflash.integer("selector_rank", 0));
  c.top_k = bounded(dflash.integer("selector_top_k", 16));
  c.embedding_scale = static_cast<float>(dflash.number("input_embedding_scale", 1.0));
  c.output_multiplier = static_cast<float>(dflash.number("output_multiplier", 1.0));
  c.softcap = static_cast<float>(dflash.number("final_logit_softcapping", 0.0));
  c.kind = settled_kind(bundle, d.second);
  if (c.kind == DrafterKind::kDspark) {
    c.selector_rank = bounded(top.integer("markov_rank", dflash.integer("markov_rank", 0)));
    c.anchor_predicts = top.boolean("sample_from_anchor", dflash.boolean("sample_from_anchor", true));
    c.has_confidence = bundle.find("confidence_head.proj.weight") != nullptr;
  }
  if (top.error()) return bad(bundle, *top.error());
  if (dflash.error()) return bad(bundle, *dflash.error());
  return d;
}

Result<Declared> read_gguf(const Bundle& bundle, const ModelConfig& target, DflashConfig& c) {
  const GgufMetadata& metadata = bundle.metadata();
  const auto named = metadata.find("general.architecture");
  if (named == metadata.end() || !named->second.as_text()) return bad(bundle, "GGUF key general.architecture is missing");
  if (*named->second.as_text() != "dflash")
    return Error{ErrorCode::kUnsupported, fmt::format("{}: architecture \"{}\" is not a drafter (dflash)", bundle.path().string(),
                                                      *named->second.as_text())};
  GgufReader g(metadata, "dflash");
  Declared d;
  c.layers = bounded(g.integer("block_count"));
  c.hidden = bounded(g.integer("embedding_length"));
  c.ffn_width = bounded(g.integer("feed_forward_length"));
  c.vocab = bounded(g.integer("vocab_size", target.vocab));
  c.query_heads = bounded(g.integer("attention.head_count"));
  c.kv_heads = bounded(g.integer("attention.head_count_kv", c.query_heads));
  c.head_dim = bounded(g.integer("attention.key_length", c.query_heads > 0 ? c.hidden / c.query_heads : 0));
  c.norm_epsilon = static_cast<float>(g.number("attention.layer_norm_rms_epsilon", 1e-6));
  c.block_size = bounded(g.integer("block_size", 16));
  d.rope_theta = g.number("rope.freq_base", 10000);
  if (c.layers < 1 || c.layers > kMaxDrafterLayers)
    return bad(bundle, fmt::format("GGUF key dflash.block_count must be between 1 and {}", kMaxDrafterLayers));
  if (g.integer("attention.value_length", c.head_dim) != c.head_dim)
    return bad(bundle, "GGUF key dflash.attention.value_length must equal the key length");
  const auto mask = metadata.find("tokenizer.ggml.mask_token_id");
  if (mask != metadata.end() && mask->second.as_int()) c.mask_token = bounded(*mask->second.as_int());
  if (const GgufValue* causal = g.find("attention.causal"); causal && causal->as_bool()) d.causal = *causal->as_bool();

  d.window = g.integer("attention.sliding_window", 0);
  d.sliding.assign(size_t(c.layers), d.window > 0);
  if (const GgufValue* pattern = g.find("attention.sliding_window_pattern")) {
    if (!pattern->as_bools() || pattern->as_bools()->size() < size_t(c.layers))
      return bad(bundle, fmt::format("GGUF key dflash.attention.sliding_window_pattern must list all {} layers", c.layers));
    d.sliding.assign(pattern->as_bools()->begin(), pattern->as_bools()->begin() + c.layers);
  }
  if (const GgufValue* taps = g.find("target_layers")) {
    if (!taps->as_ints() || taps->as_ints()->size() > kMaxTaps) return bad(bundle, "GGUF key dflash.target_layers must be an array of integers");
    d.taps = *taps->as_ints();
    for (int64_t& tap : *d.taps) tap = int64_t{bounded(tap)} - 1;  // the file names the layer whose input is tapped
  }
  c.conv_taps = bounded(g.integer("conv_kernel_size", 0));
  c.conv_group = bounded(g.integer("conv_group_size", 0));
  c.selector_rank = bounded(g.integer("selector_rank", 0));
  c.top_k = bounded(g.integer("selector_top_k", 16));
  c.embedding_scale = static_cast<float>(g.number("embedding_scale", g.number("input_embedding_scale", 1.0)));
  c.output_multiplier = static_cast<float>(g.number("logit_scale", g.number("output_multiplier", 1.0)));
  c.softcap = static_cast<float>(g.number("final_logit_softcapping", 0.0));
  c.kind = settled_kind(bundle, c.selector_rank > 0 || c.conv_taps > 0);
  if (c.kind == DrafterKind::kDspark) {
    const TensorInfo* table = bundle.find("markov_w1.weight");
    c.selector_rank = table ? bounded(table->cols()) : 0;
    const GgufValue* from_anchor = g.find("sample_from_anchor");
    c.anchor_predicts = !from_anchor || from_anchor->as_bool().value_or(true);
    c.has_confidence = bundle.find("conf_proj.weight") != nullptr;
  }
  if (g.error()) return bad(bundle, *g.error());
  return d;
}

// Internal consistency first, then agreement with the target.
Status validate(const Bundle& bundle, const ModelConfig& target, const Declared& d, DflashConfig& c) {
  const auto require = [&](bool ok, const std::string& what) -> Status {
    if (!ok) return bad(bundle, what);
    return {};
  };
  TRY(require(c.hidden >= 1 && c.ffn_width >= 1, "hidden and feed-forward sizes must be positive"));
  TRY(require(c.kv_heads >= 1 && c.query_heads >= 1 && c.query_heads % std::max(c.kv_heads, 1) == 0,
              fmt::format("{} attention heads over {} key/value heads do not divide", c.query_heads, c.kv_heads)));
  TRY(require(c.head_dim >= 2 && c.head_dim % 2 == 0 && c.head_dim <= 256, "head_dim must be even and at most 256"));
  TRY(require(c.query_heads <= 4096, "too many attention heads"));
  TRY(require(c.norm_epsilon > 0 && c.norm_epsilon < 1, "rms_norm_eps must lie in (0, 1)"));
  TRY(require(std::isfinite(d.rope_theta) && d.rope_theta > 1, "rope_theta must exceed 1"));
  TRY(require(c.block_size >= 2 && c.block_size <= kMaxBlock,
              fmt::format("block_size {} must be between 2 and {}", c.block_size, kMaxBlock)));
  TRY(require(std::isfinite(c.embedding_scale) && std::isfinite(c.output_multiplier) && c.output_multiplier > 0,
              "input_embedding_scale and output_multiplier must be finite, the latter positive"));
  TRY(require(std::isfinite(c.softcap) && c.softcap >= 0, "final_logit_softcapping must be positive or absent"));
  TRY(require(c.top_k >= 1 && c.top_k <= kMaxTopK, fmt::format("selector_top_k {} must be between 1 and {}", c.top_k, kMaxTopK)));
  const bool any_sliding = std::count(d.sliding.begin(), d.sliding.end(), true) > 0;
  TRY(require(!any_sliding || (d.window >= 1 && d.window <= (1 << 24)), fmt::format("sliding_window {} is out of range", d.window)));
  if (c.kind == DrafterKind::kDflash2) {
    TRY(require(c.conv_taps >= 1 && c.conv_taps <= 16, fmt::format("conv_kernel_size {} must be between 1 and 16", c.conv_taps)));
    TRY(require(c.conv_group >= 1 && c.hidden % std::max(c.conv_group, 1) == 0,
                fmt::format("conv_group_size {} does not divide the hidden size {}", c.conv_group, c.hidden)));
    TRY(require(c.selector_rank >= 1, "selector_rank must be positive"));
  } else {
    TRY(require(c.conv_taps == 0, "conv_kernel_size is declared, but the bundle holds no convolutions"));
    if (c.kind == DrafterKind::kDspark) TRY(require(c.selector_rank >= 1, "markov_rank must be positive"));
    else c.selector_rank = 0;
  }
  if (c.kind == DrafterKind::kDspark)
    TRY(require(c.output_multiplier == 1.0f && c.softcap == 0.0f, "a scaled or capped head beside a Markov head is not supported"));

  TRY(require(c.hidden == target.hidden, fmt::format("its width {} is not the target's {}", c.hidden, target.hidden)));
  TRY(require(c.vocab == target.vocab, fmt::format("its vocabulary of {} is not the target's {}", c.vocab, target.vocab)));
  TRY(require(c.target_layers == 0 || c.target_layers == target.layers,
              fmt::format("it was made for a target of {} layers, this one has {}", c.target_layers, target.layers)));
  TRY(require(c.mask_token >= 0, "it names no mask token"));
  TRY(require(c.mask_token < target.vocab,
              fmt::format("its mask token {} is outside the vocabulary of {}", c.mask_token, target.vocab)));
  TRY(require(c.top_k <= target.vocab, "selector_top_k exceeds the vocabulary"));
  if (bundle.find("d2t")) return Error{ErrorCode::kUnsupported, bundle.path().string() + ": a reduced vocabulary (d2t) is not supported"};

  const std::vector<int64_t> taps = d.taps ? *d.taps : default_taps(target.layers, c.layers);
  TRY(require(!taps.empty(), "it taps no target layer"));
  for (const int64_t tap : taps) {
    TRY(require(tap >= 0 && tap < target.layers,
                fmt::format("it taps layer {} of a target that has layers 0 to {}", tap, target.layers - 1)));
    c.taps.push_back(static_cast<int>(tap));
  }
  c.rotary = full_rotary(d.rope_theta, c.head_dim);
  for (int i = 0; i < c.layers; ++i) {
    const bool sliding = d.sliding[size_t(i)];
    c.window.push_back(sliding ? static_cast<int>(d.window) : 0);
    c.causal.push_back(d.causal.value_or(sliding));
  }
  return {};
}

}  // namespace

std::string_view drafter_kind_name(DrafterKind kind) {
  switch (kind) {
    case DrafterKind::kNone: return "none";
    case DrafterKind::kDflash: return "dflash";
    case DrafterKind::kDflash2: return "dflash2";
    case DrafterKind::kDspark: return "dspark";
  }
  return "?";
}

DrafterKind DflashConfig::kind_of(const Bundle& bundle) {
  const TensorTable tensors(bundle);
  const bool gguf = bundle.format() == BundleFormat::kGguf;
  if (tensors.any_with(gguf ? "markov_w1" : "markov_head.")) return DrafterKind::kDspark;
  if (tensors.any_with(gguf ? "selector_" : "candidate_selector.")) return DrafterKind::kDflash2;
  if (bundle.find(gguf ? "blk.0.attn_conv_base" : "layers.0.attention_conv.base_kernel")) return DrafterKind::kDflash2;
  if (tensors.any_with("fc") || bundle.find(gguf ? "enc.output_norm.weight" : "hidden_norm.weight")) return DrafterKind::kDflash;
  return DrafterKind::kNone;
}

Result<DflashConfig> DflashConfig::from_bundle(const Bundle& bundle, const ModelConfig& target) {
  DflashConfig c;
  auto declared = bundle.format() == BundleFormat::kGguf ? read_gguf(bundle, target, c) : read_hf(bundle, target, c);
  TRY(declared);
  TRY(validate(bundle, target, *declared, c));
  return c;
}

int64_t DflashConfig::context_reach() const {
  int64_t reach = 0;
  for (const int w : window) {
    if (w == 0) return -1;
    reach = std::max<int64_t>(reach, w - 1);
  }
  return reach;
}

}  // namespace foretoken
