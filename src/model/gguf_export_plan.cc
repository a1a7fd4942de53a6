// The name tables of an export: Hugging Face tensors and keys of the target families and of DFlash drafters, in the
// names and layouts of a GGUF file. Source: docs/formats.md sections "GGUF for ..." and docs/model.md section 1.
#include "model/gguf_export_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "bundle/formats.h"

namespace foretoken {
namespace {

constexpr int kMaxLayers = 4096;
constexpr int64_t kMaxSize = int64_t{1} << 24;  // of any one dimension or count: products of two stay far from overflow

// ---- Numbers of a configuration. The first fault is kept; reading goes on with harmless values.

class Numbers {
 public:
  Numbers(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  const Json* find(const char* key) const {
    if (!json_.is_object()) return nullptr;
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }
  Numbers inside(const char* key) const {
    static const Json nothing;
    const Json* value = find(key);
    return Numbers(value && value->is_object() ? *value : nothing, where_);
  }
  int64_t integer(const char* key, std::optional<int64_t> fallback = std::nullopt) {
    const Json* value = find(key);
    if (!value && fallback) return *fallback;
    if (!value || !value->is_number_integer() || value->get<int64_t>() < 0 || value->get<int64_t>() > kMaxSize) {
      complain(fmt::format("\"{}\" must be a whole number from 0 to {}", key, kMaxSize));
      return 1;
    }
    return value->get<int64_t>();
  }
  int64_t positive(const char* key, std::optional<int64_t> fallback = std::nullopt) {
    const int64_t value = integer(key, fallback);
    if (value > 0) return value;
    complain(fmt::format("\"{}\" must be positive", key));
    return 1;
  }
  double number(const char* key, double fallback) {
    const Json* value = find(key);
    if (!value) return fallback;
    if (value->is_number() && std::fabs(value->get<double>()) < 1e30) return value->get<double>();
    complain(fmt::format("\"{}\" must be a number that fp32 holds", key));
    return fallback;
  }
  bool boolean(const char* key, bool fallback) const {
    const Json* value = find(key);
    return value && value->is_boolean() ? value->get<bool>() : fallback;
  }
  std::string text(const char* key) const {
    const Json* value = find(key);
    return value && value->is_string() ? value->get<std::string>() : std::string();
  }
  std::vector<int64_t> integers(const char* key) {
    std::vector<int64_t> out;
    if (const Json* value = find(key); value && value->is_array())
      for (const Json& item : *value) {
        if (item.is_number_integer() && item.get<int64_t>() >= 0 && item.get<int64_t>() <= kMaxSize)
          out.push_back(item.get<int64_t>());
        else complain(fmt::format("\"{}\" must hold whole numbers", key));
      }
    return out;
  }
  std::vector<std::string> texts(const char* key) {
    std::vector<std::string> out;
    if (const Json* value = find(key); value && value->is_array())
      for (const Json& item : *value) {
        if (item.is_string()) out.push_back(item.get<std::string>());
        else complain(fmt::format("\"{}\" must hold texts", key));
      }
    return out;
  }
  void complain(const std::string& what) {
    if (error_.empty()) error_ = fmt::format("{}: config.json: {}", where_, what);
  }
  // Takes over the fault of a part of this configuration.
  void adopt(const Numbers& part) {
    if (error_.empty()) error_ = part.error_;
  }
  Status status() const {
    if (error_.empty()) return {};
    return Error{ErrorCode::kInvalidFile, error_};
  }

 private:
  const Json& json_;
  std::string where_, error_;
};

// ---- Tensors of a folder, each used once; what nobody asked for is reported.

class Folder {
 public:
  Folder(const Bundle& bundle, ExportPlan& plan) : bundle_(bundle), plan_(plan) {}

  const TensorInfo* find(const std::string& name) const { return bundle_.find(name); }

  Result<SourceRows> rows(const std::string& name, int64_t rows, int64_t cols) {
    const TensorInfo* tensor = bundle_.find(name);
    if (!tensor)
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("{}: tensor {} is missing; the bundle is incomplete", bundle_.path().string(), name)};
    int64_t expected = 0;
    if (__builtin_mul_overflow(rows, cols, &expected) || tensor->elements() != expected)
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("{}: tensor {} has {} elements where config.json implies {} x {}; the two do not belong "
                               "together",
                               bundle_.path().string(), name, tensor->elements(), rows, cols)};
    used_.insert(tensor->name);
    return SourceRows{tensor, rows, {}};
  }

  // Adds [rows, cols] under `to`, as it is; returns the planned tensor to adjust.
  Result<PlannedTensor*> matrix(std::string to, const std::string& from, int64_t rows, int64_t cols) {
    ASSIGN_OR_RETURN(SourceRows part, this->rows(from, rows, cols));
    return &plan_.tensors.emplace_back(
        PlannedTensor{std::move(to), {rows, cols}, {std::move(part)}, {}, ElementMap::kNone, false});
  }
  Result<PlannedTensor*> vector(std::string to, const std::string& from, int64_t size) {
    ASSIGN_OR_RETURN(PlannedTensor * tensor, matrix(std::move(to), from, 1, size));
    tensor->shape = {size};
    return tensor;
  }
  Status norm(std::string to, const std::string& from, int64_t size, bool zero_centred) {
    ASSIGN_OR_RETURN(PlannedTensor * tensor, vector(std::move(to), from, size));
    if (zero_centred) tensor->map = ElementMap::kPlusOne;
    return {};
  }

