// Filters and tests by name, after Jinja 3.1 with tojson as transformers replaces it.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/template_interpreter.h"
#include "text/unicode.h"

namespace foretoken::jinja {
namespace {

Arguments rest_of(Arguments arguments, size_t skipped) {
  arguments.positional.erase(
      arguments.positional.begin(),
      arguments.positional.begin() + static_cast<std::ptrdiff_t>(std::min(skipped, arguments.positional.size())));
  return arguments;
}

std::optional<Value> take_named(Arguments& arguments, std::string_view name) {
  for (auto it = arguments.named.begin(); it != arguments.named.end(); ++it) {
    if (it->first != name) continue;
    Value value = std::move(it->second);
    arguments.named.erase(it);
    return value;
  }
  return std::nullopt;
}

std::string_view stripped(std::string_view text) {
  while (!text.empty() && is_python_space(decode_utf8(text, 0).value)) text.remove_prefix(decode_utf8(text, 0).size);
  while (!text.empty() && is_python_space(decode_utf8_before(text, text.size()).value))
    text.remove_suffix(decode_utf8_before(text, text.size()).size);
  return text;
}

std::optional<Int> whole_part(double value) {
  if (std::isnan(value) || std::abs(value) > 1e37) return std::nullopt;
  return static_cast<Int>(value);
}

}  // namespace

// ---- filters

Value Interpreter::apply_filter(const std::string& name, const Value& input, Arguments arguments) {
  if (failed()) return {};
  if (name == "map") return filter_map(input, std::move(arguments));
  if (name == "select" || name == "reject") return filter_select(input, std::move(arguments), false, name == "select");
  if (name == "selectattr" || name == "rejectattr")
    return filter_select(input, std::move(arguments), true, name == "selectattr");
  bool known = true;
  Value value = filter_text(name, input, arguments, known);
  if (!known) value = filter_number(name, input, arguments, known);
  if (!known) value = filter_list(name, input, arguments, known);
  if (!known) return fail("the filter '" + name + "' is not supported", ErrorCode::kUnsupported);
  return failed() ? Value() : value;
}

// Filters that make text.
Value Interpreter::filter_text(const std::string& name, const Value& input, const Arguments& arguments, bool& known) {
  known = true;
  if (name == "string" || name == "safe")
    return bind(arguments, name.c_str(), {}) ? Value::text(text_of(input)) : Value();
  if (name == "upper" || name == "lower" || name == "capitalize")
    return bind(arguments, name.c_str(), {}) ? map_case(text_of(input), name) : Value();
  if (name == "title") {
    // Words are separated by white space, '-', '(', '[', '{' and '<' here, unlike in str.title().
    if (!bind(arguments, "title", {})) return {};
    const MarkedText text = text_of(input);
    MarkedText result;
    size_t begin = 0;
    const auto flush = [&](size_t end) {
      if (begin < end) put(result, map_case(text.part(begin, end), "capitalize").marked());
      begin = end;
    };
    for (size_t at = 0; at < text.bytes.size() && !failed();) {
      const CodePoint c = decode_utf8(text.bytes, at);
      const bool separates =
          is_python_space(c.value) || std::string_view("-({[<").find(text.bytes[at]) != std::string_view::npos;
      if (separates) {
        flush(at);
        put(result, text, at, at + c.size);
        begin = at + c.size;
      }
      at += c.size;
    }
    if (!failed()) flush(text.bytes.size());
    return failed() ? Value() : Value::text(std::move(result));
  }
  if (name == "trim") {
    const auto slots = bind(arguments, "trim", {"chars"});
    return slots ? strip(text_of(input), (*slots)[0], true, true) : Value();
  }
  if (name == "replace") {
    const auto slots = bind(arguments, "replace", {"old", "new", "count"}, 2);
    if (!slots) return {};
    const Value* count = (*slots)[2];
    return replace(text_of(input), *(*slots)[0], *(*slots)[1],
                   count && count->is_integral() ? std::optional<Int>(count->as_int()) : std::nullopt);
  }
  if (name == "escape" || name == "e" || name == "forceescape") {
    if (!bind(arguments, name.c_str(), {})) return {};
    const MarkedText text = text_of(input);
    MarkedText result;
    size_t done = 0;
    for (size_t at = 0; at < text.bytes.size() && !failed(); ++at) {
      static constexpr std::pair<char, const char*> kTable[] = {
          {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&#34;"}, {'\'', "&#39;"}};
      for (const auto& [character, escape] : kTable) {
        if (text.bytes[at] != character) continue;
        put(result, text, done, at);
        put(result, escape, false);
        done = at + 1;
      }
    }
    put(result, text, done, text.bytes.size());
    return Value::text(std::move(result));
  }
  if (name == "indent") return filter_indent(input, arguments);
  if (name == "tojson") return filter_tojson(input, arguments);
  if (name == "join") return filter_join(input, arguments);
  if (name == "center") {
    Arguments forwarded = arguments;
    if (forwarded.positional.empty() && forwarded.named.empty()) forwarded.positional.push_back(Value::integer(80));
    return string_method(text_of(input), "center", forwarded);
  }
  if (name == "format") {
    const MarkedText text = text_of(input);
    return failed() ? Value() : format_percent(text, make_list(arguments.positional, Kind::kTuple), &arguments);
  }
  known = false;
  return {};
}

// Filters about numbers, defaults and sizes.
Value Interpreter::filter_number(const std::string& name, const Value& input, const Arguments& arguments, bool& known) {
  known = true;
  if (name == "default" || name == "d") {
    const auto slots = bind(arguments, "default", {"default_value", "boolean"});
    if (!slots) return {};
    const bool replaced = input.is_undefined() || ((*slots)[1] && truthy(*(*slots)[1]) && !truthy(input));
    if (!replaced) return input;
    return (*slots)[0] ? *(*slots)[0] : Value::text("");
  }
  if (name == "length" || name == "count") {
    if (!bind(arguments, name.c_str(), {})) return {};
    const auto size = length(input);
    return size ? Value::integer(*size) : fail(std::string("a ") + type_name(input) + " has no length");
  }
  if (name == "wordcount") {
    const Value words = split(text_of(input), {}, false);
    return failed() ? Value() : Value::integer(static_cast<Int>(words.list().items.size()));
  }
  if (name == "int") {
    const auto slots = bind(arguments, "int", {"default", "base"});
    if (!slots) return {};
    if (input.is_undefined()) return fail(std::string(input.undefined_name()));
    const Value otherwise = (*slots)[0] ? *(*slots)[0] : Value::integer(0);
    if (input.is_integral()) return Value::integer(input.as_int());
    if (input.is(Kind::kFloat)) {
      const auto whole = whole_part(input.as_float());
      return whole ? Value::integer(*whole) : otherwise;
    }
    if (!input.is_string()) return otherwise;
    const Value* base = (*slots)[1];
    const Int radix = base && base->is_integral() ? base->as_int() : 10;
    if (radix < 2 || radix > 36) return fail("the base of int must lie between 2 and 36");
    if (const auto whole = parse_int(stripped(input.str()), static_cast<int>(radix))) return Value::integer(*whole);
    const auto number = parse_float(stripped(input.str()));
    const auto whole = number ? whole_part(*number) : std::nullopt;
    return whole ? Value::integer(*whole) : otherwise;
  }
  if (name == "float") {
    const auto slots = bind(arguments, "float", {"default"});
    if (!slots) return {};
    if (input.is_undefined()) return fail(std::string(input.undefined_name()));
    if (input.is_number()) return Value::number(input.as_float());
    const auto number = input.is_string() ? parse_float(stripped(input.str())) : std::nullopt;
    return number ? Value::number(*number) : (*slots)[0] ? *(*slots)[0] : Value::number(0);
  }
  if (name == "abs") {
    if (!bind(arguments, "abs", {})) return {};
    if (input.is_integral()) return input.as_int() < 0 ? negate(input, true) : Value::integer(input.as_int());
    if (input.is(Kind::kFloat)) return Value::number(std::abs(input.as_float()));
    return fail(std::string("abs needs a number, not ") + type_name(input));
  }
  if (name == "round") return filter_round(input, arguments);
  if (name == "attr") {
    const auto slots = bind(arguments, "attr", {"name"}, 1);
    if (!slots) return {};
    // Attributes only: an entry of a mapping is none.
    const std::string wanted = text_of(*(*slots)[0]).bytes;
    return input.is_mapping() && !has_method(input, wanted)
               ? Value::undefined("a dict has no attribute '" + wanted + "'")
               : attribute(input, wanted);
  }
  known = false;
  return {};
}

// Filters about lists and mappings.
Value Interpreter::filter_list(const std::string& name, const Value& input, const Arguments& arguments, bool& known) {
  known = true;
  if (name == "first" || name == "last") {
    if (!bind(arguments, name.c_str(), {})) return {};
    const std::vector<Value> items = iterate(input);
    if (items.empty()) return Value::undefined("there is no " + name + " item in an empty list");
    return name == "first" ? items.front() : items.back();
  }
  if (name == "list") return bind(arguments, "list", {}) ? make_list(iterate(input)) : Value();
  if (name == "items") {
    if (!bind(arguments, "items", {})) return {};
    if (input.is_undefined()) return make_list({});
    return input.is_mapping() ? dict_method(input, "items", {})
                              : fail(std::string("items needs a mapping, not ") + type_name(input));
  }
  if (name == "reverse") {
    if (!bind(arguments, "reverse", {})) return {};
    if (input.is_string()) return slice(input, std::nullopt, std::nullopt, -1);
    std::vector<Value> items = iterate(input);
    std::reverse(items.begin(), items.end());
    return make_list(std::move(items));
  }
  if (name == "sort") return filter_sort(input, arguments);
  if (name == "dictsort") return filter_dictsort(input, arguments);
  if (name == "unique") return filter_unique(input, arguments);
  if (name == "groupby") return filter_groupby(input, arguments);
  if (name == "batch") return filter_batch(input, arguments);
  if (name == "min" || name == "max") return filter_extreme(input, arguments, name == "max");
  if (name == "sum") {
    const auto slots = bind(arguments, "sum", {"attribute", "start"});
    if (!slots) return {};
    Value total = (*slots)[1] ? *(*slots)[1] : Value::integer(0);
    for (const Value& element : iterate(input)) {
      const bool by_attribute = (*slots)[0] && !(*slots)[0]->is_none();
      total = arithmetic(Op::kAdd, total, by_attribute ? attribute_path(element, *(*slots)[0]) : element);
      if (failed()) return {};
    }
    return total;
  }
  known = false;
  return {};
}

Value Interpreter::attribute_path(const Value& value, const Value& path) {
  if (path.is_integral()) return item(value, path);
  if (!path.is_string()) return fail("an attribute's name is a string or a number");
  Value current = value;
  std::string_view rest = path.str();
  while (!failed()) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    const auto index = parse_int(part, 10);
    current = item(current, index && !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos
                                ? Value::integer(*index)
                                : Value::text(part));
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  return current;
}

Value Interpreter::case_folded(const Value& value, bool case_sensitive) {
  return !case_sensitive && value.is_string() ? map_case(value.marked(), "lower") : value;
}

Value Interpreter::filter_map(const Value& input, Arguments arguments) {
  const auto by_attribute = take_named(arguments, "attribute");
  const auto otherwise = take_named(arguments, "default");
  std::vector<Value> results;
  if (!by_attribute && arguments.positional.empty()) return fail("map needs a filter's name or attribute=");
  for (const Value& element : iterate(input)) {
    if (failed()) return {};
    if (by_attribute) {
      Value value = attribute_path(element, *by_attribute);
      results.push_back(otherwise && value.is_undefined() ? *otherwise : std::move(value));
    } else {
      results.push_back(apply_filter(text_of(arguments.positional[0]).bytes, element, rest_of(arguments, 1)));
    }
  }
  return make_list(std::move(results));
}

Value Interpreter::filter_select(const Value& input, Arguments arguments, bool by_attribute, bool keep) {
  if (by_attribute && arguments.positional.empty()) return fail("an attribute's name is needed");
  const Value path = by_attribute ? arguments.positional[0] : Value();
  if (by_attribute) arguments = rest_of(std::move(arguments), 1);
  const bool by_test = !arguments.positional.empty();
  const std::string test = by_test ? text_of(arguments.positional[0]).bytes : std::string();
  if (by_test) arguments = rest_of(std::move(arguments), 1);
  std::vector<Value> kept;
  for (Value& element : iterate(input)) {
    const Value judged = by_attribute ? attribute_path(element, path) : element;
    if (failed()) return {};
    const bool holds = by_test ? apply_test(test, judged, arguments) : truthy(judged);
    if (holds == keep) kept.push_back(std::move(element));
  }
  return make_list(std::move(kept));
}

Value Interpreter::filter_tojson(const Value& input, const Arguments& arguments) {
  const auto slots = bind(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  if (!slots) return {};
  JsonStyle style;
  style.ascii = (*slots)[0] && truthy(*(*slots)[0]);
  style.sort_keys = (*slots)[3] && truthy(*(*slots)[3]);
  const Value* indent = (*slots)[1];
  if (indent && indent->is_integral()) {
    style.indented = true;
    style.indent = std::string(static_cast<size_t>(std::clamp<Int>(indent->as_int(), 0, 100)), ' ');
  } else if (indent && indent->is_string()) {
    style.indented = true;
    style.indent = indent->str().substr(0, 400);
  }
  style.item_separator.append(style.indented ? "," : ", ");
  style.key_separator.append(": ");
  if (const Value* separators = (*slots)[2]; separators && !separators->is_none()) {
    const std::vector<Value> pair = iterate(*separators);
    if (failed()) return {};
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) return fail("separators are two strings");
    style.item_separator = pair[0].marked();
    style.key_separator = pair[1].marked();
  }
  MarkedText json;
  print_json(json, input, style);
  return Value::text(std::move(json));
}

Value Interpreter::filter_indent(const Value& input, const Arguments& arguments) {
  const auto slots = bind(arguments, "indent", {"width", "first", "blank"});
  if (!slots) return {};
  MarkedText margin;
  const Value* width = (*slots)[0];
  if (width && width->is_string()) margin = width->marked();
  else
    margin.append(std::string(
        width && width->is_integral() ? static_cast<size_t>(std::clamp<Int>(width->as_int(), 0, 10000)) : 4, ' '));
  const bool first = (*slots)[1] && truthy(*(*slots)[1]), blank = (*slots)[2] && truthy(*(*slots)[2]);
  MarkedText text = text_of(input);
  text.append("\n");  // so that a last empty line counts
  const Value lines = split_lines(text, false);
  if (failed()) return {};
  MarkedText result;
  const auto& items = lines.list().items;
  for (size_t i = 0; i < items.size() && !failed(); ++i) {
    if (i > 0) put(result, "\n");
    if (i == 0 ? first : blank || !items[i].str().empty()) put(result, margin);
    put(result, items[i].marked());
  }
  return Value::text(std::move(result));
}

Value Interpreter::filter_round(const Value& input, const Arguments& arguments) {
  const auto slots = bind(arguments, "round", {"precision", "method"});
  if (!slots) return {};
  if (!input.is_number()) return fail(std::string("round needs a number, not ") + type_name(input));
  const Value* digits = (*slots)[0];
  const Int precision = digits && digits->is_integral() ? digits->as_int() : 0;
  const std::string method = (*slots)[1] ? text_of(*(*slots)[1]).bytes : "common";
  if (precision < -30 || precision > 30) return fail("round's precision must lie between -30 and 30");
  if (method != "common" && method != "ceil" && method != "floor")
    return fail("round's method is common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method != "common") {
    const double scaled = input.as_float() * scale;
    return Value::number((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (input.is_integral()) {
    if (precision >= 0) return Value::integer(input.as_int());
    return fail("rounding an integer to tens is not supported", ErrorCode::kUnsupported);
  }
  if (!std::isfinite(input.as_float())) return input;
  if (precision < 0) return Value::number(std::nearbyint(input.as_float() * scale) / scale);
  // The decimal nearest to the exact binary value, half to even, as Python rounds.
  char buffer[400];
  const int size = std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), input.as_float());
  double rounded = input.as_float();
  std::from_chars(buffer, buffer + std::min<int>(size, sizeof buffer - 1), rounded);
  return Value::number(rounded);
}

Value Interpreter::filter_join(const Value& input, const Arguments& arguments) {
  const auto slots = bind(arguments, "join", {"d", "attribute"});
  if (!slots) return {};
  MarkedText joined;
  bool first = true;
  for (const Value& element : iterate(input)) {
    if (failed()) return {};
    if (!first && (*slots)[0]) print(joined, *(*slots)[0]);
    first = false;
    print(joined, (*slots)[1] && !(*slots)[1]->is_none() ? attribute_path(element, *(*slots)[1]) : element);
  }
  return Value::text(std::move(joined));
}

Value Interpreter::filter_sort(const Value& input, const Arguments& arguments) {
  const auto slots = bind(arguments, "sort", {"reverse", "case_sensitive", "attribute"});
  if (!slots) return {};
  const bool reverse = (*slots)[0] && truthy(*(*slots)[0]), sensitive = (*slots)[1] && truthy(*(*slots)[1]);
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& element : iterate(input)) {
    if (failed()) return {};
    const bool by_attribute = (*slots)[2] && !(*slots)[2]->is_none();
    Value key = case_folded(by_attribute ? attribute_path(element, *(*slots)[2]) : element, sensitive);
    keyed.emplace_back(std::move(key), std::move(element));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? compare(b.first, a.first, "<") < 0 : compare(a.first, b.first, "<") < 0;
  });
  std::vector<Value> items;
  for (auto& [key, element] : keyed) items.push_back(std::move(element));
  return make_list(std::move(items));
}

Value Interpreter::filter_dictsort(const Value& input, const Arguments& arguments) {
  const auto slots = bind(arguments, "dictsort", {"case_sensitive", "by", "reverse"});
  if (!slots) return {};
  if (!input.is_mapping()) return fail(std::string("dictsort needs a mapping, not ") + type_name(input));
  const bool sensitive = (*slots)[0] && truthy(*(*slots)[0]), reverse = (*slots)[2] && truthy(*(*slots)[2]);
  const bool by_value = (*slots)[1] && (*slots)[1]->is_string() && (*slots)[1]->str() == "value";
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : input.dict().entries) {
    if (failed()) return {};
    keyed.emplace_back(case_folded(by_value ? value : key, sensitive), make_pair(key, value));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? compare(b.first, a.first, "<") < 0 : compare(a.first, b.first, "<") < 0;
  });
  std::vector<Value> items;
  for (auto& [key, pair] : keyed) items.push_back(std::move(pair));
  return make_list(std::move(items));
}

