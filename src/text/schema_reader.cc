// References, combinations of schemas and the merging of shapes.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "text/regex.h"
#include "text/schema_keywords.h"
#include "text/schema_shape.h"
#include "text/string_format.h"

namespace foretoken {
namespace {

std::string pointer_token(std::string_view key) {
  std::string out;
  for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

// A URI fragment without its percent signs; pointers are kept as they are spelt.
std::string decode_fragment(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0) {
      out.push_back(static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2])));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

void intersect_values(std::optional<ValueSet>& a, const std::optional<ValueSet>& b) {
  if (!b) return;
  if (a) a->keep_common(*b);
  else a = b;
}

ArrayShape merged(const ArrayShape& a, const ArrayShape& b) {
  ArrayShape out;
  for (size_t i = 0; i < std::max(a.prefix.size(), b.prefix.size()); ++i) {
    out.prefix.push_back(a.at(i));
    join(out.prefix.back(), b.at(i));
  }
  out.rest = a.rest;
  join(out.rest, b.rest);
  out.min = std::max(a.min, b.min);
  out.max = std::min(a.max, b.max);
  return out;
}

void merge_objects(ObjectShape& a, const ObjectShape& b) {
  a.layers.insert(a.layers.end(), b.layers.begin(), b.layers.end());
  for (const std::string& name : b.required)
    if (std::find(a.required.begin(), a.required.end(), name) == a.required.end()) a.required.push_back(name);
  a.min = std::max(a.min, b.min);
  a.max = std::min(a.max, b.max);
}

// What both allow; no types when nothing.
Shape merged(const Shape& a, const Shape& b) {
  Shape out = a;
  out.types &= b.types;
  if (out.where.empty()) out.where = b.where;
  out.number.integer |= b.number.integer;
  out.number.multiple = std::lcm(a.number.multiple, b.number.multiple);
  if (b.number.lower) out.number.raise_lower(*b.number.lower);
  if (b.number.upper) out.number.sink_upper(*b.number.upper);
  out.string.min = std::max(a.string.min, b.string.min);
  out.string.max = std::min(a.string.max, b.string.max);
  for (const auto list : {&StringShape::patterns, &StringShape::formats})
    (out.string.*list).insert((out.string.*list).end(), (b.string.*list).begin(), (b.string.*list).end());
  out.array = merged(a.array, b.array);
  merge_objects(out.object, b.object);
  intersect_values(out.values, b.values);
  if (out.values && out.values->empty()) out.types = 0;
  return out;
}

}  // namespace

void join(Conjunction& into, const Conjunction& from) {
  for (const OrderedJson* schema : from)
    if (std::find(into.begin(), into.end(), schema) == into.end()) into.push_back(schema);
}

const OrderedJson& false_schema() {
  static const OrderedJson value = false;
  return value;
}

Conjunction ObjectShape::at(const std::string& name) const {
  Conjunction out;
  const std::string characters = dump_json(OrderedJson(name));
  const std::string_view inner = std::string_view(characters).substr(1, characters.size() - 2);
  for (const ObjectLayer& layer : layers) {
    bool named = false;
    for (const auto& [key, schemas] : layer.properties)
      if (key == name) {
        named = true;
        join(out, schemas);
      }
    for (const auto& [words, schemas] : layer.patterns)
      if (words->accepts(inner)) {
        named = true;
        join(out, schemas);
      }
    if (!named) join(out, layer.additional);
  }
  return out;
}

Result<SchemaReader> SchemaReader::open(const OrderedJson& document, SchemaLimits limits) {
  SchemaReader reader(document, limits);
  if (!document.is_object() && !document.is_boolean())
    return Error{ErrorCode::kUsage, "#: a JSON Schema must be an object, true or false"};
  TRY(reader.index(document, "#", 0));
  return reader;
}

Status SchemaReader::index(const OrderedJson& node, const std::string& pointer, int depth) {
  if (where_.size() >= limits_.nodes)
    return Error{ErrorCode::kUsage, "#: the schema holds more than " + std::to_string(limits_.nodes) + " values"};
  if (depth > 2 * limits_.depth)
    return Error{ErrorCode::kUsage, pointer.substr(0, 200) + ": the schema is nested too deeply"};
  where_[&node] = pointer;
  by_pointer_[pointer] = &node;
  if (node.is_object()) {
    if (const auto anchor = node.find("$anchor"); anchor != node.end() && anchor->is_string())
      by_anchor_["#" + anchor->get<std::string>()] = &node;
    for (const auto& [key, child] : node.items()) TRY(index(child, pointer + "/" + pointer_token(key), depth + 1));
  } else if (node.is_array()) {
    size_t i = 0;
    for (const OrderedJson& child : node) TRY(index(child, pointer + "/" + std::to_string(i++), depth + 1));
  }
  return {};
}

