// The walk: the target's token at a row picks the child that carries it; without one, that token is the answer's next anchor.
#include "decode/verifier.h"

namespace foretoken {

Result<Accepted> Verifier::accept(const Proposal& proposal, int64_t budget,
                                  const std::function<Result<TokenId>(int row, int offset)>& choose,
                                  const std::function<bool(TokenId)>& emit) {
  CHECK(budget >= 1);
  std::vector<TokenId> tokens;
  std::vector<int> rows;
  for (int node = -1;;) {
    const int row = node + 1;
    const Result<TokenId> token = choose(row, static_cast<int>(tokens.size()));
    if (!token && tokens.empty()) return token.error();
    if (!token) return Accepted(std::move(tokens), std::move(rows), false);
    tokens.push_back(*token);
    rows.push_back(row);
    node = proposal.child(node, *token);
    if (emit(*token)) return Accepted(std::move(tokens), std::move(rows), true);
    if (node < 0 || static_cast<int64_t>(tokens.size()) == budget)
      return Accepted(std::move(tokens), std::move(rows), false);
  }
}

}  // namespace foretoken
