// Parts ids and forced: speculative answers on a lane of their own against plain decoding, by the bundle's drafters and by drafters that are
// right or wrong on purpose.
#include <fmt/format.h>

#include <algorithm>

#include "qualify/certifier.h"

namespace foretoken {
namespace {

// The seed of a prompt's answers; `round` gives it others.
SamplingParams sampling_of(float temperature, size_t prompt, uint64_t round = 0) {
  return certify_sampling(temperature, 0x9E3779B97F4A7C15ull * (prompt + 1) + round);
}

// Guesses taken from a plain answer, bent on purpose.
class ForcedDrafter final : public Drafter {
 public:
  enum class Kind : uint8_t { kRight, kWrong, kRandom, kTurning, kBranching };
  ForcedDrafter(Kind kind, size_t prompt, const Tokens& answer, int vocab, int turn)
      : kind_(kind), prompt_(prompt), answer_(answer), vocab_(vocab), turn_(turn), random_(static_cast<uint64_t>(turn) + 17) {}

  Route route() const override { return Route::kScripted; }
  const DrafterNeeds& needs() const override { return needs_; }
  int deepest() const override { return kMtpDepth; }
  void restart(std::span<const TokenId>) override {}
  void observe(const Committed&) override {}
  void propose(const DraftRequest& request, Draft& draft) override {
    draft.by = Route::kScripted;
    const size_t at = static_cast<size_t>(request.position) - prompt_;
    for (int i = 0, parent = -1; i < request.depth && static_cast<int>(draft.nodes.size()) < request.nodes; ++i) {
      const size_t index = at + static_cast<size_t>(i);
      if (index >= answer_.size()) break;
      const TokenId right = answer_[index], wrong = (right + 1) % vocab_;
      const TokenId any = static_cast<TokenId>(random_.below(static_cast<uint32_t>(vocab_)));
      switch (kind_) {
        case Kind::kRight: parent = draft.add(right, parent, 0.9f); break;
        case Kind::kWrong: parent = draft.add(wrong, parent, 0.9f); break;
        case Kind::kRandom: parent = draft.add(random_.below(2) ? right : any, parent, 0.5f); break;
        case Kind::kTurning: parent = draft.add(i < turn_ ? right : wrong, parent, 0.9f); break;
        case Kind::kBranching: {  // a wrong sibling before the right one, at every step
          draft.add(wrong, parent, 0.6f, 0);
          if (static_cast<int>(draft.nodes.size()) < request.nodes) parent = draft.add(right, parent, 0.4f, 1);
          break;
        }
      }
    }
  }

