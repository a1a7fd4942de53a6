// A backend on the host that behaves as one with memory of its own: what `allocate` hands out are addresses that the
// host cannot touch (it faults), operators take nothing else, and transfers are done late, some polls after they began
// or when they are waited for. Until then their targets hold poison, and what they copy is what their sources hold at
// the end; each piece has to be of one allocation on either side. Test-only.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/ops.h"

namespace foretoken::test {

// Addresses in a row: what was taken after something else begins where that ends, where its size allows it, as with
// memory of a device.
class Row {
 public:
  static constexpr size_t kBytes = size_t{8} << 30;  // of addresses; memory comes when it is written

  explicit Row(int protection) {
    void* p = ::mmap(nullptr, kBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    begin_ = static_cast<std::byte*>(p);
  }
  std::byte* begin() const { return begin_; }
  bool holds(const void* p) const { return p >= begin_ && p < begin_ + kBytes; }
  // Whether the bytes are all of one taking, as a device demands of what it copies at once.
  bool are_one(const std::byte* p, size_t bytes) const {
    const std::scoped_lock lock(mutex_);
    auto after = size_of_.upper_bound(const_cast<std::byte*>(p));
    return after != size_of_.begin() && p + bytes <= std::prev(after)->first + std::prev(after)->second;
  }
  std::byte* take(size_t bytes) {
    const std::scoped_lock lock(mutex_);
    std::vector<std::byte*>& spare = spare_[bytes];
    if (!spare.empty()) {
      std::byte* p = spare.back();
      spare.pop_back();
      return p;
    }
    CHECK(used_ + bytes <= kBytes);
    std::byte* p = begin_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    size_of_[p] = bytes;
    return p;
  }
  size_t size_of(std::byte* p) const {
    const std::scoped_lock lock(mutex_);
    return size_of_.at(p);
  }
  void give_back(std::byte* p) {
    const std::scoped_lock lock(mutex_);
    spare_[size_of_.at(p)].push_back(p);
  }

 private:
  mutable std::mutex mutex_;
  std::byte* begin_;
  size_t used_ = 0;
  std::map<std::byte*, size_t> size_of_;
  std::map<size_t, std::vector<std::byte*>> spare_;
};

// Addresses for operators, and the memory behind them at another place; staging memory.
class FarMemory {
 public:
  static FarMemory& instance() {
    static FarMemory memory;
    return memory;
  }
  bool holds(const void* p) const { return far_.holds(p); }
  std::byte* near(const std::byte* p) const {
    if (p == nullptr) return nullptr;
    CHECK(holds(p));
    return near_.begin() + (p - far_.begin());
  }
  Buffer take(size_t bytes) {
    if (bytes == 0) return Buffer();
    std::byte* p = far_.take(bytes);
    std::memset(near(p), 0, bytes);
    return Buffer(p, bytes, [](std::byte* q) {
      FarMemory& memory = instance();
      std::memset(memory.near(q), 0xA5, memory.far_.size_of(q));
      memory.far_.give_back(q);
    });
  }
  Buffer take_staging(size_t bytes) {
    if (bytes == 0) return Buffer();
    std::byte* p = staging_.take(bytes);
    std::memset(p, 0, bytes);
    return Buffer(p, bytes, [](std::byte* q) { instance().staging_.give_back(q); });
  }
  bool are_one(const TransferPiece& piece, TransferWay way) const {
    const bool out = way == TransferWay::kToStaging;
    return (out ? far_ : staging_).are_one(piece.from, piece.bytes) &&
           (out ? staging_ : far_).are_one(piece.to, piece.bytes);
  }

 private:
  Row far_{PROT_NONE}, near_{PROT_READ | PROT_WRITE}, staging_{PROT_READ | PROT_WRITE};
};

class FarBackend final : public Backend {
 public:
  // `late`: polls after which a transfer is done, 0 to this many, in turn.
  explicit FarBackend(std::unique_ptr<Backend> inner, int late = 0) : inner_(std::move(inner)), late_(late) {}

  struct Counts {
    int transfers = 0, pieces = 0, waits = 0;
    uint64_t uploaded = 0, downloaded = 0;  // bytes, but for transfers
  };
  const Counts& counts() const { return counts_; }
  void set_late(int polls) { late_ = polls; }

  BackendInfo info() const override { return {.name = "far", .detail = inner_->info().detail, .packing = ""}; }
  BackendLimits limits() const override { return inner_->limits(); }
  MatrixPtr pack(std::span<const MatrixSource> parts, MatrixUse use) override { return inner_->pack(parts, use); }

