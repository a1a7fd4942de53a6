// One name table per source format, and the transforms between them and our maths (docs/formats.md, docs/model.md section 2).
#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bundle/bundle.h"
#include "model/tensor_table.h"

namespace foretoken {
namespace {

// ---- Orders. HF groups value heads by key head (kh * r + j); ours, as in GGUF, is tiled (j * key_heads + kh).

// Source index of each of our value-head blocks of `width` elements, after `offset` leading elements that stay in place.
std::vector<int32_t> tiled_order(const DeltaShape& shape, int width, int offset = 0) {
  const int ratio = shape.value_heads / shape.key_heads;
  std::vector<int32_t> order;
  order.resize(static_cast<size_t>(offset));
  std::iota(order.begin(), order.end(), 0);
  for (int j = 0; j < ratio; ++j)
    for (int kh = 0; kh < shape.key_heads; ++kh)
      for (int i = 0; i < width; ++i) order.push_back(offset + (kh * ratio + j) * width + i);
  return order;
}

// Qwen3-Next's fused rows: per key head [q | k | v of its value heads | z of them]. Ours: q, k, v, z of all heads.
std::vector<int32_t> next_qkvz_order(const DeltaShape& s) {
  const int ratio = s.value_heads / s.key_heads;
  const int block = 2 * s.key_dim + 2 * ratio * s.value_dim;
  std::vector<int32_t> order;
  const auto take = [&](int offset, int width) {
    for (int kh = 0; kh < s.key_heads; ++kh)
      for (int i = 0; i < width; ++i) order.push_back(kh * block + offset + i);
  };
  take(0, s.key_dim);
  take(s.key_dim, s.key_dim);
  take(2 * s.key_dim, ratio * s.value_dim);
  take(2 * s.key_dim + ratio * s.value_dim, ratio * s.value_dim);
  return order;
}

// Qwen3-Next's fused rows per key head [b | a]. Ours: b of all value heads, then a.
std::vector<int32_t> next_ba_order(const DeltaShape& s) {
  const int ratio = s.value_heads / s.key_heads;
  std::vector<int32_t> order;
  for (int part = 0; part < 2; ++part)
    for (int kh = 0; kh < s.key_heads; ++kh)
      for (int j = 0; j < ratio; ++j) order.push_back(kh * 2 * ratio + part * ratio + j);
  return order;
}

// ---- Access to one bundle under one naming.

class Source : public TensorTable {
 public:
  Source(const Bundle& bundle, const ModelConfig& config) : TensorTable(bundle), config_(config) {
    gguf_ = bundle.format() == BundleFormat::kGguf;
    if (gguf_) return;
    for (const char* prefix : {"model.language_model.", "language_model.model.", "model."})
      if (bundle.find(std::string(prefix) + "embed_tokens.weight")) {
        prefix_ = prefix;
        break;
      }
    for (const char* name : {"lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight"})
      if (bundle.find(name)) head_ = name;
    for (const char* prefix : {"mtp.", "model.mtp.", "language_model.mtp."})
      if (bundle.find(std::string(prefix) + "fc.weight")) mtp_ = prefix;
    if (mtp_.empty()) mtp_ = any_with("model.mtp.") ? "model.mtp." : "mtp.";
    // Converted checkpoints store the convolution as [channels, kernel, 1] and the norms with 1 already added.
    for (int i = 0; i < config.layers && !prefix_.empty(); ++i)
      if (const TensorInfo* conv = bundle.find(fmt::format("{}layers.{}.linear_attn.conv1d.weight", prefix_, i))) {
        norms_are_full_ = conv->shape.size() == 3 && conv->shape[2] == 1 && conv->shape[1] == config.delta.kernel;
        break;
      }
  }

  bool gguf() const { return gguf_; }
  const ModelConfig& config() const { return config_; }
  bool norms_are_full() const { return norms_are_full_; }
  const std::string& mtp_prefix() const { return mtp_; }
  std::string layer(int i) const { return gguf_ ? fmt::format("blk.{}.", i) : fmt::format("{}layers.{}.", prefix_, i); }
  std::string embedding() const { return gguf_ ? "token_embd.weight" : prefix_ + "embed_tokens.weight"; }
  std::string head() const { return gguf_ ? "output.weight" : head_.empty() ? "lm_head.weight" : head_; }
  std::string final_norm() const { return gguf_ ? "output_norm.weight" : prefix_ + "norm.weight"; }

