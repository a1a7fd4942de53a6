// Comparing digits with bounds while they are read.
#include "text/number_automaton.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "base/check.h"
#include "text/regex.h"

namespace foretoken {
namespace {

int compare_magnitudes(const Decimal& a, const Decimal& b) {
  if (a.integer.size() != b.integer.size()) return a.integer.size() < b.integer.size() ? -1 : 1;
  if (const int order = a.integer.compare(b.integer)) return order;
  return a.fraction.compare(b.fraction);  // a prefix is smaller: trailing zeros are cut
}

// A magnitude being read, against the two ends of a range of magnitudes.
class MagnitudeAutomaton {
 public:
  using Bound = NumberRange::Bound;
  MagnitudeAutomaton(const std::optional<Bound>& low, const std::optional<Bound>& high, const NumberRange& range,
                     bool nonzero)
      : low_(low), high_(high), integer_(range.integer), multiple_(range.multiple), nonzero_(nonzero) {
    most_digits_ = integer_ && multiple_ == 1 ? kIntegerDigits : kDecimalDigits;
  }

  Dfa build() {
    dfa_.starts.push_back(index_of({}));
    for (size_t i = 0; i < places_.size(); ++i) {
      const Place place = places_[i];
      Dfa::State state;
      if (accepts(place)) state.marks = kAccept;
      if (!integer_ && (place.phase == kZero || place.phase == kWhole) && place.digits < most_digits_)
        state.edges.push_back({'.', '.', index_of(at_point(place))});
      for (char digit = '0'; digit <= '9'; ++digit)
        if (const auto next = after(place, digit))
          state.edges.push_back({static_cast<uint8_t>(digit), static_cast<uint8_t>(digit), index_of(*next)});
      dfa_.states.push_back(std::move(state));
    }
    trim(dfa_);
    minimise(dfa_);
    return std::move(dfa_);
  }

 private:
  enum Phase : uint8_t { kStart, kZero, kWhole, kPoint, kFraction };
  struct Place {
    Phase phase = kStart;
    int digits = 0;  // all so far
    int fraction_digits = 0;
    int low = 0, high = 0;  // how the digits compare with the bound's of the same places
    uint32_t rest = 0;      // of the division by `multiple_`
    bool nonzero = false;
    auto operator<=>(const Place&) const = default;
  };

  uint32_t index_of(const Place& place) {
    const auto [found, fresh] = index_.try_emplace(place, static_cast<uint32_t>(places_.size()));
    if (fresh) places_.push_back(place);
    return found->second;
  }

  static int compare_digit(int so_far, char digit, const std::string& digits, int place) {
    if (so_far != 0) return so_far;
    const char other = place < static_cast<int>(digits.size()) ? digits[static_cast<size_t>(place)] : '0';
    return digit == other ? 0 : digit < other ? -1 : 1;
  }
  // The comparison once the number of digits before the point is known.
  static int at_whole(int so_far, int digits, const Bound& bound) {
    const int other = static_cast<int>(bound.value.integer.size());
    return digits != other ? (digits < other ? -1 : 1) : so_far;
  }

  std::optional<Place> after(Place place, char digit) const {
    if (place.phase == kZero || place.digits == most_digits_) return std::nullopt;
    const bool whole = place.phase == kStart || place.phase == kWhole;
    const int position = whole ? place.digits : place.fraction_digits;
    const auto digits = [whole](const Bound& b) -> const std::string& {
      return whole ? b.value.integer : b.value.fraction;
    };
    if (low_) place.low = compare_digit(place.low, digit, digits(*low_), position);
    if (high_) place.high = compare_digit(place.high, digit, digits(*high_), position);
    place.rest = (place.rest * 10 + static_cast<uint32_t>(digit - '0')) % multiple_;
    place.nonzero |= nonzero_ && digit != '0';
    ++place.digits;
    if (whole) {
      place.phase = place.phase == kStart && digit == '0' ? kZero : kWhole;
    } else {
      place.phase = kFraction;
      ++place.fraction_digits;
    }
    return place;
  }

  Place at_point(Place place) const {
    if (low_) place.low = at_whole(place.low, place.digits, *low_);
    if (high_) place.high = at_whole(place.high, place.digits, *high_);
    place.phase = kPoint;
    return place;
  }

