// A backend with its own memory, driven by tests that keep everything on the host: every call copies what it is given to the
// device, padding and poison included, runs, and copies back what may have changed. Slow, and for tests alone.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ops/ops.h"

namespace foretoken::test {

class Mirrored final : public Backend {
 public:
  explicit Mirrored(std::unique_ptr<Backend> device) : Mirrored(std::move(device), {}) {}
  // With limits of its own, for tests of refusals.
  Mirrored(std::unique_ptr<Backend> device, std::optional<BackendLimits> limits)
      : device_(std::move(device)), arena_(device_->allocate(kArena)), limits_(limits.value_or(device_->limits())) {}
  BackendLimits limits() const override { return limits_; }
  Backend& device() { return *device_; }
  BackendInfo info() const override { return device_->info(); }
  MatrixPtr pack(std::span<const MatrixSource> parts, MatrixUse use) override { return device_->pack(parts, use); }

  bool all_finite(std::span<const View> views) override {
    Call c(*device_, arena_);
    std::vector<View> there;
    for (const View& view : views) there.push_back(c.view(view));
    return device_->all_finite(there);
  }
  void embed(std::span<const RowInput> inputs, const MatrixSource& table, View out) override {
    device_->keep_table(table);
    Call c(*device_, arena_);
    device_->embed(inputs, table, c.view(out));
  }
  void rms_norm(View x, View w, float epsilon, View out) override {
    Call c(*device_, arena_);
    device_->rms_norm(c.view(x), c.view(w), epsilon, c.view(out));
  }
  void linear(View x, const Matrix& w, View out) override {
    Call c(*device_, arena_);
    device_->linear(c.view(x), w, c.view(out));
  }
  void add(View x, View inout) override {
    Call c(*device_, arena_);
    device_->add(c.view(x), c.view(inout));
  }
  void scale(View inout, float factor) override {
    Call c(*device_, arena_);
    device_->scale(c.view(inout), factor);
  }
  void gather_rows(View x, std::span<const int> rows, View out) override {
    Call c(*device_, arena_);
    device_->gather_rows(c.view(x), rows, c.view(out));
  }
  void gated_ffn(View x, const ExpertWeights& w, View out) override {
    Call c(*device_, arena_);
    device_->gated_ffn(c.view(x), w, c.view(out));
  }
  void moe(View x, const MoeShape& shape, const MoeWeights& w, View out) override {
    Call c(*device_, arena_);
    device_->moe(c.view(x), shape, w, c.view(out));
  }
  void rotary_table(std::span<const RowInput> inputs, const RotarySpec& spec, View table) override {
    Call c(*device_, arena_);
    device_->rotary_table(inputs, spec, c.view(table));
  }
  void attention_inputs(View packed, View q_norm, View k_norm, View rotary, const AttentionShape& shape, const Batch& batch,
                        std::span<const PageTable> pages, const KvLayout& layout, int layer, View queries) override {
    Call c(*device_, arena_);
    device_->attention_inputs(c.view(packed), c.view(q_norm), c.view(k_norm), c.view(rotary), shape, batch, c.pages(pages, layout), layout,
                              layer, c.view(queries));
  }
  void attention(View queries, View packed, const AttentionShape& shape, const Batch& batch, std::span<const PageTable> pages,
                 const KvLayout& layout, int layer, View out) override {
    Call c(*device_, arena_);
    device_->attention(c.view(queries), c.view(packed), shape, batch, c.pages(pages, layout), layout, layer, c.view(out));
  }
  void commit_kv(PageTable pages, const KvLayout& layout, int64_t prefix, std::span<const int> path) override {
    Call c(*device_, arena_);
    device_->commit_kv(c.pages({&pages, 1}, layout)[0], layout, prefix, path);
  }
  void causal_conv(View packed, View weight, const DeltaShape& shape, const Batch& batch, std::span<const DeltaMemory> lanes,
                   View out) override {
    // The model's taps are dense; those of tests have poison between them.
    std::vector<float> taps;
    Call c(*device_, arena_);
    for (int64_t r = 0; r < weight.rows; ++r) taps.insert(taps.end(), weight.f32(r), weight.f32(r) + weight.cols);
    const std::vector<DeltaMemory> memory = c.lanes(lanes, shape, batch);
    device_->causal_conv(c.view(packed), c.view(View::of(taps.data(), weight.rows, weight.cols)), shape, batch, memory, c.view(out));
  }
  void delta_rule(View conv, View beta_alpha, View decay_rate, View dt_bias, const DeltaShape& shape, const Batch& batch,
                  std::span<const DeltaMemory> lanes, View out) override {
    Call c(*device_, arena_);
    const std::vector<DeltaMemory> memory = c.lanes(lanes, shape, batch);
    device_->delta_rule(c.view(conv), c.view(beta_alpha), c.view(decay_rate), c.view(dt_bias), shape, batch, memory, c.view(out));
  }
  void gated_norm(View x, View gate, View w, float epsilon, bool sigmoid_gate, View out) override {
    Call c(*device_, arena_);
    device_->gated_norm(c.view(x), c.view(gate), c.view(w), epsilon, sigmoid_gate, c.view(out));
  }
  void commit_delta(const DeltaShape& shape, const DeltaMemory& lane, int settled, std::span<const int> path) override {
    Call c(*device_, arena_);
    device_->commit_delta(shape, c.lane(lane, shape, path.empty() ? 0 : path.back() + 1), settled, path);
  }
  void block_inputs(View q, View kv, View q_norm, View k_norm, View rotary, const BlockShape& shape, std::span<const BlockLane> lanes,
                    const KvLayout& layout) override {
    Call c(*device_, arena_);
    const std::vector<BlockLane> blocks = c.blocks(lanes, layout);
    device_->block_inputs(q.empty() ? q : c.view(q), c.view(kv), c.view(q_norm), c.view(k_norm), c.view(rotary), shape, blocks, layout);
  }
  void block_attention(View queries, const BlockShape& shape, std::span<const BlockLane> lanes, const KvLayout& layout,
                       View out) override {
    Call c(*device_, arena_);
    const std::vector<BlockLane> blocks = c.blocks(lanes, layout);
    device_->block_attention(c.view(queries), shape, blocks, layout, c.view(out));
  }
  void block_conv(View x, View base, View delta, int group, std::span<const BlockLane> lanes, View out) override {
    Call c(*device_, arena_);
    device_->block_conv(c.view(x), c.view(base), c.view(delta), group, lanes, c.view(out));
  }
  void choose(View logits, std::span<const ChoiceSpec> specs, Choices& out) override {
    Call c(*device_, arena_);
    device_->choose(c.view(logits), specs, out);
  }
  void top_k(View logits, int k, std::span<TokenId> ids, View values) override {
    Call c(*device_, arena_);
    device_->top_k(c.view(logits), k, ids, c.view(values));
  }
  void selector_edges(View weights, View predecessors, View successors, View edges) override {
    Call c(*device_, arena_);
    device_->selector_edges(c.view(weights), c.view(predecessors), c.view(successors), c.view(edges));
  }
  void lattice(View logits, int k, View weights, const MatrixSource& predecessor, const MatrixSource& successor,
               std::span<const LatticeBlock> blocks, Lattice& out) override {
    for (const MatrixSource* table : {&predecessor, &successor}) device_->keep_table(*table);
    Call c(*device_, arena_);
    device_->lattice(c.view(logits), k, c.view(weights), predecessor, successor, blocks, out);
  }

