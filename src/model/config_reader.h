// Readers of configurations: typed access to config.json and to GGUF metadata that remembers the first fault, so that parsing reads
// like a table. They know no model.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "bundle/bundle.h"

namespace foretoken {

// Typed access to one object of config.json that remembers the first missing or mistyped key, so that parsing reads like a table.
class HfReader {
 public:
  HfReader(const Json& object, std::string_view where) : object_(object), where_(where) {}

  const Json* find(const char* key) const {
    if (const auto it = object_.find(key); it != object_.end() && !it->is_null()) return &*it;
    return nullptr;
  }
  int64_t integer(const char* key, std::optional<int64_t> fallback = {}) {
    const Json* value = find(key);
    if (!value) return missing(key, fallback);
    if (!value->is_number_integer()) return mistyped(key, "an integer"), 0;
    return value->get<int64_t>();
  }
  double number(const char* key, std::optional<double> fallback = {}) {
    const Json* value = find(key);
    if (!value) return missing(key, fallback);
    if (!value->is_number()) return mistyped(key, "a number"), 0;
    return value->get<double>();
  }
  bool boolean(const char* key, bool fallback) {
    const Json* value = find(key);
    if (!value) return fallback;
    if (!value->is_boolean()) return mistyped(key, "true or false"), fallback;
    return value->get<bool>();
  }
  std::string text(const char* key, std::string fallback) {
    const Json* value = find(key);
    if (!value) return fallback;
    if (!value->is_string()) return mistyped(key, "a string"), fallback;
    return value->get<std::string>();
  }
  void mistyped(const char* key, const char* wanted) {
    if (!error_) error_ = fmt::format("{}: \"{}\" must be {}", where_, key, wanted);
  }
  const std::optional<std::string>& error() const { return error_; }

 private:
  template <class T>
  T missing(const char* key, std::optional<T> fallback) {
    if (fallback) return *fallback;
    if (!error_) error_ = fmt::format("{} lacks \"{}\"", where_, key);
    return T{};
  }
  const Json& object_;
  std::string_view where_;
  std::optional<std::string> error_;
};

// Every numeric field passes through here before it becomes an int, so that hostile sizes cannot wrap.
inline int bounded(int64_t value) { return static_cast<int>(std::clamp<int64_t>(value, -1, 1 << 30)); }

// The same for the keys of one architecture in GGUF metadata.
class GgufReader {
 public:
  GgufReader(const GgufMetadata& metadata, std::string architecture)
      : metadata_(metadata), prefix_(std::move(architecture) + ".") {}

  const GgufValue* find(const std::string& key) const {
    const auto it = metadata_.find(prefix_ + key);
    return it == metadata_.end() ? nullptr : &it->second;
  }
  int64_t integer(const std::string& key, std::optional<int64_t> fallback = {}) {
    const GgufValue* value = find(key);
    if (value && value->as_int()) return *value->as_int();
    // Per-layer arrays (head counts in some writers): the largest value, since zero marks layers without the mixer.
    if (value && value->as_ints() && !value->as_ints()->empty())
      return *std::max_element(value->as_ints()->begin(), value->as_ints()->end());
    if (value || !fallback) {
      if (!error_) error_ = fmt::format("GGUF key {}{} is {}", prefix_, key, value ? "not an integer" : "missing");
      return 0;
    }
    return *fallback;
  }
  double number(const std::string& key, std::optional<double> fallback = {}) {
    const GgufValue* value = find(key);
    if (value && value->as_double()) return *value->as_double();
    if (value || !fallback) {
      if (!error_) error_ = fmt::format("GGUF key {}{} is {}", prefix_, key, value ? "not a number" : "missing");
      return 0;
    }
    return *fallback;
  }
  const std::optional<std::string>& error() const { return error_; }

 private:
  const GgufMetadata& metadata_;
  std::string prefix_;
  std::optional<std::string> error_;
};

}  // namespace foretoken
