// A tree of pages; entries hang where their last full page ends, with the tokens behind it.
#include "engine/prefix_cache.h"

#include <algorithm>

#include "engine/prefix_tree.h"

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

PrefixCache::Node* PrefixCache::Node::child(std::span<const TokenId> tokens) const {
  const auto [first, last] = children.equal_range(page_hash(tokens));
  for (auto it = first; it != last; ++it)
    if (std::equal(tokens.begin(), tokens.end(), it->second->page.begin())) return it->second.get();
  return nullptr;
}

PrefixCache::PrefixCache(const PrefixCacheOptions& options, PagePool& pool)
    : options_(options), pool_(pool), root_(std::make_unique<Node>()) {
  if (options.enabled && options.host_bytes > 0 && !pool.backend().on_host()) host_ = std::make_unique<HostTier>(pool, options.host_bytes);
}

PrefixCache::~PrefixCache() { clear(); }

PrefixCache::Walk PrefixCache::walk(std::span<const TokenId> tokens, int64_t at_most) const {
  Walk w;
  w.node = root_.get();
  const auto longer = [](const Entry* one, int64_t length) { return one == nullptr || one->length() < length; };
  for (;;) {
    const auto rest = tokens.subspan(static_cast<size_t>(w.length));
    for (Entry* entry : w.node->entries) {
      const int64_t tail = static_cast<int64_t>(entry->tail.size()), same = common(entry->tail, rest);
      w.shared = std::max(w.shared, w.length + same);
      if (same != tail || w.length + tail > at_most) continue;
      if (longer(w.longest, w.length + tail)) w.longest = entry;
      if (entry->here() && longer(w.best, w.length + tail)) w.best = entry;
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

PrefixCache::Entry* PrefixCache::find(std::span<const TokenId> tokens) const {
  Entry* longest = walk(tokens, static_cast<int64_t>(tokens.size())).longest;
  return longest != nullptr && longest->length() == static_cast<int64_t>(tokens.size()) ? longest : nullptr;
}

PrefixCache::Match PrefixCache::match_of(const Walk& w) const {
  Match match;
  match.shared = w.shared;
  if (w.best != nullptr) {
    match.checkpoint = w.best->checkpoint.get();
    match.drafts = w.best->drafts;
    match.length = w.best->length();
  }
  if (w.longest != w.best && w.longest->length() > match.length) match.away = w.longest->length();
  return match;
}

PrefixCache::Match PrefixCache::peek(std::span<const TokenId> tokens, int64_t at_most) const { return match_of(walk(tokens, at_most)); }

PrefixCache::Match PrefixCache::lookup(std::span<const TokenId> tokens, int64_t at_most) {
  ++statistics_.lookups;
  const Walk w = walk(tokens, at_most);
  if (w.best != nullptr) {
    touch(*w.best);
    ++statistics_.hits;
    statistics_.restored_tokens += static_cast<uint64_t>(w.best->length());
  }
  return match_of(w);
}

bool PrefixCache::contains(std::span<const TokenId> tokens) const { return find(tokens) != nullptr; }

PrefixCache::Match PrefixCache::refresh(std::span<const TokenId> tokens) {
  Entry* entry = find(tokens);
  if (entry == nullptr) return {};
  touch(*entry);
  return entry->here() ? peek(tokens, entry->length()) : Match{};
}

void PrefixCache::visit(const std::function<void(const Checkpoint&)>& each) const {
  for (const auto& entry : entries_)
    if (entry->checkpoint != nullptr) each(*entry->checkpoint);
}

const Checkpoint* PrefixCache::publish(std::span<const TokenId> tokens, std::unique_ptr<Checkpoint> checkpoint, std::vector<std::byte> drafts) {
  CHECK(checkpoint->length() == static_cast<int64_t>(tokens.size()));
  if (!options_.enabled) return nullptr;
  if (!checkpoint->finite()) {
    ++statistics_.dropped_non_finite;
    return nullptr;
  }
  size_t drafts_bytes = drafts.size();
  if (Entry* known = find(tokens); known != nullptr) {
    touch(*known);
    if (known->copy == Entry::Copy::kIn) finish(*known);
    if (known->here()) {
      add_drafts(*known, std::move(drafts));
      return known->checkpoint.get();
    }
    drafts_bytes = std::max(drafts_bytes, known->drafts.size());
  }
  const size_t copied = checkpoint->recurrent_bytes() + drafts_bytes;
  if (copied + checkpoint->pages().size() * pool_.layout().page_bytes() > options_.limit_bytes) {
    ++statistics_.dropped_no_room;
    return nullptr;
  }
  while (copied + bytes_of_unheld(*checkpoint) + bytes() > options_.limit_bytes) {
    if (evict()) continue;
    ++statistics_.dropped_no_room;  // beside what is on its way in
    return nullptr;
  }
  Entry* entry = find(tokens);  // on the host still, or nowhere
  if (entry == nullptr) {
    entries_.push_front(std::make_unique<Entry>());
    entry = entries_.front().get();
    entry->place = entries_.begin();
    entry->node = path(tokens);
    const auto tail = tokens.subspan(tokens.size() / kPageTokens * kPageTokens);
    entry->tail.assign(tail.begin(), tail.end());
    entry->node->entries.push_back(entry);
  }
  put(*entry, std::move(checkpoint));
  add_drafts(*entry, std::move(drafts));
  ++statistics_.published;
  return entry->checkpoint.get();
}

// Where the entry has none and there is room.
void PrefixCache::add_drafts(Entry& entry, std::vector<std::byte> drafts) {
  if (!entry.drafts.empty() || drafts.empty()) return;
  while (drafts.size() + bytes() > options_.limit_bytes && oldest([](const Entry& e) { return e.here(); }) != &entry) evict();
  if (drafts.size() + bytes() > options_.limit_bytes) return;
  if (entry.image != nullptr) drop_image(entry);  // the host has no room for them that anyone counted
  copied_bytes_ += drafts.size();
  entry.drafts = std::move(drafts);
}

PrefixCache::Node* PrefixCache::path(std::span<const TokenId> tokens) {
  Node* node = root_.get();
  for (size_t at = 0; at + kPageTokens <= tokens.size(); at += kPageTokens) {
    const auto page = tokens.subspan(at, kPageTokens);
    Node* next = node->child(page);
    if (next == nullptr) {
      auto made = std::make_unique<Node>();
      made->parent = node;
      made->depth = node->depth + 1;
      made->page.assign(page.begin(), page.end());
      next = node->children.emplace(page_hash(page), std::move(made))->second.get();
    }
    node = next;
  }
  return node;
}

bool PrefixCache::evict() {
  Entry* entry = oldest([](const Entry& e) { return e.here(); });
  if (entry == nullptr) return false;
  ++statistics_.evictions;
  if (host_ != nullptr && copy_out(*entry)) {
    finish(*entry);
    drop_checkpoint(*entry);
  } else {
    host_statistics_.no_room += host_ != nullptr;
    remove(*entry);
  }
  return true;
}

void PrefixCache::clear() {
  while (!entries_.empty()) remove(*entries_.back());
}

void PrefixCache::remove(Entry& entry) {
  finish(entry);
  if (entry.checkpoint != nullptr) drop_checkpoint(entry);
  if (entry.image != nullptr) drop_image(entry);
  forget(entry);
}

// An entry that holds nothing any more.
void PrefixCache::forget(Entry& entry) {
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

// ---- What entries hold

void PrefixCache::touch(Entry& entry) { entries_.splice(entries_.begin(), entries_, entry.place); }

void PrefixCache::put(Entry& entry, std::unique_ptr<Checkpoint> checkpoint) {
  entry.checkpoint = std::move(checkpoint);
  hold(entry.node, entry.checkpoint->pages(), kDevice);
  copied_bytes_ += entry.copied_bytes();
}

void PrefixCache::drop_checkpoint(Entry& entry) {
  let_go(entry.node, entry.checkpoint->pages(), kDevice);
  copied_bytes_ -= entry.copied_bytes();
  entry.checkpoint.reset();
}

// The pages of an entry: those of the nodes on its path, and the one behind them.
void PrefixCache::hold(Node* node, std::span<std::byte* const> pages, Place place) {
  for (std::byte* page : pages) ++held_[place][page];
  for (size_t i = node->depth; node->parent != nullptr; node = node->parent)
    if (std::byte* const page = pages[--i]; node->kept[place] == nullptr) node->kept[place] = page;
}

void PrefixCache::let_go(Node* node, std::span<std::byte* const> pages, Place place) {
  const auto last = [&](std::byte* page) {
    const auto it = held_[place].find(page);
    return --it->second == 0 && held_[place].erase(page) > 0;
  };
  size_t i = node->depth;
  for (size_t behind = i; behind < pages.size(); ++behind) last(pages[behind]);
  for (; node->parent != nullptr; node = node->parent)
    if (std::byte* const page = pages[--i]; last(page) && node->kept[place] == page) node->kept[place] = nullptr;
}

std::vector<std::byte*> PrefixCache::kept_pages(const Node* node, Place place) const {
  std::vector<std::byte*> pages(node->depth);
  for (size_t i = pages.size(); node->parent != nullptr; node = node->parent) pages[--i] = node->kept[place];
  return pages;
}

// Its pages that no entry holds yet.
size_t PrefixCache::bytes_of_unheld(const Checkpoint& checkpoint) const {
  const auto pages = checkpoint.pages();
  const auto unheld = std::count_if(pages.begin(), pages.end(), [this](const std::byte* page) { return held_[kDevice].count(page) == 0; });
  return static_cast<size_t>(unheld) * pool_.layout().page_bytes();
}

PrefixCacheStatistics PrefixCache::statistics() const {
  PrefixCacheStatistics s = statistics_;
  s.entries = static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(), [](const auto& e) { return e->checkpoint != nullptr; }));
  s.bytes = bytes();
  s.limit_bytes = options_.limit_bytes;
  return s;
}

}  // namespace foretoken
