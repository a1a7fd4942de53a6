// The CUDA backend: one device, one queue of launches, weights packed once into device layouts, working memory that
// only grows. Each operator checks its shapes, turns the host's description of a pass into device data, and calls
// launchers; no kernel lives here.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/admission.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "cuda/plans.h"
#include "cuda/queue.h"
#include "cuda/transfers.h"
#include "ops/ops.h"

namespace foretoken::cuda {

// Parts in order of outputs; each has a layout of its own.
class CudaMatrix final : public Matrix {
 public:
  struct Piece {
    Part part;
    int64_t first = 0;  // output of its row 0
    Buffer codes, scales, minimums;
  };
  CudaMatrix(int64_t rows, int64_t cols, size_t bytes, std::vector<Piece> pieces)
      : Matrix(rows, cols, bytes), pieces_(std::move(pieces)) {}
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  std::vector<Piece> pieces_;
};

class CudaBackend final : public Backend {
 public:
  // `device` exists and runs the kernels, which are `code`.
  CudaBackend(int device, const KernelCode& code, const CudaOptions& options);
  ~CudaBackend() override;
  BackendInfo info() const override;
  BackendLimits limits() const override;

  bool on_host() const override { return false; }
  BackendMemory memory() const override;
  Buffer allocate(size_t bytes) override { return device_memory(bytes); }
  Buffer allocate_staging(size_t bytes) override { return pinned_memory(bytes); }
  void upload(View host, View to) override;
  void download(View from, View host) override;
  void copy(View from, View to) override;
  void clear(View memory) override;
  bool all_finite(std::span<const View> views) override;
  TransferId begin_transfer(std::span<const TransferPiece> pieces, TransferWay way) override;
  bool transfer_finished(TransferId transfer) override { return transfers_->finished(transfer); }
  void finish_transfer(TransferId transfer) override { transfers_->finish(transfer); }
  void keep_table(const MatrixSource& table) override;
  MatrixPtr pack(std::span<const MatrixSource> parts, MatrixUse use) override;

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
  // A pass as the kernels see it, and what the launches ask about it.
  struct Pass {
    PassDesc desc;
    int64_t most_visible = 0;
    int most_rows = 0;  // of one lane
    bool any_settled = false;
  };
  // The last description of each kind, and what it was made of: most operators of a pass ask for the same one.
  struct Described {
    int epoch = -1;
    int64_t rows = 0;
    std::vector<int64_t> numbers;  // of every lane, parents and page addresses
    Pass pass;
    std::vector<SpanLane> lanes;
    int item_group = 0, item_tiles = 0;  // of `items`, on the device
    const SpanItem* items = nullptr;
  };
  // The blocks of threads that a plan with tiles asks for, of the pass that was described last.
  const SpanItem* items_of_pass(int group, const SpanPlan& plan);
  const Pass& describe(const Batch& batch, int64_t rows, std::span<const PageTable> pages);
  const BlockLaneDesc* describe(std::span<const BlockLane> lanes, int& most_rows);
  // ---- Between operators: what the next one may take along. All of it ends with the next operator, which enqueues
  // what it cannot take.

