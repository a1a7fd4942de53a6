// DflashModel: block drafters (DFlash 1, DFlash 2, DSpark). From tapped residual rows of the target and the anchor they guess a whole
// block of following tokens in one pass, with candidates per slot and scores between neighbours. Every shape and flag comes from the
// drafter's configuration. It does not choose a proposal and cannot emit. Source: docs/drafters.md.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/blocks.h"
#include "model/state.h"

namespace foretoken {

enum class DrafterKind : uint8_t { kNone, kDflash, kDflash2, kDspark };
std::string_view drafter_kind_name(DrafterKind kind);  // "none", "dflash", "dflash2", "dspark"

struct DflashConfig {
  DrafterKind kind = DrafterKind::kNone;
  int layers = 0, hidden = 0, ffn_width = 0, vocab = 0;
  int query_heads = 0, kv_heads = 0, head_dim = 0;
  float norm_epsilon = 1e-6f;
  RotarySpec rotary;               // full width
  std::vector<int> window;         // [layers]: context positions p with position(row) - p < window are visible; 0: all
  std::vector<bool> causal;        // [layers]: rows see only earlier rows of their block
  int block_size = 0;              // most rows of one block, the anchor's included
  TokenId mask_token = -1;
  std::vector<int> taps;           // target layers whose output is fused, in the order of the fused vector
  int target_layers = 0;           // declared; 0: unknown
  float embedding_scale = 1.0f;    // of the block's input rows
  float output_multiplier = 1.0f;  // of the logits, before the soft cap
  float softcap = 0.0f;            // logits become c * tanh(logits / c); 0: none
  int conv_taps = 0, conv_group = 0;  // DFlash 2; 0: no convolutions
  int selector_rank = 0;           // DFlash 2: rank of the transition scores; DSpark: of its Markov head; 0: none
  int top_k = 16;                  // candidates per slot
  bool anchor_predicts = false;    // DSpark: the anchor's own row guesses the next token, so r rows give r slots
  bool has_confidence = false;     // DSpark: a confidence head is present

  // Reads and validates. The kind follows the tensors that are there, not the declared name. Errors are kInvalidFile or
  // kUnsupported, one sentence.
  static Result<DflashConfig> from_bundle(const Bundle& bundle, const ModelConfig& target);

  int slots(int rows) const { return anchor_predicts ? rows : rows - 1; }  // guesses of a block of `rows` rows
  int min_rows() const { return anchor_predicts ? 1 : 2; }
  int max_slots() const { return slots(block_size); }
  // The most context positions before an anchor that any row can see, or -1 when a layer sees all.
  int64_t context_reach() const;
};

// Whether a drafter can serve a target, judged from headers only. Never an error, always a reason.
struct DrafterStatus {
  DrafterKind kind = DrafterKind::kNone;
  bool fits = false;
  std::string reason;  // one clause
};
DrafterStatus inspect_drafter(const Bundle& drafter, const ModelConfig& target);
// `path`: a folder or a .gguf file; a bundle that cannot be opened is a reason too.
DrafterStatus inspect_drafter(const std::filesystem::path& path, const ModelConfig& target);

struct DflashOptions {
  bool quantize = false;                 // matrices to Q8_0 at load when they are stored as floats
  KvFormat kv_format = KvFormat::kBF16;  // of the context K/V
  int max_rows = 512;                    // rows of one call, context or block
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

// The guesses of one block; views and spans are valid until the next call. Slot s guesses position anchor + 1 + s.
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
                                                   Backend& backend, const DflashOptions& options);
  ~DflashModel();

  const DflashConfig& config() const;
  const DflashOptions& options() const;
  size_t packed_bytes() const;
  PagePool& pages();
  std::unique_ptr<DflashLane> make_lane();

  // Fuses the tapped rows of committed tokens and appends their K/V, once per token. features [any rows, taps * hidden]:
  // ForwardResult::taps of a pass that tapped config().taps.
  void extend(View features, std::span<const DflashContext> lanes);

  // Drafts one block per entry, in one pass. A lane's context is not changed; a block's bits do not depend on the other blocks.
  std::span<const DflashDraft> draft(std::span<const DflashBlock> blocks);

 private:
  struct Parts;
  explicit DflashModel(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace foretoken