  // ---- Memory
  bool on_host() const override { return false; }
  Buffer allocate(size_t bytes) override { return memory_.take(bytes); }
  Buffer allocate_staging(size_t bytes) override { return memory_.take_staging(bytes); }
  void upload(View host, View to) override {
    CHECK(!memory_.holds(host.data));
    counts_.uploaded += bytes(host);
    inner_->upload(host, at(to));
  }
  void download(View from, View host) override {
    CHECK(!memory_.holds(host.data));
    counts_.downloaded += bytes(host);
    inner_->download(at(from), host);
  }
  void copy(View from, View to) override { inner_->copy(at(from), at(to)); }
  void clear(View memory) override { inner_->clear(at(memory)); }
  bool all_finite(std::span<const View> views) override {
    std::vector<View> here;
    for (const View& view : views) here.push_back(at(view));
    return inner_->all_finite(here);
  }
  TransferId begin_transfer(std::span<const TransferPiece> pieces, TransferWay way) override {
    Late transfer{.id = ++last_transfer_,
                  .way = way,
                  .polls = late_ == 0 ? 0 : static_cast<int>(last_transfer_ * 7 % (late_ + 1)),
                  .pieces = {}};
    for (TransferPiece piece : pieces) {
      const bool out = way == TransferWay::kToStaging;
      CHECK(memory_.holds(piece.to) != out);
      CHECK(memory_.holds(piece.from) == out);
      CHECK(memory_.are_one(piece, way));
      if (out) piece.from = memory_.near(piece.from);
      else piece.to = memory_.near(piece.to);
      std::memset(piece.to, 0xFF, piece.bytes);
      transfer.pieces.push_back(piece);
      ++counts_.pieces;
    }
    ++counts_.transfers;
    late_transfers_.push_back(std::move(transfer));
    return last_transfer_;
  }
  bool transfer_finished(TransferId id) override {
    for (Late& t : late_transfers_)
      if (t.id == id && t.polls-- > 0) return false;
    run_until(id);
    return true;
  }
  void finish_transfer(TransferId id) override {
    ++counts_.waits;
    run_until(id);
  }

  // ---- Operators
  void embed(std::span<const RowInput> inputs, const MatrixSource& table, View out) override {
    inner_->embed(inputs, table, at(out));
  }
  void rms_norm(View x, View w, float epsilon, View out) override { inner_->rms_norm(at(x), at(w), epsilon, at(out)); }
  void linear(View x, const Matrix& w, View out) override { inner_->linear(at(x), w, at(out)); }
  void add(View x, View inout) override { inner_->add(at(x), at(inout)); }
  void scale(View inout, float factor) override { inner_->scale(at(inout), factor); }
  void gather_rows(View x, std::span<const int> rows, View out) override { inner_->gather_rows(at(x), rows, at(out)); }
  void gated_ffn(View x, const ExpertWeights& w, View out) override { inner_->gated_ffn(at(x), w, at(out)); }
  void moe(View x, const MoeShape& shape, const MoeWeights& w, View out) override {
    inner_->moe(at(x), shape, w, at(out));
  }
  void rotary_table(std::span<const RowInput> inputs, const RotarySpec& spec, View table) override {
    inner_->rotary_table(inputs, spec, at(table));
  }
  void attention_inputs(View packed, View q_norm, View k_norm, View rotary, const AttentionShape& shape,
                        const Batch& batch, std::span<const PageTable> pages, const KvLayout& layout, int layer,
                        View queries) override {
    const Tables tables(*this, pages);
    inner_->attention_inputs(at(packed), at(q_norm), at(k_norm), at(rotary), shape, batch, tables.views, layout, layer,
                             at(queries));
  }
  void attention(View queries, View packed, const AttentionShape& shape, const Batch& batch,
                 std::span<const PageTable> pages, const KvLayout& layout, int layer, View out) override {
    const Tables tables(*this, pages);
    inner_->attention(at(queries), at(packed), shape, batch, tables.views, layout, layer, at(out));
  }
  void commit_kv(PageTable pages, const KvLayout& layout, int64_t prefix, std::span<const int> path) override {
    inner_->commit_kv(Tables(*this, {&pages, 1}).views[0], layout, prefix, path);
  }
  void causal_conv(View packed, View weight, const DeltaShape& shape, const Batch& batch,
                   std::span<const DeltaMemory> lanes, View out) override {
    inner_->causal_conv(at(packed), at(weight), shape, batch, at(lanes), at(out));
  }
  void delta_rule(View conv, View beta_alpha, View decay_rate, View dt_bias, const DeltaShape& shape,
                  const Batch& batch, std::span<const DeltaMemory> lanes, View out) override {
    inner_->delta_rule(at(conv), at(beta_alpha), at(decay_rate), at(dt_bias), shape, batch, at(lanes), at(out));
  }
  void gated_norm(View x, View gate, View w, float epsilon, bool sigmoid_gate, View out) override {
    inner_->gated_norm(at(x), at(gate), at(w), epsilon, sigmoid_gate, at(out));
  }
  void commit_delta(const DeltaShape& shape, const DeltaMemory& lane, int settled, std::span<const int> path) override {
    inner_->commit_delta(shape, at(std::span(&lane, 1))[0], settled, path);
  }
  void block_inputs(View q, View kv, View q_norm, View k_norm, View rotary, const BlockShape& shape,
                    std::span<const BlockLane> lanes, const KvLayout& layout) override {
    const Blocks blocks(*this, lanes);
    inner_->block_inputs(at(q), at(kv), at(q_norm), at(k_norm), at(rotary), shape, blocks.lanes, layout);
  }
  void block_attention(View queries, const BlockShape& shape, std::span<const BlockLane> lanes, const KvLayout& layout,
                       View out) override {
    const Blocks blocks(*this, lanes);
    inner_->block_attention(at(queries), shape, blocks.lanes, layout, at(out));
  }
  void block_conv(View x, View base, View delta, int group, std::span<const BlockLane> lanes, View out) override {
    const Blocks blocks(*this, lanes);
    inner_->block_conv(at(x), at(base), at(delta), group, blocks.lanes, at(out));
  }
  void choose(View logits, std::span<const ChoiceSpec> specs, Choices& out) override {
    inner_->choose(at(logits), specs, out);
  }
  void top_k(View logits, int k, std::span<TokenId> ids, View values) override {
    inner_->top_k(at(logits), k, ids, at(values));
  }
  void selector_edges(View weights, View predecessors, View successors, View edges) override {
    inner_->selector_edges(at(weights), at(predecessors), at(successors), at(edges));
  }
  void lattice(View logits, int k, View weights, const MatrixSource& predecessor, const MatrixSource& successor,
               std::span<const LatticeBlock> blocks, Lattice& out) override {
    inner_->lattice(at(logits), k, weights.empty() ? weights : at(weights), predecessor, successor, blocks, out);
  }

