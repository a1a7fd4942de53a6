// Blocks of Anthropic's messages become messages of templates: tool results turns of their own, thinking the reasoning of its turn.
#include "serve/anthropic_api.h"

#include <fmt/format.h>

namespace foretoken::serve {
namespace {

// The type of a block.
ApiResult<std::string> type_of(const OrderedJson& block, const std::string& name) {
  if (!block.is_object()) return ApiError::invalid(name, name + " must be an object with a type");
  const OrderedJson type = block.value("type", OrderedJson());
  if (!type.is_string()) return ApiError::invalid(name + ".type", name + ".type must be a string");
  return type.get<std::string>();
}

ApiResult<std::string> read_text_blocks(const OrderedJson& content, const std::string& name) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return ApiError::invalid(name, name + " must be a text or a list of blocks");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string block_name = fmt::format("{}[{}]", name, i);
    ASSIGN_OR_RETURN(const std::string type, type_of(content[i], block_name));
    if (type != "text") return ApiError::unsupported(block_name + ".type", fmt::format("{}: blocks of type \"{}\" are not supported; this server reads text only", block_name, type));
    const OrderedJson piece = content[i].value("text", OrderedJson());
    if (!piece.is_string()) return ApiError::invalid(block_name + ".text", block_name + ".text must be a string");
    text += (i ? "\n" : "") + piece.get<std::string>();
  }
  return text;
}

// The blocks of one message, appended to `out` as one or more messages.
class BlockReader {
 public:
  BlockReader(std::string role, OrderedJson& out) : role_(std::move(role)), out_(out) {}

  ApiStatus read(const OrderedJson& block, const std::string& name) {
    ASSIGN_OR_RETURN(const std::string type, type_of(block, name));
    const bool assistant = role_ == "assistant";
    if (type == "text") return add_text(block.value("text", OrderedJson()), name + ".text");
    if (type == "thinking" && assistant) {
      const OrderedJson text = block.value("thinking", OrderedJson());
      if (!text.is_string()) return ApiError::invalid(name + ".thinking", name + ".thinking must be a string");
      reasoning_ += (reasoning_.empty() ? "" : "\n") + text.get<std::string>();
      return {};
    }
    if (type == "redacted_thinking" && assistant) return {};
    if (type == "tool_use" && assistant) return add_call(block, name);
    if (type == "tool_result" && !assistant) return add_result(block, name);
    return ApiError::unsupported(name + ".type", fmt::format("{}: blocks of type \"{}\" are not supported in a message of the {}", name, type, role_));
  }

  void finish(bool whole) {
    if (role_ == "assistant") {
      OrderedJson message = {{"role", "assistant"}, {"content", text_}};
      if (!reasoning_.empty()) message["reasoning_content"] = reasoning_;
      if (!calls_.empty()) message["tool_calls"] = std::move(calls_);
      out_.push_back(std::move(message));
    } else if (!text_.empty() || (whole && !had_result_)) {
      out_.push_back({{"role", role_}, {"content", text_}});
    }
    text_.clear();
  }

 private:
  ApiStatus add_text(const OrderedJson& text, const std::string& name) {
    if (!text.is_string()) return ApiError::invalid(name, name + " must be a string");
    text_ += (text_.empty() ? "" : "\n") + text.get<std::string>();
    return {};
  }
  ApiStatus add_call(const OrderedJson& block, const std::string& name) {
    const OrderedJson function = block.value("name", OrderedJson()), input = block.value("input", OrderedJson::object());
    if (!function.is_string()) return ApiError::invalid(name + ".name", name + ".name must be a string");
    if (!input.is_object()) return ApiError::invalid(name + ".input", name + ".input must be an object");
    Fields fields(block, name + ".");
    const auto id = fields.text("id");
    if (!fields.ok()) return *fields.error();
    calls_.push_back({{"id", id.value_or("")}, {"type", "function"}, {"function", {{"name", function}, {"arguments", input}}}});
    return {};
  }
  ApiStatus add_result(const OrderedJson& block, const std::string& name) {
    auto text = read_text_blocks(block.value("content", OrderedJson()), name + ".content");
    if (!text) return text.error();
    Fields fields(block, name + ".");
    const auto id = fields.text("tool_use_id");
    const auto failed = fields.boolean("is_error");
    if (!fields.ok()) return *fields.error();
    finish(false);  // text before a result keeps its place
    had_result_ = true;
    out_.push_back({{"role", "tool"}, {"tool_call_id", id.value_or("")}, {"content", (failed.value_or(false) ? "Error: " : "") + *text}});
    return {};
  }

