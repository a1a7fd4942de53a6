// Grammars of one rule or of the JSON rules alone.
#include "text/text_grammars.h"

#include "text/json_grammar.h"
#include "text/regex.h"

namespace foretoken {

Result<Grammar> regex_grammar(std::string_view pattern, GrammarLimits limits) {
  ASSIGN_OR_RETURN(Expr expression, parse_regex(pattern));
  Result<Dfa> automaton = search(anchored(std::move(expression)), Encoding::kText);
  if (!automaton) return Error{automaton.error().code, "the pattern " + automaton.error().message};
  GrammarBuilder builder(limits);
  const RuleIndex rule = builder.declare("the pattern");
  TRY(builder.define(rule, *std::move(automaton)));
  return std::move(builder).build(rule);
}

Result<Grammar> json_object_grammar(GrammarLimits limits) {
  GrammarBuilder builder(limits);
  JsonRules json(builder);
  ASSIGN_OR_RETURN(const RuleIndex object, json.object());
  ASSIGN_OR_RETURN(const RuleIndex document, json.document(object));
  return std::move(builder).build(document);
}

Result<Grammar> json_value_grammar(GrammarLimits limits) {
  GrammarBuilder builder(limits);
  JsonRules json(builder);
  ASSIGN_OR_RETURN(const RuleIndex value, json.value());
  ASSIGN_OR_RETURN(const RuleIndex document, json.document(value));
  return std::move(builder).build(document);
}

}  // namespace foretoken
