// The weights of a block drafter in typed slots, and whether a bundle holds all of them for a target. Names of the two source formats
// end here. It does not compute.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/dflash_config.h"
#include "model/weights.h"

namespace foretoken {

// Whether a drafter can serve a target, judged from headers only. Never an error, always a reason.
struct DrafterStatus {
  DrafterKind kind = DrafterKind::kNone;
  bool fits = false;
  std::string reason;  // one clause
};
DrafterStatus inspect_drafter(const Bundle& drafter, const ModelConfig& target);
// `path`: a folder or a .gguf file; a bundle that cannot be opened is a reason too.
DrafterStatus inspect_drafter(const std::filesystem::path& path, const ModelConfig& target);

// About what the packed matrices of a drafter that fits take, from headers only; `format` as in DflashWeights::load.
uint64_t drafter_packed_bytes(const Bundle& drafter, const DflashConfig& config, std::optional<QuantFormat> format);

// A grouped dynamic convolution around a sublayer (DFlash 2).
struct DflashConvolution {
  Parameter base;        // [2 * taps, hidden]: taps of the input side, then of the output side
  MatrixPtr projection;  // [2 * taps * groups, hidden]: side, then tap, then group
};

struct DflashLayer {
  Parameter mixer_norm, ffn_norm;  // [1, hidden]
  MatrixPtr qkv;                   // [queries | keys | values, hidden], of block rows
  MatrixPtr out;                   // [hidden, query_heads * head_dim]
  Parameter q_norm, k_norm;        // [1, head_dim]
  ExpertWeights ffn;
  DflashConvolution mixer_conv, ffn_conv;  // null without convolutions
};

struct DflashWeights {
  std::optional<PackedFile> packed_file;  // what matrices borrow from, where they were found in a cache
  MatrixPtr fusion;             // [hidden, taps * hidden]
  Parameter hidden_norm, norm;  // [1, hidden]: of the fused context, of the last layer
  std::vector<DflashLayer> layers;
  // [layers * (keys | values), hidden]: of context rows, which all layers take from the same fused rows. The layers' own keys and values
  // once more, since a device waits longer for a product of each layer than for these (decision 021).
  MatrixPtr context_kv;
  // DFlash 2's selector, or DSpark's Markov head: rows of `predecessor` and `successor` are looked up by token and borrow the
  // bundle's mapping.
  MatrixSource predecessor, successor;  // [vocab, rank]
  MatrixPtr selector;                   // DFlash 2: [rank, hidden]
  MatrixPtr markov;                     // DSpark: `successor` packed, for the whole vocabulary
  std::vector<float> confidence;        // DSpark: [hidden + rank], on the host; empty without a confidence head
  float confidence_bias = 0;

  // `format`: matrices that are stored larger are re-encoded in it where their rows allow it (`can_quantize`). `cache`: where
  // packed matrices are looked for and kept. `bundle` must outlive the result.
  static Result<DflashWeights> load(const Bundle& bundle, const DflashConfig& config, Backend& backend, std::optional<QuantFormat> format,
                                    PackedCache* cache = nullptr);

  size_t packed_bytes() const { return packed_bytes_; }

 private:
  size_t packed_bytes_ = 0;
};

}  // namespace foretoken
