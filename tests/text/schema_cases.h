// The cases of tests/data/text/schema_cases.json (its writer, make_schema_cases.py, says what they hold).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/data.h"
#include "text/grammar_stacks.h"

namespace foretoken::test {

struct SchemaCase {
  std::string name;
  OrderedJson schema;
  std::vector<OrderedJson> accept, reject, narrowed;
  std::vector<std::string> accept_text, reject_text;
  std::optional<std::string> refused;
};

inline const std::vector<SchemaCase>& schema_cases() {
  static const std::vector<SchemaCase> cases = [] {
    std::vector<SchemaCase> out;
    for (const OrderedJson& c : parse_or_fail(read_data("schema_cases.json"), "schema_cases.json")) {
      SchemaCase& one = out.emplace_back();
      one.name = c["name"].get<std::string>();
      one.schema = c["schema"];
      if (c.contains("refused")) one.refused = c["refused"].get<std::string>();
      const auto values = [&](const char* key) {
        return c.contains(key) ? c[key].get<std::vector<OrderedJson>>() : std::vector<OrderedJson>();
      };
      one.accept = values("accept");
      one.reject = values("reject");
      one.narrowed = values("narrowed");
      for (const OrderedJson& text : values("accept_text")) one.accept_text.push_back(text.get<std::string>());
      for (const OrderedJson& text : values("reject_text")) one.reject_text.push_back(text.get<std::string>());
    }
    return out;
  }();
  return cases;
}

// Compact but for one space behind every comma and colon outside strings.
inline std::string spaced(const OrderedJson& value) {
  std::string out;
  bool in_string = false;
  const std::string text = dump_json(value);
  for (size_t i = 0; i < text.size(); ++i) {
    out.push_back(text[i]);
    if (in_string && text[i] == '\\') out.push_back(text[++i]);
    else if (text[i] == '"') in_string = !in_string;
    else if (!in_string && (text[i] == ',' || text[i] == ':')) out.push_back(' ');
  }
  return out;
}

// Whether the grammar reads all of `text` and may end there.
inline bool accepts(const Grammar& grammar, std::string_view text) {
  GrammarStacks stacks(grammar);
  SetId set = stacks.start();
  for (const char c : text) set = stacks.step(set, static_cast<uint8_t>(c));
  return stacks.complete(set);
}

}  // namespace foretoken::test
