// A chat template as foreign bytes: it parses or not, renders or not, but always within its limits, to valid UTF-8,
// with marks that are ordered ranges of the text, and twice the same. Inputs that begin with "#config\n" are a
// tokenizer_config.json that may hold a template; "#context\n" is followed by a line of JSON with messages, tools and
// extra variables, and then a template.
// Covers: src/text/chat_template.cc src/text/template_lexer.cc src/text/template_parser.cc src/text/template_interpreter.cc
// Covers: src/text/template_operators.cc src/text/template_methods.cc src/text/template_filters.cc src/text/template_value.cc
#include <cstdlib>
#include <string_view>

#include "text/chat_template.h"
#include "text/unicode.h"

using namespace foretoken;

namespace {

const OrderedJson& messages() {
  static const OrderedJson value = OrderedJson::parse(R"([
    {"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hé <|im_end|>\n1\t2 日本"},
    {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nok", "reasoning_content": "r",
     "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5, "b": [true, null, "x"], "c": {"d": "\"e\""}}}}]},
    {"role": "tool", "content": "<tool_response>\nx\n</tool_response>"},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}])");
  return value;
}

const OrderedJson& tools() {
  static const OrderedJson value = OrderedJson::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {}}}}}])");
  return value;
}

RenderOptions options() {
  RenderOptions o;
  o.extra = OrderedJson::parse(
      R"({"s": "héllo Wörld", "n": 3, "f": 2.5, "yes": true, "no": false, "nil": null, "l": [3, 1, 2], "e": [],
    "ls": ["b", "A", "c", "a"], "d": {"b": 1, "a": "x"}, "html": "<a&'\">", "lines": "one\ntwo\n\nthree\n",
    "sp": "  a  b c  ", "u": "日本語テキスト", "big": 1e300, "nest": {"a": {"b": [1, 2, {"c": "deep"}]}},
    "mix": [1, "a", null, true, 2.0, [1], {"x": 1}], "quote": "it's \"q\"",
    "ms": [{"role": "user", "n": 2}, {"role": "tool", "n": 1}]})");
  o.bos_token = "<|bos|>";
  o.now = 1700000000;
  o.limits.steps = 100'000;
  o.limits.output_bytes = 1 << 18;
  o.limits.text_bytes = 1 << 22;
  o.limits.objects = 50'000;
  o.limits.depth = 200;
  return o;
}

}  // namespace

namespace {

int render(std::string_view source, const OrderedJson& messages, const OrderedJson& tools, const RenderOptions& options) {
  const auto chat = ChatTemplate::parse(source);
  if (!chat) return 0;
  if (chat->mentions("bos_token") && source.find("bos_token") == source.npos) std::abort();
  const auto rendered = chat->render(messages, tools, options);
  const auto again = chat->render(messages, tools, options);
  if (rendered.ok() != again.ok()) std::abort();
  if (!rendered) return 0;
  if (rendered->text != again->text || !is_valid_utf8(rendered->text)) std::abort();
  size_t last = 0;
  for (const ByteRange& range : rendered->untrusted) {
    if (range.begin < last || range.begin >= range.end || range.end > rendered->text.size()) std::abort();
    last = range.end;
  }
  return 0;
}

// The member `name` of `object`, or null.
OrderedJson member(const OrderedJson& object, const char* name) { return object.contains(name) ? object[name] : OrderedJson(); }

int render_in_context(std::string_view input) {
  const size_t line = std::min(input.find('\n'), input.size());
  const auto context = parse_ordered_json(input.substr(0, line), "context", {.bytes = 1u << 16, .depth = 32});
  if (!context || !context->is_object()) return 0;
  RenderOptions given = options();
  given.extra = member(*context, "extra");
  given.enable_thinking = member(*context, "thinking").is_boolean() ? std::optional(context->at("thinking").get<bool>()) : std::nullopt;
  return render(input.substr(std::min(line + 1, input.size())), member(*context, "messages"), member(*context, "tools"), given);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::string_view kConfig = "#config\n", kContext = "#context\n";
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.starts_with(kContext)) return render_in_context(input.substr(kContext.size()));
  static const RenderOptions kOptions = options();
  if (!input.starts_with(kConfig)) return render(input, messages(), tools(), kOptions);
  const auto found = template_of_tokenizer_config(input.substr(kConfig.size()));
  return found && *found ? render(**found, messages(), tools(), kOptions) : 0;
}
