// One name table per source format of a block drafter, read twice: from headers to judge a bundle, and to pack it.
#include "model/dflash_weights.h"

#include <fmt/format.h>

#include <array>

#include "model/host_memory.h"
#include "model/tensor_table.h"

namespace foretoken {
namespace {

struct Names {
  const char* hf;
  const char* gguf;
};

// Inside a layer, after "layers.N." or "blk.N.".
constexpr Names kMixerNorm{"input_layernorm.weight", "attn_norm.weight"};
constexpr Names kFfnNorm{"post_attention_layernorm.weight", "ffn_norm.weight"};
constexpr Names kQuery{"self_attn.q_proj.weight", "attn_q.weight"};
constexpr Names kKey{"self_attn.k_proj.weight", "attn_k.weight"};
constexpr Names kValue{"self_attn.v_proj.weight", "attn_v.weight"};
constexpr Names kOut{"self_attn.o_proj.weight", "attn_output.weight"};
constexpr Names kQueryNorm{"self_attn.q_norm.weight", "attn_q_norm.weight"};
constexpr Names kKeyNorm{"self_attn.k_norm.weight", "attn_k_norm.weight"};
constexpr Names kGate{"mlp.gate_proj.weight", "ffn_gate.weight"};
constexpr Names kUp{"mlp.up_proj.weight", "ffn_up.weight"};
constexpr Names kDown{"mlp.down_proj.weight", "ffn_down.weight"};
constexpr Names kMixerConvBase{"attention_conv.base_kernel", "attn_conv_base"};
constexpr Names kMixerConvProjection{"attention_conv.kernel_projection.weight", "attn_conv_proj.weight"};
constexpr Names kFfnConvBase{"mlp_conv.base_kernel", "ffn_conv_base"};
constexpr Names kFfnConvProjection{"mlp_conv.kernel_projection.weight", "ffn_conv_proj.weight"};
// Of the whole drafter.
constexpr Names kFusion{"fc.weight", "fc.weight"};
constexpr Names kHiddenNorm{"hidden_norm.weight", "enc.output_norm.weight"};
constexpr Names kNorm{"norm.weight", "output_norm.weight"};
constexpr Names kSelector{"candidate_selector.hidden_projection.weight", "selector_hidden.weight"};
constexpr Names kPredecessor{"candidate_selector.predecessor_codebook", "selector_predecessor.weight"};
constexpr Names kSuccessor{"candidate_selector.successor_codebook", "selector_successor.weight"};
constexpr Names kMarkovEmbedding{"markov_head.markov_w1.weight", "markov_w1.weight"};
constexpr Names kMarkovHead{"markov_head.markov_w2.weight", "markov_w2.weight"};
constexpr Names kConfidence{"confidence_head.proj.weight", "conf_proj.weight"};
constexpr Names kConfidenceBias{"confidence_head.proj.bias", "conf_proj.bias"};

class Loader {
 public:
  // Checks everything, packs nothing and notes what would be packed.
  Loader(const Bundle& bundle, const DflashConfig& config, std::optional<QuantFormat> format)
      : tensors_(bundle), config_(config), format_(format), gguf_(bundle.format() == BundleFormat::kGguf) {
    if (format_) order_.reencoded(*format_);
  }
  // Asks `packed` for the same matrices in the same order.
  Loader(const Bundle& bundle, const DflashConfig& config, PackedSet& packed, std::optional<QuantFormat> format)
      : tensors_(bundle), config_(config), packed_(&packed), backend_(&packed.backend()), format_(format),
        gguf_(bundle.format() == BundleFormat::kGguf) {}

  Result<DflashWeights> all() {
    const int64_t hidden = config_.hidden, rank = config_.selector_rank, vocab = config_.vocab;
    DflashWeights w;
    TRY(check_fusion());
    ASSIGN_OR_RETURN(w.fusion, matrix({top(kFusion)}, hidden, static_cast<int64_t>(config_.taps.size()) * hidden));
    ASSIGN_OR_RETURN(w.hidden_norm, parameter(top(kHiddenNorm), 1, hidden));
    ASSIGN_OR_RETURN(w.norm, parameter(top(kNorm), 1, hidden));
    std::vector<NamedRows> context;
    for (int i = 0; i < config_.layers; ++i) {
      ASSIGN_OR_RETURN(DflashLayer one, layer(i));
      w.layers.push_back(std::move(one));
      const int64_t keys = int64_t{config_.kv_heads} * config_.head_dim;
      for (const Names& name : {kKey, kValue}) context.push_back({in_layer(i, name), keys});
    }
    ASSIGN_OR_RETURN(w.context_kv, matrix(context, hidden));
    if (config_.kind == DrafterKind::kDflash2) {
      ASSIGN_OR_RETURN(w.selector, matrix({top(kSelector)}, rank, hidden));
      ASSIGN_OR_RETURN(w.predecessor, codebook(top(kPredecessor), vocab, rank));
      ASSIGN_OR_RETURN(w.successor, codebook(top(kSuccessor), vocab, rank));
    } else if (config_.kind == DrafterKind::kDspark) {
      ASSIGN_OR_RETURN(w.predecessor, codebook(top(kMarkovEmbedding), vocab, rank));
      ASSIGN_OR_RETURN(w.successor, codebook(top(kMarkovHead), vocab, rank));
      ASSIGN_OR_RETURN(w.markov, matrix({top(kMarkovHead)}, vocab, rank));
      if (config_.has_confidence) {
        ASSIGN_OR_RETURN(w.confidence, values(top(kConfidence), 1, hidden + rank));
        if (tensors_.bundle().find(top(kConfidenceBias))) {
          ASSIGN_OR_RETURN(const std::vector<float> bias, values(top(kConfidenceBias), 1, 1));
          if (backend_) w.confidence_bias = bias[0];
        }
      }
    }
    return w;
  }

