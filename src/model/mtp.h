// MtpHead: the native multi-token-prediction head. It turns pairs (final normed hidden of position j, token j + 1) into guesses of
// token j + 2. Its K/V entries belong to a lane and are kept apart from the trunk's. It does not choose tokens and cannot emit them.
// Source: docs/model.md section 5, docs/drafters.md.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "model/blocks.h"
#include "model/state.h"

namespace foretoken {

struct MtpOptions {
  int max_rows = 512;  // rows of one call
  KvFormat kv_format = KvFormat::kBF16;
};

// The head's entries of one lane. Entry j pairs the hidden of position j with token j + 1; the lane holds [first, end). Entries may
// begin anywhere: a restored lane whose entries are absent restarts at its length and attends to what it has.
class MtpLane {
 public:
  explicit MtpLane(PagePool& pool) : pool_(pool) {}
  ~MtpLane() { restart(0); }
  MtpLane(const MtpLane&) = delete;
  MtpLane& operator=(const MtpLane&) = delete;

  int64_t first() const { return first_; }
  int64_t end() const { return end_; }
  // Forgets entries [end, ...): those written from drafted hiddens, before the true ones replace them. first() <= end <= end().
  void truncate(int64_t end);
  // Forgets everything; the next entry is `position`.
  void restart(int64_t position);
  // The entries as bytes; `load` takes them into a lane of an equal head when they end at `end`, and otherwise changes nothing.
  std::vector<std::byte> save() const;
  bool load(std::span<const std::byte> saved, int64_t end);

 private:
  friend class MtpHead;
  PagePool& pool_;
  std::vector<std::byte*> pages_;
  int64_t first_ = 0, end_ = 0;
};

// Valid until the next call.
struct MtpResult {
  View hidden;  // [rows, hidden], where operators compute: after the head's norm; the hidden input of the next step of a chain
  View logits;  // [logits_rows, vocab], where operators compute: of the token after each row's own; for top_k
};

// One cycle for a lane whose target has processed positions 0..n-1 and whose anchor is token n:
//   1. lane.truncate(first position whose pair is not yet made from a true hidden);
//   2. one call with the pairs (hidden_j, token j + 1) of all newly committed positions j, the last being (hidden_{n-1}, anchor);
//      logits of the last row give the first guess;
//   3. further guesses: one call per depth with (hidden of the result, guessed token), one row at position end().
// A prompt is step 2 in chunks (logits of the last row only).
class MtpHead {
 public:
  // Everything must outlive the head. The embedding and the output head are the trunk's.
  MtpHead(const ModelConfig& config, const Weights& trunk, const MtpWeights& weights, Backend& backend, const MtpOptions& options);

  const MtpOptions& options() const { return options_; }
  PagePool& pages() { return pages_; }
  std::unique_ptr<MtpLane> make_lane() { return std::make_unique<MtpLane>(pages_); }

  // Appends one entry per row. hidden [rows, hidden] (where operators compute; may be the previous result's) holds the hidden of row i's position;
  // batch.inputs[i] is the token (or embedding) that follows it, with the rotary position of the hidden, not of the token.
  // batch.lanes: consecutive rows of each lane, a chain; prefix must equal the lane's end(). Row i of a lane sees the lane's
  // entries and the rows before it. A row's bits do not depend on the other lanes.
  MtpResult forward(View hidden, const Batch& batch, std::span<MtpLane* const> lanes);
  // The k largest of a result's logits of each row, falling, ties to the lower id: ids [rows * k], values [rows, k] on the host.
  void top_k(View logits, int k, std::span<TokenId> ids, View values);

 private:
  std::span<const LaneRows> prepare(View hidden, const Batch& batch, std::span<MtpLane* const> lanes);

  const ModelConfig& config_;
  const Weights& trunk_;
  const MtpWeights& weights_;
  Backend& backend_;
  MtpOptions options_;
  PagePool pages_;
  AttentionMixer attention_;
  Scratch pair_{backend_}, x_{backend_}, h_{backend_}, mixed_{backend_}, rotary_{backend_}, hidden_{backend_}, last_{backend_}, logits_{backend_}, best_{backend_};
  std::vector<LaneRows> rows_;  // of the call, with prefixes counted in entries
  std::vector<PageTable> page_tables_;
};

}  // namespace foretoken
