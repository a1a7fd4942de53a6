// Rules with runs that they foresee: every fourth token begins one, in which two tokens may come at each place, and the
// first of them is what they guess. So guesses come true or not as the model likes. Test-only.
#pragma once

#include <vector>

#include "base/check.h"
#include "decode/rules.h"

namespace foretoken::test {

class RunRules final : public TokenRules {
 public:
  // `ends`: tokens of an answer; 0: the rules do not end it.
  explicit RunRules(int vocab, int64_t ends = 0)
      : vocab_(vocab), ends_(ends), bits_(static_cast<size_t>((vocab + 63) / 64)) {}

  TokenMask mask() override {
    std::fill(bits_.begin(), bits_.end(), 0);
    for (TokenId t = 0; t < vocab_; ++t)
      if (allows(t)) bits_[static_cast<size_t>(t / 64)] |= uint64_t{1} << (t % 64);
    return bits_;
  }
  bool allows(TokenId token) override {
    if (trail_.back().left == 0) return (token + depth()) % 3 != 0;
    return token == first() || token == (first() + 1) % vocab_;
  }
  bool advance(TokenId token) override {
    CHECK(allows(token));
    const int left = trail_.back().left > 0 ? trail_.back().left - 1 : token % 4 == 0 ? kRun : 0;
    trail_.push_back({token, left});
    return depth() == ends_;
  }
  int64_t depth() const override { return static_cast<int64_t>(trail_.size()) - 1; }
  void rewind(int64_t depth) override {
    CHECK(depth <= this->depth());
    trail_.resize(static_cast<size_t>(depth) + 1);
  }
  void foresee(size_t most, std::vector<TokenId>& run) override {
    TokenId last = trail_.back().token;
    for (int i = 0; i < trail_.back().left && most > 0; ++i, --most) run.push_back(last = (last * 7 + 3) % vocab_);
  }

 private:
  static constexpr int kRun = 4;
  struct Place {
    TokenId token;
    int left;  // of the run
  };
  TokenId first() const { return (trail_.back().token * 7 + 3) % vocab_; }

  int vocab_;
  int64_t ends_;
  std::vector<uint64_t> bits_;
  std::vector<Place> trail_ = {{0, 0}};
};

}  // namespace foretoken::test
