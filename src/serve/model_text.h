// ModelText: the text side of the model that is served: its tokenizer, its template, the marks of reasoning and calls. Read once, then
// shared by any number of threads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "serve/generation_spec.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace foretoken::serve {

struct ModelText {
  std::optional<Tokenizer> tokenizer;       // absent: routes that need text say `note`
  std::string tokenizer_note;
  std::optional<ChatTemplate> chat_template;
  std::string template_note;
  std::vector<TokenId> stop_tokens;         // of the bundle's configuration and the tokenizer
  GenerationDefaults defaults;

  // Marks of reasoning; absent where the vocabulary has none.
  std::optional<TokenId> think_begin() const { return tokenizer ? tokenizer->find("<think>") : std::nullopt; }
  std::optional<TokenId> think_end() const { return tokenizer ? tokenizer->find("</think>") : std::nullopt; }
  std::optional<TokenId> tool_call() const;
  // What a token adds to an answer's text: nothing for control marks other than those of reasoning and calls.
  std::string_view shown(TokenId id) const;
  bool is_stop(TokenId id) const;
};

// Sampling that `generation_config` (generation_config.json, or null) asks for, over `fallback`.
SamplingParams sampling_of_config(const Json& generation_config, SamplingParams fallback);

}  // namespace foretoken::serve
