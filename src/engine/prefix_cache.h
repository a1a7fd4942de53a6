// PrefixCache: checkpoints of lanes by the tokens that led to them, in a radix tree whose edges are pages of 32 tokens. A hit continues
// exactly where a cold run would stand. Keys are token ids alone: sampling, thinking and speculation are not part of a prefix.
// Where the backend's memory is not the host's, prefixes that have to leave it go to a tier of host memory and come back from there.
// Single-threaded. docs/prefix_cache.md.
#pragma once

#include <array>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/host_tier.h"
#include "model/state.h"

namespace foretoken {

struct PrefixCacheOptions {
  bool enabled = true;
  size_t limit_bytes = size_t{1} << 30;  // of copied memory and of the pages that entries hold, each counted once
  size_t host_bytes = 0;                 // of the host tier, beside limit_bytes; ignored where the backend computes in host memory
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
    int64_t away = 0;                        // tokens of a longer one in the host tier, or on its way from there; 0: there is none

    int64_t longest() const { return std::max(length, away); }
  };
  // The longest checkpoint of at most `at_most` tokens, all equal to the first of `tokens`; it is now the most recent, and counts as a
  // hit. Valid until the next call of publish, evict, bring_in or tend.
  Match lookup(std::span<const TokenId> tokens, int64_t at_most);
  // The same without a trace.
  Match peek(std::span<const TokenId> tokens, int64_t at_most) const;
  bool contains(std::span<const TokenId> tokens) const;
  // The entry of exactly `tokens`, now the most recent; a miss when there is none, or none that is not away. Not a hit: nothing is restored.
  Match refresh(std::span<const TokenId> tokens);
  // Every checkpoint, most recently used first: for checks of what is held.
  void visit(const std::function<void(const Checkpoint&)>& each) const;

  // Takes the checkpoint of exactly `tokens`, and returns the one that the cache now holds of them. What is not finite, or exceeds the
  // limit alone, is dropped and counted: null.
  const Checkpoint* publish(std::span<const TokenId> tokens, std::unique_ptr<Checkpoint> checkpoint, std::vector<std::byte> drafts);
  // Frees the backend's memory of the entry that was used longest ago, which moves to the host tier or is dropped. False when there is none
  // but those on their way in.
  bool evict();
  // Drops everything, of the host tier too.
  void clear();

  // ---- Host tier

  // Begins the way back of the entry of exactly `tokens`, which Match::away told of, and evicts others for it and for the page that a lane
  // copies of it. False: there is no room now.
  // It has arrived when a match has it; arriving() tells whether it still may.
  bool bring_in(std::span<const TokenId> tokens);
  bool arriving(std::span<const TokenId> tokens) const;
  // Waits until it has.
  void await(std::span<const TokenId> tokens);
  // Once a step: takes note of copies that are done, and begins one for whoever has to leave next when room becomes short, so that evict()
  // need not wait.
  void tend();
  std::optional<HostTierStatistics> host_statistics() const;  // nothing: there is no such tier

  PrefixCacheStatistics statistics() const;
  const PrefixCacheOptions& options() const { return options_; }

 private:
  struct Node;
  struct Entry;
  struct Walk {
    const Node* node = nullptr;  // deepest on the path
    int64_t length = 0;          // tokens to it
    int64_t shared = 0;
    Entry* best = nullptr;       // that is here
    Entry* longest = nullptr;    // here or away
  };
  enum Place : uint8_t { kDevice, kHost };

  Walk walk(std::span<const TokenId> tokens, int64_t at_most) const;
  Entry* find(std::span<const TokenId> tokens) const;
  Match match_of(const Walk& walk) const;
  Node* path(std::span<const TokenId> tokens);
  void touch(Entry& entry);
  template <class Accept>
  Entry* oldest(const Accept& accept) const;
  void remove(Entry& entry);
  void forget(Entry& entry);

  size_t bytes() const { return copied_bytes_ + held_[kDevice].size() * pool_.layout().page_bytes(); }
  size_t bytes_of_unheld(const Checkpoint& checkpoint) const;
  void hold(Node* node, std::span<std::byte* const> pages, Place place);
  void let_go(Node* node, std::span<std::byte* const> pages, Place place);
  std::vector<std::byte*> kept_pages(const Node* node, Place place) const;
  void put(Entry& entry, std::unique_ptr<Checkpoint> checkpoint);
  void drop_checkpoint(Entry& entry);
  void add_drafts(Entry& entry, std::vector<std::byte> drafts);

  // Of the host tier (prefix_cache_host.cc).
  bool copy_out(Entry& entry);
  bool make_host_room(const Entry& entry);
  bool make_room_here(const Entry& entry);
  void drop_image(Entry& entry);
  void finish(Entry& entry);
  void finished(Entry& entry);
  bool short_of_room() const;

  PrefixCacheOptions options_;
  PagePool& pool_;
  std::unique_ptr<HostTier> host_;
  std::unique_ptr<Node> root_;
  std::list<std::unique_ptr<Entry>> entries_;  // most recently used first
  std::vector<Entry*> moving_;                 // whose copy is under way
  const Entry* wanted_ = nullptr;              // that must not leave the host while room is made for it
  std::array<std::unordered_map<const std::byte*, uint32_t>, 2> held_;  // by Place: pages, and how many entries hold each
  size_t copied_bytes_ = 0, host_drafts_ = 0;  // of checkpoints with their drafts; of images' drafts
  PrefixCacheStatistics statistics_;
  HostTierStatistics host_statistics_;
};

}  // namespace foretoken