 private:
  const ModelConfig& config_;
  bool gguf_ = false, norms_are_full_ = false;
  std::string prefix_, head_, mtp_;
};

// ---- Name tables: which slices make up each packed matrix.

Result<std::vector<Slice>> delta_in_proj(const Source& s, const std::string& layer) {
  const DeltaShape& d = s.config().delta;
  const int64_t hidden = s.config().hidden, value = s.config().delta_value_columns();
  std::vector<Slice> parts;
  if (s.gguf()) {
    if (s.bundle().find(layer + "ssm_in.weight")) {
      TRY(append(parts, s.matrix(layer + "ssm_in.weight", d.channels() + value, hidden)));
      parts.back().row_order = next_qkvz_order(d);
    } else {
      TRY(append(parts, s.matrix(layer + "attn_qkv.weight", d.channels(), hidden)));
      TRY(append(parts, s.matrix(layer + "attn_gate.weight", value, hidden)));
    }
    if (d.grouped) {
      TRY(append(parts, s.matrix(layer + "ssm_ba.weight", 2 * d.value_heads, hidden)));
      parts.back().row_order = next_ba_order(d);
    } else {
      TRY(append(parts, s.matrix(layer + "ssm_beta.weight", d.value_heads, hidden)));
      TRY(append(parts, s.matrix(layer + "ssm_alpha.weight", d.value_heads, hidden)));
    }
    return parts;
  }
  const std::string a = layer + "linear_attn.";
  if (d.grouped) {
    TRY(append(parts, s.matrix(a + "in_proj_qkvz.weight", d.channels() + value, hidden)));
    parts.back().row_order = next_qkvz_order(d);
    TRY(append(parts, s.matrix(a + "in_proj_ba.weight", 2 * d.value_heads, hidden)));
    parts.back().row_order = next_ba_order(d);
    return parts;
  }
  TRY(append(parts, s.matrix(a + "in_proj_qkv.weight", d.channels(), hidden)));
  parts.back().row_order = tiled_order(d, d.value_dim, 2 * d.key_heads * d.key_dim);
  TRY(append(parts, s.matrix(a + "in_proj_z.weight", value, hidden)));
  parts.back().row_order = tiled_order(d, d.value_dim);
  for (const char* name : {"in_proj_b.weight", "in_proj_a.weight"}) {
    TRY(append(parts, s.matrix(a + name, d.value_heads, hidden)));
    parts.back().row_order = tiled_order(d, 1);
  }
  return parts;
}

Result<std::vector<Slice>> delta_out_proj(const Source& s, const std::string& layer) {
  std::vector<Slice> parts;
  TRY(append(parts, s.matrix(layer + (s.gguf() ? "ssm_out.weight" : "linear_attn.out_proj.weight"), s.config().hidden,
                             s.config().delta_value_columns())));
  if (!s.gguf() && !s.config().delta.grouped)
    parts.back().column_order = tiled_order(s.config().delta, s.config().delta.value_dim);
  return parts;
}

Result<std::vector<Slice>> attention_in_proj(const Source& s, const std::string& layer) {
  const AttentionShape& a = s.config().attention;
  const std::string p = layer + (s.gguf() ? "attn_" : "self_attn.");
  const char* suffix = s.gguf() ? ".weight" : "_proj.weight";
  std::vector<Slice> parts;
  TRY(append(parts, s.matrix(p + "q" + suffix, a.query_columns(), s.config().hidden)));
  TRY(append(parts, s.matrix(p + "k" + suffix, a.kv_heads * a.head_dim, s.config().hidden)));
  TRY(append(parts, s.matrix(p + "v" + suffix, a.kv_heads * a.head_dim, s.config().hidden)));
  return parts;
}

Result<std::vector<Slice>> attention_out_proj(const Source& s, const std::string& layer) {
  const AttentionShape& a = s.config().attention;
  std::vector<Slice> parts;
  TRY(append(parts, s.matrix(layer + (s.gguf() ? "attn_output.weight" : "self_attn.o_proj.weight"), s.config().hidden,
                             a.query_heads * a.head_dim)));
  return parts;
}

// Gate rows, then up rows, of a dense or shared feed-forward; and its down projection.
struct FfnSlices { std::vector<Slice> gate_up, down; };

Result<FfnSlices> plain_ffn(const Source& s, const std::string& gate, const std::string& up, const std::string& down,
                            int64_t width) {
  FfnSlices f;
  TRY(append(f.gate_up, s.matrix(gate, width, s.config().hidden)));
  TRY(append(f.gate_up, s.matrix(up, width, s.config().hidden)));
  TRY(append(f.down, s.matrix(down, s.config().hidden, width)));
  return f;
}

Result<FfnSlices> dense_ffn(const Source& s, const std::string& layer) {
  if (s.gguf())
    return plain_ffn(s, layer + "ffn_gate.weight", layer + "ffn_up.weight", layer + "ffn_down.weight", s.config().ffn_width);
  const std::string m = layer + "mlp.";
  return plain_ffn(s, m + "gate_proj.weight", m + "up_proj.weight", m + "down_proj.weight", s.config().ffn_width);
}

Result<FfnSlices> shared_ffn(const Source& s, const std::string& layer) {
  if (s.gguf())
    return plain_ffn(s, layer + "ffn_gate_shexp.weight", layer + "ffn_up_shexp.weight", layer + "ffn_down_shexp.weight",
                     s.config().shared_width);
  const std::string m = layer + "mlp.shared_expert.";
  return plain_ffn(s, m + "gate_proj.weight", m + "up_proj.weight", m + "down_proj.weight", s.config().shared_width);
}

// Expert `e` out of a bank of all experts, or from its own tensors.
Result<FfnSlices> expert_ffn(const Source& s, const std::string& layer, int e) {
  const int64_t width = s.config().expert_width, hidden = s.config().hidden, experts = s.config().moe.experts;
  const auto from_bank = [&](const std::string& name, int64_t rows, int64_t cols) -> Result<Slice> {
    ASSIGN_OR_RETURN(Slice slice, s.matrix(name, experts * rows, cols));
    slice.begin = e * rows;
    slice.rows = rows;
    return slice;
  };
  FfnSlices f;
  if (s.gguf()) {
    if (s.bundle().find(layer + "ffn_gate_up_exps.weight")) {
      TRY(append(f.gate_up, from_bank(layer + "ffn_gate_up_exps.weight", 2 * width, hidden)));
    } else {
      TRY(append(f.gate_up, from_bank(layer + "ffn_gate_exps.weight", width, hidden)));
      TRY(append(f.gate_up, from_bank(layer + "ffn_up_exps.weight", width, hidden)));
    }
    TRY(append(f.down, from_bank(layer + "ffn_down_exps.weight", hidden, width)));
    return f;
  }
  const std::string m = layer + "mlp.experts.";
  for (const char* suffix : {"", ".weight"})
    if (s.bundle().find(m + "gate_up_proj" + suffix)) {
      TRY(append(f.gate_up, from_bank(m + "gate_up_proj" + suffix, 2 * width, hidden)));
      TRY(append(f.down, from_bank(m + "down_proj" + suffix, hidden, width)));
      return f;
    }
  const std::string one = fmt::format("{}{}.", m, e);
  return plain_ffn(s, one + "gate_proj.weight", one + "up_proj.weight", one + "down_proj.weight", width);
}

// ---- Loading

class Loader {
 public:
  // Checks everything, packs nothing and notes what would be packed.
  explicit Loader(const Source& source) : s_(source) {}
  // Asks `packed` for the same matrices in the same order.
  Loader(const Source& source, PackedSet* packed, std::function<void(Weights::Progress)> progress = {})
      : s_(source), packed_(packed), progress_(std::move(progress)) {}

