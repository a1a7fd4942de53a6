// ApiError: why a request is not answered, in words for a person and a stable code for a program. Each API has its own JSON around it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/json.h"
#include "serve/http.h"

namespace foretoken::serve {

struct ApiError {
  int status = 400;
  std::string code;     // docs/serving.md lists them
  std::string message;  // what, where, what to do
  std::string param;    // the field, where one is to blame
  int retry_after_s = 0;

  static ApiError invalid(std::string param, std::string message) { return {400, "invalid_request", std::move(message), std::move(param)}; }
  static ApiError unsupported(std::string param, std::string message) { return {400, "unsupported_field", std::move(message), std::move(param)}; }
};

enum class Dialect : uint8_t { kOpenAi, kAnthropic };
// The dialect of a route's errors.
Dialect dialect_of(std::string_view path);

OrderedJson error_json(const ApiError& error, Dialect dialect);
HttpResponse error_response(const ApiError& error, Dialect dialect);
// What an engine's error means to a client.
ApiError api_error(const Error& error);

// A value or a reason for the client: Result with an API's error.
template <class T>
class [[nodiscard]] ApiResult {
 public:
  ApiResult(T value) : v_(std::in_place_index<0>, std::move(value)) {}
  ApiResult(ApiError error) : v_(std::in_place_index<1>, std::move(error)) {}
  explicit operator bool() const { return v_.index() == 0; }
  T& operator*() & { return std::get<0>(v_); }
  const T& operator*() const& { return std::get<0>(v_); }
  T&& operator*() && { return std::get<0>(std::move(v_)); }
  T* operator->() { return &std::get<0>(v_); }
  const T* operator->() const { return &std::get<0>(v_); }
  const ApiError& error() const { return std::get<1>(v_); }

 private:
  std::variant<T, ApiError> v_;
};

// Nothing, or a reason.
class [[nodiscard]] ApiStatus {
 public:
  ApiStatus() = default;
  ApiStatus(ApiError error) : error_(std::move(error)) {}
  explicit operator bool() const { return !error_; }
  const ApiError& error() const { return *error_; }

 private:
  std::optional<ApiError> error_;
};

}  // namespace foretoken::serve
