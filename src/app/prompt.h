// From what a user gives (text, ids, files, messages) to prompt ids, and the options of sampling.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/loaded_model.h"
#include "decode/sampling.h"
#include "text/prompt.h"

namespace foretoken::app {

// on, off, or a number of thinking tokens; empty: the template's default.
struct ThinkingChoice {
  std::optional<bool> enabled;
  std::optional<int64_t> budget;  // tokens
  static Result<ThinkingChoice> parse(const std::string& text);
};

struct SamplingOptions {
  SamplingParams params;
  std::optional<uint64_t> seed;  // absent: drawn once and reported
  std::vector<std::string> stop;
  bool ignore_eos = false;
  int64_t max_tokens = 256;
};
void add_sampling_options(CLI::App& command, SamplingOptions& options);
// A seed for a request that names none.
uint64_t draw_seed();

// "1,2,3" (spaces allowed) to ids; the error names the piece that is no id.
Result<std::vector<TokenId>> parse_ids(const std::string& text);

// Renders messages through the bundle's template and encodes them.
Result<RenderedPrompt> render_messages(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const OrderedJson& messages,
                                       const OrderedJson& tools, const ThinkingChoice& thinking, bool generation_prompt = true);

// All of standard input.
std::string read_standard_input();

}  // namespace foretoken::app
