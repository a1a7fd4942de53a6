// Trees of expressions as automata (Thompson's construction).
#include "text/expression.h"

#include <algorithm>

namespace foretoken {
namespace {

using Kind = Expression::Kind;

// The ends of a text as bytes that UTF-8 never holds, while search() works.
constexpr uint8_t kBeginByte = 0xFE, kEndByte = 0xFD;

Expr make(Expression expression) { return std::make_shared<const Expression>(std::move(expression)); }

void emit_repeat(Nfa& nfa, uint32_t from, const Expression& e, Encoding encoding, uint32_t to) {
  for (uint32_t i = 0; i < e.min && !nfa.full(); ++i) {
    const uint32_t next = nfa.add_state();
    emit(nfa, from, e.parts[0], encoding, next);
    from = next;
  }
  if (e.max == Expression::kUnbounded) {
    const uint32_t loop = nfa.add_state(), back = nfa.add_state();
    nfa.skip(from, loop);
    emit(nfa, loop, e.parts[0], encoding, back);
    nfa.skip(back, loop);
    return nfa.skip(loop, to);
  }
  for (uint32_t i = e.min; i < e.max && !nfa.full(); ++i) {
    const uint32_t next = nfa.add_state();
    nfa.skip(from, to);
    emit(nfa, from, e.parts[0], encoding, next);
    from = next;
  }
  nfa.skip(from, to);
}

// Whether every text that matches starts with begin() (or ends with end()), so that nothing may stand before (after)
// it.
bool is_anchored(const Expression& e, Kind anchor) {
  switch (e.kind) {
    case Kind::kSequence: {
      if (e.parts.empty()) return false;
      return is_anchored(anchor == Kind::kBegin ? *e.parts.front() : *e.parts.back(), anchor);
    }
    case Kind::kChoice:
      return std::all_of(e.parts.begin(), e.parts.end(), [&](const Expr& p) { return is_anchored(*p, anchor); });
    default:
      return e.kind == anchor;
  }
}

void add_any_text(Nfa& nfa, uint32_t from, Encoding encoding, uint32_t to) {
  const uint32_t loop = nfa.add_state();
  nfa.skip(from, loop);
  add_code_points(nfa, loop, CodePointSet::all(), encoding, loop);
  nfa.bytes(loop, kEndByte, kBeginByte, loop);
  nfa.skip(loop, to);
}

// Words between the marks of begin and end, without them. Each mark may stand several times: an anchor may be repeated.
Result<Dfa> without_marks(const Dfa& automaton, AutomatonLimits limits) {
  Nfa nfa(limits);
  if (automaton.empty()) return nfa.determinise();
  const size_t n = automaton.states.size();
  const uint32_t end = nfa.add_state();
  nfa.mark(end, kAccept);
  std::vector<uint32_t> copies(n);
  for (uint32_t& copy : copies) copy = nfa.add_state();
  // The states behind 1, 2, ... marks, until they repeat.
  const auto behind = [&](uint32_t state, uint8_t mark) {
    std::vector<uint32_t> all;
    while ((state = automaton.next(state, mark)) != kNoState && std::find(all.begin(), all.end(), state) == all.end())
      all.push_back(state);
    return all;
  };
  for (const uint32_t state : behind(automaton.starts[0], kBeginByte)) nfa.skip(nfa.start(), copies[state]);
  for (uint32_t i = 0; i < n && !nfa.full(); ++i) {
    for (const ByteEdge& edge : automaton.states[i].edges)
      if (edge.first < kEndByte)
        nfa.bytes(copies[i], edge.first, std::min<uint8_t>(edge.last, kEndByte - 1), copies[edge.to]);
    for (const uint32_t state : behind(i, kEndByte))
      if (automaton.states[state].marks & kAccept) nfa.skip(copies[i], end);
  }
  return nfa.determinise();
}

}  // namespace

namespace expr {

Expr literal(std::string_view bytes) { return make({.kind = Kind::kLiteral, .literal = std::string(bytes)}); }
Expr set(CodePointSet characters) { return make({.kind = Kind::kSet, .set = std::move(characters)}); }
Expr sequence(std::vector<Expr> parts) { return make({.kind = Kind::kSequence, .parts = std::move(parts)}); }
Expr choice(std::vector<Expr> parts) { return make({.kind = Kind::kChoice, .parts = std::move(parts)}); }
Expr repeat(Expr part, uint32_t min, uint32_t max) {
  return make({.kind = Kind::kRepeat, .parts = {std::move(part)}, .min = min, .max = max});
}
Expr optional(Expr part) { return repeat(std::move(part), 0, 1); }
Expr call(RuleIndex rule) { return make({.kind = Kind::kCall, .rule = rule}); }
Expr automaton(Dfa words) {
  return make({.kind = Kind::kAutomaton, .automaton = std::make_shared<const Dfa>(std::move(words))});
}
Expr begin() { return make({.kind = Kind::kBegin}); }
Expr end() { return make({.kind = Kind::kEnd}); }

}  // namespace expr

void emit(Nfa& nfa, uint32_t from, const Expr& expression, Encoding encoding, uint32_t to) {
  if (nfa.full()) return;
  const Expression& e = *expression;
  switch (e.kind) {
    case Kind::kLiteral:
      return nfa.literal(from, e.literal, to);
    case Kind::kSet:
      return add_code_points(nfa, from, e.set, encoding, to);
    case Kind::kSequence: {
      for (size_t i = 0; i + 1 < e.parts.size(); ++i) {
        const uint32_t next = nfa.add_state();
        emit(nfa, from, e.parts[i], encoding, next);
        from = next;
      }
      return e.parts.empty() ? nfa.skip(from, to) : emit(nfa, from, e.parts.back(), encoding, to);
    }
    case Kind::kChoice: {
      for (const Expr& part : e.parts) {  // states of its own, so that a loop of one part stays its own
        const uint32_t begin = nfa.add_state(), end = nfa.add_state();
        nfa.skip(from, begin);
        emit(nfa, begin, part, encoding, end);
        nfa.skip(end, to);
      }
      return;
    }
    case Kind::kRepeat:
      return emit_repeat(nfa, from, e, encoding, to);
    case Kind::kCall:
      return nfa.call(from, e.rule, to);
    case Kind::kAutomaton:
      return nfa.embed(*e.automaton, from, to);
    case Kind::kBegin:
      return nfa.bytes(from, kBeginByte, kBeginByte, to);
    case Kind::kEnd:
      return nfa.bytes(from, kEndByte, kEndByte, to);
  }
}

Result<Dfa> whole(const Expr& expression, Encoding encoding, AutomatonLimits limits) {
  Nfa nfa(limits);
  const uint32_t end = nfa.add_state();
  nfa.mark(end, kAccept);
  emit(nfa, nfa.start(), expression, encoding, end);
  return nfa.determinise();
}

Result<Dfa> search(const Expr& expression, Encoding encoding, AutomatonLimits limits) {
  Nfa nfa(limits);
  const uint32_t begin = nfa.add_state(), found = nfa.add_state(), end = nfa.add_state();
  nfa.mark(end, kAccept);
  if (is_anchored(*expression, Kind::kBegin)) nfa.skip(nfa.start(), begin);
  else add_any_text(nfa, nfa.start(), encoding, begin);
  emit(nfa, begin, expression, encoding, found);
  if (is_anchored(*expression, Kind::kEnd)) nfa.skip(found, end);
  else add_any_text(nfa, found, encoding, end);
  ASSIGN_OR_RETURN(const Dfa automaton, nfa.determinise());
  return without_marks(automaton, limits);
}

}  // namespace foretoken
