// Typed members and their mistakes.
#include "serve/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace foretoken::serve {

const OrderedJson* Fields::find(std::string_view name) {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void Fields::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void Fields::wrong(std::string_view name, std::string_view what) {
  fail(ApiError::invalid(full_name(name), fmt::format("{} must be {}", full_name(name), what)));
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const OrderedJson* value = find(name);
  if (!value) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  wrong(name, "true or false");
  return std::nullopt;
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t least, int64_t most) {
  const OrderedJson* value = find(name);
  if (!value) return std::nullopt;
  const auto range = [&] { return most == INT64_MAX ? fmt::format("a whole number of at least {}", least) : fmt::format("a whole number from {} to {}", least, most); };
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    wrong(name, range());
    return std::nullopt;
  }
  if (value->is_number_float()) {  // 64.0 is what some clients send
    const double number = value->get<double>();
    if (number == std::floor(number) && number >= static_cast<double>(least) && number <= static_cast<double>(most) && std::abs(number) < 9e15)
      return static_cast<int64_t>(number);
  } else if (value->is_number_integer()) {
    const auto number = value->get<int64_t>();
    if (number >= least && number <= most) return number;
  }
  wrong(name, range());
  return std::nullopt;
}

std::optional<uint64_t> Fields::unsigned64(std::string_view name) {
  const OrderedJson* value = find(name);
  if (!value) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (value->is_number_integer()) return static_cast<uint64_t>(value->get<int64_t>());  // negative seeds wrap
  wrong(name, "a whole number of 64 bits");
  return std::nullopt;
}

std::optional<double> Fields::number(std::string_view name, double least, double most) {
  const OrderedJson* value = find(name);
  if (!value) return std::nullopt;
  if (value->is_number()) {
    const double number = value->get<double>();
    if (number >= least && number <= most) return number;
  }
  wrong(name, fmt::format("a number from {} to {}", least, most));
  return std::nullopt;
}

std::optional<std::string> Fields::text(std::string_view name) {
  const OrderedJson* value = find(name);
  if (!value) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  wrong(name, "a string");
  return std::nullopt;
}

std::optional<std::string> Fields::one_of(std::string_view name, std::initializer_list<std::string_view> values) {
  const auto given = text(name);
  if (!given || std::find(values.begin(), values.end(), *given) != values.end()) return given;
  wrong(name, fmt::format("one of {}", fmt::join(values, ", ")));
  return std::nullopt;
}

const OrderedJson* Fields::object(std::string_view name) {
  const OrderedJson* value = find(name);
  if (!value || value->is_object()) return value;
  wrong(name, "an object");
  return nullptr;
}

const OrderedJson* Fields::array(std::string_view name) {
  const OrderedJson* value = find(name);
  if (!value || value->is_array()) return value;
  wrong(name, "an array");
  return nullptr;
}

void Fields::refuse(std::string_view name, std::initializer_list<OrderedJson> harmless, std::string_view why) {
  const OrderedJson* value = find(name);
  if (!value || std::find(harmless.begin(), harmless.end(), *value) != harmless.end()) return;
  fail(ApiError::unsupported(full_name(name), fmt::format("{} is not supported{}{}; leave it out", full_name(name), why.empty() ? "" : ": ", why)));
}

}  // namespace foretoken::serve
