// The index against a list that is searched token by token: random trees of prefixes over few token values, so that many share pages.
#include "engine/disk_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "support/toy_entries.h"

namespace foretoken {
namespace {

using testing::Tokens;

Digest key_of(uint64_t number) {
  Digest key{};
  std::memcpy(key.data(), &number, sizeof number);
  return key;
}

bool begins(const Tokens& prompt, const Tokens& entry) {
  return entry.size() <= prompt.size() && std::equal(entry.begin(), entry.end(), prompt.begin());
}

// What the index should know, as a plain list.
struct Model {
  struct Entry {
    DiskIndex::Id id, parent;
    Tokens tokens;
    int64_t used;
    bool stored;
  };
  std::vector<Entry> entries;

  const Entry* longest(const Tokens& prompt, int64_t at_most, bool queued) const {
    const Entry* best = nullptr;
    for (const Entry& entry : entries)
      if ((entry.stored || queued) && static_cast<int64_t>(entry.tokens.size()) <= at_most && begins(prompt, entry.tokens) &&
          (!best || entry.tokens.size() > best->tokens.size()))
        best = &entry;
    return best;
  }
  bool has_child(DiskIndex::Id id) const {
    return std::any_of(entries.begin(), entries.end(), [&](const Entry& e) { return e.parent == id; });
  }
};

TEST(DiskIndex, FindsWhatAListFinds) {
  int hits = 0, partial_pages = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    DiskIndex index;
    Model model;
    // Prompts: random walks that keep a prefix of an earlier one.
    std::vector<Tokens> prompts{{}};
    const auto next_prompt = [&] {
      const Tokens& base = prompts[random() % prompts.size()];
      Tokens tokens(base.begin(), base.begin() + static_cast<ptrdiff_t>(random() % (base.size() + 1)));
      for (size_t n = 1 + random() % 70; n > 0; --n) tokens.push_back(static_cast<TokenId>(random() % 2));
      return tokens;
    };
    for (int step = 0; step < 200; ++step) {
      const Tokens tokens = next_prompt();
      prompts.push_back(tokens);
      const auto* parent = model.longest(tokens, static_cast<int64_t>(tokens.size()), true);
      if (!parent || parent->tokens.size() < tokens.size()) {
        const auto hashes = DiskIndex::hashes_of(tokens);
        const bool stored = random() % 3 > 0;
        const auto used = static_cast<int64_t>(random() % 1000);
        const DiskIndex::Id id = index.add({.parent = parent ? parent->id : 0,
                                            .key = key_of(seed * 1000 + static_cast<uint64_t>(step) + 1),
                                            .length = static_cast<int64_t>(tokens.size()),
                                            .stem = hashes.stem,
                                            .path = hashes.path,
                                            .disk_bytes = 10,
                                            .last_used_ns = used,
                                            .stored = stored});
        model.entries.push_back({id, parent ? parent->id : 0, tokens, used, stored});
      }
      if (random() % 8 == 0 && !model.entries.empty()) {  // a subtree goes
        const DiskIndex::Id id = model.entries[random() % model.entries.size()].id;
        std::vector<DiskIndex::Id> gone;
        for (const auto& node : index.remove(id)) gone.push_back(node.id);
        ASSERT_EQ(gone.back(), id);
        for (const DiskIndex::Id one : gone) {
          ASSERT_FALSE(model.has_child(one)) << "children go first";
          std::erase_if(model.entries, [&](const auto& e) { return e.id == one; });
        }
        ASSERT_FALSE(model.has_child(id));
      }
      const Tokens prompt = next_prompt();
      for (int64_t at_most = 0; at_most <= static_cast<int64_t>(prompt.size()) + 2; ++at_most)
        for (const bool queued : {false, true}) {
          const auto* expected = model.longest(prompt, at_most, queued);
          const auto* found =
              index.longest(prompt, at_most, queued ? DiskIndex::Include::kStoredAndQueued : DiskIndex::Include::kStored);
          ASSERT_EQ(found ? found->id : 0, expected ? expected->id : 0) << "at most " << at_most;
          hits += found != nullptr;
          partial_pages += found && found->length % kPageTokens != 0;
        }
      const Model::Entry* oldest = nullptr;
      size_t stored = 0;
      for (const auto& entry : model.entries) {
        stored += entry.stored;
        if (entry.stored && !model.has_child(entry.id) &&
            (!oldest || std::pair(entry.used, entry.id) < std::pair(oldest->used, oldest->id)))
          oldest = &entry;
      }
      const auto* leaf = index.oldest_leaf();
      ASSERT_EQ(leaf ? leaf->id : 0, oldest ? oldest->id : 0);
      ASSERT_EQ(index.stored_count(), stored);
      ASSERT_EQ(index.stored_bytes(), stored * 10);
    }
  }
  EXPECT_GT(hits, 1000);
  EXPECT_GT(partial_pages, 100);
  EXPECT_LT(partial_pages, hits);
}

TEST(DiskIndex, TouchingReachesAncestorsAndPinsKeep) {
  DiskIndex index;
  std::vector<DiskIndex::Id> ids;
  for (int64_t length : {10, 20, 30}) {
    const Tokens tokens(static_cast<size_t>(length), 7);
    const auto hashes = DiskIndex::hashes_of(tokens);
    ids.push_back(index.add({.parent = ids.empty() ? 0 : ids.back(), .key = key_of(static_cast<uint64_t>(length)), .length = length,
                             .stem = hashes.stem, .path = hashes.path, .disk_bytes = 1, .last_used_ns = 5, .stored = true}));
  }
  index.touch(ids[1], 100);
  EXPECT_EQ(index.get(ids[2])->last_used_ns, 5);
  EXPECT_EQ(index.get(ids[1])->last_used_ns, 100);
  EXPECT_EQ(index.get(ids[0])->last_used_ns, 101);
  EXPECT_EQ(index.chain(ids[2]).size(), 3u);
  EXPECT_EQ(index.chain(ids[2]).front().id, ids[0]);
  EXPECT_EQ(index.oldest_leaf()->id, ids[2]);
  index.pin(ids[2]);
  EXPECT_EQ(index.oldest_leaf(), nullptr);
  index.unpin(ids[2]);
  EXPECT_EQ(index.oldest_leaf()->id, ids[2]);
  EXPECT_EQ(index.by_key(key_of(20))->id, ids[1]);
  index.remove(ids[1]);
  EXPECT_EQ(index.get(ids[2]), nullptr);
  EXPECT_EQ(index.by_key(key_of(20)), nullptr);
  EXPECT_EQ(index.oldest_leaf()->id, ids[0]);
}

}  // namespace
}  // namespace foretoken
