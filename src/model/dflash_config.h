// DflashConfig: the numbers of one block drafter, parsed from any bundle, validated once, immutable afterwards. It does not know
// where they came from. Source: docs/drafters.md.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/config.h"

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
  // What the bundle's tensors look like, whether or not they fit anything; kNone when they are no drafter's.
  static DrafterKind kind_of(const Bundle& bundle);

  int slots(int rows) const { return anchor_predicts ? rows : rows - 1; }  // guesses of a block of `rows` rows
  int min_rows() const { return anchor_predicts ? 1 : 2; }
  int max_slots() const { return slots(block_size); }
  // The most context positions before an anchor that any row can see, or -1 when a layer sees all.
  int64_t context_reach() const;
};

}  // namespace foretoken
