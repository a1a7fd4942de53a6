// Nodes lie in buckets by the hash of their whole pages: a prompt is looked up once a page, from its end.
#include "engine/disk_index.h"

#include <algorithm>
#include <cstring>

namespace foretoken {
namespace {

// The chain of hashes at pages 0..count of a prompt.
std::vector<Checksum> stems_of(std::span<const TokenId> tokens) {
  const size_t pages = tokens.size() / kPageTokens;
  std::vector<Checksum> stems(pages + 1);
  for (size_t page = 0; page < pages; ++page) stems[page + 1] = extend(stems[page], tokens.subspan(page * kPageTokens, kPageTokens));
  return stems;
}

}  // namespace

DiskIndex::Hashes DiskIndex::hashes_of(std::span<const TokenId> tokens) {
  Checksum stem{};
  size_t begin = 0;
  for (; begin + kPageTokens <= tokens.size(); begin += kPageTokens) stem = extend(stem, tokens.subspan(begin, kPageTokens));
  return {.stem = stem, .path = begin == tokens.size() ? stem : extend(stem, tokens.subspan(begin))};
}

const DiskIndex::Node* DiskIndex::longest(std::span<const TokenId> prompt, int64_t at_most, Include include) const {
  if (nodes_.empty() || at_most < 1) return nullptr;
  prompt = prompt.first(std::min(prompt.size(), static_cast<size_t>(at_most)));
  const std::vector<Checksum> stems = stems_of(prompt);
  const Node* best = nullptr;
  for (size_t page = stems.size(); page-- > 0 && !best;) {
    const auto bucket = by_stem_.find(stems[page]);
    if (bucket == by_stem_.end()) continue;
    const auto rest = prompt.subspan(page * kPageTokens);
    std::array<std::optional<Checksum>, kPageTokens> paths;  // by tokens beyond the stem
    for (const Id id : bucket->second) {
      const Node& node = nodes_.at(id);
      const int64_t tail = node.length - static_cast<int64_t>(page) * kPageTokens;
      if (tail < 0 || tail >= kPageTokens || tail > static_cast<int64_t>(rest.size())) continue;
      if (best && best->length >= node.length) continue;
      if (!node.stored && include == Include::kStored) continue;
      auto& path = paths[static_cast<size_t>(tail)];
      if (!path) path = tail == 0 ? stems[page] : extend(stems[page], rest.first(static_cast<size_t>(tail)));
      if (*path == node.path) best = &node;
    }
  }
  return best;
}

size_t DiskIndex::HashOfDigest::operator()(const Digest& digest) const {
  size_t value;
  std::memcpy(&value, digest.data(), sizeof value);
  return value;
}

DiskIndex::Node& DiskIndex::at(Id id) {
  const auto found = nodes_.find(id);
  CHECK(found != nodes_.end());
  return found->second;
}

DiskIndex::Id DiskIndex::add(Node node) {
  node.id = ++last_id_;
  node.children = node.pins = 0;
  if (node.parent != 0) {
    CHECK(at(node.parent).length < node.length);
    ++at(node.parent).children;
    children_[node.parent].push_back(node.id);
  }
  by_stem_[node.stem].push_back(node.id);
  const bool stored = std::exchange(node.stored, false);
  const Id id = node.id;
  const Digest key = node.key;
  const uint64_t disk_bytes = std::exchange(node.disk_bytes, 0);
  nodes_.emplace(id, std::move(node));
  if (stored) mark_stored(id, key, disk_bytes);
  return id;
}

void DiskIndex::mark_stored(Id id, const Digest& key, uint64_t disk_bytes) {
  Node& node = at(id);
  CHECK(!node.stored);
  CHECK(by_key_.emplace(key, id).second);
  node.key = key;
  node.disk_bytes = disk_bytes;
  node.stored = true;
  stored_bytes_ += disk_bytes;
}

const DiskIndex::Node* DiskIndex::get(Id id) const {
  const auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : &found->second;
}

const DiskIndex::Node* DiskIndex::by_key(const Digest& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : get(found->second);
}

std::vector<DiskIndex::Node> DiskIndex::chain(Id id) const {
  std::vector<Node> nodes;
  for (const Node* node = get(id); node; node = get(node->parent)) nodes.push_back(*node);
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

std::vector<DiskIndex::Node> DiskIndex::remove(Id id) {
  std::vector<Id> order;
  if (nodes_.contains(id)) order.push_back(id);
  for (size_t i = 0; i < order.size(); ++i)
    if (const auto found = children_.find(order[i]); found != children_.end())
      order.insert(order.end(), found->second.begin(), found->second.end());
  std::reverse(order.begin(), order.end());

  std::vector<Node> removed;
  for (const Id gone : order) {
    Node& node = at(gone);
    CHECK(node.children == 0);
    if (node.stored) {
      by_key_.erase(node.key);
      stored_bytes_ -= node.disk_bytes;
    }
    const auto bucket = by_stem_.find(node.stem);
    std::erase(bucket->second, gone);
    if (bucket->second.empty()) by_stem_.erase(bucket);
    if (node.parent != 0) {
      --at(node.parent).children;
      const auto siblings = children_.find(node.parent);
      std::erase(siblings->second, gone);
      if (siblings->second.empty()) children_.erase(siblings);
    }
    removed.push_back(node);
    nodes_.erase(gone);
  }
  return removed;
}

void DiskIndex::touch(Id id, int64_t now_ns) {
  for (auto node = nodes_.find(id); node != nodes_.end(); node = nodes_.find(node->second.parent)) node->second.last_used_ns = now_ns++;
}

void DiskIndex::pin(Id id) {
  if (const auto node = nodes_.find(id); node != nodes_.end()) ++node->second.pins;
}

void DiskIndex::unpin(Id id) {
  if (const auto node = nodes_.find(id); node != nodes_.end()) --node->second.pins;
}

// All entries are looked at: tens of microseconds for ten thousand, before a write of milliseconds.
const DiskIndex::Node* DiskIndex::oldest_leaf() const {
  const Node* oldest = nullptr;
  for (const auto& [id, node] : nodes_)
    if (node.stored && node.children == 0 && node.pins == 0 &&
        (!oldest || std::pair(node.last_used_ns, node.id) < std::pair(oldest->last_used_ns, oldest->id)))
      oldest = &node;
  return oldest;
}

std::vector<Digest> DiskIndex::keys() const {
  std::vector<Digest> keys;
  for (const auto& [key, id] : by_key_) keys.push_back(key);
  return keys;
}

void DiskIndex::clear() {
  nodes_.clear();
  by_stem_.clear();
  by_key_.clear();
  children_.clear();
  stored_bytes_ = 0;
}

}  // namespace foretoken
