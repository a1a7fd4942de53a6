// JSON by nlohmann, behind our error type and with size and depth limits. Large machine-written files (tokenizer.json,
// safetensors headers) are read with simdjson where they are parsed; this is for configurations, requests and results.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace foretoken {

using Json = nlohmann::json;                 // keys sorted
using OrderedJson = nlohmann::ordered_json;  // insertion order kept: messages, tools, printed results

struct JsonLimits {
  size_t bytes = 64u << 20;
  int depth = 128;
};

// `what` names the source in the error, for example a path. Invalid UTF-8 and duplicate-free order are the library's
// business; depth is checked before any value is built, so hostile nesting cannot exhaust the stack.
Result<Json> parse_json(std::string_view text, std::string_view what, JsonLimits limits = {});
Result<OrderedJson> parse_ordered_json(std::string_view text, std::string_view what, JsonLimits limits = {});

// Text of `value`, invalid UTF-8 replaced. Floats round-trip; fp32 values printed through `json_float` need 9 digits.
std::string dump_json(const OrderedJson& value, int indent = -1);

// Shortest decimal number that reads back as the same fp32 value, as a JSON number.
OrderedJson json_float(float value);

}  // namespace foretoken