  Result<MatrixPtr> pack(Result<std::vector<Slice>> slices, MatrixUse use = MatrixUse::kLinear) {
    TRY(slices);
    if (!packed_) return noted(*slices);
    std::vector<MatrixSource> parts;
    for (const Slice& slice : *slices) {
      parts.push_back(matrix_source(slice));
      parts.back().release = [this, &slice](std::span<const std::byte> part) { release(*slice.tensor, part); };
    }
    MatrixPtr packed = packed_->pack(parts, use);
    packed_bytes_ += packed->bytes();
    for (size_t i = 0; i < parts.size(); ++i) consumed(*(*slices)[i].tensor, parts[i].data);
    return packed;
  }

  // A small parameter decoded to fp32, element i from order[i] when given, then mapped.
  template <class Map>
  Result<Parameter> parameter(const std::string& name, int64_t rows, int64_t cols, std::vector<int32_t> order, Map map) {
    ASSIGN_OR_RETURN(const TensorInfo* t, s_.tensor(name, rows * cols, rows == 1 ? rows * cols : cols));
    if (!is_float_format(*t->format)) return s_.fault(name, "must be F32, F16 or BF16");
    if (!packed_) return Parameter{};
    std::vector<float> values(static_cast<size_t>(rows * cols));
    dequantize(*t->format, t->data, values);
    std::vector<float> mapped(values.size());
    for (size_t i = 0; i < values.size(); ++i) mapped[i] = map(values[order.empty() ? i : size_t(order[i])]);
    consumed(*t, t->data);
    return Parameter(packed_->backend(), rows, cols, mapped);
  }
  Result<Parameter> norm(const std::string& name, int64_t cols) {
    const float add = s_.gguf() || s_.norms_are_full() ? 0.0f : 1.0f;
    return parameter(name, 1, cols, {}, [add](float w) { return add + w; });
  }
  Result<Parameter> mtp_norm(const std::string& name, int64_t cols, bool zero_centred) {
    const float add = zero_centred ? 1.0f : 0.0f;
    return parameter(name, 1, cols, {}, [add](float w) { return add + w; });
  }

