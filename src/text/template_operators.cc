// Truth, equality, order, arithmetic, subscripts and the two ways to print a value: as Python's str() and as JSON.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "text/template_interpreter.h"
#include "text/unicode.h"

namespace foretoken::jinja {
namespace {

constexpr int kDeepestValue = 200;

std::string quoted_type(const Value& value) { return std::string("'") + type_name(value) + "'"; }

// floor(a / b) and the remainder with the divisor's sign, as Python divides.
Int floor_divide(Int a, Int b) {
  const Int q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

}  // namespace

Macro& Value::macro() const {
  CHECK(kind_ == Kind::kMacro);
  return static_cast<Macro&>(*object_);
}
Loop& Value::loop() const {
  CHECK(kind_ == Kind::kLoop);
  return static_cast<Loop&>(*object_);
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

size_t offset_of_character(std::string_view text, size_t n) {
  size_t at = 0;
  for (; n > 0 && at < text.size(); --n) at += decode_utf8(text, at).size;
  return at;
}

// ---- truth and comparison

bool Interpreter::truthy(const Value& value) const {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_float() != 0;
    case Kind::kString:
      return !value.str().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.list().items.empty();
    case Kind::kDict:
      return !value.dict().entries.empty();
    default:
      return true;
  }
}

bool Interpreter::equal(const Value& a, const Value& b, int depth) {
  if (failed() || !spend(1)) return false;
  if (depth > kDeepestValue) {
    fail("values nested too deeply to compare");
    return false;
  }
  if (a.is_number() && b.is_number())
    return a.is_integral() && b.is_integral() ? a.as_int() == b.as_int() : a.as_float() == b.as_float();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return spend(a.str().size() / 64) && a.str() == b.str();
    case Kind::kList:
    case Kind::kTuple: {
      const auto &x = a.list().items, &y = b.list().items;
      if (x.size() != y.size()) return false;
      for (size_t i = 0; i < x.size(); ++i)
        if (!equal(x[i], y[i], depth + 1)) return false;
      return true;
    }
    case Kind::kDict: {
      const Dict &x = a.dict(), &y = b.dict();
      if (x.entries.size() != y.entries.size()) return false;
      for (const auto& [key, value] : x.entries) {
        const Value* other = y.find(key);
        if (!other || !equal(value, *other, depth + 1)) return false;
      }
      return true;
    }
    case Kind::kFunction:
      return a.as_function() == b.as_function();
    default:
      return a.identity() == b.identity();
  }
}

int Interpreter::compare(const Value& a, const Value& b, const char* op, int depth) {
  if (failed() || !spend(1)) return 0;
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
    return a.as_float() < b.as_float() ? -1 : a.as_float() > b.as_float();
  }
  if (a.is_string() && b.is_string()) {  // UTF-8 bytes order as code points do
    spend(std::min(a.str().size(), b.str().size()) / 64);
    const int order = a.str().compare(b.str());
    return order < 0 ? -1 : order > 0;
  }
  if (a.is_sequence() && a.kind() == b.kind() && depth <= kDeepestValue) {
    const auto &x = a.list().items, &y = b.list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equal(x[i], y[i], depth + 1)) return compare(x[i], y[i], op, depth + 1);
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  const Value& undefined = a.is_undefined() ? a : b;
  if (undefined.is_undefined()) fail(std::string(undefined.undefined_name()));
  else fail(std::string("'") + op + "' is not defined between " + quoted_type(a) + " and " + quoted_type(b));
  return 0;
}

bool Interpreter::contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) {
        fail("'in <string>' requires a string on its left, not " + quoted_type(item));
        return false;
      }
      return spend(container.str().size() / 16) && container.str().find(item.str()) != std::string_view::npos;
    case Kind::kDict:
      return container.dict().find(item) != nullptr;
    case Kind::kUndefined:
      return false;
    case Kind::kList:
    case Kind::kTuple:
      for (const Value& element : container.list().items)
        if (equal(element, item)) return true;
      return false;
    default:
      fail("'in' needs a string, a list or a mapping on its right, not " + quoted_type(container));
      return false;
  }
}

