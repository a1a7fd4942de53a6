// CHECK: a programmer's mistake ends the process with both values printed. On in every build.
// The world's mistakes (files, requests, memory, devices) are `Result` values instead (result.h).
#pragma once

#include <sstream>
#include <string>
#include <type_traits>

namespace foretoken {

[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& values);

namespace internal {

template <class T>
void print_value(std::ostream& out, const T& value) {
  if constexpr (std::is_enum_v<T>) out << static_cast<long long>(value);
  else if constexpr (requires(std::ostream& o, const T& v) { o << v; }) out << value;
  else out << "?";
}

// Left half of `Decompose{} <= a < b`: keeps `a` so that both sides can be printed when the comparison fails.
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
  struct Outcome {
    bool ok;
    std::string values;
    explicit operator bool() const { return ok; }
  };
#define FORETOKEN_CHECK_OPERATOR(op)                           \
  template <class R>                                           \
  Outcome operator op(const R& right) const {                  \
    const bool ok = left op right;                             \
    return {ok, ok ? std::string() : both(left, right)};       \
  }
  FORETOKEN_CHECK_OPERATOR(==)
  FORETOKEN_CHECK_OPERATOR(!=)
  FORETOKEN_CHECK_OPERATOR(<)
  FORETOKEN_CHECK_OPERATOR(<=)
  FORETOKEN_CHECK_OPERATOR(>)
  FORETOKEN_CHECK_OPERATOR(>=)
#undef FORETOKEN_CHECK_OPERATOR
  operator Outcome() const { return {static_cast<bool>(left), "false"}; }
};

struct Decompose {
  // `<<` binds tighter than every comparison, so `Decompose{} << a == b` captures `a` first.
  template <class L>
  Captured<L> operator<<(const L& left) const {
    return {left};
  }
};

template <class L>
typename Captured<L>::Outcome outcome(const Captured<L>& c) {
  return c;
}
template <class O>
const O& outcome(const O& o) {
  return o;
}

}  // namespace internal
}  // namespace foretoken

#if defined(__GNUC__)
#define FORETOKEN_CHECK_QUIET _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wparentheses\"") \
    _Pragma("GCC diagnostic ignored \"-Wsign-compare\"")
#define FORETOKEN_CHECK_QUIET_END _Pragma("GCC diagnostic pop")
#else
#define FORETOKEN_CHECK_QUIET
#define FORETOKEN_CHECK_QUIET_END
#endif

// One condition each: CHECK(a); CHECK(b); so that the message names the one that failed.
#define CHECK(...)                                                                             \
  do {                                                                                         \
    FORETOKEN_CHECK_QUIET                                                                      \
    if (auto check_outcome_ =                                                                  \
            ::foretoken::internal::outcome(::foretoken::internal::Decompose{} << __VA_ARGS__); \
        !check_outcome_)                                                                       \
      ::foretoken::check_failed(__FILE__, __LINE__, #__VA_ARGS__, check_outcome_.values);      \
    FORETOKEN_CHECK_QUIET_END                                                                  \
  } while (0)

#ifdef NDEBUG
#define DCHECK(...) do { if (false) { CHECK(__VA_ARGS__); } } while (0)
#else
#define DCHECK(...) CHECK(__VA_ARGS__)
#endif
