// A small validator of JSON Schema for tests: keyword by keyword over values, without automata. Patterns go to PCRE2;
// formats are checked by their length alone.
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cmath>
#include <memory>
#include <string>

#include "base/json.h"
#include "text/unicode.h"

namespace foretoken::test {

class SchemaValidator {
 public:
  explicit SchemaValidator(const OrderedJson& root) : root_(root) {}

  // The first keyword that `value` breaks, or nothing.
  std::string violation(const OrderedJson& schema, const OrderedJson& value, int depth = 0) const {
    if (depth > 500) return "depth";
    if (schema.is_boolean()) return schema.get<bool>() ? "" : "false";
    for (const auto& [key, keyword] : schema.items())
      if (const std::string found = check(key, keyword, schema, value, depth); !found.empty()) return found;
    return "";
  }

 private:
  static bool matches(const std::string& pattern, const std::string& text) {
    int error = 0;
    PCRE2_SIZE at = 0;
    // JavaScript's \uXXXX spellings, and $ only at the very end.
    const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                      PCRE2_UTF | PCRE2_ALT_BSUX | PCRE2_DOLLAR_ENDONLY, &error, &at, nullptr),
        pcre2_code_free);
    if (!code) return true;  // another dialect
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
        pcre2_match_data_create_from_pattern(code.get(), nullptr), pcre2_match_data_free);
    return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data.get(), nullptr) >=
           0;
  }
  static size_t length(const std::string& text) {
    size_t count = 0;
    for (size_t at = 0; at < text.size(); ++count) at += decode_utf8(text, at).size;
    return count;
  }
  static bool is_integer(const OrderedJson& v) {
    return v.is_number_integer() || (v.is_number() && v.get<double>() == std::floor(v.get<double>()));
  }
  static bool has_type(const std::string& type, const OrderedJson& v) {
    return (type == "null" && v.is_null()) || (type == "boolean" && v.is_boolean()) ||
           (type == "string" && v.is_string()) || (type == "array" && v.is_array()) ||
           (type == "object" && v.is_object()) || (type == "number" && v.is_number()) ||
           (type == "integer" && is_integer(v));
  }
  const OrderedJson& resolve(const std::string& ref) const {
    std::string pointer;
    for (size_t i = 1; i < ref.size(); ++i) {
      if (ref.compare(i, 3, "%20") == 0) pointer += ' ', i += 2;
      else pointer += ref[i];
    }
    if (!pointer.empty() && pointer[0] != '/') {  // the one anchor of the cases
      for (const OrderedJson& d : root_["$defs"])
        if (d.value("$anchor", "") == pointer) return d;
    }
    return root_.at(OrderedJson::json_pointer(pointer));
  }

  std::string check(const std::string& key, const OrderedJson& k, const OrderedJson& schema, const OrderedJson& v,
                    int depth) const {
    const auto broken = [&](bool ok) { return ok ? std::string() : key + " " + k.dump(); };
    const bool draft4 =
        (key == "minimum" && schema.contains("exclusiveMinimum") && schema["exclusiveMinimum"] == true) ||
        (key == "maximum" && schema.contains("exclusiveMaximum") && schema["exclusiveMaximum"] == true);
    if (key == "type") {
      if (schema.value("nullable", false) && v.is_null()) return "";
      if (k.is_string()) return broken(has_type(k.get<std::string>(), v));
      return broken(
          std::any_of(k.begin(), k.end(), [&](const OrderedJson& t) { return has_type(t.get<std::string>(), v); }));
    }
    if (key == "enum") return broken(std::find(k.begin(), k.end(), v) != k.end());
    if (key == "const") return broken(k == v);
    if (key == "$ref") return violation(resolve(k.get<std::string>()), v, depth + 1);
    if (key == "allOf") {
      for (const OrderedJson& s : k)
        if (const std::string found = violation(s, v, depth + 1); !found.empty()) return found;
      return "";
    }
    if (key == "anyOf" || key == "oneOf") {
      const auto count =
          std::count_if(k.begin(), k.end(), [&](const OrderedJson& s) { return violation(s, v, depth + 1).empty(); });
      return broken(key == "anyOf" ? count > 0 : count == 1);
    }
    if (v.is_number() && k.is_number()) {
      const double x = v.get<double>(), bound = k.get<double>();
      if (key == "minimum") return broken(draft4 ? x > bound : x >= bound);
      if (key == "maximum") return broken(draft4 ? x < bound : x <= bound);
      if (key == "exclusiveMinimum") return broken(x > bound);
      if (key == "exclusiveMaximum") return broken(x < bound);
      if (key == "multipleOf") return broken(std::fmod(x, bound) == 0);
    }
    if (v.is_string()) return check_string(key, k, v.get<std::string>(), broken);
    if (v.is_array()) return check_array(key, k, schema, v, depth, broken);
    if (v.is_object()) return check_object(key, k, schema, v, depth, broken);
    return "";
  }

  template <class Broken>
  std::string check_string(const std::string& key, const OrderedJson& k, const std::string& v, Broken broken) const {
    if (key == "minLength") return broken(length(v) >= k.get<size_t>());
    if (key == "maxLength") return broken(length(v) <= k.get<size_t>());
    if (key == "pattern") return broken(matches(k.get<std::string>(), v));
    if (key == "format" && k == "date") return broken(v.size() == 10);
    if (key == "format" && k == "uuid") return broken(v.size() == 36);
    return "";
  }

  template <class Broken>
  std::string check_array(const std::string& key, const OrderedJson& k, const OrderedJson& schema, const OrderedJson& v,
                          int depth, Broken broken) const {
    if (key == "minItems") return broken(v.size() >= k.get<size_t>());
    if (key == "maxItems") return broken(v.size() <= k.get<size_t>());
    const OrderedJson* prefix = schema.contains("prefixItems")                           ? &schema["prefixItems"]
                                : schema.contains("items") && schema["items"].is_array() ? &schema["items"]
                                                                                         : nullptr;
    const size_t n = prefix ? prefix->size() : 0;
    const bool rest = (key == "items" && !k.is_array()) || key == "additionalItems" || key == "unevaluatedItems";
    for (size_t i = 0; i < v.size(); ++i) {
      const OrderedJson* s = &k == prefix && i < n ? &k[i] : rest && i >= n ? &k : nullptr;
      if (!s) continue;
      if (const std::string found = violation(*s, v[i], depth + 1); !found.empty()) return found;
    }
    return "";
  }

  template <class Broken>
  std::string check_object(const std::string& key, const OrderedJson& k, const OrderedJson& schema,
                           const OrderedJson& v, int depth, Broken broken) const {
    if (key == "required")
      return broken(std::all_of(k.begin(), k.end(),
                                [&](const OrderedJson& name) { return v.contains(name.get<std::string>()); }));
    if (key == "minProperties") return broken(v.size() >= k.get<size_t>());
    if (key == "maxProperties") return broken(v.size() <= k.get<size_t>());
    for (const auto& [name, child] : v.items()) {
      std::string found;
      const bool named = schema.contains("properties") && schema["properties"].contains(name);
      bool patterned = false;
      if (schema.contains("patternProperties"))
        for (const auto& [pattern, s] : schema["patternProperties"].items()) {
          if (!matches(pattern, name)) continue;
          patterned = true;
          if (key == "patternProperties") found += violation(s, child, depth + 1);
        }
      if (key == "properties" && named) found = violation(k[name], child, depth + 1);
      if ((key == "additionalProperties" || key == "unevaluatedProperties") && !named && !patterned)
        found = violation(k, child, depth + 1);
      if (key == "propertyNames") found = violation(k, OrderedJson(name), depth + 1);
      if (!found.empty()) return found;
    }
    return "";
  }

  const OrderedJson& root_;
};

inline std::string violation(const OrderedJson& schema, const OrderedJson& value) {
  return SchemaValidator(schema).violation(schema, value);
}

}  // namespace foretoken::test
