// The table of keywords and what each one says.
#include "text/schema_keywords.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "text/string_format.h"

namespace foretoken {
namespace {

// Keywords that say nothing about which values are allowed.
constexpr std::string_view kAnnotations[] = {"$schema",
                                             "$id",
                                             "id",
                                             "$comment",
                                             "$defs",
                                             "definitions",
                                             "$anchor",
                                             "$vocabulary",
                                             "title",
                                             "description",
                                             "default",
                                             "examples",
                                             "example",
                                             "deprecated",
                                             "readOnly",
                                             "writeOnly",
                                             "contentMediaType",
                                             "contentEncoding",
                                             "contentSchema",
                                             "discriminator",
                                             "externalDocs",
                                             "xml",
                                             "strict",
                                             "enumNames",
                                             "enumDescriptions",
                                             "markdownDescription",
                                             "markdownEnumDescriptions",
                                             "errorMessage",
                                             "propertyOrdering",
                                             "defaultSnippets",
                                             "deprecationMessage",
                                             "tags"};

// Keywords that constrain in a way that is not supported.
constexpr std::string_view kRefused[] = {"not",
                                         "if",
                                         "then",
                                         "else",
                                         "dependentRequired",
                                         "dependentSchemas",
                                         "dependencies",
                                         "contains",
                                         "minContains",
                                         "maxContains",
                                         "$dynamicRef",
                                         "$dynamicAnchor",
                                         "$recursiveRef",
                                         "$recursiveAnchor",
                                         "extends",
                                         "disallow",
                                         "divisibleBy"};

// Formats of OpenAPI that are about the reader's type alone.
constexpr std::string_view kTypeFormats[] = {"int64", "float", "double", "password", "decimal"};

constexpr uint32_t kLargestCount = 1u << 30;

bool contains(std::span<const std::string_view> list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

const KeywordReader::Keyword KeywordReader::kKeywords[] = {
    {"$ref", &KeywordReader::combined},
    {"allOf", &KeywordReader::combined},
    {"anyOf", &KeywordReader::combined},
    {"oneOf", &KeywordReader::combined},
    {"type", &KeywordReader::type},
    {"nullable", &KeywordReader::nullable},
    {"enum", &KeywordReader::enumeration},
    {"const", &KeywordReader::constant},
    {"minimum", &KeywordReader::minimum},
    {"maximum", &KeywordReader::maximum},
    {"exclusiveMinimum", &KeywordReader::exclusive_minimum},
    {"exclusiveMaximum", &KeywordReader::exclusive_maximum},
    {"multipleOf", &KeywordReader::multiple_of},
    {"minLength", &KeywordReader::min_length},
    {"maxLength", &KeywordReader::max_length},
    {"pattern", &KeywordReader::pattern},
    {"format", &KeywordReader::format},
    {"items", &KeywordReader::items},
    {"prefixItems", &KeywordReader::prefix_items},
    {"additionalItems", &KeywordReader::additional_items},
    {"minItems", &KeywordReader::min_items},
    {"maxItems", &KeywordReader::max_items},
    {"uniqueItems", &KeywordReader::unique_items},
    {"unevaluatedItems", &KeywordReader::unevaluated_items},
    {"properties", &KeywordReader::properties},
    {"required", &KeywordReader::required},
    {"additionalProperties", &KeywordReader::additional_properties},
    {"patternProperties", &KeywordReader::pattern_properties},
    {"propertyNames", &KeywordReader::property_names},
    {"minProperties", &KeywordReader::min_properties},
    {"maxProperties", &KeywordReader::max_properties},
    {"unevaluatedProperties", &KeywordReader::unevaluated_properties},
};

Result<Shape> KeywordReader::read() {
  shape_.where = reader_.where(schema_);
  shape_.object.layers.emplace_back();
  for (const auto& [key, value] : schema_.items()) {
    key_ = key;
    const auto found =
        std::find_if(std::begin(kKeywords), std::end(kKeywords), [&](const Keyword& k) { return k.name == key_; });
    if (found != std::end(kKeywords)) TRY((this->*found->read)(value));
    else if (contains(kRefused, key)) return refused("this keyword is not supported");
    else if (!contains(kAnnotations, key) && !key.starts_with("x-") && !reader_.limits_.ignore_unknown)
      return refused("this keyword is not known");
  }
  if (nullable_) shape_.types |= kNullType;
  return std::move(shape_);
}

Status KeywordReader::check_schema(const OrderedJson& value) const {
  if (value.is_object() || value.is_boolean()) return {};
  return usage("must be a schema: an object, true or false");
}

Result<uint32_t> KeywordReader::count(const OrderedJson& value) const {
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!(number >= 0) || number != std::floor(number)) return usage("must be an integer of at least 0");
  if (number > kLargestCount) return refused("must be at most " + std::to_string(kLargestCount));
  return static_cast<uint32_t>(number);
}

Result<NumberRange::Bound> KeywordReader::bound(const OrderedJson& value) const {
  if (!value.is_number()) return usage("must be a number");
  return NumberRange::Bound{decimal_of(value), false};
}

const OrderedJson* KeywordReader::sibling(const char* name) const {
  const auto found = schema_.find(name);
  return found == schema_.end() ? nullptr : &*found;
}

bool KeywordReader::combines() const {
  return sibling("$ref") || sibling("allOf") || sibling("anyOf") || sibling("oneOf");
}

bool KeywordReader::is_draft4_exclusive(const char* name) const {
  const OrderedJson* value = sibling(name);
  return value && value->is_boolean() && value->get<bool>();
}

Status KeywordReader::combined(const OrderedJson&) { return {}; }

Status KeywordReader::type(const OrderedJson& value) {
  uint8_t types = 0;
  bool number = false, integer = false;
  const auto add = [&](const OrderedJson& name) {
    if (!name.is_string()) return false;
    const auto text = name.get<std::string>();
    if (text == "null") types |= kNullType;
    else if (text == "boolean") types |= kBooleanType;
    else if (text == "string") types |= kStringType;
    else if (text == "array") types |= kArrayType;
    else if (text == "object") types |= kObjectType;
    else if (text == "number") number = true;
    else if (text == "integer") integer = true;
    else return false;
    return true;
  };
  const bool known = value.is_array() ? std::all_of(value.begin(), value.end(), add) : add(value);
  if (!known) return usage("must be one of the seven type names, or a list of them");
  if (number || integer) types |= kNumberType;
  shape_.number.integer |= integer && !number;
  shape_.types = types;
  return {};
}

Status KeywordReader::nullable(const OrderedJson& value) {
  if (!value.is_boolean()) return usage("must be true or false");
  nullable_ = value.get<bool>();
  return {};
}

Status KeywordReader::enumeration(const OrderedJson& value) {
  if (!value.is_array()) return usage("must be a list of values");
  ValueSet values;
  for (const OrderedJson& v : value) values.add(v);
  if (shape_.values) values.keep_common(*shape_.values);
  shape_.values = std::move(values);
  return {};
}

Status KeywordReader::constant(const OrderedJson& value) {
  const bool other = shape_.values && !shape_.values->contains(value);
  shape_.values.emplace();
  if (!other) shape_.values->add(value);
  return {};
}

Status KeywordReader::minimum(const OrderedJson& value) {
  ASSIGN_OR_RETURN(NumberRange::Bound at, bound(value));
  at.exclusive = is_draft4_exclusive("exclusiveMinimum");
  shape_.number.raise_lower(at);
  return {};
}

Status KeywordReader::maximum(const OrderedJson& value) {
  ASSIGN_OR_RETURN(NumberRange::Bound at, bound(value));
  at.exclusive = is_draft4_exclusive("exclusiveMaximum");
  shape_.number.sink_upper(at);
  return {};
}

Status KeywordReader::exclusive_minimum(const OrderedJson& value) {
  if (value.is_boolean()) return {};  // of draft 4: read with `minimum`
  ASSIGN_OR_RETURN(NumberRange::Bound at, bound(value));
  at.exclusive = true;
  shape_.number.raise_lower(at);
  return {};
}

Status KeywordReader::exclusive_maximum(const OrderedJson& value) {
  if (value.is_boolean()) return {};
  ASSIGN_OR_RETURN(NumberRange::Bound at, bound(value));
  at.exclusive = true;
  shape_.number.sink_upper(at);
  return {};
}

Status KeywordReader::multiple_of(const OrderedJson& value) {
  constexpr int64_t kLargest = 1000;
  if (!value.is_number() || value.get<double>() <= 0) return usage("must be a number above 0");
  const auto divisor = value.get<double>() <= kLargest ? value.get<int64_t>() : 0;
  if (divisor < 1 || static_cast<double>(divisor) != value.get<double>())
    return refused("only multiples of an integer from 1 to 1000 are supported");
  shape_.number.integer = true;
  shape_.number.multiple = std::lcm(shape_.number.multiple, static_cast<uint32_t>(divisor));
  return {};
}

Status KeywordReader::min_length(const OrderedJson& value) {
  ASSIGN_OR_RETURN(shape_.string.min, count(value));
  return {};
}

Status KeywordReader::max_length(const OrderedJson& value) {
  ASSIGN_OR_RETURN(shape_.string.max, count(value));
  return {};
}

Status KeywordReader::pattern(const OrderedJson& value) {
  if (!value.is_string()) return usage("must be a string");
  shape_.string.patterns.push_back(&value);
  return {};
}

Status KeywordReader::format(const OrderedJson& value) {
  if (!value.is_string()) return usage("must be a string");
  const auto name = value.get<std::string>();
  if (name == "int32") {
    shape_.number.raise_lower({decimal_of(OrderedJson(INT32_MIN)), false});
    shape_.number.sink_upper({decimal_of(OrderedJson(INT32_MAX)), false});
    return {};
  }
  if (contains(kTypeFormats, name)) return {};
  if (!string_format(name)) return refused("the format '" + name.substr(0, 40) + "' is not supported");
  shape_.string.formats.push_back(&value);
  return {};
}

// A schema for every element, or (before 2020-12) a list for the first ones.
Status KeywordReader::items(const OrderedJson& value) {
  if (value.is_array()) return prefix_items(value);
  TRY(check_schema(value));
  shape_.array.rest = {&value};
  return {};
}

Status KeywordReader::prefix_items(const OrderedJson& value) {
  if (!value.is_array()) return usage("must be a list of schemas");
  for (const OrderedJson& schema : value) {
    TRY(check_schema(schema));
    shape_.array.prefix.push_back({&schema});
  }
  return {};
}

Status KeywordReader::additional_items(const OrderedJson& value) {
  TRY(check_schema(value));
  const OrderedJson* first = sibling("items");
  if (first && first->is_array()) shape_.array.rest = {&value};
  return {};
}

Status KeywordReader::min_items(const OrderedJson& value) {
  ASSIGN_OR_RETURN(shape_.array.min, count(value));
  return {};
}

Status KeywordReader::max_items(const OrderedJson& value) {
  ASSIGN_OR_RETURN(shape_.array.max, count(value));
  return {};
}

Status KeywordReader::unique_items(const OrderedJson& value) {
  if (!value.is_boolean()) return usage("must be true or false");
  if (value.get<bool>()) return refused("elements that must differ are not supported");
  return {};
}

// Without schemas beside it, what is not evaluated is what no sibling keyword names.
Status KeywordReader::unevaluated_items(const OrderedJson& value) {
  TRY(check_schema(value));
  if (value.is_boolean() && value.get<bool>()) return {};
  if (combines()) return refused("not supported beside $ref, allOf, anyOf or oneOf");
  const OrderedJson* all = sibling("items");
  if (!all) shape_.array.rest = {&value};
  return {};
}

Status KeywordReader::properties(const OrderedJson& value) {
  if (!value.is_object()) return usage("must be an object of schemas");
  for (const auto& [name, schema] : value.items()) {
    TRY(check_schema(schema));
    shape_.object.layers[0].properties.push_back({name, {&schema}});
  }
  return {};
}

Status KeywordReader::required(const OrderedJson& value) {
  if (value.is_boolean()) return refused("required as a boolean (draft 3) is not supported");
  if (!value.is_array()) return usage("must be a list of names");
  for (const OrderedJson& name : value) {
    if (!name.is_string()) return usage("must be a list of names");
    const auto text = name.get<std::string>();
    auto& all = shape_.object.required;
    if (std::find(all.begin(), all.end(), text) == all.end()) all.push_back(text);
  }
  return {};
}

Status KeywordReader::additional_properties(const OrderedJson& value) {
  TRY(check_schema(value));
  shape_.object.layers[0].additional = {&value};
  return {};
}

Status KeywordReader::pattern_properties(const OrderedJson& value) {
  if (!value.is_object()) return usage("must be an object of schemas");
  for (const auto& [text, schema] : value.items()) {
    TRY(check_schema(schema));
    ASSIGN_OR_RETURN(const Dfa* const names, reader_.pattern(text, reader_.where(value)));
    shape_.object.layers[0].patterns.push_back({names, {&schema}});
  }
  return {};
}

Status KeywordReader::property_names(const OrderedJson& value) {
  TRY(check_schema(value));
  shape_.object.layers[0].names = {&value};
  return {};
}

Status KeywordReader::min_properties(const OrderedJson& value) {
  ASSIGN_OR_RETURN(shape_.object.min, count(value));
  return {};
}

Status KeywordReader::max_properties(const OrderedJson& value) {
  ASSIGN_OR_RETURN(shape_.object.max, count(value));
  return {};
}

Status KeywordReader::unevaluated_properties(const OrderedJson& value) {
  TRY(check_schema(value));
  if (value.is_boolean() && value.get<bool>()) return {};
  if (combines()) return refused("not supported beside $ref, allOf, anyOf or oneOf");
  if (!sibling("additionalProperties")) shape_.object.layers[0].additional = {&value};
  return {};
}

}  // namespace foretoken
