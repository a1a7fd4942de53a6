// Entries for the disk tier's tests whose every byte follows from their tokens: a page slot's bytes from the tokens up to it, the state's
// from all tokens. Slots beyond the end hold rubbish that depends on the length, as a real page does.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "base/file.h"
#include "engine/disk_tier.h"
#include "support/scripted_clock.h"

namespace foretoken::testing {

using Tokens = std::vector<TokenId>;

inline Tokens random_tokens(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  Tokens tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 50'000);
  return tokens;
}

inline Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct ToyShape {
  uint64_t slot_bytes = 16, state_bytes = 5000, drafter_bytes = 700;
  uint64_t page_bytes() const { return slot_bytes * kPageTokens; }
};

class ToyEntry {
 public:
  explicit ToyEntry(Tokens tokens, ToyShape shape = {}) : tokens_(std::move(tokens)), shape_(shape) {
    const size_t pages = (tokens_.size() + kPageTokens - 1) / kPageTokens;
    std::vector<uint64_t> prefixes;
    uint64_t hash = 1;
    for (const TokenId token : tokens_) prefixes.push_back(hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u + 1);
    for (size_t slot = 0; slot < pages * kPageTokens; ++slot)
      append(pages_, slot < prefixes.size() ? prefixes[slot] : 0xEEEE'0000u + slot + (tokens_.size() << 32), shape_.slot_bytes);
    append(state_, hash ^ 0x5A5A, shape_.state_bytes);
    append(drafter_, hash ^ 0x0F0F, shape_.drafter_bytes);
  }

  const Tokens& tokens() const { return tokens_; }
  EntrySource source() const {
    return {.tokens = tokens_,
            .copy_page = [this](int64_t page, std::span<std::byte> out) {
              ++copied_pages;
              const auto bytes = std::span(pages_).subspan(static_cast<size_t>(page) * shape_.page_bytes(), shape_.page_bytes());
              std::copy(bytes.begin(), bytes.end(), out.begin());
            },
            .state = {.bytes = state_, .owner = {}},
            .drafter = {.bytes = drafter_, .owner = {}}};
  }

  // Whether `entry` has exactly these tokens and bytes.
  bool is(const DiskEntry& entry) const {
    const auto same = [](const std::vector<std::byte>& a, const Buffer& b) {
      return a.size() == b.size() && std::equal(a.begin(), a.end(), b.data());
    };
    return entry.tokens == tokens_ && same(pages_, entry.pages) && same(state_, entry.state) && same(drafter_, entry.drafter);
  }

  mutable int copied_pages = 0;

 private:
  static void append(std::vector<std::byte>& out, uint64_t seed, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      out.push_back(static_cast<std::byte>(seed >> 56));
    }
  }

  Tokens tokens_;
  ToyShape shape_;
  std::vector<std::byte> pages_, state_, drafter_;
};

using test::ScriptedClock;

}  // namespace foretoken::testing
