// The two steps of a layer that more than one model runs.
#include "model/blocks.h"

#include <algorithm>

namespace foretoken {

View Scratch::rows(int64_t rows, int64_t cols) {
  const size_t bytes = static_cast<size_t>(rows * cols) * sizeof(float);
  if (memory_.size() < bytes) memory_ = backend_.allocate(bytes);
  return memory_.view(rows, cols);
}

View Scratch::from_host(View host) {
  if (backend_.on_host() || host.empty()) return host;
  const View copy = rows(host.rows, host.cols);
  backend_.upload(host, copy);
  return copy;
}

View ResultRows::on_host() const { return host_ ? host_->all() : View(); }

std::span<const float> ResultRows::row(int64_t r) const { return {host_->row(r).f32(), static_cast<size_t>(cols)}; }

ResultRows LazyRows::of(View computed) {
  computed_ = computed;
  here_.assign(static_cast<size_t>(computed.rows), false);
  return {computed, *this};
}

View LazyRows::room() {
  const size_t bytes = static_cast<size_t>(computed_.rows * computed_.cols) * sizeof(float);
  if (memory_.size() < bytes) memory_ = backend_.allocate_staging(bytes);
  return memory_.view(computed_.rows, computed_.cols);
}

View LazyRows::all() {
  if (backend_.on_host() || computed_.empty()) return computed_;
  const View copy = room();
  if (std::find(here_.begin(), here_.end(), false) != here_.end()) backend_.download(computed_, copy);
  here_.assign(here_.size(), true);
  return copy;
}

View LazyRows::row(int64_t r) {
  const View from = computed_.row_range(r, r + 1);
  if (backend_.on_host()) return from;
  const View copy = room().row_range(r, r + 1);
  if (!here_[static_cast<size_t>(r)]) backend_.download(from, copy);
  here_[static_cast<size_t>(r)] = true;
  return copy;
}

void RowStore::reserve(int64_t rows, int64_t cols) {
  CHECK(empty());
  const size_t bytes = static_cast<size_t>(rows * cols) * sizeof(float);
  if (memory_.size() < bytes) memory_ = backend_.allocate(bytes);
}

View RowStore::room(int64_t rows, int64_t cols) {
  CHECK(rows_ == 0 || cols == cols_);
  if (rows_ == 0) first_ = 0;
  cols_ = cols;
  const size_t row_bytes = static_cast<size_t>(cols) * sizeof(float);
  capacity_ = static_cast<int64_t>(memory_.size() / row_bytes);
  if (first_ + rows_ + rows > capacity_) {
    const View kept = view();
    // In place where the rows do not overlap their new place.
    const bool fits = rows_ + rows <= capacity_ && rows_ <= first_;
    const int64_t capacity = fits ? capacity_ : std::max<int64_t>(16, 2 * (rows_ + rows));
    Buffer larger = fits ? Buffer() : backend_.allocate(static_cast<size_t>(capacity) * row_bytes);
    if (rows_ > 0) backend_.copy(kept, (fits ? memory_ : larger).view(rows_, cols));
    if (!fits) memory_ = std::move(larger);
    capacity_ = capacity;
    first_ = 0;
  }
  const View at = memory_.view(first_ + rows_ + rows, cols).row_range(first_ + rows_, first_ + rows_ + rows);
  rows_ += rows;
  return at;
}

void RowStore::append(View computed, std::span<const int> rows) {
  if (!rows.empty()) backend_.gather_rows(computed, rows, room(static_cast<int64_t>(rows.size()), computed.cols));
}

void RowStore::append(View computed) {
  if (!computed.empty()) backend_.copy(computed, room(computed.rows, computed.cols));
}

void RowStore::append_host(View host) {
  if (!host.empty()) backend_.upload(host, room(host.rows, host.cols));
}

void RowStore::drop_front(int64_t rows) {
  CHECK(rows <= rows_);
  first_ += rows;
  rows_ -= rows;
}

void AttentionMixer::run(const AttentionWeights& w, View rotary, const AttentionMemory& m, View h, View out) {
  const AttentionShape& a = config_.attention;
  const View packed = packed_.rows(h.rows, a.packed_columns());
  const View queries = queries_.rows(h.rows, a.query_heads * a.head_dim), core = core_.rows(h.rows, a.query_heads * a.head_dim);

  backend_.linear(h, *w.in_proj, packed);  // per head q, gate | k | v
  backend_.attention_inputs(packed, w.q_norm, w.k_norm, rotary, a, m.batch, m.pages, m.layout, m.layer, queries);
  backend_.attention(queries, packed, a, m.batch, m.pages, m.layout, m.layer, core);
  backend_.linear(core, *w.out_proj, out);
}

void feed_forward(Backend& backend, const ModelConfig& config, const LayerWeights& w, View h, View out) {
  if (w.is_sparse()) backend.moe(h, config.moe, w.experts(), out);
  else backend.gated_ffn(h, w.dense(), out);
}

}  // namespace foretoken
