// Random Q4_K weights of the released shapes, for benchmarks of a device: every matrix has memory of its own, filled from one buffer of random
// blocks, so that nothing is read from disk.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "model/dflash.h"
#include "model/mtp.h"
#include "model/target.h"

namespace foretoken {

// Random Q4_K blocks with factors that keep activations small; matrices take windows of it.
class RandomBlocks {
 public:
  explicit RandomBlocks(size_t bytes) : bytes_(bytes + kMostTables * kBlock) {
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      std::memcpy(bytes_.data() + i, &state, 8);
    }
    const F16 d = to_f16(2e-5f), dmin = to_f16(1.5e-4f);
    for (size_t i = 0; i + 144 <= bytes; i += 144) {
      std::memcpy(bytes_.data() + i, &d, 2);
      std::memcpy(bytes_.data() + i + 2, &dmin, 2);
    }
  }
  MatrixSource source(int64_t rows, int64_t cols) {
    const size_t need = static_cast<size_t>(rows) * row_bytes(QuantFormat::kQ4_K, cols);
    CHECK(need <= bytes_.size());
    packed_ += need;
    return {"random", QuantFormat::kQ4_K, rows, cols, std::span(bytes_).first(need), {}, {}};
  }
  // For Backend::embed, which knows tables by their address: each begins elsewhere.
  MatrixSource table(int64_t rows, int64_t cols) {
    CHECK(tables_ < kMostTables);
    MatrixSource source = this->source(rows, cols);
    source.data = std::span(bytes_).subspan(kBlock * tables_++, source.data.size());
    return source;
  }
  size_t packed() const { return packed_; }

 private:
  static constexpr size_t kBlock = 144, kMostTables = 8;
  std::vector<std::byte> bytes_;
  size_t packed_ = 0, tables_ = 0;
};

// `layers`: 0, all of them.
inline ModelConfig config_of(const std::string& shape, int layers) {
  ModelConfig c;
  c.vocab = 248320;
  c.attention = {.query_heads = 24, .kv_heads = 4, .head_dim = 256, .norm_epsilon = 1e-6f};
  c.delta = {.key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128, .kernel = 4, .grouped = false};
  c.layers = 64, c.hidden = 5120, c.ffn_width = 17408;
  if (shape == "a3b") {
    c.layers = 40, c.hidden = 2048;
    c.attention.query_heads = 16, c.attention.kv_heads = 2;
    c.delta.value_heads = 32;
    c.moe = {.experts = 256, .top_k = 8};
    c.expert_width = c.shared_width = 512;
  }
  if (layers > 0) c.layers = layers;
  for (int i = 0; i < c.layers; ++i) {
    c.attention_layer.push_back(i % 4 == 3);
    c.sparse_layer.push_back(c.moe.experts > 0);
  }
  for (int j = 0; j < 32; ++j) {
    c.rotary.inverse_frequency.push_back(std::pow(1e7f, -2.0f * static_cast<float>(j) / 64));
    c.rotary.axis.push_back(0);
  }
  return c;
}

inline Parameter ones(Backend& backend, int64_t rows, int64_t cols, float value = 1.0f) {
  const std::vector<float> values(static_cast<size_t>(rows * cols), value);
  return Parameter(backend, rows, cols, values);
}

inline MatrixPtr random_matrix(Backend& backend, RandomBlocks& blocks, const std::vector<int64_t>& rows, int64_t cols,
                               MatrixUse use = MatrixUse::kLinear) {
  std::vector<MatrixSource> parts;
  for (const int64_t r : rows) parts.push_back(blocks.source(r, cols));
  return backend.pack(parts, use);
}

inline ExpertWeights random_ffn(Backend& backend, RandomBlocks& blocks, int64_t hidden, int64_t width) {
  return {random_matrix(backend, blocks, {width, width}, hidden, MatrixUse::kGateUp), random_matrix(backend, blocks, {hidden}, width)};
}

