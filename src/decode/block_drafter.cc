// Block diffusion as a drafter: tapped rows wait until a guess is wanted, then the context is extended and one block drafted. Its
// lattice of candidates becomes a chain, or the best tree of the wanted size, chain first. Several lanes go together in one block pass.
#include <algorithm>
#include <bit>
#include <numeric>
#include <queue>

#include "decode/drafter.h"

namespace foretoken {
namespace {

constexpr int kMaxBacklog = 256;  // rows that wait, and rows of one extension
constexpr int kJoinedRows = 64;   // rows that a lane of a group brings to the group's extension
constexpr int64_t kUsualRows = 8;  // of one member and cycle

class BlockDrafter final : public Drafter {
 public:
  explicit BlockDrafter(DflashModel& model)
      : model_(model), lane_(model.make_lane()), features_(model.pages().backend()), reach_(model.config().context_reach()) {
    needs_.tap_layers = model.config().taps;
  }

  Route route() const override { return Route::kBlock; }
  const DrafterNeeds& needs() const override { return needs_; }
  int deepest() const override { return model_.config().slots(model_.config().block_size); }
  int backlog() const override { return static_cast<int>(waiting()); }

  void restart(std::span<const TokenId> history) override {
    lane_->restart(static_cast<int64_t>(history.size()));
    first_waiting_ = lane_->end();
    features_.clear();
  }

  void observe(const Committed& c) override {
    CHECK(c.rows.size() == c.tokens.size());
    const int64_t end = c.first + static_cast<int64_t>(c.tokens.size());
    if (waiting() == 0 && first_waiting_ == 0) first_waiting_ = c.first;
    CHECK(c.first == first_waiting_ + waiting());
    // Rows before the first that a later row can see.
    const int64_t first_seen = reach_ >= 0 ? end + c.upcoming - reach_ : c.first;
    const int64_t unseen = std::clamp<int64_t>(first_seen - c.first, 0, static_cast<int64_t>(c.tokens.size()));
    if (unseen > 0) {
      features_.clear();
      first_waiting_ = c.first + unseen;
    }
    features_.append(c.taps, c.rows.subspan(static_cast<size_t>(unseen)));
    if (waiting() > kMaxBacklog) work_off();
  }

  void propose(const DraftRequest& request, Draft& draft) override {
    Drafter* self = this;
    propose_group({&self, 1}, {&request, 1}, {&draft, 1});
  }

  void propose_group(std::span<Drafter* const> group, std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    const DflashConfig& config = model_.config();
    blocks_.clear();
    drafted_.clear();
    work_off(group);
    for (size_t i = 0; i < group.size(); ++i) {
      auto* member = static_cast<BlockDrafter*>(group[i]);
      const DflashLane& lane = *member->lane_;
      drafts[i].by = Route::kBlock;
      CHECK(requests[i].position == lane.end() + 1);
      if (lane.first() == lane.end()) continue;  // nothing to condition on yet
      // As many rows as are of use: the first guesses of a short block are as good as those of a long one, and cost less.
      int rows = config.min_rows();
      while (rows < config.block_size && config.slots(rows) < requests[i].depth) ++rows;
      blocks_.push_back({.lane = member->lane_.get(), .anchor = requests[i].anchor, .rows = rows});
      drafted_.push_back(i);
    }
    if (blocks_.empty()) return;
    const std::span<const DflashDraft> lattices = model_.draft(blocks_);
    for (size_t b = 0; b < blocks_.size(); ++b) expand(lattices[b], requests[drafted_[b]], drafts[drafted_[b]]);
  }

  std::vector<std::byte> save() override {
    work_off();
    return lane_->first() == lane_->end() ? std::vector<std::byte>{} : lane_->save();
  }

  bool restore(std::span<const TokenId> history, std::span<const std::byte> saved) override {
    restart(history);
    if (saved.empty()) return history.empty();
    const bool loaded = lane_->load(saved, static_cast<int64_t>(history.size()));
    first_waiting_ = lane_->end();
    return loaded;
  }

 private:
  int64_t waiting() const { return features_.rows(); }

  // Drops waiting rows that no later row will see, and moves the lane to where the waiting rows begin.
  void trim() {
    if (waiting() == 0) return;
    if (reach_ >= 0 && waiting() > reach_) {
      const int64_t drop = waiting() - reach_;
      features_.drop_front(drop);
      first_waiting_ += drop;
    }
    if (lane_->end() != first_waiting_) lane_->restart(first_waiting_);
  }

  void clear_waiting() {
    first_waiting_ += waiting();
    features_.clear();
  }

  void work_off() {
    Drafter* self = this;
    work_off({&self, 1});
  }

  // Extends the contexts of all members by their waiting rows: a short one's in one call with the others', a long one's alone.
  void work_off(std::span<Drafter* const> group) {
    RowStore& together = model_.gathered();
    together.clear();
    counts_.clear();
    std::vector<DflashContext> contexts;
    std::vector<BlockDrafter*> joined;
    for (Drafter* one : group) {
      auto* member = static_cast<BlockDrafter*>(one);
      CHECK(&member->model_ == &model_);
      member->trim();
      if (member->waiting() == 0) continue;
      if (group.size() > 1 && member->waiting() <= kJoinedRows) {
        // As many of each member as cycles usually bring, and of more members than these: later cycles should take no memory.
        const auto members = static_cast<int64_t>(std::bit_ceil(std::max<size_t>(group.size(), 4)));
        if (together.empty()) together.reserve(kUsualRows * members, member->features_.view().cols);
        counts_.push_back(static_cast<int>(member->waiting()));
        joined.push_back(member);
        together.append(member->features_.view());
        continue;
      }
      const View all = member->features_.view();
      for (int64_t done = 0; done < all.rows;) {
        const int64_t count = std::min<int64_t>(all.rows - done, kMaxBacklog);
        rows_.resize(static_cast<size_t>(count));
        std::iota(rows_.begin(), rows_.end(), 0);
        const DflashContext context{.lane = member->lane_.get(), .rows = rows_};
        model_.extend(all.row_range(done, done + count), {&context, 1});
        done += count;
      }
      member->clear_waiting();
    }
    if (joined.empty()) return;
    const int total = std::accumulate(counts_.begin(), counts_.end(), 0);
    rows_.resize(static_cast<size_t>(total));
    std::iota(rows_.begin(), rows_.end(), 0);
    size_t at = 0;
    for (size_t i = 0; i < joined.size(); ++i) {
      contexts.push_back({.lane = joined[i]->lane_.get(), .rows = std::span<const int>(rows_).subspan(at, static_cast<size_t>(counts_[i]))});
      at += static_cast<size_t>(counts_[i]);
    }
    model_.extend(together.view(), contexts);
    for (BlockDrafter* member : joined) member->clear_waiting();
  }