  std::string role_;
  OrderedJson& out_;
  std::string text_, reasoning_;
  OrderedJson calls_ = OrderedJson::array();
  bool had_result_ = false;
};

ApiStatus read_message(const OrderedJson& message, const std::string& name, OrderedJson& out) {
  if (!message.is_object()) return ApiError::invalid(name, name + " must be an object");
  const OrderedJson role = message.value("role", OrderedJson());
  if (role != "user" && role != "assistant" && role != "system") return ApiError::invalid(name + ".role", name + ".role must be user or assistant");
  const OrderedJson content = message.value("content", OrderedJson());
  if (!content.is_string() && !content.is_array()) return ApiError::invalid(name + ".content", name + ".content must be a text or a list of blocks");
  BlockReader reader(role.get<std::string>(), out);
  if (content.is_string()) {
    const ApiStatus read = reader.read({{"type", "text"}, {"text", content}}, name + ".content");
    if (!read) return read;
  } else {
    for (size_t i = 0; i < content.size(); ++i)
      if (const ApiStatus read = reader.read(content[i], fmt::format("{}.content[{}]", name, i)); !read) return read;
  }
  reader.finish(true);
  return {};
}

void read_anthropic_thinking(Fields& f, GenerationSpec& spec, Conversation& conversation) {
  conversation.thinking = false;  // the API's default
  if (const OrderedJson* thinking = f.object("thinking")) {
    Fields t(*thinking, "thinking.");
    const auto type = t.one_of("type", {"enabled", "disabled", "adaptive"});
    if (t.ok() && !type) t.fail(ApiError::invalid("thinking.type", "thinking.type must be enabled, disabled or adaptive"));
    if (t.ok()) conversation.thinking = *type != "disabled";
    if (t.ok() && *type == "enabled") {
      const auto budget = t.integer("budget_tokens", 1, INT64_MAX);
      if (t.ok() && !budget) t.fail(ApiError::invalid("thinking.budget_tokens", "thinking.budget_tokens is missing"));
      if (t.ok()) spec.thinking_budget = *budget;
    }
    if (!t.ok()) return f.fail(*t.error());
  }
}

void read_output_config(Fields& f, GenerationSpec& spec, Conversation& conversation) {
  if (const OrderedJson* config = f.object("output_config")) {
    Fields o(*config, "output_config.");
    if (const auto effort = o.one_of("effort", {"low", "medium", "high", "xhigh", "max"}); effort && conversation.thinking.value_or(false))
      read_effort(*effort == "max" ? "xhigh" : *effort, spec, conversation);
    read_format(o, o.find("format"), "output_config.format", false, spec);
    if (!o.ok()) return f.fail(*o.error());
  }
  read_format(f, f.find("output_format"), "output_format", false, spec);
}

