// Shapes as rules.
#include "text/json_schema.h"

#include <algorithm>

#include "base/check.h"
#include "text/expression.h"

namespace foretoken {
namespace {

bool is_impossible(const Conjunction& schemas) {
  return std::any_of(schemas.begin(), schemas.end(),
                     [](const OrderedJson* s) { return s->is_boolean() && !s->get<bool>(); });
}

Error located(const std::string& where, const Error& error) {
  return {error.code, error.message.starts_with("#") ? error.message : where + ": " + error.message};
}

// Names as they stand in a JSON string, each in the one way that is written for a member with rules of its own.
Result<Dfa> all_names() { return whole(expr::repeat(expr::set(CodePointSet::all()), 0), Encoding::kJsonString); }

Result<Dfa> with_quote(const Dfa& words) {
  Nfa nfa;
  const uint32_t quote = nfa.add_state(), end = nfa.add_state();
  nfa.mark(end, kAccept);
  nfa.embed(words, nfa.start(), quote);
  nfa.bytes(quote, '"', '"', end);
  return nfa.determinise();
}

}  // namespace

Result<RuleIndex> SchemaCompiler::rule_of(const Conjunction& given) {
  ASSIGN_OR_RETURN(const Conjunction schemas, reader_.canonical(given));
  if (schemas.empty()) return json_.value();
  Conjunction key = schemas;
  std::sort(key.begin(), key.end());
  if (const auto found = rules_.find(key); found != rules_.end()) return found->second;
  const RuleIndex rule = builder().declare(reader_.where(*schemas[0]));
  rules_.emplace(std::move(key), rule);
  todo_.emplace_back(rule, schemas);
  return rule;
}

Status SchemaCompiler::define_all() {
  while (!todo_.empty()) {
    const auto [rule, schemas] = std::move(todo_.back());
    todo_.pop_back();
    if (const Status defined = define(rule, schemas); !defined) return located(builder().name(rule), defined.error());
  }
  return {};
}

Status SchemaCompiler::define(RuleIndex rule, const Conjunction& schemas) {
  Nfa nfa;
  const uint32_t end = nfa.add_state();
  nfa.mark(end, kAccept);
  if (const auto branches = reader_.pure_choice(schemas)) {
    for (const Conjunction& branch : *branches) {
      ASSIGN_OR_RETURN(const RuleIndex target, rule_of(branch));
      nfa.call(nfa.start(), target, end);
    }
  } else {
    ASSIGN_OR_RETURN(const std::vector<Shape>* const shapes, reader_.shapes(schemas));
    for (const Shape& shape : *shapes) TRY(add_shape(nfa, shape, end));
  }
  ASSIGN_OR_RETURN(Dfa automaton, nfa.determinise());
  return builder().define(rule, std::move(automaton));
}

Status SchemaCompiler::add_shape(Nfa& nfa, const Shape& shape, uint32_t end) {
  if (shape.values) return add_values(nfa, shape, end);
  if (shape.types & kNullType) nfa.literal(nfa.start(), "null", end);
  if (shape.types & kBooleanType) {
    nfa.literal(nfa.start(), "true", end);
    nfa.literal(nfa.start(), "false", end);
  }
  if (shape.types & kNumberType) TRY(add_number(nfa, shape, end));
  if (shape.types & kStringType) TRY(add_string(nfa, shape, end));
  if (shape.types & kArrayType) {
    ASSIGN_OR_RETURN(const RuleIndex rule, array_rule(shape));
    nfa.call(nfa.start(), rule, end);
  }
  if (shape.types & kObjectType) {
    ASSIGN_OR_RETURN(const RuleIndex rule, object_rule(shape));
    nfa.call(nfa.start(), rule, end);
  }
  return {};
}

// Few values are written out beside what else is allowed; many become a rule of their own, which is made without a state per byte.
Status SchemaCompiler::add_values(Nfa& nfa, const Shape& shape, uint32_t end) {
  constexpr size_t kWrittenOut = 64;
  std::vector<std::string> words;
  for (const OrderedJson* value : *shape.values) {
    ASSIGN_OR_RETURN(const bool fits, reader_.admits(shape, *value));
    if (!fits) continue;
    if (value->is_structured()) {
      ASSIGN_OR_RETURN(const RuleIndex rule, json_.constant(*value, shape.where));
      nfa.call(nfa.start(), rule, end);
    } else {
      words.push_back(dump_json(*value));
    }
  }
  if (words.size() <= kWrittenOut) {
    for (const std::string& word : words) nfa.literal(nfa.start(), word, end);
    return {};
  }
  const RuleIndex rule = builder().declare(shape.where);
  TRY(builder().define(rule, automaton_of(std::move(words))));
  nfa.call(nfa.start(), rule, end);
  return {};
}

Status SchemaCompiler::add_number(Nfa& nfa, const Shape& shape, uint32_t end) {
  const NumberRange& range = shape.number;
  if (!range.integer && !range.lower && !range.upper) {
    ASSIGN_OR_RETURN(const RuleIndex any, json_.number());
    nfa.call(nfa.start(), any, end);
    return {};
  }
  const RuleIndex rule = builder().declare(shape.where);
  ASSIGN_OR_RETURN(Dfa automaton, number_automaton(range));
  TRY(builder().define(rule, std::move(automaton)));
  nfa.call(nfa.start(), rule, end);
  return {};
}

Status SchemaCompiler::add_string(Nfa& nfa, const Shape& shape, uint32_t end) {
  const StringShape& string = shape.string;
  if (string.min > string.max) return {};
  const uint32_t open = nfa.add_state();
  nfa.bytes(nfa.start(), '"', '"', open);
  if (string.plain()) {
    const auto bound = [](uint32_t n) { return n == UINT32_MAX ? Grammar::kUnbounded : static_cast<int32_t>(n); };
    ASSIGN_OR_RETURN(const RuleIndex tail, json_.string_tail({bound(string.min), bound(string.max)}));
    nfa.call(open, tail, end);
    return {};
  }
  const RuleIndex rule = builder().declare(shape.where);
  ASSIGN_OR_RETURN(const Dfa words, reader_.string_words(string, Encoding::kJsonString, shape.where));
  ASSIGN_OR_RETURN(Dfa tail, with_quote(words));
  TRY(builder().define(rule, std::move(tail)));
  nfa.call(open, rule, end);
  return {};
}

Result<RuleIndex> SchemaCompiler::array_rule(const Shape& shape) {
  JsonRules::ArrayPlan plan;
  for (const Conjunction& schemas : shape.array.prefix) {
    ASSIGN_OR_RETURN(const RuleIndex element, rule_of(schemas));
    plan.prefix.push_back(element);
  }
  ASSIGN_OR_RETURN(plan.rest, rule_of(shape.array.rest));
  plan.length = {static_cast<int32_t>(shape.array.min),
                 shape.array.max == UINT32_MAX ? Grammar::kUnbounded : static_cast<int32_t>(shape.array.max)};
  const RuleIndex rule = builder().declare(shape.where);
  TRY(json_.define_array(rule, plan));
  return rule;
}

Result<RuleIndex> SchemaCompiler::object_rule(const Shape& shape) {
  JsonRules::ObjectPlan plan;
  std::vector<std::string> names;
  TRY(add_members(shape, plan, names));
  TRY(add_extras(shape, names, plan));
  TRY(check_member_count(shape, plan));
  const RuleIndex rule = builder().declare(shape.where);
  TRY(json_.define_object(rule, plan));
  return rule;
}

// In the schema's order; required names that it does not describe come last.
Status SchemaCompiler::add_members(const Shape& shape, JsonRules::ObjectPlan& plan, std::vector<std::string>& names) {
  const ObjectShape& object = shape.object;
  const auto add_name = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const ObjectLayer& layer : object.layers)
    for (const auto& [name, schemas] : layer.properties) add_name(name);
  for (const std::string& name : object.required) add_name(name);
  for (const std::string& name : names) {
    const bool required = std::find(object.required.begin(), object.required.end(), name) != object.required.end();
    Conjunction schemas = object.at(name);
    for (const ObjectLayer& layer : object.layers) {
      if (!layer.names) continue;
      ASSIGN_OR_RETURN(const bool allowed, reader_.admits(*layer.names, OrderedJson(name)));
      if (!allowed) schemas = {&false_schema()};
    }
    if (!required && is_impossible(schemas)) continue;
    ASSIGN_OR_RETURN(const RuleIndex value, rule_of(schemas));
    plan.members.push_back({name, value, required});
  }
  return {};
}

