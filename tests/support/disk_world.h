// A disk tier over simulated files and time, for tests: opened, closed and opened again, with toy entries whose bytes are known.
#pragma once

#include <gtest/gtest.h>

#include "support/simulated_files.h"
#include "support/toy_entries.h"

namespace foretoken::testing {

struct DiskWorld {
  DiskTierOptions options{.folder = "/cache",
                          .fingerprint = "toy",
                          .page_bytes = ToyShape{}.page_bytes(),
                          .limit_bytes = 1 << 20,
                          .queue_bytes = 1 << 20,
                          .write_bytes_per_hour = 0,
                          .least_free_bytes = 0,
                          .least_gain_tokens = 1,
                          .background = false};
  SimulatedFiles files;
  ScriptedClock clock;

  std::unique_ptr<DiskTier> open() { return DiskTier::open(options, files, clock); }

  // Stores an entry and writes it; false when it was not added.
  static bool add(DiskTier& tier, const Tokens& tokens) {
    const uint64_t before = tier.statistics().stored;
    tier.store(ToyEntry(tokens).source());
    tier.flush();
    return tier.statistics().stored == before + 1;
  }
};

// What restoring the longest prefix of `prompt` gives: its length, 0 for a miss. Wrong bytes fail the test.
inline int64_t restored(DiskTier& tier, const Tokens& prompt) {
  const auto match = tier.find(prompt, static_cast<int64_t>(prompt.size()));
  if (!match) return 0;
  const DiskLoad load = tier.load(*match, prompt);
  if (load.fault) return 0;
  EXPECT_EQ(static_cast<int64_t>(load.entry.tokens.size()), match->tokens);
  EXPECT_EQ(match->host_bytes, load.entry.pages.size() + load.entry.state.size() + load.entry.drafter.size() + load.entry.tokens.size() * 4);
  EXPECT_TRUE(ToyEntry(Tokens(prompt.begin(), prompt.begin() + match->tokens)).is(load.entry)) << "wrong bytes at " << match->tokens;
  return match->tokens;
}

inline uint64_t count(const DiskTier& tier, DiskFault fault) { return tier.statistics().faults[static_cast<size_t>(fault)]; }

}  // namespace foretoken::testing