// ---- arithmetic

Value Interpreter::binary(Op op, const Value& a, const Value& b) {
  if (failed()) return {};
  switch (op) {
    case Op::kEqual:
      return Value::boolean(equal(a, b));
    case Op::kNotEqual:
      return Value::boolean(!equal(a, b));
    case Op::kLess:
      return Value::boolean(compare(a, b, "<") < 0);
    case Op::kLessEqual:
      return Value::boolean(compare(a, b, "<=") <= 0);
    case Op::kGreater:
      return Value::boolean(compare(a, b, ">") > 0);
    case Op::kGreaterEqual:
      return Value::boolean(compare(a, b, ">=") >= 0);
    case Op::kIn:
      return Value::boolean(contains(b, a));
    case Op::kNotIn:
      return Value::boolean(!contains(b, a));
    default:
      return arithmetic(op, a, b);
  }
}

Value Interpreter::arithmetic(Op op, const Value& a, const Value& b) {
  static constexpr const char* kNames[] = {"+", "-", "*", "/", "//", "%", "**"};
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) return fail(std::string(value->undefined_name()));
  if (op == Op::kAdd && a.is_string() && b.is_string()) {
    MarkedText text;
    put(text, a.marked());
    put(text, b.marked());
    return Value::text(std::move(text));
  }
  if (op == Op::kAdd && a.is_sequence() && a.kind() == b.kind()) {
    std::vector<Value> items = a.list().items;
    items.insert(items.end(), b.list().items.begin(), b.list().items.end());
    return spend(items.size()) ? make_list(std::move(items), a.kind()) : Value();
  }
  if (op == Op::kMultiply && b.is_integral() && (a.is_string() || a.is_sequence())) return repeat(a, b.as_int());
  if (op == Op::kMultiply && a.is_integral() && (b.is_string() || b.is_sequence())) return repeat(b, a.as_int());
  if (op == Op::kModulo && a.is_string()) return format_percent(a.marked(), b);
  if (!a.is_number() || !b.is_number())
    return fail(std::string("'") + kNames[static_cast<int>(op)] + "' is not defined between " + quoted_type(a) +
                " and " + quoted_type(b));

  const bool divides = op == Op::kDivide || op == Op::kFloorDivide || op == Op::kModulo;
  if (divides && b.as_float() == 0) return fail("division by zero");
  if (a.is_integral() && b.is_integral() && op != Op::kDivide && !(op == Op::kPower && b.as_int() < 0)) {
    const Int x = a.as_int(), y = b.as_int();
    Int result = 0;
    bool overflow = false;
    switch (op) {
      case Op::kAdd:
        overflow = __builtin_add_overflow(x, y, &result);
        break;
      case Op::kSubtract:
        overflow = __builtin_sub_overflow(x, y, &result);
        break;
      case Op::kMultiply:
        overflow = __builtin_mul_overflow(x, y, &result);
        break;
      case Op::kFloorDivide:
        overflow = y == -1 && __builtin_sub_overflow(Int{0}, x, &result);
        if (!overflow) result = floor_divide(x, y);
        break;
      case Op::kModulo:
        result = y == -1 ? 0 : x - floor_divide(x, y) * y;
        break;
      default: {  // kPower
        result = 1;
        const bool trivial = x == 0 || x == 1 || x == -1;
        Int base = x;
        for (Int rest = trivial ? (y == 0 ? 0 : 2 - y % 2) : y; rest > 0 && !overflow; rest /= 2) {
          if (rest % 2 != 0) overflow = __builtin_mul_overflow(result, base, &result);
          if (rest > 1) overflow = overflow || __builtin_mul_overflow(base, base, &base);
        }
      }
    }
    if (overflow) return fail("an integer grows beyond 127 bits");
    return Value::integer(result);
  }
  const double x = a.as_float(), y = b.as_float();
  switch (op) {
    case Op::kAdd:
      return Value::number(x + y);
    case Op::kSubtract:
      return Value::number(x - y);
    case Op::kMultiply:
      return Value::number(x * y);
    case Op::kDivide:
      return Value::number(x / y);
    case Op::kFloorDivide:
      return Value::number(std::floor(x / y));
    case Op::kModulo: {
      const double rest = std::fmod(x, y);
      return Value::number(rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest);
    }
    default: {
      if (x == 0 && y < 0) return fail("zero cannot be raised to a negative power");
      if (x < 0 && y != std::floor(y)) return fail("a negative number cannot be raised to a fractional power");
      return Value::number(std::pow(x, y));
    }
  }
}