  // What happens to the tensors below `prefix`, if there are any.
  void leave_out(std::string_view prefix, std::string_view why) {
    int64_t count = 0;
    for (const TensorInfo& tensor : bundle_.tensors())
      if (tensor.name.starts_with(prefix) && used_.insert(tensor.name).second) ++count;
    if (count > 0) plan_.notes.push_back(fmt::format("{} tensors {}* are left out: {}", count, prefix, why));
  }
  void note_unused() {
    int64_t count = 0;
    std::string first;
    for (const TensorInfo& tensor : bundle_.tensors())
      if (!used_.contains(tensor.name) && count++ == 0) first = tensor.name;
    if (count > 0)
      plan_.notes.push_back(
          fmt::format("{} tensors have no place in the file and are left out, {} first", count, printable(first)));
  }
  void forget(const std::string& name) { used_.insert(name); }

  const Bundle& bundle() const { return bundle_; }
  ExportPlan& plan() { return plan_; }

 private:
  const Bundle& bundle_;
  ExportPlan& plan_;
  std::set<std::string, std::less<>> used_;
};

bool is_zero_centred(const TensorInfo* norm) {
  if (!norm || !norm->format) return true;
  std::vector<float> values(static_cast<size_t>(norm->elements()));
  dequantize(*norm->format, norm->data, values);
  return std::accumulate(values.begin(), values.end(), 0.0) < 0.5 * static_cast<double>(values.size());
}

std::string folder_name(const Bundle& bundle) {
  std::error_code error;
  const std::filesystem::path full = std::filesystem::canonical(bundle.path(), error);
  return (error ? bundle.path() : full).filename().string();
}

void begin_metadata(const Bundle& bundle, std::string_view architecture, ExportPlan& plan) {
  plan.set("general.architecture", GgufValue::text(plan.keep(std::string(architecture))));
  plan.set("general.type", GgufValue::text("model"));
  plan.set("general.name", GgufValue::text(plan.keep(folder_name(bundle))));
}

// ---- Target models.

struct DeltaSizes {
  int64_t key_heads, value_heads, key_dim, value_dim, kernel;
  int64_t ratio() const { return value_heads / key_heads; }
  int64_t key_columns() const { return key_heads * key_dim; }
  int64_t value_columns() const { return value_heads * value_dim; }
  int64_t channels() const { return 2 * key_columns() + value_columns(); }
};

enum class TargetKind : uint8_t { kDense, kSparse, kNext };

class TargetPlanner {
 public:
  TargetPlanner(Folder& folder, Numbers outer, Numbers text, TargetKind kind)
      : folder_(folder), outer_(std::move(outer)), c_(std::move(text)), kind_(kind) {}

  Status run() {
    read_sizes();
    TRY(c_.status());
    TRY(find_prefixes());
    keys();
    TRY(c_.status());
    TRY(trunk());
    TRY(mtp());
    for (const char* prefix : {"model.visual.", "visual.", "vision_tower.", "model.vision_tower."})
      folder_.leave_out(prefix, "a GGUF file of the text model holds no vision tower");
    folder_.note_unused();
    return plan_tokenizer(folder_.bundle(), vocab_, plan());
  }

 private:
  ExportPlan& plan() { return folder_.plan(); }
  std::string_view architecture() const {
    return kind_ == TargetKind::kNext ? "qwen3next" : kind_ == TargetKind::kSparse ? "qwen35moe" : "qwen35";
  }
  bool is_attention(int64_t layer) const { return attention_[static_cast<size_t>(layer)]; }

  void read_sizes() {
    layers_ = c_.positive("num_hidden_layers");
    if (layers_ > kMaxLayers) c_.complain(fmt::format("\"num_hidden_layers\" must be at most {}", kMaxLayers));
    layers_ = std::min<int64_t>(layers_, kMaxLayers);
    hidden_ = c_.positive("hidden_size");
    query_heads_ = c_.positive("num_attention_heads");
    kv_heads_ = c_.positive("num_key_value_heads");
    head_dim_ = c_.positive("head_dim", 256);
    delta_ = {c_.positive("linear_num_key_heads"), c_.positive("linear_num_value_heads"),
              c_.positive("linear_key_head_dim", 128), c_.positive("linear_value_head_dim", 128),
              c_.positive("linear_conv_kernel_dim", 4)};
    if (delta_.value_heads % delta_.key_heads != 0)
      c_.complain("\"linear_num_value_heads\" must be a multiple of \"linear_num_key_heads\"");
    if (delta_.key_dim != delta_.value_dim)
      c_.complain("\"linear_key_head_dim\" and \"linear_value_head_dim\" differ, which a GGUF file cannot say");
    if (c_.text("output_gate_type") == "sigmoid")
      c_.complain("\"output_gate_type\" sigmoid cannot be said in a GGUF file");
    interval_ = c_.positive("full_attention_interval", 4);
    for (int64_t i = 0; i < layers_; ++i) attention_.push_back((i + 1) % interval_ == 0);
    const auto types = c_.texts("layer_types");
    if (!types.empty() && types.size() != attention_.size()) c_.complain("\"layer_types\" must name every layer");
    for (size_t i = 0; i < types.size() && i < attention_.size(); ++i) {
      const bool attention = types[i] == "full_attention";
      if (attention != attention_[i]) is_regular_ = false;
      attention_[i] = attention;
    }
    if (kind_ != TargetKind::kDense) {
      experts_ = c_.positive("num_experts");
      expert_width_ = c_.positive("moe_intermediate_size");
      shared_width_ = c_.integer("shared_expert_intermediate_size", 0);
    }
    ffn_width_ = kind_ == TargetKind::kDense ? c_.positive("intermediate_size") : c_.integer("intermediate_size", 0);
  }