const std::string& SchemaReader::where(const OrderedJson& schema) const {
  static const std::string kNowhere = "#";
  const auto found = where_.find(&schema);
  return found == where_.end() ? kNowhere : found->second;
}

Error SchemaReader::error(ErrorCode code, const OrderedJson& schema, std::string_view key,
                          std::string_view what) const {
  return {code, where(schema) + (key.empty() ? "" : "/" + pointer_token(key)) + ": " + std::string(what)};
}

Status SchemaReader::spend(size_t work) {
  work_ += work;
  if (work_ <= limits_.work) return {};
  return Error{ErrorCode::kUnsupported, "#: the schema combines too many alternatives"};
}

Result<const OrderedJson*> SchemaReader::resolve(const OrderedJson& schema) const {
  const OrderedJson& ref = schema["$ref"];
  if (!ref.is_string()) return error(ErrorCode::kUsage, schema, "$ref", "must be a string");
  const auto text = ref.get<std::string>();
  if (!text.starts_with("#"))
    return error(ErrorCode::kUnsupported, schema, "$ref", "only references within the schema (#...) are supported");
  const std::string target = decode_fragment(text);
  if (const auto found = by_pointer_.find(target); found != by_pointer_.end()) return found->second;
  if (const auto found = by_anchor_.find(target); found != by_anchor_.end()) return found->second;
  return error(ErrorCode::kUsage, schema, "$ref", "there is nothing at " + text.substr(0, 200));
}

namespace {

// Keywords beside which a reference or a choice still says everything.
bool says_only(const OrderedJson& schema, std::string_view keyword) {
  constexpr std::string_view kSilent[] = {"title",    "description", "default",      "examples", "$comment",
                                          "$defs",    "definitions", "$schema",      "$id",      "deprecated",
                                          "readOnly", "writeOnly",   "discriminator"};
  for (const auto& [key, value] : schema.items())
    if (key != keyword && std::find(std::begin(kSilent), std::end(kSilent), key) == std::end(kSilent)) return false;
  return true;
}

}  // namespace

Result<Conjunction> SchemaReader::canonical(const Conjunction& schemas) const {
  Conjunction out;
  for (const OrderedJson* schema : schemas) {
    size_t steps = 0;
    while (schema->is_object() && schema->contains("$ref") && says_only(*schema, "$ref")) {
      if (++steps > where_.size())
        return error(ErrorCode::kUnsupported, *schema, "$ref", "refers to itself with nothing in between");
      ASSIGN_OR_RETURN(schema, resolve(*schema));
    }
    const bool anything = (schema->is_boolean() && schema->get<bool>()) || (schema->is_object() && schema->empty());
    if (!anything) join(out, {schema});
  }
  return out;
}

std::optional<std::vector<Conjunction>> SchemaReader::pure_choice(const Conjunction& schemas) const {
  if (schemas.size() != 1 || !schemas[0]->is_object()) return std::nullopt;
  const OrderedJson& schema = *schemas[0];
  if (!schema.contains("anyOf") || !schema["anyOf"].is_array() || schema["anyOf"].empty() ||
      !says_only(schema, "anyOf"))
    return std::nullopt;
  std::vector<Conjunction> branches;
  for (const OrderedJson& branch : schema["anyOf"]) branches.push_back({&branch});
  return branches;
}

Result<const std::vector<Shape>*> SchemaReader::shapes(const Conjunction& schemas) {
  if (const auto found = shapes_.find(schemas); found != shapes_.end()) return found->second.get();
  std::vector<Shape> all{Shape{}};
  for (const OrderedJson* schema : schemas) {
    std::vector<const OrderedJson*> open;
    ASSIGN_OR_RETURN(const std::vector<Shape> own, shapes_of(*schema, open));
    ASSIGN_OR_RETURN(all, cross(all, own, *schema));
  }
  return shapes_.emplace(schemas, std::make_unique<std::vector<Shape>>(std::move(all))).first->second.get();
}

