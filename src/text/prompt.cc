// Rendering and encoding, together.
#include "text/prompt.h"

namespace foretoken {

Result<RenderedPrompt> render_prompt(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const OrderedJson& messages,
                                     const OrderedJson& tools, RenderOptions options) {
  const auto spelling = [&](std::optional<TokenId> id) { return id ? tokenizer.spelling(*id) : std::string(); };
  options.bos_token = spelling(tokenizer.bos());
  options.eos_token = spelling(tokenizer.eos());
  options.pad_token = spelling(tokenizer.pad());
  ASSIGN_OR_RETURN(RenderedChat rendered, chat_template.render(messages, tools, options));
  RenderedPrompt prompt;
  ASSIGN_OR_RETURN(prompt.ids, tokenizer.encode(rendered.text, rendered.untrusted));
  prompt.text = std::move(rendered.text);
  return prompt;
}

}  // namespace foretoken
