// What a lane remembers: K/V pages, recurrent state, convolution tail, and the tape of rows not yet decided. The committed part
// changes only through TargetModel (settled rows of a pass, and commit). It knows nothing of requests.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/config.h"

namespace foretoken {

// Owns the K/V pages of one layout in a backend's memory; grows by slabs and keeps returned pages for reuse. Single-threaded.
class PagePool {
 public:
  PagePool(const KvLayout& layout, Backend& backend) : layout_(layout), backend_(backend) {}
  Backend& backend() const { return backend_; }
  const KvLayout& layout() const { return layout_; }
  std::byte* take();
  void give_back(std::byte* page);
  size_t pages_in_use() const { return in_use_; }
  size_t allocated_bytes() const { return allocated_bytes_; }

 private:
  KvLayout layout_;
  Backend& backend_;
  std::vector<Buffer> slabs_;
  std::vector<std::byte*> free_;
  size_t in_use_ = 0, allocated_bytes_ = 0;
};

class LaneState {
 public:
  // `tape_rows`: the most rows of one pass that are not all settled. `pool` must outlive the lane.
  LaneState(const ModelConfig& config, PagePool& pool, int tape_rows);
  ~LaneState();
  LaneState(const LaneState&) = delete;
  LaneState& operator=(const LaneState&) = delete;

  // Committed tokens.
  int64_t length() const { return length_; }
  // Forgets everything: length 0, zero state, no pages.
  void reset();

  PageTable pages() const { return pages_; }
  std::span<const DeltaMemory> delta() const { return delta_; }
  int tape_rows() const { return tape_rows_; }

  // SHA-256 over length, recurrent state, convolution tails and the committed K/V slots: equal hashes mean equal futures.
  std::string hash() const;

 private:
  friend class TargetModel;
  void reserve(int64_t slots);  // pages for slots [0, slots)

  const ModelConfig& config_;
  PagePool& pool_;
  int tape_rows_;
  int64_t length_ = 0;
  int pending_rows_ = 0, pending_settled_ = 0;  // of the last pass
  std::vector<std::byte*> pages_;
  Buffer recurrent_, tape_;
  std::vector<DeltaMemory> delta_;  // one per delta layer
};

}  // namespace foretoken