Result<std::vector<Shape>> SchemaReader::shapes_of(const OrderedJson& schema, std::vector<const OrderedJson*>& open) {
  if (schema.is_boolean()) return schema.get<bool>() ? std::vector<Shape>{Shape{}} : std::vector<Shape>{};
  if (!schema.is_object()) return error(ErrorCode::kUsage, schema, "", "must be a schema: an object, true or false");
  if (std::find(open.begin(), open.end(), &schema) != open.end() || open.size() > static_cast<size_t>(limits_.depth))
    return error(ErrorCode::kUnsupported, schema, "", "refers to itself with nothing in between");
  open.push_back(&schema);
  ASSIGN_OR_RETURN(Shape own, KeywordReader(*this, schema).read());
  std::vector<Shape> all{std::move(own)};
  if (schema.contains("$ref")) {
    ASSIGN_OR_RETURN(const OrderedJson* const target, resolve(schema));
    ASSIGN_OR_RETURN(const std::vector<Shape> theirs, shapes_of(*target, open));
    ASSIGN_OR_RETURN(all, cross(all, theirs, schema));
  }
  for (const char* key : {"allOf", "anyOf", "oneOf"}) {
    const auto found = schema.find(key);
    if (found == schema.end()) continue;
    if (!found->is_array() || found->empty()) return error(ErrorCode::kUsage, schema, key, "must be a list of schemas");
    std::vector<Shape> choice;
    for (const OrderedJson& branch : *found) {
      ASSIGN_OR_RETURN(const std::vector<Shape> theirs, shapes_of(branch, open));
      if (key == std::string_view("allOf")) {
        ASSIGN_OR_RETURN(all, cross(all, theirs, schema));
      } else {
        choice.insert(choice.end(), theirs.begin(), theirs.end());
      }
    }
    if (key == std::string_view("allOf")) continue;
    if (key == std::string_view("oneOf")) TRY(check_disjoint_branches(schema));
    ASSIGN_OR_RETURN(all, cross(all, choice, schema));
  }
  open.pop_back();
  return all;
}

Result<std::vector<Shape>> SchemaReader::cross(const std::vector<Shape>& a, const std::vector<Shape>& b,
                                               const OrderedJson& schema) {
  TRY(spend(a.size() * b.size()));
  std::vector<Shape> out;
  for (const Shape& left : a)
    for (const Shape& right : b) {
      Shape both = merged(left, right);
      if (both.types == 0) continue;
      if (both.number.multiple > 1000)
        return error(ErrorCode::kUnsupported, schema, "multipleOf", "together these need a multiple of more than 1000");
      out.push_back(std::move(both));
      if (out.size() > limits_.shapes)
        return error(ErrorCode::kUnsupported, schema, "",
                     "combines more than " + std::to_string(limits_.shapes) + " alternatives");
    }
  return out;
}

Result<const Dfa*> SchemaReader::pattern(const std::string& text, const std::string& where) {
  std::unique_ptr<Dfa>& known = patterns_[text];
  if (known) return known.get();
  const auto located = [&](const Error& e) { return Error{e.code, where + ": " + e.message}; };
  const Result<Expr> expression = parse_regex(text);
  if (!expression) return located(expression.error());
  Result<Dfa> words = search(*expression, Encoding::kJsonString, automaton_limits());
  if (!words) return located(Error{words.error().code, "the pattern " + words.error().message});
  known = std::make_unique<Dfa>(*std::move(words));
  return known.get();
}

Result<Dfa> SchemaReader::string_words(const StringShape& shape, Encoding encoding, const std::string& where) const {
  const auto located = [&](const Error& e) { return Error{e.code, where + ": " + e.message}; };
  std::optional<Dfa> all;
  const auto add = [&](Result<Dfa> words) -> Status {
    if (words && all) words = intersect(*all, *words, automaton_limits());
    if (!words) return located(words.error());
    all = *std::move(words);
    return {};
  };
  for (const OrderedJson* pattern : shape.patterns) {
    const Result<Expr> expression = parse_regex(pattern->get<std::string>());
    if (!expression) return Error{expression.error().code, this->where(*pattern) + ": " + expression.error().message};
    TRY(add(search(*expression, encoding, automaton_limits())));
  }
  for (const OrderedJson* format : shape.formats) {
    const std::optional<Expr> expression = string_format(format->get<std::string>());
    CHECK(expression.has_value());
    TRY(add(whole(*expression, encoding, automaton_limits())));
  }
  if (!all || shape.min > 0 || shape.max != UINT32_MAX)
    TRY(add(whole(expr::repeat(expr::set(CodePointSet::all()), shape.min, shape.max), encoding, automaton_limits())));
  return *std::move(all);
}

}  // namespace foretoken
