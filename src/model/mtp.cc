// The head as its paper form reads: fuse embedding and hidden, one decoder layer, norm, shared output head.
#include "model/mtp.h"

#include <algorithm>

#include "model/window.h"

namespace foretoken {

void MtpLane::truncate(int64_t end) {
  CHECK(end >= first_);
  CHECK(end <= end_);
  end_ = end;
}

void MtpLane::restart(int64_t position) {
  CHECK(position >= 0);
  for (std::byte* page : pages_) pool_.give_back(page);
  pages_.clear();
  first_ = end_ = position;
}

std::vector<std::byte> MtpLane::save() const { return save_window(pool_.backend(), pool_.layout(), first_, first_, end_, pages_, end_ - first_); }

bool MtpLane::load(std::span<const std::byte> saved, int64_t end) {
  const auto window = open_window(pool_.layout(), saved);
  if (!window || window->end != end || window->base != window->first) return false;
  const int64_t pages = (end - window->first + kPageTokens - 1) / kPageTokens;
  if (window->pages != pages) return false;
  restart(window->first);
  while (static_cast<int64_t>(pages_.size()) < pages) pages_.push_back(pool_.take());
  copy_window(pool_.backend(), *window, pool_.layout(), pages_);
  end_ = end;
  return true;
}

MtpHead::MtpHead(const ModelConfig& config, const Weights& trunk, const MtpWeights& weights, Backend& backend,
                 const MtpOptions& options)
    : config_(config), trunk_(trunk), weights_(weights), backend_(backend), options_(options),
      pages_({.layers = 1, .heads = config.attention.kv_heads, .head_dim = config.attention.head_dim, .format = options.kv_format}, backend),
      attention_(config, backend) {
  CHECK(options.max_rows >= 1);
  CHECK(weights.fusion->cols() == 2 * config.hidden);
}

MtpResult MtpHead::forward(View hidden, const Batch& batch, std::span<MtpLane* const> lanes) {
  const Batch entries{.inputs = batch.inputs, .lanes = prepare(hidden, batch, lanes), .logits_rows = batch.logits_rows};
  const int64_t rows = hidden.rows;
  const float epsilon = config_.norm_epsilon;
  const View x = x_.rows(rows, config_.hidden), h = h_.rows(rows, config_.hidden), mixed = mixed_.rows(rows, config_.hidden);

  const View pair = pair_.rows(rows, 2 * config_.hidden);  // embedding, then hidden
  const View embedding = pair.columns(0, config_.hidden);
  backend_.embed(batch.inputs, trunk_.embedding, x);
  backend_.rms_norm(x, weights_.embedding_norm, epsilon, embedding);
  backend_.rms_norm(hidden, weights_.hidden_norm, epsilon, pair.columns(config_.hidden, 2 * config_.hidden));
  backend_.linear(pair, *weights_.fusion, x);

  const View rotary = rotary_.rows(rows, config_.rotary.rotary_dim());
  backend_.rotary_table(batch.inputs, config_.rotary, rotary);
  const LayerWeights& w = weights_.layer;
  backend_.rms_norm(x, w.mixer_norm, epsilon, h);
  attention_.run(w.attention(), rotary, {entries, page_tables_, pages_.layout(), 0}, h, mixed);
  backend_.add(mixed, x);
  backend_.rms_norm(x, w.ffn_norm, epsilon, h);
  feed_forward(backend_, config_, w, h, mixed);
  backend_.add(mixed, x);

  const View normed = hidden_.rows(rows, config_.hidden);
  backend_.rms_norm(x, weights_.norm, epsilon, normed);
  const int64_t wanted = static_cast<int64_t>(batch.logits_rows.size());
  const View last = last_.rows(wanted, config_.hidden), logits = logits_.rows(wanted, config_.vocab);
  if (wanted > 0) {
    backend_.gather_rows(normed, batch.logits_rows, last);
    backend_.linear(last, *trunk_.head, logits);
  }
  for (size_t i = 0; i < lanes.size(); ++i) lanes[i]->end_ += rows_[i].rows;
  return {normed, logits};
}

void MtpHead::top_k(View logits, int k, std::span<TokenId> ids, View values) {
  if (backend_.on_host()) return backend_.top_k(logits, k, ids, values);
  const View best = best_.rows(values.rows, values.cols);
  backend_.top_k(logits, k, ids, best);
  backend_.download(best, values);
}

std::span<const LaneRows> MtpHead::prepare(View hidden, const Batch& batch, std::span<MtpLane* const> lanes) {
  CHECK(hidden.cols == config_.hidden);
  CHECK(hidden.rows == static_cast<int64_t>(batch.inputs.size()));
  CHECK(hidden.rows <= options_.max_rows);
  CHECK(batch.lanes.size() == lanes.size());
  rows_.clear();
  page_tables_.clear();
  int next_row = 0;
  for (size_t i = 0; i < lanes.size(); ++i) {
    const LaneRows& rows = batch.lanes[i];
    MtpLane& lane = *lanes[i];
    CHECK(rows.first_row == next_row);
    CHECK(rows.rows >= 1);
    CHECK(rows.prefix == lane.end());
    CHECK(rows.parent.empty());
    const int64_t entries = lane.end_ - lane.first_;
    while (static_cast<int64_t>(lane.pages_.size()) * kPageTokens < entries + rows.rows) lane.pages_.push_back(pages_.take());
    rows_.push_back({.first_row = rows.first_row, .rows = rows.rows, .prefix = entries, .settled = rows.rows});
    page_tables_.push_back(lane.pages_);
    next_row += rows.rows;
  }
  CHECK(next_row == hidden.rows);
  return rows_;
}

}  // namespace foretoken