  // A sum that a norm of the same rows may take along, and a copy of what it comes to.
  struct Sum {
    View x, inout, tap;
  };
  // The bf16 copy that the operator before left of its output.
  struct Rounded {
    View of;
    const uint16_t* bf16 = nullptr;
  };
  // Slices of a product that a sum and norm may add up.
  struct Sliced {
    View of;
    Planes planes;
  };
  // Results of experts that a sum and norm may combine.
  struct Combined {
    View of;
    Combination from;
  };
  // The convolution of a block, which a sum and norm may make.
  struct BlockConvolution {
    View x, base, delta, out;
    int group = 1, most_rows = 0;
    bool whole = false;  // every row is a lane's
    const BlockLaneDesc* lanes = nullptr;
    int lane_count = 0;
    const int32_t* place = nullptr;  // of every row in its block; null: the norm cannot make it
  };
  // What block_inputs takes of layers without queries: one launch stores the keys and values of all.
  struct ContextInputs {
    std::vector<BlockInputs> layers;
    KvLayout layout;
    std::vector<int> rows;  // first and number, of every lane
    int most_rows = 0;
  };
  // A convolution and a delta rule, which one kernel can run with the norm behind them.
  struct Convolution {
    View packed, weight, out;
    DeltaShape shape;
    Pass pass;
    std::vector<DeltaMemory> lanes;
  };
  struct Rule {
    View beta_alpha, decay_rate, dt_bias, out;
  };
  // Every operator begins with this or with take_rounded: what is pending is enqueued, the copy is forgotten.
  void begin();
  void finish_pending();
  void finish_sum();
  void finish_context();
  void finish_delta();
  void launch_rule(View conv, const Rule& rule, const DeltaShape& shape, const Pass& pass,
                   std::span<const DeltaMemory> lanes);
  void finish_commits();
  DeltaLanes lanes_on_device(std::span<const DeltaMemory> lanes);
  // bf16 of x: what the operator before left, or made now.
  const uint16_t* take_rounded(View x);
  // Room for a bf16 copy of `out`, which is then known to the next operator; null where its width does not allow one.
  uint16_t* leave_rounded(View out);
  void ffn(View x, const uint16_t* bf16, const ExpertWeights& w, View out, bool may_slice);
  // Working memory of gates and ups, and of what `down` reads.
  struct Gated {
    View gate_up, hidden;
    Hidden wanted;
  };
  Gated gated(int64_t rows, const CudaMatrix& down);
  void finish(const Gated& to, bool paired);  // gates and ups were multiplied: enqueues the rest
  // With `may_slice` the result may be left as slices for the next operator.
  void products(View x, const uint16_t* bf16, const CudaMatrix& w, View out, bool may_slice = false);
  // Outputs of all pairs of a routing by the experts' own matrices; `parts` is a table of them on the device.
  struct ExpertTable {
    std::vector<Buffer> parts;  // one per piece: Part of every expert
    std::vector<const CudaMatrix::Piece*> like;
  };
  struct MoeTables {
    bool with_shared = false;  // the shared expert is the last of the tables: its weights lie like the others'
    ExpertTable gate_up, down;
    std::optional<CudaMatrix> router_and_gate;  // the shared expert's gate as one more output, where both lie alike
    std::vector<const void*> codes;             // of some experts: what the tables were made of
  };
  static const Part* only_table(const ExpertTable& table);  // null where there are several
  ExpertTable expert_table(const MoeWeights& w, bool with_shared, bool down);
  std::optional<CudaMatrix> joined(const CudaMatrix& first, const CudaMatrix& second);
  const MoeTables& tables_of(const MoeWeights& w);

  struct Table {
    Buffer rows, order;
  };
  TokenTable table_of(const MatrixSource& table) const;
  // What an operator found, on the host; waits.
  const std::byte* bring(const std::byte* found, size_t bytes, const char* what);

  int device_ = 0;
  std::string detail_;
  std::unique_ptr<Queue> queue_;
  std::unique_ptr<Transfers> transfers_;
  Admission admission_;
  Sum sum_;
  Rounded rounded_;
  Sliced sliced_;
  Combined combined_;
  std::optional<BlockConvolution> block_convolution_;
  std::optional<ContextInputs> context_;
  std::optional<Convolution> convolution_;
  std::optional<Rule> rule_;
  Buffer arrivals_;                   // of the delta kernel
  Buffer brought_;                    // the host's copy of what an operator found
  Buffer found_;                      // the host's word that all_finite's kernel writes to
  std::vector<DeltaMemory> commits_;  // layers that take the same rows of their tapes
  std::vector<int32_t> committed_rows_;
  DeltaShape committed_shape_;
  DeviceScratch bf16_, ffn_, ffn_bf16_, own_rows_, partial_, delta_, moe_logits_, moe_pairs_, moe_hidden_, moe_routing_,
      moe_shared_, moe_gate_, work_, top_, top_ids_, chosen_, lattice_;
  std::unordered_map<const std::byte*, Table> tables_;
  std::unordered_map<const MoeWeights*, MoeTables> moe_tables_;
  Described described_[2];  // without pages, with them
  std::vector<int64_t> numbers_;
  std::vector<LaneDesc> lanes_;
  std::vector<RowDesc> rows_;
  std::vector<int32_t> paths_, words_;
  std::vector<BlockLaneDesc> block_lanes_;
};

}  // namespace foretoken::cuda
