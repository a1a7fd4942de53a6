// A JSON Schema as foreign bytes: it becomes a grammar or is refused with a sentence, within its limits. A walk along
// the first bytes that are possible never meets a dead end, and where it may end the text is JSON. Inputs that begin
// with
// "#regex\n" are patterns.
// Covers: src/text/json_schema.cc src/text/schema_reader.cc src/text/schema_keywords.cc src/text/schema_values.cc
// Covers: src/text/regex.cc src/text/number_automaton.cc src/text/json_grammar.cc src/text/grammar.cc
// src/text/automaton.cc
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/grammar_stacks.h"
#include "text/json_schema.h"
#include "text/text_grammars.h"

using namespace foretoken;

namespace {

void check(bool condition) {
  if (!condition) std::abort();
}

constexpr GrammarLimits kLimits{.rules = 2000, .states = 20'000, .depth = 16};

// Takes, in turn, one of the possible bytes; ends where that is possible after a while.
void walk(const Grammar& grammar, uint64_t seed, bool json) {
  GrammarStacks stacks(grammar);
  SetId set = stacks.start();
  std::string text;
  for (int step = 0; step < 300; ++step) {
    if (stacks.complete(set)) {
      if (json) check(parse_json(text, "text").ok());
      if (step > 100) return;
    }
    uint8_t options[256];
    size_t count = 0;
    for (int b = 0; b < 256; ++b)
      if (stacks.step(set, static_cast<uint8_t>(b)) != GrammarStacks::kDead) options[count++] = static_cast<uint8_t>(b);
    check(count > 0 || stacks.complete(set));
    if (count == 0) return;
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    // Closing marks first in the second half, so that walks end.
    uint8_t byte = options[(seed >> 33) % count];
    if (step > 50 && step % 2)
      for (const char wanted : {'"', ']', '}'})
        for (size_t i = 0; i < count; ++i)
          if (options[i] == static_cast<uint8_t>(wanted)) byte = options[i];
    set = stacks.step(set, byte);
    text.push_back(static_cast<char>(byte));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::string_view kRegex = "#regex\n";
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (size > 1u << 14) return 0;
  if (input.starts_with(kRegex)) {
    const auto grammar = regex_grammar(input.substr(kRegex.size()), kLimits);
    if (grammar) walk(*grammar, size, false);
    else check(!grammar.error().message.empty());
    return 0;
  }
  const auto schema = parse_ordered_json(input, "schema", {.bytes = 1u << 14, .depth = 40});
  if (!schema) return 0;
  const auto grammar = json_schema_grammar(*schema, {.nodes = 2000, .shapes = 32, .work = 20'000}, kLimits);
  if (grammar) {
    for (uint64_t seed = 1; seed < 4; ++seed) walk(*grammar, seed, true);
  } else {
    check(grammar.error().code == ErrorCode::kUsage || grammar.error().code == ErrorCode::kUnsupported);
    check(grammar.error().message.starts_with("#"));
  }
  return 0;
}
