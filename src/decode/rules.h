// TokenRules: what allows, forbids and ends an answer token by token: grammars, thinking budgets, tool calls. The walk asks at each
// row and advances at each emitted token, so a rule takes effect at the exact token whatever was drafted. Drafters ask what they allow and
// foresee along drafted paths. It does not choose.
#pragma once

#include <vector>

#include "decode/sampling.h"

namespace foretoken {

class TokenRules {
 public:
  virtual ~TokenRules() = default;

  // The tokens that may come next; empty means all. Valid until the next call of any member.
  virtual TokenMask mask() = 0;
  // Whether `token` may come next: the bit of mask(), asked for single drafted tokens.
  virtual bool allows(TokenId token) = 0;
  // `token` comes next. True ends the answer with it.
  virtual bool advance(TokenId token) = 0;

  // Looking ahead along drafted tokens without copies: note the depth, advance, come back. `rewind(d)` undoes the latest advances
  // until depth() == d; only the answer's own end is ever passed as accepted.
  virtual int64_t depth() const = 0;
  virtual void rewind(int64_t depth) = 0;

  // Appends to `run` at most `most` tokens that will come next as far as the rules alone can tell: names, brackets, the end. A guess for
  // drafts, never a reason to emit: other tokens may spell the same text. Rules that only forbid foresee nothing.
  virtual void foresee(size_t most, std::vector<TokenId>& run) {
    (void)most;
    (void)run;
  }
};

}  // namespace foretoken