  Status find_prefixes() {
    for (const char* prefix : {"model.language_model.", "language_model.model.", "model."})
      if (folder_.find(std::string(prefix) + "embed_tokens.weight")) {
        prefix_ = prefix;
        break;
      }
    if (prefix_.empty())
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("{}: no tensor *embed_tokens.weight; this is not a Qwen3.5 or Qwen3-Next text model",
                               folder_.bundle().path().string())};
    const TensorInfo* embedding = folder_.find(prefix_ + "embed_tokens.weight");
    vocab_ = embedding->elements() / hidden_;
    for (const char* name : {"lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight"})
      if (folder_.find(name)) head_ = name;
    const bool declared_tied = outer_.boolean("tie_word_embeddings", c_.boolean("tie_word_embeddings", false));
    if (declared_tied && !head_.empty()) {
      folder_.forget(head_);
      head_.clear();
    }
    for (const char* prefix : {"mtp.", "model.mtp.", "language_model.mtp."})
      if (folder_.find(std::string(prefix) + "fc.weight")) mtp_ = prefix;
    // Converted checkpoints hold the convolution as [channels, kernel, 1] and norms with 1 already added.
    for (int64_t i = 0; i < layers_; ++i)
      if (const TensorInfo* conv = folder_.find(fmt::format("{}layers.{}.linear_attn.conv1d.weight", prefix_, i))) {
        zero_centred_ =
            !(conv->shape.size() == 3 && conv->shape[2] == 1 && conv->shape[1] == delta_.kernel && delta_.kernel > 1);
        break;
      }
    return {};
  }

  // ---- Keys

  void set(const std::string& key, GgufValue value) {
    plan().set(fmt::format("{}.{}", architecture(), key), std::move(value));
  }
  void set_u32(const std::string& key, int64_t value) { set(key, GgufValue::u32(static_cast<uint32_t>(value))); }

  void keys() {
    begin_metadata(folder_.bundle(), architecture(), plan());
    const bool has_mtp = !mtp_.empty();
    set_u32("block_count", layers_ + (has_mtp ? 1 : 0));
    set_u32("context_length", c_.positive("max_position_embeddings", 262144));
    set_u32("embedding_length", hidden_);
    if (ffn_width_ > 0) set_u32("feed_forward_length", ffn_width_);
    set_u32("vocab_size", vocab_);
    set_u32("attention.head_count", query_heads_);
    set_u32("attention.head_count_kv", kv_heads_);
    set_u32("attention.key_length", head_dim_);
    set_u32("attention.value_length", head_dim_);
    set("attention.layer_norm_rms_epsilon", GgufValue::f32(static_cast<float>(c_.number("rms_norm_eps", 1e-6))));
    rope_keys();
    set_u32("full_attention_interval", interval_);
    if (!is_regular_) {
      std::vector<bool> recurrent;
      for (const bool attention : attention_) recurrent.push_back(!attention);
      if (has_mtp) recurrent.push_back(false);
      set("attention.recurrent_layers", GgufValue::bools(std::move(recurrent)));
    }
    set_u32("ssm.conv_kernel", delta_.kernel);
    set_u32("ssm.state_size", delta_.key_dim);
    set_u32("ssm.group_count", delta_.key_heads);
    set_u32("ssm.time_step_rank", delta_.value_heads);
    set_u32("ssm.inner_size", delta_.value_columns());
    if (has_mtp) set_u32("nextn_predict_layers", 1);
    if (kind_ == TargetKind::kDense) return;
    set_u32("expert_count", experts_);
    set_u32("expert_used_count", c_.positive("num_experts_per_tok"));
    set_u32("expert_feed_forward_length", expert_width_);
    if (shared_width_ > 0) set_u32("expert_shared_feed_forward_length", shared_width_);
  }