Value Interpreter::repeat(const Value& value, Int times) {
  if (times < 0) times = 0;
  if (value.is_string()) {
    if (value.str().empty() || times == 0) return Value::text("");
    MarkedText text;
    if (times > static_cast<Int>(limits_.text_bytes)) times = static_cast<Int>(limits_.text_bytes);
    for (Int i = 0; i < times && !failed(); ++i) put(text, value.marked());
    return Value::text(std::move(text));
  }
  const auto& items = value.list().items;
  if (items.empty()) times = 0;
  if (times > static_cast<Int>(limits_.objects)) return fail("a list is repeated too often");
  if (!spend(static_cast<uint64_t>(times) * (items.size() + 1))) return {};
  std::vector<Value> all;
  for (Int i = 0; i < times; ++i) all.insert(all.end(), items.begin(), items.end());
  return make_list(std::move(all), value.kind());
}

Value Interpreter::negate(const Value& value, bool minus) {
  if (failed()) return {};
  if (value.is_undefined()) return fail(std::string(value.undefined_name()));
  if (value.is_integral()) {
    Int result = value.as_int();
    if (minus && __builtin_sub_overflow(Int{0}, value.as_int(), &result))
      return fail("an integer grows beyond 127 bits");
    return Value::integer(result);
  }
  if (value.is(Kind::kFloat)) return Value::number(minus ? -value.as_float() : value.as_float());
  return fail("a sign before " + quoted_type(value) + " means nothing");
}

// ---- parts of values

Value Interpreter::attribute(const Value& self, const std::string& name) {
  if (failed()) return {};
  if (has_method(self, name)) {
    auto* method = make_object<Method>();
    method->self = self;
    method->name = name;
    return Value::object(Kind::kMethod, method);
  }
  switch (self.kind()) {
    case Kind::kUndefined:
      return fail(std::string(self.undefined_name()));
    case Kind::kDict:
    case Kind::kNamespace:
      if (const Value* found = self.dict().find(std::string_view(name))) return *found;
      break;
    case Kind::kLoop:
      return loop_attribute(self.loop(), name);
    case Kind::kMacro:
      if (name == "name") return Value::text(self.macro().stmt->text);
      break;
    default:
      break;
  }
  return Value::undefined(std::string("a ") + type_name(self) + " has no attribute '" + name + "'");
}