// A layer with attention or the delta net, with experts or one feed-forward.
inline LayerWeights random_layer(const ModelConfig& c, Backend& backend, RandomBlocks& blocks, bool attention, bool sparse) {
  const auto pack = [&](std::vector<int64_t> rows, int64_t cols) { return random_matrix(backend, blocks, rows, cols); };
  LayerWeights layer;
  layer.mixer_norm = ones(backend, 1, c.hidden);
  layer.ffn_norm = ones(backend, 1, c.hidden);
  if (attention) {
    AttentionWeights a;
    a.in_proj = pack({c.attention.query_columns(), c.attention.packed_columns() - c.attention.query_columns()}, c.hidden);
    a.q_norm = ones(backend, 1, c.attention.head_dim);
    a.k_norm = ones(backend, 1, c.attention.head_dim);
    a.out_proj = pack({c.hidden}, int64_t{c.attention.query_heads} * c.attention.head_dim);
    layer.mixer = std::move(a);
  } else {
    DeltaWeights d;
    d.in_proj = pack({c.delta.channels(), c.delta_value_columns(), c.delta.value_heads, c.delta.value_heads}, c.hidden);
    d.conv = ones(backend, c.delta.channels(), c.delta.kernel, 0.25f);
    d.decay_rate = ones(backend, 1, c.delta.value_heads, -0.1f);
    d.dt_bias = ones(backend, 1, c.delta.value_heads);
    d.norm = ones(backend, 1, c.delta.value_dim);
    d.out_proj = pack({c.hidden}, c.delta_value_columns());
    layer.mixer = std::move(d);
  }
  if (!sparse) {
    layer.ffn = random_ffn(backend, blocks, c.hidden, c.ffn_width);
    return layer;
  }
  MoeWeights m;
  m.router = pack({c.moe.experts}, c.hidden);
  for (int e = 0; e < c.moe.experts; ++e) m.experts.push_back(random_ffn(backend, blocks, c.hidden, c.expert_width));
  m.shared = random_ffn(backend, blocks, c.hidden, c.shared_width);
  m.shared_gate = pack({1}, c.hidden);
  layer.ffn = std::move(m);
  return layer;
}

// `tokens`: rows of the embedding.
inline Weights random_weights(const ModelConfig& c, Backend& backend, RandomBlocks& blocks, int64_t tokens) {
  Weights w;
  w.embedding = blocks.table(tokens, c.hidden);
  backend.keep_table(w.embedding);
  for (int i = 0; i < c.layers; ++i) w.layers.push_back(random_layer(c, backend, blocks, c.is_attention(i), c.is_sparse(i)));
  w.final_norm = ones(backend, 1, c.hidden);
  w.head = random_matrix(backend, blocks, {c.vocab}, c.hidden);
  return w;
}

// Gives an empty lane `tokens` tokens (a multiple of 32) that nothing computed: small random bf16 keys and values, and a state of zeros.
inline void fill_context(TargetModel& target, LaneState& lane, int64_t tokens) {
  const size_t page_bytes = target.pages().layout().page_bytes();
  std::vector<std::byte> page(page_bytes);
  uint32_t state = 2463534242u;
  for (size_t i = 0; i + 2 <= page_bytes; i += 2) {
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    const uint16_t value = static_cast<uint16_t>((state & 0x807Fu) | 0x3D00u);  // 0.03 to 0.06, of either sign
    std::memcpy(page.data() + i, &value, 2);
  }
  std::vector<std::byte> pages;
  for (int64_t i = 0; i < tokens / kPageTokens; ++i) pages.insert(pages.end(), page.begin(), page.end());
  const std::vector<std::byte> recurrent(lane.checkpoint()->recurrent_bytes());
  const auto filled = Checkpoint::from_bytes(target.config(), target.pages(), tokens, pages, recurrent);
  CHECK(filled != nullptr);
  lane.restore(*filled);
}

