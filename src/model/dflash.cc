// A block drafter, top to bottom: fused context once per token; then one pass over the rows of all blocks; then candidates.
#include "model/dflash.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/window.h"
#include "numerics/canonical.h"

namespace foretoken {
namespace {

int64_t rounded_up(int64_t value) { return (value + kPageTokens - 1) / kPageTokens * kPageTokens; }

KvLayout layer_layout(const DflashConfig& config, KvFormat format) {
  return {.layers = 1, .heads = config.kv_heads, .head_dim = config.head_dim, .format = format};
}

float tanh_of(float x) { return 2.0f * canonical::sigmoid(2.0f * x) - 1.0f; }

}  // namespace

// ---- Lanes

DflashLane::DflashLane(const DflashConfig& config, PagePool& pool) : pool_(pool) {
  for (int window : config.window) {
    Layer layer;
    // The rows of a block are written behind the context before any of them is read: room for both.
    if (window > 0) layer.ring_slots = rounded_up(window - 1 + config.block_size);
    layers_.push_back(std::move(layer));
  }
}

void DflashLane::restart(int64_t position) {
  CHECK(position >= 0);
  for (Layer& layer : layers_) {
    for (std::byte* page : layer.pages) pool_.give_back(page);
    layer.pages.clear();
  }
  base_ = position / kPageTokens * kPageTokens;
  first_ = end_ = position;
}

// A window for each layer, each behind its size.
std::vector<std::byte> DflashLane::save() const {
  std::vector<std::byte> saved;
  for (const Layer& layer : layers_) {
    const int64_t rows = end_ - base_;
    const std::vector<std::byte> window =
        save_window(pool_.backend(), pool_.layout(), base_, first_, end_, layer.pages, layer.ring_slots > 0 ? std::min(rows, layer.ring_slots) : rows);
    const uint64_t size = window.size();
    const auto* bytes = reinterpret_cast<const std::byte*>(&size);
    saved.insert(saved.end(), bytes, bytes + sizeof size);
    saved.insert(saved.end(), window.begin(), window.end());
  }
  return saved;
}

bool DflashLane::load(std::span<const std::byte> saved, int64_t end) {
  std::vector<SavedWindow> windows;
  for (const Layer& layer : layers_) {
    uint64_t size = 0;
    if (saved.size() < sizeof size) return false;
    std::memcpy(&size, saved.data(), sizeof size);
    saved = saved.subspan(sizeof size);
    if (size > saved.size()) return false;
    const auto window = open_window(pool_.layout(), saved.first(size));
    saved = saved.subspan(size);
    if (!window || window->end != end || window->base != window->first / kPageTokens * kPageTokens) return false;
    const int64_t rows = end - window->base, slots = layer.ring_slots > 0 ? std::min(rows, layer.ring_slots) : rows;
    if (window->pages != (slots + kPageTokens - 1) / kPageTokens) return false;
    if (!windows.empty() && (window->base != windows[0].base || window->first != windows[0].first)) return false;
    windows.push_back(*window);
  }
  if (!saved.empty() || windows.empty()) return false;
  restart(windows[0].first);
  reserve(end);
  for (size_t l = 0; l < layers_.size(); ++l) copy_window(pool_.backend(), windows[l], pool_.layout(), layers_[l].pages);
  end_ = end;
  return true;
}

void DflashLane::reserve(int64_t end) {
  for (Layer& layer : layers_) {
    const int64_t slots = layer.ring_slots > 0 ? layer.ring_slots : end - base_;
    while (static_cast<int64_t>(layer.pages.size()) * kPageTokens < slots) layer.pages.push_back(pool_.take());
  }
}

// ---- Drafts

void DflashDraft::greedy_walk(std::vector<int>& path) const {
  path.clear();
  for (int slot = 0; slot < slots; ++slot) {
    const int previous = slot == 0 ? 0 : path.back();
    int best = 0;
    for (int k = 1; k < top_k; ++k)
      if (score(slot, previous, k) > score(slot, previous, best)) best = k;
    path.push_back(best);
  }
}

// ---- The model

Result<std::unique_ptr<DflashModel>> DflashModel::load(const Bundle& bundle, const ModelConfig& target, const Weights& trunk,
                                                       Backend& backend, const DflashOptions& options, PackedCache* cache) {
  ASSIGN_OR_RETURN(DflashConfig config, DflashConfig::from_bundle(bundle, target));
  ASSIGN_OR_RETURN(DflashWeights weights, DflashWeights::load(bundle, config, backend, options.weights, cache));
  return std::unique_ptr<DflashModel>(
      new DflashModel(target, trunk, backend, options, std::move(config), std::move(weights)));
}

DflashModel::DflashModel(const ModelConfig& target, const Weights& trunk, Backend& backend, const DflashOptions& options,
                         DflashConfig config, DflashWeights weights)
    : target_(target), trunk_(trunk), backend_(backend), options_(options), config_(std::move(config)),
      weights_(std::move(weights)), pages_(layer_layout(config_, options.kv_format), backend) {
  block_lanes_.resize(static_cast<size_t>(config_.layers));
}

BlockShape DflashModel::shape(int layer) const {
  return {.query_heads = config_.query_heads,
          .kv_heads = config_.kv_heads,
          .head_dim = config_.head_dim,
          .norm_epsilon = config_.norm_epsilon,
          .window = config_.window[static_cast<size_t>(layer)],
          .causal = config_.causal[static_cast<size_t>(layer)]};
}

void DflashModel::extend(View features, std::span<const DflashContext> lanes) {
  CHECK(features.cols == static_cast<int64_t>(config_.taps.size()) * config_.hidden);
  rows_.clear();
  inputs_.clear();
  for (auto& layer : block_lanes_) layer.clear();
  for (const DflashContext& entry : lanes) {
    DflashLane& lane = *entry.lane;
    const int64_t count = static_cast<int64_t>(entry.rows.size()), end = lane.end_ + count;
    lane.reserve(end + config_.block_size);
    // A ring takes the last rows of a long prompt only; rows that no layer takes are not even fused.
    int64_t taken = 0;
    for (const DflashLane::Layer& layer : lane.layers_)
      taken = std::max(taken, layer.ring_slots > 0 ? std::min(count, layer.ring_slots) : count);
    const int first_row = static_cast<int>(rows_.size());
    for (int64_t i = count - taken; i < count; ++i) {
      const int32_t position = static_cast<int32_t>(lane.end_ + i);
      rows_.push_back(entry.rows[static_cast<size_t>(i)]);
      inputs_.push_back({.position = {position, position, position}});
    }
    for (size_t l = 0; l < block_lanes_.size(); ++l) {
      const DflashLane::Layer& layer = lane.layers_[l];
      const int64_t kept = layer.ring_slots > 0 ? std::min(count, layer.ring_slots) : count;
      block_lanes_[l].push_back({.first_row = first_row + static_cast<int>(taken - kept),
                                 .rows = static_cast<int>(kept),
                                 .base = lane.base_,
                                 .begin = end - kept,  // nothing earlier is read here
                                 .end = end - kept,
                                 .pages = layer.pages});
    }
    lane.end_ = end;
  }
  const int64_t rows = static_cast<int64_t>(rows_.size());
  if (rows == 0) return;

  const View gathered = features_.rows(rows, features.cols), context = x_.rows(rows, config_.hidden);
  rotary_table_ = rotary_.rows(rows, config_.rotary.rotary_dim());
  backend_.rotary_table(inputs_, config_.rotary, rotary_table_);
  backend_.gather_rows(features, rows_, gathered);
  backend_.linear(gathered, *weights_.fusion, context);
  backend_.rms_norm(context, weights_.hidden_norm, config_.norm_epsilon, context);
  const int64_t columns = 2 * int64_t{config_.kv_heads} * config_.head_dim;
  const View kv = context_kv_.rows(rows, config_.layers * columns);
  backend_.linear(context, *weights_.context_kv, kv);  // straight from the fused rows: no input norm, no convolution
  for (int layer = 0; layer < config_.layers; ++layer) {
    const DflashLayer& w = weights_.layers[static_cast<size_t>(layer)];
    backend_.block_inputs({}, kv.columns(layer * columns, (layer + 1) * columns), w.q_norm, w.k_norm, rotary_table_, shape(layer),
                          block_lanes_[static_cast<size_t>(layer)], pages_.layout());
  }
}

std::span<const DflashDraft> DflashModel::draft(std::span<const DflashBlock> blocks) {
  inputs_.clear();
  rows_.clear();
  for (auto& layer : block_lanes_) layer.clear();
  for (const DflashBlock& block : blocks) {
    DflashLane& lane = *block.lane;
    CHECK(block.rows >= config_.min_rows());
    CHECK(block.rows <= config_.block_size);
    lane.reserve(lane.end_ + config_.block_size);
    const int first_row = static_cast<int>(inputs_.size());
    for (int i = 0; i < block.rows; ++i) {
      const int32_t position = static_cast<int32_t>(lane.end_ + i);
      inputs_.push_back({.token = i == 0 ? block.anchor : config_.mask_token, .position = {position, position, position}});
      if (i > 0 || config_.anchor_predicts) rows_.push_back(first_row + i);
    }
    for (size_t l = 0; l < block_lanes_.size(); ++l)
      block_lanes_[l].push_back({.first_row = first_row,
                                 .rows = block.rows,
                                 .base = lane.base_,
                                 .begin = lane.first_,
                                 .end = lane.end_,
                                 .pages = lane.layers_[l].pages});
  }
  drafts_.clear();
  const int64_t rows = static_cast<int64_t>(inputs_.size());
  if (rows == 0) return drafts_;

  const View x = x_.rows(rows, config_.hidden), h = h_.rows(rows, config_.hidden), mixed = mixed_.rows(rows, config_.hidden);
  backend_.embed(inputs_, trunk_.embedding, x);
  if (config_.embedding_scale != 1.0f) backend_.scale(x, config_.embedding_scale);
  rotary_table_ = rotary_.rows(rows, config_.rotary.rotary_dim());
  backend_.rotary_table(inputs_, config_.rotary, rotary_table_);
  for (int layer = 0; layer < config_.layers; ++layer) {
    const DflashLayer& w = weights_.layers[static_cast<size_t>(layer)];
    backend_.rms_norm(x, w.mixer_norm, config_.norm_epsilon, h);
    convolved(w.mixer_conv, layer, h, mixed, [&](View in, View out) { mixer(layer, in, out); });
    backend_.add(mixed, x);
    backend_.rms_norm(x, w.ffn_norm, config_.norm_epsilon, h);
    convolved(w.ffn_conv, layer, h, mixed, [&](View in, View out) { backend_.gated_ffn(in, w.ffn, out); });
    backend_.add(mixed, x);
  }
  const int64_t slots = static_cast<int64_t>(rows_.size());
  const View hidden = hidden_.rows(slots, config_.hidden), logits = logits_.rows(slots, target_.vocab);
  backend_.rms_norm(x, weights_.norm, config_.norm_epsilon, h);  // of all rows, since it takes the sum along
  backend_.gather_rows(h, rows_, hidden);
  backend_.linear(hidden, *trunk_.head, logits);
  take_candidates(hidden, logits, blocks);
  return drafts_;
}

void DflashModel::mixer(int layer, View h, View out) {
  const DflashLayer& w = weights_.layers[static_cast<size_t>(layer)];
  const std::span<const BlockLane> lanes = block_lanes_[static_cast<size_t>(layer)];
  const int64_t query_columns = int64_t{config_.query_heads} * config_.head_dim;
  const View qkv = qkv_.rows(h.rows, query_columns + 2 * int64_t{config_.kv_heads} * config_.head_dim);
  const View queries = qkv.columns(0, query_columns), kv = qkv.columns(query_columns, qkv.cols);
  const View core = core_.rows(h.rows, query_columns);
  backend_.linear(h, *w.qkv, qkv);
  backend_.block_inputs(queries, kv, w.q_norm, w.k_norm, rotary_table_, shape(layer), lanes, pages_.layout());
  backend_.block_attention(queries, shape(layer), lanes, pages_.layout(), core);
  backend_.linear(core, *w.out, out);
}

// out = sublayer(h); with a convolution, h is convolved before it and its output after it, both by kernels made from h.
template <class Sublayer>
void DflashModel::convolved(const DflashConvolution& w, int layer, View h, View out, Sublayer sublayer) {
  if (!w.projection) return sublayer(h, out);
  const std::span<const BlockLane> lanes = block_lanes_[static_cast<size_t>(layer)];
  const int64_t taps = config_.conv_taps, side = taps * (config_.hidden / config_.conv_group);
  const View delta = delta_.rows(h.rows, 2 * side), before = before_.rows(h.rows, h.cols), after = after_.rows(h.rows, h.cols);
  const View base = w.base.view();
  backend_.linear(h, *w.projection, delta);
  backend_.block_conv(h, base.row_range(0, taps), delta.columns(0, side), config_.conv_group, lanes, before);
  sublayer(before, after);
  backend_.block_conv(after, base.row_range(taps, 2 * taps), delta.columns(side, 2 * side), config_.conv_group, lanes, out);
}

void DflashModel::take_candidates(View hidden, View logits, std::span<const DflashBlock> blocks) {
  const int k = config_.top_k;
  const int64_t slots = hidden.rows;
  confidence_.assign(weights_.confidence.empty() ? 0 : static_cast<size_t>(slots), 0.0f);
  lattice_blocks_.clear();
  int slot = 0;
  for (const DflashBlock& block : blocks) {
    lattice_blocks_.push_back({.first = slot, .slots = config_.slots(block.rows), .anchor = block.anchor});
    slot += lattice_blocks_.back().slots;
  }
  if (config_.kind == DrafterKind::kDspark) {
    markov_candidates(hidden, logits);
  } else {
    View weights;
    if (weights_.selector) backend_.linear(hidden, *weights_.selector, weights = selector_.rows(slots, config_.selector_rank));
    backend_.lattice(logits, k, weights, weights_.predecessor, weights_.successor, lattice_blocks_, lattice_);
    if (config_.output_multiplier != 1.0f || config_.softcap > 0)  // both keep the order
      for (float& z : lattice_.unary) {
        z *= config_.output_multiplier;
        if (config_.softcap > 0) z = config_.softcap * tanh_of(z / config_.softcap);
      }
  }

  int first = 0;
  for (const DflashBlock& block : blocks) {
    const int count = config_.slots(block.rows);
    DflashDraft draft{.slots = count, .top_k = k};
    draft.hidden = hidden.row_range(first, first + count);
    draft.logits = logits.row_range(first, first + count);
    const size_t at = static_cast<size_t>(first * k), size = static_cast<size_t>(count * k);
    draft.candidates = std::span<const TokenId>(lattice_.ids).subspan(at, size);
    draft.unary = std::span<const float>(lattice_.unary).subspan(at, size);
    if (!lattice_.edges.empty())
      draft.edges = std::span<const float>(lattice_.edges).subspan(at * static_cast<size_t>(k), size * static_cast<size_t>(k));
    if (!confidence_.empty()) draft.confidence = std::span<const float>(confidence_).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    drafts_.push_back(draft);
    first += count;
  }
}

// DSpark: slot by slot, the Markov term of the token chosen before is added to the whole row, so that the greedy walk is exact;
// candidates are then the row's largest, and the lattice holds the terms of the other predecessors.
void DflashModel::markov_candidates(View hidden, View logits) {
  const int64_t k = config_.top_k, slots = hidden.rows;
  lattice_.ids.resize(static_cast<size_t>(slots * k));
  const View scores = scores_.rows(slots + slots * k, k);
  unary_rows_ = scores.row_range(0, slots);
  edge_rows_ = scores.row_range(slots, scores.rows);
  for (const LatticeBlock& block : lattice_blocks_) markov_walk(hidden, logits, block);
  const View all = host_scores_.of(scores).on_host();  // in one copy
  lattice_.unary.assign(all.f32(), all.f32() + slots * k);
  lattice_.edges.assign(all.f32(slots), all.f32(slots) + slots * k * k);
  // What was added along the greedy walk belongs to the edge from its predecessor: candidate 0 of the slot before.
  for (int64_t s = 0; s < slots; ++s)
    for (int64_t i = 0; i < k; ++i)
      lattice_.unary[static_cast<size_t>(s * k + i)] -= lattice_.edges[static_cast<size_t>(s * k * k + i)];
}

void DflashModel::markov_walk(View hidden, View logits, const LatticeBlock& block) {
  const int64_t k = config_.top_k, rank = config_.selector_rank, count = block.slots;
  const View previous = predecessors_.rows(1, rank), term = markov_.rows(1, target_.vocab);
  const View host_hidden = confidence_.empty() ? View() : host_hidden_.of(hidden).on_host();
  ones_.assign(static_cast<size_t>(count * rank), 1.0f);
  const View ones = selector_.from_host(View::of(ones_.data(), count, rank));
  const auto candidate = [&](int64_t at) -> TokenId& { return lattice_.ids[static_cast<size_t>(block.first * k + at)]; };
  TokenId token = block.anchor;
  for (int slot = block.first; slot < block.first + count; ++slot) {
    const RowInput input{.token = token};
    backend_.embed({&input, 1}, weights_.predecessor, previous);
    if (!confidence_.empty()) {
      const float* w = weights_.confidence.data();
      const float* h = host_hidden.f32(slot);
      const float* p = host_previous_.of(previous).f32();
      const float z = canonical::dot16([w](int64_t i) { return w[i]; }, h, hidden.cols) +
                      canonical::dot16([w, &hidden](int64_t i) { return w[hidden.cols + i]; }, p, rank) + weights_.confidence_bias;
      confidence_[static_cast<size_t>(slot)] = canonical::sigmoid(z);
    }
    backend_.linear(previous, *weights_.markov, term);
    const View row = logits.row_range(slot, slot + 1);
    backend_.add(term, row);
    backend_.top_k(row, static_cast<int>(k), std::span(lattice_.ids).subspan(static_cast<size_t>(slot * k), static_cast<size_t>(k)),
                   unary_rows_.row_range(slot, slot + 1));
    token = lattice_.ids[static_cast<size_t>(slot * k)];
  }
  const View predecessors = predecessors_.rows(count * k, rank), successors = successors_.rows(count * k, rank);
  inputs_.clear();
  for (int64_t i = 0; i < count * k; ++i) inputs_.push_back({.token = i < k ? block.anchor : candidate(i - k)});
  backend_.embed(inputs_, weights_.predecessor, predecessors);
  inputs_.clear();
  for (int64_t i = 0; i < count * k; ++i) inputs_.push_back({.token = candidate(i)});
  backend_.embed(inputs_, weights_.successor, successors);
  backend_.selector_edges(ones, predecessors, successors, edge_rows_.row_range(block.first * k, (block.first + count) * k));
}

}  // namespace foretoken
