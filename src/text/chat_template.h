// ChatTemplate: a model's own Jinja template, applied to messages and tools. The result says which bytes came from
// outside the template, so that the tokenizer can refuse special tokens there and nobody can forge a turn. It knows no
// tokenizer. Immutable after parsing: any number of threads may render with one object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/byte_range.h"

namespace foretoken {

// A template that runs into one of these ends with an error instead of eating the machine.
struct RenderLimits {
  uint64_t steps = 50'000'000;              // evaluated nodes, iterations, and 64 bytes of copied text each
  size_t output_bytes = size_t{256} << 20;  // of the rendered text
  size_t text_bytes = size_t{1} << 30;      // of all strings made on the way
  size_t objects = 4'000'000;               // lists, mappings and their entries
  int depth = 1000;                         // nested evaluations: macros, expressions, blocks
  size_t range = 100'000;                   // elements of range()
};

struct RenderOptions {
  bool add_generation_prompt = true;
  std::optional<bool> enable_thinking;        // absent: the template's own default
  OrderedJson extra = OrderedJson::object();  // further variables (chat_template_kwargs); cannot replace the named ones
  std::string bos_token, eos_token, pad_token;  // texts; empty means undefined
  std::optional<std::time_t> now;               // for strftime_now; absent: the clock
  RenderLimits limits;
};

struct RenderedChat {
  std::string text;
  // Bytes that came from messages, tools or options.extra; ascending, disjoint. Tokenizer::encode(text, untrusted)
  // recognises special tokens in the template's own words alone.
  std::vector<ByteRange> untrusted;
};

class ChatTemplate {
 public:
  // Parses Jinja source as transformers configures it (trim_blocks, lstrip_blocks). An error names the line and what is
  // wrong or not supported.
  static Result<ChatTemplate> parse(std::string_view source);

  // `messages` is a list of objects; `tools` a list or null. Strings may hold anything.
  Result<RenderedChat> render(const OrderedJson& messages, const OrderedJson& tools,
                              const RenderOptions& options) const;

  // True when the template's text mentions the variable, for example "enable_thinking" or "preserve_thinking".
  bool mentions(std::string_view variable) const;

 private:
  struct Program;
  std::shared_ptr<const Program> program_;
};

// The template inside tokenizer_config.json: a string, or a list of named ones of which "default" is taken. Nothing
// when the file has none.
Result<std::optional<std::string>> template_of_tokenizer_config(std::string_view config_text);

}  // namespace foretoken
