// The CPU backend: a thread pool, one table of kernels chosen from cpuid, and scratch memory. Each operator checks its
// shapes, splits its outputs over the pool and calls kernels; no kernel lives here. It knows no model and no request.
#pragma once

#include <memory>
#include <span>

#include "base/threads.h"
#include "cpu/kernels.h"
#include "cpu/operator_scratch.h"
#include "cpu/products.h"
#include "cpu/select.h"
#include "ops/ops.h"

namespace foretoken::cpu {

class CpuBackend final : public Backend {
 public:
  CpuBackend(const KernelTable& kernels, int threads);

  // backend.cc
  BackendInfo info() const override;
  MatrixPtr pack(std::span<const MatrixSource> parts, MatrixUse use) override;
  MatrixPtr adopt(std::span<const MatrixSource> parts, std::span<const std::byte> packed) override;
  void embed(std::span<const RowInput> inputs, const MatrixSource& table, View out) override;
  void linear(View x, const Matrix& w, View out) override;
  void gated_ffn(View x, const ExpertWeights& w, View out) override;

  // operators.cc
  void rms_norm(View x, View w, float epsilon, View out) override;
  void add(View x, View inout) override;
  void gather_rows(View x, std::span<const int> rows, View out) override;
  void moe(View x, const MoeShape& shape, const MoeWeights& w, View out) override;
  void rotary_table(std::span<const RowInput> inputs, const RotarySpec& spec, View table) override;
  void attention_inputs(View packed, View q_norm, View k_norm, View rotary, const AttentionShape& shape, const Batch& batch,
                        std::span<const PageTable> pages, const KvLayout& layout, int layer, View queries) override;
  void attention(View queries, View packed, const AttentionShape& shape, const Batch& batch,
                 std::span<const PageTable> pages, const KvLayout& layout, int layer, View out) override;
  void commit_kv(PageTable pages, const KvLayout& layout, int64_t prefix, std::span<const int> path) override;
  void causal_conv(View packed, View weight, const DeltaShape& shape, const Batch& batch,
                   std::span<const DeltaMemory> lanes, View out) override;
  void delta_rule(View conv, View beta_alpha, View decay_rate, View dt_bias, const DeltaShape& shape, const Batch& batch,
                  std::span<const DeltaMemory> lanes, View out) override;
  void gated_norm(View x, View gate, View w, float epsilon, bool sigmoid_gate, View out) override;
  void commit_delta(const DeltaShape& shape, const DeltaMemory& lane, int settled, std::span<const int> path) override;

  // draft_operators.cc
  void block_inputs(View q, View kv, View q_norm, View k_norm, View rotary, const BlockShape& shape,
                    std::span<const BlockLane> lanes, const KvLayout& layout) override;
  void block_attention(View queries, const BlockShape& shape, std::span<const BlockLane> lanes, const KvLayout& layout,
                       View out) override;
  void block_conv(View x, View base, View delta, int group, std::span<const BlockLane> lanes, View out) override;
  void top_k(View logits, int k, std::span<TokenId> ids, View values) override;
  void selector_edges(View weights, View predecessors, View successors, View edges) override;

 private:
  const KernelTable& kernels_;
  ThreadPool pool_;
  Products products_;
  OperatorScratch scratch_;
};

}  // namespace foretoken::cpu
