// The two instantiations of the JSON parser, kept in one translation unit because they compile slowly.
#include "base/json.h"

#include <charconv>
#include <cmath>

namespace foretoken {
namespace {

// Depth of the nesting, counted outside strings; no value is built.
bool deeper_than(std::string_view text, int limit) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      else if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limit) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

template <class J>
Result<J> parse(std::string_view text, std::string_view what, JsonLimits limits) {
  if (text.size() > limits.bytes)
    return Error{ErrorCode::kInvalidFile, std::string(what) + ": JSON of " + std::to_string(text.size()) +
                                              " bytes is larger than the limit of " + std::to_string(limits.bytes)};
  if (deeper_than(text, limits.depth))
    return Error{ErrorCode::kInvalidFile,
                 std::string(what) + ": JSON nested deeper than " + std::to_string(limits.depth) + " levels"};
  if (text.find('\0') != std::string_view::npos)  // the library takes it for the end
    return Error{ErrorCode::kInvalidFile, std::string(what) + ": not valid JSON: it holds a zero byte"};
  try {
    return J::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& e) {
    std::string reason = e.what();
    if (const size_t bracket = reason.find("] "); bracket != std::string::npos) reason = reason.substr(bracket + 2);
    return Error{ErrorCode::kInvalidFile, std::string(what) + ": not valid JSON: " + reason};
  }
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what, JsonLimits limits) {
  return parse<Json>(text, what, limits);
}

Result<OrderedJson> parse_ordered_json(std::string_view text, std::string_view what, JsonLimits limits) {
  return parse<OrderedJson>(text, what, limits);
}

std::string dump_json(const OrderedJson& value, int indent) {
  return value.dump(indent, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson json_float(float value) {
  if (!std::isfinite(value)) return nullptr;
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value);
  double parsed = 0;
  std::from_chars(text, end.ptr, parsed);  // the double nearest to the shortest decimal prints as that decimal
  return parsed;
}

}  // namespace foretoken