  // A node of the lattice's unrolled tree and its ranked successors.
  struct Node {
    int slot = -1, index = 0;         // candidate `index` of `slot`, -1: none of them; slot -1: the anchor
    float cumulative = 1;
    std::vector<RankedCandidate> next;  // empty until asked for
    std::vector<TokenId> path;          // kept when penalties or rules need it
    std::vector<TokenId> run;           // foreseen behind it; the first is next.front()
  };
  struct Open {
    float cumulative;
    int parent, rank;  // of nodes_
  };
  struct Later {
    bool operator()(const Open& a, const Open& b) const {
      return a.cumulative != b.cumulative ? a.cumulative < b.cumulative
                                          : a.parent != b.parent ? a.parent > b.parent : a.rank > b.rank;
    }
  };

  static Route route_of(const RankedCandidate& c) { return c.foreseen ? Route::kGrammar : Route::kBlock; }

  void rank_next(const DflashDraft& lattice, const DraftRequest& request, Node& node) {
    const int slot = node.slot + 1;
    scored_.clear();
    for (int k = 0; k < lattice.top_k; ++k)
      scored_.push_back({lattice.candidate(slot, k), node.index < 0 ? lattice.unary[size_t(slot * lattice.top_k + k)] : lattice.score(slot, node.index, k)});
    rank_successors(request, scored_, node.path, request.position + slot, node.run, node.next);
    if (!lattice.confidence.empty() && !node.next.empty() && !node.next.front().foreseen) node.next.front().probability = lattice.confidence[size_t(slot)];
  }

  void expand(const DflashDraft& lattice, const DraftRequest& request, Draft& draft) {
    const int depth = std::min(request.depth, lattice.slots);
    const bool keep_path = request.sampling->has_penalties() || request.rules != nullptr;
    nodes_.clear();
    nodes_.emplace_back();
    std::priority_queue<Open, std::vector<Open>, Later> open;
    const auto value = [&](const Node& parent, int rank) {
      const RankedCandidate& c = parent.next[size_t(rank)];
      return parent.cumulative * (request.calibration ? request.calibration->measured(route_of(c), c.probability, rank) : c.probability);
    };
    const auto offer = [&](int parent, int rank) {
      const Node& p = nodes_[size_t(parent)];
      if (rank >= static_cast<int>(p.next.size())) return;
      if (const float v = value(p, rank); v >= request.floor) open.push({v, parent, rank});
    };
    // Adds child `rank` of `parent`; returns its place in nodes_, which is its place in the draft plus one.
    const auto take = [&](int parent, int rank, float cumulative) {
      const RankedCandidate c = nodes_[size_t(parent)].next[size_t(rank)];
      Node child{.slot = nodes_[size_t(parent)].slot + 1, .index = c.index, .cumulative = cumulative, .next = {}, .path = {}, .run = {}};
      if (keep_path) {
        child.path = nodes_[size_t(parent)].path;
        child.path.push_back(c.token);
        const std::vector<TokenId>& run = nodes_[size_t(parent)].run;
        if (c.foreseen) child.run.assign(run.begin() + 1, run.end());
      }
      if (child.slot + 1 < depth) rank_next(lattice, request, child);
      nodes_.push_back(std::move(child));
      draft.add(c.token, parent - 1, c.probability, rank, route_of(c));
      return static_cast<int>(nodes_.size()) - 1;
    };

    rank_next(lattice, request, nodes_[0]);
    int tip = 0;
    while (static_cast<int>(draft.nodes.size()) < request.nodes && !nodes_[size_t(tip)].next.empty()) {
      const float v = value(nodes_[size_t(tip)], 0);
      if (v < request.floor) break;
      if (request.tree) offer(tip, 1);
      tip = take(tip, 0, v);
    }
    while (request.tree && !open.empty() && static_cast<int>(draft.nodes.size()) < request.nodes) {
      const Open top = open.top();
      open.pop();
      const int node = take(top.parent, top.rank, top.cumulative);
      offer(top.parent, top.rank + 1);
      offer(node, 0);
    }
  }

  DflashModel& model_;
  std::unique_ptr<DflashLane> lane_;
  DrafterNeeds needs_;
  RowStore features_;  // tapped rows that wait
  int64_t reach_;
  int64_t first_waiting_ = 0;
  std::vector<Node> nodes_;
  std::vector<ScoredCandidate> scored_;

  // Of one proposal for a group, in the drafter that was asked.
  std::vector<DflashBlock> blocks_;
  std::vector<size_t> drafted_;
  std::vector<int> rows_, counts_;
};

}  // namespace

std::unique_ptr<Drafter> make_block_drafter(DflashModel& model) { return std::make_unique<BlockDrafter>(model); }

}  // namespace foretoken