  Result<ExpertWeights> ffn(Result<FfnSlices> slices) {
    TRY(slices);
    ExpertWeights w;
    ASSIGN_OR_RETURN(w.gate_up, pack(std::move(slices->gate_up), MatrixUse::kGateUp));
    ASSIGN_OR_RETURN(w.down, pack(std::move(slices->down)));
    return w;
  }

  Result<DeltaWeights> delta(const std::string& layer) {
    const DeltaShape& d = s_.config().delta;
    const bool reorder = !s_.gguf() && !d.grouped;
    const std::string a = layer + (s_.gguf() ? "" : "linear_attn.");
    DeltaWeights w;
    ASSIGN_OR_RETURN(w.in_proj, pack(delta_in_proj(s_, layer)));
    std::vector<int32_t> conv_order, head_order;
    if (reorder) {
      for (const int32_t channel : tiled_order(d, d.value_dim, 2 * d.key_heads * d.key_dim))
        for (int j = 0; j < d.kernel; ++j) conv_order.push_back(channel * d.kernel + j);
      head_order = tiled_order(d, 1);
    }
    const auto same = [](float v) { return v; };
    ASSIGN_OR_RETURN(w.conv, parameter(a + (s_.gguf() ? "ssm_conv1d.weight" : "conv1d.weight"), d.channels(), d.kernel,
                                       conv_order, same));
    ASSIGN_OR_RETURN(w.dt_bias, parameter(a + (s_.gguf() ? "ssm_dt.bias" : "dt_bias"), 1, d.value_heads, head_order, same));
    if (s_.gguf()) {
      ASSIGN_OR_RETURN(w.decay_rate, parameter(a + "ssm_a", 1, d.value_heads, head_order, same));
    } else {
      const auto rate = [](float a_log) { return static_cast<float>(-std::exp(static_cast<double>(a_log))); };
      ASSIGN_OR_RETURN(w.decay_rate, parameter(a + "A_log", 1, d.value_heads, head_order, rate));
    }
    ASSIGN_OR_RETURN(w.norm, parameter(a + (s_.gguf() ? "ssm_norm.weight" : "norm.weight"), 1, d.value_dim, {}, same));
    ASSIGN_OR_RETURN(w.out_proj, pack(delta_out_proj(s_, layer)));
    return w;
  }

  // `norm_weight` reads one norm: trunk and MTP layers may differ in whether 1 was already added.
  template <class NormWeight>
  Result<AttentionWeights> attention(const std::string& layer, NormWeight norm_weight) {
    const int head_dim = s_.config().attention.head_dim;
    const std::string a = layer + (s_.gguf() ? "attn_" : "self_attn.");
    AttentionWeights w;
    ASSIGN_OR_RETURN(w.in_proj, pack(attention_in_proj(s_, layer)));
    ASSIGN_OR_RETURN(w.q_norm, norm_weight(a + "q_norm.weight", head_dim));
    ASSIGN_OR_RETURN(w.k_norm, norm_weight(a + "k_norm.weight", head_dim));
    ASSIGN_OR_RETURN(w.out_proj, pack(attention_out_proj(s_, layer)));
    return w;
  }