// Names that are not described fall into classes by the patterns they match; each class has one schema.
Status SchemaCompiler::add_extras(const Shape& shape, const std::vector<std::string>& names,
                                  JsonRules::ObjectPlan& plan) {
  struct Class {
    Dfa words;
    std::vector<bool> matched;  // by each pattern, layer by layer
  };
  const auto& layers = shape.object.layers;
  const bool open =
      std::all_of(layers.begin(), layers.end(), [](const ObjectLayer& l) { return l.patterns.empty() && !l.names; });
  const auto schemas_of = [&](const std::vector<bool>& matched) {
    Conjunction schemas;
    size_t next = 0;
    for (const ObjectLayer& layer : layers) {
      bool any = false;
      for (const auto& [words, described] : layer.patterns) {
        if (!matched[next++]) continue;
        any = true;
        join(schemas, described);
      }
      if (!any) join(schemas, layer.additional);
    }
    return schemas;
  };
  if (open && is_impossible(schemas_of({}))) return {};
  if (open && names.empty()) {  // any name in any spelling
    ASSIGN_OR_RETURN(const RuleIndex value, rule_of(schemas_of({})));
    ASSIGN_OR_RETURN(const RuleIndex tail, json_.string_tail());
    ASSIGN_OR_RETURN(Dfa key, whole(expr::call(tail), Encoding::kText));
    plan.extras.push_back({std::move(key), value});
    return {};
  }
  ASSIGN_OR_RETURN(Dfa words, all_names());
  std::vector<std::string> written;
  for (const std::string& name : names) written.push_back(json_characters(name));
  ASSIGN_OR_RETURN(words, subtract(words, automaton_of(std::move(written)), reader_.automaton_limits()));
  for (const ObjectLayer& layer : layers) {
    if (!layer.names) continue;
    ASSIGN_OR_RETURN(const Dfa allowed, name_words(*layer.names));
    ASSIGN_OR_RETURN(words, intersect(words, allowed, reader_.automaton_limits()));
  }
  const AutomatonLimits limits = reader_.automaton_limits();
  std::vector<Class> classes;
  classes.push_back({std::move(words), {}});
  for (const ObjectLayer& layer : layers)
    for (const auto& [pattern, schemas] : layer.patterns) {
      std::vector<Class> split;
      for (const Class& c : classes)
        for (const bool matches : {true, false}) {
          ASSIGN_OR_RETURN(Dfa part,
                           matches ? intersect(c.words, *pattern, limits) : subtract(c.words, *pattern, limits));
          if (part.empty()) continue;
          split.push_back({std::move(part), c.matched});
          split.back().matched.push_back(matches);
        }
      classes = std::move(split);
      if (classes.size() > 64)
        return Error{ErrorCode::kUnsupported, shape.where + "/patternProperties: too many overlapping patterns"};
    }
  for (const Class& c : classes) {
    const Conjunction schemas = schemas_of(c.matched);
    if (c.words.empty() || is_impossible(schemas)) continue;
    ASSIGN_OR_RETURN(const RuleIndex value, rule_of(schemas));
    ASSIGN_OR_RETURN(Dfa key, with_quote(c.words));
    plan.extras.push_back({std::move(key), value});
  }
  return {};
}

