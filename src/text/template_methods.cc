// Global functions and the methods of strings, lists and mappings, as Python's objects have them. Strings count
// characters, keep their marks, and never change in place.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "text/template_interpreter.h"
#include "text/unicode.h"

namespace foretoken::jinja {
namespace {

constexpr std::string_view kStringMethods[] = {
    "capitalize", "center",     "count",     "endswith", "expandtabs", "find",      "format",       "index",
    "isalnum",    "isalpha",    "isdecimal", "isdigit",  "islower",    "isnumeric", "isspace",      "istitle",
    "isupper",    "join",       "ljust",     "lower",    "lstrip",     "partition", "removeprefix", "removesuffix",
    "replace",    "rfind",      "rindex",    "rjust",    "rpartition", "rsplit",    "rstrip",       "split",
    "splitlines", "startswith", "strip",     "swapcase", "title",      "upper",     "zfill"};
constexpr std::string_view kListMethods[] = {"append", "copy", "count", "index", "pop"};
constexpr std::string_view kTupleMethods[] = {"count", "index"};
constexpr std::string_view kDictMethods[] = {"copy", "get", "items", "keys", "values"};

template <size_t N>
bool listed(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

std::optional<Int> integer_in(const Value* value) {
  if (value && value->is_integral()) return value->as_int();
  return std::nullopt;
}

}  // namespace

// ---- arguments and global functions

std::optional<Interpreter::Slots> Interpreter::bind(const Arguments& arguments, const char* function,
                                                    std::initializer_list<std::string_view> names, size_t required) {
  Slots slots(names.size(), nullptr);
  if (arguments.positional.size() > names.size()) {
    fail(std::string(function) + " takes at most " + std::to_string(names.size()) + " arguments");
    return std::nullopt;
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) slots[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto it = std::find(names.begin(), names.end(), name);
    const auto slot = static_cast<size_t>(it - names.begin());
    if (it == names.end() || slots[slot]) {
      fail(std::string(function) + (it == names.end() ? " takes no argument named '" : " gets its argument twice: '") +
           name + "'");
      return std::nullopt;
    }
    slots[slot] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (slots[i]) continue;
    fail(std::string(function) + " needs its argument '" + std::string(*(names.begin() + i)) + "'");
    return std::nullopt;
  }
  return slots;
}

Value Interpreter::call_function(Function function, const Arguments& arguments) {
  switch (function) {
    case Function::kRange:
      return range(arguments);
    case Function::kStrftimeNow:
      return strftime_now(arguments);
    case Function::kRaiseException: {
      const auto slots = bind(arguments, "raise_exception", {"message"}, 1);
      return slots ? fail("the template refuses these messages: " + text_of(*(*slots)[0]).bytes.substr(0, 1000),
                          ErrorCode::kUsage)
                   : Value();
    }
    case Function::kNamespace:
    case Function::kDict: {
      auto* dict = make_object<Dict>(arguments.named.size());
      for (const Value& source : arguments.positional) {
        if (source.is_mapping()) {
          for (const auto& [key, value] : source.dict().entries) dict->set(key, value);
          continue;
        }
        for (const Value& entry : iterate(source)) {
          const std::vector<Value> pair = iterate(entry);
          if (failed()) return {};
          if (pair.size() != 2 || !dict->set(pair[0], pair[1]))
            return fail("a mapping is made of pairs of key and value");
        }
      }
      for (const auto& [name, value] : arguments.named) dict->set(Value::text(name), value);
      return Value::object(function == Function::kDict ? Kind::kDict : Kind::kNamespace, dict);
    }
  }
  return {};
}

Value Interpreter::range(const Arguments& arguments) {
  const auto slots = bind(arguments, "range", {"start", "stop", "step"}, 1);
  if (!slots) return {};
  Int bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < 3; ++i) {
    if (!(*slots)[i]) continue;
    if (!(*slots)[i]->is_integral()) return fail(std::string("range needs integers, not ") + type_name(*(*slots)[i]));
    bounds[i] = (*slots)[i]->as_int();
  }
  if (!(*slots)[1]) std::swap(bounds[0], bounds[1]);
  const auto [begin, end, step] = bounds;
  if (step == 0) return fail("range's step cannot be zero");
  constexpr Int kFar = Int{1} << 100;
  if (begin > kFar || begin < -kFar || end > kFar || end < -kFar || step > kFar || step < -kFar)
    return fail("range's bounds are too large");
  const Int distance = step > 0 ? end - begin : begin - end, stride = step > 0 ? step : -step;
  const Int count = distance <= 0 ? 0 : (distance + stride - 1) / stride;
  if (count > static_cast<Int>(limits_.range))
    return fail("range has more than " + std::to_string(limits_.range) + " elements");
  std::vector<Value> items;
  for (Int i = 0; i < count; ++i) items.push_back(Value::integer(begin + i * step));
  spend(items.size());
  return make_list(std::move(items));
}

Value Interpreter::strftime_now(const Arguments& arguments) {
  const auto slots = bind(arguments, "strftime_now", {"format"}, 1);
  if (!slots) return {};
  if (!(*slots)[0]->is_string() || (*slots)[0]->str().size() > 200)
    return fail("strftime_now needs a format string of at most 200 bytes");
  const std::string format((*slots)[0]->str());
  const std::time_t now = now_ ? *now_ : std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[4096];
  const size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &local);
  return Value::text(repair_utf8(std::string_view(buffer, size)));
}

