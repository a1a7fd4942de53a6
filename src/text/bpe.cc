// Short pieces scan an array for the best pair; long ones keep the pairs in a heap ordered by (rank, position). Both
// make the same choices, so the length at which they change over is a matter of speed alone.
#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>

#include "base/check.h"

namespace foretoken {
namespace {

constexpr size_t kShortPiece = 48;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t mix(uint64_t key) {
  key ^= key >> 32;
  key *= 0x9E3779B97F4A7C15u;
  return key ^ key >> 29;
}

}  // namespace

Bpe::Bpe(size_t merges) {
  byte_ids_.fill(kNone);
  slots_.resize(std::bit_ceil(std::max<size_t>(16, 2 * merges)));
  joined_.reserve(merges);
}

size_t Bpe::slot_of(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  size_t at = mix(key) & mask;
  while (slots_[at].key != key && slots_[at].rank != kNoRank) at = (at + 1) & mask;
  return at;
}

void Bpe::grow() {
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  for (const Slot& slot : old)
    if (slot.rank != kNoRank) slots_[slot_of(slot.key)] = slot;
}

void Bpe::add_merge(int32_t left, int32_t right, int32_t joined) {
  CHECK(left >= 0);
  CHECK(right >= 0);
  CHECK(joined >= 0);
  if (2 * (used_ + 1) > slots_.size()) grow();
  Slot& slot = slots_[slot_of(pair_key(left, right))];
  if (slot.rank == kNoRank) ++used_;
  slot = {pair_key(left, right), static_cast<uint32_t>(joined_.size())};
  joined_.push_back(joined);
}

uint32_t Bpe::rank(int32_t left, int32_t right) const { return slots_[slot_of(pair_key(left, right))].rank; }

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() <= kShortPiece) encode_short(piece, ids);
  else encode_long(piece, ids);
}

void Bpe::encode_short(std::string_view piece, std::vector<int32_t>& ids) const {
  int32_t symbols[kShortPiece];
  uint32_t ranks[kShortPiece];  // ranks[i] belongs to the pair (i, i + 1)
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) symbols[i] = byte_ids_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank(symbols[i], symbols[i + 1]);
  while (count > 1) {
    const size_t best = static_cast<size_t>(std::min_element(ranks, ranks + count - 1) - ranks);
    if (ranks[best] == kNoRank) break;
    symbols[best] = joined_[ranks[best]];
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    std::copy(ranks + best + 1, ranks + count - 1, ranks + best);
    --count;
    if (best > 0) ranks[best - 1] = rank(symbols[best - 1], symbols[best]);
    if (best + 1 < count) ranks[best] = rank(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols, symbols + count);
}

void Bpe::encode_long(std::string_view piece, std::vector<int32_t>& ids) const {
  CHECK(piece.size() < kNoRank);
  constexpr uint32_t kEnd = UINT32_MAX;
  struct Symbol {
    int32_t id;            // kNone once merged into its left neighbour
    uint32_t left, right;  // neighbours, kEnd at the borders
    uint32_t rank;         // of the pair with `right`
  };
  const auto count = static_cast<uint32_t>(piece.size());
  std::vector<Symbol> symbols(count);
  for (uint32_t i = 0; i < count; ++i)
    symbols[i] = {byte_ids_[static_cast<uint8_t>(piece[i])], i == 0 ? kEnd : i - 1, i + 1 == count ? kEnd : i + 1,
                  kNoRank};

  // (rank, position) in one word; an entry is stale when its position's pair has another rank by now.
  std::vector<uint64_t> entries;
  entries.reserve(count);
  const auto entry = [](uint32_t rank, uint32_t at) { return static_cast<uint64_t>(rank) << 32 | at; };
  for (uint32_t i = 0; i + 1 < count; ++i) {
    symbols[i].rank = rank(symbols[i].id, symbols[i + 1].id);
    if (symbols[i].rank != kNoRank) entries.push_back(entry(symbols[i].rank, i));
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue(std::greater<>{}, std::move(entries));

  const auto update = [&](uint32_t at) {
    Symbol& s = symbols[at];
    const uint32_t fresh = s.right == kEnd ? kNoRank : rank(s.id, symbols[s.right].id);
    s.rank = fresh;
    if (fresh != kNoRank) queue.push(entry(fresh, at));
  };
  while (!queue.empty()) {
    const auto best = static_cast<uint32_t>(queue.top() >> 32);
    const auto at = static_cast<uint32_t>(queue.top());
    queue.pop();
    Symbol& s = symbols[at];
    if (s.id == kNone || s.rank != best) continue;
    Symbol& gone = symbols[s.right];
    s.id = joined_[best];
    gone.id = kNone;
    s.right = gone.right;
    if (s.right != kEnd) symbols[s.right].left = at;
    update(at);
    if (s.left != kEnd) update(s.left);
  }
  for (uint32_t at = 0; at != kEnd; at = symbols[at].right) ids.push_back(symbols[at].id);
}

}  // namespace foretoken