// Names may repeat among the extras, so that members cannot be counted there.
Status SchemaCompiler::check_member_count(const Shape& shape, JsonRules::ObjectPlan& plan) const {
  const auto& members = plan.members;
  const auto required =
      static_cast<size_t>(std::count_if(members.begin(), members.end(), [](const auto& m) { return m.required; }));
  if (shape.object.max == 0 && required == 0) {
    plan.members.clear();
    plan.extras.clear();
  }
  const bool too_many = shape.object.max < members.size() ||
                        (shape.object.max != UINT32_MAX && shape.object.max != 0 && !plan.extras.empty());
  if (too_many)
    return Error{ErrorCode::kUnsupported,
                 shape.where + "/maxProperties: only supported where the named properties alone keep it"};
  if (shape.object.min <= required) return {};
  if (shape.object.min > 1)
    return Error{ErrorCode::kUnsupported,
                 shape.where + "/minProperties: more than one is only supported for required properties"};
  plan.may_be_empty = false;
  return {};
}

Result<Dfa> SchemaCompiler::name_words(const Conjunction& schemas) {
  ASSIGN_OR_RETURN(const std::vector<Shape>* const shapes, reader_.shapes(schemas));
  Nfa nfa;
  const uint32_t end = nfa.add_state();
  nfa.mark(end, kAccept);
  for (const Shape& shape : *shapes) {
    if (!(shape.types & kStringType)) continue;
    if (shape.values) {
      for (const OrderedJson* value : *shape.values) {
        ASSIGN_OR_RETURN(const bool fits, reader_.admits(shape, *value));
        if (fits && value->is_string()) nfa.literal(nfa.start(), json_characters(value->get<std::string>()), end);
      }
    } else {
      ASSIGN_OR_RETURN(const Dfa words, reader_.string_words(shape.string, Encoding::kJsonString, shape.where));
      nfa.embed(words, nfa.start(), end);
    }
  }
  return nfa.determinise();
}

Result<Grammar> json_schema_grammar(const OrderedJson& schema, SchemaLimits limits, GrammarLimits grammar_limits) {
  GrammarBuilder builder(grammar_limits);
  JsonRules json(builder);
  ASSIGN_OR_RETURN(SchemaReader reader, SchemaReader::open(schema, limits));
  SchemaCompiler compiler(json, reader);
  ASSIGN_OR_RETURN(const RuleIndex root, compiler.rule_of({&reader.root()}));
  TRY(compiler.define_all());
  ASSIGN_OR_RETURN(const RuleIndex document, json.document(root));
  return std::move(builder).build(document);
}

}  // namespace foretoken
