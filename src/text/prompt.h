// From messages to prompt ids through a bundle's own template. Spellings of special tokens inside message content stay ordinary text.
#pragma once

#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace foretoken {

struct RenderedPrompt {
  std::string text;
  std::vector<TokenId> ids;
};

// `options`' token texts are filled in from `tokenizer`.
Result<RenderedPrompt> render_prompt(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const OrderedJson& messages,
                                     const OrderedJson& tools, RenderOptions options);

}  // namespace foretoken
