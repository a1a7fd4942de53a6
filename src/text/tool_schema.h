// What the tools of a request say about the types of their parameters, and how the text of a value, as a model writes it, becomes JSON.
// It follows schemas as far as types go and judges nothing else: whether a call satisfies its schema is its receiver's business.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/json.h"

namespace foretoken {

// Kinds of JSON values that a parameter may have, as a set of bits.
using ValueKinds = uint8_t;
inline constexpr ValueKinds kNullKind = 1, kBooleanKind = 2, kIntegerKind = 4, kNumberKind = 8, kStringKind = 16, kArrayKind = 32, kObjectKind = 64;
inline constexpr ValueKinds kAnyKind = 127;

// The kinds that `schema` allows: type, enum, const, anyOf, oneOf, allOf and references ($ref) inside `root` are followed. A schema that says
// nothing allows any; one that contradicts itself a string.
ValueKinds kinds_of_schema(const Json& schema, const Json& root);

class ToolSchemas {
 public:
  ToolSchemas() = default;
  // `tools`: the array of a chat request: {"type": "function", "function": {"name", "parameters"}}, or the inner objects alone. What has
  // another form is left out.
  explicit ToolSchemas(const Json& tools);

  bool empty() const { return functions_.empty(); }
  // Parameters that no schema knows are strings.
  ValueKinds kinds_of(std::string_view function, std::string_view parameter) const;

 private:
  struct Function {
    std::unordered_map<std::string, ValueKinds> parameters;
    ValueKinds others = kStringKind;
  };
  std::unordered_map<std::string, Function> functions_;
};

// The JSON of a value written as `text`: its own JSON text where it parses to an allowed kind other than a string (Python's True, False and None
// are read too), else the text as a string, so that nothing is ever lost. `text` is valid UTF-8.
std::string json_of_value(std::string_view text, ValueKinds kinds);

// `text` inside a JSON string, without the quotes. `text` is valid UTF-8, and may be cut at any character.
std::string json_escaped(std::string_view text);

}  // namespace foretoken