  void rope_keys() {
    Numbers rope = c_.inside("rope_parameters"), scaling = c_.inside("rope_scaling");
    set("rope.freq_base", GgufValue::f32(static_cast<float>(rope.number("rope_theta", c_.number("rope_theta", 1e7)))));
    const double partial = rope.number("partial_rotary_factor", c_.number("partial_rotary_factor", 0.25));
    if (!(partial > 0 && partial <= 1)) c_.complain("\"partial_rotary_factor\" must be above 0 and at most 1");
    const int64_t rotary = static_cast<int64_t>(static_cast<double>(head_dim_) * std::clamp(partial, 0.0, 1.0));
    set_u32("rope.dimension_count", rotary);
    if (kind_ != TargetKind::kNext) {
      auto sections = rope.integers("mrope_section");
      if (sections.empty()) sections = scaling.integers("mrope_section");
      if (sections.empty()) sections = {11, 11, 10};
      if (sections.size() != 3 || 2 * (sections[0] + sections[1] + sections[2]) != rotary)
        c_.complain(fmt::format(
            "\"mrope_section\" must be three numbers that add up to half of the {} rotary dimensions", rotary));
      sections.push_back(0);
      set("rope.dimension_sections", GgufValue::i32s(std::move(sections)));
    }
    c_.adopt(rope);
    c_.adopt(scaling);
    Numbers& yarn = rope.find("factor") ? rope : scaling;
    std::string type = yarn.text("rope_type");
    if (type.empty()) type = yarn.text("type");
    if (type != "yarn") return;
    set("rope.scaling.type", GgufValue::text("yarn"));
    set("rope.scaling.factor", GgufValue::f32(static_cast<float>(yarn.number("factor", 1))));
    set_u32("rope.scaling.original_context_length", yarn.positive("original_max_position_embeddings", 262144));
    for (const char* key : {"beta_fast", "beta_slow"})
      if (yarn.find(key))
        set(fmt::format("rope.scaling.yarn_{}", key), GgufValue::f32(static_cast<float>(yarn.number(key, 1))));
  }

  // ---- Tensors

  Status trunk() {
    TRY(folder_.matrix("token_embd.weight", prefix_ + "embed_tokens.weight", vocab_, hidden_));
    TRY(folder_.norm("output_norm.weight", prefix_ + "norm.weight", hidden_, zero_centred_));
    if (!head_.empty()) TRY(folder_.matrix("output.weight", head_, vocab_, hidden_));
    for (int64_t i = 0; i < layers_; ++i)
      TRY(layer(fmt::format("blk.{}.", i), fmt::format("{}layers.{}.", prefix_, i), is_attention(i), zero_centred_));
    return {};
  }

  Status layer(const std::string& to, const std::string& from, bool attention, bool zero_centred) {
    TRY(folder_.norm(to + "attn_norm.weight", from + "input_layernorm.weight", hidden_, zero_centred));
    TRY(folder_.norm(to + "post_attention_norm.weight", from + "post_attention_layernorm.weight", hidden_,
                     zero_centred));
    TRY(attention ? attention_mixer(to, from + "self_attn.", zero_centred) : delta_mixer(to, from + "linear_attn."));
    return folder_.find(from + "mlp.gate.weight") ? sparse_ffn(to, from + "mlp.")
                                                  : dense_ffn(to + "ffn_", from + "mlp.", ffn_width_, "");
  }

  Status attention_mixer(const std::string& to, const std::string& from, bool zero_centred) {
    const int64_t query = query_heads_ * head_dim_, kv = kv_heads_ * head_dim_;
    TRY(folder_.matrix(to + "attn_q.weight", from + "q_proj.weight", 2 * query, hidden_));
    TRY(folder_.matrix(to + "attn_k.weight", from + "k_proj.weight", kv, hidden_));
    TRY(folder_.matrix(to + "attn_v.weight", from + "v_proj.weight", kv, hidden_));
    TRY(folder_.matrix(to + "attn_output.weight", from + "o_proj.weight", hidden_, query));
    TRY(folder_.norm(to + "attn_q_norm.weight", from + "q_norm.weight", head_dim_, zero_centred));
    return folder_.norm(to + "attn_k_norm.weight", from + "k_norm.weight", head_dim_, zero_centred);
  }

  // Value heads: ours and GGUF's index j * key_heads + kh is Hugging Face's kh * ratio + j. Each head is `width` wide
  // and the first `fixed` indices stay in place. Qwen3-Next keeps the grouped order in its files.
  std::vector<int64_t> head_order(int64_t width, int64_t fixed = 0) const {
    std::vector<int64_t> order(static_cast<size_t>(fixed));
    std::iota(order.begin(), order.end(), 0);
    if (kind_ == TargetKind::kNext || delta_.ratio() == 1) return {};
    for (int64_t j = 0; j < delta_.ratio(); ++j)
      for (int64_t kh = 0; kh < delta_.key_heads; ++kh)
        for (int64_t i = 0; i < width; ++i) order.push_back(fixed + (kh * delta_.ratio() + j) * width + i);
    return order;
  }

  // Rows whose value heads are `width` rows each after `fixed` rows. The order is made after the size was checked.
  Status tiled_rows(std::string to, const std::string& from, int64_t rows, int64_t cols, int64_t width,
                    int64_t fixed = 0) {
    ASSIGN_OR_RETURN(PlannedTensor * tensor, folder_.matrix(std::move(to), from, rows, cols));
    tensor->parts[0].order = head_order(width, fixed);
    return {};
  }

  Status reordered_vector(std::string to, const std::string& from, ElementMap map) {
    ASSIGN_OR_RETURN(PlannedTensor * tensor, folder_.vector(std::move(to), from, delta_.value_heads));
    for (const int64_t i : head_order(1)) tensor->column_order.push_back(static_cast<int32_t>(i));
    tensor->map = map;
    return {};
  }

