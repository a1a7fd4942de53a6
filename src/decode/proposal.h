// Proposal: guessed tokens that may follow the anchor, as a tree. Plain decoding is the empty proposal. It does not know whether a
// guess is right.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "numerics/dtype.h"

namespace foretoken {

class Proposal {
 public:
  // Node `i` follows node `parent` (-1: the anchor), which must exist already. Returns the node's index.
  int add(TokenId token, int parent) {
    CHECK(parent >= -1);
    CHECK(parent < size());
    tokens_.push_back(token);
    row_parent_.push_back(static_cast<int16_t>(parent + 1));
    return size() - 1;
  }
  int size() const { return static_cast<int>(tokens_.size()); }
  bool empty() const { return tokens_.empty(); }
  TokenId token(int node) const { return tokens_[static_cast<size_t>(node)]; }
  int parent(int node) const { return row_parent_[static_cast<size_t>(node) + 1] - 1; }

  // Parents of the batch rows: row 0 is the anchor, row i + 1 is node i. As LaneRows::parent.
  std::span<const int16_t> row_parents() const { return row_parent_; }

 private:
  std::vector<TokenId> tokens_;
  std::vector<int16_t> row_parent_ = {-1};
};

}  // namespace foretoken
