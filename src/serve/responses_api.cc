// Items of the Responses API become messages: neighbouring reasoning, text and calls of the assistant are one turn.
#include "serve/responses_api.h"

#include <fmt/format.h>

#include "serve/openai_requests.h"

namespace foretoken::serve {
namespace {

// The assistant's turn that items may still join, at the end of `out`.
OrderedJson& open_turn(OrderedJson& out) {
  if (out.empty() || out.back()["role"] != "assistant") out.push_back({{"role", "assistant"}, {"content", ""}});
  return out.back();
}

ApiStatus add_reasoning(const OrderedJson& item, const std::string& name, OrderedJson& out) {
  std::string text;
  Fields fields(item, name + ".");
  for (const char* field : {"content", "summary"}) {
    const OrderedJson* parts = fields.array(field);
    if (!fields.ok()) return *fields.error();
    if (!parts || !text.empty()) continue;
    for (const OrderedJson& part : *parts) {
      if (!part.is_object() || !part.value("text", OrderedJson()).is_string()) return ApiError::invalid(name + "." + field, name + "." + field + " must be a list of texts");
      text += part["text"].get<std::string>();
    }
  }
  if (text.empty()) return {};
  OrderedJson& turn = open_turn(out);
  if (turn["content"] != "" || turn.contains("tool_calls")) out.push_back({{"role", "assistant"}, {"content", ""}});
  out.back()["reasoning_content"] = text;
  return {};
}

ApiStatus add_call(const OrderedJson& item, const std::string& name, OrderedJson& out) {
  Fields fields(item, name + ".");
  const auto own = fields.text("name"), space = fields.text("namespace"), id = fields.text("call_id"), arguments = fields.text("arguments");
  if (fields.ok() && !own) return ApiError::invalid(name + ".name", name + ".name is missing");
  if (!fields.ok()) return *fields.error();
  open_turn(out)["tool_calls"].push_back({{"id", id.value_or("")}, {"type", "function"},
                                          {"function", {{"name", space ? joined_tool_name(*space, *own) : *own}, {"arguments", arguments_object(arguments.value_or(""))}}}});
  return {};
}

ApiStatus add_output(const OrderedJson& item, const std::string& name, OrderedJson& out) {
  Fields fields(item, name + ".");
  const auto id = fields.text("call_id");
  if (!fields.ok()) return *fields.error();
  auto text = read_content(fields.find("output"), name + ".output");
  if (!text) return text.error();
  out.push_back({{"role", "tool"}, {"content", *std::move(text)}, {"tool_call_id", id.value_or("")}});
  return {};
}

ApiStatus add_message(const OrderedJson& item, const std::string& name, OrderedJson& out) {
  auto read = read_chat_message(item, name);
  if (!read) return read.error();
  OrderedJson message = *std::move(read);
  if (message["role"] == "assistant" && !out.empty() && out.back()["role"] == "assistant" && out.back()["content"] == "" && !out.back().contains("tool_calls"))
    out.back()["content"] = message["content"];  // its reasoning came as the item before
  else out.push_back(std::move(message));
  return {};
}

ApiStatus add_item(const OrderedJson& item, const std::string& name, OrderedJson& out) {
  if (!item.is_object()) return ApiError::invalid(name, name + " must be an object");
  const OrderedJson type = item.value("type", OrderedJson("message"));
  if (type == "message") return add_message(item, name, out);
  if (type == "reasoning") return add_reasoning(item, name, out);
  if (type == "function_call") return add_call(item, name, out);
  if (type == "function_call_output") return add_output(item, name, out);
  return ApiError::unsupported(name + ".type", fmt::format("{}: items of type {} are not supported", name, type.dump().substr(0, 60)));
}

ApiStatus read_input(const OrderedJson* input, OrderedJson& out) {
  if (!input) return ApiError::invalid("input", "input is missing");
  if (input->is_string()) {
    out.push_back({{"role", "user"}, {"content", *input}});
    return {};
  }
  if (!input->is_array() || input->empty()) return ApiError::invalid("input", "input must be a text or a list of items");
  for (size_t i = 0; i < input->size(); ++i)
    if (const ApiStatus read = add_item((*input)[i], fmt::format("input[{}]", i), out); !read) return read;
  return {};
}

// What a response object repeats of its request, with the API's defaults.
OrderedJson echo_of(const OrderedJson& body, const GenerationSpec& spec, bool store) {
  OrderedJson echo = {{"instructions", nullptr}, {"max_output_tokens", nullptr}, {"metadata", OrderedJson::object()}, {"parallel_tool_calls", true},
                      {"previous_response_id", nullptr}, {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}}, {"service_tier", "default"},
                      {"text", {{"format", {{"type", "text"}}}}}, {"tool_choice", "auto"}, {"tools", OrderedJson::array()}, {"top_logprobs", 0},
                      {"truncation", "disabled"}, {"user", nullptr}};
  for (const auto& [key, value] : echo.items())
    if (body.contains(key) && !body[key].is_null()) value = body[key];
  echo["store"] = store;
  echo["temperature"] = json_float(spec.sampling.temperature);
  echo["top_p"] = json_float(spec.sampling.top_p);
  return echo;
}

}  // namespace

