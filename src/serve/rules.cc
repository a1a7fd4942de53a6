// Rules of decoding from the text room's parts, and a few compiled grammars kept for the next request with the same schema.
#include "serve/rules.h"

#include <list>
#include <optional>

#include "text/expression.h"
#include "text/grammar_matcher.h"
#include "text/grammar_vocabulary.h"
#include "text/json_schema.h"
#include "text/text_grammars.h"
#include "text/thinking_budget.h"
#include "text/tool_grammar.h"

namespace foretoken::serve {
namespace {

constexpr size_t kKeptGrammars = 32;

class BudgetRules final : public TokenRules {
 public:
  explicit BudgetRules(const ThinkingBudgetOptions& options) : budget_(options) {}
  TokenMask mask() override { return budget_.mask(); }
  bool allows(TokenId token) override { return budget_.allows(token); }
  bool advance(TokenId token) override { return budget_.advance(token); }
  int64_t depth() const override { return budget_.depth(); }
  void rewind(int64_t depth) override { budget_.rewind(depth); }
  void foresee(size_t most, std::vector<TokenId>& run) override {
    if (most > 0 && budget_.must_end()) run.push_back(budget_.end_mark());
  }

 private:
  ThinkingBudget budget_;
};

class GrammarRules final : public TokenRules {
 public:
  GrammarRules(const Tokenizer& tokenizer, std::shared_ptr<const TokenGrammar> grammar, MatcherOptions options)
      : tokenizer_(tokenizer), matcher_(std::move(grammar), std::move(options)) {}
  TokenMask mask() override { return matcher_.mask(); }
  bool allows(TokenId token) override { return matcher_.allows(token); }
  bool advance(TokenId token) override { return matcher_.advance(token); }
  int64_t depth() const override { return matcher_.depth(); }
  void rewind(int64_t depth) override { matcher_.rewind(depth); }
  void foresee(size_t most, std::vector<TokenId>& run) override {
    const std::vector<TokenId> tokens = matcher_.draft(tokenizer_, most);
    run.insert(run.end(), tokens.begin(), tokens.end());
  }

 private:
  const Tokenizer& tokenizer_;
  GrammarMatcher matcher_;
};

class BudgetAndGrammar final : public TokenRules {
 public:
  BudgetAndGrammar(const Tokenizer& tokenizer, const ThinkingBudgetOptions& budget, std::shared_ptr<const TokenGrammar> grammar, MatcherOptions options)
      : tokenizer_(tokenizer), budget_(budget), matcher_(std::move(grammar), std::move(options)), both_(budget_, matcher_) {}
  TokenMask mask() override { return both_.mask(); }
  bool allows(TokenId token) override { return both_.allows(token); }
  bool advance(TokenId token) override { return both_.advance(token); }
  int64_t depth() const override { return both_.depth(); }
  void rewind(int64_t depth) override { both_.rewind(depth); }
  // A budget that has run out puts the grammar's beginning right behind its mark.
  void foresee(size_t most, std::vector<TokenId>& run) override {
    if (most == 0) return;
    const int64_t begin = both_.depth();
    if (budget_.must_end()) {
      run.push_back(budget_.end_mark());
      both_.advance(run.back());
      --most;
    }
    const std::vector<TokenId> tokens = matcher_.draft(tokenizer_, most);
    run.insert(run.end(), tokens.begin(), tokens.end());
    both_.rewind(begin);
  }

 private:
  const Tokenizer& tokenizer_;
  ThinkingBudget budget_;
  GrammarMatcher matcher_;
  AllRules<ThinkingBudget, GrammarMatcher> both_;
};

// How the model spells calls: as its template spells them.
ToolCallForm call_form(const ModelText& text) {
  if (!text.chat_template) return ToolCallForm::kXml;
  const OrderedJson messages = OrderedJson::parse(
      R"([{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":{"b":1}}}]}])");
  const auto rendered = text.chat_template->render(messages, nullptr, {.add_generation_prompt = false});
  return rendered && rendered->text.find("<function=f>") == std::string::npos && rendered->text.find("\"arguments\"") != std::string::npos ? ToolCallForm::kJson : ToolCallForm::kXml;
}