  Status delta_mixer(const std::string& to, const std::string& from) {
    const int64_t value = delta_.value_columns(), keys = 2 * delta_.key_columns(), width = delta_.value_dim;
    if (kind_ == TargetKind::kNext) {
      TRY(next_projections(to, from));
    } else {
      TRY(tiled_rows(to + "attn_qkv.weight", from + "in_proj_qkv.weight", delta_.channels(), hidden_, width, keys));
      TRY(tiled_rows(to + "attn_gate.weight", from + "in_proj_z.weight", value, hidden_, width));
      TRY(tiled_rows(to + "ssm_beta.weight", from + "in_proj_b.weight", delta_.value_heads, hidden_, 1));
      TRY(tiled_rows(to + "ssm_alpha.weight", from + "in_proj_a.weight", delta_.value_heads, hidden_, 1));
    }
    TRY(tiled_rows(to + "ssm_conv1d.weight", from + "conv1d.weight", delta_.channels(), delta_.kernel, width, keys));
    TRY(reordered_vector(to + "ssm_dt.bias", from + "dt_bias", ElementMap::kNone));
    TRY(reordered_vector(to + "ssm_a", from + "A_log", ElementMap::kDecayRate));
    TRY(folder_.vector(to + "ssm_norm.weight", from + "norm.weight", delta_.value_dim));
    ASSIGN_OR_RETURN(PlannedTensor * out,
                     folder_.matrix(to + "ssm_out.weight", from + "out_proj.weight", hidden_, value));
    for (const int64_t i : head_order(width)) out->column_order.push_back(static_cast<int32_t>(i));
    return {};
  }

  // Qwen3-Next stores, per key head, [q | k | v of its value heads | z of them] in one matrix and [b | a] in another. A
  // file holds q, k, v of all heads and z of all heads; b and a stay as they are.
  Status next_projections(const std::string& to, const std::string& from) {
    const int64_t values = delta_.ratio() * delta_.value_dim;
    const int64_t block = 2 * delta_.key_dim + 2 * values;
    ASSIGN_OR_RETURN(const SourceRows fused,
                     folder_.rows(from + "in_proj_qkvz.weight", delta_.key_heads * block, hidden_));
    const auto take = [&](std::vector<int64_t>& order, int64_t offset, int64_t width) {
      for (int64_t kh = 0; kh < delta_.key_heads; ++kh)
        for (int64_t i = 0; i < width; ++i) order.push_back(kh * block + offset + i);
    };
    std::vector<int64_t> qkv, z;
    take(qkv, 0, delta_.key_dim);
    take(qkv, delta_.key_dim, delta_.key_dim);
    take(qkv, 2 * delta_.key_dim, values);
    take(z, 2 * delta_.key_dim + values, values);
    const auto add = [&](std::string name, std::vector<int64_t> order) {
      const int64_t rows = static_cast<int64_t>(order.size());
      plan().tensors.push_back(
          {std::move(name), {rows, hidden_}, {{fused.tensor, rows, std::move(order)}}, {}, ElementMap::kNone, false});
    };
    add(to + "attn_qkv.weight", std::move(qkv));
    add(to + "attn_gate.weight", std::move(z));
    TRY(folder_.matrix(to + "ssm_ba.weight", from + "in_proj_ba.weight", 2 * delta_.value_heads, hidden_));
    return {};
  }

  Status dense_ffn(const std::string& to, const std::string& from, int64_t width, const std::string& suffix) {
    TRY(folder_.matrix(fmt::format("{}gate{}.weight", to, suffix), from + "gate_proj.weight", width, hidden_));
    TRY(folder_.matrix(fmt::format("{}up{}.weight", to, suffix), from + "up_proj.weight", width, hidden_));
    TRY(folder_.matrix(fmt::format("{}down{}.weight", to, suffix), from + "down_proj.weight", hidden_, width));
    return {};
  }

  Status sparse_ffn(const std::string& to, const std::string& from) {
    TRY(folder_.matrix(to + "ffn_gate_inp.weight", from + "gate.weight", experts_, hidden_));
    if (shared_width_ > 0) {
      TRY(folder_.vector(to + "ffn_gate_inp_shexp.weight", from + "shared_expert_gate.weight", hidden_));
      TRY(dense_ffn(to + "ffn_", from + "shared_expert.", shared_width_, "_shexp"));
    }
    const std::string fused = from + "experts.gate_up_proj";
    if (folder_.find(fused)) {
      ASSIGN_OR_RETURN(const SourceRows both, folder_.rows(fused, experts_ * 2 * expert_width_, hidden_));
      for (const int64_t half : {0, 1}) {
        std::vector<int64_t> order;
        for (int64_t e = 0; e < experts_; ++e)
          for (int64_t i = 0; i < expert_width_; ++i) order.push_back((2 * e + half) * expert_width_ + i);
        add_experts(to + (half == 0 ? "ffn_gate_exps.weight" : "ffn_up_exps.weight"), expert_width_, hidden_,
                    {{both.tensor, experts_ * expert_width_, std::move(order)}});
      }
      ASSIGN_OR_RETURN(SourceRows down, folder_.rows(from + "experts.down_proj", experts_ * hidden_, expert_width_));
      add_experts(to + "ffn_down_exps.weight", hidden_, expert_width_, {std::move(down)});
      return {};
    }
    for (const char* role : {"gate", "up", "down"}) {
      const bool is_down = std::string_view(role) == "down";
      const int64_t rows = is_down ? hidden_ : expert_width_, cols = is_down ? expert_width_ : hidden_;
      std::vector<SourceRows> parts;
      if (const std::string bank = fmt::format("{}switch_mlp.{}_proj.weight", from, role); folder_.find(bank)) {
        ASSIGN_OR_RETURN(SourceRows part, folder_.rows(bank, experts_ * rows, cols));
        parts.push_back(std::move(part));
      }
      for (int64_t e = 0; parts.empty() || (e > 0 && e < experts_); ++e) {
        ASSIGN_OR_RETURN(SourceRows part,
                         folder_.rows(fmt::format("{}experts.{}.{}_proj.weight", from, e, role), rows, cols));
        parts.push_back(std::move(part));
      }
      add_experts(fmt::format("{}ffn_{}_exps.weight", to, role), rows, cols, std::move(parts));
    }
    return {};
  }