ApiResult<ResponsesRequest> read_responses_request(const OrderedJson& body, const GenerationDefaults& defaults, ResponseStore& store) {
  Fields f(body);
  ResponsesRequest request;
  GenerationSpec& spec = request.spec;
  spec.sampling = defaults.sampling;
  spec.names.input = "input";
  spec.names.max_tokens = "max_output_tokens";
  spec.names.format = "text.format";
  Conversation conversation;
  if (const auto v = f.text("model")) spec.model = *v;
  if (const auto v = f.boolean("store")) request.store = *v;
  if (const auto v = f.integer("max_output_tokens", 1, INT64_MAX)) spec.max_tokens = *v;
  if (const auto v = f.integer("top_logprobs", 0, 20)) spec.logprobs = {.chosen = *v > 0, .top = static_cast<int>(*v)};
  read_sampling_fields(f, spec);
  spec.n = 1;
  read_thinking(f, spec, conversation);
  if (const OrderedJson* reasoning = f.object("reasoning")) {
    Fields r(*reasoning, "reasoning.");
    if (const auto effort = r.one_of("effort", {"none", "minimal", "low", "medium", "high", "xhigh"})) read_effort(*effort, spec, conversation);
    if (!r.ok()) f.fail(*r.error());
  }
  if (const OrderedJson* text = f.object("text")) {
    const auto format = text->find("format");
    if (format != text->end() && !format->is_null()) read_format(f, &*format, "text.format", false, spec);
  }
  read_tools(f, true, spec, conversation);
  f.refuse("background", {false});
  f.refuse("prompt");
  f.refuse("conversation");
  f.refuse("max_tool_calls");
  f.refuse("n", {1});
  f.refuse("truncation", {"disabled", "auto"});
  refuse_foreign_fields(f);
  const auto previous = f.text("previous_response_id");
  const auto instructions = f.text("instructions");
  if (!f.ok()) return *f.error();

  if (previous) {
    const auto stored = store.get(*previous);
    if (!stored) return ApiError{404, "response_not_found", "previous_response_id names no stored response; it may have given way to newer ones", "previous_response_id"};
    request.messages = stored->messages;
  }
  if (const ApiStatus read = read_input(f.find("input"), request.messages); !read) return read.error();
  if (instructions && !instructions->empty()) conversation.messages.push_back({{"role", "system"}, {"content", *instructions}});
  for (const OrderedJson& message : request.messages) {
    if (message["role"] == "system" && conversation.messages.size() == 1 && conversation.messages[0]["role"] == "system")
      conversation.messages[0]["content"] = conversation.messages[0]["content"].get<std::string>() + "\n\n" + message["content"].get<std::string>();
    else conversation.messages.push_back(message);
  }
  spec.prompts.emplace_back(std::move(conversation));
  request.echo = echo_of(body, spec, request.store);
  return request;
}

}  // namespace foretoken::serve
