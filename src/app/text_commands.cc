// foretoken tokenize, detokenize, render: strings and ids without running a model.
#include <fmt/format.h>

#include <iostream>

#include "app/commands.h"
#include "app/prompt.h"

namespace foretoken::app {
namespace {

struct TokenizeOptions {
  CommonOptions common;
  std::string text;
  bool has_text = false;
};

int tokenize(const TokenizeOptions& o) {
  const auto opened = open_bundle(o.common);
  if (!opened) return report(opened.error());
  if (!opened->tokenizer) return report({ErrorCode::kInvalidFile, "tokenize needs a tokenizer: " + opened->tokenizer_note});
  const auto ids = opened->tokenizer->encode(o.has_text ? o.text : read_standard_input());
  if (!ids) return report(ids.error());
  if (o.common.json) {
    OrderedJson tokens = OrderedJson::array();
    for (const TokenId id : *ids) tokens.push_back(opened->tokenizer->spelling(id));
    std::cout << dump_json({{"ids", *ids}, {"tokens", tokens}}) << "\n";
    return 0;
  }
  for (size_t i = 0; i < ids->size(); ++i) std::cout << (i ? "," : "") << (*ids)[i];
  std::cout << "\n";
  return 0;
}

struct DetokenizeOptions {
  CommonOptions common;
  std::string ids;
};

int detokenize(const DetokenizeOptions& o) {
  const auto opened = open_bundle(o.common);
  if (!opened) return report(opened.error());
  if (!opened->tokenizer) return report({ErrorCode::kInvalidFile, "detokenize needs a tokenizer: " + opened->tokenizer_note});
  const auto ids = o.ids.empty() ? Result<std::vector<TokenId>>(std::vector<TokenId>{}) : parse_ids(o.ids);
  if (!ids) return report(ids.error());
  for (const TokenId id : *ids)
    if (!opened->tokenizer->has(id))
      return report({ErrorCode::kUsage, fmt::format("token id {} has no token in this vocabulary of {}", id, opened->tokenizer->size())});
  const std::string text = opened->tokenizer->decode(*ids);
  if (o.common.json) std::cout << dump_json({{"text", text}}) << "\n";
  else std::cout << text << "\n";
  return 0;
}

struct RenderCommandOptions {
  CommonOptions common;
  std::string file, tools, thinking;
  bool no_generation_prompt = false;
};

int render(const RenderCommandOptions& o) {
  const auto run = [&]() -> Result<RenderedPrompt> {
    ASSIGN_OR_RETURN(const OpenedBundle opened, open_bundle(o.common));
    if (!opened.tokenizer) return Error{ErrorCode::kInvalidFile, "render needs a tokenizer: " + opened.tokenizer_note};
    if (!opened.chat_template) return Error{ErrorCode::kInvalidFile, "render needs a chat template: " + opened.template_note};
    ASSIGN_OR_RETURN(const std::string text, o.file == "-" ? Result<std::string>(read_standard_input()) : read_file(o.file));
    ASSIGN_OR_RETURN(const OrderedJson messages, parse_ordered_json(text, o.file));
    if (!messages.is_array()) return Error{ErrorCode::kUsage, o.file + ": render takes a JSON list of messages"};
    OrderedJson tools = nullptr;
    if (!o.tools.empty()) {
      ASSIGN_OR_RETURN(const std::string tools_text, read_file(o.tools));
      ASSIGN_OR_RETURN(tools, parse_ordered_json(tools_text, o.tools));
      if (!tools.is_array()) return Error{ErrorCode::kUsage, o.tools + ": --tools takes a JSON list of tools"};
    }
    ASSIGN_OR_RETURN(const ThinkingChoice thinking, ThinkingChoice::parse(o.thinking));
    return render_messages(*opened.chat_template, *opened.tokenizer, messages, tools, thinking, !o.no_generation_prompt);
  };
  const auto prompt = run();
  if (!prompt) return report(prompt.error());
  if (o.common.json) std::cout << dump_json({{"text", prompt->text}, {"ids", prompt->ids}}) << "\n";
  else std::cout << prompt->text;
  return 0;
}

}  // namespace

Command add_tokenize(CLI::App& program) {
  auto o = std::make_shared<TokenizeOptions>();
  CLI::App* app = program.add_subcommand("tokenize", "Text to token ids");
  add_common_options(*app, o->common);
  const CLI::Option* text = app->add_option("text", o->text, "The text (standard input when absent)");
  return {app, [o, text] {
            o->has_text = text->count() > 0;
            return tokenize(*o);
          }};
}

Command add_detokenize(CLI::App& program) {
  auto o = std::make_shared<DetokenizeOptions>();
  CLI::App* app = program.add_subcommand("detokenize", "Token ids to text");
  add_common_options(*app, o->common);
  app->add_option("ids", o->ids, "Comma-separated ids")->required();
  return {app, [o] { return detokenize(*o); }};
}

Command add_render(CLI::App& program) {
  auto o = std::make_shared<RenderCommandOptions>();
  CLI::App* app = program.add_subcommand("render", "Render the chat template of a JSON list of messages");
  add_common_options(*app, o->common);
  app->add_option("file", o->file, "JSON file (- for standard input)")->required();
  app->add_option("--tools", o->tools, "JSON file with a list of tools");
  app->add_option("--thinking", o->thinking, "on or off (default: the template's)");
  app->add_flag("--no-generation-prompt", o->no_generation_prompt, "Do not open the assistant's turn");
  return {app, [o] { return render(*o); }};
}

}  // namespace foretoken::app
