// DflashModel: block drafters (DFlash 1, DFlash 2, DSpark). From tapped residual rows of the target and the anchor they guess a whole
// block of following tokens in one pass, with candidates per slot and scores between neighbours. Every shape and flag comes from the
// drafter's configuration. It does not choose a proposal and cannot emit. Source: docs/drafters.md.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/blocks.h"
#include "model/dflash_config.h"
#include "model/dflash_weights.h"
#include "model/state.h"

namespace foretoken {

struct DflashOptions {
  std::optional<QuantFormat> weights;    // matrices that are stored larger become this at load
  KvFormat kv_format = KvFormat::kBF16;  // of the context K/V
};

// The context K/V of one lane in every drafter layer: positions [first, end). Sliding layers keep a ring of the rows their window
// reaches; other layers grow. The absolute position of the first row is kept apart from the physical rows, which count from 0, so
// the context may begin anywhere (a restored lane without a drafter window restarts where it is).
class DflashLane {
 public:
  ~DflashLane() { restart(0); }
  DflashLane(const DflashLane&) = delete;
  DflashLane& operator=(const DflashLane&) = delete;

  int64_t first() const { return first_; }
  int64_t end() const { return end_; }  // equals the target's committed length when the lane is up to date
  // Forgets everything; the next context row is `position`.
  void restart(int64_t position);
  // The context as bytes; `load` takes them into a lane of an equal drafter when they end at `end`, and otherwise changes nothing.
  std::vector<std::byte> save() const;
  bool load(std::span<const std::byte> saved, int64_t end);

 private:
  friend class DflashModel;
  DflashLane(const DflashConfig& config, PagePool& pool);
  struct Layer {
    std::vector<std::byte*> pages;
    int64_t ring_slots = 0;  // 0: grows
  };
  // Pages for positions up to `end` (exclusive), block rows included.
  void reserve(int64_t end);

  PagePool& pool_;
  std::vector<Layer> layers_;
  int64_t base_ = 0;  // position of physical row 0: first_ rounded down to a page, so that blocks of K/V keep their alignment
  int64_t first_ = 0, end_ = 0;
};

// Newly committed rows of one lane: rows[i] of the tapped features has position lane->end() + i.
struct DflashContext {
  DflashLane* lane = nullptr;
  std::span<const int> rows;
};

// One block to draft: the anchor has position lane->end(); min_rows() <= rows <= block_size. Draft as many rows as will be
// verified: more rows change the guesses of the earlier ones.
struct DflashBlock {
  DflashLane* lane = nullptr;
  TokenId anchor = -1;
  int rows = 0;
};

// The guesses of one block; views (in the backend's memory) and spans (on the host) are valid until the next call. Slot s guesses position anchor + 1 + s.
struct DflashDraft {
  int slots = 0, top_k = 0;
  View hidden;                         // [slots, hidden], after the drafter's norm
  View logits;                         // [slots, vocab] of the target's head, before output_multiplier and softcap; DSpark: with
                                       // the Markov term of the greedy walk added
  std::span<const TokenId> candidates; // [slots, top_k], by falling logit, ties to the lower id
  std::span<const float> unary;        // [slots, top_k]
  std::span<const float> edges;        // [slots, top_k, top_k]: [slot][candidate of the slot before][candidate]; slot 0 has one
                                       // predecessor, the anchor, as row 0. Empty without a selector: all zero
  std::span<const float> confidence;   // [slots], DSpark: probability that the slot is accepted, along the greedy walk; or empty

  TokenId candidate(int slot, int k) const { return candidates[size_t(slot * top_k + k)]; }
  // Score of candidate k after candidate `previous` of the slot before (0 at slot 0).
  float score(int slot, int previous, int k) const {
    const float u = unary[size_t(slot * top_k + k)];
    return edges.empty() ? u : u + edges[(size_t(slot) * size_t(top_k) + size_t(previous)) * size_t(top_k) + size_t(k)];
  }
  // The reference walk: left to right, the best score given the candidate chosen before, ties to the smaller k. `path`: [slots] k.
  void greedy_walk(std::vector<int>& path) const;
};

class DflashModel {
 public:
  // `bundle` (codebook rows are decoded where they are looked up), `target` and `trunk` (embedding and output head) and `backend`
  // must outlive the model. Fails with inspect_drafter's reason when the drafter does not fit.
  static Result<std::unique_ptr<DflashModel>> load(const Bundle& bundle, const ModelConfig& target, const Weights& trunk,
                                                   Backend& backend, const DflashOptions& options, PackedCache* cache = nullptr);

  // Of weights that are there already.
  DflashModel(const ModelConfig& target, const Weights& trunk, Backend& backend, const DflashOptions& options,
              DflashConfig config, DflashWeights weights);

  const DflashConfig& config() const { return config_; }
  const DflashOptions& options() const { return options_; }
  size_t packed_bytes() const { return weights_.packed_bytes(); }
  PagePool& pages() { return pages_; }
  std::unique_ptr<DflashLane> make_lane() { return std::unique_ptr<DflashLane>(new DflashLane(config_, pages_)); }

  // Fuses the tapped rows of committed tokens and appends their K/V, once per token. features [any rows, taps * hidden], where operators
  // compute: ForwardResult::taps of a pass that tapped config().taps.
  void extend(View features, std::span<const DflashContext> lanes);
  // Working memory for features of several lanes, which lasts as lanes come and go.
  RowStore& gathered() { return gathered_; }

  // Drafts one block per entry, in one pass. A lane's context is not changed; a block's bits do not depend on the other blocks.
  std::span<const DflashDraft> draft(std::span<const DflashBlock> blocks);

 private:
  BlockShape shape(int layer) const;
  void mixer(int layer, View h, View out);
  template <class Sublayer>
  void convolved(const DflashConvolution& w, int layer, View h, View out, Sublayer sublayer);
  void take_candidates(View hidden, View logits, std::span<const DflashBlock> blocks);
  void markov_candidates(View hidden, View logits);
  void markov_walk(View hidden, View logits, const LatticeBlock& block);

  const ModelConfig& target_;
  const Weights& trunk_;
  Backend& backend_;
  const DflashOptions options_;
  const DflashConfig config_;
  const DflashWeights weights_;
  PagePool pages_;  // layouts of one layer: every drafter layer has its own pages

  std::vector<RowInput> inputs_;
  std::vector<int> rows_;
  std::vector<std::vector<BlockLane>> block_lanes_;  // [layer][lane of the pass]
  Scratch features_{backend_}, x_{backend_}, h_{backend_}, mixed_{backend_}, delta_{backend_}, before_{backend_};
  Scratch after_{backend_}, qkv_{backend_}, context_kv_{backend_}, core_{backend_}, rotary_{backend_}, hidden_{backend_}, logits_{backend_};
  Scratch selector_{backend_}, predecessors_{backend_}, successors_{backend_}, markov_{backend_}, scores_{backend_};
  RowStore gathered_{backend_};
  LazyRows host_scores_{backend_}, host_hidden_{backend_}, host_previous_{backend_};
  View rotary_table_, unary_rows_, edge_rows_;  // of the call: ..., [slots, top_k], [slots * top_k, top_k]; the last two are one piece
  std::vector<LatticeBlock> lattice_blocks_;
  Lattice lattice_;
  std::vector<float> confidence_, ones_;
  std::vector<DflashDraft> drafts_;
};

}  // namespace foretoken
