// From a spec's input to prompt ids, and to the places in them that later prompts are likely to share. Runs beside the loop.
#pragma once

#include "serve/api_error.h"
#include "serve/model_text.h"

namespace foretoken::serve {

struct MadePrompt {
  std::string text;                 // empty for prompts given as ids
  std::vector<TokenId> ids;
  std::vector<int64_t> boundaries;  // ascending, below ids.size()
  bool in_reasoning = false;        // it ends inside an open <think>
};

ApiResult<MadePrompt> make_prompt(const ModelText& model, const PromptInput& input, bool generation_prompt = true);

// Whether ids end inside an open <think>: where the generation suffix has opened it.
bool ends_in_reasoning(const ModelText& model, std::span<const TokenId> ids);

// The token at whose begin the text has `bytes` bytes, or that holds that byte; nothing when the tokens do not spell `text`.
std::optional<int64_t> token_boundary(const Tokenizer& tokenizer, std::span<const TokenId> ids, std::string_view text, size_t bytes);

}  // namespace foretoken::serve