  size_t packed_bytes() const { return packed_bytes_; }
  const PackingOrder& order() const { return order_; }

 private:
  std::string top(const Names& names) const { return gguf_ ? names.gguf : names.hf; }
  std::string in_layer(int i, const Names& names) const {
    return gguf_ ? fmt::format("blk.{}.{}", i, names.gguf) : fmt::format("layers.{}.{}", i, names.hf);
  }

  Status check_fusion() const {
    const Bundle& bundle = tensors_.bundle();
    if (bundle.find("fc.weight")) return {};
    const bool hidden = bundle.find("fc_hidden.weight"), embedding = bundle.find("fc_embedding.weight");
    if (hidden != embedding)
      return tensors_.fault(hidden ? "fc_embedding.weight" : "fc_hidden.weight", "is missing: the bundle holds half of a split fusion");
    return tensors_.fault("fc.weight", "is missing: without the fusion the drafter cannot read the target");
  }

  Result<DflashLayer> layer(int i) {
    const int64_t hidden = config_.hidden, width = config_.ffn_width;
    const int64_t queries = int64_t{config_.query_heads} * config_.head_dim, keys = int64_t{config_.kv_heads} * config_.head_dim;
    DflashLayer w;
    ASSIGN_OR_RETURN(w.mixer_norm, parameter(in_layer(i, kMixerNorm), 1, hidden));
    ASSIGN_OR_RETURN(w.ffn_norm, parameter(in_layer(i, kFfnNorm), 1, hidden));
    ASSIGN_OR_RETURN(w.qkv, matrix({{in_layer(i, kQuery), queries}, {in_layer(i, kKey), keys}, {in_layer(i, kValue), keys}}, hidden));
    ASSIGN_OR_RETURN(w.out, matrix({in_layer(i, kOut)}, hidden, queries));
    ASSIGN_OR_RETURN(w.q_norm, parameter(in_layer(i, kQueryNorm), 1, config_.head_dim));
    ASSIGN_OR_RETURN(w.k_norm, parameter(in_layer(i, kKeyNorm), 1, config_.head_dim));
    ASSIGN_OR_RETURN(w.ffn.gate_up, matrix({in_layer(i, kGate), in_layer(i, kUp)}, width, hidden, MatrixUse::kGateUp));
    ASSIGN_OR_RETURN(w.ffn.down, matrix({in_layer(i, kDown)}, hidden, width));
    if (config_.conv_taps > 0) {
      ASSIGN_OR_RETURN(w.mixer_conv, convolution(in_layer(i, kMixerConvBase), in_layer(i, kMixerConvProjection)));
      ASSIGN_OR_RETURN(w.ffn_conv, convolution(in_layer(i, kFfnConvBase), in_layer(i, kFfnConvProjection)));
    }
    return w;
  }

  Result<DflashConvolution> convolution(const std::string& base, const std::string& projection) {
    DflashConvolution w;
    const int64_t taps = config_.conv_taps, groups = config_.hidden / config_.conv_group;
    ASSIGN_OR_RETURN(w.base, parameter(base, 2 * taps, config_.hidden));
    ASSIGN_OR_RETURN(w.projection, matrix({projection}, 2 * taps * groups, config_.hidden));
    return w;
  }

  struct NamedRows {
    std::string name;
    int64_t rows = 0;
  };
  Result<MatrixPtr> matrix(const std::vector<std::string>& names, int64_t rows, int64_t cols, MatrixUse use = MatrixUse::kLinear) {
    std::vector<NamedRows> parts;
    for (const std::string& name : names) parts.push_back({name, rows});
    return matrix(parts, cols, use);
  }
  // One matrix of the named parts' rows in order.
  Result<MatrixPtr> matrix(const std::vector<NamedRows>& parts, int64_t cols, MatrixUse use = MatrixUse::kLinear) {
    std::vector<Slice> slices;
    for (const NamedRows& part : parts) TRY(append(slices, tensors_.matrix(part.name, part.rows, cols)));
    if (!packed_) {
      order_.add(slices);
      uint64_t bytes = 0;
      for (const Slice& slice : slices) bytes += static_cast<uint64_t>(slice.rows) * row_bytes(format_of(slice), slice.cols);
      packed_bytes_ += packed_memory(bytes, 0);
      return MatrixPtr{};
    }
    MatrixPtr packed = packed_->adopt(shapes(slices));
    if (!packed) packed = packed_->pack_anew(reencoded(slices), use);
    packed_bytes_ += packed->bytes();
    for (const Slice& slice : slices) tensors_.bundle().release(*slice.tensor);
    return packed;
  }

