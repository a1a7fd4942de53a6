// PrefixCache: checkpoints of lanes by the tokens that led to them, in a radix tree whose edges are pages of 32 tokens. A hit continues
// exactly where a cold run would stand. Keys are token ids alone: sampling, thinking and speculation are not part of a prefix.
// Single-threaded. docs/prefix_cache.md.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/state.h"

namespace foretoken {

struct PrefixCacheOptions {
  bool enabled = true;
  size_t limit_bytes = size_t{1} << 30;  // of copied memory and of the pages that entries hold, each counted once
  int64_t checkpoint_every = 1024;       // tokens between checkpoints inside a long prompt or answer
};

struct PrefixCacheStatistics {
  uint64_t lookups = 0, hits = 0, restored_tokens = 0, published = 0, evictions = 0;
  uint64_t dropped_non_finite = 0, dropped_no_room = 0;
  size_t entries = 0, bytes = 0, limit_bytes = 0;
};

class PrefixCache {
 public:
  // `pool` must outlive the cache.
  PrefixCache(const PrefixCacheOptions& options, PagePool& pool);
  ~PrefixCache();

  struct Match {
    const Checkpoint* checkpoint = nullptr;  // null: a miss
    std::span<const std::byte> drafts;       // Sequence::save_drafts() there; may be empty
    int64_t length = 0;                      // tokens of the checkpoint
    int64_t shared = 0;                      // leading tokens that some entry's have in common with these, checkpoint or not
  };
  // The longest checkpoint of at most `at_most` tokens, all equal to the first of `tokens`; it is now the most recent, and counts as a
  // hit. Valid until the next call of publish or evict.
  Match lookup(std::span<const TokenId> tokens, int64_t at_most);
  // The same without a trace.
  Match peek(std::span<const TokenId> tokens, int64_t at_most) const;
  bool contains(std::span<const TokenId> tokens) const;
  // The entry of exactly `tokens`, now the most recent; a miss when there is none. Not a hit: nothing is restored.
  Match refresh(std::span<const TokenId> tokens);
  // Every entry, most recently used first: for checks of what is held.
  void visit(const std::function<void(const Checkpoint&)>& each) const;

  // Takes the checkpoint of exactly `tokens`, and returns the one that the cache now holds of them. What is not finite, or exceeds the
  // limit alone, is dropped and counted: null.
  const Checkpoint* publish(std::span<const TokenId> tokens, std::unique_ptr<Checkpoint> checkpoint, std::vector<std::byte> drafts);
  // Drops the entry that was used longest ago. False when there is none.
  bool evict();
  void clear();

  PrefixCacheStatistics statistics() const;
  const PrefixCacheOptions& options() const { return options_; }

 private:
  struct Node;
  struct Entry;
  struct Walk {
    const Node* node = nullptr;  // deepest on the path
    int64_t length = 0;          // tokens to it
    int64_t shared = 0;
    Entry* best = nullptr;
  };
  Walk walk(std::span<const TokenId> tokens, int64_t at_most) const;
  Node* path(std::span<const TokenId> tokens);
  void remove(Entry& entry);
  void hold(const Checkpoint& checkpoint);
  size_t bytes_of_unheld(const Checkpoint& checkpoint) const;
  void let_go(const Checkpoint& checkpoint);

  PrefixCacheOptions options_;
  PagePool& pool_;
  std::unique_ptr<Node> root_;
  std::list<std::unique_ptr<Entry>> entries_;  // most recently used first
  std::unordered_map<const std::byte*, uint32_t> held_pages_;
  size_t copied_bytes_ = 0;
  PrefixCacheStatistics statistics_;
};

}  // namespace foretoken
