// Weights: typed slots per layer, filled from any bundle. Names, fused or separate layouts, zero-centred norms and head orders are
// normalised here to our maths, so that the forward pass has no branches on origin. It does not compute.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/config.h"
#include "model/packed_set.h"

namespace foretoken {

// A small fp32 parameter in a backend's memory: norm weights [1, n], convolution taps [channels, kernel], decay rates.
class Parameter {
 public:
  Parameter() = default;
  // `values`: rows * cols of them, on the host.
  Parameter(Backend& backend, int64_t rows, int64_t cols, std::span<const float> values);
  const View& view() const { return view_; }
  operator const View&() const { return view_; }

 private:
  Buffer memory_;
  View view_;
};

struct DeltaWeights {
  MatrixPtr in_proj;   // [q | k | v | z | b | a, hidden]
  Parameter conv;      // [channels, kernel]
  Parameter decay_rate;  // [1, value_heads]: -exp(A_log)
  Parameter dt_bias;   // [1, value_heads]
  Parameter norm;      // [1, value_dim]
  MatrixPtr out_proj;  // [hidden, value_heads * value_dim]
};

struct AttentionWeights {
  MatrixPtr in_proj;  // [per head q, gate | k | v, hidden]
  Parameter q_norm, k_norm;  // [1, head_dim]
  MatrixPtr out_proj;  // [hidden, query_heads * head_dim]
};

struct LayerWeights {
  Parameter mixer_norm, ffn_norm;  // [1, hidden]
  std::variant<DeltaWeights, AttentionWeights> mixer;
  std::variant<ExpertWeights, MoeWeights> ffn;

  bool is_sparse() const { return std::holds_alternative<MoeWeights>(ffn); }
  const DeltaWeights& delta() const { return std::get<DeltaWeights>(mixer); }
  const AttentionWeights& attention() const { return std::get<AttentionWeights>(mixer); }
  const ExpertWeights& dense() const { return std::get<ExpertWeights>(ffn); }
  const MoeWeights& experts() const { return std::get<MoeWeights>(ffn); }
};

// The native multi-token-prediction head (docs/model.md section 5): one full-attention layer between a fusion and a norm.
struct MtpWeights {
  std::optional<PackedFile> packed_file;        // what matrices borrow from, where they were found in a cache
  Parameter embedding_norm, hidden_norm, norm;  // [1, hidden]
  MatrixPtr fusion;                             // [hidden, 2 * hidden]: input is embedding, then hidden
  LayerWeights layer;
};

struct Weights {
  std::optional<PackedFile> packed_file;  // what matrices borrow from, where they were found in a cache
  MatrixSource embedding;  // borrows the bundle's mapping: rows are decoded where they are looked up
  MatrixPtr head;          // [vocab, hidden]
  Parameter final_norm;    // [1, hidden]
  std::vector<LayerWeights> layers;

  struct Progress {
    uint64_t done_bytes, total_bytes;
  };
  // Packs every trunk tensor for `backend`, or finds them packed in `cache`; pages of the source are released as they are consumed.
  // `bundle` must outlive the result (embedding rows). Errors name the tensor that is missing or has the wrong shape or type.
  static Result<Weights> load(const Bundle& bundle, const ModelConfig& config, Backend& backend,
                              const std::function<void(Progress)>& progress = {}, PackedCache* cache = nullptr);

  size_t packed_bytes() const { return packed_bytes_; }

 private:
  size_t packed_bytes_ = 0;
};

// What the tensors physically there say about the MTP head; the declaration in the configuration is not trusted.
struct MtpStatus {
  int declared = 0;
  bool present = false;   // any tensor of the head exists
  bool complete = false;  // every tensor exists with the right shape and a type we run
  std::string reason;     // one clause: why it is, or is not, usable
};
MtpStatus inspect_mtp(const Bundle& bundle, const ModelConfig& config);

// Loads a complete head (inspect_mtp(...).complete).
Result<MtpWeights> load_mtp(const Bundle& bundle, const ModelConfig& config, Backend& backend, PackedCache* cache = nullptr);

// What is packed of the trunk, or of its MTP head, and in which order; from headers only.
Result<PackingOrder> trunk_packing_order(const Bundle& bundle, const ModelConfig& config);
Result<PackingOrder> mtp_packing_order(const Bundle& bundle, const ModelConfig& config);
inline constexpr const char* kTrunkSet = "trunk";  // of a PackedKey

// True when the bundle holds every trunk tensor of `config` with the right shape, judged from headers only; else the first fault.
Status check_trunk(const Bundle& bundle, const ModelConfig& config);

}  // namespace foretoken