 private:
  // The copies of one call; they go back to the host when it ends.
  class Call {
   public:
    Call(Backend& device, const Buffer& arena) : device_(device), arena_(arena) {}
    Call(const Call&) = delete;
    ~Call() {
      for (const Copy& c : copies_) device_.download(bytes(c.on, c.count), bytes(c.host, c.count));
    }
    // Rows with everything between them. Views of one matrix that overlap share a copy only when they begin together.
    View view(View host) {
      if (host.empty()) return host;
      const size_t count = static_cast<size_t>((host.rows - 1) * host.stride + host.cols) * dtype_bytes(host.dtype);
      View on = host;
      on.data = memory(host.data, count);
      return on;
    }
    std::byte* memory(std::byte* host, size_t count) {
      if (!host || count == 0) return nullptr;
      for (const Copy& c : copies_)
        if (c.host <= host && host + count <= c.host + c.count) return c.on + (host - c.host);
      const Copy copy{host, arena_.data() + used_, count};
      used_ += (count + 255) / 256 * 256;
      CHECK(used_ <= kArena);
      device_.upload(bytes(host, count), bytes(copy.on, count));
      copies_.push_back(copy);
      return copy.on;
    }
    std::span<const PageTable> pages(std::span<const PageTable> host, const KvLayout& layout) {
      page_pointers_.reserve(host.size());
      for (const PageTable& table : host) page_pointers_.push_back(page_pointers(table, layout));
      for (const auto& pointers : page_pointers_) page_tables_.push_back(pointers);
      return page_tables_;
    }
    std::vector<BlockLane> blocks(std::span<const BlockLane> host, const KvLayout& layout) {
      page_pointers_.reserve(host.size());
      std::vector<BlockLane> result(host.begin(), host.end());
      for (BlockLane& lane : result) {
        page_pointers_.push_back(page_pointers(lane.pages, layout));
        lane.pages = page_pointers_.back();
      }
      return result;
    }
    DeltaMemory lane(const DeltaMemory& host, const DeltaShape& shape, int rows) {
      const auto floats = [&](float* p, size_t count) {
        return reinterpret_cast<float*>(memory(reinterpret_cast<std::byte*>(p), count * sizeof(float)));
      };
      const size_t n = static_cast<size_t>(rows);
      return {floats(host.state, shape.state_floats()), floats(host.tail, shape.tail_floats()),
              {floats(host.tape.decay, n * size_t(shape.value_heads)), floats(host.tape.key, n * size_t(shape.key_heads * shape.key_dim)),
               floats(host.tape.delta, n * size_t(shape.value_heads * shape.value_dim)),
               floats(host.tape.conv_row, n * size_t(shape.channels()))}};
    }
    std::vector<DeltaMemory> lanes(std::span<const DeltaMemory> host, const DeltaShape& shape, const Batch& batch) {
      std::vector<DeltaMemory> result;
      for (size_t i = 0; i < host.size(); ++i)
        result.push_back(lane(host[i], shape, batch.lanes[i].settled < batch.lanes[i].rows ? batch.lanes[i].rows : 0));
      return result;
    }

   private:
    static View bytes(std::byte* p, size_t count) {
      return {p, DType::kU8, 1, static_cast<int64_t>(count), static_cast<int64_t>(count)};
    }
    std::vector<std::byte*> page_pointers(PageTable table, const KvLayout& layout) {
      std::vector<std::byte*> pointers;
      for (std::byte* page : table) pointers.push_back(memory(page, layout.page_bytes()));
      return pointers;
    }
    Backend& device_;
    struct Copy {
      std::byte *host, *on;
      size_t count;
    };
    const Buffer& arena_;
    size_t used_ = 0;
    std::vector<Copy> copies_;
    std::vector<std::vector<std::byte*>> page_pointers_;
    std::vector<PageTable> page_tables_;
  };

  static constexpr size_t kArena = 256u << 20;
  std::unique_ptr<Backend> device_;
  Buffer arena_;
  BackendLimits limits_;
};

}  // namespace foretoken::test
