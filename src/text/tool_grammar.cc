// Calls, their tags, and arguments as text or JSON.
#include "text/tool_grammar.h"

#include <algorithm>
#include <deque>

#include "text/expression.h"
#include "text/grammar_vocabulary.h"
#include "text/json_schema.h"

namespace foretoken {
namespace {

constexpr std::string_view kOpenTag = "<tool_call>", kCloseTag = "</tool_call>", kEndOfValue = "\n</parameter>\n";

// Texts in which `stop` does not occur.
Result<Dfa> text_without(std::string_view stop) {
  ASSIGN_OR_RETURN(const Dfa any, whole(expr::repeat(expr::set(CodePointSet::all()), 0), Encoding::kText));
  const Expr anything = expr::repeat(expr::set(CodePointSet::all()), 0);
  ASSIGN_OR_RETURN(const Dfa with, whole(expr::sequence({anything, expr::literal(stop), anything}), Encoding::kText));
  return subtract(any, with);
}

// Texts of `words` that are followed by kEndOfValue and hold it nowhere before, nor what a reader of calls takes for the
// end of a value: its closing tag in front of another parameter or of the function's end.
Result<Dfa> until_end_of_value(const Dfa& words) {
  const std::string_view stop = kEndOfValue;
  const Expr anything = expr::repeat(expr::set(CodePointSet::all()), 0);
  const Expr one = expr::set(CodePointSet::all());
  ASSIGN_OR_RETURN(const Dfa ended,
                   whole(expr::sequence({expr::automaton(words), expr::literal(stop)}), Encoding::kText));
  ASSIGN_OR_RETURN(const Dfa early,
                   whole(expr::sequence({anything, expr::literal(stop), one, anything}), Encoding::kText));
  const Expr blanks = expr::repeat(expr::set({{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}}), 0);
  ASSIGN_OR_RETURN(const Dfa misread,
                   whole(expr::sequence({anything, expr::literal("</parameter>"), blanks,
                                         expr::choice({expr::literal("<parameter="), expr::literal("</function>")}), anything}),
                         Encoding::kText));
  ASSIGN_OR_RETURN(const Dfa first, subtract(ended, early));
  return subtract(first, misread);
}

bool is_name(std::string_view name, ToolCallForm form) {
  if (name.empty() || name.size() > 256) return false;
  return form == ToolCallForm::kJson ||
         std::none_of(name.begin(), name.end(), [](char c) { return c == '>' || c == '<' || c == '\n'; });
}

// The kinds of values, strings aside, that a shape allows.
uint8_t other_types(const Shape& shape) {
  if (!shape.values) return shape.types & ~kStringType;
  uint8_t types = 0;
  for (const OrderedJson* v : *shape.values)
    types |= v->is_null()      ? kNullType
             : v->is_boolean() ? kBooleanType
             : v->is_number()  ? kNumberType
             : v->is_array()   ? kArrayType
             : v->is_object()  ? kObjectType
                               : 0;
  return types & shape.types;
}

bool allows_strings(const Shape& shape) {
  if (!(shape.types & kStringType)) return false;
  return !shape.values ||
         std::any_of(shape.values->begin(), shape.values->end(), [](const OrderedJson* v) { return v->is_string(); });
}

// Texts that a reader of calls may take for JSON, or Python, of one of the types.
Result<Dfa> read_as(uint8_t types) {
  const Expr blanks = expr::repeat(expr::set({{'\t', '\r'}, {' ', ' '}}), 0);
  const Expr anything = expr::repeat(expr::set(CodePointSet::all()), 0);
  std::vector<Expr> forms;
  const auto word = [&](uint8_t type, std::string_view text) {
    if (types & type) forms.push_back(expr::sequence({expr::literal(text), blanks}));
  };
  const auto begin = [&](uint8_t type, CodePointSet first) {
    if (types & type) forms.push_back(expr::sequence({expr::set(std::move(first)), anything}));
  };
  word(kNullType, "null");
  word(kNullType, "None");
  for (const char* boolean : {"true", "false", "True", "False"}) word(kBooleanType, boolean);
  begin(kNumberType, {{'-', '-'}, {'0', '9'}});
  begin(kArrayType, {{'[', '['}});
  begin(kObjectType, {{'{', '{'}});
  return whole(expr::sequence({blanks, expr::choice(std::move(forms))}), Encoding::kText);
}

// All values but strings.
const OrderedJson& no_string_schema() {
  static const OrderedJson schema = {{"type", {"null", "boolean", "number", "array", "object"}}};
  return schema;
}

// One tool's schema while its rules are made; the document must stay where it is.
struct OpenTool {
  const ToolSchema* tool;
  OrderedJson document;
  std::optional<SchemaReader> reader;
  std::optional<SchemaCompiler> compiler;
};

class ToolGrammarWriter {
 public:
  ToolGrammarWriter(const std::vector<ToolSchema>& tools, const ToolGrammarOptions& options)
      : tools_(tools), options_(options), builder_(options.grammar_limits), json_(builder_) {}

