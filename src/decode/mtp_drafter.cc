// The native head as a drafter: pairs of true hiddens wait until a guess is wanted, are worked off in one call whose last row gives
// the first guess, and further guesses feed the head's own output back. Entries made from guesses are truncated before true ones come.
#include <algorithm>

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
  MtpDrafter(const ModelConfig& config, MtpHead& head) : config_(config), head_(head), lane_(head.make_lane()) { needs_.hidden = true; }

  Route route() const override { return Route::kMtp; }
  const DrafterNeeds& needs() const override { return needs_; }
  int deepest() const override { return kMtpDepth; }
  int backlog() const override { return static_cast<int>(inputs_.size()); }

  void restart(std::span<const TokenId> history) override {
    lane_->restart(static_cast<int64_t>(history.size()));
    true_end_ = lane_->end();
    inputs_.clear();
    hidden_.clear();
  }

  void observe(const Committed& c) override {
    CHECK(c.rows.size() == c.tokens.size());
    const int64_t waiting = static_cast<int64_t>(inputs_.size());
    if (waiting == 0 && true_end_ == 0 && lane_->end() == 0 && c.first > 0) restart_at(c.first);
    CHECK(c.first == true_end_ + waiting);
    for (size_t i = 0; i < c.tokens.size(); ++i) {
      const float* row = c.hidden.f32(c.rows[i]);
      hidden_.insert(hidden_.end(), row, row + config_.hidden);
      inputs_.push_back(text_row(i + 1 < c.tokens.size() ? c.tokens[i + 1] : c.next, c.first + static_cast<int64_t>(i)));
    }
    // The last pair stays, because a proposal needs its output.
    if (backlog() > kMaxBacklog) work_off(backlog() - 1);
  }

  void propose(const DraftRequest& request, Draft& draft) override {
    draft.by = Route::kMtp;
    if (inputs_.empty()) return;
    CHECK(request.position == true_end_ + backlog() + 1);
    View hidden = work_off(backlog());  // [1, hidden], and logits_
    std::vector<TokenId> path;
    struct Leaf {
      DraftNode node;
      float cumulative;
    };
    std::vector<Leaf> leaves;
    float cumulative = 1;
    for (int step = 0; step < request.depth && step < request.nodes; ++step) {
      rank(request, path);
      if (ranked_.empty()) break;
      const int parent = step - 1;
      if (request.tree)
        for (int rank = 1; rank < kSiblings && rank < static_cast<int>(ranked_.size()); ++rank) {
          const RankedCandidate& c = ranked_[static_cast<size_t>(rank)];
          const float value = cumulative * measured(request, c.probability, rank);
          if (value >= request.floor) leaves.push_back({{c.token, parent, c.probability, rank}, value});
        }
      const RankedCandidate& best = ranked_.front();
      cumulative *= measured(request, best.probability, 0);
      if (cumulative < request.floor) break;
      draft.add(best.token, parent, best.probability);
      path.push_back(best.token);
      if (step + 1 == request.depth || step + 1 == request.nodes) break;
      const RowInput input = text_row(best.token, lane_->end());
      hidden = run(hidden, {&input, 1});
    }
    std::stable_sort(leaves.begin(), leaves.end(), [](const Leaf& a, const Leaf& b) { return a.cumulative > b.cumulative; });
    for (const Leaf& leaf : leaves) {
      if (static_cast<int>(draft.nodes.size()) >= request.nodes) break;
      draft.add(leaf.node.token, leaf.node.parent, leaf.node.probability, leaf.node.rank);
    }
  }

 private:
  void restart_at(int64_t position) {
    lane_->restart(position);
    true_end_ = position;
  }

  static float measured(const DraftRequest& request, float estimate, int rank) {
    return request.calibration ? request.calibration->measured(Route::kMtp, estimate, rank) : estimate;
  }

  // Appends entries for `inputs`; the output of the last row, whose logits are in logits_.
  View run(View hidden, std::span<const RowInput> inputs) {
    const int rows = static_cast<int>(inputs.size());
    const LaneRows lane_rows{.first_row = 0, .rows = rows, .prefix = lane_->end(), .settled = rows, .parent = {}};
    const int last[] = {rows - 1};
    MtpLane* lanes[] = {lane_.get()};
    const MtpResult result = head_.forward(hidden, {.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = last}, lanes);
    logits_ = {result.logits.f32(), static_cast<size_t>(result.logits.cols)};
    return result.hidden.row_range(rows - 1, rows);
  }

  // Makes entries of the first `count` waiting pairs.
  View work_off(int count) {
    lane_->truncate(true_end_);
    View last;
    for (int done = 0; done < count;) {
      const int rows = std::min(count - done, head_.options().max_rows);
      const View hidden = View::of(hidden_.data() + size_t(done) * size_t(config_.hidden), rows, config_.hidden);
      last = run(hidden, std::span<const RowInput>(inputs_).subspan(size_t(done), size_t(rows)));
      done += rows;
    }
    inputs_.erase(inputs_.begin(), inputs_.begin() + count);
    hidden_.erase(hidden_.begin(), hidden_.begin() + ptrdiff_t(count) * config_.hidden);
    true_end_ = lane_->end();
    return last;
  }

  // ranked_ = the head's own choices from logits_ for the token behind `path`.
  void rank(const DraftRequest& request, std::span<const TokenId> path) {
    scored_.clear();
    const auto better = [](const ScoredCandidate& a, const ScoredCandidate& b) {
      return a.score != b.score ? a.score > b.score : a.token < b.token;
    };
    for (size_t i = 0; i < logits_.size(); ++i) {
      const ScoredCandidate c{static_cast<TokenId>(i), logits_[i]};
      if (scored_.size() == kCandidates) {
        if (!(c.score > scored_.front().score)) continue;
        std::pop_heap(scored_.begin(), scored_.end(), better);
        scored_.back() = c;
      } else {
        scored_.push_back(c);
      }
      std::push_heap(scored_.begin(), scored_.end(), better);
    }
    rank_candidates(scored_, *request.sampling, request.counts, path, request.position + static_cast<int64_t>(path.size()), ranked_);
  }

  const ModelConfig& config_;
  MtpHead& head_;
  std::unique_ptr<MtpLane> lane_;
  DrafterNeeds needs_;
  int64_t true_end_ = 0;          // entries [.., true_end_) come from true hiddens
  std::vector<RowInput> inputs_;  // waiting pairs: the token behind position true_end_ + i, and the hidden of that position
  std::vector<float> hidden_;
  std::span<const float> logits_;
  std::vector<ScoredCandidate> scored_;
  std::vector<RankedCandidate> ranked_;
};

}  // namespace

std::unique_ptr<Drafter> make_mtp_drafter(const ModelConfig& config, MtpHead& head) {
  return std::make_unique<MtpDrafter>(config, head);
}

}  // namespace foretoken
