// Chat completions and completions.
#include "serve/openai_requests.h"

#include <fmt/format.h>

namespace foretoken::serve {
namespace {

constexpr size_t kMostMessages = 100'000;
constexpr size_t kMostPrompts = 256;

}  // namespace

ApiResult<std::string> read_content(const OrderedJson* content, const std::string& name) {
  if (!content || content->is_null()) return std::string();
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return ApiError::invalid(name, name + " must be a text or a list of parts");
  std::string text;
  bool first = true;
  for (size_t i = 0; i < content->size(); ++i) {
    const OrderedJson& part = (*content)[i];
    const std::string part_name = fmt::format("{}[{}]", name, i);
    if (!part.is_object()) return ApiError::invalid(part_name, part_name + " must be an object with a type");
    if (!part.value("type", OrderedJson()).is_string()) return ApiError::invalid(part_name + ".type", part_name + ".type must be a string");
    const std::string type = part["type"].get<std::string>();
    if (type != "text" && type != "input_text" && type != "output_text" && type != "refusal")
      return ApiError::unsupported(part_name + ".type", fmt::format("{}: parts of type \"{}\" are not supported; this server reads text only", part_name, type));
    const OrderedJson piece = part.value(type == "refusal" ? "refusal" : "text", OrderedJson());
    if (!piece.is_string()) return ApiError::invalid(part_name + ".text", part_name + ".text must be a string");
    if (!first) text += "\n";
    first = false;
    text += piece.get_ref<const std::string&>();
  }
  return text;
}

namespace {

ApiResult<OrderedJson> read_tool_calls(const OrderedJson& calls, const std::string& name) {
  if (!calls.is_array()) return ApiError::invalid(name, name + " must be an array");
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string outer = fmt::format("{}[{}]", name, i), inner = outer + ".function";
    if (!calls[i].is_object()) return ApiError::invalid(outer, outer + " must be an object");
    const OrderedJson function = calls[i].value("function", OrderedJson());
    if (!function.is_object()) return ApiError::invalid(inner, inner + " must be an object with a name");
    if (!function.value("name", OrderedJson()).is_string()) return ApiError::invalid(inner + ".name", inner + ".name must be a string");
    const OrderedJson arguments = function.value("arguments", OrderedJson::object());
    if (!arguments.is_string() && !arguments.is_object() && !arguments.is_null()) return ApiError::invalid(inner + ".arguments", inner + ".arguments must be a JSON text");
    OrderedJson call = {{"type", "function"},
                        {"function", {{"name", function["name"]},
                                      {"arguments", arguments.is_string() ? arguments_object(arguments.get<std::string>())
                                                    : arguments.is_null() ? OrderedJson::object() : arguments}}}};
    Fields c(calls[i], outer + ".");
    if (const auto id = c.text("id")) call["id"] = *id;
    if (!c.ok()) return *c.error();
    out.push_back(std::move(call));
  }
  return out;
}

}  // namespace

ApiResult<OrderedJson> read_chat_message(const OrderedJson& message, const std::string& name) {
  if (!message.is_object()) return ApiError::invalid(name, name + " must be an object");
  const OrderedJson role = message.value("role", OrderedJson());
  if (!role.is_string()) return ApiError::invalid(name + ".role", name + ".role is missing");
  std::string kind = role.get<std::string>();
  if (kind == "developer") kind = "system";
  if (kind == "function") kind = "tool";
  if (kind != "system" && kind != "user" && kind != "assistant" && kind != "tool")
    return ApiError::invalid(name + ".role", fmt::format("{}.role must be system, developer, user, assistant or tool", name));
  const auto content = message.find("content");
  auto text = read_content(content == message.end() ? nullptr : &*content, name + ".content");
  if (!text) return text.error();
  OrderedJson out = {{"role", kind}, {"content", *std::move(text)}};
  Fields m(message, name + ".");
  if (kind == "assistant") {
    for (const char* field : {"reasoning_content", "reasoning"})
      if (const auto reasoning = m.text(field); reasoning && !out.contains("reasoning_content")) out["reasoning_content"] = *reasoning;
    if (message.contains("tool_calls") && !message["tool_calls"].is_null()) {
      auto calls = read_tool_calls(message["tool_calls"], name + ".tool_calls");
      if (!calls) return calls.error();
      if (!calls->empty()) out["tool_calls"] = *std::move(calls);
    }
    if (message.contains("function_call") && !message["function_call"].is_null())
      return ApiError::unsupported(name + ".function_call", name + ".function_call is the old form; use tool_calls");
  }
  for (const char* field : {"name", "tool_call_id"})
    if (const auto value = m.text(field)) out[field] = *value;
  if (!m.ok()) return *m.error();
  return out;
}

namespace {

void read_logprobs(Fields& f, GenerationSpec& spec) {
  const auto wanted = f.boolean("logprobs");
  const auto top = f.integer("top_logprobs", 0, 20);
  spec.logprobs = {.chosen = wanted.value_or(false), .top = static_cast<int>(top.value_or(0))};
  if (top.value_or(0) > 0 && !spec.logprobs.chosen) f.fail(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs to be true"));
}

void read_stream_options(Fields& f, GenerationSpec& spec) {
  const OrderedJson* options = f.object("stream_options");
  if (!options) return;
  Fields o(*options, "stream_options.");
  if (const auto v = o.boolean("include_usage")) spec.include_usage = *v;
  if (!o.ok()) return f.fail(*o.error());
  if (!spec.stream) f.fail(ApiError::invalid("stream_options", "stream_options needs stream to be true"));
}

void read_model(Fields& f, GenerationSpec& spec) {
  if (const auto v = f.text("model")) spec.model = *v;
}

GenerationSpec fresh_spec(const GenerationDefaults& defaults) {
  GenerationSpec spec;
  spec.sampling = defaults.sampling;
  return spec;
}

}  // namespace

OrderedJson arguments_object(const std::string& text) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return OrderedJson::object();
  const auto parsed = parse_ordered_json(text, "arguments");
  if (parsed && parsed->is_object()) return *parsed;
  return {{"arguments", text}};
}

