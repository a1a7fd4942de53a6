// Result<T>: the only way a failure of the world crosses a room. An Error is one sentence a person can act on:
// what is wrong, where, and what to do.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace foretoken {

enum class ErrorCode : unsigned char {
  kUsage,        // the caller's words are off: a flag, a field, an id
  kInvalidFile,  // a file is damaged, truncated, hostile or not what it claims
  kUnsupported,  // a well-formed thing that this build does not run
  kNotFound,     // a path or name that does not exist
  kIo,           // the operating system refused a read or a write
  kCheckFailed,  // the requested check ran and its answer is no
  kOutOfMemory,  // memory or device memory
  kDevice,       // an absent or failing device
  kBusy,         // a queue is full: later
  kTimeout,      // a deadline passed
};

struct Error {
  ErrorCode code;
  std::string message;
};

// Exit status of the program for an error (interfaces.md: 1 check failed, 2 usage or bad input, 4 memory or device).
constexpr int exit_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kCheckFailed: return 1;
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kDevice: return 4;
    default: return 2;
  }
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : v_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return v_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& operator*() & { CHECK(ok()); return std::get<0>(v_); }
  const T& operator*() const& { CHECK(ok()); return std::get<0>(v_); }
  T&& operator*() && { CHECK(ok()); return std::get<0>(std::move(v_)); }
  T* operator->() { CHECK(ok()); return &std::get<0>(v_); }
  const T* operator->() const { CHECK(ok()); return &std::get<0>(v_); }
  const Error& error() const { CHECK(!ok()); return std::get<1>(v_); }

 private:
  std::variant<T, Error> v_;
};

// A computation that yields nothing but may fail.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}
  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { CHECK(!ok()); return *error_; }

 private:
  std::optional<Error> error_;
};

}  // namespace foretoken

#define FORETOKEN_CONCAT_(a, b) a##b
#define FORETOKEN_CONCAT(a, b) FORETOKEN_CONCAT_(a, b)

// TRY(status_or_result): return its error from the enclosing function, if it has one.
#define TRY(...)                                    \
  do {                                              \
    if (auto&& try_ = (__VA_ARGS__); !try_) return try_.error(); \
  } while (0)

// ASSIGN_OR_RETURN(auto x, result): declare x from the value, or return the error.
#define ASSIGN_OR_RETURN(declaration, ...) \
  FORETOKEN_ASSIGN_OR_RETURN_(FORETOKEN_CONCAT(result_, __LINE__), declaration, __VA_ARGS__)
#define FORETOKEN_ASSIGN_OR_RETURN_(temporary, declaration, ...) \
  auto temporary = (__VA_ARGS__);                                \
  if (!temporary) return temporary.error();                      \
  declaration = *std::move(temporary)