  void add_experts(std::string name, int64_t rows, int64_t cols, std::vector<SourceRows> parts) {
    plan().tensors.push_back({std::move(name), {experts_, rows, cols}, std::move(parts), {}, ElementMap::kNone, false});
  }

  // The native draft head is one more block. Whether 1 was added to its norms differs between checkpoints: their mean
  // tells.
  Status mtp() {
    if (mtp_.empty()) {
      for (const char* prefix : {"mtp.", "model.mtp."}) folder_.leave_out(prefix, "the head has no fc.weight");
      return {};
    }
    const std::string to = fmt::format("blk.{}.", layers_);
    const bool zero_centred = is_zero_centred(folder_.find(mtp_ + "layers.0.input_layernorm.weight"));
    TRY(layer(to, mtp_ + "layers.0.", true, zero_centred));
    TRY(folder_.matrix(to + "nextn.eh_proj.weight", mtp_ + "fc.weight", hidden_, 2 * hidden_));
    TRY(folder_.norm(to + "nextn.enorm.weight", mtp_ + "pre_fc_norm_embedding.weight", hidden_, zero_centred));
    TRY(folder_.norm(to + "nextn.hnorm.weight", mtp_ + "pre_fc_norm_hidden.weight", hidden_, zero_centred));
    TRY(folder_.norm(to + "nextn.shared_head_norm.weight", mtp_ + "norm.weight", hidden_, zero_centred));
    return {};
  }

  Folder& folder_;
  Numbers outer_, c_;
  TargetKind kind_;
  int64_t layers_ = 0, hidden_ = 0, vocab_ = 0, query_heads_ = 0, kv_heads_ = 0, head_dim_ = 0, interval_ = 4;
  int64_t ffn_width_ = 0, experts_ = 0, expert_width_ = 0, shared_width_ = 0;
  DeltaSizes delta_{};
  std::vector<bool> attention_;
  bool is_regular_ = true;    // layer_types is what the interval says
  bool zero_centred_ = true;  // norms are stored without their 1
  std::string prefix_, head_, mtp_;
};

// ---- DFlash drafters: no embedding and no head of their own, plain norms.

class DrafterPlanner {
 public:
  DrafterPlanner(Folder& folder, Numbers config)
      : folder_(folder), c_(std::move(config)), d_(c_.inside("dflash_config")) {}

  Status run() {
    layers_ = c_.positive("num_hidden_layers");
    if (layers_ > kMaxLayers) c_.complain(fmt::format("\"num_hidden_layers\" must be at most {}", kMaxLayers));
    layers_ = std::min<int64_t>(layers_, kMaxLayers);
    hidden_ = c_.positive("hidden_size");
    width_ = c_.positive("intermediate_size");
    query_heads_ = c_.positive("num_attention_heads");
    kv_heads_ = c_.positive("num_key_value_heads");
    head_dim_ = c_.positive("head_dim", std::max<int64_t>(1, hidden_ / query_heads_));
    vocab_ = c_.positive("vocab_size");
    targets_ = d_.integers("target_layer_ids");
    if (targets_.empty()) targets_ = default_targets();
    is_second_ = folder_.find("candidate_selector.hidden_projection.weight") != nullptr;
    TRY(c_.status());
    keys();
    TRY(c_.status());
    TRY(d_.status());
    TRY(tensors());
    folder_.note_unused();
    return tokenizer();
  }

 private:
  ExportPlan& plan() { return folder_.plan(); }

  // A drafter has its target's tokenizer. Programs that ask a tokenizer for the mask token find it where the drafter lies in its
  // target's folder.
  Status tokenizer() {
    const auto around = Bundle::open(folder_.bundle().path() / "..");
    if (around && around->format() == BundleFormat::kSafetensors && around->side_file("tokenizer.json"))
      return plan_tokenizer(*around, vocab_, plan());
    plan().set("tokenizer.ggml.model", GgufValue::text("none"));
    return {};
  }
  void set(const std::string& key, GgufValue value) { plan().set("dflash." + key, std::move(value)); }
  void set_u32(const std::string& key, int64_t value) { set(key, GgufValue::u32(static_cast<uint32_t>(value))); }

  // Evenly spread from the second layer to the third from the end.
  std::vector<int64_t> default_targets() {
    const int64_t trunk = c_.positive("num_target_layers");
    if (layers_ == 1) return {trunk / 2};
    std::vector<int64_t> out;
    for (int64_t i = 0; i < layers_; ++i)
      out.push_back(static_cast<int64_t>(1.5 + static_cast<double>(i) * static_cast<double>(trunk - 4) /
                                                   static_cast<double>(layers_ - 1)));
    return out;
  }

