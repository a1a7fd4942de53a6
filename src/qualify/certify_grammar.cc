// Answers under token rules that foresee: what they know is drafted as the route `grammar`, alone and inside the model
// drafters' branches, and changes nothing. The rules are made up, so that no tokenizer is wanted and guesses come true
// about every second time for any model.
#include <fmt/format.h>

#include "qualify/certifier.h"

namespace foretoken {
namespace {

// Every fourth token begins a run of four, in which one of two tokens may come at each place; the first of them is what
// the rules foresee. Outside of runs a third of the vocabulary is forbidden, which third changes with the depth.
class TwoSpellings final : public TokenRules {
 public:
  explicit TwoSpellings(int vocab) : vocab_(vocab), bits_(static_cast<size_t>((vocab + 63) / 64)) {}

  TokenMask mask() override {
    std::fill(bits_.begin(), bits_.end(), 0);
    const auto allow = [&](TokenId token) { bits_[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64); };
    if (trail_.back().left > 0) {
      allow(foreseen(trail_.back().token));
      allow((foreseen(trail_.back().token) + 1) % vocab_);
    } else {
      for (TokenId token = 0; token < vocab_; ++token)
        if (allows(token)) allow(token);
    }
    return bits_;
  }
  bool allows(TokenId token) override {
    const TokenId first = foreseen(trail_.back().token);
    return trail_.back().left > 0 ? token == first || token == (first + 1) % vocab_ : (token + depth()) % 3 != 0;
  }
  bool advance(TokenId token) override {
    const int left = trail_.back().left;
    trail_.push_back({token, left > 0 ? left - 1 : token % 4 == 0 ? kRun : 0});
    return false;
  }
  int64_t depth() const override { return static_cast<int64_t>(trail_.size()) - 1; }
  void rewind(int64_t depth) override {
    CHECK(depth <= this->depth());
    trail_.resize(static_cast<size_t>(depth) + 1);
  }
  void foresee(size_t most, std::vector<TokenId>& run) override {
    TokenId token = trail_.back().token;
    for (int i = 0; i < trail_.back().left && most > 0; ++i, --most) run.push_back(token = foreseen(token));
  }

 private:
  static constexpr int kRun = 4;
  struct Place {
    TokenId token;
    int left;  // of the run
  };
  TokenId foreseen(TokenId token) const { return static_cast<TokenId>((int64_t{token} * 7 + 3) % vocab_); }

  int vocab_;
  std::vector<uint64_t> bits_;
  std::vector<Place> trail_ = {{0, 0}};
};

// `model`: the drafter that goes on behind what is foreseen; kGrammar: none.
Status grammar_cell(Certifier& c, Route model, VerifyMode mode, float temperature) {
  const bool alone = model == Route::kGrammar;
  CertifyCell cell{.part = "ids",
                   .name = fmt::format("{}grammar {} T={:g}", alone ? "" : std::string(route_name(model)) + "+",
                                       verify_mode_name(mode), temperature)};
  const std::vector<Route> routes =
      alone ? std::vector<Route>{Route::kGrammar} : std::vector<Route>{model, Route::kGrammar};
  int answers = 0;
  for (uint64_t round = 0; answers < c.options().most_answers && (round == 0 || temperature > 0); ++round)
    for (size_t p = 0; p < c.prompts() && answers < c.options().most_answers; ++p, ++answers) {
      const SamplingParams sampling = certify_sampling(temperature, 1000 * round + p + 1);
      TwoSpellings plain_rules(c.vocab()), rules(c.vocab());
      ASSIGN_OR_RETURN(const Certifier::Outcome expected,
                       c.answer(c.prompt(p), sampling, c.options().tokens, {}, States::kEnds, &plain_rules));
      ASSIGN_OR_RETURN(
          const Certifier::Outcome got,
          c.answer(c.prompt(p), sampling, c.options().tokens,
                   {.drafters = c.drafts().make(routes), .options = pinned_plan(model, mode)}, States::kEnds, &rules));
      c.compare(cell, expected.answer, got, p);
      const SpeculationCounters::Of& of = got.counters.of(Route::kGrammar);
      cell.drafted += of.drafted;
      cell.rejected += of.verified - of.accepted;
      if (cell.verdict == Verdict::kFail || c.enough(cell)) {
        c.demand_enough(cell);
        return c.finish(std::move(cell));
      }
    }
  c.demand_enough(cell);
  return c.finish(std::move(cell));
}

}  // namespace

Status certify_grammar(Certifier& c) {
  if (!c.drafts().has(Route::kGrammar)) return {};
  std::vector<Route> models = {Route::kGrammar};
  for (const Route route : c.routes())
    if (route != Route::kCopy) models.push_back(route);
  for (const Route model : models)
    for (const VerifyMode mode : {VerifyMode::kChain, VerifyMode::kTree})
      for (const float temperature : {0.0f, 1.0f}) TRY(grammar_cell(c, model, mode, temperature));
  return {};
}

}  // namespace foretoken
