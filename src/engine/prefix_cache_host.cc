// Ways between the backend's memory and the host tier. A copy under way is in `moving_`: its entry keeps both sides, so
// that neither end can be reused before it is done, and nobody takes over what has not arrived.
#include <algorithm>

#include "engine/prefix_tree.h"

namespace foretoken {

// ---- Out

// Whether the entry, which has a checkpoint, has a copy on the host or one under way now.
bool PrefixCache::copy_out(Entry& entry) {
  if (entry.image != nullptr) return true;
  if (!make_host_room(entry)) return false;
  auto moving = host_->begin_out(*entry.checkpoint, kept_pages(entry.node, kHost));
  entry.image = std::move(moving.copy);
  hold(entry.node, entry.image->pages(), kHost);
  host_drafts_ += entry.drafts.size();
  entry.copy = Entry::Copy::kOut;
  entry.transfer = moving.transfer;
  entry.moving_bytes = moving.bytes;
  moving_.push_back(&entry);
  return true;
}

bool PrefixCache::make_host_room(const Entry& entry) {
  const auto fits = [&](size_t others) { return others + entry.drafts.size() <= host_->limit_bytes(); };
  if (!fits(host_->bytes_of(*entry.checkpoint, {}))) return false;
  // Others that leave may take pages along that this one would have shared.
  while (
      !fits(host_->bytes_of(*entry.checkpoint, kept_pages(entry.node, kHost)) + host_->bytes_in_use() + host_drafts_)) {
    Entry* first =
        oldest([&](const Entry& e) { return e.image != nullptr && e.copy == Entry::Copy::kNone && &e != wanted_; });
    if (first == nullptr) return false;
    drop_image(*first);
    if (first->checkpoint != nullptr) continue;
    ++host_statistics_.dropped;
    forget(*first);
  }
  return true;
}

void PrefixCache::drop_image(Entry& entry) {
  finish(entry);
  let_go(entry.node, entry.image->pages(), kHost);
  host_drafts_ -= entry.drafts.size();
  entry.image.reset();
}

// ---- In

bool PrefixCache::bring_in(std::span<const TokenId> tokens) {
  Entry* entry = find(tokens);
  // Here, or on its way for another request: a lane's own page is all that may be missing.
  while (entry != nullptr && entry->checkpoint != nullptr && pool_.pages_free() == 0) {
    touch(*entry);
    if (!evict()) return false;
    entry = find(tokens);
  }
  if (entry == nullptr) return false;
  touch(*entry);
  if (entry->checkpoint == nullptr) {
    wanted_ = entry;
    const bool room = make_room_here(*entry);
    wanted_ = nullptr;
    if (!room) return false;
    auto moving = host_->begin_in(*entry->image, kept_pages(entry->node, kDevice));
    put(*entry, std::move(moving.copy));
    entry->copy = Entry::Copy::kIn;
    entry->transfer = moving.transfer;
    entry->moving_bytes = moving.bytes;
    moving_.push_back(entry);
  }
  ++host_statistics_.hits;
  return true;
}

// Room for a checkpoint of the image, and for the page that a lane copies of it.
bool PrefixCache::make_room_here(const Entry& entry) {
  const size_t page_bytes = pool_.layout().page_bytes(), copied = entry.image->recurrent_bytes() + entry.drafts.size();
  const size_t all = entry.image->pages().size();
  std::vector<std::byte*> kept = kept_pages(entry.node, kDevice);
  // Whether it is worth while: pages that lanes hold too stay, whoever leaves.
  size_t free = pool_.pages_free();
  for (const auto& [page, entries] : held_[kDevice])
    free += pool_.holders(page) == entries;  // arriving ones too: a bound is enough
  for (std::byte* page : kept) free += page != nullptr && pool_.holders(page) != held_[kDevice].at(page);
  if (free < all + 1) return false;
  for (;;) {
    const size_t pages = all - static_cast<size_t>(std::count_if(
                                   kept.begin(), kept.end(), [](const std::byte* page) { return page != nullptr; }));
    if (pool_.pages_free() > pages && copied + pages * page_bytes + bytes() <= options_.limit_bytes) return true;
    if (!evict()) return false;
    kept = kept_pages(entry.node, kDevice);
  }
}

bool PrefixCache::arriving(std::span<const TokenId> tokens) const {
  const Entry* entry = find(tokens);
  return entry != nullptr && entry->copy == Entry::Copy::kIn;
}

void PrefixCache::await(std::span<const TokenId> tokens) {
  if (Entry* entry = find(tokens)) finish(*entry);
}

// ---- Copies under way

void PrefixCache::finish(Entry& entry) {
  if (entry.copy == Entry::Copy::kNone) return;
  if (!host_->finished(entry.transfer)) {
    ++host_statistics_.waits;
    host_->finish(entry.transfer);
  }
  finished(entry);
}

void PrefixCache::finished(Entry& entry) {
  HostTierStatistics& s = host_statistics_;
  const bool out = std::exchange(entry.copy, Entry::Copy::kNone) == Entry::Copy::kOut;
  ++(out ? s.moved_out : s.moved_in);
  (out ? s.tokens_out : s.tokens_in) += static_cast<uint64_t>(entry.length());
  (out ? s.bytes_out : s.bytes_in) += entry.moving_bytes;
  std::erase(moving_, &entry);
}

void PrefixCache::tend() {
  if (host_ == nullptr) return;
  for (Entry* entry : std::vector<Entry*>(moving_))
    if (host_->finished(entry->transfer)) finished(*entry);
  if (!short_of_room() ||
      std::any_of(moving_.begin(), moving_.end(), [](const Entry* e) { return e->copy == Entry::Copy::kOut; }))
    return;
  // The next to leave, until an eighth of the cache can go at once.
  size_t ready = 0;
  for (auto it = entries_.rbegin(); it != entries_.rend() && ready < options_.limit_bytes / 8; ++it) {
    Entry& entry = **it;
    if (!entry.here()) continue;
    if (entry.image == nullptr) {
      copy_out(entry);
      return;
    }
    ready += entry.copied_bytes() + entry.checkpoint->pages().size() * pool_.layout().page_bytes();
  }
}

// Whether entries will have to leave soon.
bool PrefixCache::short_of_room() const {
  return bytes() >= options_.limit_bytes / 4 * 3 || pool_.pages_free() < pool_.limit() / 4;
}

std::optional<HostTierStatistics> PrefixCache::host_statistics() const {
  if (host_ == nullptr) return std::nullopt;
  HostTierStatistics s = host_statistics_;
  s.entries = static_cast<size_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const auto& e) { return e->image != nullptr; }));
  s.bytes = host_->bytes_in_use() + host_drafts_;
  s.limit_bytes = host_->limit_bytes();
  return s;
}

}  // namespace foretoken
