// Objects, arrays, strings and white space as rules.
#include "text/json_grammar.h"

#include <algorithm>

#include "base/check.h"
#include "text/code_points.h"
#include "text/number_automaton.h"

namespace foretoken {
namespace {

constexpr int kMostSpaces = 64, kMostTabs = 16;

// A run of at most `most` bytes, none included.
void add_run(Nfa& nfa, uint32_t from, char byte, int most, uint32_t to) {
  for (int i = 0; i < most; ++i) {
    const uint32_t next = nfa.add_state();
    nfa.skip(from, to);
    nfa.bytes(from, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), next);
    from = next;
  }
  nfa.skip(from, to);
}

}  // namespace

std::string json_characters(std::string_view text) {
  const std::string quoted = dump_json(OrderedJson(text));
  return quoted.substr(1, quoted.size() - 2);
}

Result<RuleIndex> JsonRules::white_space() {
  if (white_space_) return *white_space_;
  white_space_ = builder_.declare("white space");
  Nfa nfa;
  const uint32_t end = nfa.add_state(), line = nfa.add_state();
  nfa.mark(end, kAccept);
  nfa.skip(nfa.start(), end);
  nfa.bytes(nfa.start(), ' ', ' ', end);
  nfa.bytes(nfa.start(), '\n', '\n', line);
  add_run(nfa, line, ' ', kMostSpaces, end);
  add_run(nfa, line, '\t', kMostTabs, end);
  ASSIGN_OR_RETURN(Dfa automaton, nfa.determinise());
  TRY(builder_.define(*white_space_, std::move(automaton)));
  return *white_space_;
}

Result<RuleIndex> JsonRules::string_tail(CountedBounds bounds) {
  for (const auto& [known, rule] : string_tails_)
    if (known.min == bounds.min && known.max == bounds.max) return rule;
  const RuleIndex rule = builder_.declare("string");
  string_tails_.emplace_back(bounds, rule);
  Nfa nfa;
  const uint32_t end = nfa.add_state();
  nfa.mark(end, kAccept);
  if (bounds.min == 0 && bounds.max == Grammar::kUnbounded) {
    add_any_json_character(nfa, nfa.start(), nfa.start());
    nfa.bytes(nfa.start(), '"', '"', end);
    ASSIGN_OR_RETURN(Dfa automaton, nfa.determinise());
    TRY(builder_.define(rule, std::move(automaton)));
    return rule;
  }
  const uint32_t round = nfa.add_state(), exit = nfa.add_state();
  nfa.mark(round, kCounts);
  add_any_json_character(nfa, nfa.start(), round);
  nfa.bytes(exit, '"', '"', end);
  const uint32_t seeds[] = {nfa.start(), exit};
  ASSIGN_OR_RETURN(Dfa automaton, nfa.determinise(seeds));
  if (bounds.max == 0) automaton.starts[0] = kNoState;
  TRY(builder_.define_counted(rule, std::move(automaton), bounds));
  return rule;
}

Result<RuleIndex> JsonRules::string() {
  if (string_) return *string_;
  ASSIGN_OR_RETURN(const RuleIndex tail, string_tail());
  string_ = builder_.declare("string");
  Nfa nfa;
  const uint32_t end = nfa.add_state(), open = nfa.add_state();
  nfa.mark(end, kAccept);
  nfa.bytes(nfa.start(), '"', '"', open);
  nfa.call(open, tail, end);
  ASSIGN_OR_RETURN(Dfa automaton, nfa.determinise());
  TRY(builder_.define(*string_, std::move(automaton)));
  return *string_;
}

Result<RuleIndex> JsonRules::number() {
  if (number_) return *number_;
  number_ = builder_.declare("number");
  ASSIGN_OR_RETURN(Dfa automaton, any_number_automaton());
  TRY(builder_.define(*number_, std::move(automaton)));
  return *number_;
}

Result<RuleIndex> JsonRules::value() {
  if (value_) return *value_;
  value_ = builder_.declare("value");
  Nfa nfa;
  const uint32_t end = nfa.add_state();
  nfa.mark(end, kAccept);
  for (const char* word : {"null", "true", "false"}) nfa.literal(nfa.start(), word, end);
  for (const auto make : {&JsonRules::string, &JsonRules::number, &JsonRules::object, &JsonRules::array}) {
    ASSIGN_OR_RETURN(const RuleIndex rule, (this->*make)());
    nfa.call(nfa.start(), rule, end);
  }
  ASSIGN_OR_RETURN(Dfa automaton, nfa.determinise());
  TRY(builder_.define(*value_, std::move(automaton)));
  return *value_;
}