  void keys() {
    begin_metadata(folder_.bundle(), "dflash", plan());
    Numbers rope = c_.inside("rope_parameters");
    set_u32("block_count", layers_);
    set_u32("context_length", c_.positive("max_position_embeddings", 262144));
    set_u32("embedding_length", hidden_);
    set_u32("feed_forward_length", width_);
    set_u32("vocab_size", vocab_);
    set_u32("attention.head_count", query_heads_);
    set_u32("attention.head_count_kv", kv_heads_);
    set_u32("attention.key_length", head_dim_);
    set_u32("attention.value_length", head_dim_);
    set("attention.layer_norm_rms_epsilon", GgufValue::f32(static_cast<float>(c_.number("rms_norm_eps", 1e-6))));
    set("rope.freq_base", GgufValue::f32(static_cast<float>(rope.number("rope_theta", c_.number("rope_theta", 1e7)))));
    set_u32("rope.dimension_count", head_dim_);
    c_.adopt(rope);
    std::vector<bool> sliding;
    for (const std::string& type : c_.texts("layer_types")) sliding.push_back(type == "sliding_attention");
    if (!sliding.empty() && sliding.size() != static_cast<size_t>(layers_))
      c_.complain("\"layer_types\" must name every layer");
    const bool slides = std::find(sliding.begin(), sliding.end(), true) != sliding.end();
    // Without a word about it, a layer with a window is causal inside the block and a full one is not.
    const bool causal = c_.find("is_causal") ? c_.boolean("is_causal", false)
                        : d_.find("causal")  ? d_.boolean("causal", false)
                                             : slides;
    set("attention.causal", GgufValue::boolean(causal));
    if (slides) {
      set_u32("attention.sliding_window", c_.positive("sliding_window"));
      set("attention.sliding_window_pattern", GgufValue::bools(sliding));
    }
    set_u32("block_size", d_.positive("block_size", c_.positive("block_size", 16)));
    std::vector<int64_t> inputs;  // counted as the layer that reads the vector, not the one that made it
    for (const int64_t layer : targets_) inputs.push_back(layer + 1);
    set("target_layers", GgufValue::i32s(std::move(inputs)));
    if (is_second_) {
      set_u32("conv_kernel_size", taps());
      set_u32("conv_group_size", group());
      set_u32("selector_rank", rank());
      set_u32("selector_top_k", d_.positive("selector_top_k", 16));
    }
    const auto set_factor = [&](const char* key, const char* from, double neutral) {
      if (const double value = d_.number(from, neutral); value != neutral)
        set(key, GgufValue::f32(static_cast<float>(value)));
    };
    set_factor("embedding_scale", "input_embedding_scale", 1);
    set_factor("logit_scale", "output_multiplier", 1);
    set_factor("final_logit_softcapping", "final_logit_softcapping", 0);
    plan().set("tokenizer.ggml.mask_token_id", GgufValue::u32(static_cast<uint32_t>(d_.integer("mask_token_id"))));
  }

  int64_t taps() { return d_.positive("conv_kernel_size", 2); }
  int64_t group() { return d_.positive("conv_group_size", 16); }
  int64_t rank() { return d_.positive("selector_rank", 256); }

  Status tensors() {
    const auto matrix = [&](std::string to, const std::string& from, int64_t rows, int64_t cols) -> Status {
      TRY(folder_.matrix(std::move(to), from, rows, cols));
      return {};
    };
    const auto norm = [&](std::string to, const std::string& from, int64_t size) {
      return folder_.norm(std::move(to), from, size, false);
    };
    TRY(matrix("fc.weight", "fc.weight", hidden_, static_cast<int64_t>(targets_.size()) * hidden_));
    TRY(norm("enc.output_norm.weight", "hidden_norm.weight", hidden_));
    TRY(norm("output_norm.weight", "norm.weight", hidden_));
    for (int64_t i = 0; i < layers_; ++i) {
      const std::string to = fmt::format("blk.{}.", i), from = fmt::format("layers.{}.", i), a = from + "self_attn.";
      const int64_t query = query_heads_ * head_dim_, kv = kv_heads_ * head_dim_;
      TRY(norm(to + "attn_norm.weight", from + "input_layernorm.weight", hidden_));
      TRY(matrix(to + "attn_q.weight", a + "q_proj.weight", query, hidden_));
      TRY(matrix(to + "attn_k.weight", a + "k_proj.weight", kv, hidden_));
      TRY(matrix(to + "attn_v.weight", a + "v_proj.weight", kv, hidden_));
      TRY(matrix(to + "attn_output.weight", a + "o_proj.weight", hidden_, query));
      TRY(norm(to + "attn_q_norm.weight", a + "q_norm.weight", head_dim_));
      TRY(norm(to + "attn_k_norm.weight", a + "k_norm.weight", head_dim_));
      TRY(norm(to + "ffn_norm.weight", from + "post_attention_layernorm.weight", hidden_));
      TRY(matrix(to + "ffn_gate.weight", from + "mlp.gate_proj.weight", width_, hidden_));
      TRY(matrix(to + "ffn_up.weight", from + "mlp.up_proj.weight", width_, hidden_));
      TRY(matrix(to + "ffn_down.weight", from + "mlp.down_proj.weight", hidden_, width_));
      if (!is_second_) continue;
      TRY(convolution(to + "attn_conv", from + "attention_conv"));
      TRY(convolution(to + "ffn_conv", from + "mlp_conv"));
    }
    if (is_second_) {
      TRY(matrix("selector_hidden.weight", "candidate_selector.hidden_projection.weight", rank(), hidden_));
      TRY(matrix("selector_predecessor.weight", "candidate_selector.predecessor_codebook", vocab_, rank()));
      TRY(matrix("selector_successor.weight", "candidate_selector.successor_codebook", vocab_, rank()));
    }
    return markov_head();
  }

