// What the rules of a request leave no choice about, as a draft. It needs neither weights nor memory, and proposes
// nothing where there are no rules or they foresee nothing.
#include <algorithm>

#include "decode/drafter.h"
#include "decode/path_rules.h"

namespace foretoken {
namespace {

class GrammarDrafter final : public Drafter {
 public:
  Route route() const override { return Route::kGrammar; }
  const DrafterNeeds& needs() const override { return needs_; }
  int deepest() const override { return kMaxNodes; }
  void restart(std::span<const TokenId>) override {}
  void observe(const Committed&) override {}

  void propose(const DraftRequest& request, Draft& draft) override {
    draft.by = Route::kGrammar;
    if (request.rules == nullptr) return;
    run_.clear();
    request.rules->foresee(static_cast<size_t>(std::min(request.depth, request.nodes)), run_);
    for (const TokenId token : run_) draft.add(token, static_cast<int>(draft.nodes.size()) - 1, kForeseen);
  }

 private:
  DrafterNeeds needs_;
  std::vector<TokenId> run_;
};

}  // namespace

std::unique_ptr<Drafter> make_grammar_drafter() { return std::make_unique<GrammarDrafter>(); }

}  // namespace foretoken
