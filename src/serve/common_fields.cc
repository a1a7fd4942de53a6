// Shared fields, read once for all APIs.
#include "serve/common_fields.h"

#include <fmt/format.h>

#include <charconv>

namespace foretoken::serve {
namespace {

constexpr size_t kMostStops = 16;
constexpr size_t kMostBias = 4096;

void read_bias(Fields& f, GenerationSpec& spec) {
  const OrderedJson* bias = f.object("logit_bias");
  if (!bias) return;
  if (bias->size() > kMostBias) return f.fail(ApiError::invalid("logit_bias", fmt::format("logit_bias has more than {} tokens", kMostBias)));
  for (const auto& [key, value] : bias->items()) {
    TokenId id = 0;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool is_id = parsed.ec == std::errc() && parsed.ptr == key.data() + key.size() && id >= 0;
    if (!is_id || !value.is_number() || !(std::abs(value.get<double>()) <= 100))
      return f.fail(ApiError::invalid("logit_bias", "logit_bias maps token ids to numbers from -100 to 100"));
    if (value.get<double>() <= -100) spec.sampling.banned.push_back(id);
    else spec.sampling.logit_bias.emplace_back(id, value.get<float>());
  }
}

void read_numbers(Fields& f, SamplingParams& s) {
  if (const auto v = f.number("temperature", 0, 2)) s.temperature = static_cast<float>(*v);
  if (const auto v = f.number("top_p", 0, 1)) {
    s.top_p = static_cast<float>(*v);
    if (s.top_p == 0) {  // nothing but the most likely token
      s.top_p = 1;
      s.top_k = 1;
    }
  }
  if (const auto v = f.integer("top_k", -1, INT32_MAX)) s.top_k = static_cast<int>(std::max<int64_t>(*v, 0));
  if (const auto v = f.number("min_p", 0, 0.999999)) s.min_p = static_cast<float>(*v);
  if (const auto v = f.number("repetition_penalty", 0.01, 100)) s.repetition_penalty = static_cast<float>(*v);
  if (const auto v = f.number("presence_penalty", -2, 2)) s.presence_penalty = static_cast<float>(*v);
  if (const auto v = f.number("frequency_penalty", -2, 2)) s.frequency_penalty = static_cast<float>(*v);
}

}  // namespace

void read_sampling_fields(Fields& f, GenerationSpec& spec) {
  read_numbers(f, spec.sampling);
  if (const auto v = f.unsigned64("seed")) spec.seed = *v;
  read_bias(f, spec);
  if (const auto v = f.integer("n", 1, 128)) spec.n = static_cast<int>(*v);
  if (const auto v = f.boolean("ignore_eos")) spec.ignore_eos = *v;
  if (const auto v = f.integer("priority", -1000, 1000)) spec.priority = static_cast<int>(*v);
  if (const auto v = f.number("timeout", 0, 1e6)) spec.timeout_s = *v;
  if (const auto v = f.boolean("stream")) spec.stream = *v;
  if (const auto v = f.boolean("return_progress")) spec.return_progress = *v;
  if (const auto v = f.boolean("return_tokens")) spec.return_tokens = *v;
  if (const auto v = f.boolean("speculate")) spec.speculate = *v;
  if (const auto v = f.integer("thinking_budget", 0, INT64_MAX)) spec.thinking_budget = *v;
}

void read_stop(Fields& f, std::string_view name, GenerationSpec& spec) {
  const OrderedJson* stop = f.find(name);
  if (!stop) return;
  spec.names.stop = f.full_name(name);
  const auto mistake = [&] {
    f.fail(ApiError::invalid(f.full_name(name), fmt::format("{} must be a text, or up to {} texts, none of them empty", f.full_name(name), kMostStops)));
  };
  std::vector<OrderedJson> all;
  if (stop->is_array()) all.assign(stop->begin(), stop->end());
  else all.push_back(*stop);
  if (all.size() > kMostStops) return mistake();
  for (const OrderedJson& text : all) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) return mistake();
    spec.stop.push_back(text.get<std::string>());
  }
}