// ---- methods

bool Interpreter::has_method(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::kString:
      return listed(kStringMethods, name);
    case Kind::kList:
      return listed(kListMethods, name);
    case Kind::kTuple:
      return listed(kTupleMethods, name);
    case Kind::kDict:
      return listed(kDictMethods, name);
    case Kind::kLoop:
      return name == "cycle" || name == "changed";
    default:
      return false;
  }
}

Value Interpreter::call_method(const Value& self, const std::string& name, const Arguments& arguments) {
  if (failed() || !spend(1)) return {};
  switch (self.kind()) {
    case Kind::kString:
      return string_method(self.marked(), name, arguments);
    case Kind::kList:
    case Kind::kTuple:
      return list_method(self, name, arguments);
    case Kind::kDict:
      return dict_method(self, name, arguments);
    default:
      break;
  }
  Loop& loop = self.loop();
  if (name == "cycle") {
    if (arguments.positional.empty()) return fail("loop.cycle needs something to cycle through");
    return arguments.positional[loop.index % arguments.positional.size()];
  }
  const Value current = make_list(arguments.positional, Kind::kTuple);
  if (failed()) return {};
  const bool changed = !loop.last_changed || !equal(*loop.last_changed, current);
  loop.last_changed = current;
  return Value::boolean(changed);
}

Value Interpreter::list_method(const Value& self, const std::string& name, const Arguments& arguments) {
  auto& items = self.list().items;
  if (name == "copy") return make_list(items, self.kind());
  const auto slots = bind(arguments, name.c_str(), {"value"}, name == "pop" ? 0 : 1);
  if (!slots) return {};
  if (name == "pop") {
    const auto size = static_cast<Int>(items.size());
    Int index = integer_in((*slots)[0]).value_or(-1);
    if (index < 0) index += size;
    if (index < 0 || index >= size) return fail("there is nothing to pop there");
    Value popped = items[static_cast<size_t>(index)];
    items.erase(items.begin() + static_cast<std::ptrdiff_t>(index));
    return popped;
  }
  const Value& value = *(*slots)[0];
  if (name == "append") {
    if (++objects_ > limits_.objects) return fail("a list grows too long");
    items.push_back(value);
    return Value::none();
  }
  Int count = 0;
  for (size_t i = 0; i < items.size() && !failed(); ++i) {
    if (!equal(items[i], value)) continue;
    if (name == "index") return Value::integer(static_cast<Int>(i));
    ++count;
  }
  return name == "index" ? fail("the value is not in the list") : Value::integer(count);
}

