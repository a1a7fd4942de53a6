// Which values a schema allows, and whether two schemas can share one: for enumerations with constraints beside them
// and for the branches of oneOf.
#include <algorithm>

#include "text/json_grammar.h"
#include "text/schema_shape.h"
#include "text/unicode.h"

namespace foretoken {
namespace {

uint8_t type_of(const OrderedJson& value) {
  if (value.is_null()) return kNullType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_number()) return kNumberType;
  if (value.is_string()) return kStringType;
  return value.is_array() ? kArrayType : kObjectType;
}

size_t character_count(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) at += decode_utf8(text, at).size;
  return count;
}

constexpr int kDeepestComparison = 4;

}  // namespace

Result<bool> SchemaReader::admits(const Conjunction& schemas, const OrderedJson& value) {
  TRY(spend(1));
  ASSIGN_OR_RETURN(const std::vector<Shape>* const all, shapes(schemas));
  for (const Shape& shape : *all) {
    ASSIGN_OR_RETURN(const bool fits, admits(shape, value));
    if (fits) return true;
  }
  return false;
}

Result<bool> SchemaReader::admits(const Shape& shape, const OrderedJson& value) {
  const uint8_t type = type_of(value);
  if (!(shape.types & type)) return false;
  if (shape.values && !shape.values->contains(value)) return false;
  switch (type) {
    case kNumberType:
      return shape.number.contains(decimal_of(value));
    case kStringType:
      return admits_string(shape, value.get<std::string>());
    case kArrayType:
      return admits_array(shape.array, value);
    case kObjectType:
      return admits_object(shape.object, value);
    default:
      return true;
  }
}

Result<bool> SchemaReader::admits_string(const Shape& shape, const std::string& value) {
  const size_t length = character_count(value);
  if (length < shape.string.min || length > shape.string.max) return false;
  if (shape.string.plain()) return true;
  StringShape words = shape.string;
  words.min = 0;
  words.max = UINT32_MAX;
  Conjunction keywords = words.patterns;
  keywords.insert(keywords.end(), words.formats.begin(), words.formats.end());
  std::unique_ptr<Dfa>& known = words_[keywords];
  if (!known) {
    ASSIGN_OR_RETURN(Dfa automaton, string_words(words, Encoding::kJsonString, shape.where));
    known = std::make_unique<Dfa>(std::move(automaton));
  }
  return known->accepts(json_characters(value));
}

Result<bool> SchemaReader::admits_array(const ArrayShape& shape, const OrderedJson& value) {
  if (value.size() < shape.min || value.size() > shape.max) return false;
  for (size_t i = 0; i < value.size(); ++i) {
    ASSIGN_OR_RETURN(const bool fits, admits(shape.at(i), value[i]));
    if (!fits) return false;
  }
  return true;
}

Result<bool> SchemaReader::admits_object(const ObjectShape& shape, const OrderedJson& value) {
  if (value.size() < shape.min || value.size() > shape.max) return false;
  for (const std::string& name : shape.required)
    if (!value.contains(name)) return false;
  for (const auto& [name, child] : value.items()) {
    for (const ObjectLayer& layer : shape.layers) {
      if (!layer.names) continue;
      ASSIGN_OR_RETURN(const bool named, admits(*layer.names, OrderedJson(name)));
      if (!named) return false;
    }
    ASSIGN_OR_RETURN(const bool fits, admits(shape.at(name), child));
    if (!fits) return false;
  }
  return true;
}

Status SchemaReader::check_disjoint_branches(const OrderedJson& schema) {
  const OrderedJson& branches = schema["oneOf"];
  for (size_t i = 0; i < branches.size(); ++i)
    for (size_t j = i + 1; j < branches.size(); ++j) {
      ASSIGN_OR_RETURN(const bool apart, disjoint(Conjunction{&branches[i]}, Conjunction{&branches[j]}));
      if (!apart)
        return error(
            ErrorCode::kUnsupported, schema, "oneOf",
            "branches " + std::to_string(i) + " and " + std::to_string(j) +
                " may allow the same value; use anyOf, or tell them apart by a required property with a const");
    }
  return {};
}

Result<bool> SchemaReader::disjoint(const Conjunction& a, const Conjunction& b, int depth) {
  if (depth > kDeepestComparison) return false;
  TRY(spend(1));
  ASSIGN_OR_RETURN(const std::vector<Shape>* const left, shapes(a));
  ASSIGN_OR_RETURN(const std::vector<Shape>* const right, shapes(b));
  for (const Shape& l : *left)
    for (const Shape& r : *right) {
      ASSIGN_OR_RETURN(const bool apart, disjoint(l, r, depth));
      if (!apart) return false;
    }
  return true;
}

Result<bool> SchemaReader::disjoint(const Shape& a, const Shape& b, int depth) {
  TRY(spend(1));
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    if (!one->values) continue;
    for (const OrderedJson* value : *one->values) {
      TRY(spend(1));
      ASSIGN_OR_RETURN(const bool here, admits(*one, *value));
      if (!here) continue;
      ASSIGN_OR_RETURN(const bool there, admits(*other, *value));
      if (there) return false;
    }
    return true;
  }
  const uint8_t common = a.types & b.types;
  if (common & (kNullType | kBooleanType)) return false;
  if (common & kNumberType) {
    NumberRange range = a.number;
    if (b.number.lower) range.raise_lower(*b.number.lower);
    if (b.number.upper) range.sink_upper(*b.number.upper);
    if (!range.lower || !range.upper || compare(range.lower->value, range.upper->value) < 0) return false;
    if (compare(range.lower->value, range.upper->value) == 0 && !range.lower->exclusive && !range.upper->exclusive)
      return false;
  }
  if ((common & kStringType) && a.string.max >= b.string.min && b.string.max >= a.string.min) {
    if (a.string.plain() || b.string.plain()) return false;
    ASSIGN_OR_RETURN(const Dfa left, string_words(a.string, Encoding::kJsonString, a.where));
    ASSIGN_OR_RETURN(const Dfa right, string_words(b.string, Encoding::kJsonString, b.where));
    ASSIGN_OR_RETURN(const Dfa both, intersect(left, right, automaton_limits()));
    if (!both.empty()) return false;
  }
  if ((common & kArrayType) && a.array.max >= b.array.min && b.array.max >= a.array.min) {
    bool apart = false;
    for (size_t i = 0; i < std::min<size_t>(8, std::max(a.array.min, b.array.min)) && !apart; ++i) {
      ASSIGN_OR_RETURN(apart, disjoint(a.array.at(i), b.array.at(i), depth + 1));
    }
    if (!apart) return false;
  }
  if (common & kObjectType) return disjoint_objects(a.object, b.object, depth);
  return true;
}

// A member that one of them requires cannot satisfy both.
Result<bool> SchemaReader::disjoint_objects(const ObjectShape& a, const ObjectShape& b, int depth) {
  if (a.max < b.min || b.max < a.min) return true;
  for (const auto* required : {&a.required, &b.required})
    for (const std::string& name : *required) {
      ASSIGN_OR_RETURN(const bool apart, disjoint(a.at(name), b.at(name), depth + 1));
      if (apart) return true;
    }
  return false;
}

}  // namespace foretoken
