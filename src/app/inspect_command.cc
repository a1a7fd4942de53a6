// foretoken inspect: what is in a bundle, what will be used and why. Reads headers only.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>

#include "app/commands.h"
#include "app/loaded_model.h"
#include "app/memory_options.h"

namespace foretoken::app {
namespace {

struct InspectOptions {
  CommonOptions common;
  SpeculationFlags speculation;
  MemoryFlags memory;
};

// Whether a load would find the trunk packed.
OrderedJson packed_weights(const CommonOptions& o, const Bundle& bundle, const ModelConfig& config) {
  const auto found = find_packed_trunk(o, bundle, config);
  if (!found) return {{"cached", false}, {"path", nullptr}, {"bytes", 0}, {"reason", found.error().message}};
  return {{"cached", true}, {"path", found->path.string()}, {"bytes", found->bytes}, {"reason", "packed by an earlier load"}};
}

// The plan, or what it lacks.
Result<OrderedJson> memory(const InspectOptions& o, const Bundle& bundle, const ModelConfig& config, const DraftResolution& drafts,
                           const DraftSettings& settings) {
  ASSIGN_OR_RETURN(const BundlePlan planned, plan_bundle(o.common, o.memory.demands(o.common, config), bundle, config, drafts, settings));
  const ModelFootprint& f = planned.footprint;
  OrderedJson j = {{"weights", f.weights + f.mapped}, {"state_per_lane", config.recurrent_bytes_per_lane()}, {"kv_per_token", f.kv_token()}};
  if (const auto* plan = std::get_if<MemoryPlan>(&planned.memory)) {
    j["plan"] = items_json(plan->items);
    j["total"] = plan->bytes();
    j["limit"] = plan->limit;
    j["limited_by"] = plan->limited_by;
    j["fits"] = true;
    j["lanes"] = plan->lanes;
    j["context"] = plan->context;
    j["pool_pages"] = plan->pool_pages;
    j["cache_ram"] = plan->cache_ram;
    j["host_cache"] = planned.on_device && plan->cache_ram > 0 ? OrderedJson(o.memory.host_cache_bytes()) : OrderedJson(nullptr);
    j["prefill_chunk"] = plan->prefill_chunk;
    j["notes"] = plan->notes;
    if (!planned.on_device && !o.memory.host_cache.empty()) j["notes"].push_back(kNoHostTier);
    return j;
  }
  const auto& refusal = std::get<MemoryRefusal>(planned.memory);
  j["plan"] = items_json(refusal.needed);
  j["total"] = refusal.needed_bytes();
  j["limit"] = refusal.limit;
  j["limited_by"] = refusal.limited_by;
  j["fits"] = false;
  j["reason"] = refusal.error().message;
  return j;
}

Result<OrderedJson> inspect(const InspectOptions& o) {
  ASSIGN_OR_RETURN(const OpenedBundle opened, open_bundle(o.common));
  const Bundle& bundle = opened.bundle;
  ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::from_bundle(bundle));
  const Status trunk = check_trunk(bundle, config);
  ASSIGN_OR_RETURN(const DraftSettings settings, DraftSettings::parse(o.speculation.speculate, o.common.draft_model));
  const DraftResolution drafts = resolve_drafters(bundle, config, settings);
  const MtpStatus& mtp = drafts.head;

  int64_t elements = 0;
  for (const TensorInfo& t : bundle.tensors()) elements += t.elements();
  const uint64_t bytes = bundle.tensor_bytes();