void read_format(Fields& f, const OrderedJson* format, const std::string& name, bool schema_inside, GenerationSpec& spec) {
  if (!format) return;
  spec.names.format = spec.names.grammar = name;
  if (!format->is_object()) return f.fail(ApiError::invalid(name, name + " must be an object"));
  Fields g(*format, name + ".");
  const auto type = g.one_of("type", {"text", "json_object", "json_schema", "regex"});
  if (g.ok() && !type) g.fail(ApiError::invalid(name + ".type", name + ".type must be text, json_object or json_schema"));
  if (g.ok() && *type == "json_object") spec.format = GrammarSpec{.kind = GrammarSpec::Kind::kJsonObject};
  if (g.ok() && *type == "regex") {
    const auto pattern = g.text("pattern");
    if (g.ok() && !pattern) g.fail(ApiError::invalid(name + ".pattern", name + ".pattern is missing"));
    if (g.ok()) spec.format = GrammarSpec{.kind = GrammarSpec::Kind::kRegex, .regex = *pattern};
    spec.names.grammar += ".pattern";
  }
  if (g.ok() && *type == "json_schema") {
    spec.names.grammar += schema_inside ? ".json_schema.schema" : ".schema";
    const OrderedJson* holder = schema_inside ? g.object("json_schema") : format;
    if (g.ok() && !holder) g.fail(ApiError::invalid(name + ".json_schema", name + ".json_schema is missing"));
    const auto schema = holder && g.ok() ? holder->find("schema") : OrderedJson::const_iterator();
    if (g.ok() && (schema == holder->end() || !(schema->is_object() || schema->is_boolean())))
      g.fail(ApiError::invalid(spec.names.grammar, spec.names.grammar + " must be a JSON Schema object"));
    if (g.ok()) spec.format = GrammarSpec{.kind = GrammarSpec::Kind::kJsonSchema, .schema = *schema};
  }
  if (!g.ok()) f.fail(*g.error());
}

void read_effort(const std::string& effort, GenerationSpec& spec, Conversation& conversation) {
  conversation.effort = effort;
  if (effort == "none") {
    if (!conversation.thinking) conversation.thinking = false;
    return;
  }
  if (!conversation.thinking) conversation.thinking = true;
  if (spec.thinking_budget) return;
  if (effort == "minimal") spec.thinking_budget = 256;
  if (effort == "low") spec.thinking_budget = 1024;
  if (effort == "medium") spec.thinking_budget = 8192;
}

void read_thinking(Fields& f, GenerationSpec& spec, Conversation& conversation) {
  if (const OrderedJson* variables = f.object("chat_template_kwargs")) {
    Fields v(*variables, "chat_template_kwargs.");
    if (const auto thinking = v.boolean("enable_thinking")) conversation.thinking = *thinking;
    if (!v.ok()) f.fail(*v.error());
    conversation.template_variables = *variables;
    conversation.template_variables.erase("enable_thinking");
  }
  if (const auto v = f.boolean("enable_thinking")) conversation.thinking = *v;
  if (const auto v = f.one_of("reasoning_effort", {"none", "minimal", "low", "medium", "high", "xhigh"})) read_effort(*v, spec, conversation);
}

namespace {

// One function of `tools` in the form of chat completions.
std::optional<OrderedJson> read_tool(Fields& f, const OrderedJson& tool, const std::string& name, bool flat) {
  const auto mistake = [&](const std::string& field, const std::string& what) {
    f.fail(ApiError::invalid(field, field + " " + what));
    return std::nullopt;
  };
  if (!tool.is_object()) return mistake(name, "must be an object");
  const auto type = tool.find("type");
  if (type == tool.end() || !type->is_string()) return mistake(name + ".type", "must be \"function\"");
  if (*type != "function") {
    f.fail(ApiError::unsupported(name + ".type", fmt::format("{}: tools of type {} run on their vendor's servers or are not known here; give functions", name, type->dump())));
    return std::nullopt;
  }
  OrderedJson function = flat ? tool : tool.value("function", OrderedJson());
  const std::string inner = flat ? name : name + ".function";
  if (!function.is_object()) return mistake(inner, "must be an object");
  function.erase("type");
  const auto text = function.find("name");
  if (text == function.end() || !text->is_string() || text->get_ref<const std::string&>().empty()) return mistake(inner + ".name", "must be a name");
  for (const auto& [field, what] : {std::pair{"description", "must be a string"}, {"strict", "must be true or false"}}) {
    const auto given = function.find(field);
    if (given == function.end() || given->is_null()) continue;
    if (field == std::string_view("strict") ? !given->is_boolean() : !given->is_string()) return mistake(inner + "." + field, what);
  }
  const auto parameters = function.find("parameters");
  if (parameters != function.end() && !parameters->is_object() && !parameters->is_null()) return mistake(inner + ".parameters", "must be a JSON Schema object");
  return OrderedJson{{"type", "function"}, {"function", std::move(function)}};
}

// Functions of one server, as agents group them: the model sees them under joined names.
bool read_namespace(Fields& f, const OrderedJson& space, const std::string& name, GenerationSpec& spec, Conversation& conversation) {
  const OrderedJson of = space.value("name", OrderedJson()), tools = space.value("tools", OrderedJson());
  if (!of.is_string() || of.get_ref<const std::string&>().empty()) {
    f.fail(ApiError::invalid(name + ".name", name + ".name must be a name"));
    return false;
  }
  if (!tools.is_array()) {
    f.fail(ApiError::invalid(name + ".tools", name + ".tools must be an array"));
    return false;
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    auto tool = read_tool(f, tools[i], fmt::format("{}.tools[{}]", name, i), true);
    if (!tool) return false;
    OrderedJson& own = (*tool)["function"]["name"];
    const std::string joined = joined_tool_name(of.get<std::string>(), own.get<std::string>());
    for (const OrderedJson& other : conversation.tools)
      if (other["function"]["name"] == joined) {
        f.fail(ApiError::invalid(fmt::format("{}.tools[{}].name", name, i), fmt::format("{} is a tool already, and a call could not say which", joined)));
        return false;
      }
    spec.namespaced_tools[joined] = {of.get<std::string>(), own.get<std::string>()};
    own = joined;
    conversation.tools.push_back(*std::move(tool));
  }
  return true;
}

void read_tool_choice(Fields& f, bool flat, GenerationSpec& spec) {
  const OrderedJson* choice = f.find("tool_choice");
  if (!choice) return;
  const auto mistake = [&] { f.fail(ApiError::invalid("tool_choice", "tool_choice must be none, auto, required, or name a function of tools")); };
  if (*choice == "none") {
    spec.tool_use = ToolUse::kNone;
  } else if (*choice == "auto") {
    spec.tool_use = ToolUse::kAuto;
  } else if (*choice == "required") {
    spec.tool_use = ToolUse::kRequired;
  } else {
    if (!choice->is_object() || choice->value("type", OrderedJson()) != "function") return mistake();
    const OrderedJson named = flat ? *choice : choice->value("function", OrderedJson());
    if (!named.is_object() || !named.value("name", OrderedJson()).is_string()) return mistake();
    spec.tool_use = ToolUse::kRequired;
    spec.named_tool = named["name"].get<std::string>();
  }
}

}  // namespace

