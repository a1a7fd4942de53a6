// A tree of pages; entries hang where their last full page ends, with the tokens behind it.
#include "engine/prefix_cache.h"

#include <algorithm>

namespace foretoken {
namespace {

uint64_t page_hash(std::span<const TokenId> page) {
  uint64_t h = 0x9E3779B97F4A7C15ull;
  for (const TokenId token : page) {
    h = (h ^ static_cast<uint64_t>(static_cast<uint32_t>(token))) * 0xBF58476D1CE4E5B9ull;
    h ^= h >> 29;
  }
  return h;
}

int64_t common(std::span<const TokenId> a, std::span<const TokenId> b) {
  const size_t n = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin()).first - a.begin();
}

}  // namespace

struct PrefixCache::Node {
  Node* parent = nullptr;
  std::vector<TokenId> page;  // kPageTokens; empty at the root
  std::unordered_multimap<uint64_t, std::unique_ptr<Node>> children;
  std::vector<Entry*> entries;

  Node* child(std::span<const TokenId> tokens) const {
    const auto [first, last] = children.equal_range(page_hash(tokens));
    for (auto it = first; it != last; ++it)
      if (std::equal(tokens.begin(), tokens.end(), it->second->page.begin())) return it->second.get();
    return nullptr;
  }
};

struct PrefixCache::Entry {
  Node* node = nullptr;
  std::vector<TokenId> tail;  // tokens behind the node's, fewer than kPageTokens
  std::unique_ptr<Checkpoint> checkpoint;
  std::vector<std::byte> drafts;
  std::list<std::unique_ptr<Entry>>::iterator place;

  size_t copied_bytes() const { return checkpoint->recurrent_bytes() + drafts.size(); }
};

PrefixCache::PrefixCache(const PrefixCacheOptions& options, PagePool& pool)
    : options_(options), pool_(pool), root_(std::make_unique<Node>()) {}

PrefixCache::~PrefixCache() = default;

PrefixCache::Walk PrefixCache::walk(std::span<const TokenId> tokens, int64_t at_most) const {
  Walk w{.node = root_.get(), .length = 0, .shared = 0, .best = nullptr};
  for (;;) {
    const auto rest = tokens.subspan(static_cast<size_t>(w.length));
    for (Entry* entry : w.node->entries) {
      const int64_t tail = static_cast<int64_t>(entry->tail.size()), same = common(entry->tail, rest);
      w.shared = std::max(w.shared, w.length + same);
      if (same == tail && w.length + tail <= at_most && (w.best == nullptr || w.best->checkpoint->length() < w.length + tail)) w.best = entry;
    }
    const Node* next = rest.size() >= kPageTokens ? w.node->child(rest.first(kPageTokens)) : nullptr;
    if (next == nullptr) {
      for (const auto& [hash, child] : w.node->children) w.shared = std::max(w.shared, w.length + common(child->page, rest));
      return w;
    }
    w.node = next;
    w.length += kPageTokens;
    w.shared = w.length;
  }
}

PrefixCache::Match PrefixCache::peek(std::span<const TokenId> tokens, int64_t at_most) const {
  const Walk w = walk(tokens, at_most);
  Match match{.checkpoint = nullptr, .drafts = {}, .length = 0, .shared = w.shared};
  if (w.best == nullptr) return match;
  match.checkpoint = w.best->checkpoint.get();
  match.drafts = w.best->drafts;
  match.length = w.best->checkpoint->length();
  return match;
}

PrefixCache::Match PrefixCache::lookup(std::span<const TokenId> tokens, int64_t at_most) {
  ++statistics_.lookups;
  const Walk w = walk(tokens, at_most);
  if (w.best != nullptr) {
    entries_.splice(entries_.begin(), entries_, w.best->place);
    ++statistics_.hits;
    statistics_.restored_tokens += static_cast<uint64_t>(w.best->checkpoint->length());
  }
  return peek(tokens, at_most);
}

bool PrefixCache::contains(std::span<const TokenId> tokens) const {
  return peek(tokens, static_cast<int64_t>(tokens.size())).length == static_cast<int64_t>(tokens.size());
}

PrefixCache::Match PrefixCache::refresh(std::span<const TokenId> tokens) {
  const int64_t length = static_cast<int64_t>(tokens.size());
  const Walk w = walk(tokens, length);
  if (w.best == nullptr || w.best->checkpoint->length() != length) return {};
  entries_.splice(entries_.begin(), entries_, w.best->place);
  return peek(tokens, length);
}

void PrefixCache::visit(const std::function<void(const Checkpoint&)>& each) const {
  for (const auto& entry : entries_) each(*entry->checkpoint);
}