  // Whether expert `e` is stored as expert 0 is.
  Status same_formats(const std::string& layer, int e) {
    ASSIGN_OR_RETURN(const FfnSlices first, expert_ffn(s_, layer, 0));
    ASSIGN_OR_RETURN(const FfnSlices other, expert_ffn(s_, layer, e));
    const auto format = [](const Slice& s) { return *s.tensor->format; };
    if (std::ranges::equal(first.gate_up, other.gate_up, {}, format, format) && std::ranges::equal(first.down, other.down, {}, format, format))
      return {};
    return Error{ErrorCode::kUnsupported, fmt::format("{}: expert {} of {} is stored in another format than expert 0, which the {} backend does not run; "
                                                      "quantize the model to one type",
                                                      s_.bundle().path().string(), e, layer, packed_->backend().info().name)};
  }

  Result<MoeWeights> moe(const std::string& layer) {
    const int64_t hidden = s_.config().hidden;
    MoeWeights w;
    std::vector<Slice> router, shared_gate;
    TRY(append(router, s_.matrix(layer + (s_.gguf() ? "ffn_gate_inp.weight" : "mlp.gate.weight"), s_.config().moe.experts, hidden)));
    ASSIGN_OR_RETURN(w.router, pack(std::move(router)));
    const bool alike = packed_ && packed_->backend().limits().like_experts;
    for (int e = 0; e < s_.config().moe.experts; ++e) {
      if (alike) TRY(same_formats(layer, e));
      ASSIGN_OR_RETURN(ExpertWeights expert, ffn(expert_ffn(s_, layer, e)));
      w.experts.push_back(std::move(expert));
    }
    ASSIGN_OR_RETURN(w.shared, ffn(shared_ffn(s_, layer)));
    TRY(append(shared_gate, s_.matrix(layer + (s_.gguf() ? "ffn_gate_inp_shexp.weight" : "mlp.shared_expert_gate.weight"), 1, hidden)));
    ASSIGN_OR_RETURN(w.shared_gate, pack(std::move(shared_gate)));
    return w;
  }

  template <class NormWeight>
  Result<LayerWeights> layer(const std::string& prefix, bool full_attention, bool sparse, NormWeight norm_weight) {
    LayerWeights w;
    const int64_t hidden = s_.config().hidden;
    ASSIGN_OR_RETURN(w.mixer_norm, norm_weight(prefix + (s_.gguf() ? "attn_norm.weight" : "input_layernorm.weight"), hidden));
    if (full_attention) {
      ASSIGN_OR_RETURN(w.mixer, attention(prefix, norm_weight));
    } else {
      ASSIGN_OR_RETURN(w.mixer, delta(prefix));
    }
    ASSIGN_OR_RETURN(w.ffn_norm, norm_weight(prefix + (s_.gguf() ? "post_attention_norm.weight" : "post_attention_layernorm.weight"), hidden));
    if (sparse) {
      ASSIGN_OR_RETURN(w.ffn, moe(prefix));
    } else {
      ASSIGN_OR_RETURN(w.ffn, ffn(dense_ffn(s_, prefix)));
    }
    return w;
  }

  Result<Weights> trunk() {
    const ModelConfig& c = s_.config();
    Weights w;
    ASSIGN_OR_RETURN(const Slice embedding, s_.matrix(s_.embedding(), c.vocab, c.hidden));
    w.embedding = matrix_source(embedding);
    order_.borrow(embedding);
    if (packed_) packed_->backend().keep_table(w.embedding);
    const auto trunk_norm = [this](const std::string& name, int64_t cols) { return norm(name, cols); };
    for (int i = 0; i < c.layers; ++i) {
      ASSIGN_OR_RETURN(LayerWeights layer_weights, layer(s_.layer(i), c.is_attention(i), c.is_sparse(i), trunk_norm));
      w.layers.push_back(std::move(layer_weights));
    }
    ASSIGN_OR_RETURN(w.final_norm, norm(s_.final_norm(), c.hidden));
    std::vector<Slice> head;
    TRY(append(head, s_.matrix(c.tied_head ? s_.embedding() : s_.head(), c.vocab, c.hidden)));
    ASSIGN_OR_RETURN(w.head, pack(std::move(head)));
    return w;
  }