Value Interpreter::dict_method(const Value& self, const std::string& name, const Arguments& arguments) {
  const Dict& dict = self.dict();
  if (name == "get") {
    const auto slots = bind(arguments, "get", {"key", "default"}, 1);
    if (!slots) return {};
    const Value* found = dict.find(*(*slots)[0]);
    return found ? *found : (*slots)[1] ? *(*slots)[1] : Value::none();
  }
  if (!bind(arguments, name.c_str(), {})) return {};
  if (!spend(dict.entries.size())) return {};
  if (name == "copy") {
    auto* copy = make_object<Dict>(dict.entries.size());
    copy->entries = dict.entries;
    copy->index = dict.index;
    return Value::object(Kind::kDict, copy);
  }
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries) {
    if (failed()) return {};
    items.push_back(name == "items" ? make_pair(key, value) : name == "keys" ? key : value);
  }
  return make_list(std::move(items));
}

Value Interpreter::string_method(const MarkedText& text, const std::string& name, const Arguments& arguments) {
  const std::string_view bytes = text.bytes;
  if (!spend(bytes.size() / 32)) return {};

  if (name == "startswith" || name == "endswith") {
    const auto slots = bind(arguments, name.c_str(), {"prefix", "start", "end"}, 1);
    if (!slots) return {};
    const Value& wanted = *(*slots)[0];
    std::string_view part = bytes;
    if ((*slots)[1] || (*slots)[2]) {
      const Value cut = slice(Value::text(text), integer_in((*slots)[1]), integer_in((*slots)[2]), std::nullopt);
      if (failed()) return {};
      return string_method(cut.marked(), name, {{wanted}, {}});
    }
    const auto matches = [&](const Value& v) {
      return v.is_string() && (name == "startswith" ? part.starts_with(v.str()) : part.ends_with(v.str()));
    };
    if (wanted.is_string()) return Value::boolean(matches(wanted));
    if (!wanted.is(Kind::kTuple)) return fail(name + " needs a string or a tuple of strings, not " + type_name(wanted));
    return Value::boolean(std::any_of(wanted.list().items.begin(), wanted.list().items.end(), matches));
  }
  if (name == "split" || name == "rsplit") return split(text, arguments, name == "rsplit");
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const auto slots = bind(arguments, name.c_str(), {"chars"});
    return slots ? strip(text, (*slots)[0], name != "rstrip", name != "lstrip") : Value();
  }
  if (name == "replace") {
    const auto slots = bind(arguments, "replace", {"old", "new", "count"}, 2);
    return slots ? replace(text, *(*slots)[0], *(*slots)[1], integer_in((*slots)[2])) : Value();
  }
  if (name == "format") return format_braces(text, arguments);
  if (name == "join") {
    const auto slots = bind(arguments, "join", {"items"}, 1);
    if (!slots) return {};
    MarkedText joined;
    bool first = true;
    for (const Value& item : iterate(*(*slots)[0])) {
      if (!item.is_string()) return fail(std::string("join needs strings, not ") + type_name(item));
      if (!first) put(joined, text);
      first = false;
      put(joined, item.marked());
      if (failed()) return {};
    }
    return Value::text(std::move(joined));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count") {
    const auto slots = bind(arguments, name.c_str(), {"part"}, 1);
    if (!slots) return {};
    if (!(*slots)[0]->is_string()) return fail(name + " needs a string, not " + type_name(*(*slots)[0]));
    const std::string_view part = (*slots)[0]->str();
    if (name == "count") {
      if (part.empty()) return Value::integer(static_cast<Int>(count_characters(bytes)) + 1);
      Int count = 0;
      for (size_t at = bytes.find(part); at != std::string_view::npos; at = bytes.find(part, at + part.size())) ++count;
      return Value::integer(count);
    }
    const size_t at = name[0] == 'r' ? bytes.rfind(part) : bytes.find(part);
    if (at != std::string_view::npos) return Value::integer(static_cast<Int>(count_characters(bytes.substr(0, at))));
    return name.ends_with("index") ? fail("the part is not in the string") : Value::integer(-1);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const auto slots = bind(arguments, name.c_str(), {"part"}, 1);
    if (!slots) return {};
    if (!(*slots)[0]->is_string()) return fail(name + " needs a string, not " + type_name(*(*slots)[0]));
    const std::string_view part = (*slots)[0]->str();
    if (name == "removeprefix") return Value::text(text.part(bytes.starts_with(part) ? part.size() : 0, bytes.size()));
    return Value::text(text.part(0, bytes.size() - (bytes.ends_with(part) ? part.size() : 0)));
  }
  if (name == "partition" || name == "rpartition") {
    const auto slots = bind(arguments, name.c_str(), {"separator"}, 1);
    if (!slots) return {};
    if (!(*slots)[0]->is_string() || (*slots)[0]->str().empty()) return fail(name + " needs a separator");
    const std::string_view part = (*slots)[0]->str();
    const size_t at = name[0] == 'r' ? bytes.rfind(part) : bytes.find(part);
    std::vector<Value> parts;
    if (at == std::string_view::npos) {
      parts = {Value::text(text), Value::text(""), Value::text("")};
      if (name[0] == 'r') std::swap(parts[0], parts[2]);
    } else {
      parts = {Value::text(text.part(0, at)), Value::text(text.part(at, at + part.size())),
               Value::text(text.part(at + part.size(), bytes.size()))};
    }
    return make_list(std::move(parts), Kind::kTuple);
  }
  if (name == "splitlines") {
    const auto slots = bind(arguments, "splitlines", {"keepends"});
    return slots ? split_lines(text, (*slots)[0] && truthy(*(*slots)[0])) : Value();
  }
  if (name == "ljust" || name == "rjust" || name == "center" || name == "zfill") {
    const auto slots = bind(arguments, name.c_str(), {"width", "fillchar"}, 1);
    if (!slots) return {};
    const auto width = integer_in((*slots)[0]);
    if (!width) return fail(name + " needs a width");
    const Int missing = std::min<Int>(*width, Int{1} << 40) - static_cast<Int>(count_characters(bytes));
    if (missing <= 0) return Value::text(text);
    if (missing > static_cast<Int>(limits_.text_bytes)) return fail(name + " asks for too much");
    const auto fill = static_cast<size_t>(missing);
    MarkedText filler;
    if (name == "zfill") filler.append("0");
    else if (!(*slots)[1]) filler.append(" ");
    else if ((*slots)[1]->is_string() && count_characters((*slots)[1]->str()) == 1) filler = (*slots)[1]->marked();
    else return fail(name + " fills with one character");
    const size_t left = name == "ljust"    ? 0
                        : name == "center" ? fill / 2 + (fill & static_cast<size_t>(*width) & 1)
                                           : fill;
    const size_t sign = name == "zfill" && !bytes.empty() && (bytes[0] == '-' || bytes[0] == '+') ? 1 : 0;
    MarkedText padded;
    put(padded, text, 0, sign);
    for (size_t i = 0; i < left && !failed(); ++i) put(padded, filler);
    put(padded, text, sign, bytes.size());
    for (size_t i = left; i < fill && !failed(); ++i) put(padded, filler);
    return Value::text(std::move(padded));
  }
  if (name == "expandtabs") {
    const auto slots = bind(arguments, "expandtabs", {"tabsize"});
    if (!slots) return {};
    const Int size = std::clamp<Int>(integer_in((*slots)[0]).value_or(8), 0, 1000);
    MarkedText wide;
    Int column = 0;
    for (size_t at = 0; at < bytes.size() && !failed();) {
      const size_t end = at + decode_utf8(bytes, at).size;
      if (bytes[at] == '\t') {
        const Int spaces = size == 0 ? 0 : size - column % size;
        put(wide, std::string(static_cast<size_t>(spaces), ' '));
        column += spaces;
      } else {
        put(wide, text, at, end);
        column = bytes[at] == '\n' || bytes[at] == '\r' ? 0 : column + 1;
      }
      at = end;
    }
    return Value::text(std::move(wide));
  }

  if (!bind(arguments, name.c_str(), {})) return {};
  if (!name.starts_with("is")) return map_case(text, name);
  // Predicates: every character must qualify, and there must be one. Those of case ask for a cased character and none
  // of the other case.
  bool all = !bytes.empty(), cased = false, mixed = false, titled = true, after_cased = false;
  for (size_t at = 0; at < bytes.size();) {
    const CodePoint c = decode_utf8(bytes, at);
    at += c.size;
    const bool number = char_class(c.value) == CharClass::kNumber;
    if (name == "isalpha") all = all && is_alphabetic(c.value);
    else if (name == "isalnum") all = all && (is_alphabetic(c.value) || number);
    else if (name == "isnumeric") all = all && number;
    else if (name == "isdecimal" || name == "isdigit") all = all && is_decimal(c.value);
    else if (name == "isspace") all = all && is_python_space(c.value);
    const bool upper = is_upper(c.value), lower = is_lower(c.value);
    cased = cased || upper || lower;
    mixed = mixed || (name == "isupper" ? lower : upper);
    titled = titled && !(upper && after_cased) && !(lower && !after_cased);
    after_cased = upper || lower;
  }
  if (name == "islower" || name == "isupper") return Value::boolean(cased && !mixed);
  if (name == "istitle") return Value::boolean(cased && titled);
  return Value::boolean(all);
}