Value Interpreter::loop_attribute(Loop& loop, const std::string& name) {
  const auto size = static_cast<Int>(loop.items.size()), index = static_cast<Int>(loop.index);
  if (name == "index0") return Value::integer(index);
  if (name == "index") return Value::integer(index + 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == size);
  if (name == "length") return Value::integer(size);
  if (name == "revindex") return Value::integer(size - index);
  if (name == "revindex0") return Value::integer(size - index - 1);
  if (name == "depth") return Value::integer(loop.depth + 1);
  if (name == "depth0") return Value::integer(loop.depth);
  if (name == "previtem") return index > 0 ? loop.items[loop.index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < size ? loop.items[loop.index + 1] : Value::undefined("there is no next item");
  return Value::undefined("a loop has no attribute '" + name + "'");
}

Value Interpreter::item(const Value& self, const Value& key) {
  if (failed()) return {};
  if (self.is_undefined()) return fail(std::string(self.undefined_name()));
  if (self.is_mapping() || self.is(Kind::kNamespace)) {
    if (const Value* found = self.dict().find(key)) return *found;
  } else if (key.is_integral() && (self.is_sequence() || self.is_string())) {
    const auto size = static_cast<Int>(self.is_string() ? count_characters(self.str()) : self.list().items.size());
    const Int index = key.as_int() < 0 ? key.as_int() + size : key.as_int();
    if (index >= 0 && index < size) {
      if (!self.is_string()) return self.list().items[static_cast<size_t>(index)];
      if (!spend(self.str().size() / 64)) return {};
      const size_t begin = offset_of_character(self.str(), static_cast<size_t>(index));
      return Value::text(self.marked().part(begin, begin + decode_utf8(self.str(), begin).size));
    }
  }
  if (key.is_string()) return attribute(self, std::string(key.str()));
  MarkedText shown;
  print_repr(shown, key);
  return Value::undefined(std::string("a ") + type_name(self) + " has no element " + shown.bytes.substr(0, 80));
}

Value Interpreter::slice(const Value& self, std::optional<Int> begin, std::optional<Int> end, std::optional<Int> step) {
  if (failed()) return {};
  if (self.is_undefined()) return fail(std::string(self.undefined_name()));
  if (!self.is_string() && !self.is_sequence()) return fail("a slice of " + quoted_type(self) + " means nothing");
  const Int stride = step.value_or(1);
  if (stride == 0) return fail("a slice's step cannot be zero");
  const auto size = static_cast<Int>(self.is_string() ? count_characters(self.str()) : self.list().items.size());
  const Int low = stride > 0 ? 0 : -1, high = stride > 0 ? size : size - 1;
  const auto clamp = [&](Int bound) {
    if (bound < 0) bound += size;
    return std::min(std::max(bound, low), high);
  };
  const Int first = begin ? clamp(*begin) : (stride > 0 ? low : high);
  const Int last = end ? clamp(*end) : (stride > 0 ? high : low);
  if (!spend(1 + static_cast<uint64_t>(size) / 16)) return {};

  if (self.is_string()) {
    MarkedText text;
    if (stride == 1) {
      if (first < last) {
        const size_t from = offset_of_character(self.str(), static_cast<size_t>(first));
        put(text, self.marked(), from,
            from + offset_of_character(self.str().substr(from), static_cast<size_t>(last - first)));
      }
      return Value::text(std::move(text));
    }
    std::vector<size_t> offsets;
    for (size_t at = 0; at < self.str().size(); at += decode_utf8(self.str(), at).size) offsets.push_back(at);
    offsets.push_back(self.str().size());
    for (Int i = first; stride > 0 ? i < last : i > last; i += stride)
      put(text, self.marked(), offsets[static_cast<size_t>(i)], offsets[static_cast<size_t>(i) + 1]);
    return Value::text(std::move(text));
  }
  std::vector<Value> items;
  for (Int i = first; stride > 0 ? i < last : i > last; i += stride)
    items.push_back(self.list().items[static_cast<size_t>(i)]);
  return make_list(std::move(items), self.kind());
}

std::vector<Value> Interpreter::iterate(const Value& value) {
  std::vector<Value> items;
  if (failed()) return items;
  switch (value.kind()) {
    case Kind::kUndefined:
      break;
    case Kind::kList:
    case Kind::kTuple:
      items = value.list().items;
      break;
    case Kind::kDict:
      for (const auto& [key, unused] : value.dict().entries) items.push_back(key);
      break;
    case Kind::kString:
      objects_ += value.str().size();
      if (objects_ > limits_.objects) {
        fail("the template walks over too many characters");
        break;
      }
      for (size_t at = 0; at < value.str().size();) {
        const size_t end = at + decode_utf8(value.str(), at).size;
        items.push_back(Value::text(value.marked().part(at, end)));
        at = end;
      }
      break;
    default:
      fail("a " + std::string(type_name(value)) + " cannot be walked over");
  }
  spend(items.size());
  return items;
}

std::optional<Int> Interpreter::length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return static_cast<Int>(count_characters(value.str()));
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<Int>(value.list().items.size());
    case Kind::kDict:
      return static_cast<Int>(value.dict().entries.size());
    case Kind::kLoop:
      return static_cast<Int>(value.loop().items.size());
    default:
      return std::nullopt;
  }
}

// ---- printing

