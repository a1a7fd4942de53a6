// Verifier: the only maker of Accepted, and so the only thing that can add tokens to a sequence. It walks a proposal along the
// target's own tokens; chain, live prefix, tree, greedy and sampled are one walk. It does not know where a proposal came from.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "decode/proposal.h"

namespace foretoken {

// A path the target agreed to.
class Accepted {
 public:
  std::span<const TokenId> tokens() const { return tokens_; }  // accepted proposals, then the target's own next token; never empty
  std::span<const int> rows() const { return rows_; }          // rows to commit, the anchor's first, ascending; as many as tokens
  bool stopped() const { return stopped_; }                    // the last token ended the answer
  int accepted() const { return static_cast<int>(tokens_.size()) - 1; }  // proposals committed

 private:
  friend class Verifier;
  Accepted(std::vector<TokenId> tokens, std::vector<int> rows, bool stopped)
      : tokens_(std::move(tokens)), rows_(std::move(rows)), stopped_(stopped) {}
  std::vector<TokenId> tokens_;
  std::vector<int> rows_;
  bool stopped_;
};

class Verifier {
 public:
  // `choose(row, offset)`: the target's token after batch row `row` (0 is the anchor), `offset` tokens after the anchor's
  // successor; called along the walked path only, in order.
  // `emit(token)`: called once per emitted token, in order, before the next choice; true ends the answer with it.
  // `budget` >= 1 tokens at most.
  // An error of `choose` behind the first token ends the walk before it: the next cycle meets it at its anchor, exactly where plain
  // decoding does.
  static Result<Accepted> accept(const Proposal& proposal, int64_t budget,
                                 const std::function<Result<TokenId>(int row, int offset)>& choose,
                                 const std::function<bool(TokenId)>& emit);
};

}  // namespace foretoken