  Result<Grammar> write() {
    if (tools_.empty()) return Error{ErrorCode::kUsage, "tools: there is no tool that could be called"};
    const RuleIndex call = builder_.declare("tool call");
    std::vector<Expr> calls;
    for (const ToolSchema& tool : tools_) {
      Result<Expr> one = call_of(tool);
      if (!one) return Error{one.error().code, "tool '" + tool.name.substr(0, 64) + "': " + one.error().message};
      calls.push_back(*std::move(one));
    }
    for (OpenTool& tool : open_)
      if (const Status defined = tool.compiler->define_all(); !defined)
        return Error{defined.error().code, "tool '" + tool.tool->name.substr(0, 64) + "': " + defined.error().message};
    ASSIGN_OR_RETURN(Dfa any_call, whole(tagged(expr::choice(std::move(calls))), Encoding::kText));
    TRY(builder_.define(call, std::move(any_call)));
    return finish(call);
  }

 private:
  Expr tagged(Expr body) const {
    const auto tag = [](std::optional<TokenId> id, std::string_view text) {
      return expr::literal(id ? token_mark(*id) : std::string(text));
    };
    return expr::sequence({tag(options_.open_tag, kOpenTag), expr::literal("\n"), std::move(body), expr::literal("\n"),
                           tag(options_.close_tag, kCloseTag)});
  }

  // Calls one after the other, each on a line of its own.
  Result<Grammar> finish(RuleIndex call) {
    const uint32_t least = options_.least_calls, most = options_.most_calls;
    if (most == 0 || least > most) return Error{ErrorCode::kUsage, "tools: at least one call must be allowed"};
    const bool unbounded = most == Expression::kUnbounded;
    const Expr more = expr::repeat(expr::sequence({expr::literal("\n"), expr::call(call)}), std::max(least, 1u) - 1,
                                   unbounded ? Expression::kUnbounded : most - 1);
    Expr text = expr::sequence({expr::call(call), more});
    if (least == 0) text = expr::optional(text);
    if (options_.text_before) {
      ASSIGN_OR_RETURN(Dfa before, text_without(kOpenTag));
      text = expr::sequence({expr::automaton(std::move(before)), text});
    } else {
      text = expr::sequence({expr::repeat(expr::literal("\n"), 0, 2), text});
    }
    const RuleIndex root = builder_.declare("tools");
    ASSIGN_OR_RETURN(Dfa automaton, whole(text, Encoding::kText));
    TRY(builder_.define(root, std::move(automaton)));
    return std::move(builder_).build(root);
  }

  Result<Expr> call_of(const ToolSchema& tool) {
    if (!is_name(tool.name, options_.form)) return Error{ErrorCode::kUsage, "this name cannot be called in this form"};
    OpenTool& open = open_.emplace_back();
    open.tool = &tool;
    open.document = tool.parameters.is_null() ? OrderedJson{{"type", "object"}} : tool.parameters;
    ASSIGN_OR_RETURN(SchemaReader reader, SchemaReader::open(open.document, options_.schema_limits));
    open.reader.emplace(std::move(reader));
    open.compiler.emplace(json_, *open.reader);
    if (options_.form == ToolCallForm::kXml) return xml_call(tool, open);
    ASSIGN_OR_RETURN(const RuleIndex arguments, open.compiler->rule_of({&open.document}));
    return expr::sequence({expr::literal("{\"name\": \"" + json_characters(tool.name) + "\", \"arguments\": "),
                           expr::call(arguments), expr::literal("}")});
  }

  // Parameters in the schema's order. A parameter's value is text where every value that its schema allows is a string.
  Result<Expr> xml_call(const ToolSchema& tool, OpenTool& open) {
    ASSIGN_OR_RETURN(const std::vector<Shape>* const shapes, open.reader->shapes({&open.document}));
    std::vector<Expr> forms;
    for (const Shape& shape : *shapes) {
      if (!(shape.types & kObjectType)) continue;
      if (shape.values) return Error{ErrorCode::kUnsupported, shape.where + ": enumerated arguments have no XML form"};
      ASSIGN_OR_RETURN(Expr parameters, parameters_of(shape, open));
      forms.push_back(std::move(parameters));
    }
    return expr::sequence({expr::literal("<function=" + tool.name + ">\n"), expr::choice(std::move(forms)),
                           expr::literal("</function>")});
  }