void Interpreter::print(MarkedText& out, const Value& value) {
  if (failed()) return;
  if (value.is_string()) put(out, value.marked());
  else if (!value.is_undefined()) print_repr(out, value);
}

MarkedText Interpreter::text_of(const Value& value) {
  if (value.is_string()) return value.marked();
  MarkedText text;
  print(text, value);
  return text;
}

void Interpreter::print_repr(MarkedText& out, const Value& value, int depth) {
  if (failed() || !spend(1)) return;
  if (depth > kDeepestValue) {
    fail("a value is nested too deeply to print");
    return;
  }
  const auto print_items = [&](const std::vector<Value>& items) {
    for (size_t i = 0; i < items.size() && !failed(); ++i) {
      if (i > 0) put(out, ", ");
      print_repr(out, items[i], depth + 1);
    }
  };
  switch (value.kind()) {
    case Kind::kUndefined:
      put(out, "Undefined");
      break;
    case Kind::kNone:
      put(out, "None");
      break;
    case Kind::kBool:
      put(out, value.as_int() != 0 ? "True" : "False");
      break;
    case Kind::kInt:
      put(out, format_int(value.as_int()));
      break;
    case Kind::kFloat:
      put(out, format_float(value.as_float()));
      break;
    case Kind::kList:
      put(out, "[");
      print_items(value.list().items);
      put(out, "]");
      break;
    case Kind::kTuple:
      put(out, "(");
      print_items(value.list().items);
      put(out, value.list().items.size() == 1 ? ",)" : ")");
      break;
    case Kind::kDict: {
      put(out, "{");
      bool first = true;
      for (const auto& [key, entry] : value.dict().entries) {
        if (failed()) break;
        if (!first) put(out, ", ");
        first = false;
        print_repr(out, key, depth + 1);
        put(out, ": ");
        print_repr(out, entry, depth + 1);
      }
      put(out, "}");
      break;
    }
    case Kind::kString: {
      const std::string_view text = value.str();
      const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
      const char quote = single ? '\'' : '"';
      put(out, std::string_view(&quote, 1));
      size_t done = 0;
      char escape[16];
      for (size_t at = 0; at < text.size();) {
        const CodePoint c = decode_utf8(text, at);
        const size_t end = at + c.size;
        escape[0] = '\0';
        if (c.value == static_cast<char32_t>(quote) || c.value == '\\')
          std::snprintf(escape, sizeof escape, "\\%c", static_cast<char>(c.value));
        else if (c.value == '\n') std::snprintf(escape, sizeof escape, "\\n");
        else if (c.value == '\r') std::snprintf(escape, sizeof escape, "\\r");
        else if (c.value == '\t') std::snprintf(escape, sizeof escape, "\\t");
        else if (c.value < 0x80 ? c.value < 0x20 || c.value == 0x7F : !is_printable(c.value))
          std::snprintf(escape, sizeof escape,
                        c.value < 0x100     ? "\\x%02x"
                        : c.value < 0x10000 ? "\\u%04x"
                                            : "\\U%08x",
                        static_cast<unsigned>(c.value));
        if (escape[0] != '\0') {
          put(out, value.marked(), done, at);
          put(out, escape, false);
          done = end;
        }
        at = end;
      }
      put(out, value.marked(), done, text.size());
      put(out, std::string_view(&quote, 1));
      break;
    }
    case Kind::kNamespace:
      put(out, "<Namespace>");
      break;
    case Kind::kMacro:
      put(out, "<Macro '" + value.macro().stmt->text + "'>");
      break;
    case Kind::kFunction:
    case Kind::kMethod:
      put(out, "<function>");
      break;
    case Kind::kLoop:
      put(out, "<LoopContext " + std::to_string(value.loop().index + 1) + "/" +
                   std::to_string(value.loop().items.size()) + ">");
      break;
  }
}

