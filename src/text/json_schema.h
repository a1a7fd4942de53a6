// JSON Schema as a grammar: every text of the grammar is JSON that satisfies the schema. Supported keywords and what is
// refused: docs/constrained.md.
#pragma once

#include <map>

#include "base/json.h"
#include "text/json_grammar.h"
#include "text/schema_shape.h"

namespace foretoken {

// `schema` is needed for the call alone. kUsage: no schema, or one that no value satisfies; kUnsupported: a keyword
// that constrains and is not supported, or more states than the limits allow. Messages begin with the keyword's JSON
// pointer.
Result<Grammar> json_schema_grammar(const OrderedJson& schema, SchemaLimits limits = {},
                                    GrammarLimits grammar_limits = {});

// The schemas of one document as rules of a larger grammar.
class SchemaCompiler {
 public:
  // All are borrowed until define_all() is through.
  SchemaCompiler(JsonRules& json, SchemaReader& reader) : json_(json), reader_(reader) {}

  // The rule of values that satisfy all; it is defined by define_all().
  Result<RuleIndex> rule_of(const Conjunction& schemas);
  Status define_all();

 private:
  Status define(RuleIndex rule, const Conjunction& schemas);
  Status add_shape(Nfa& nfa, const Shape& shape, uint32_t end);
  Status add_values(Nfa& nfa, const Shape& shape, uint32_t end);
  Status add_number(Nfa& nfa, const Shape& shape, uint32_t end);
  Status add_string(Nfa& nfa, const Shape& shape, uint32_t end);
  Result<RuleIndex> array_rule(const Shape& shape);
  Result<RuleIndex> object_rule(const Shape& shape);
  Status add_members(const Shape& shape, JsonRules::ObjectPlan& plan, std::vector<std::string>& names);
  Status add_extras(const Shape& shape, const std::vector<std::string>& names, JsonRules::ObjectPlan& plan);
  Status check_member_count(const Shape& shape, JsonRules::ObjectPlan& plan) const;
  Result<Dfa> name_words(const Conjunction& schemas);
  GrammarBuilder& builder() { return json_.builder(); }

  JsonRules& json_;
  SchemaReader& reader_;
  std::map<Conjunction, RuleIndex> rules_;
  std::vector<std::pair<RuleIndex, Conjunction>> todo_;
};

}  // namespace foretoken