Value Interpreter::map_case(const MarkedText& text, std::string_view how) {
  MarkedText mapped;
  if (!room(text.bytes.size())) return {};
  bool word_begins = true, first = true;
  std::string one;
  auto range = text.untrusted.begin();
  for (size_t at = 0; at < text.bytes.size();) {
    const CodePoint c = decode_utf8(text.bytes, at);
    while (range != text.untrusted.end() && range->end <= at) ++range;
    const bool trusted = range == text.untrusted.end() || range->begin > at;
    char32_t result = c.value;
    if (how == "upper") result = to_upper(c.value);
    else if (how == "lower") result = to_lower(c.value);
    else if (how == "swapcase") result = is_upper(c.value) ? to_lower(c.value) : to_upper(c.value);
    else if (how == "capitalize") result = first ? to_title(c.value) : to_lower(c.value);
    else if (how == "title") result = word_begins ? to_title(c.value) : to_lower(c.value);
    // str.title() begins a word after everything without case.
    word_begins = !(is_upper(c.value) || is_lower(c.value));
    first = false;
    one.clear();
    append_utf8(result, one);
    mapped.append(one, trusted);
    at += c.size;
  }
  return Value::text(std::move(mapped));
}

Value Interpreter::strip(const MarkedText& text, const Value* characters, bool left, bool right) {
  if (characters && characters->is_none()) characters = nullptr;
  if (characters && !characters->is_string())
    return fail(std::string("strip needs a string, not ") + type_name(*characters));
  const std::string_view bytes = text.bytes;
  const auto strips = [&](size_t at, const CodePoint& c) {
    if (!characters) return is_python_space(c.value);
    return characters->str().find(bytes.substr(at, c.size)) != std::string_view::npos;
  };
  size_t begin = 0, end = bytes.size();
  while (left && begin < end) {
    const CodePoint c = decode_utf8(bytes, begin);
    if (!strips(begin, c)) break;
    begin += c.size;
  }
  while (right && end > begin) {
    const CodePoint c = decode_utf8_before(bytes, end);
    if (!strips(end - c.size, c)) break;
    end -= c.size;
  }
  MarkedText result;
  put(result, text, begin, end);
  return Value::text(std::move(result));
}