void read_anthropic_tools(Fields& f, GenerationSpec& spec, Conversation& conversation) {
  if (const OrderedJson* tools = f.array("tools"); tools && !tools->empty()) {
    conversation.tools = OrderedJson::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      const std::string name = fmt::format("tools[{}]", i);
      const OrderedJson& tool = (*tools)[i];
      if (!tool.is_object()) return f.fail(ApiError::invalid(name, name + " must be an object"));
      if (tool.contains("type") && tool["type"] != "custom" && !tool["type"].is_null())
        return f.fail(ApiError::unsupported(name + ".type", fmt::format("{}: tools of type {} run on their vendor's servers or are not known here; give custom tools", name, tool["type"].dump())));
      if (!tool.value("name", OrderedJson()).is_string()) return f.fail(ApiError::invalid(name + ".name", name + ".name must be a string"));
      const OrderedJson schema = tool.value("input_schema", OrderedJson());
      if (!schema.is_object()) return f.fail(ApiError::invalid(name + ".input_schema", name + ".input_schema must be a JSON Schema object"));
      OrderedJson function = {{"name", tool["name"]}};
      Fields t(tool, name + ".");
      if (const auto description = t.text("description")) function["description"] = *description;
      if (!t.ok()) return f.fail(*t.error());
      function["parameters"] = schema;
      conversation.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    spec.tool_use = ToolUse::kAuto;
  }
  const OrderedJson* choice = f.object("tool_choice");
  if (!choice) return;
  Fields c(*choice, "tool_choice.");
  const auto type = c.one_of("type", {"auto", "any", "tool", "none"});
  if (c.ok() && !type) c.fail(ApiError::invalid("tool_choice.type", "tool_choice.type must be auto, any, tool or none"));
  if (const auto alone = c.boolean("disable_parallel_tool_use")) spec.parallel_tools = !*alone;
  if (c.ok() && conversation.tools.is_null() && *type != "none" && *type != "auto") c.fail(ApiError::invalid("tool_choice", "tool_choice wants a call, but there are no tools"));
  if (c.ok() && *type == "tool") {
    const auto name = c.text("name");
    bool known = false;
    if (c.ok() && name && conversation.tools.is_array())
      for (const OrderedJson& tool : conversation.tools) known |= tool["function"]["name"] == *name;
    if (c.ok() && !known) c.fail(ApiError::invalid("tool_choice.name", "tool_choice.name must be one of tools"));
    if (c.ok()) spec.named_tool = *name;
  }
  if (!c.ok()) return f.fail(*c.error());
  if (*type == "none") spec.tool_use = ToolUse::kNone;
  if (*type == "any" || *type == "tool") spec.tool_use = ToolUse::kRequired;
}

}  // namespace

ApiResult<GenerationSpec> read_messages_request(const OrderedJson& body, const GenerationDefaults& defaults) {
  Fields f(body);
  GenerationSpec spec;
  spec.sampling = defaults.sampling;
  spec.clamp_max_tokens = true;
  Conversation conversation;
  if (const auto v = f.text("model")) spec.model = *v;
  const auto max_tokens = f.integer("max_tokens", 1, INT64_MAX);
  if (f.ok() && !max_tokens) return ApiError::invalid("max_tokens", "max_tokens is missing");
  spec.max_tokens = max_tokens;
  const OrderedJson* messages = f.array("messages");
  if (f.ok() && (!messages || messages->empty())) return ApiError::invalid("messages", "messages must be an array with at least one message");
  read_anthropic_thinking(f, spec, conversation);
  read_sampling_fields(f, spec);
  spec.n = 1;
  read_stop(f, "stop_sequences", spec);
  read_output_config(f, spec, conversation);
  read_anthropic_tools(f, spec, conversation);
  f.refuse("mcp_servers", {OrderedJson::array()});
  f.refuse("container");
  f.refuse("n", {1});
  if (!f.ok()) return *f.error();

  if (body.contains("system") && !body["system"].is_null()) {
    auto system = read_text_blocks(body["system"], "system");
    if (!system) return system.error();
    if (!system->empty()) conversation.messages.push_back({{"role", "system"}, {"content", *system}});
  }
  for (size_t i = 0; i < messages->size(); ++i)
    if (const ApiStatus read = read_message((*messages)[i], fmt::format("messages[{}]", i), conversation.messages); !read) return read.error();
  // A last message of the assistant is the beginning of the answer.
  OrderedJson& last = conversation.messages.back();
  if (last["role"] == "assistant" && !last.contains("tool_calls")) {
    if (*conversation.thinking) return ApiError::invalid("messages", "the last message is the assistant's, which thinking does not allow");
    conversation.prefill = last["content"].get<std::string>();
    conversation.messages.erase(conversation.messages.size() - 1);
    if (conversation.messages.empty()) return ApiError::invalid("messages", "messages must hold a message of the user");
  }
  spec.prompts.emplace_back(std::move(conversation));
  return spec;
}

}  // namespace foretoken::serve
