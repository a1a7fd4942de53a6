// Kinds are sets: anyOf joins them, allOf intersects them.
#include "text/tool_schema.h"

#include <cmath>

namespace foretoken {
namespace {

// References may lead back, by several ways at once: both their depth and their number end.
constexpr int kDeepest = 32, kMostSchemas = 4096;

ValueKinds kind_named(const std::string& name) {
  if (name == "null") return kNullKind;
  if (name == "boolean") return kBooleanKind;
  if (name == "integer") return kIntegerKind;
  if (name == "number") return kNumberKind | kIntegerKind;
  if (name == "string") return kStringKind;
  if (name == "array") return kArrayKind;
  if (name == "object") return kObjectKind;
  return kAnyKind;  // of a dialect that is not known here
}

ValueKinds kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return kNullKind;
    case Json::value_t::boolean: return kBooleanKind;
    case Json::value_t::string: return kStringKind;
    case Json::value_t::array: return kArrayKind;
    case Json::value_t::object: return kObjectKind;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return kIntegerKind;
    case Json::value_t::number_float: {
      const double number = value.get<double>();
      return std::isfinite(number) && number == std::floor(number) ? kIntegerKind : kNumberKind;  // 5.0 is an integer to JSON Schema
    }
    default: return 0;
  }
}

const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

ValueKinds kinds(const Json& schema, const Json& root, int depth, int& seen) {
  if (!schema.is_object() || depth > kDeepest || ++seen > kMostSchemas) return kAnyKind;
  ValueKinds allowed = kAnyKind;
  if (const Json* type = member(schema, "type")) {
    ValueKinds named = 0;
    if (type->is_string()) named = kind_named(type->get<std::string>());
    if (type->is_array())
      for (const Json& one : *type)
        if (one.is_string()) named |= kind_named(one.get<std::string>());
    if (named != 0) allowed &= named;
  }
  if (const Json* constant = member(schema, "const")) allowed &= kind_of(*constant);
  if (const Json* values = member(schema, "enum"); values && values->is_array()) {
    ValueKinds listed = 0;
    for (const Json& one : *values) listed |= kind_of(one);
    allowed &= listed;
  }
  for (const char* name : {"anyOf", "oneOf"})
    if (const Json* branches = member(schema, name); branches && branches->is_array() && !branches->empty()) {
      ValueKinds joined = 0;
      for (const Json& branch : *branches) joined |= kinds(branch, root, depth + 1, seen);
      allowed &= joined;
    }
  if (const Json* parts = member(schema, "allOf"); parts && parts->is_array())
    for (const Json& part : *parts) allowed &= kinds(part, root, depth + 1, seen);
  if (const Json* reference = member(schema, "$ref"); reference && reference->is_string()) {
    const std::string& path = reference->get_ref<const std::string&>();
    if (path.starts_with("#"))
      try {
        allowed &= kinds(root.at(Json::json_pointer(path.substr(1))), root, depth + 1, seen);
      } catch (const Json::exception&) {  // it points nowhere: no more is known
      }
  }
  return allowed;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

}  // namespace

ValueKinds kinds_of_schema(const Json& schema, const Json& root) {
  int seen = 0;
  const ValueKinds allowed = kinds(schema, root, 0, seen);
  return allowed == 0 ? kStringKind : allowed;
}

ToolSchemas::ToolSchemas(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const Json* inner = member(tool, "function");
    const Json& function = inner ? *inner : tool;
    const Json* name = member(function, "name");
    if (!name || !name->is_string()) continue;
    Function known;
    const Json* schema = member(function, "parameters");
    if (!schema) schema = member(function, "input_schema");
    if (schema) {
      if (const Json* properties = member(*schema, "properties"); properties && properties->is_object())
        for (const auto& [parameter, type] : properties->items()) known.parameters.emplace(parameter, kinds_of_schema(type, *schema));
      if (const Json* others = member(*schema, "additionalProperties"); others && others->is_object()) known.others = kinds_of_schema(*others, *schema);
    }
    functions_.insert_or_assign(name->get<std::string>(), std::move(known));
  }
}

ValueKinds ToolSchemas::kinds_of(std::string_view function, std::string_view parameter) const {
  const auto known = functions_.find(std::string(function));
  if (known == functions_.end()) return kStringKind;
  const auto kinds = known->second.parameters.find(std::string(parameter));
  return kinds == known->second.parameters.end() ? known->second.others : kinds->second;
}

std::string json_of_value(std::string_view text, ValueKinds kinds) {
  const std::string_view value = trimmed(text);
  if (kinds != kStringKind && !value.empty()) {
    if (kinds & kBooleanKind) {
      if (value == "True") return "true";
      if (value == "False") return "false";
    }
    if ((kinds & kNullKind) && value == "None") return "null";
    const bool has_mark = value.starts_with("\xEF\xBB\xBF");  // a byte order mark may begin a file, not a value
    if (const auto parsed = parse_json(value, "a tool's argument"); parsed && !has_mark)
      if (const ValueKinds kind = kind_of(*parsed); kind != kStringKind && (kinds & kind)) return std::string(value);
  }
  return '"' + json_escaped(text) + '"';
}

std::string json_escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      case '\r': out += "\\r"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          constexpr char kDigits[] = "0123456789abcdef";
          out += "\\u00";
          out += kDigits[static_cast<unsigned char>(c) >> 4];
          out += kDigits[c & 15];
        } else {
          out += c;
        }
    }
  }
  return out;
}

}  // namespace foretoken