Value Interpreter::split(const MarkedText& text, const Arguments& arguments, bool from_right) {
  const auto slots = bind(arguments, from_right ? "rsplit" : "split", {"sep", "maxsplit"});
  if (!slots) return {};
  const Value* separator = (*slots)[0] && !(*slots)[0]->is_none() ? (*slots)[0] : nullptr;
  if (separator && (!separator->is_string() || separator->str().empty()))
    return fail("split needs a separator that is not empty");
  const std::string_view bytes = text.bytes;
  Int left = integer_in((*slots)[1]).value_or(-1);
  if (left < 0) left = static_cast<Int>(bytes.size()) + 1;

  // Parts as byte ranges, from the side where the splitting starts.
  std::vector<ByteRange> parts;
  if (separator) {
    const std::string_view sep = separator->str();
    size_t begin = 0, end = bytes.size();
    for (; left > 0; --left) {
      if (from_right) {
        const size_t at = end < sep.size() ? std::string_view::npos : bytes.substr(0, end).rfind(sep);
        if (at == std::string_view::npos) break;
        parts.push_back({at + sep.size(), end});
        end = at;
      } else {
        const size_t at = bytes.find(sep, begin);
        if (at == std::string_view::npos) break;
        parts.push_back({begin, at});
        begin = at + sep.size();
      }
    }
    parts.push_back({begin, end});
  } else {
    size_t begin = 0, end = bytes.size();
    const auto space_at = [&](size_t at) { return is_python_space(decode_utf8(bytes, at).value); };
    const auto space_before = [&](size_t at) { return is_python_space(decode_utf8_before(bytes, at).value); };
    const auto trim_left = [&] {
      while (begin < end && space_at(begin)) begin += decode_utf8(bytes, begin).size;
    };
    const auto trim_right = [&] {
      while (begin < end && space_before(end)) end -= decode_utf8_before(bytes, end).size;
    };
    for (from_right ? trim_right() : trim_left(); begin < end; from_right ? trim_right() : trim_left()) {
      if (left-- <= 0) {
        from_right ? trim_left() : trim_right();
        // The rest stays whole; Python keeps the white space at its far end.
        parts.push_back(from_right ? ByteRange{0, end} : ByteRange{begin, bytes.size()});
        break;
      }
      size_t at = from_right ? end : begin;
      if (from_right) {
        while (at > begin && !space_before(at)) at -= decode_utf8_before(bytes, at).size;
        parts.push_back({at, end});
        end = at;
      } else {
        while (at < end && !space_at(at)) at += decode_utf8(bytes, at).size;
        parts.push_back({begin, at});
        begin = at;
      }
    }
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  std::vector<Value> items;
  for (const ByteRange& part : parts) {
    MarkedText piece;
    put(piece, text, part.begin, part.end);
    if (!spend(1)) return {};
    items.push_back(Value::text(std::move(piece)));
  }
  return make_list(std::move(items));
}

Value Interpreter::split_lines(const MarkedText& text, bool keep_ends) {
  std::vector<Value> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.bytes.size() && !failed();) {
    const CodePoint c = decode_utf8(text.bytes, at);
    size_t end = at + c.size;
    if (is_line_end(c.value)) {
      if (c.value == '\r' && end < text.bytes.size() && text.bytes[end] == '\n') ++end;
      MarkedText line;
      put(line, text, begin, keep_ends ? end : at);
      lines.push_back(Value::text(std::move(line)));
      begin = end;
    }
    at = end;
  }
  if (begin < text.bytes.size()) lines.push_back(Value::text(text.part(begin, text.bytes.size())));
  return make_list(std::move(lines));
}

