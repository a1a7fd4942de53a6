// PathRules: a request's rules behind one drafted path, for whoever grows it: what may follow, and what they foresee.
// It stands there as long as it lives and leaves the rules as they were. It ranks and proposes nothing.
#pragma once

#include <span>
#include <vector>

#include "decode/rules.h"

namespace foretoken {

class PathRules {
 public:
  // `path`: tokens that the rules allow one after the other.
  PathRules(TokenRules& rules, std::span<const TokenId> path) : rules_(rules), begin_(rules.depth()) {
    for (const TokenId token : path) ended_ = rules_.advance(token);
  }
  PathRules(const PathRules&) = delete;
  PathRules& operator=(const PathRules&) = delete;
  ~PathRules() { rules_.rewind(begin_); }

  bool ended() const { return ended_; }  // the answer ends with the path
  TokenMask mask() { return rules_.mask(); }
  bool allows(TokenId token) { return rules_.allows(token); }
  void foresee(size_t most, std::vector<TokenId>& run) { rules_.foresee(most, run); }

 private:
  TokenRules& rules_;
  int64_t begin_;
  bool ended_ = false;
};

}  // namespace foretoken