  Status convolution(const std::string& to, const std::string& from) {
    const int64_t groups = hidden_ / group();
    ASSIGN_OR_RETURN(PlannedTensor * base, folder_.matrix(to + "_base", from + ".base_kernel", 2 * taps(), hidden_));
    base->shape = {2, taps(), hidden_};
    TRY(folder_.matrix(to + "_proj.weight", from + ".kernel_projection.weight", 2 * taps() * groups, hidden_));
    return {};
  }

  // DSpark's additions: a head over the previous token, a confidence row, a reduced vocabulary.
  Status markov_head() {
    const TensorInfo* first = folder_.find("markov_head.markov_w1.weight");
    if (!first) return {};
    const int64_t markov_rank = first->cols();
    TRY(folder_.matrix("markov_w1.weight", "markov_head.markov_w1.weight", first->rows(), markov_rank));
    if (const TensorInfo* second = folder_.find("markov_head.markov_w2.weight"))
      TRY(folder_.matrix("markov_w2.weight", "markov_head.markov_w2.weight", second->rows(), markov_rank));
    if (folder_.find("confidence_head.proj.weight"))
      TRY(folder_.matrix("conf_proj.weight", "confidence_head.proj.weight", 1, hidden_ + markov_rank));
    if (folder_.find("confidence_head.proj.bias"))
      TRY(folder_.vector("conf_proj.bias", "confidence_head.proj.bias", 1));
    if (const TensorInfo* map = folder_.find("d2t")) {
      ASSIGN_OR_RETURN(PlannedTensor * planned, folder_.vector("d2t", "d2t", map->elements()));
      planned->verbatim = !map->format;
    }
    return {};
  }

  Folder& folder_;
  Numbers c_, d_;
  int64_t layers_ = 0, hidden_ = 0, width_ = 0, query_heads_ = 0, kv_heads_ = 0, head_dim_ = 0, vocab_ = 0;
  std::vector<int64_t> targets_;
  bool is_second_ = false;
};

}  // namespace

Result<ExportPlan> plan_from_folder(const Bundle& bundle) {
  ExportPlan plan;
  Folder folder(bundle, plan);
  const std::string where = bundle.path().string();
  Numbers outer(bundle.config(), where);
  const auto architectures = outer.texts("architectures");
  const std::string architecture = architectures.empty() ? "" : architectures[0];
  if (architecture.starts_with("DFlash") || architecture.starts_with("DSpark") || outer.find("dflash_config")) {
    TRY(DrafterPlanner(folder, outer).run());
    return plan;
  }
  const Numbers text = outer.find("text_config") ? outer.inside("text_config") : outer;
  const std::string type = text.text("model_type");
  std::optional<TargetKind> kind;
  if (type == "qwen3_5" || type == "qwen3_5_text") kind = TargetKind::kDense;
  if (type == "qwen3_5_moe" || type == "qwen3_5_moe_text") kind = TargetKind::kSparse;
  if (type == "qwen3_next") kind = TargetKind::kNext;
  if (!kind)
    return Error{
        ErrorCode::kUnsupported,
        fmt::format("{}: model type {} cannot be exported; qwen3_5, qwen3_5_moe, qwen3_next and DFlash drafters can",
                    where, printable(type.empty() ? architecture : type))};
  TRY(TargetPlanner(folder, outer, text, *kind).run());
  return plan;
}

Result<ExportPlan> plan_from_gguf(const Bundle& bundle) {
  // Which tensors must stay exact is known for these families only.
  constexpr std::string_view kKnown[] = {"qwen35", "qwen35moe", "qwen3next", "dflash"};
  const auto key = bundle.metadata().find("general.architecture");
  const std::string_view architecture = key == bundle.metadata().end() ? "" : key->second.as_text().value_or("");
  if (std::find(std::begin(kKnown), std::end(kKnown), architecture) == std::end(kKnown))
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{}: architecture {} cannot be requantised; qwen35, qwen35moe, qwen3next and dflash can",
                             bundle.path().string(), printable(architecture))};
  ExportPlan plan;
  for (const auto& [key, value] : bundle.metadata()) {
    const bool is_replaced = key == "general.file_type" || key == "general.quantization_version" ||
                             key == "general.alignment" || key.starts_with("split.");
    if (!is_replaced) plan.set(key, value);
  }
  for (const TensorInfo& tensor : bundle.tensors()) {
    PlannedTensor planned;
    planned.name = tensor.name;
    planned.shape = tensor.shape;
    planned.verbatim = !tensor.format && tensor.stored_type.starts_with("I") && !tensor.stored_type.starts_with("IQ");
    if (planned.shape.empty()) planned.shape = {1};
    planned.parts.push_back({&tensor, planned.rows(), {}});
    plan.tensors.push_back(std::move(planned));
  }
  return plan;
}

}  // namespace foretoken