Value Interpreter::replace(const MarkedText& text, const Value& from, const Value& to, std::optional<Int> count) {
  if (!from.is_string() || !to.is_string()) return fail("replace needs two strings");
  const std::string_view bytes = text.bytes, old = from.str();
  Int left = count && *count >= 0 ? *count : static_cast<Int>(bytes.size()) + 1;
  MarkedText result;
  size_t done = 0;
  if (old.empty()) {  // before every character and at the end
    for (size_t at = 0; left > 0 && !failed(); --left) {
      put(result, to.marked());
      if (at == bytes.size()) break;
      const size_t end = at + decode_utf8(bytes, at).size;
      put(result, text, at, end);
      at = done = end;
    }
  } else {
    for (size_t at = bytes.find(old); at != std::string_view::npos && left > 0 && !failed();
         at = bytes.find(old, done), --left) {
      put(result, text, done, at);
      put(result, to.marked());
      done = at + old.size();
      spend(1);
    }
  }
  put(result, text, done, bytes.size());
  return Value::text(std::move(result));
}

// ---- formatting

// One value by a format such as "5.2f", "-8s" or "03d"; `conversion` is the printf letter, or 0 to take it from the end
// of `spec`.
bool Interpreter::put_formatted(MarkedText& out, const Value& value, std::string_view spec, char conversion) {
  bool left = false, zero = false, plus = false;
  for (; !spec.empty(); spec.remove_prefix(1)) {
    if (spec[0] == '-' || spec[0] == '<') left = true;
    else if (spec[0] == '0') zero = true;
    else if (spec[0] == '+') plus = true;
    else if (spec[0] != ' ' && spec[0] != '>') break;
  }
  int width = 0, precision = -1;
  const auto number = [&](int& target) {
    const auto end = std::from_chars(spec.data(), spec.data() + spec.size(), target);
    spec.remove_prefix(static_cast<size_t>(end.ptr - spec.data()));
    return end.ec == std::errc();
  };
  if (!spec.empty() && spec[0] >= '1' && spec[0] <= '9' && !number(width)) width = 1 << 20;
  if (!spec.empty() && spec[0] == '.') {
    spec.remove_prefix(1);
    if (!number(precision)) precision = 0;
  }
  if (conversion == 0 && spec.size() == 1) {
    conversion = spec[0];
    spec.remove_prefix(1);
  }
  if (conversion == 0) conversion = value.is_integral() ? 'd' : value.is(Kind::kFloat) && precision >= 0 ? 'g' : 's';
  if (!spec.empty() || width > 10000 || precision > 1000) {
    fail("this format is not supported", ErrorCode::kUnsupported);
    return false;
  }
  MarkedText body;
  const auto printed = [&](const char* format) {
    char buffer[1600];
    const int size = std::snprintf(buffer, sizeof buffer, format, precision < 0 ? 6 : precision, value.as_float());
    body.append(std::string_view(buffer, static_cast<size_t>(std::min<int>(size, sizeof buffer - 1))));
  };
  switch (conversion) {
    case 's':
      body = text_of(value);
      break;
    case 'r':
      print_repr(body, value);
      break;
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
      if (!value.is_number()) {
        fail(std::string("a number is needed, not ") + type_name(value));
        return false;
      } else {
        const Int whole =
            value.is_integral() ? value.as_int() : static_cast<Int>(std::clamp(value.as_float(), -1e30, 1e30));
        if (conversion == 'd' || conversion == 'i' || conversion == 'u') {
          body.append(format_int(whole));
        } else {
          char buffer[64];
          const auto magnitude = static_cast<unsigned long long>(whole < 0 ? -whole : whole);
          std::snprintf(buffer, sizeof buffer,
                        conversion == 'o'   ? "%s%llo"
                        : conversion == 'x' ? "%s%llx"
                                            : "%s%llX",
                        whole < 0 ? "-" : "", magnitude);
          body.append(buffer);
        }
      }
      break;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (!value.is_number()) {
        fail(std::string("a number is needed, not ") + type_name(value));
        return false;
      }
      printed(conversion == 'e'                        ? "%.*e"
              : conversion == 'E'                      ? "%.*E"
              : conversion == 'f' || conversion == 'F' ? "%.*f"
              : conversion == 'g'                      ? "%.*g"
                                                       : "%.*G");
      break;
    default:
      fail(std::string("the format '") + conversion + "' is not supported", ErrorCode::kUnsupported);
      return false;
  }
  if (conversion == 's' && precision >= 0)
    body = body.part(0, offset_of_character(body.bytes, static_cast<size_t>(precision)));
  if (plus && value.is_number() && conversion != 's' && body.bytes[0] != '-') {
    MarkedText with_sign;
    with_sign.append("+");
    with_sign.append(body);
    body = std::move(with_sign);
  }
  const size_t size = count_characters(body.bytes);
  const size_t missing = static_cast<size_t>(width) > size ? static_cast<size_t>(width) - size : 0;
  const bool is_number = conversion != 's' && conversion != 'r';
  const size_t sign =
      zero && is_number && !body.bytes.empty() && (body.bytes[0] == '-' || body.bytes[0] == '+') ? 1 : 0;
  put(out, body, 0, sign);
  if (!left) put(out, std::string(missing, zero && is_number ? '0' : ' '));
  put(out, body, sign, body.bytes.size());
  if (left) put(out, std::string(missing, ' '));
  return !failed();
}