 private:
  struct Late {
    TransferId id;
    TransferWay way;
    int polls;
    std::vector<TransferPiece> pieces;
  };
  // All of the same way up to this one.
  void run_until(TransferId id) {
    const auto found =
        std::find_if(late_transfers_.begin(), late_transfers_.end(), [id](const Late& t) { return t.id == id; });
    if (found == late_transfers_.end()) return;
    const TransferWay way = found->way;
    std::erase_if(late_transfers_, [&](const Late& t) {
      if (t.way != way || t.id > id) return false;
      for (const TransferPiece& piece : t.pieces) std::memcpy(piece.to, piece.from, piece.bytes);
      return true;
    });
  }

  static uint64_t bytes(View v) { return static_cast<uint64_t>(v.rows * v.cols) * dtype_bytes(v.dtype); }
  View at(View v) const {
    v.data = v.empty() ? nullptr : memory_.near(v.data);
    return v;
  }
  std::vector<std::byte*> at(PageTable pages) const {
    std::vector<std::byte*> result;
    for (const std::byte* page : pages) result.push_back(memory_.near(page));
    return result;
  }
  float* at(float* p) const { return reinterpret_cast<float*>(memory_.near(reinterpret_cast<std::byte*>(p))); }
  std::vector<DeltaMemory> at(std::span<const DeltaMemory> lanes) const {
    std::vector<DeltaMemory> result;
    for (const DeltaMemory& m : lanes)
      result.push_back(
          {at(m.state), at(m.tail), {at(m.tape.decay), at(m.tape.key), at(m.tape.delta), at(m.tape.conv_row)}});
    return result;
  }
  struct Tables {
    Tables(const FarBackend& b, std::span<const PageTable> pages) {
      for (const PageTable& table : pages) memory.push_back(b.at(table));
      for (const auto& table : memory) views.push_back(table);
    }
    std::vector<std::vector<std::byte*>> memory;
    std::vector<PageTable> views;
  };
  struct Blocks {
    Blocks(const FarBackend& b, std::span<const BlockLane> from) : lanes(from.begin(), from.end()) {
      for (const BlockLane& lane : lanes) memory.push_back(b.at(lane.pages));
      for (size_t i = 0; i < lanes.size(); ++i) lanes[i].pages = memory[i];
    }
    std::vector<BlockLane> lanes;
    std::vector<std::vector<std::byte*>> memory;
  };

  std::unique_ptr<Backend> inner_;
  FarMemory& memory_ = FarMemory::instance();
  int late_ = 0;
  TransferId last_transfer_ = 0;
  std::deque<Late> late_transfers_;
  Counts counts_;
};

}  // namespace foretoken::test
