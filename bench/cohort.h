// A frozen list of prompts for benchmarks: [{"class", "raw", "text"}], or "file" instead of "text", a path beside the list whose content
// follows the words of "text". Raw prompts are continued; others are one user message in the model's chat template, thinking off.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/loaded_model.h"
#include "app/prompt.h"
#include "base/json.h"

namespace foretoken::bench {

struct Prompt {
  std::string kind;
  std::vector<TokenId> ids;
  int tokens = 0;  // longest answer; 0: the benchmark's own limit
};

inline Result<std::vector<Prompt>> load_cohort(app::LoadedModel& model, const std::string& path) {
  ASSIGN_OR_RETURN(const Tokenizer* tokenizer, model.tokenizer());
  ASSIGN_OR_RETURN(const std::string text, read_file(path));
  ASSIGN_OR_RETURN(const Json cohort, parse_json(text, path));
  std::vector<Prompt> prompts;
  for (const Json& entry : cohort) {
    Prompt prompt{.kind = entry["class"], .ids = {}, .tokens = entry.value("tokens", 0)};
    if (entry.contains("random")) {  // so many ids drawn evenly from the vocabulary: text that nothing predicts
      uint64_t state = entry["random"].get<uint64_t>();
      const int vocab = model.target().config().vocab;
      for (int i = 0; i < entry.value("count", 64); ++i) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        prompt.ids.push_back(static_cast<TokenId>((state >> 33) % static_cast<uint64_t>(vocab)));
      }
      prompts.push_back(std::move(prompt));
      continue;
    }
    std::string words = entry["text"];
    if (entry.contains("file")) {
      ASSIGN_OR_RETURN(const std::string content, read_file(std::filesystem::path(path).parent_path() / entry["file"].get<std::string>()));
      words += content;
    }
    if (entry["raw"].get<bool>()) {
      ASSIGN_OR_RETURN(prompt.ids, tokenizer->encode(words));
    } else {
      ASSIGN_OR_RETURN(const ChatTemplate* chat_template, model.chat_template());
      const OrderedJson messages = {{{"role", "user"}, {"content", words}}};
      ASSIGN_OR_RETURN(RenderedPrompt rendered, app::render_messages(*chat_template, *tokenizer, messages, nullptr, {.enabled = false}));
      prompt.ids = std::move(rendered.ids);
    }
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace foretoken::bench