Value Interpreter::format_percent(const MarkedText& format, const Value& values, const Arguments* named) {
  const std::string_view bytes = format.bytes;
  MarkedText out;
  size_t next = 0, done = 0;
  const auto take = [&]() -> Value {
    if (!values.is(Kind::kTuple)) return next++ == 0 ? values : fail("there are fewer values than the format asks for");
    const auto& items = values.list().items;
    return next < items.size() ? items[next++] : fail("there are fewer values than the format asks for");
  };
  for (size_t at = bytes.find('%'); at != std::string_view::npos && !failed(); at = bytes.find('%', done)) {
    put(out, format, done, at);
    size_t i = at + 1;
    std::optional<Value> by_name;
    if (i < bytes.size() && bytes[i] == '(') {
      const size_t close = bytes.find(')', i);
      if (close == std::string_view::npos) return fail("a name in a format is not closed");
      const std::string name(bytes.substr(i + 1, close - i - 1));
      by_name = Value::undefined("the format names '" + name + "', which is not given");
      if (values.is_mapping()) by_name = item(values, Value::text(name));
      else if (named)
        for (const auto& [known, value] : named->named)
          if (known == name) by_name = value;
      i = close + 1;
    }
    const size_t spec = i;
    while (i < bytes.size() && std::string_view("-+ #0123456789.").find(bytes[i]) != std::string_view::npos) ++i;
    if (i == bytes.size()) return fail("a format ends in the middle");
    if (bytes[i] == '%') put(out, "%");
    else if (!put_formatted(out, by_name ? *by_name : take(), bytes.substr(spec, i - spec), bytes[i])) return {};
    done = i + 1;
  }
  if (values.is(Kind::kTuple) && next < values.list().items.size())
    return fail("there are more values than the format asks for");
  put(out, format, done, bytes.size());
  return failed() ? Value() : Value::text(std::move(out));
}