Value Interpreter::filter_unique(const Value& input, const Arguments& arguments) {
  const auto slots = bind(arguments, "unique", {"case_sensitive", "attribute"});
  if (!slots) return {};
  const bool sensitive = (*slots)[0] && truthy(*(*slots)[0]);
  Dict seen;
  std::vector<Value> items;
  for (Value& element : iterate(input)) {
    if (failed()) return {};
    const bool by_attribute = (*slots)[1] && !(*slots)[1]->is_none();
    const Value key = case_folded(by_attribute ? attribute_path(element, *(*slots)[1]) : element, sensitive);
    if (seen.find(key)) continue;
    if (!seen.set(key, Value::none())) return fail(std::string("unique cannot compare a ") + type_name(key));
    items.push_back(std::move(element));
  }
  return make_list(std::move(items));
}

// Pairs (key, list), ordered by key.
Value Interpreter::filter_groupby(const Value& input, const Arguments& arguments) {
  const auto slots = bind(arguments, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  if (!slots) return {};
  const bool sensitive = (*slots)[2] && truthy(*(*slots)[2]);
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& element : iterate(input)) {
    Value key = attribute_path(element, *(*slots)[0]);
    if (failed()) return {};
    if (key.is_undefined() && (*slots)[1]) key = *(*slots)[1];
    keyed.emplace_back(std::move(key), std::move(element));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return compare(case_folded(a.first, sensitive), case_folded(b.first, sensitive), "<") < 0;
  });
  std::vector<Value> groups, members;
  for (size_t i = 0; i < keyed.size() && !failed(); ++i) {
    members.push_back(keyed[i].second);
    if (i + 1 < keyed.size() &&
        equal(case_folded(keyed[i].first, sensitive), case_folded(keyed[i + 1].first, sensitive)))
      continue;
    const Value& key = keyed[i + 1 - members.size()].first;
    groups.push_back(make_pair(key, make_list(std::exchange(members, {}))));
  }
  return make_list(std::move(groups));
}