  bool accepts(const Place& at) const {
    if (at.phase == kStart || at.phase == kPoint) return false;
    const Place place = at.phase == kFraction ? at : at_point(at);
    const auto order = [&](int so_far, const Bound& b) {  // digits of the bound that were not reached make it larger
      return so_far == 0 && static_cast<int>(b.value.fraction.size()) > place.fraction_digits ? -1 : so_far;
    };
    if (low_ && (order(place.low, *low_) < 0 || (low_->exclusive && order(place.low, *low_) == 0))) return false;
    if (high_ && (order(place.high, *high_) > 0 || (high_->exclusive && order(place.high, *high_) == 0))) return false;
    return place.rest == 0 && (!nonzero_ || place.nonzero);
  }

  const std::optional<Bound>&low_, &high_;
  bool integer_;
  uint32_t multiple_;
  bool nonzero_;
  int most_digits_;
  Dfa dfa_;
  std::map<Place, uint32_t> index_;
  std::vector<Place> places_;
};

// Bound of a magnitude, or nothing when the bound lies on the other side of zero.
std::optional<NumberRange::Bound> magnitude_bound(const std::optional<NumberRange::Bound>& bound, bool negative) {
  if (!bound || (!bound->value.is_zero() && bound->value.negative != negative)) return std::nullopt;
  NumberRange::Bound out = *bound;
  out.value.negative = false;
  return out;
}

}  // namespace

Decimal decimal_of(const OrderedJson& number) {
  char text[400];
  std::to_chars_result end;
  if (number.is_number_unsigned()) end = std::to_chars(text, text + sizeof text, number.get<uint64_t>());
  else if (number.is_number_integer()) end = std::to_chars(text, text + sizeof text, number.get<int64_t>());
  else end = std::to_chars(text, text + sizeof text, number.get<double>(), std::chars_format::fixed);
  std::string_view all(text, static_cast<size_t>(end.ptr - text));
  Decimal out;
  out.negative = all.starts_with('-');
  if (out.negative) all.remove_prefix(1);
  const size_t point = std::min(all.find('.'), all.size());
  out.integer = all.substr(0, point);
  if (point < all.size()) out.fraction = all.substr(point + 1);
  while (!out.fraction.empty() && out.fraction.back() == '0') out.fraction.pop_back();
  if (out.is_zero()) out.negative = false;
  return out;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int order = compare_magnitudes(a, b);
  return a.negative ? -order : order;
}

void NumberRange::raise_lower(const Bound& bound) {
  const int order = lower ? compare(bound.value, lower->value) : 1;
  if (order > 0 || (order == 0 && bound.exclusive)) lower = bound;
}

void NumberRange::sink_upper(const Bound& bound) {
  const int order = upper ? compare(bound.value, upper->value) : -1;
  if (order < 0 || (order == 0 && bound.exclusive)) upper = bound;
}

bool NumberRange::contains(const Decimal& value) const {
  if (lower && compare(value, lower->value) < int{lower->exclusive}) return false;
  if (upper && compare(value, upper->value) > -int{upper->exclusive}) return false;
  if (integer && !value.fraction.empty()) return false;
  uint32_t rest = 0;
  for (const char digit : value.integer) rest = (rest * 10 + static_cast<uint32_t>(digit - '0')) % multiple;
  return rest == 0;
}

Result<Dfa> number_automaton(const NumberRange& range) {
  CHECK(range.multiple >= 1);
  CHECK(range.multiple == 1 || range.integer);
  Nfa nfa;
  const uint32_t end = nfa.add_state(), minus = nfa.add_state();
  nfa.mark(end, kAccept);
  nfa.bytes(nfa.start(), '-', '-', minus);
  const bool positive = !range.upper || !range.upper->value.negative;
  const bool negative = !range.lower || range.lower->value.negative;
  if (positive) {
    const auto low = magnitude_bound(range.lower, false), high = magnitude_bound(range.upper, false);
    nfa.embed(MagnitudeAutomaton(low, high, range, false).build(), nfa.start(), end);
  }
  if (negative) {
    const auto low = magnitude_bound(range.upper, true), high = magnitude_bound(range.lower, true);
    nfa.embed(MagnitudeAutomaton(low, high, range, true).build(), minus, end);
  }
  return nfa.determinise();
}

Result<Dfa> any_number_automaton() {
  ASSIGN_OR_RETURN(const Expr number,
                   parse_regex("-?(?:0|[1-9][0-9]{0,17})(?:\\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,2})?"));
  return whole(number, Encoding::kText);
}

}  // namespace foretoken
