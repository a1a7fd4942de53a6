// TargetModel: the forward pass, top to bottom. Prefill, plain decode, chain and tree verification are all rows of lanes. It knows
// nothing of drafters, sampling or file formats. Source: docs/model.md.
#pragma once

#include <memory>
#include <span>

#include "model/blocks.h"
#include "model/config.h"
#include "model/state.h"
#include "model/weights.h"

namespace foretoken {

struct TargetOptions {
  int max_rows = 512;  // rows of one pass
  int tape_rows = 72;  // rows of one pass that is not all settled: an anchor and up to 64 proposals, with room
  KvFormat kv_format = KvFormat::kBF16;
};

// Valid until the next forward.
struct ForwardResult {
  ResultRows logits;  // [logits_rows, vocab]
  ResultRows hidden;  // [rows, hidden]: after the final norm, the input of the head
  ResultRows taps;    // [rows, tap_layers * hidden]: residual stream after each tapped layer, in the order asked for
  const Choices* choices = nullptr;  // of every logits row, where the batch asked and the backend is not the host's
};

class TargetModel {
 public:
  // `config`, `weights` and `backend` must outlive the model.
  TargetModel(const ModelConfig& config, const Weights& weights, Backend& backend, const TargetOptions& options);

  const ModelConfig& config() const { return config_; }
  const TargetOptions& options() const { return options_; }
  PagePool& pages() { return pages_; }

  std::unique_ptr<LaneState> make_lane();
  // Rows that forward() has run since the model was made.
  uint64_t rows_run() const { return rows_run_; }

  // Computes `batch`; lanes[i] belongs to batch.lanes[i] and its length must equal that entry's prefix. Committed state is not
  // changed, except that settled rows advance the recurrent state (they become part of the sequence with `commit`, which must
  // follow). `tap_layers`: layer indices, -1 for the embedding. Contract: every output row is a pure function of its lane's
  // prefix and its ancestors (docs/numerics.md).
  ForwardResult forward(const Batch& batch, std::span<LaneState* const> lanes, std::span<const int> tap_layers = {});

  // Makes rows `path` of the lane's last pass part of its sequence: ascending, a root-to-leaf path that starts with all settled
  // rows. The only way a lane grows.
  void commit(LaneState& lane, std::span<const int> path);

 private:
  void delta_mixer(const DeltaWeights& w, const Batch& batch, int index, View h, View out);
  void prepare(const Batch& batch, std::span<LaneState* const> lanes, std::span<const int> tap_layers);

  const ModelConfig& config_;
  const Weights& weights_;
  Backend& backend_;
  TargetOptions options_;
  PagePool pages_;
  uint64_t rows_run_ = 0;

  AttentionMixer attention_mixer_;
  Scratch x_{backend_}, h_{backend_}, mixed_{backend_}, packed_{backend_}, conv_{backend_}, core_{backend_}, rotary_{backend_}, hidden_{backend_}, last_{backend_}, logits_{backend_}, taps_{backend_};
  LazyRows host_logits_{backend_}, host_hidden_{backend_}, host_taps_{backend_};
  Choices choices_;
  std::vector<PageTable> page_tables_;
  std::vector<DeltaMemory> delta_memory_;
  std::span<LaneState* const> lanes_;
};

}  // namespace foretoken