// The native head of the shape: one attention layer with the trunk's feed-forward.
inline MtpWeights random_mtp(const ModelConfig& c, Backend& backend, RandomBlocks& blocks) {
  MtpWeights w;
  w.embedding_norm = ones(backend, 1, c.hidden);
  w.hidden_norm = ones(backend, 1, c.hidden);
  w.norm = ones(backend, 1, c.hidden);
  w.fusion = random_matrix(backend, blocks, {c.hidden}, 2 * c.hidden);
  w.layer = random_layer(c, backend, blocks, true, c.moe.experts > 0);
  return w;
}

// The released DFlash 2 drafter of the 27B shape; for a3b the same with that model's hidden size and a feed-forward of 6,144, of which
// nothing is published.
inline DflashConfig drafter_config_of(const std::string& shape, const ModelConfig& c) {
  DflashConfig d;
  d.kind = DrafterKind::kDflash2;
  d.layers = 5, d.hidden = c.hidden, d.ffn_width = shape == "a3b" ? 6144 : 17408, d.vocab = c.vocab;
  d.query_heads = 32, d.kv_heads = 8, d.head_dim = 128;
  for (int j = 0; j < 64; ++j) {
    d.rotary.inverse_frequency.push_back(std::pow(1e7f, -2.0f * static_cast<float>(j) / 128));
    d.rotary.axis.push_back(0);
  }
  d.window.assign(5, 2048);
  d.causal.assign(5, false);
  d.block_size = 8;
  d.mask_token = 248070;
  for (int i = 0; i < 5; ++i) d.taps.push_back(c.layers * (2 * i + 1) / 10);
  d.target_layers = c.layers;
  d.conv_taps = 2, d.conv_group = 16, d.selector_rank = 256, d.top_k = 16;
  return d;
}

inline DflashWeights random_drafter(const DflashConfig& d, Backend& backend, RandomBlocks& blocks) {
  const auto pack = [&](std::vector<int64_t> rows, int64_t cols) { return random_matrix(backend, blocks, rows, cols); };
  const int64_t side = int64_t{d.conv_taps} * (d.hidden / d.conv_group);
  const auto convolution = [&] {
    DflashConvolution conv;
    conv.base = ones(backend, 2 * d.conv_taps, d.hidden, 0.5f);
    conv.projection = pack({2 * side}, d.hidden);
    return conv;
  };
  DflashWeights w;
  w.fusion = pack({d.hidden}, static_cast<int64_t>(d.taps.size()) * d.hidden);
  w.hidden_norm = ones(backend, 1, d.hidden);
  w.norm = ones(backend, 1, d.hidden);
  for (int i = 0; i < d.layers; ++i) {
    DflashLayer layer;
    layer.mixer_norm = ones(backend, 1, d.hidden);
    layer.ffn_norm = ones(backend, 1, d.hidden);
    layer.qkv = pack({int64_t{d.query_heads + 2 * d.kv_heads} * d.head_dim}, d.hidden);
    layer.out = pack({d.hidden}, int64_t{d.query_heads} * d.head_dim);
    layer.q_norm = ones(backend, 1, d.head_dim);
    layer.k_norm = ones(backend, 1, d.head_dim);
    layer.ffn = random_ffn(backend, blocks, d.hidden, d.ffn_width);
    layer.mixer_conv = convolution();
    layer.ffn_conv = convolution();
    w.layers.push_back(std::move(layer));
  }
  w.context_kv = pack({int64_t{d.layers} * 2 * d.kv_heads * d.head_dim}, d.hidden);
  w.predecessor = blocks.table(d.vocab, d.selector_rank);
  w.successor = blocks.table(d.vocab, d.selector_rank);
  backend.keep_table(w.predecessor);
  backend.keep_table(w.successor);
  w.selector = pack({d.selector_rank}, d.hidden);
  return w;
}

}  // namespace foretoken
