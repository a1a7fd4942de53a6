// The parts of the prefix cache's tree, for the files that implement it.
#pragma once

#include <algorithm>

#include "engine/prefix_cache.h"

namespace foretoken {

struct PrefixCache::Node {
  Node* parent = nullptr;
  size_t depth = 0;           // pages to here from the root
  std::vector<TokenId> page;  // kPageTokens; empty at the root
  std::unordered_multimap<uint64_t, std::unique_ptr<Node>> children;
  std::vector<Entry*> entries;
  std::array<std::byte*, 2>
      kept{};  // by Place: a page with K and V of `page`, which some entry holds; null: none is known

  Node* child(std::span<const TokenId> tokens) const;
};

// A prefix with what is needed to continue from it: in the backend's memory, on the host, or both.
struct PrefixCache::Entry {
  enum class Copy : uint8_t { kNone, kOut, kIn };

  Node* node = nullptr;
  std::vector<TokenId> tail;  // tokens behind the node's, fewer than kPageTokens
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<HostImage> image;
  Copy copy = Copy::kNone;  // under way: of the checkpoint to the image, or back
  TransferId transfer = 0;
  size_t moving_bytes = 0;
  std::vector<std::byte> drafts;
  std::list<std::unique_ptr<Entry>>::iterator place;

  // Whether a lane can continue from it now.
  bool here() const { return checkpoint != nullptr && copy != Copy::kIn; }
  int64_t length() const { return checkpoint != nullptr ? checkpoint->length() : image->length(); }
  size_t copied_bytes() const { return checkpoint->recurrent_bytes() + drafts.size(); }
};

// The entry that was used longest ago of those that `accept` takes; null when there is none.
template <class Accept>
PrefixCache::Entry* PrefixCache::oldest(const Accept& accept) const {
  const auto it = std::find_if(entries_.rbegin(), entries_.rend(), [&](const auto& entry) { return accept(*entry); });
  return it == entries_.rend() ? nullptr : it->get();
}

}  // namespace foretoken
