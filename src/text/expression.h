// Regular expressions as trees: what the regex parser makes of a pattern and what builders of grammars put together.
// Words are characters, literal bytes, or whole rules of a grammar.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/automaton.h"
#include "text/code_points.h"

namespace foretoken {

struct Expression;
using Expr = std::shared_ptr<const Expression>;

struct Expression {
  enum class Kind : uint8_t { kLiteral, kSet, kSequence, kChoice, kRepeat, kCall, kAutomaton, kBegin, kEnd };
  Kind kind = Kind::kLiteral;
  std::string literal;  // bytes as they are, in every encoding
  CodePointSet set;     // one character
  std::vector<Expr> parts;
  uint32_t min = 0, max = 0;  // kRepeat; kUnbounded: no upper bound
  RuleIndex rule = 0;
  std::shared_ptr<const Dfa> automaton;
  static constexpr uint32_t kUnbounded = UINT32_MAX;
};

namespace expr {
Expr literal(std::string_view bytes);
Expr set(CodePointSet characters);
Expr sequence(std::vector<Expr> parts);
Expr choice(std::vector<Expr> parts);  // of none: nothing matches
Expr repeat(Expr part, uint32_t min, uint32_t max = Expression::kUnbounded);
Expr optional(Expr part);
Expr call(RuleIndex rule);
Expr automaton(Dfa words);
Expr begin();  // the start and the end of the text, for search() alone
Expr end();
}  // namespace expr

// Adds paths that read `expression` between two states.
void emit(Nfa& nfa, uint32_t from, const Expr& expression, Encoding encoding, uint32_t to);

// The words of an expression without begin() and end(), and the texts in which an expression with them is found: all of
// `.*e.*` where begin() only holds at the start and end() only at the end.
Result<Dfa> whole(const Expr& expression, Encoding encoding, AutomatonLimits limits = {});
Result<Dfa> search(const Expr& expression, Encoding encoding, AutomatonLimits limits = {});

}  // namespace foretoken
