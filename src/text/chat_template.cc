// From messages to text: sets the variables that transformers sets, and runs the interpreter over them.
#include "text/chat_template.h"

#include "text/template_interpreter.h"
#include "text/template_parser.h"
#include "text/unicode.h"

namespace foretoken {

struct ChatTemplate::Program {
  jinja::Syntax syntax;
};

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  constexpr size_t kLargestSource = size_t{4} << 20;
  if (source.size() > kLargestSource)
    return Error{ErrorCode::kInvalidFile,
                 "the chat template is " + std::to_string(source.size()) + " bytes long; the limit is 4 MiB"};
  if (!is_valid_utf8(source)) return Error{ErrorCode::kInvalidFile, "the chat template is not valid UTF-8"};
  ASSIGN_OR_RETURN(jinja::Syntax syntax, jinja::parse_template(source));
  ChatTemplate result;
  result.program_ = std::make_shared<const Program>(Program{std::move(syntax)});
  return result;
}

Result<RenderedChat> ChatTemplate::render(const OrderedJson& messages, const OrderedJson& tools,
                                          const RenderOptions& options) const {
  using jinja::Value;
  if (!messages.is_array()) return Error{ErrorCode::kUsage, "messages must be a list of objects with role and content"};
  if (!tools.is_array() && !tools.is_null()) return Error{ErrorCode::kUsage, "tools must be a list or null"};
  if (!options.extra.is_object() && !options.extra.is_null())
    return Error{ErrorCode::kUsage, "extra template variables must be an object"};
  jinja::Interpreter interpreter(program_->syntax, options.limits, options.now);
  interpreter.set_global("documents", Value::none());
  if (options.extra.is_object())
    for (const auto& [name, value] : options.extra.items()) interpreter.set_global(name, interpreter.from_json(value));
  interpreter.set_global("messages", interpreter.from_json(messages));
  interpreter.set_global("tools", interpreter.from_json(tools));
  interpreter.set_global("add_generation_prompt", Value::boolean(options.add_generation_prompt));
  if (options.enable_thinking) interpreter.set_global("enable_thinking", Value::boolean(*options.enable_thinking));
  for (const auto& [name, text] :
       {std::pair("bos_token", &options.bos_token), std::pair("eos_token", &options.eos_token),
        std::pair("pad_token", &options.pad_token)})
    if (!text->empty()) interpreter.set_global(name, Value::text(repair_utf8(*text)));
  ASSIGN_OR_RETURN(jinja::MarkedText text, interpreter.run());
  return RenderedChat{std::move(text.bytes), std::move(text.untrusted)};
}

bool ChatTemplate::mentions(std::string_view variable) const {
  return program_->syntax.symbol_ids.contains(std::string(variable));
}

Result<std::optional<std::string>> template_of_tokenizer_config(std::string_view config_text) {
  ASSIGN_OR_RETURN(const OrderedJson config, parse_ordered_json(config_text, "tokenizer_config.json"));
  std::optional<std::string> found;
  const auto it = config.is_object() ? config.find("chat_template") : config.end();
  if (it == config.end() || it->is_null()) return found;
  if (it->is_string()) return std::optional<std::string>(it->get<std::string>());
  if (it->is_array()) {
    for (const auto& entry : *it) {
      if (!entry.is_object() || !entry.contains("name") || !entry.contains("template")) continue;
      if (entry["name"] == "default" && entry["template"].is_string()) found = entry["template"].get<std::string>();
    }
    if (found) return found;
  }
  return Error{ErrorCode::kInvalidFile,
               "tokenizer_config.json: chat_template is neither a string nor a list with one named 'default'"};
}

}  // namespace foretoken