const Checkpoint* PrefixCache::publish(std::span<const TokenId> tokens, std::unique_ptr<Checkpoint> checkpoint, std::vector<std::byte> drafts) {
  CHECK(checkpoint->length() == static_cast<int64_t>(tokens.size()));
  if (!options_.enabled) return nullptr;
  if (!checkpoint->finite()) {
    ++statistics_.dropped_non_finite;
    return nullptr;
  }
  if (const Walk w = walk(tokens, checkpoint->length()); w.best != nullptr && w.best->checkpoint->length() == checkpoint->length()) {
    Entry& known = *w.best;
    entries_.splice(entries_.begin(), entries_, known.place);
    if (known.drafts.empty() && !drafts.empty()) {  // what its drafters remember was missing
      while (drafts.size() + statistics().bytes > options_.limit_bytes && entries_.size() > 1) evict();
      if (drafts.size() + statistics().bytes <= options_.limit_bytes) {
        copied_bytes_ += drafts.size();
        known.drafts = std::move(drafts);
      }
    }
    return known.checkpoint.get();
  }
  const size_t copied = checkpoint->recurrent_bytes() + drafts.size();
  if (copied + checkpoint->pages().size() * pool_.layout().page_bytes() > options_.limit_bytes) {
    ++statistics_.dropped_no_room;
    return nullptr;
  }
  while (copied + bytes_of_unheld(*checkpoint) + statistics().bytes > options_.limit_bytes) evict();
  auto entry = std::make_unique<Entry>();
  entry->node = path(tokens);
  const auto tail = tokens.subspan(tokens.size() / kPageTokens * kPageTokens);
  entry->tail.assign(tail.begin(), tail.end());
  entry->checkpoint = std::move(checkpoint);
  entry->drafts = std::move(drafts);
  entry->node->entries.push_back(entry.get());
  hold(*entry->checkpoint);
  copied_bytes_ += entry->copied_bytes();
  ++statistics_.published;
  entries_.push_front(std::move(entry));
  entries_.front()->place = entries_.begin();
  return entries_.front()->checkpoint.get();
}

PrefixCache::Node* PrefixCache::path(std::span<const TokenId> tokens) {
  Node* node = root_.get();
  for (size_t at = 0; at + kPageTokens <= tokens.size(); at += kPageTokens) {
    const auto page = tokens.subspan(at, kPageTokens);
    Node* next = node->child(page);
    if (next == nullptr) {
      auto made = std::make_unique<Node>();
      made->parent = node;
      made->page.assign(page.begin(), page.end());
      next = node->children.emplace(page_hash(page), std::move(made))->second.get();
    }
    node = next;
  }
  return node;
}

bool PrefixCache::evict() {
  if (entries_.empty()) return false;
  ++statistics_.evictions;
  remove(*entries_.back());
  return true;
}

void PrefixCache::clear() {
  while (!entries_.empty()) remove(*entries_.back());
}

void PrefixCache::remove(Entry& entry) {
  let_go(*entry.checkpoint);
  copied_bytes_ -= entry.copied_bytes();
  Node* node = entry.node;
  std::erase(node->entries, &entry);
  entries_.erase(entry.place);
  // Pages that lead nowhere any more.
  while (node->parent != nullptr && node->entries.empty() && node->children.empty()) {
    Node* parent = node->parent;
    const auto [first, last] = parent->children.equal_range(page_hash(node->page));
    for (auto it = first; it != last; ++it)
      if (it->second.get() == node) {
        parent->children.erase(it);
        break;
      }
    node = parent;
  }
}

void PrefixCache::hold(const Checkpoint& checkpoint) {
  for (const std::byte* page : checkpoint.pages()) ++held_pages_[page];
}

// Its pages that no entry holds yet.
size_t PrefixCache::bytes_of_unheld(const Checkpoint& checkpoint) const {
  const auto pages = checkpoint.pages();
  const auto unheld = std::count_if(pages.begin(), pages.end(), [this](const std::byte* page) { return held_pages_.count(page) == 0; });
  return static_cast<size_t>(unheld) * pool_.layout().page_bytes();
}

void PrefixCache::let_go(const Checkpoint& checkpoint) {
  for (const std::byte* page : checkpoint.pages())
    if (const auto it = held_pages_.find(page); --it->second == 0) held_pages_.erase(it);
}

PrefixCacheStatistics PrefixCache::statistics() const {
  PrefixCacheStatistics s = statistics_;
  s.entries = entries_.size();
  s.bytes = copied_bytes_ + held_pages_.size() * pool_.layout().page_bytes();
  s.limit_bytes = options_.limit_bytes;
  return s;
}

}  // namespace foretoken
