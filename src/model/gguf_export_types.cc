// Which format each tensor of an export gets.
#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>

#include "model/gguf_export.h"
#include "model/gguf_export_plan.h"

namespace foretoken {
namespace {

constexpr ExportType kTypes[] = {
    {"F32", QuantFormat::kF32, false, 0},     {"F16", QuantFormat::kF16, false, 1},
    {"BF16", QuantFormat::kBF16, false, 32},  {"Q8_0", QuantFormat::kQ8_0, false, 7},
    {"Q6_K", QuantFormat::kQ6_K, false, 18},  {"Q5_K", QuantFormat::kQ5_K, false, 16},
    {"Q5_K_M", QuantFormat::kQ5_K, true, 17}, {"Q4_K", QuantFormat::kQ4_K, false, 14},
    {"Q4_K_M", QuantFormat::kQ4_K, true, 15}, {"IQ4_XS", QuantFormat::kIQ4_XS, false, 30},
};

constexpr auto kNames = [] {
  std::array<std::string_view, std::size(kTypes)> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kTypes[i].name;
  return names;
}();

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Small or numerically delicate parameters stay fp32: norms, convolutions, decay, biases, routers and single rows.
bool stays_f32(const PlannedTensor& tensor) {
  const std::string_view name = tensor.name;
  return tensor.shape.size() < 2 || tensor.rows() < 2 || !name.ends_with(".weight") || name.ends_with("_norm.weight") ||
         contains(name, "ssm_conv1d") || contains(name, "ffn_gate_inp");
}

// The first of `wanted`, Q8_0, F16 whose blocks fill the rows.
QuantFormat that_fits(QuantFormat wanted, int64_t cols) {
  for (const QuantFormat format : {wanted, QuantFormat::kQ8_0})
    if (cols % format_info(format).block_elements == 0) return format;
  return QuantFormat::kF16;
}

// The mixes, by what a byte buys in each role. Measured on demo-dense: divergence from the fp32 model removed per KiB
// when one role alone goes from Q4_K to Q6_K, in units of 1e-6 nats: attn_v 65, ssm_out 11, tied embedding 8, attn_k 6,
// attn_output 6, attn_q 3.5, attn_qkv 3, ffn_down and ffn_gate 2.6, ffn_up and attn_gate 2. Half of that step, Q5_K,
// removes three quarters.
QuantFormat mixed_format(const ExportType& type, const PlannedTensor& tensor, const ExportPlan& plan) {
  const std::string_view name = tensor.name;
  const auto is_one_of = [&](std::initializer_list<std::string_view> roles) {
    return std::any_of(roles.begin(), roles.end(), [&](std::string_view role) { return contains(name, role); });
  };
  const bool is_tied = std::none_of(plan.tensors.begin(), plan.tensors.end(),
                                    [](const PlannedTensor& t) { return t.name == "output.weight"; });
  if (name == "output.weight" || (name == "token_embd.weight" && is_tied)) return QuantFormat::kQ6_K;
  if (is_one_of({"attn_v.", "attn_k.", "attn_output.", "ssm_out.", "nextn.eh_proj."})) return QuantFormat::kQ6_K;
  if (is_one_of({"attn_q.", "attn_qkv.", "ffn_down"})) return QuantFormat::kQ5_K;
  return type.base;
}

}  // namespace

std::span<const std::string_view> export_types() { return kNames; }

const ExportType* find_export_type(std::string_view name) {
  const auto same = [](char a, char b) { return std::toupper(static_cast<unsigned char>(a)) == b; };
  for (const ExportType& type : kTypes)
    if (std::equal(name.begin(), name.end(), type.name.begin(), type.name.end(), same)) return &type;
  return nullptr;
}

QuantFormat stored_format(const ExportType& type, const PlannedTensor& tensor, const ExportPlan& plan) {
  if (stays_f32(tensor)) return QuantFormat::kF32;
  if (is_float_format(type.base)) return type.base;
  // The rows behind the decay and write strength of each head are few and their error is exponentiated.
  const bool is_gate =
      contains(tensor.name, "ssm_alpha.") || contains(tensor.name, "ssm_beta.") || contains(tensor.name, "ssm_ba.");
  if (is_gate) return that_fits(QuantFormat::kQ8_0, tensor.cols());
  return that_fits(type.mixed ? mixed_format(type, tensor, plan) : type.base, tensor.cols());
}

}  // namespace foretoken
