// The values a chat template computes with, Python's as far as templates can tell. Strings carry the ranges that came
// from outside the template through every operation. Containers belong to a Heap that lives as long as one rendering,
// so a template may tie them into knots without leaking. This file knows nothing of syntax.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/byte_range.h"

namespace foretoken::jinja {

using Int = __int128;  // wide enough for every JSON integer; overflow is an error, not a wrong number

// Valid UTF-8 with the parts from outside marked.
struct MarkedText {
  std::string bytes;
  std::vector<ByteRange> untrusted;  // ascending, disjoint, not adjacent

  void append(std::string_view text, bool trusted = true);
  void append(const MarkedText& other) { append(other, 0, other.bytes.size()); }
  void append(const MarkedText& other, size_t begin, size_t end);
  MarkedText part(size_t begin, size_t end) const;
};

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kNamespace,
  kMacro,
  kFunction,
  kMethod,
  kLoop
};

struct Object {
  virtual ~Object() = default;
};
struct List;
struct Dict;
struct Macro;
struct Method;
struct Loop;
enum class Function : uint8_t { kRange, kNamespace, kDict, kRaiseException, kStrftimeNow };

class Value {
 public:
  Value() = default;  // undefined
  static Value undefined(std::string_view what);
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool b) {
    Value v(Kind::kBool);
    v.int_ = b;
    return v;
  }
  static Value integer(Int i) {
    Value v(Kind::kInt);
    v.int_ = i;
    return v;
  }
  static Value number(double d) {
    Value v(Kind::kFloat);
    v.float_ = d;
    return v;
  }
  static Value text(MarkedText text);
  static Value text(std::string_view trusted);
  static Value object(Kind kind, Object* object) {
    Value v(kind);
    v.object_ = object;
    return v;
  }
  static Value function(Function f) {
    Value v(Kind::kFunction);
    v.int_ = static_cast<int>(f);
    return v;
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_mapping() const { return kind_ == Kind::kDict; }

  Int as_int() const { return int_; }  // kInt and kBool
  double as_float() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(int_); }
  const MarkedText& marked() const { return *text_; }
  std::string_view str() const { return text_->bytes; }
  std::string_view undefined_name() const { return text_ ? std::string_view(text_->bytes) : std::string_view(); }
  List& list() const;
  Dict& dict() const;  // kDict and kNamespace
  Macro& macro() const;
  Method& method() const;
  Loop& loop() const;
  Function as_function() const { return static_cast<Function>(static_cast<int>(int_)); }
  const Object* identity() const { return object_; }

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  Kind kind_ = Kind::kUndefined;
  union {
    Int int_ = 0;
    double float_;
    Object* object_;
  };
  std::shared_ptr<const MarkedText> text_;
};

struct List : Object {
  std::vector<Value> items;
};

// Keeps insertion order, as Python does. Keys are compared by value: 1, 1.0 and true are one key.
struct Dict : Object {
  std::vector<std::pair<Value, Value>> entries;
  std::unordered_map<std::string, size_t> index;

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  bool set(const Value& key, Value value);  // false: the key cannot be one
};
// One text per equivalence class of keys; empty when `key` cannot be a key (a list, a mapping).
std::string dict_key(const Value& key);

struct Method : Object {
  Value self;
  std::string name;
};

std::string format_float(double value);  // Python's repr: shortest digits, "1.0", "1e+16", "inf", "nan"
std::string format_int(Int value);

// Python's int(text, base) and float(text) without surrounding white space: digits may be joined by single underscores.
// Nothing when `text` is no number; an integer beyond 127 bits is none either, a float beyond the range is infinite or
// zero.
std::optional<Int> parse_int(std::string_view text, int base);
std::optional<double> parse_float(std::string_view text);

const char* type_name(const Value& value);  // as Python calls it: "str", "NoneType"

}  // namespace foretoken::jinja