 private:
  Kind kind_;
  size_t prompt_;
  const Tokens& answer_;
  int vocab_, turn_;
  Random random_;
  DrafterNeeds needs_;
};

// One route, or all routes under the controller when `routes` is empty.
Status route_cell(Certifier& c, std::vector<Route> routes, VerifyMode mode, float temperature) {
  const bool together = routes.empty();
  CertifyCell cell{.part = "ids", .name = fmt::format("{} {} T={:g}", together ? "all routes" : std::string(route_name(routes[0])), verify_mode_name(mode), temperature)};
  const SpeculationOptions speculation = together ? SpeculationOptions{.verify = mode} : pinned_plan(routes[0], mode);
  if (together) routes = {Route::kBlock, Route::kMtp, Route::kCopy};
  int answers = 0;
  const int most = c.options().most_answers;
  for (uint64_t round = 0; answers < most; ++round) {
    if (round > 0 && temperature == 0) break;  // greedy answers do not change with the seed
    for (size_t p = 0; p < c.prompts() && answers < most; ++p, ++answers) {
      const SamplingParams sampling = sampling_of(temperature, p, round);
      ASSIGN_OR_RETURN(const PlainAnswer* expected, c.plain(c.prompt(p), sampling, c.options().tokens));
      ASSIGN_OR_RETURN(const Certifier::Outcome got,
                       c.answer(c.prompt(p), sampling, c.options().tokens,
                                {.drafters = c.drafts().make(routes), .options = speculation, .memory = together ? &c.drafts().memory() : nullptr}));
      c.compare(cell, *expected, got, p);
      for (const Route route : routes) {
        const SpeculationCounters::Of& of = got.counters.of(route);
        cell.drafted += of.drafted;
        cell.rejected += of.verified - of.accepted;
      }
      if (cell.verdict == Verdict::kFail || (c.options().quick && c.enough(cell))) break;
    }
    if (cell.verdict == Verdict::kFail || c.enough(cell)) break;
  }
  // The controller may rightly decode plainly on a machine where drafting does not pay, so its cell has no minimum.
  if (!together) c.demand_enough(cell);
  return c.finish(std::move(cell));
}

Status forced_cell(Certifier& c, ForcedDrafter::Kind kind, const char* name, float temperature) {
  using Kind = ForcedDrafter::Kind;
  CertifyCell cell{.part = "forced", .name = fmt::format("{} T={:g}", name, temperature)};
  const bool tree = kind == Kind::kBranching, right = kind == Kind::kRight;
  const auto enough = [&] { return right ? cell.drafted >= c.options().least_drafted : c.enough(cell); };
  for (size_t p = 0; p < std::min<size_t>(c.prompts(), 3) && !(c.options().quick && enough()); ++p)
    for (int turn = 0; turn < (kind == Kind::kTurning ? 12 : 1); ++turn) {
      ASSIGN_OR_RETURN(const PlainAnswer* expected, c.plain(c.prompt(p), sampling_of(temperature, p), c.options().tokens));
      Speculation s{.options = {.verify = tree ? VerifyMode::kTree : VerifyMode::kChain, .width = tree ? 20 : 12}};
      s.drafters.push_back(std::make_unique<ForcedDrafter>(kind, c.prompt(p).size(), expected->tokens, c.target().config().vocab, turn));
      ASSIGN_OR_RETURN(const Certifier::Outcome got, c.answer(c.prompt(p), sampling_of(temperature, p), c.options().tokens, std::move(s)));
      c.compare(cell, *expected, got, p);
      const SpeculationCounters::Of& of = got.counters.of(Route::kScripted);
      cell.drafted += of.drafted;
      cell.rejected += of.verified - of.accepted;
    }
  // A drafter that is always right has nothing rejected.
  if (!right) c.demand_enough(cell);
  else if (cell.verdict == Verdict::kPass && !enough()) {
    cell.verdict = Verdict::kInconclusive;
    cell.detail = fmt::format("{} drafted tokens are too few", cell.drafted);
  }
  return c.finish(std::move(cell));
}

}  // namespace

Status certify_ids(Certifier& c) {
  for (const Route route : c.routes())
    for (const VerifyMode mode : {VerifyMode::kChain, VerifyMode::kLive, VerifyMode::kTree})
      for (const float temperature : {0.0f, 0.7f, 1.0f}) TRY(route_cell(c, {route}, mode, temperature));
  for (const float temperature : {0.0f, 1.0f}) TRY(route_cell(c, {}, VerifyMode::kAuto, temperature));
  return certify_grammar(c);
}

// Drafters that are right, wrong, random, right up to every offset, and right in the second branch.
Status certify_forced(Certifier& c) {
  using Kind = ForcedDrafter::Kind;
  const std::pair<Kind, const char*> kinds[] = {{Kind::kRight, "always right"}, {Kind::kWrong, "always wrong"}, {Kind::kRandom, "random"},
                                                {Kind::kTurning, "right, then wrong at every offset"}, {Kind::kBranching, "right in the second branch"}};
  for (const auto& [kind, name] : kinds)
    for (const float temperature : {0.0f, 1.0f}) TRY(forced_cell(c, kind, name, temperature));
  return {};
}

}  // namespace foretoken
