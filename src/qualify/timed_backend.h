// A backend that times every operator of another one: for attributed runs, which rank costs. Claims come from ordinary
// runs, without it: reading the clock around small operators takes its own time, and on a device only the launching is
// seen.
#pragma once

#include <functional>
#include <string_view>

#include "base/clock.h"
#include "ops/ops.h"

namespace foretoken {

class TimedBackend final : public Backend {
 public:
  // Called after each operator, on the calling thread.
  using Listener = std::function<void(std::string_view op, TimePoint begin, TimePoint end)>;
  // `inner` and `clock` must outlive it; matrices are the inner one's.
  TimedBackend(Backend& inner, const Clock& clock, Listener listener)
      : inner_(inner), clock_(clock), listener_(std::move(listener)) {}

  BackendInfo info() const override { return inner_.info(); }
  BackendLimits limits() const override { return inner_.limits(); }
  bool on_host() const override { return inner_.on_host(); }
  BackendMemory memory() const override { return inner_.memory(); }
  Buffer allocate(size_t bytes) override { return inner_.allocate(bytes); }
  Buffer allocate_staging(size_t bytes) override { return inner_.allocate_staging(bytes); }
  void upload(View host, View to) override;
  void download(View from, View host) override;
  void copy(View from, View to) override;
  void clear(View memory) override { inner_.clear(memory); }
  bool all_finite(std::span<const View> views) override;
  TransferId begin_transfer(std::span<const TransferPiece> pieces, TransferWay way) override {
    return inner_.begin_transfer(pieces, way);
  }
  bool transfer_finished(TransferId transfer) override { return inner_.transfer_finished(transfer); }
  void finish_transfer(TransferId transfer) override { inner_.finish_transfer(transfer); }
  void keep_table(const MatrixSource& table) override { inner_.keep_table(table); }
  MatrixPtr pack(std::span<const MatrixSource> parts, MatrixUse use) override { return inner_.pack(parts, use); }
  MatrixPtr adopt(std::span<const MatrixSource> parts, std::span<const std::byte> packed) override {
    return inner_.adopt(parts, packed);
  }

  void embed(std::span<const RowInput> inputs, const MatrixSource& table, View out) override;
  void rms_norm(View x, View w, float epsilon, View out) override;
  void linear(View x, const Matrix& w, View out) override;
  void add(View x, View inout) override;
  void scale(View inout, float factor) override;
  void gather_rows(View x, std::span<const int> rows, View out) override;
  void gated_ffn(View x, const ExpertWeights& w, View out) override;
  void moe(View x, const MoeShape& shape, const MoeWeights& w, View out) override;
  void rotary_table(std::span<const RowInput> inputs, const RotarySpec& spec, View table) override;
  void attention_inputs(View packed, View q_norm, View k_norm, View rotary, const AttentionShape& shape,
                        const Batch& batch, std::span<const PageTable> pages, const KvLayout& layout, int layer,
                        View queries) override;
  void attention(View queries, View packed, const AttentionShape& shape, const Batch& batch,
                 std::span<const PageTable> pages, const KvLayout& layout, int layer, View out) override;
  void commit_kv(PageTable pages, const KvLayout& layout, int64_t prefix, std::span<const int> path) override;
  void causal_conv(View packed, View weight, const DeltaShape& shape, const Batch& batch,
                   std::span<const DeltaMemory> lanes, View out) override;
  void delta_rule(View conv, View beta_alpha, View decay_rate, View dt_bias, const DeltaShape& shape,
                  const Batch& batch, std::span<const DeltaMemory> lanes, View out) override;
  void gated_norm(View x, View gate, View w, float epsilon, bool sigmoid_gate, View out) override;
  void commit_delta(const DeltaShape& shape, const DeltaMemory& lane, int settled, std::span<const int> path) override;
  void block_inputs(View q, View kv, View q_norm, View k_norm, View rotary, const BlockShape& shape,
                    std::span<const BlockLane> lanes, const KvLayout& layout) override;
  void block_attention(View queries, const BlockShape& shape, std::span<const BlockLane> lanes, const KvLayout& layout,
                       View out) override;
  void block_conv(View x, View base, View delta, int group, std::span<const BlockLane> lanes, View out) override;
  void top_k(View logits, int k, std::span<TokenId> ids, View values) override;
  void choose(View logits, std::span<const ChoiceSpec> specs, Choices& out) override;
  void selector_edges(View weights, View predecessors, View successors, View edges) override;
  void lattice(View logits, int k, View weights, const MatrixSource& predecessor, const MatrixSource& successor,
               std::span<const LatticeBlock> blocks, Lattice& out) override;

 private:
  template <class F>
  void timed(std::string_view op, F&& call) {
    const TimePoint begin = clock_.now();
    call();
    listener_(op, begin, clock_.now());
  }

  Backend& inner_;
  const Clock& clock_;
  Listener listener_;
};

}  // namespace foretoken
