// ThinkingBudget: ends reasoning at the exact token. When as many tokens have been reasoned as are allowed, the mark that ends reasoning is
// the only token that may come. The shape is that of a decoder's rules (mask, allows, advance, depth, rewind), so it holds along drafted
// tokens; AllRules joins it with others, such as a grammar that begins behind the mark.
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "text/tokenizer.h"

namespace foretoken {

struct ThinkingBudgetOptions {
  TokenId think_begin = -1, think_end = -1;
  bool in_reasoning = true;  // the prompt ends inside an open <think>
  int64_t tokens = 0;        // that may be reasoned, in all; the marks are not counted
  int vocab = 0;             // rows of the mask
};

class ThinkingBudget {
 public:
  explicit ThinkingBudget(const ThinkingBudgetOptions& options) : options_(options) {
    CHECK(options.tokens >= 0);
    CHECK(options.think_end >= 0);
    CHECK(options.think_end < options.vocab);
    only_end_.assign((static_cast<size_t>(options.vocab) + 63) / 64, 0);
    only_end_[static_cast<size_t>(options.think_end) / 64] |= uint64_t{1} << (options.think_end % 64);
    trail_.push_back({options.in_reasoning, 0});
  }

  // Empty: all may come.
  std::span<const uint64_t> mask() const { return must_end() ? std::span<const uint64_t>(only_end_) : std::span<const uint64_t>(); }
  bool allows(TokenId token) const { return !must_end() || token == options_.think_end; }
  // A budget ends no answer.
  bool advance(TokenId token) {
    Place place = trail_.back();
    if (place.reasoning && token == options_.think_end) place.reasoning = false;
    else if (place.reasoning) ++place.used;
    else if (token == options_.think_begin) place.reasoning = true;
    trail_.push_back(place);
    return false;
  }
  int64_t depth() const { return static_cast<int64_t>(trail_.size()) - 1; }
  void rewind(int64_t depth) {
    CHECK(depth >= 0);
    CHECK(depth <= this->depth());
    trail_.resize(static_cast<size_t>(depth) + 1);
  }

  TokenId end_mark() const { return options_.think_end; }
  bool must_end() const { return trail_.back().reasoning && trail_.back().used >= options_.tokens; }
  int64_t used() const { return trail_.back().used; }

 private:
  struct Place {
    bool reasoning;
    int64_t used;
  };
  ThinkingBudgetOptions options_;
  std::vector<uint64_t> only_end_;
  std::vector<Place> trail_;  // at each depth
};

// Several rules at once: a token may come when all allow it, and the answer ends when one ends it. The parts are borrowed.
template <class... Rules>
class AllRules {
 public:
  explicit AllRules(Rules&... rules) : rules_(rules...) {}

  std::span<const uint64_t> mask() {
    std::span<const uint64_t> joined;
    std::apply([&](auto&... rule) { (join(joined, rule.mask()), ...); }, rules_);
    return joined;
  }
  bool allows(TokenId token) {
    return std::apply([&](auto&... rule) { return (rule.allows(token) && ...); }, rules_);
  }
  bool advance(TokenId token) {
    return std::apply([&](auto&... rule) { return (static_cast<int>(rule.advance(token)) | ...) != 0; }, rules_);
  }
  int64_t depth() const { return std::get<0>(rules_).depth(); }
  void rewind(int64_t depth) {
    std::apply([&](auto&... rule) { (rule.rewind(depth), ...); }, rules_);
  }

 private:
  void join(std::span<const uint64_t>& joined, std::span<const uint64_t> mask) {
    if (mask.empty()) return;
    if (joined.empty()) {
      joined = mask;
      return;
    }
    CHECK(mask.size() == joined.size());
    both_.resize(mask.size());
    for (size_t i = 0; i < mask.size(); ++i) both_[i] = joined[i] & mask[i];
    joined = both_;
  }

  std::tuple<Rules&...> rules_;
  std::vector<uint64_t> both_;
};

}  // namespace foretoken
