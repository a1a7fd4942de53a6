// The native head as a drafter: pairs of true hiddens wait until a guess is wanted, are worked off in one call whose last row gives
// the first guess, and further guesses feed the head's own output back. Entries made from guesses are truncated before true ones come.
// Several lanes go together, step by step, in calls of one row a lane.
#include <algorithm>
#include <cstring>
#include <utility>

#include "decode/controller.h"
#include "decode/drafter.h"
#include "decode/rows.h"

namespace foretoken {
namespace {

constexpr int kCandidates = 32;  // of the vocabulary, enough for every filter that matters
constexpr int kSiblings = 3;     // children per node of a tree, the chain's own included
constexpr int kMaxBacklog = 256; // pairs that wait

class MtpDrafter final : public Drafter {
 public:
  MtpDrafter(const ModelConfig& config, MtpHead& head)
      : config_(config), head_(head), lane_(head.make_lane()), hidden_(head.pages().backend()), fed_(head.pages().backend()) {
    needs_.hidden = true;
  }

  Route route() const override { return Route::kMtp; }
  const DrafterNeeds& needs() const override { return needs_; }
  int deepest() const override { return kMtpDepth; }
  int backlog() const override { return static_cast<int>(inputs_.size()); }

  void restart(std::span<const TokenId> history) override {
    restart_at(static_cast<int64_t>(history.size()));
    inputs_.clear();
    hidden_.clear();
    unpaired_.clear();
  }

  void observe(const Committed& c) override {
    CHECK(c.rows.size() == c.tokens.size());
    if (!unpaired_.empty()) {  // a restored lane's last hidden, whose token is known only now
      CHECK(c.first == true_end_ + 1);
      pair_restored();
      inputs_.push_back(text_row(c.tokens[0], true_end_));
    }
    const int64_t waiting = static_cast<int64_t>(inputs_.size());
    if (waiting == 0 && true_end_ == 0 && lane_->end() == 0 && c.first > 0) restart_at(c.first);
    CHECK(c.first == true_end_ + waiting);
    hidden_.append(c.hidden, c.rows);
    for (size_t i = 0; i < c.tokens.size(); ++i)
      inputs_.push_back(text_row(i + 1 < c.tokens.size() ? c.tokens[i + 1] : c.next, c.first + static_cast<int64_t>(i)));
    // The last pair stays, because a proposal needs its output.
    if (backlog() > kMaxBacklog) work_off(backlog() - 1);
  }

  void propose(const DraftRequest& request, Draft& draft) override {
    Drafter* self = this;
    propose_group({&self, 1}, {&request, 1}, {&draft, 1});
  }

  void propose_group(std::span<Drafter* const> group, std::span<const DraftRequest> requests, std::span<Draft> drafts) override {
    walks_.clear();
    for (size_t i = 0; i < group.size(); ++i) {
      auto* member = static_cast<MtpDrafter*>(group[i]);
      CHECK(&member->head_ == &head_);
      drafts[i].by = Route::kMtp;
      if (!member->unpaired_.empty()) {  // a lane restored just before its anchor
        member->pair_restored();
        member->inputs_.push_back(text_row(requests[i].anchor, member->true_end_));
      }
      if (member->inputs_.empty()) continue;
      CHECK(requests[i].position == member->true_end_ + member->backlog() + 1);
      walks_.push_back({.drafter = member, .request = &requests[i], .draft = &drafts[i], .path = {}, .run = {}, .leaves = {}});
    }
    View last;  // the step's hiddens before
    for (int step = 0; !walks_.empty(); ++step) {
      last = run_step(last, step == 0);
      std::vector<Walk> growing;
      for (Walk& walk : walks_)
        if (grow(walk, step)) growing.push_back(std::move(walk));
      walks_ = std::move(growing);
    }
  }

  // Entries up to the last position but one, and the last hidden: the pair of the last position needs the token that follows.
  std::vector<std::byte> save() override {
    if (backlog() > 1) work_off(backlog() - 1);
    lane_->truncate(true_end_);
    std::vector<float> last = unpaired_;
    if (last.empty() && !hidden_.empty()) {
      last.resize(static_cast<size_t>(config_.hidden));
      head_.pages().backend().download(hidden_.view().row_range(0, 1), View::of(last.data(), 1, config_.hidden));
    }
    if (last.empty()) return {};
    std::vector<std::byte> saved = lane_->save();
    const auto* bytes = reinterpret_cast<const std::byte*>(last.data());
    saved.insert(saved.end(), bytes, bytes + hidden_bytes());
    return saved;
  }