Result<Grammar> grammar_of_tools(const GrammarSpec& spec, const ModelText& text) {
  std::vector<ToolSchema> tools;
  for (const OrderedJson& tool : spec.schema) {
    const OrderedJson& function = tool.at("function");
    tools.push_back({.name = function.at("name").get<std::string>(), .parameters = function.value("parameters", OrderedJson())});
  }
  const auto tag = [&](const char* name) {
    const auto id = text.tokenizer->find(name);
    return id && text.tokenizer->is_added(*id) ? id : std::nullopt;
  };
  return tool_grammar(tools, {.form = call_form(text),
                              .open_tag = tag("<tool_call>"), .close_tag = tag("</tool_call>"),
                              .least_calls = spec.call_required ? 1u : 0u, .most_calls = spec.parallel ? Expression::kUnbounded : 1u,
                              .text_before = !spec.call_required, .schema_limits = {.ignore_unknown = true}});
}

}  // namespace

struct RuleMaker::State {
  const ModelText& text;
  int vocab;
  std::shared_ptr<const GrammarVocabulary> vocabulary;  // made with the first grammar
  struct Kept {
    std::string key;
    std::shared_ptr<const TokenGrammar> grammar;
    bool prepared = false;
  };
  std::list<Kept> kept;  // most recently used first

  Result<Grammar> compile(const GrammarSpec& spec) const {
    switch (spec.kind) {
      case GrammarSpec::Kind::kJsonObject: return json_object_grammar();
      case GrammarSpec::Kind::kRegex: return regex_grammar(spec.regex);
      case GrammarSpec::Kind::kTools: return grammar_of_tools(spec, text);
      case GrammarSpec::Kind::kJsonSchema: break;
    }
    return json_schema_grammar(spec.schema);
  }

  Result<std::shared_ptr<const TokenGrammar>> grammar(const GrammarSpec& spec) {
    if (!text.tokenizer) return Error{ErrorCode::kUsage, "a constrained answer needs a tokenizer, and this model has none"};
    const std::string key = std::to_string(static_cast<int>(spec.kind)) + (spec.call_required ? "r" : "o") + (spec.parallel ? "p" : "s") + spec.regex + "\n" + spec.schema.dump();
    for (auto it = kept.begin(); it != kept.end(); ++it)
      if (it->key == key) {
        kept.splice(kept.begin(), kept, it);
        return it->grammar;
      }
    ASSIGN_OR_RETURN(Grammar compiled, compile(spec));
    if (!vocabulary) vocabulary = std::make_shared<const GrammarVocabulary>(GrammarVocabulary::from_tokenizer(*text.tokenizer, vocab));
    kept.push_front({.key = key, .grammar = std::make_shared<const TokenGrammar>(std::move(compiled), vocabulary)});
    if (kept.size() > kKeptGrammars) kept.pop_back();
    return kept.front().grammar;
  }
};

RuleMaker::RuleMaker(const ModelText& text, int vocab) : state_(new State{text, vocab, nullptr, {}}) {}
RuleMaker::~RuleMaker() = default;

Result<std::unique_ptr<TokenRules>> RuleMaker::make(const Submission& s) {
  const auto begin = state_->text.think_begin(), end = state_->text.think_end();
  std::optional<ThinkingBudgetOptions> budget;
  if (s.thinking_budget && !s.raw && begin && end)
    budget = ThinkingBudgetOptions{.think_begin = *begin, .think_end = *end, .in_reasoning = s.in_reasoning, .tokens = *s.thinking_budget, .vocab = state_->vocab};
  if (!s.grammar) return budget ? std::unique_ptr<TokenRules>(std::make_unique<BudgetRules>(*budget)) : nullptr;
  ASSIGN_OR_RETURN(auto grammar, state_->grammar(*s.grammar));
  MatcherOptions options{.enders = state_->text.stop_tokens, .starts_after = s.in_reasoning ? end : std::nullopt};
  if (budget && s.in_reasoning) return std::unique_ptr<TokenRules>(std::make_unique<BudgetAndGrammar>(*state_->text.tokenizer, *budget, std::move(grammar), std::move(options)));
  return std::unique_ptr<TokenRules>(std::make_unique<GrammarRules>(*state_->text.tokenizer, std::move(grammar), std::move(options)));
}

void RuleMaker::prepare(const std::function<bool()>& go_on) {
  for (State::Kept& kept : state_->kept)
    if (!kept.prepared && !(kept.prepared = kept.grammar->prepare(go_on))) return;
}

}  // namespace foretoken::serve
