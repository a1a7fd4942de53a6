// Strings with marks, dictionaries and the number formats of Python's repr.
#include "text/template_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "text/unicode.h"

namespace foretoken::jinja {

void MarkedText::append(std::string_view text, bool trusted) {
  if (text.empty()) return;
  const size_t begin = bytes.size();
  bytes += text;
  if (trusted) return;
  if (!untrusted.empty() && untrusted.back().end == begin) untrusted.back().end = bytes.size();
  else untrusted.push_back({begin, bytes.size()});
}

void MarkedText::append(const MarkedText& other, size_t begin, size_t end) {
  if (begin >= end) return;
  const size_t base = bytes.size();
  bytes.append(other.bytes, begin, end - begin);
  auto it = std::lower_bound(other.untrusted.begin(), other.untrusted.end(), begin,
                             [](const ByteRange& range, size_t at) { return range.end <= at; });
  for (; it != other.untrusted.end() && it->begin < end; ++it) {
    const ByteRange range{base + std::max(it->begin, begin) - begin, base + std::min(it->end, end) - begin};
    if (!untrusted.empty() && untrusted.back().end == range.begin) untrusted.back().end = range.end;
    else untrusted.push_back(range);
  }
}

MarkedText MarkedText::part(size_t begin, size_t end) const {
  MarkedText result;
  result.append(*this, begin, end);
  return result;
}

Value Value::undefined(std::string_view what) {
  Value v;
  v.text_ = std::make_shared<const MarkedText>(MarkedText{std::string(what), {}});
  return v;
}

Value Value::text(MarkedText text) {
  Value v(Kind::kString);
  v.text_ = std::make_shared<const MarkedText>(std::move(text));
  return v;
}

Value Value::text(std::string_view trusted) { return text(MarkedText{std::string(trusted), {}}); }

List& Value::list() const {
  CHECK(is_sequence());
  return static_cast<List&>(*object_);
}
Dict& Value::dict() const {
  const bool holds_entries = kind_ == Kind::kDict || kind_ == Kind::kNamespace;
  CHECK(holds_entries);
  return static_cast<Dict&>(*object_);
}
Method& Value::method() const {
  CHECK(kind_ == Kind::kMethod);
  return static_cast<Method&>(*object_);
}

std::string dict_key(const Value& key) {
  switch (key.kind()) {
    case Kind::kString:
      return "s" + std::string(key.str());
    case Kind::kNone:
      return "n";
    case Kind::kBool:
    case Kind::kInt:
      return "i" + format_int(key.as_int());
    case Kind::kFloat:
      if (std::abs(key.as_float()) < 1e18 && key.as_float() == std::trunc(key.as_float()))
        return "i" + format_int(static_cast<Int>(key.as_float()));
      return "f" + format_float(key.as_float());
    case Kind::kTuple: {
      std::string joined = "t";
      for (const Value& item : key.list().items) {
        if (!item.is_number() && !item.is_string() && !item.is_none()) return {};
        const std::string part = dict_key(item);
        joined += std::to_string(part.size()) + ":" + part;
      }
      return joined;
    }
    default:
      return {};
  }
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string()) return find(key.str());
  const auto it = index.find(dict_key(key));
  return it == index.end() ? nullptr : &entries[it->second].second;
}

const Value* Dict::find(std::string_view key) const {
  std::string wanted = "s";
  wanted += key;
  const auto it = index.find(wanted);
  return it == index.end() ? nullptr : &entries[it->second].second;
}

bool Dict::set(const Value& key, Value value) {
  std::string name = dict_key(key);
  if (name.empty()) return false;
  const auto [it, fresh] = index.emplace(std::move(name), entries.size());
  if (fresh) entries.emplace_back(key, std::move(value));
  else entries[it->second].second = std::move(value);
  return true;
}

std::string format_int(Int value) {
  const bool negative = value < 0;
  auto rest = negative ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  std::string digits;
  do {
    digits.insert(digits.begin(), static_cast<char>('0' + static_cast<int>(rest % 10)));
    rest /= 10;
  } while (rest != 0);
  return negative ? "-" + digits : digits;
}

std::string format_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  // "-d.ddde+XX": the shortest digits and their exponent, from which Python chooses the notation.
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string sign;
  if (text.front() == '-') {
    sign = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  int exponent = 0;
  const char* exponent_begin = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(exponent_begin, end, exponent);
  const int point = exponent + 1;  // digits before the decimal point
  const int count = static_cast<int>(digits.size());
  if (point > -4 && point <= 16) {
    if (point <= 0) return sign + "0." + std::string(static_cast<size_t>(-point), '0') + digits;
    if (point >= count) return sign + digits + std::string(static_cast<size_t>(point - count), '0') + ".0";
    return sign + digits.substr(0, static_cast<size_t>(point)) + "." + digits.substr(static_cast<size_t>(point));
  }
  std::string result = sign + digits[0];
  if (count > 1) result += "." + digits.substr(1);
  const int magnitude = exponent < 0 ? -exponent : exponent;
  result += exponent < 0 ? "e-" : "e+";
  if (magnitude < 10) result += "0";
  return result + std::to_string(magnitude);
}

namespace {

std::string without_underscores(std::string_view text) {
  const auto digit = [&](size_t k) { return k < text.size() && text[k] >= '0' && text[k] <= '9'; };
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] != '_' || i == 0 || !digit(i - 1) || !digit(i + 1)) plain += text[i];
  return plain;
}

}  // namespace

std::optional<double> parse_float(std::string_view raw) {
  std::string text = without_underscores(raw);
  if (text.starts_with('+')) text.erase(0, 1);
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (text.empty() || parsed.ptr != end || parsed.ec == std::errc::invalid_argument) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) {
    const bool tiny = text.find("e-") != std::string::npos || text.find("E-") != std::string::npos ||
                      text.find_first_of("eE") == std::string::npos;
    value = tiny ? 0 : text[0] == '-' ? -HUGE_VAL : HUGE_VAL;
  }
  return value;
}

std::optional<Int> parse_int(std::string_view raw, int base) {
  std::string text = without_underscores(raw);
  bool negative = false;
  if (text.starts_with('+') || text.starts_with('-')) {
    negative = text[0] == '-';
    text.erase(0, 1);
  }
  if (text.size() > 2 && text[0] == '0') {
    const char letter = static_cast<char>(text[1] | 0x20);
    if ((letter == 'x' && base == 16) || (letter == 'o' && base == 8) || (letter == 'b' && base == 2)) text.erase(0, 2);
  }
  if (text.empty()) return std::nullopt;
  Int value = 0;
  for (const char c : text) {
    const int digit = c >= '0' && c <= '9'                     ? c - '0'
                      : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10
                                                               : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, static_cast<Int>(base), &value)) return std::nullopt;
    if (__builtin_add_overflow(value, static_cast<Int>(digit), &value)) return std::nullopt;
  }
  return negative ? -value : value;
}

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kMacro:
      return "Macro";
    case Kind::kFunction:
      return "function";
    case Kind::kMethod:
      return "method";
    case Kind::kLoop:
      return "LoopContext";
  }
  return "?";
}

}  // namespace foretoken::jinja
