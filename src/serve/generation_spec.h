// GenerationSpec: what a request of any API wants, in one form. The API readers make it, the prompt maker and the calls use it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "serve/engine_link.h"

namespace foretoken::serve {

// Messages as chat templates take them: {"role", "content", "reasoning_content", "tool_calls"}, arguments as objects.
struct Conversation {
  OrderedJson messages = OrderedJson::array();
  OrderedJson tools = nullptr;       // OpenAI's form, or null
  std::optional<bool> thinking;      // absent: the server's default
  std::string effort;                // reasoning_effort as given, or empty
  OrderedJson template_variables = OrderedJson::object();
  std::string prefill;               // the answer begins with this text (thinking is off then)
};

using PromptInput = std::variant<Conversation, std::string, std::vector<TokenId>>;  // text: special tokens are recognised

enum class ToolUse : uint8_t { kNone, kAuto, kRequired };

// Fields of the request as its API spells them, for errors that are found after it was read.
struct FieldNames {
  std::string input = "messages", max_tokens = "max_tokens", stop = "stop";
  std::string format = "response_format", grammar;  // the second: of what the first holds, "response_format.json_schema.schema"
};

struct GenerationSpec {
  FieldNames names;
  std::string model;                 // as the request names it
  std::vector<PromptInput> prompts;  // one, but for completions
  SamplingParams sampling;
  std::optional<uint64_t> seed;
  int n = 1;
  std::optional<int64_t> max_tokens;
  bool clamp_max_tokens = false;     // to the room there is, instead of an error
  std::vector<std::string> stop;
  bool ignore_eos = false;
  LogprobsWanted logprobs;
  std::optional<int64_t> thinking_budget;
  std::optional<GrammarSpec> format; // kJsonObject, kJsonSchema, kRegex
  ToolUse tool_use = ToolUse::kNone;
  std::string named_tool;            // kRequired: this one
  bool parallel_tools = true;
  struct NamespacedTool {
    std::string space, name;
  };
  std::map<std::string, NamespacedTool> namespaced_tools;  // by the name that the model sees (Responses API)

  bool stream = false, include_usage = false, return_progress = false, return_tokens = false, echo = false;
  bool speculate = true;
  int priority = 0;
  double timeout_s = 0;
};

// What requests that are silent get: the bundle's generation_config and the server's options.
struct GenerationDefaults {
  SamplingParams sampling{.temperature = 1.0f};
  std::optional<bool> thinking;
  std::optional<int64_t> thinking_budget;
};

}  // namespace foretoken::serve