ApiResult<OrderedJson> read_chat_messages(const OrderedJson& messages, const std::string& name) {
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    auto message = read_chat_message(messages[i], fmt::format("{}[{}]", name, i));
    if (!message) return message.error();
    // Templates know one system message, at the beginning: those that open a conversation become one.
    if (!out.empty() && out.size() == 1 && out[0]["role"] == "system" && (*message)["role"] == "system") {
      out[0]["content"] = out[0]["content"].get<std::string>() + "\n\n" + (*message)["content"].get<std::string>();
      continue;
    }
    out.push_back(*std::move(message));
  }
  return out;
}

ApiResult<GenerationSpec> read_chat_request(const OrderedJson& body, const GenerationDefaults& defaults) {
  Fields f(body);
  GenerationSpec spec = fresh_spec(defaults);
  Conversation conversation;
  read_model(f, spec);
  const OrderedJson* messages = f.array("messages");
  if (f.ok() && (!messages || messages->empty())) return ApiError::invalid("messages", "messages must be an array with at least one message");
  if (f.ok() && messages->size() > kMostMessages) return ApiError::invalid("messages", fmt::format("messages has more than {} entries", kMostMessages));
  read_sampling_fields(f, spec);
  read_stop(f, "stop", spec);
  read_logprobs(f, spec);
  read_stream_options(f, spec);
  for (const char* name : {"max_tokens", "max_completion_tokens"})
    if (const auto v = f.integer(name, 1, INT64_MAX)) {
      spec.max_tokens = *v;
      spec.names.max_tokens = name;
    }
  read_format(f, f.find("response_format"), "response_format", true, spec);
  read_thinking(f, spec, conversation);
  read_tools(f, false, spec, conversation);
  refuse_foreign_fields(f);
  if (!f.ok()) return *f.error();
  auto read = read_chat_messages(*messages, "messages");
  if (!read) return read.error();
  conversation.messages = *std::move(read);
  spec.prompts.emplace_back(std::move(conversation));
  return spec;
}

namespace {

ApiResult<std::vector<PromptInput>> read_prompts(const OrderedJson* prompt) {
  const ApiError mistake = ApiError::invalid("prompt", "prompt must be a text, a list of texts, a list of token ids, or a list of such lists");
  std::vector<PromptInput> out;
  const auto read_ids = [](const OrderedJson& list) -> std::optional<std::vector<TokenId>> {
    std::vector<TokenId> ids;
    for (const OrderedJson& id : list) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) return std::nullopt;
      ids.push_back(id.get<TokenId>());
    }
    return ids;
  };
  if (!prompt) return ApiError::invalid("prompt", "prompt is missing");
  if (prompt->is_string()) return std::vector<PromptInput>{prompt->get<std::string>()};
  if (!prompt->is_array() || prompt->empty()) return mistake;
  if ((*prompt)[0].is_number()) {
    auto ids = read_ids(*prompt);
    if (!ids) return mistake;
    return std::vector<PromptInput>{*std::move(ids)};
  }
  if (prompt->size() > kMostPrompts) return ApiError::invalid("prompt", fmt::format("prompt has more than {} entries", kMostPrompts));
  for (const OrderedJson& one : *prompt) {
    if (one.is_string()) {
      out.emplace_back(one.get<std::string>());
      continue;
    }
    auto ids = one.is_array() && !one.empty() ? read_ids(one) : std::nullopt;
    if (!ids) return mistake;
    out.emplace_back(*std::move(ids));
  }
  return out;
}

}  // namespace

ApiResult<GenerationSpec> read_completion_request(const OrderedJson& body, const GenerationDefaults& defaults) {
  Fields f(body);
  GenerationSpec spec = fresh_spec(defaults);
  spec.names.input = "prompt";
  read_model(f, spec);
  auto prompts = read_prompts(f.find("prompt"));
  if (!prompts) return prompts.error();
  spec.prompts = *std::move(prompts);
  read_sampling_fields(f, spec);
  read_stop(f, "stop", spec);
  read_stream_options(f, spec);
  spec.max_tokens = f.integer("max_tokens", 1, INT64_MAX).value_or(16);  // the API's own default
  if (const auto v = f.integer("logprobs", 0, 20)) spec.logprobs = {.chosen = true, .top = static_cast<int>(*v)};
  if (const auto v = f.boolean("echo")) spec.echo = *v;
  read_format(f, f.find("response_format"), "response_format", true, spec);
  f.refuse("suffix", {""});
  refuse_foreign_fields(f);
  if (!f.ok()) return *f.error();
  if (spec.echo && spec.logprobs.chosen) return ApiError::unsupported("echo", "echo together with logprobs is not supported: the prompt's logprobs are not computed");
  if (static_cast<size_t>(spec.n) * spec.prompts.size() > 256) return ApiError::invalid("n", "n times the number of prompts is more than 256");
  return spec;
}

}  // namespace foretoken::serve