  OrderedJson experts = nullptr;
  if (config.moe.experts > 0)
    experts = {{"count", config.moe.experts}, {"per_token", config.moe.top_k}, {"width", config.expert_width}, {"shared_width", config.shared_width}};
  OrderedJson tokenizer = nullptr;
  if (opened.tokenizer)
    tokenizer = {{"size", opened.tokenizer->size()},
                 {"merges", opened.tokenizer->merge_count()},
                 {"added_tokens", opened.tokenizer->added_tokens().size()},
                 {"split", std::string(opened.tokenizer->split_method())},
                 {"chat_template", opened.chat_template.has_value()}};
  OrderedJson drafter = nullptr;
  if (!drafts.drafter_path.empty())
    drafter = {{"path", drafts.drafter_path.string()},
               {"kind", std::string(drafter_kind_name(drafts.drafter.kind))},
               {"fits", drafts.drafter.fits},
               {"reason", drafts.drafter.reason}};
  std::vector<std::string> notes = bundle.notes();
  notes.insert(notes.end(), drafts.notes.begin(), drafts.notes.end());
  OrderedJson planned = {{"weights", bytes}, {"state_per_lane", config.recurrent_bytes_per_lane()},
                         {"kv_per_token", config.kv_layout(o.common.kv()).page_bytes() / kPageTokens}, {"plan", OrderedJson::array()}};
  if (trunk.ok()) {
    ASSIGN_OR_RETURN(planned, memory(o, bundle, config, drafts, settings));
  }
  return OrderedJson{{"path", bundle.path().string()},
                     {"format", std::string(bundle_format_name(bundle.format()))},
                     {"architecture", config.architecture},
                     {"family", std::string(family_name(config.family))},
                     {"layers", {{"total", config.layers}, {"linear", config.delta_layers()}, {"full", config.attention_layers()}}},
                     {"hidden", config.hidden},
                     {"vocab", config.vocab},
                     {"experts", experts},
                     {"tensors", bundle.tensors().size()},
                     {"bytes", bytes},
                     {"bits_per_weight", elements > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(elements) : 0.0},
                     {"runs", trunk.ok()},
                     {"reason", trunk.ok() ? "every trunk tensor is present" : trunk.error().message},
                     {"tokenizer", tokenizer},
                     {"mtp", {{"declared", mtp.declared}, {"present", mtp.present}, {"complete", mtp.complete}, {"reason", mtp.reason}}},
                     {"drafter", drafter},
                     {"speculation", {{"resolved", drafts.resolved}, {"why", drafts.why}}},
                     {"memory", planned},
                     {"packed_weights", packed_weights(o.common, bundle, config)},
                     {"notes", notes},
                     {"fingerprint", bundle.fingerprint()}};
}

void print_memory(const OrderedJson& m) {
  const auto bytes = [&](const char* key) { return readable_bytes(m[key].get<uint64_t>()); };
  fmt::print("  memory       {} weights, {} state per lane, {} K/V per token\n", bytes("weights"), bytes("state_per_lane"), bytes("kv_per_token"));
  if (m["plan"].empty()) return;  // the model does not run
  if (!m["fits"].get<bool>()) {
    fmt::print("  serving      does not fit: {}\n", m["reason"].get<std::string>());
    return;
  }
  fmt::print("  serving      {} lanes, context {}, {} prefix cache: {} of {} ({})\n", m["lanes"].get<int>(), m["context"].get<int64_t>(), bytes("cache_ram"),
             bytes("total"), bytes("limit"), m["limited_by"].get<std::string>());
  if (!m["host_cache"].is_null()) fmt::print("  host tier    {} of host memory for prefixes that leave the device's\n", bytes("host_cache"));
  for (const auto& item : m["plan"])
    fmt::print("    {:<26} {:>10}  {}\n", item["item"].get<std::string>(), readable_bytes(item["bytes"].get<uint64_t>()), item["kind"].get<std::string>());
  for (const auto& note : m["notes"]) fmt::print("    {}\n", note.get<std::string>());
}

void print_text(const OrderedJson& j) {
  const auto text = [&](const char* key) { return j[key].get<std::string>(); };
  fmt::print("{}  ({}, {}, {})\n", text("path"), text("format"), text("architecture"), text("family"));
  fmt::print("  layers       {} ({} linear, {} full attention), hidden {}, vocabulary {}\n", j["layers"]["total"].get<int>(),
             j["layers"]["linear"].get<int>(), j["layers"]["full"].get<int>(), j["hidden"].get<int>(), j["vocab"].get<int>());
  if (!j["experts"].is_null())
    fmt::print("  experts      {} of width {}, {} per token, shared {}\n", j["experts"]["count"].get<int>(), j["experts"]["width"].get<int>(),
               j["experts"]["per_token"].get<int>(), j["experts"]["shared_width"].get<int>());
  fmt::print("  weights      {} tensors, {}, {:.2f} bits per weight\n", j["tensors"].get<size_t>(), readable_bytes(j["bytes"].get<uint64_t>()),
             j["bits_per_weight"].get<double>());
  fmt::print("  runs         {}: {}\n", j["runs"].get<bool>() ? "yes" : "no", text("reason"));
  if (j["tokenizer"].is_null()) fmt::print("  tokenizer    none; commands that take ids still work\n");
  else
    fmt::print("  tokenizer    {} tokens, {} merges, chat template {}\n", j["tokenizer"]["size"].get<int>(), j["tokenizer"]["merges"].get<size_t>(),
               j["tokenizer"]["chat_template"].get<bool>() ? "yes" : "no");
  fmt::print("  MTP head     {}: {}\n", j["mtp"]["complete"].get<bool>() ? "complete" : j["mtp"]["present"].get<bool>() ? "incomplete" : "none",
             j["mtp"]["reason"].get<std::string>());
  if (j["drafter"].is_null()) fmt::print("  drafter      none\n");
  else
    fmt::print("  drafter      {} in {}: {}\n", j["drafter"]["kind"].get<std::string>(), j["drafter"]["path"].get<std::string>(),
               j["drafter"]["reason"].get<std::string>());
  fmt::print("  speculation  {}: {}\n", j["speculation"]["resolved"].get<std::string>(), j["speculation"]["why"].get<std::string>());
  print_memory(j["memory"]);
  const OrderedJson& packed = j["packed_weights"];
  if (packed["cached"].get<bool>())
    fmt::print("  packed       {} in {}\n", readable_bytes(packed["bytes"].get<uint64_t>()), packed["path"].get<std::string>());
  else fmt::print("  packed       no: {}\n", packed["reason"].get<std::string>());
  for (const auto& note : j["notes"]) fmt::print("  note         {}\n", note.get<std::string>());
  fmt::print("  fingerprint  {}\n", text("fingerprint"));
}

}  // namespace

Command add_inspect(CLI::App& program) {
  auto o = std::make_shared<InspectOptions>();
  CLI::App* app = program.add_subcommand("inspect", "What a bundle holds, what will be used and why");
  add_common_options(*app, o->common);
  add_memory_options(*app, o->memory);
  app->add_option("--speculate", o->speculation.speculate, "auto, off, or a comma list of copy, mtp, dflash, grammar")->capture_default_str();
  return {app, [o] {
            const auto result = inspect(*o);
            if (!result) return report(result.error());
            if (o->common.json) std::cout << dump_json(*result, 1) << "\n";
            else print_text(*result);
            return 0;
          }};
}

}  // namespace foretoken::app