  bool restore(std::span<const TokenId> history, std::span<const std::byte> saved) override {
    restart(history);
    if (history.empty() || saved.size() < hidden_bytes()) return history.empty() && saved.empty();
    const int64_t end = static_cast<int64_t>(history.size()) - 1;
    if (!lane_->load(saved.first(saved.size() - hidden_bytes()), end)) {
      restart(history);
      return false;
    }
    true_end_ = end;
    unpaired_.resize(static_cast<size_t>(config_.hidden));
    std::memcpy(unpaired_.data(), saved.data() + saved.size() - hidden_bytes(), hidden_bytes());
    return true;
  }

 private:
  struct Leaf {
    DraftNode node;
    float cumulative;
  };
  // One lane's draft under way.
  struct Walk {
    MtpDrafter* drafter;
    const DraftRequest* request;
    Draft* draft;
    std::vector<TokenId> path;
    std::vector<TokenId> run;  // foreseen behind the path
    std::vector<Leaf> leaves;
    float cumulative = 1;
    int row = 0;  // of its last output
  };

  size_t hidden_bytes() const { return static_cast<size_t>(config_.hidden) * sizeof(float); }

  void restart_at(int64_t position) {
    lane_->restart(position);
    true_end_ = position;
  }

  static float measured(const DraftRequest& request, const RankedCandidate& c, int rank) {
    return request.calibration ? request.calibration->measured(route_of(c), c.probability, rank) : c.probability;
  }
  static Route route_of(const RankedCandidate& c) { return c.foreseen ? Route::kGrammar : Route::kMtp; }

  // A restored lane's last hidden begins the waiting pairs.
  void pair_restored() {
    CHECK(hidden_.empty());
    hidden_.append_host(View::of(unpaired_.data(), 1, config_.hidden));
    unpaired_.clear();
  }

  // The next row of every walk in one call, fed the hiddens of the step before, or all waiting pairs at first: ids_ and values_ then hold
  // the walks' candidates in their order. Returns the hiddens.
  View run_step(View before_hidden, bool first) {
    rows_.clear();
    lane_rows_.clear();
    last_.clear();
    lanes_.clear();
    fed_.clear();
    for (size_t w = 0; w < walks_.size(); ++w) {
      MtpDrafter& d = *walks_[w].drafter;
      const int before = static_cast<int>(rows_.size());
      if (first) {
        d.lane_->truncate(d.true_end_);
        const int most = std::max(1, head_.options().max_rows / static_cast<int>(walks_.size()));
        if (d.backlog() > most) d.work_off(d.backlog() - 1);
        rows_.insert(rows_.end(), d.inputs_.begin(), d.inputs_.end());
        fed_.append(d.hidden_.view());
      } else {
        rows_.push_back(text_row(walks_[w].path.back(), d.lane_->end()));
        fed_.append(before_hidden.row_range(walks_[w].row, walks_[w].row + 1));
      }
      const int count = static_cast<int>(rows_.size()) - before;
      lane_rows_.push_back({.first_row = before, .rows = count, .prefix = d.lane_->end(), .settled = count, .parent = {}});
      last_.push_back(static_cast<int>(rows_.size()) - 1);
      lanes_.push_back(d.lane_.get());
    }
    const MtpResult result = head_.forward(fed_.view(),
                                           {.inputs = rows_, .lanes = lane_rows_, .logits_rows = last_}, lanes_);
    const int k = std::min(kCandidates, config_.vocab);
    ids_.resize(walks_.size() * static_cast<size_t>(k));
    values_.resize(ids_.size());
    head_.top_k(result.logits, k, ids_, View::of(values_.data(), static_cast<int64_t>(walks_.size()), k));
    for (size_t w = 0; w < walks_.size(); ++w) {
      walks_[w].row = last_[w];
      MtpDrafter& d = *walks_[w].drafter;
      d.scored_.clear();
      for (int i = 0; i < k; ++i) d.scored_.push_back({ids_[w * static_cast<size_t>(k) + static_cast<size_t>(i)], values_[w * static_cast<size_t>(k) + static_cast<size_t>(i)]});
      if (!first) continue;
      d.inputs_.clear();
      d.hidden_.clear();
      d.true_end_ = d.lane_->end();
    }
    return result.hidden;
  }

