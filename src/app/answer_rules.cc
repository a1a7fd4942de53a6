// Rules of one answer from the command line, made as the server makes them.
#include "app/answer.h"
#include "serve/rules.h"

namespace foretoken::app {

namespace {

// Rules read the text's tokenizer as long as they live.
struct RulesOfText {
  serve::ModelText text;
  std::unique_ptr<TokenRules> rules;
};

}  // namespace

Result<std::shared_ptr<TokenRules>> answer_rules(const LoadedModel& model, const ThinkingChoice& thinking, const std::string& schema_file, bool in_reasoning) {
  if (!thinking.budget && schema_file.empty()) return std::shared_ptr<TokenRules>();
  ASSIGN_OR_RETURN(const Tokenizer* tokenizer, model.tokenizer());
  const auto kept = std::make_shared<RulesOfText>();
  serve::ModelText& text = kept->text;
  text.tokenizer = *tokenizer;
  text.stop_tokens = model.config().stop_tokens;
  for (const TokenId id : tokenizer->end_ids())
    if (!text.is_stop(id)) text.stop_tokens.push_back(id);
  serve::Submission s;
  s.in_reasoning = in_reasoning;
  s.thinking_budget = thinking.budget;
  if (!schema_file.empty()) {
    ASSIGN_OR_RETURN(const std::string schema, read_file(schema_file));
    s.grammar = serve::GrammarSpec{.kind = serve::GrammarSpec::Kind::kJsonSchema};
    ASSIGN_OR_RETURN(s.grammar->schema, parse_ordered_json(schema, schema_file));
  }
  auto rules = serve::RuleMaker(text, model.config().vocab).make(s);
  if (!rules && !schema_file.empty()) return Error{rules.error().code, "--json-schema " + schema_file + ": " + rules.error().message};
  ASSIGN_OR_RETURN(kept->rules, std::move(rules));
  return std::shared_ptr<TokenRules>(kept, kept->rules.get());
}

}  // namespace foretoken::app
