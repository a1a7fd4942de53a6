// A drafter that is as sure of itself as the one it wraps, and always wrong: for what speculation may cost at worst.
#pragma once

#include <memory>

#include "decode/drafter.h"

namespace foretoken::bench {

// Takes another drafter's proposals and bends every token.
class WrongDrafter final : public Drafter {
 public:
  WrongDrafter(std::unique_ptr<Drafter> inner, int vocab) : inner_(std::move(inner)), vocab_(vocab) {}
  Route route() const override { return inner_->route(); }
  const DrafterNeeds& needs() const override { return inner_->needs(); }
  int deepest() const override { return inner_->deepest(); }
  void restart(std::span<const TokenId> history) override { inner_->restart(history); }
  void observe(const Committed& committed) override { inner_->observe(committed); }
  void propose(const DraftRequest& request, Draft& draft) override {
    inner_->propose(request, draft);
    for (DraftNode& n : draft.nodes) n.token = (n.token + 1) % vocab_;
  }
  int backlog() const override { return inner_->backlog(); }

 private:
  std::unique_ptr<Drafter> inner_;
  int vocab_;
};

}  // namespace foretoken::bench