std::string joined_tool_name(const std::string& space, const std::string& name) { return space + "__" + name; }

void read_tools(Fields& f, bool flat, GenerationSpec& spec, Conversation& conversation) {
  const OrderedJson* tools = f.array("tools");
  if (tools && !tools->empty()) {
    conversation.tools = OrderedJson::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      const OrderedJson& given = (*tools)[i];
      const std::string name = fmt::format("tools[{}]", i);
      if (flat && given.is_object() && given.value("type", OrderedJson()) == "namespace") {
        if (!read_namespace(f, given, name, spec, conversation)) return;
        continue;
      }
      auto tool = read_tool(f, given, name, flat);
      if (!tool) return;
      conversation.tools.push_back(*std::move(tool));
    }
    spec.tool_use = ToolUse::kAuto;
  }
  if (const auto v = f.boolean("parallel_tool_calls")) spec.parallel_tools = *v;
  read_tool_choice(f, flat, spec);
  if (conversation.tools.is_null()) {
    if (spec.tool_use == ToolUse::kRequired) f.fail(ApiError::invalid("tool_choice", "tool_choice wants a call, but there are no tools"));
    spec.tool_use = ToolUse::kNone;
    return;
  }
  if (spec.named_tool.empty()) return;
  for (const OrderedJson& tool : conversation.tools)
    if (tool["function"]["name"] == spec.named_tool) return;
  f.fail(ApiError::invalid("tool_choice", fmt::format("tool_choice names \"{}\", which is not among tools", spec.named_tool)));
}

void refuse_foreign_fields(Fields& f) {
  for (const char* name : {"functions", "function_call", "audio", "web_search_options", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
                           "structured_outputs", "grammar", "json_schema", "bad_words", "allowed_token_ids", "stop_token_ids", "logits_processors"})
    f.refuse(name, {OrderedJson::array()});
  f.refuse("modalities", {OrderedJson::array({"text"})});
  f.refuse("min_tokens", {0});
  f.refuse("best_of", {1});
  f.refuse("use_beam_search", {false});
  f.refuse("include_stop_str_in_output", {false});
  f.refuse("skip_special_tokens", {true});
  f.refuse("add_generation_prompt", {true});
  f.refuse("continue_final_message", {false});
  f.refuse("truncate_prompt_tokens");
  f.refuse("prompt_logprobs", {false, 0});
  f.refuse("typical_p", {1, 1.0});
  f.refuse("tfs_z", {1, 1.0});
  f.refuse("mirostat", {0});
  f.refuse("xtc_probability", {0, 0.0});
  f.refuse("dry_multiplier", {0, 0.0});
  f.refuse("dynatemp_range", {0, 0.0});
}

}  // namespace foretoken::serve