  Result<MtpWeights> mtp() {
    const ModelConfig& c = s_.config();
    const std::string block = s_.gguf() ? s_.layer(c.layers) : s_.mtp_prefix() + "layers.0.";
    const std::string outer = s_.gguf() ? block + "nextn." : s_.mtp_prefix();
    // Whether 1 was already added differs between checkpoints, and between trunk and head: the mean of a norm tells.
    const std::string probe = block + "input_layernorm.weight";
    bool zero_centred = false;
    if (!s_.gguf() && packed_) {
      double sum = 0;
      const auto add_up = [&sum](float v) {
        sum += v;
        return v;
      };
      TRY(parameter(probe, 1, c.hidden, {}, add_up));
      zero_centred = sum / c.hidden < 0.5;
    }
    const auto head_norm = [&](const std::string& name, int64_t cols) { return mtp_norm(name, cols, zero_centred); };
    MtpWeights w;
    ASSIGN_OR_RETURN(w.embedding_norm, head_norm(outer + (s_.gguf() ? "enorm.weight" : "pre_fc_norm_embedding.weight"), c.hidden));
    ASSIGN_OR_RETURN(w.hidden_norm, head_norm(outer + (s_.gguf() ? "hnorm.weight" : "pre_fc_norm_hidden.weight"), c.hidden));
    ASSIGN_OR_RETURN(w.norm, head_norm(outer + (s_.gguf() ? "shared_head_norm.weight" : "norm.weight"), c.hidden));
    ASSIGN_OR_RETURN(w.fusion, mtp_fusion(outer));
    ASSIGN_OR_RETURN(w.layer, layer(block, true, c.moe.experts > 0, head_norm));
    return w;
  }

  size_t packed_bytes() const { return packed_bytes_; }
  const PackingOrder& order() const { return order_; }

 private:
  MatrixPtr noted(std::span<const Slice> slices) {
    order_.add(slices);
    return {};
  }

  // One matrix over [embedding | hidden], or two halves that are joined here, row by row.
  Result<MatrixPtr> mtp_fusion(const std::string& outer) {
    const int64_t hidden = s_.config().hidden;
    const std::string whole = outer + (s_.gguf() ? "eh_proj.weight" : "fc.weight");
    const std::string names[] = {outer + "fc_embedding.weight", outer + "fc_hidden.weight"};
    const bool halves[] = {s_.bundle().find(names[0]) != nullptr, s_.bundle().find(names[1]) != nullptr};
    std::vector<Slice> parts;
    if (s_.bundle().find(whole) || (!halves[0] && !halves[1])) {
      TRY(append(parts, s_.matrix(whole, hidden, 2 * hidden)));
      return pack(std::move(parts));
    }
    for (int i : {0, 1})
      if (!halves[i]) return s_.fault(names[i], "is missing: the bundle holds half of a split fusion");
    for (const std::string& name : names) TRY(append(parts, s_.matrix(name, hidden, hidden)));
    if (*parts[0].tensor->format != *parts[1].tensor->format) return s_.fault(names[1], "is stored in another type than its other half");
    if (!packed_) return noted(parts);
    MatrixSource joined = matrix_source(parts[0]);
    const MatrixSource second = matrix_source(parts[1]);
    const size_t row = row_bytes(joined.format, hidden);
    std::vector<std::byte> bytes;
    for (size_t r = 0; r < static_cast<size_t>(hidden); ++r)
      for (const MatrixSource* half : {static_cast<const MatrixSource*>(&joined), &second}) {
        const auto from = half->data.subspan(r * row, row);
        bytes.insert(bytes.end(), from.begin(), from.end());
      }
    joined.cols = 2 * hidden;
    joined.data = bytes;
    MatrixPtr packed = packed_->pack({&joined, 1});
    packed_bytes_ += packed->bytes();
    return packed;
  }

  void release(const TensorInfo& tensor, std::span<const std::byte> data) const {
    s_.bundle().files()[size_t(tensor.file)].release(data);
  }
  void consumed(const TensorInfo& tensor, std::span<const std::byte> data) {
    release(tensor, data);
    done_bytes_ += data.size();
    if (progress_) progress_({done_bytes_, s_.bundle().tensor_bytes()});
  }

