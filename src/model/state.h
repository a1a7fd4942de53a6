// What a lane remembers: K/V pages, recurrent state, convolution tail, and the tape of rows not yet decided. The committed part
// changes only through TargetModel (settled rows of a pass, and commit), and by taking over a checkpoint. It knows nothing of requests.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "model/config.h"

namespace foretoken {

// Owns the K/V pages of one layout in a backend's memory, or copies of them in its staging memory; grows by slabs and keeps returned pages
// for reuse. A page may have several holders (a lane and checkpoints of its prefix): whoever writes to it is the only one. Single-threaded.
class PagePool {
 public:
  enum class Memory : uint8_t { kOperators, kStaging };
  PagePool(const KvLayout& layout, Backend& backend, Memory memory = Memory::kOperators) : layout_(layout), backend_(backend), memory_(memory) {}
  Backend& backend() const { return backend_; }
  const KvLayout& layout() const { return layout_; }
  // Most pages in use at once; taking more is the caller's mistake.
  void set_limit(size_t pages) { limit_ = pages; }
  size_t limit() const { return limit_; }
  size_t pages_free() const { return limit_ - in_use_; }
  std::byte* take();
  // One more holder of a page in use; give_back() takes one away, and the last one's makes it free.
  void share(std::byte* page) { ++more_holders_[page]; }
  uint32_t holders(const std::byte* page) const {
    const auto more = more_holders_.find(page);
    return more == more_holders_.end() ? 1 : 1 + more->second;
  }
  void give_back(std::byte* page);
  // Memory of a checkpoint, `bytes` long and of any content; one that was given back is taken again.
  Buffer take_memory(size_t bytes);
  void give_back_memory(Buffer memory);
  // Pages of one slab: memory is taken in slabs.
  static size_t pages_per_slab(const KvLayout& layout, Memory memory = Memory::kOperators);
  // Bytes that a page takes.
  size_t page_stride() const { return std::max<size_t>(layout_.page_bytes(), 64); }
  // Whether a page is the first of its slab: what lies before it is another allocation's, even where it adjoins.
  bool begins_slab(const std::byte* page) const { return slab_begins_.contains(page); }
  size_t pages_in_use() const { return in_use_; }
  size_t allocated_bytes() const { return allocated_bytes_; }

 private:
  KvLayout layout_;
  Backend& backend_;
  Memory memory_;
  std::vector<Buffer> slabs_;
  std::unordered_set<const std::byte*> slab_begins_;
  std::vector<std::byte*> free_;
  std::vector<Buffer> spare_memory_;  // at most kSpareMemories
  std::unordered_map<const std::byte*, uint32_t> more_holders_;  // beyond the first
  size_t in_use_ = 0, allocated_bytes_ = 0;
  size_t limit_ = std::numeric_limits<size_t>::max();
};

// The committed memory of a lane at one length, kept apart from it: full pages are shared, the page that is not full and the recurrent
// memory are copies. Immutable; a lane that takes it over continues with the same bits. Must not outlive its pool.
class Checkpoint {
 public:
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  int64_t length() const { return length_; }
  // One per kPageTokens of the length, the copied one last.
  std::span<std::byte* const> pages() const { return pages_; }
  size_t full_pages() const { return static_cast<size_t>(length_ / kPageTokens); }
  size_t recurrent_bytes() const { return recurrent_.size(); }
  // Whether every number of the recurrent memory is finite. Waits for the backend, which looks where the memory is.
  bool finite() const;

  // As host bytes: the recurrent memory, and page `i`. `from_bytes` is the way back; null when the sizes are not this model's.
  std::vector<std::byte> recurrent() const;
  std::vector<std::byte> page(size_t i) const;
  static std::unique_ptr<Checkpoint> from_bytes(const ModelConfig& config, PagePool& pool, int64_t length,
                                                std::span<const std::byte> pages, std::span<const std::byte> recurrent);
  // One whose maker has yet to write it, all but what it shares: `known[i]`, where not null, is a full page that holds what page i is to
  // hold. Takes the other pages.
  static std::unique_ptr<Checkpoint> blank(PagePool& pool, int64_t length, size_t recurrent_bytes, std::span<std::byte* const> known);
  std::byte* recurrent_memory() const { return recurrent_.data(); }
  // Pages that a checkpoint at `length` adds to those in use.
  static size_t new_pages(int64_t length) { return length % kPageTokens != 0 ? 1 : 0; }

 private:
  friend class LaneState;
  explicit Checkpoint(PagePool& pool) : pool_(pool) {}
  PagePool& pool_;
  int64_t length_ = 0;
  std::vector<std::byte*> pages_;
  Buffer recurrent_;
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

  // The committed memory as it is now. Takes Checkpoint::new_pages(length()) pages.
  std::unique_ptr<Checkpoint> checkpoint() const;
  // The same, and the lane is empty afterwards: what it held is handed over, and no page taken.
  std::unique_ptr<Checkpoint> give_up();
  // Continues from `saved`, of the same model and pool; what the lane held is forgotten. Takes as many pages.
  void restore(const Checkpoint& saved);

  PageTable pages() const { return pages_; }
  // Pages that a pass of `rows` rows would have to take.
  size_t pages_needed(int rows) const {
    const size_t needed = static_cast<size_t>((length_ + rows + kPageTokens - 1) / kPageTokens);
    return needed > pages_.size() ? needed - pages_.size() : 0;
  }
  // Takes the pages that a pass of `rows` rows needs, so that the pool cannot run out under it.
  void reserve_rows(int rows) { reserve(length_ + rows); }
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
