// Numbers of JSON in decimal: the values between two bounds as an automaton over their digits, exact in decimal
// arithmetic.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "text/automaton.h"

namespace foretoken {

struct Decimal {
  bool negative = false;
  std::string integer = "0";  // without leading zeros
  std::string fraction;       // without trailing zeros
  bool is_zero() const { return integer == "0" && fraction.empty(); }
};
Decimal decimal_of(const OrderedJson& number);    // the shortest decimal number that reads back as the value
int compare(const Decimal& a, const Decimal& b);  // negative, zero or positive

struct NumberRange {
  struct Bound {
    Decimal value;
    bool exclusive = false;
  };
  std::optional<Bound> lower, upper;
  bool integer = false;
  uint32_t multiple = 1;  // of integers

  // The tighter of both bounds stays.
  void raise_lower(const Bound& bound);
  void sink_upper(const Bound& bound);
  bool contains(const Decimal& value) const;
};

// Most digits that are written: of an integer, and of a number with a fraction or of a multiple (15: every such decimal
// number is a double of its own, so that the range holds for readers with doubles too).
inline constexpr int kIntegerDigits = 18;
inline constexpr int kDecimalDigits = 15;

// The words of a number in the range, without exponent; never "-0".
Result<Dfa> number_automaton(const NumberRange& range);
// Any number: at most 18 digits before the point, 17 behind, and an exponent of at most two.
Result<Dfa> any_number_automaton();

}  // namespace foretoken