  // The format in which a slice is packed.
  QuantFormat format_of(const Slice& slice) const {
    const QuantFormat stored = *slice.tensor->format;
    const bool becomes = format_ && slice.cols % format_info(*format_).block_elements == 0 &&
                         row_bytes(*format_, slice.cols) < row_bytes(stored, slice.cols);
    return becomes ? *format_ : stored;
  }

  std::vector<MatrixSource> shapes(std::span<const Slice> slices) const {
    std::vector<MatrixSource> parts;
    for (const Slice& slice : slices)
      parts.push_back({.name = slice.tensor->name, .format = format_of(slice), .rows = slice.rows, .cols = slice.cols});
    return parts;
  }

  // Borrow from the bundle or from `reencoded_`, until the next call.
  std::span<const MatrixSource> reencoded(std::span<const Slice> slices) {
    parts_.clear();
    reencoded_.clear();
    for (const Slice& slice : slices) {
      MatrixSource part = matrix_source(slice);
      if (const QuantFormat format = format_of(slice); format != part.format) {
        std::vector<float> values(static_cast<size_t>(part.rows * part.cols));
        dequantize(part.format, part.data, values);
        reencoded_.emplace_back(static_cast<size_t>(part.rows) * row_bytes(format, part.cols));
        quantize(format, values, {}, reencoded_.back());
        part.format = format;
        part.data = reencoded_.back();
      }
      parts_.push_back(std::move(part));
    }
    return parts_;
  }

  // A table whose rows are looked up by token.
  Result<MatrixSource> codebook(const std::string& name, int64_t rows, int64_t cols) {
    ASSIGN_OR_RETURN(const Slice slice, tensors_.matrix(name, rows, cols));
    const MatrixSource table = matrix_source(slice);
    if (backend_) backend_->keep_table(table);
    return table;
  }

  Result<Parameter> parameter(const std::string& name, int64_t rows, int64_t cols) {
    ASSIGN_OR_RETURN(const std::vector<float> decoded, values(name, rows, cols));
    if (!backend_) return Parameter{};
    return Parameter(*backend_, rows, cols, decoded);
  }

  Result<std::vector<float>> values(const std::string& name, int64_t rows, int64_t cols) {
    ASSIGN_OR_RETURN(const TensorInfo* t, tensors_.tensor(name, rows * cols, cols));
    if (!is_float_format(*t->format)) return tensors_.fault(name, "must be F32, F16 or BF16");
    if (!backend_) return std::vector<float>{};
    std::vector<float> decoded(static_cast<size_t>(rows * cols));
    dequantize(*t->format, t->data, decoded);
    return decoded;
  }

  TensorTable tensors_;
  const DflashConfig& config_;
  PackedSet* packed_ = nullptr;
  Backend* backend_ = nullptr;
  PackingOrder order_;
  std::vector<MatrixSource> parts_;
  std::vector<std::vector<std::byte>> reencoded_;
  std::optional<QuantFormat> format_;
  bool gguf_;
  size_t packed_bytes_ = 0;
};

}  // namespace

Result<DflashWeights> DflashWeights::load(const Bundle& bundle, const DflashConfig& config, Backend& backend,
                                          std::optional<QuantFormat> format, PackedCache* cache) {
  Loader check(bundle, config, format);
  TRY(check.all());
  PackedSet packed(bundle, backend, cache, fmt::format("drafter-{}", format ? format_info(*format).name : "stored"), check.order());
  Loader loader(bundle, config, packed, format);
  ASSIGN_OR_RETURN(DflashWeights weights, loader.all());
  weights.packed_file = packed.finish();
  weights.packed_bytes_ = loader.packed_bytes();
  return weights;
}

uint64_t drafter_packed_bytes(const Bundle& drafter, const DflashConfig& config, std::optional<QuantFormat> format) {
  Loader loader(drafter, config, format);
  return loader.all() ? loader.packed_bytes() : 0;
}

DrafterStatus inspect_drafter(const Bundle& drafter, const ModelConfig& target) {
  DrafterStatus status;
  const auto config = DflashConfig::from_bundle(drafter, target);
  if (!config) {
    status.kind = DflashConfig::kind_of(drafter);
    status.reason = config.error().message;
    return status;
  }
  status.kind = config->kind;
  if (const auto weights = Loader(drafter, *config, {}).all(); !weights) {
    status.reason = weights.error().message;
    return status;
  }
  status.fits = true;
  status.reason = "all tensors are present and fit the target";
  return status;
}

DrafterStatus inspect_drafter(const std::filesystem::path& path, const ModelConfig& target) {
  const auto bundle = Bundle::open(path);
  if (!bundle) return {.reason = bundle.error().message};
  return inspect_drafter(*bundle, target);
}

}  // namespace foretoken
