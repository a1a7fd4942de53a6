// Marks and defaults of a model's text.
#include "serve/model_text.h"

#include <algorithm>

namespace foretoken::serve {

std::optional<TokenId> ModelText::tool_call() const {
  const auto id = tokenizer ? tokenizer->find("<tool_call>") : std::nullopt;
  return id && tokenizer->is_added(*id) ? id : std::nullopt;
}

std::string_view ModelText::shown(TokenId id) const {
  if (!tokenizer) return {};
  const std::string_view bytes = tokenizer->bytes(id);
  if (!tokenizer->is_special(id)) return bytes;
  for (const std::string_view mark : {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"})
    if (bytes == mark) return bytes;
  return {};
}

bool ModelText::is_stop(TokenId id) const { return std::find(stop_tokens.begin(), stop_tokens.end(), id) != stop_tokens.end(); }

SamplingParams sampling_of_config(const Json& config, SamplingParams s) {
  if (!config.is_object()) return s;
  const auto number = [&](const char* name, float& out) {
    const auto it = config.find(name);
    if (it != config.end() && it->is_number()) out = it->get<float>();
  };
  SamplingParams read = s;
  number("temperature", read.temperature);
  number("top_p", read.top_p);
  number("min_p", read.min_p);
  number("repetition_penalty", read.repetition_penalty);
  number("presence_penalty", read.presence_penalty);
  number("frequency_penalty", read.frequency_penalty);
  if (const auto it = config.find("top_k"); it != config.end() && it->is_number_integer())
    read.top_k = static_cast<int>(std::clamp<int64_t>(it->get<int64_t>(), 0, INT32_MAX));
  if (const auto it = config.find("do_sample"); it != config.end() && it->is_boolean() && !it->get<bool>()) read.temperature = 0;
  return read.validate().ok() ? read : s;
}

}  // namespace foretoken::serve