Value Interpreter::filter_batch(const Value& input, const Arguments& arguments) {
  const auto slots = bind(arguments, "batch", {"linecount", "fill_with"}, 1);
  if (!slots) return {};
  const Int size = (*slots)[0]->is_integral() ? (*slots)[0]->as_int() : 0;
  if (size < 1 || size > static_cast<Int>(limits_.range)) return fail("batch needs a positive size");
  std::vector<Value> batches, current;
  for (Value& element : iterate(input)) {
    current.push_back(std::move(element));
    if (static_cast<Int>(current.size()) == size) batches.push_back(make_list(std::exchange(current, {})));
  }
  if (!current.empty()) {
    if ((*slots)[1] && !(*slots)[1]->is_none()) current.resize(static_cast<size_t>(size), *(*slots)[1]);
    batches.push_back(make_list(std::move(current)));
  }
  return make_list(std::move(batches));
}

Value Interpreter::filter_extreme(const Value& input, const Arguments& arguments, bool largest) {
  const auto slots = bind(arguments, largest ? "max" : "min", {"case_sensitive", "attribute"});
  if (!slots) return {};
  const bool sensitive = (*slots)[0] && truthy(*(*slots)[0]);
  std::optional<std::pair<Value, Value>> best;
  for (Value& element : iterate(input)) {
    const bool by_attribute = (*slots)[1] && !(*slots)[1]->is_none();
    Value key = case_folded(by_attribute ? attribute_path(element, *(*slots)[1]) : element, sensitive);
    if (failed()) return {};
    if (!best || (largest ? compare(key, best->first, ">") > 0 : compare(key, best->first, "<") < 0))
      best.emplace(std::move(key), std::move(element));
  }
  return best ? best->second : Value::undefined("an empty list has no extreme");
}