  Result<Expr> parameters_of(const Shape& shape, OpenTool& open) {
    const ObjectShape& object = shape.object;
    std::vector<std::string> names;
    for (const ObjectLayer& layer : object.layers)
      for (const auto& [name, schemas] : layer.properties)
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    for (const std::string& name : object.required)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    const bool any_number = object.max == UINT32_MAX || object.max == 0;  // where no name is given
    if (object.min > object.required.size() || object.max < names.size() || (names.empty() && !any_number))
      return Error{ErrorCode::kUnsupported, shape.where + ": a number of arguments has no XML form"};
    for (const ObjectLayer& layer : object.layers)
      if (layer.names) return Error{ErrorCode::kUnsupported, shape.where + "/propertyNames: has no XML form"};
    std::vector<Expr> parts;
    for (const std::string& name : names) {
      if (!is_name(name, ToolCallForm::kXml))
        return Error{ErrorCode::kUnsupported, shape.where + ": a parameter's name has no XML form"};
      ASSIGN_OR_RETURN(const Expr value, value_of(object.at(name), open));
      Expr part = expr::sequence({expr::literal("<parameter=" + name + ">\n"), value});
      const bool required = std::find(object.required.begin(), object.required.end(), name) != object.required.end();
      parts.push_back(required ? part : expr::optional(part));
    }
    if (names.empty()) return free_parameters(shape);
    return expr::sequence(std::move(parts));
  }

  // Parameters of any name, as text, for a tool that describes none and forbids none.
  Result<Expr> free_parameters(const Shape& shape) const {
    const bool closed = std::any_of(shape.object.layers.begin(), shape.object.layers.end(),
                                    [](const ObjectLayer& l) { return !l.additional.empty(); });
    if (closed || shape.object.max == 0) return expr::sequence({});
    const Expr anything = expr::repeat(expr::set(CodePointSet::all()), 0);
    ASSIGN_OR_RETURN(const Dfa any, whole(anything, Encoding::kText));
    ASSIGN_OR_RETURN(Dfa value, until_end_of_value(any));
    const CodePointSet name = CodePointSet::all().without(0, 0x20).without('<', '<').without('>', '>');
    return expr::repeat(expr::sequence({expr::literal("<parameter="), expr::repeat(expr::set(name), 1, 64),
                                        expr::literal(">\n"), expr::automaton(std::move(value))}),
                        0);
  }

  // A value and what ends it: strings as text, others as JSON. A text that would be read as another allowed kind is
  // left out.
  Result<Expr> value_of(const Conjunction& schemas, OpenTool& open) {
    ASSIGN_OR_RETURN(const std::vector<Shape>* const shapes, open.reader->shapes(schemas));
    uint8_t others = 0;
    for (const Shape& shape : *shapes) others |= other_types(shape);
    std::vector<Expr> forms;
    for (const Shape& shape : *shapes) {
      if (!allows_strings(shape)) continue;
      ASSIGN_OR_RETURN(Expr form, text_of(shape, others, open));
      forms.push_back(std::move(form));
    }
    if (others != 0) {
      Conjunction rest = schemas;
      if (!forms.empty()) rest.push_back(&no_string_schema());
      ASSIGN_OR_RETURN(const RuleIndex rule, open.compiler->rule_of(rest));
      forms.push_back(expr::sequence({expr::call(rule), expr::literal(kEndOfValue)}));
    }
    if (shapes->empty()) return expr::choice({});
    const RuleIndex rule = builder_.declare((*shapes)[0].where);
    ASSIGN_OR_RETURN(Dfa automaton, whole(expr::choice(std::move(forms)), Encoding::kText));
    TRY(builder_.define(rule, std::move(automaton)));
    return expr::call(rule);
  }

  Result<Expr> text_of(const Shape& shape, uint8_t others, OpenTool& open) {
    std::optional<Dfa> words;
    if (shape.values) {
      std::vector<Expr> literals;
      for (const OrderedJson* value : *shape.values) {
        ASSIGN_OR_RETURN(const bool fits, open.reader->admits(shape, *value));
        if (fits && value->is_string()) literals.push_back(expr::literal(value->get<std::string>()));
      }
      ASSIGN_OR_RETURN(words, whole(expr::choice(std::move(literals)), Encoding::kText));
    } else {
      ASSIGN_OR_RETURN(words, open.reader->string_words(shape.string, Encoding::kText, shape.where));
    }
    if (others != 0) {
      ASSIGN_OR_RETURN(const Dfa misread, read_as(others));
      ASSIGN_OR_RETURN(words, subtract(*words, misread));
    }
    ASSIGN_OR_RETURN(Dfa ended, until_end_of_value(*words));
    return expr::automaton(std::move(ended));
  }

  const std::vector<ToolSchema>& tools_;
  const ToolGrammarOptions& options_;
  GrammarBuilder builder_;
  JsonRules json_;
  std::deque<OpenTool> open_;
};

}  // namespace

Result<Grammar> tool_grammar(const std::vector<ToolSchema>& tools, const ToolGrammarOptions& options) {
  return ToolGrammarWriter(tools, options).write();
}

}  // namespace foretoken
