// The walk: the target's token at a row picks the child that carries it; without one, that token is the answer's next anchor.
#include "decode/verifier.h"

namespace foretoken {

Result<Accepted> Verifier::accept(const Proposal& proposal, int64_t budget,
                                  const std::function<Result<TokenId>(int row, int offset)>& choose,
                                  const std::function<bool(TokenId)>& emit) {
  CHECK(budget >= 1);
  std::vector<TokenId> tokens;
  std::vector<int> rows;
  int row = 0;
  for (;;) {
    ASSIGN_OR_RETURN(const TokenId token, choose(row, static_cast<int>(tokens.size())));
    tokens.push_back(token);
    rows.push_back(row);
    if (emit(token)) return Accepted(std::move(tokens), std::move(rows), true);
    if (static_cast<int64_t>(tokens.size()) == budget) break;
    int child = -1;
    for (int node = 0; node < proposal.size() && child < 0; ++node)
      if (proposal.parent(node) == row - 1 && proposal.token(node) == token) child = node + 1;
    if (child < 0) break;
    row = child;
  }
  return Accepted(std::move(tokens), std::move(rows), false);
}

}  // namespace foretoken
