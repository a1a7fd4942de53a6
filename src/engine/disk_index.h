// Which entries there are, by the tokens they stand for: the longest one that begins a prompt, what continues what, and which one was
// used least recently. In memory, guarded by its owner; it knows no files.
#pragma once

#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/disk_entry.h"

namespace foretoken {

class DiskIndex {
 public:
  using Id = uint64_t;  // never reused; 0 is none

  struct Node {
    Id id = 0, parent = 0;
    Digest key{};           // zero until it is stored
    int64_t length = 0;     // tokens
    Checksum stem, path;    // EntryHeader
    uint64_t disk_bytes = 0;  // of its file; 0 until it is stored
    uint64_t state_bytes = 0, drafter_bytes = 0;
    int64_t last_used_ns = 0;
    bool stored = false;    // false: queued to be written
    int children = 0;
    int pins = 0;           // loads in progress
  };

  enum class Include : unsigned char { kStored, kStoredAndQueued };

  // The longest entry with at most `at_most` tokens, all of which the prompt begins with.
  const Node* longest(std::span<const TokenId> prompt, int64_t at_most, Include include) const;

  // The hashes of a prefix, for a node or a header.
  struct Hashes {
    Checksum stem, path;
  };
  static Hashes hashes_of(std::span<const TokenId> tokens);

  Id add(Node node);  // its id and children are set here; its parent, when not 0, is there
  void mark_stored(Id id, const Digest& key, uint64_t disk_bytes);
  const Node* get(Id id) const;
  const Node* by_key(const Digest& key) const;  // stored ones
  std::vector<Node> chain(Id id) const;         // from the first ancestor to `id`
  // Takes out `id` and everything that continues it, the last of each line first.
  std::vector<Node> remove(Id id);
  void clear();

  // Marks `id` and its ancestors as used, a nanosecond apart and the first ancestor last.
  void touch(Id id, int64_t now_ns);
  // What is pinned is no leaf to evict. Both do nothing for an entry that is not there.
  void pin(Id id);
  void unpin(Id id);
  // The stored entry that nothing continues, that no load reads, and that was used least recently.
  const Node* oldest_leaf() const;

  size_t stored_count() const { return by_key_.size(); }
  uint64_t stored_bytes() const { return stored_bytes_; }
  std::vector<Digest> keys() const;  // of stored ones

 private:
  struct HashOfChecksum {
    size_t operator()(const Checksum& sum) const { return sum.low; }
  };
  struct HashOfDigest {
    size_t operator()(const Digest& digest) const;
  };
  Node& at(Id id);

  std::unordered_map<Id, Node> nodes_;
  std::unordered_map<Checksum, std::vector<Id>, HashOfChecksum> by_stem_;
  std::unordered_map<Digest, Id, HashOfDigest> by_key_;
  std::unordered_map<Id, std::vector<Id>> children_;
  uint64_t stored_bytes_ = 0;
  Id last_id_ = 0;
};

}  // namespace foretoken
