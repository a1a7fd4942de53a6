// Rendering, encoding and boundaries.
#include "serve/prompt_maker.h"

#include "text/prompt.h"

namespace foretoken::serve {
namespace {

constexpr size_t kSuffixTokens = 8;  // of a generation prompt, in which an open <think> may stand

RenderOptions options_for(const ModelText& model, const Conversation& c, bool generation_prompt) {
  RenderOptions options;
  options.add_generation_prompt = generation_prompt;
  options.enable_thinking = c.thinking ? c.thinking : model.defaults.thinking;
  options.extra = c.template_variables;
  if (!c.effort.empty() && c.effort != "none" && model.chat_template->mentions("reasoning_effort") && !options.extra.contains("reasoning_effort"))
    options.extra["reasoning_effort"] = c.effort;
  return options;
}

// Some templates allow a system message at the beginning only; a later one then speaks as the user.
OrderedJson with_one_system_message(const OrderedJson& messages) {
  OrderedJson out = messages;
  for (size_t i = 1; i < out.size(); ++i)
    if (out[i]["role"] == "system") out[i]["role"] = "user";
  return out;
}

// Rendered texts of which a later prompt of this conversation will begin with one: all messages without the generation suffix, the turns
// before the last user message, and what stands before the first message of a user.
std::vector<size_t> shared_lengths(const ModelText& model, const Conversation& c, const OrderedJson& messages, const std::string& text) {
  std::vector<size_t> lengths;
  const auto add = [&](OrderedJson part) {
    RenderOptions options = options_for(model, c, false);
    const auto rendered = model.chat_template->render(part, c.tools, options);
    if (rendered && !rendered->text.empty() && text.starts_with(rendered->text)) lengths.push_back(rendered->text.size());
  };
  const auto before = [&](size_t end) { return OrderedJson(OrderedJson::array_t(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(end))); };
  size_t last_user = 0;
  for (size_t i = 0; i < messages.size(); ++i)
    if (messages[i]["role"] == "user") last_user = i;
  if (messages[0]["role"] == "system" && last_user > 1) add(before(1));
  if (last_user > 0) add(before(last_user));
  add(messages);
  return lengths;
}

ApiResult<MadePrompt> render(const ModelText& model, const Conversation& c, bool generation_prompt) {
  if (!model.chat_template) return ApiError{400, "no_chat_template", "this model has no chat template (" + model.template_note + "); use /v1/completions"};
  OrderedJson messages = c.messages;
  auto prompt = render_prompt(*model.chat_template, *model.tokenizer, messages, c.tools, options_for(model, c, generation_prompt));
  if (!prompt) {
    OrderedJson plainer = with_one_system_message(messages);
    if (plainer != messages) {
      messages = std::move(plainer);
      prompt = render_prompt(*model.chat_template, *model.tokenizer, messages, c.tools, options_for(model, c, generation_prompt));
    }
  }
  if (!prompt) return ApiError::invalid("messages", "the model's chat template refuses these messages: " + prompt.error().message);
  MadePrompt made{.text = std::move(prompt->text), .ids = std::move(prompt->ids)};
  if (generation_prompt)
    for (const size_t length : shared_lengths(model, c, messages, made.text))
      if (const auto at = token_boundary(*model.tokenizer, made.ids, made.text, length))
        if (*at > 0 && *at < static_cast<int64_t>(made.ids.size()) && (made.boundaries.empty() || made.boundaries.back() < *at)) made.boundaries.push_back(*at);
  if (!c.prefill.empty()) {
    const auto more = model.tokenizer->encode_plain(c.prefill);
    if (!more) return ApiError::invalid("messages", more.error().message);
    made.text += c.prefill;
    made.ids.insert(made.ids.end(), more->begin(), more->end());
  }
  made.in_reasoning = generation_prompt && c.prefill.empty() && ends_in_reasoning(model, made.ids);
  return made;
}

}  // namespace

bool ends_in_reasoning(const ModelText& model, std::span<const TokenId> ids) {
  const auto open = model.think_begin(), close = model.think_end();
  if (!open || !close) return false;
  for (size_t i = ids.size(); i-- > 0 && ids.size() - i <= kSuffixTokens;) {
    if (ids[i] == *open) return true;
    if (ids[i] == *close) return false;
  }
  return false;
}

std::optional<int64_t> token_boundary(const Tokenizer& tokenizer, std::span<const TokenId> ids, std::string_view text, size_t bytes) {
  size_t at = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string_view piece = tokenizer.bytes(ids[i]);
    if (at + piece.size() > bytes || at == bytes) return static_cast<int64_t>(i);
    if (text.substr(at, piece.size()) != piece) return std::nullopt;  // normalisation has changed the text
    at += piece.size();
  }
  return std::nullopt;
}

ApiResult<MadePrompt> make_prompt(const ModelText& model, const PromptInput& input, bool generation_prompt) {
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&input)) return MadePrompt{.ids = *ids};
  if (!model.tokenizer) return ApiError{400, "no_tokenizer", "this model has no tokenizer (" + model.tokenizer_note + "); give token ids"};
  if (const auto* c = std::get_if<Conversation>(&input)) return render(model, *c, generation_prompt);
  const std::string& text = std::get<std::string>(input);
  auto ids = model.tokenizer->encode(text);
  if (!ids) return ApiError::invalid("prompt", ids.error().message);
  return MadePrompt{.text = text, .ids = *std::move(ids)};
}

}  // namespace foretoken::serve