Value Interpreter::format_braces(const MarkedText& format, const Arguments& arguments) {
  const std::string_view bytes = format.bytes;
  MarkedText out;
  size_t next = 0, done = 0;
  for (size_t at = bytes.find_first_of("{}"); at != std::string_view::npos && !failed();
       at = bytes.find_first_of("{}", done)) {
    put(out, format, done, at);
    if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {  // {{ and }}
      put(out, format, at, at + 1);
      done = at + 2;
      continue;
    }
    const size_t close = bytes.find('}', at);
    if (bytes[at] == '}' || close == std::string_view::npos) return fail("a brace in a format has no partner");
    std::string_view field = bytes.substr(at + 1, close - at - 1), spec;
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = 0;
    if (field.size() >= 2 && field[field.size() - 2] == '!') {
      conversion = field.back() == 'r' ? 'r' : 's';
      field.remove_suffix(2);
    }
    const Value* value = nullptr;
    size_t index = 0;
    const auto end = std::from_chars(field.data(), field.data() + field.size(), index);
    if (field.empty()) index = next++;
    if (field.empty() || (end.ec == std::errc() && end.ptr == field.data() + field.size())) {
      if (index < arguments.positional.size()) value = &arguments.positional[index];
    } else {
      for (const auto& [known, candidate] : arguments.named)
        if (known == field) value = &candidate;
    }
    if (!value) return fail("the format names '" + std::string(field) + "', which is not given");
    if (!put_formatted(out, *value, spec, spec.empty() && conversion == 0 ? 's' : conversion)) return {};
    done = close + 1;
  }
  put(out, format, done, bytes.size());
  return failed() ? Value() : Value::text(std::move(out));
}

}  // namespace foretoken::jinja
