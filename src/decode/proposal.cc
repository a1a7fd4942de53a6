// Trees of guesses: building, sharing, merging.
#include "decode/proposal.h"

#include <algorithm>
#include <limits>
#include <queue>

namespace foretoken {

std::string_view route_name(Route kind) {
  switch (kind) {
    case Route::kCopy: return "copy";
    case Route::kMtp: return "mtp";
    case Route::kBlock: return "dflash";
    case Route::kGrammar: return "grammar";
    case Route::kScripted: return "scripted";
  }
  return "";
}

int Proposal::child(int node, TokenId token) const {
  int c = first_child(node);
  while (c >= 0 && at(c).token != token) c = at(c).next_sibling;
  return c;
}

void Proposal::link(int node, int parent) {
  int* slot = parent < 0 ? &root_child_ : &nodes_[static_cast<size_t>(parent)].first_child;
  while (*slot >= 0) slot = &nodes_[static_cast<size_t>(*slot)].next_sibling;
  *slot = node;
  branches_ += parent != node - 1;
}

int Proposal::add(TokenId token, int parent, float probability, Route by, int rank) {
  CHECK(parent >= -1);
  CHECK(parent < size());
  const uint8_t bit = static_cast<uint8_t>(1u << static_cast<int>(by));
  if (const int shared = child(parent, token); shared >= 0) {
    nodes_[static_cast<size_t>(shared)].drafters |= bit;
    return shared;
  }
  const int node = size();
  CHECK(node < std::numeric_limits<int16_t>::max());
  const float above = parent < 0 ? 1.0f : at(parent).cumulative;
  nodes_.push_back({.token = token, .probability = probability, .cumulative = above * probability,
                    .depth = parent < 0 ? 1 : at(parent).depth + 1, .rank = rank, .first_child = -1, .next_sibling = -1,
                    .by = by, .drafters = bit});
  row_parent_.push_back(static_cast<int16_t>(parent + 1));
  link(node, parent);
  return node;
}

void Proposal::truncate(int count) {
  CHECK(count >= 0);
  if (count >= size()) return;
  nodes_.resize(static_cast<size_t>(count));
  row_parent_.resize(static_cast<size_t>(count) + 1);
  root_child_ = -1;
  branches_ = 0;
  for (Node& node : nodes_) node.first_child = node.next_sibling = -1;
  for (int node = 0; node < count; ++node) link(node, parent(node));
}

namespace {

// All drafts' nodes with equal prefixes shared, before any choice.
struct Union {
  struct Node {
    TokenId token;
    float doubt;  // product over its drafters of (1 - probability)
    float probability;
    int rank;
    Route by;
    uint8_t drafters;
    std::vector<int> children;
  };
  std::vector<Node> nodes = {Node{.token = -1, .doubt = 0, .probability = 1, .rank = 0, .by = Route::kScripted, .drafters = 0, .children = {}}};

  int child(int node, TokenId token) const {
    for (const int c : nodes[static_cast<size_t>(node)].children)
      if (nodes[static_cast<size_t>(c)].token == token) return c;
    return -1;
  }
  void add(const Draft& draft) {
    std::vector<int> place(draft.nodes.size());
    for (size_t i = 0; i < draft.nodes.size(); ++i) {
      const DraftNode& n = draft.nodes[i];
      const uint8_t bit = static_cast<uint8_t>(1u << static_cast<int>(n.by));
      const int parent = n.parent < 0 ? 0 : place[static_cast<size_t>(n.parent)];
      const float doubt = 1.0f - std::clamp(n.probability, 0.0f, 1.0f);
      int at = child(parent, n.token);
      if (at < 0) {
        at = static_cast<int>(nodes.size());
        nodes[static_cast<size_t>(parent)].children.push_back(at);
        nodes.push_back({.token = n.token, .doubt = doubt, .probability = 0, .rank = n.rank, .by = n.by, .drafters = bit, .children = {}});
      } else if (!(nodes[static_cast<size_t>(at)].drafters & bit)) {
        Node& shared = nodes[static_cast<size_t>(at)];
        shared.doubt *= doubt;
        shared.rank = std::min(shared.rank, n.rank);
        shared.drafters |= bit;
      }
      place[i] = at;
    }
  }
  // Drafters that disagree cannot all be right: siblings share what there is.
  void settle() {
    for (size_t i = 0; i < nodes.size(); ++i) {
      float sum = 0;
      for (const int c : nodes[i].children) sum += 1.0f - nodes[static_cast<size_t>(c)].doubt;
      for (const int c : nodes[i].children) {
        Node& child = nodes[static_cast<size_t>(c)];
        child.probability = (1.0f - child.doubt) / std::max(1.0f, sum);
      }
    }
  }
};

struct Open {
  float cumulative;
  int node;    // in the union
  int parent;  // in the proposal
};
// The queue's top: most probable, then first in the union.
struct Later {
  bool operator()(const Open& a, const Open& b) const {
    return a.cumulative != b.cumulative ? a.cumulative < b.cumulative : a.node > b.node;
  }
};

}  // namespace

Proposal merge(std::span<const Draft> drafts, const MergeLimits& limits) {
  Union all;
  for (const Draft& draft : drafts) all.add(draft);
  all.settle();
  Proposal proposal;
  std::priority_queue<Open, std::vector<Open>, Later> open;
  const auto open_children = [&](int node, int parent, float above, int except) {
    for (const int c : all.nodes[static_cast<size_t>(node)].children)
      if (c != except) open.push({above * all.nodes[static_cast<size_t>(c)].probability, c, parent});
  };
  const auto take = [&](int node, int parent) {
    const Union::Node& n = all.nodes[static_cast<size_t>(node)];
    const int added = proposal.add(n.token, parent, n.probability, n.by, n.rank);
    for (int kind = 0; kind < kRoutes; ++kind)
      if (n.drafters >> kind & 1) proposal.add(n.token, parent, n.probability, static_cast<Route>(kind), n.rank);
    return added;
  };

  // The chain of the first draft's best nodes; its siblings open as it goes.
  int node = 0, parent = -1;
  float above = 1.0f;
  if (!drafts.empty() && limits.seed_chain > 0) {
    const Draft& first = drafts.front();
    int draft_node = -1;
    for (int step = 0; step < limits.seed_chain && proposal.size() < limits.nodes && step < limits.depth; ++step) {
      int best = -1;
      for (int i = draft_node + 1; i < static_cast<int>(first.nodes.size()); ++i)
        if (first.nodes[static_cast<size_t>(i)].parent == draft_node &&
            (best < 0 || first.nodes[static_cast<size_t>(i)].rank < first.nodes[static_cast<size_t>(best)].rank))
          best = i;
      if (best < 0) break;
      const int next = all.child(node, first.nodes[static_cast<size_t>(best)].token);
      if (!limits.chain_only) open_children(node, parent, above, next);
      parent = take(next, parent);
      above = proposal.cumulative(parent);
      node = next;
      draft_node = best;
    }
  }
  open_children(node, parent, above, -1);
  while (!open.empty() && proposal.size() < limits.nodes) {
    const Open top = open.top();
    open.pop();
    const int depth = top.parent < 0 ? 1 : proposal.depth(top.parent) + 1;
    if (depth > limits.depth) continue;
    const int added = take(top.node, top.parent);
    if (limits.chain_only) open = {};
    open_children(top.node, added, proposal.cumulative(added), -1);
  }
  return proposal;
}

}  // namespace foretoken
