// Answers through the output parser in two ways of cutting them into tokens: the parts agree, what was given out piece by piece is the parts,
// everything is valid UTF-8, and arguments are JSON. The first byte holds flags and the seed of the cuts; \x01 and \x02 are reasoning's marks.
// Covers: src/text/output_parser.cc src/text/tool_schema.cc
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/output_parser.h"
#include "text/unicode.h"

using namespace foretoken;

namespace {

const Json& tools() {
  static const Json value = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
    "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"}, "z": {"type": ["null", "string"]},
    "a": {"type": "array"}, "o": {"type": "object"}, "x": {"anyOf": [{"const": 1}, {"$ref": "#/properties/b"}]}}}}}])");
  return value;
}

struct Parts {
  std::string reasoning, text;
  std::vector<ToolCall> calls;
};

void require(bool condition) {
  if (!condition) std::abort();
}

Parts parse(std::string_view answer, int flags, unsigned cut) {
  OutputParser parser({.think_begin = 1, .think_end = 2, .in_reasoning = (flags & 1) != 0, .calls = (flags & 2) != 0, .tools = ToolSchemas(tools())});
  Parts given;
  const auto take = [&](const std::vector<OutputDelta>& deltas) {
    for (const OutputDelta& delta : deltas) {
      require(is_valid_utf8(delta.text));
      switch (delta.kind) {
        case OutputDelta::Kind::kReasoning: given.reasoning += delta.text; break;
        case OutputDelta::Kind::kText: given.text += delta.text; break;
        case OutputDelta::Kind::kCallBegin:
          require(delta.call == static_cast<int>(given.calls.size()));
          given.calls.push_back({.id = {}, .name = delta.text, .arguments = {}, .problem = {}});
          break;
        case OutputDelta::Kind::kCallArguments: given.calls.at(static_cast<size_t>(delta.call)).arguments += delta.text; break;
        case OutputDelta::Kind::kCallEnd: given.calls.at(static_cast<size_t>(delta.call)).complete = true; break;
      }
    }
  };
  for (size_t at = 0; at < answer.size();) {
    if (answer[at] == 1 || answer[at] == 2) {
      take(parser.add(answer[at], answer[at] == 1 ? "<think>" : "</think>"));
      ++at;
      continue;
    }
    const size_t mark = std::min(answer.find_first_of("\x01\x02", at), answer.size());
    size_t bytes = mark - at;
    if (cut > 0) bytes = std::min<size_t>(bytes, 1 + (cut = cut * 1664525u + 1013904223u) / 65536 % 11);
    take(parser.add(0, answer.substr(at, bytes)));
    at += bytes;
  }
  take(parser.finish());
  require(given.reasoning == parser.reasoning());
  require(given.text == parser.text());
  require(given.calls.size() == parser.calls().size());
  for (size_t i = 0; i < given.calls.size(); ++i) {
    const ToolCall& call = parser.calls()[i];
    require(given.calls[i].complete);  // each that began ended
    require(given.calls[i].name == call.name);
    require(given.calls[i].arguments == call.arguments);
    require(Json::accept(call.arguments));
    require(Json::parse(call.arguments, nullptr, false).is_object());
    require(call.complete == call.problem.empty());
  }
  given.calls = parser.calls();
  return given;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view answer(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Parts whole = parse(answer, data[0], 0), cut = parse(answer, data[0], 1u + data[0]);
  require(whole.reasoning == cut.reasoning);
  require(whole.text == cut.text);
  require(whole.calls.size() == cut.calls.size());
  for (size_t i = 0; i < whole.calls.size(); ++i) {
    require(whole.calls[i].name == cut.calls[i].name);
    require(whole.calls[i].arguments == cut.calls[i].arguments);
    require(whole.calls[i].problem == cut.calls[i].problem);
  }
  return 0;
}
