// A drafter that knows what each request will answer, and is right as often as it is told to be: realistic acceptance for a model that
// nobody can predict. It also checks that it is told exactly what the sequence holds. Test-only.
#pragma once

#include "decode/drafter.h"
#include "sim/sim_model.h"

namespace foretoken::sim {

class OracleDrafter final : public Drafter {
 public:
  OracleDrafter(const SimModel& model, double right, bool branching, uint64_t seed)
      : model_(model), right_(right), branching_(branching), random_(seed) {}

  Route route() const override { return Route::kScripted; }
  const DrafterNeeds& needs() const override { return needs_; }
  int deepest() const override { return kMtpDepth; }
  void restart(std::span<const TokenId> history) override {
    known_.assign(history.begin(), history.end());
    next_ = -1;
  }
  void observe(const Committed& c) override {
    CHECK(c.first == static_cast<int64_t>(known_.size()));
    CHECK(!c.tokens.empty());
    CHECK(next_ < 0 || c.tokens[0] == next_);
    known_.insert(known_.end(), c.tokens.begin(), c.tokens.end());
    next_ = c.next;
  }
  void propose(const DraftRequest& request, Draft& draft) override {
    CHECK(request.position == static_cast<int64_t>(known_.size()) + 1);
    CHECK(next_ < 0 || request.anchor == next_);
    const Answer* answer = model_.find(request.sampling->seed);
    CHECK(answer != nullptr);
    Ids all = answer->prompt;
    all.insert(all.end(), answer->tokens.begin(), answer->tokens.end());
    CHECK(known_.size() < all.size());
    CHECK(std::equal(known_.begin(), known_.end(), all.begin()));
    CHECK(request.anchor == all[known_.size()]);
    draft.by = Route::kScripted;
    int parent = -1;
    for (size_t at = known_.size() + 1; at < all.size() && static_cast<int>(draft.nodes.size()) < request.nodes; ++at) {
      if (static_cast<int>(at - known_.size()) > std::min(request.depth, deepest())) break;
      const bool right = random_.uniform() < right_;
      const TokenId wrong = random_.below(model_.vocab());
      const TokenId best = right ? all[at] : wrong;
      const int node = draft.add(best, parent, static_cast<float>(right_));
      if (branching_ && request.tree && best != all[at] && static_cast<int>(draft.nodes.size()) < request.nodes) {
        parent = draft.add(all[at], parent, static_cast<float>(1 - right_) / 2, 1);
      } else {
        parent = node;
      }
    }
  }

 private:
  const SimModel& model_;
  double right_;
  bool branching_;
  test::TestRandom random_;
  DrafterNeeds needs_;
  Ids known_;
  TokenId next_ = -1;
};

}  // namespace foretoken::sim
