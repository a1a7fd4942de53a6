// CHECK: a programmer's mistake ends the process with both values printed. On in every build.
// The world's mistakes (files, requests, memory, devices) are `Result` values instead (result.h).
#pragma once

#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

namespace foretoken {

[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& values);

namespace internal {

template <class T>
inline constexpr bool kPlainInteger = std::is_integral_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, char> &&
                                      !std::is_same_v<T, char8_t> && !std::is_same_v<T, char16_t> &&
                                      !std::is_same_v<T, char32_t> && !std::is_same_v<T, wchar_t>;

template <class T>
void print_value(std::ostream& out, const T& value) {
  if constexpr (std::is_enum_v<T>) out << static_cast<long long>(value);
  else if constexpr (requires(std::ostream& o, const T& v) { o << v; }) out << value;
  else out << "?";
}

// Left half of `Decompose{} <= a < b`: keeps `a` so that both sides can be printed when the comparison fails.
struct Outcome {
  bool ok;
  std::string values;
  explicit operator bool() const { return ok; }
};

template <class L>
struct Captured {
  const L& left;

  template <class R>
  static std::string both(const L& l, const R& r) {
    std::ostringstream out;
    print_value(out, l);
    out << " vs ";
    print_value(out, r);
    return out.str();
  }
// Integers of different signedness compare by value.
#define FORETOKEN_CHECK_OPERATOR(op, safe)                                           \
  template <class R>                                                                 \
  Outcome operator op(const R& right) const {                                        \
    bool ok;                                                                         \
    if constexpr (kPlainInteger<L> && kPlainInteger<R>) ok = std::safe(left, right); \
    else ok = left op right;                                                         \
    return {ok, ok ? std::string() : both(left, right)};                             \
  }
  FORETOKEN_CHECK_OPERATOR(==, cmp_equal)
  FORETOKEN_CHECK_OPERATOR(!=, cmp_not_equal)
  FORETOKEN_CHECK_OPERATOR(<, cmp_less)
  FORETOKEN_CHECK_OPERATOR(<=, cmp_less_equal)
  FORETOKEN_CHECK_OPERATOR(>, cmp_greater)
  FORETOKEN_CHECK_OPERATOR(>=, cmp_greater_equal)
#undef FORETOKEN_CHECK_OPERATOR
  explicit operator bool() const { return static_cast<bool>(left); }
};

struct Decompose {
  // `<<` binds tighter than every comparison, so `Decompose{} << a == b` captures `a` first.
  template <class L>
  Captured<L> operator<<(const L& left) const {
    return {left};
  }
};

template <class L>
Outcome outcome(const Captured<L>& c) {
  return {static_cast<bool>(c.left), "false"};
}
inline Outcome outcome(Outcome o) { return o; }
inline Outcome outcome(bool ok) { return {ok, "false"}; }  // conditions joined by || or &&

}  // namespace internal
}  // namespace foretoken

// One condition each: CHECK(a); CHECK(b); so that the message names the one that failed.
#define CHECK(...)                                                                             \
  do {                                                                                         \
    if (const auto check_outcome_ =                                                            \
            ::foretoken::internal::outcome(::foretoken::internal::Decompose{} << __VA_ARGS__); \
        !check_outcome_)                                                                       \
      ::foretoken::check_failed(__FILE__, __LINE__, #__VA_ARGS__, check_outcome_.values);      \
  } while (0)

#ifdef NDEBUG
#define DCHECK(...) do { if (false) { CHECK(__VA_ARGS__); } } while (0)
#else
#define DCHECK(...) CHECK(__VA_ARGS__)
#endif