Result<RuleIndex> JsonRules::object() {
  if (object_) return *object_;
  object_ = builder_.declare("object");
  ASSIGN_OR_RETURN(const RuleIndex any, value());
  ASSIGN_OR_RETURN(const RuleIndex tail, string_tail());
  Nfa key;
  const uint32_t end = key.add_state();
  key.mark(end, kAccept);
  key.call(key.start(), tail, end);
  ASSIGN_OR_RETURN(Dfa automaton, key.determinise());
  ObjectPlan plan;
  plan.extras.push_back({std::move(automaton), any});
  TRY(define_object(*object_, plan));
  return *object_;
}

Result<RuleIndex> JsonRules::array() {
  if (array_) return *array_;
  array_ = builder_.declare("array");
  ASSIGN_OR_RETURN(const RuleIndex any, value());
  TRY(define_array(*array_, {.rest = any}));
  return *array_;
}

// Places between members: before the first one is written (none[i]: the first i are left out), after one (some[i]: the
// next may be i), and behind a comma (comma[i]).
Status JsonRules::define_object(RuleIndex rule, const ObjectPlan& plan) {
  ASSIGN_OR_RETURN(const RuleIndex blank, white_space());
  const size_t n = plan.members.size();
  Nfa nfa;
  const uint32_t end = nfa.add_state(), open = nfa.add_state(), closing = nfa.add_state(), close = nfa.add_state();
  nfa.mark(end, kAccept);
  std::vector<uint32_t> none(n + 1), some(n + 1), comma(n + 1), key(n + 1);
  for (auto* places : {&none, &some, &comma, &key})
    for (uint32_t& place : *places) place = nfa.add_state();
  nfa.bytes(nfa.start(), '{', '{', open);
  nfa.call(open, blank, none[0]);
  nfa.call(closing, blank, close);
  nfa.bytes(close, '}', '}', end);
  const auto add_value = [&](uint32_t from, RuleIndex value, uint32_t to) {
    const uint32_t colon = nfa.add_state(), begin = nfa.add_state();
    nfa.bytes(from, ':', ':', colon);
    nfa.skip(colon, begin);
    nfa.bytes(colon, ' ', ' ', begin);
    nfa.call(begin, value, to);
  };
  for (size_t i = 0; i <= n; ++i) {
    nfa.skip(none[i], key[i]);
    nfa.skip(comma[i], key[i]);
    const uint32_t after_comma = nfa.add_state();
    nfa.bytes(some[i], ',', ',', after_comma);
    nfa.call(after_comma, blank, comma[i]);
    if (i == n) break;
    const Member& member = plan.members[i];
    const uint32_t named = nfa.add_state();
    nfa.literal(key[i], '"' + json_characters(member.name) + '"', named);
    add_value(named, member.value, some[i + 1]);
    if (member.required) continue;
    nfa.skip(none[i], none[i + 1]);
    nfa.skip(comma[i], comma[i + 1]);
  }
  for (size_t i = n;; --i) {  // as long as nothing required is missing
    nfa.skip(some[i], closing);
    if (i == 0 || plan.members[i - 1].required) break;
  }
  if (plan.may_be_empty) nfa.skip(none[n], close);
  for (const Extra& extra : plan.extras) {
    const uint32_t quote = nfa.add_state(), named = nfa.add_state();
    nfa.bytes(key[n], '"', '"', quote);
    nfa.embed(extra.key, quote, named);
    add_value(named, extra.value, some[n]);
  }
  ASSIGN_OR_RETURN(Dfa automaton, nfa.determinise());
  return builder_.define(rule, std::move(automaton), true);
}

// Rounds of a comma and an element, then the end of the array.
Result<RuleIndex> JsonRules::array_tail(RuleIndex array, RuleIndex element, CountedBounds rounds) {
  ASSIGN_OR_RETURN(const RuleIndex blank, white_space());
  const RuleIndex rule = builder_.declare(builder_.name(array));
  Nfa nfa;
  const uint32_t end = nfa.add_state(), round = nfa.add_state(), comma = nfa.add_state(), next = nfa.add_state();
  const uint32_t exit = nfa.add_state(), close = nfa.add_state();
  nfa.mark(end, kAccept);
  nfa.mark(round, kCounts);
  nfa.bytes(nfa.start(), ',', ',', comma);
  nfa.call(comma, blank, next);
  nfa.call(next, element, round);
  nfa.call(exit, blank, close);
  nfa.bytes(close, ']', ']', end);
  const uint32_t seeds[] = {nfa.start(), exit};
  ASSIGN_OR_RETURN(Dfa automaton, nfa.determinise(seeds));
  TRY(builder_.define_counted(rule, std::move(automaton), rounds));
  return rule;
}