  // Adds what the candidates of `step` give; false when the draft is complete.
  bool grow(Walk& walk, int step) {
    const DraftRequest& request = *walk.request;
    std::vector<RankedCandidate>& ranked = walk.drafter->ranked_;
    const auto close = [&] {
      std::stable_sort(walk.leaves.begin(), walk.leaves.end(), [](const Leaf& a, const Leaf& b) { return a.cumulative > b.cumulative; });
      for (const Leaf& leaf : walk.leaves) {
        if (static_cast<int>(walk.draft->nodes.size()) >= request.nodes) break;
        walk.draft->add(leaf.node.token, leaf.node.parent, leaf.node.probability, leaf.node.rank);
      }
      return false;
    };
    rank_successors(request, walk.drafter->scored_, walk.path, request.position + step, walk.run, ranked);
    if (ranked.empty()) return close();
    const int parent = step - 1;
    if (request.tree)
      for (int rank = 1; rank < kSiblings && rank < static_cast<int>(ranked.size()); ++rank) {
        const RankedCandidate& c = ranked[static_cast<size_t>(rank)];
        const float value = walk.cumulative * measured(request, c, rank);
        if (value >= request.floor) walk.leaves.push_back({{c.token, parent, c.probability, rank, Route::kMtp}, value});
      }
    const RankedCandidate& best = ranked.front();
    walk.cumulative *= measured(request, best, 0);
    if (walk.cumulative < request.floor) return close();
    walk.draft->add(best.token, parent, best.probability, 0, route_of(best));
    walk.path.push_back(best.token);
    if (!walk.run.empty()) walk.run.erase(walk.run.begin());
    return step + 1 < std::min(request.depth, request.nodes) || close();
  }

  // Makes entries of the first `count` waiting pairs.
  void work_off(int count) {
    lane_->truncate(true_end_);
    for (int done = 0; done < count;) {
      const int rows = std::min(count - done, head_.options().max_rows);
      const LaneRows lane_rows{.first_row = 0, .rows = rows, .prefix = lane_->end(), .settled = rows, .parent = {}};
      MtpLane* lanes[] = {lane_.get()};
      head_.forward(hidden_.view().row_range(done, done + rows),
                    {.inputs = std::span<const RowInput>(inputs_).subspan(size_t(done), size_t(rows)), .lanes = {&lane_rows, 1}, .logits_rows = {}}, lanes);
      done += rows;
    }
    inputs_.erase(inputs_.begin(), inputs_.begin() + count);
    hidden_.drop_front(count);
    true_end_ = lane_->end();
  }

  const ModelConfig& config_;
  MtpHead& head_;
  std::unique_ptr<MtpLane> lane_;
  DrafterNeeds needs_;
  int64_t true_end_ = 0;          // entries [.., true_end_) come from true hiddens
  std::vector<RowInput> inputs_;  // waiting pairs: the tokens behind positions true_end_ + i
  RowStore hidden_;               // and the hiddens of those positions
  std::vector<float> unpaired_;   // hidden of position true_end_ of a restored lane, whose token has not come; or empty
  std::vector<ScoredCandidate> scored_;
  std::vector<RankedCandidate> ranked_;

  // Of one proposal for a group, in the drafter that was asked.
  std::vector<Walk> walks_;
  std::vector<RowInput> rows_;
  std::vector<LaneRows> lane_rows_;
  std::vector<int> last_;
  std::vector<MtpLane*> lanes_;
  RowStore fed_;
  std::vector<float> values_;
  std::vector<TokenId> ids_;
};

}  // namespace

std::unique_ptr<Drafter> make_mtp_drafter(const ModelConfig& config, MtpHead& head) {
  return std::make_unique<MtpDrafter>(config, head);
}

}  // namespace foretoken