// ---- tests

bool Interpreter::apply_test(const std::string& name, const Value& input, const Arguments& arguments) {
  if (failed()) return false;
  static constexpr std::pair<std::string_view, Op> kComparisons[] = {{"==", Op::kEqual},
                                                                     {"eq", Op::kEqual},
                                                                     {"equalto", Op::kEqual},
                                                                     {"!=", Op::kNotEqual},
                                                                     {"ne", Op::kNotEqual},
                                                                     {"<", Op::kLess},
                                                                     {"lt", Op::kLess},
                                                                     {"lessthan", Op::kLess},
                                                                     {"<=", Op::kLessEqual},
                                                                     {"le", Op::kLessEqual},
                                                                     {">", Op::kGreater},
                                                                     {"gt", Op::kGreater},
                                                                     {"greaterthan", Op::kGreater},
                                                                     {">=", Op::kGreaterEqual},
                                                                     {"ge", Op::kGreaterEqual},
                                                                     {"in", Op::kIn}};
  for (const auto& [test, op] : kComparisons) {
    if (name != test) continue;
    const auto slots = bind(arguments, name.c_str(), {"other"}, 1);
    return slots && truthy(binary(op, input, *(*slots)[0]));
  }
  if (name == "divisibleby") {
    const auto slots = bind(arguments, "divisibleby", {"num"}, 1);
    if (!slots) return false;
    const Value rest = arithmetic(Op::kModulo, input, *(*slots)[0]);
    return !failed() && !truthy(rest);
  }
  if (name == "sameas") {
    const auto slots = bind(arguments, "sameas", {"other"}, 1);
    if (!slots) return false;
    const Value& other = *(*slots)[0];
    if (input.kind() != other.kind()) return false;
    return input.is_sequence() || input.is_mapping() || input.is(Kind::kNamespace)
               ? input.identity() == other.identity()
               : equal(input, other);
  }
  if (!bind(arguments, name.c_str(), {})) return false;
  if (name == "defined") return !input.is_undefined();
  if (name == "undefined") return input.is_undefined();
  if (name == "none") return input.is_none();
  if (name == "string") return input.is_string();
  if (name == "number") return input.is_number();
  if (name == "integer") return input.is(Kind::kInt);
  if (name == "float") return input.is(Kind::kFloat);
  if (name == "boolean") return input.is(Kind::kBool);
  if (name == "true") return input.is(Kind::kBool) && input.as_int() != 0;
  if (name == "false") return input.is(Kind::kBool) && input.as_int() == 0;
  if (name == "mapping") return input.is_mapping();
  if (name == "sequence") return input.is_string() || input.is_sequence() || input.is_mapping() || input.is_undefined();
  if (name == "iterable")
    return input.is_string() || input.is_sequence() || input.is_mapping() || input.is_undefined() ||
           input.is(Kind::kLoop);
  if (name == "callable")
    return input.is(Kind::kMacro) || input.is(Kind::kFunction) || input.is(Kind::kMethod) || input.is(Kind::kLoop);
  if (name == "escaped") return false;
  if (name == "odd" || name == "even") {
    const Value rest = arithmetic(Op::kModulo, input, Value::integer(2));
    return !failed() && (name == "odd") == (rest.as_float() == 1);
  }
  if (name == "lower" || name == "upper") {
    const MarkedText text = text_of(input);
    return !failed() && truthy(string_method(text, "is" + name, {}));
  }
  fail("the test '" + name + "' is not supported", ErrorCode::kUnsupported);
  return false;
}

}  // namespace foretoken::jinja