Status JsonRules::define_array(RuleIndex rule, const ArrayPlan& plan) {
  constexpr int32_t kWrittenOut = 8;  // up to so many elements have states of their own, more are counted
  ASSIGN_OR_RETURN(const RuleIndex blank, white_space());
  const auto [min, max] = plan.length;
  const auto prefix = static_cast<int32_t>(plan.prefix.size());
  Nfa nfa;
  const uint32_t end = nfa.add_state(), open = nfa.add_state(), close = nfa.add_state();
  nfa.mark(end, kAccept);
  if (min > max) {  // no array is that long and that short
    ASSIGN_OR_RETURN(Dfa nothing, nfa.determinise());
    return builder_.define(rule, std::move(nothing), true);
  }
  uint32_t at = nfa.add_state();  // before element i, behind its comma
  nfa.bytes(nfa.start(), '[', '[', open);
  nfa.call(open, blank, at);
  nfa.bytes(close, ']', ']', end);
  if (min == 0) nfa.skip(at, close);
  for (int32_t i = 0; i < max; ++i) {
    const uint32_t after = nfa.add_state();
    nfa.call(at, i < prefix ? plan.prefix[static_cast<size_t>(i)] : plan.rest, after);
    if (i >= prefix && i + 1 >= kWrittenOut && i + 1 < max) {
      const CountedBounds rounds{std::max(0, min - i - 1), max == Grammar::kUnbounded ? max : max - i - 1};
      ASSIGN_OR_RETURN(const RuleIndex tail, array_tail(rule, plan.rest, rounds));
      nfa.call(after, tail, end);
      break;
    }
    if (i + 1 >= min) nfa.call(after, blank, close);
    if (i + 1 == max) break;
    const uint32_t comma = nfa.add_state();
    at = nfa.add_state();
    nfa.bytes(after, ',', ',', comma);
    nfa.call(comma, blank, at);
    if (i >= prefix && i + 1 >= min && max == Grammar::kUnbounded) {
      nfa.call(at, plan.rest, after);
      break;
    }
  }
  ASSIGN_OR_RETURN(Dfa automaton, nfa.determinise());
  return builder_.define(rule, std::move(automaton), true);
}

Result<RuleIndex> JsonRules::constant(const OrderedJson& value, const std::string& name) {
  const RuleIndex rule = builder_.declare(name);
  TRY(define_constant(rule, value));
  return rule;
}

Status JsonRules::define_constant(RuleIndex rule, const OrderedJson& value) {
  const std::string name = builder_.name(rule);
  if (value.is_object()) {
    ObjectPlan plan;
    for (const auto& [key, child] : value.items()) {
      ASSIGN_OR_RETURN(const RuleIndex inner, constant(child, name));
      plan.members.push_back({key, inner, true});
    }
    return define_object(rule, plan);
  }
  if (value.is_array()) {
    ArrayPlan plan;
    for (const OrderedJson& child : value) {
      ASSIGN_OR_RETURN(const RuleIndex inner, constant(child, name));
      plan.prefix.push_back(inner);
    }
    plan.length.min = plan.length.max = static_cast<int32_t>(plan.prefix.size());
    return define_array(rule, plan);
  }
  Nfa nfa;
  const uint32_t end = nfa.add_state();
  nfa.mark(end, kAccept);
  nfa.literal(nfa.start(), dump_json(value), end);
  ASSIGN_OR_RETURN(Dfa automaton, nfa.determinise());
  return builder_.define(rule, std::move(automaton));
}

Result<RuleIndex> JsonRules::document(RuleIndex value) {
  const RuleIndex rule = builder_.declare("#");
  Nfa nfa;
  const uint32_t end = nfa.add_state(), begin = nfa.add_state(), line = nfa.add_state();
  nfa.mark(end, kAccept);
  nfa.skip(nfa.start(), begin);
  nfa.bytes(nfa.start(), ' ', ' ', begin);
  nfa.bytes(nfa.start(), '\n', '\n', line);
  nfa.skip(line, begin);
  nfa.bytes(line, '\n', '\n', begin);
  nfa.call(begin, value, end);
  ASSIGN_OR_RETURN(Dfa automaton, nfa.determinise());
  TRY(builder_.define(rule, std::move(automaton)));
  return rule;
}

}  // namespace foretoken
