// Proposal: guessed tokens that may follow the anchor, as a tree with the drafters' own estimates, and how the branches of several
// drafters become one tree. Plain decoding is the empty proposal. It does not know whether a guess is right.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "numerics/dtype.h"

namespace foretoken {

enum class Route : uint8_t { kCopy, kMtp, kBlock, kGrammar, kScripted };
inline constexpr int kRoutes = 5;
std::string_view route_name(Route kind);  // "copy", "mtp", "dflash", "grammar", "scripted"

// Most proposed nodes of one cycle; with the anchor they fit a lane's tape.
inline constexpr int kMaxNodes = 64;

// What one drafter guesses: a tree whose parents come before their children (-1: the anchor). `probability` estimates that the
// target picks the node once it has picked its parent. `rank` is the node's place among its siblings, 0 for the best. `by`: the
// drafter, or the grammar where that is who knew.
struct DraftNode {
  TokenId token = -1;
  int parent = -1;
  float probability = 0;
  int rank = 0;
  Route by = Route::kScripted;
};
struct Draft {
  Route by = Route::kScripted;
  std::vector<DraftNode> nodes;

  int add(TokenId token, int parent, float probability, int rank = 0) { return add(token, parent, probability, rank, by); }
  int add(TokenId token, int parent, float probability, int rank, Route who) {
    CHECK(parent < static_cast<int>(nodes.size()));
    nodes.push_back({token, parent, probability, rank, who});
    return static_cast<int>(nodes.size()) - 1;
  }
  bool empty() const { return nodes.empty(); }
};

class Proposal {
 public:
  // Node `i` follows node `parent` (-1: the anchor), which must exist already. A child that is there already is shared: its
  // drafters are joined and its index returned.
  int add(TokenId token, int parent, float probability = 1.0f, Route by = Route::kScripted, int rank = 0);

  int size() const { return static_cast<int>(nodes_.size()); }
  bool empty() const { return nodes_.empty(); }
  TokenId token(int node) const { return at(node).token; }
  int parent(int node) const { return row_parent_[static_cast<size_t>(node) + 1] - 1; }
  int depth(int node) const { return at(node).depth; }  // 1: follows the anchor
  int rank(int node) const { return at(node).rank; }
  float probability(int node) const { return at(node).probability; }  // given its parent
  float cumulative(int node) const { return at(node).cumulative; }    // of the whole path down to it
  Route by(int node) const { return at(node).by; }              // who proposed it first: counters go there
  bool proposed_by(int node, Route kind) const { return at(node).drafters >> static_cast<int>(kind) & 1; }

  // The child of `node` (-1: the anchor) that carries `token`, or -1. Siblings are few, so this is a short walk.
  int child(int node, TokenId token) const;
  int first_child(int node) const { return node < 0 ? root_child_ : at(node).first_child; }
  int next_sibling(int node) const { return at(node).next_sibling; }

  // Keeps the first `count` nodes; parents come first, so what remains is a tree.
  void truncate(int count);

  // Parents of the batch rows: row 0 is the anchor, row i + 1 is node i. Empty for a pure chain. As LaneRows::parent.
  std::span<const int16_t> row_parents() const { return is_chain() ? std::span<const int16_t>{} : row_parent_; }
  bool is_chain() const { return branches_ == 0; }

 private:
  struct Node {
    TokenId token;
    float probability, cumulative;
    int depth, rank;
    int first_child, next_sibling;
    Route by;
    uint8_t drafters;  // bit per Route
  };
  const Node& at(int node) const { return nodes_[static_cast<size_t>(node)]; }
  void link(int node, int parent);

  std::vector<Node> nodes_;
  std::vector<int16_t> row_parent_ = {-1};
  int root_child_ = -1;
  int branches_ = 0;  // nodes that do not follow their predecessor
};

// How `merge` chooses among the drafters' nodes.
struct MergeLimits {
  int nodes = kMaxNodes;      // at most
  int depth = kMaxNodes;      // at most, for a token budget
  int seed_chain = 0;         // nodes of the first draft's best chain that are taken before anything else
  bool chain_only = false;    // one chain: the best next node, again and again
};

// One tree of the drafts' branches. Equal prefixes are shared; a node that several drafters propose counts as independent evidence
// for it (1 - product of the doubts), and siblings whose probabilities exceed 1 together share it. Nodes come in the order of falling cumulative probability behind the seeded chain, so every
// leading part is the best tree of its size. Deterministic: ties go to the earlier draft and node.
Proposal merge(std::span<const Draft> drafts, const MergeLimits& limits);

}  // namespace foretoken