  const Source& s_;
  PackedSet* packed_ = nullptr;
  PackingOrder order_;
  std::function<void(Weights::Progress)> progress_;
  size_t packed_bytes_ = 0;
  uint64_t done_bytes_ = 0;
};

// Shapes that the backend's kernels hold.
Status within_limits(const Bundle& bundle, const ModelConfig& config, const Backend& backend) {
  const BackendLimits limits = backend.limits();
  const auto refuse = [&](const char* what, int value, int most) {
    return Error{ErrorCode::kUnsupported, fmt::format("{}: the {} backend runs at most {} {}, this model has {}; use --backend cpu",
                                                      bundle.path().string(), backend.info().name, most, what, value)};
  };
  if (config.delta.key_dim > limits.key_dim) return refuse("elements in a linear key head", config.delta.key_dim, limits.key_dim);
  if (config.vocab > limits.vocabulary) return refuse("tokens of a vocabulary", config.vocab, limits.vocabulary);
  if (config.moe.experts > limits.experts) return refuse("experts in a layer", config.moe.experts, limits.experts);
  if (config.moe.top_k > limits.top_k) return refuse("experts for a token", config.moe.top_k, limits.top_k);
  return {};
}

}  // namespace

Parameter::Parameter(Backend& backend, int64_t rows, int64_t cols, std::span<const float> values)
    : memory_(backend.allocate(values.size() * sizeof(float))), view_(memory_.view(rows, cols)) {
  CHECK(values.size() == static_cast<size_t>(rows * cols));
  backend.upload(View::of(const_cast<float*>(values.data()), rows, cols), view_);
}

Result<Weights> Weights::load(const Bundle& bundle, const ModelConfig& config, Backend& backend,
                              const std::function<void(Progress)>& progress, PackedCache* cache) {
  TRY(within_limits(bundle, config, backend));
  const Source source(bundle, config);
  Loader check(source);
  TRY(check.trunk());
  PackedSet packed(bundle, backend, cache, kTrunkSet, check.order());
  Loader loader(source, &packed, progress);
  ASSIGN_OR_RETURN(Weights weights, loader.trunk());
  weights.packed_file = packed.finish();
  weights.packed_bytes_ = loader.packed_bytes();
  return weights;
}

Result<PackingOrder> trunk_packing_order(const Bundle& bundle, const ModelConfig& config) {
  const Source source(bundle, config);
  Loader loader(source);
  TRY(loader.trunk());
  return loader.order();
}

Result<PackingOrder> mtp_packing_order(const Bundle& bundle, const ModelConfig& config) {
  const Source source(bundle, config);
  Loader loader(source);
  TRY(loader.mtp());
  return loader.order();
}

Status check_trunk(const Bundle& bundle, const ModelConfig& config) {
  TRY(trunk_packing_order(bundle, config));
  return {};
}

MtpStatus inspect_mtp(const Bundle& bundle, const ModelConfig& config) {
  MtpStatus status;
  status.declared = config.mtp_layers;
  const Source source(bundle, config);
  status.present = source.gguf() ? source.any_with(source.layer(config.layers) + "nextn.")
                                 : source.any_with(source.mtp_prefix());
  if (!status.present) {
    status.reason = config.mtp_layers > 0 ? "declared by the configuration, but no tensor of it is in the bundle"
                                          : "the bundle holds no MTP head";
    return status;
  }
  if (source.gguf() && config.mtp_layers == 0) {
    status.reason = "tensors are present, but the configuration declares no MTP layer";
    return status;
  }
  if (config.mtp_layers > 1) {
    const std::string second =
        source.gguf() ? source.layer(config.layers + 1) : source.mtp_prefix() + "layers.1.";
    if (!source.any_with(second)) {
      status.reason = fmt::format("the configuration declares {} MTP layers, the bundle holds one", config.mtp_layers);
      return status;
    }
    status.reason = fmt::format("heads of {} layers are not supported", config.mtp_layers);
    return status;
  }
  Loader loader(source);
  if (const auto head = loader.mtp(); !head) {
    status.reason = head.error().message;
    return status;
  }
  status.complete = true;
  status.reason = "all tensors are present";
  return status;
}

Result<MtpWeights> load_mtp(const Bundle& bundle, const ModelConfig& config, Backend& backend, PackedCache* cache) {
  const Source source(bundle, config);
  Loader check(source);
  TRY(check.mtp());
  PackedSet packed(bundle, backend, cache, "mtp", check.order());
  Loader loader(source, &packed);
  ASSIGN_OR_RETURN(MtpWeights weights, loader.mtp());
  weights.packed_file = packed.finish();
  return weights;
}

}  // namespace foretoken