void Interpreter::print_json_string(MarkedText& out, const MarkedText& text, bool ascii) {
  put(out, "\"");
  size_t done = 0;
  char escape[16];
  const std::string_view bytes = text.bytes;
  const bool plain = !ascii;
  for (size_t at = 0; at < bytes.size();) {
    const auto byte = static_cast<unsigned char>(bytes[at]);
    if (byte >= 0x20 && byte != '"' && byte != '\\' && (plain || byte < 0x7F)) {
      ++at;
      continue;
    }
    const CodePoint c = decode_utf8(bytes, at);
    switch (c.value) {
      case '"':
        std::snprintf(escape, sizeof escape, "\\\"");
        break;
      case '\\':
        std::snprintf(escape, sizeof escape, "\\\\");
        break;
      case '\n':
        std::snprintf(escape, sizeof escape, "\\n");
        break;
      case '\r':
        std::snprintf(escape, sizeof escape, "\\r");
        break;
      case '\t':
        std::snprintf(escape, sizeof escape, "\\t");
        break;
      case '\b':
        std::snprintf(escape, sizeof escape, "\\b");
        break;
      case '\f':
        std::snprintf(escape, sizeof escape, "\\f");
        break;
      default:
        if (c.value < 0x10000) {
          std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c.value));
        } else {
          const auto rest = static_cast<unsigned>(c.value) - 0x10000;
          std::snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
        }
    }
    put(out, text, done, at);
    put(out, escape, false);
    at += c.size;
    done = at;
  }
  put(out, text, done, bytes.size());
  put(out, "\"");
}

void Interpreter::print_json(MarkedText& out, const Value& value, const JsonStyle& style, int depth) {
  if (failed() || !spend(1)) return;
  if (depth > kDeepestValue) {
    fail("a value is nested too deeply for JSON");
    return;
  }
  const auto new_line = [&](int level) {
    if (!style.indented) return;
    put(out, "\n");
    for (int i = 0; i < level && !failed(); ++i) put(out, style.indent);
  };
  switch (value.kind()) {
    case Kind::kNone:
      put(out, "null");
      break;
    case Kind::kBool:
      put(out, value.as_int() != 0 ? "true" : "false");
      break;
    case Kind::kInt:
      put(out, format_int(value.as_int()));
      break;
    case Kind::kFloat:
      if (std::isnan(value.as_float())) put(out, "NaN");
      else if (std::isinf(value.as_float())) put(out, value.as_float() < 0 ? "-Infinity" : "Infinity");
      else put(out, format_float(value.as_float()));
      break;
    case Kind::kString:
      print_json_string(out, value.marked(), style.ascii);
      break;
    case Kind::kList:
    case Kind::kTuple: {
      const auto& items = value.list().items;
      put(out, "[");
      for (size_t i = 0; i < items.size() && !failed(); ++i) {
        if (i > 0) put(out, style.item_separator);
        new_line(depth + 1);
        print_json(out, items[i], style, depth + 1);
      }
      if (!items.empty()) new_line(depth);
      put(out, "]");
      break;
    }
    case Kind::kDict: {
      std::vector<const std::pair<Value, Value>*> entries;
      for (const auto& entry : value.dict().entries) entries.push_back(&entry);
      if (style.sort_keys)
        std::stable_sort(entries.begin(), entries.end(),
                         [&](const auto* a, const auto* b) { return compare(a->first, b->first, "<") < 0; });
      put(out, "{");
      bool first = true;
      for (const auto* entry : entries) {
        if (failed()) return;
        if (!first) put(out, style.item_separator);
        first = false;
        new_line(depth + 1);
        const Value& key = entry->first;
        if (key.is_string()) {
          print_json_string(out, key.marked(), style.ascii);
        } else if (key.is_number() || key.is_none()) {
          put(out, "\"");
          print_json(out, key, style, depth + 1);
          put(out, "\"");
        } else {
          fail(std::string("a ") + type_name(key) + " cannot be a key in JSON");
          return;
        }
        put(out, style.key_separator);
        print_json(out, entry->second, style, depth + 1);
      }
      if (!entries.empty()) new_line(depth);
      put(out, "}");
      break;
    }
    default:
      fail(std::string("a value of type ") + type_name(value) + " cannot be written as JSON" +
           (value.is_undefined() ? ": " + std::string(value.undefined_name()) : ""));
  }
}

}  // namespace foretoken::jinja
