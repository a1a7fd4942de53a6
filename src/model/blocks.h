// What the trunk and the MTP head have in common: the gated attention mixer and the feed-forward step of a layer, over any pages.
// It knows nothing of lanes' recurrent state. Source: docs/model.md sections 2 and 4.
#pragma once

#include <span>
#include <vector>

#include "model/config.h"
#include "model/weights.h"

namespace foretoken {

// fp32 working memory of a backend that grows to the largest request; a view stays valid until the next request.
class Scratch {
 public:
  // `backend` must outlive the scratch.
  explicit Scratch(Backend& backend) : backend_(backend) {}
  View rows(int64_t rows, int64_t cols);
  // Rows that lie on the host, where the backend's operators can read them: themselves, or a copy.
  View from_host(View host);

 private:
  Backend& backend_;
  Buffer memory_;
};

class LazyRows;

// Rows that a pass computed, for whoever wants them: where operators compute, or on the host, which they reach on request.
class ResultRows {
 public:
  ResultRows() = default;
  ResultRows(View computed, LazyRows& host) : rows(computed.rows), cols(computed.cols), computed_(computed), host_(&host) {}

  View computed() const { return computed_; }
  View on_host() const;
  operator View() const { return on_host(); }
  float* f32(int64_t row = 0) const { return on_host().f32(row); }
  // One row on the host, and no other.
  std::span<const float> row(int64_t r) const;

  int64_t rows = 0, cols = 0;

 private:
  View computed_;
  LazyRows* host_ = nullptr;
};

// The host's copies of a result's rows; valid until the next result.
class LazyRows {
 public:
  // `backend` must outlive it.
  explicit LazyRows(Backend& backend) : backend_(backend) {}
  ResultRows of(View computed);
  View all();
  View row(int64_t r);

 private:
  View room();

  Backend& backend_;
  View computed_;
  std::vector<bool> here_;
  Buffer memory_;
};

// fp32 rows that wait where operators compute: added behind, taken away in front. Its memory grows to what was once needed.
class RowStore {
 public:
  explicit RowStore(Backend& backend) : backend_(backend) {}
  int64_t rows() const { return rows_; }
  bool empty() const { return rows_ == 0; }
  View view() const { return memory_.view(first_ + rows_, cols_).row_range(first_, first_ + rows_); }
  // Rows of `computed`, which lie where operators compute and are not the store's own; all have the columns of the first.
  void append(View computed, std::span<const int> rows);
  void append(View computed);
  void append_host(View host);
  // Room for so many rows, so that appending them takes no memory. While empty.
  void reserve(int64_t rows, int64_t cols);
  void drop_front(int64_t rows);
  void clear() { first_ = rows_ = 0; }

 private:
  View room(int64_t rows, int64_t cols);

  Backend& backend_;
  Buffer memory_;
  int64_t first_ = 0, rows_ = 0, cols_ = 0, capacity_ = 0;  // in rows
};

// Where the rows of one pass keep K and V: one page table per lane of `batch`; `layer` is an index into `layout`.
struct AttentionMemory {
  const Batch& batch;
  std::span<const PageTable> pages;
  const KvLayout& layout;
  int layer = 0;
};

// Gated attention with its working memory, which all layers of a model share.
class AttentionMixer {
 public:
  // `config` and `backend` must outlive the mixer.
  AttentionMixer(const ModelConfig& config, Backend& backend) : config_(config), backend_(backend) {}

  // out = attention of h [rows, hidden]; K and V of the rows go to their slots. `rotary` [rows, rotary_dim].
  void run(const AttentionWeights& w, View rotary, const AttentionMemory& memory, View h, View out);

 private:
  const ModelConfig& config_;
  Backend& backend_;
  Scratch packed_{backend_}, queries_{backend_}, core_{backend_};
};

// out = feed-forward of h, dense or sparse as `w` holds it.
void feed_forward(Backend& backend, const ModelConfig& config, const LayerWeights& w, View h, View out);

}  // namespace foretoken
