// The victim of tools/disk_tier_kill.py, and its judge. `write FOLDER SEED` stores and restores toy conversations without end, to be killed
// at any moment. `verify FOLDER` restores every conversation there can be: each entry that the folder still holds must have the right
// bytes, tokens and length. Prints one line of figures; exit status 1 when a byte is wrong.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/toy_entries.h"

namespace foretoken::testing {
namespace {

constexpr uint64_t kConversations = 24, kTurns = 6;

// Turn `turn` of a conversation; the conversations of a group share their beginning.
Tokens prompt_of(uint64_t conversation, uint64_t turn) {
  Tokens tokens = random_tokens(conversation / 4, 64 + conversation / 4);
  for (uint64_t t = 0; t <= turn; ++t) tokens = joined(std::move(tokens), random_tokens(1000 + conversation * kTurns + t, 40 + (conversation * 7 + t * 13) % 90));
  return tokens;
}

constexpr ToyShape kShape{.slot_bytes = 512, .state_bytes = 150'000, .drafter_bytes = 9'000};

DiskTierOptions options_of(const char* folder) {
  return {.folder = folder,
          .fingerprint = "kill test",
          .page_bytes = kShape.page_bytes(),
          .limit_bytes = 12 << 20,
          .queue_bytes = 4 << 20,
          .write_bytes_per_hour = 0,
          .least_free_bytes = 0,
          .least_gain_tokens = 32};
}

// 1 when an entry was restored, 0 for a miss; wrong bytes end the program.
int restore(DiskTier& tier, const Tokens& prompt) {
  const auto match = tier.find(prompt, static_cast<int64_t>(prompt.size()));
  if (!match) return 0;
  const DiskLoad load = tier.load(*match, prompt);
  if (load.fault) return 0;
  if (ToyEntry(Tokens(prompt.begin(), prompt.begin() + match->tokens), kShape).is(load.entry)) return 1;
  std::printf("WRONG BYTES in an entry of %ld tokens\n", static_cast<long>(match->tokens));
  std::exit(1);
}

[[noreturn]] void write(const char* folder, uint64_t seed) {
  PosixFiles files;
  SteadyClock clock;
  const auto tier = DiskTier::open(options_of(folder), files, clock);
  std::mt19937_64 random(seed);
  for (;;) {
    const uint64_t conversation = random() % kConversations;
    tier->store(ToyEntry(prompt_of(conversation, random() % kTurns), kShape).source());
    if (random() % 4 == 0) restore(*tier, prompt_of(random() % kConversations, random() % kTurns));
    if (random() % 16 == 0) tier->flush();
  }
}

int verify(const char* folder) {
  PosixFiles files;
  SteadyClock clock;
  const auto tier = DiskTier::open(options_of(folder), files, clock);
  const DiskTierStatistics found = tier->statistics();
  uint64_t entries = 0, restored = 0;
  for (uint64_t conversation = 0; conversation < kConversations; ++conversation)
    for (uint64_t turn = 0; turn < kTurns; ++turn) {
      const Tokens prompt = prompt_of(conversation, turn);
      const auto match = tier->find(prompt, static_cast<int64_t>(prompt.size()));
      entries += match && match->tokens == static_cast<int64_t>(prompt.size());
      restored += static_cast<uint64_t>(restore(*tier, prompt));
    }
  const DiskTierStatistics after = tier->statistics();
  const auto of = [&](DiskFault fault) { return static_cast<unsigned long>(after.faults[static_cast<size_t>(fault)]); };
  std::printf("entries %lu verified %lu restores %lu unfinished %lu truncated %lu damaged %lu orphans %lu unreadable %lu bytes %lu\n",
              static_cast<unsigned long>(found.entries), static_cast<unsigned long>(entries), static_cast<unsigned long>(restored),
              of(DiskFault::kUnfinished), of(DiskFault::kTruncated), of(DiskFault::kDamaged), of(DiskFault::kNoParent),
              of(DiskFault::kUnreadable), static_cast<unsigned long>(found.bytes));
  const bool whole = found.writable && entries == found.entries && found.bytes <= options_of(folder).limit_bytes;
  if (!whole) std::printf("NOT EVERY ENTRY COULD BE CHECKED: %s\n", found.note.c_str());
  return whole ? 0 : 1;
}

}  // namespace
}  // namespace foretoken::testing

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "write" && argc == 4) foretoken::testing::write(argv[2], std::strtoull(argv[3], nullptr, 10));
  if (command == "verify" && argc == 3) return foretoken::testing::verify(argv[2]);
  std::fprintf(stderr, "usage: disk_tier_kill write FOLDER SEED | verify FOLDER\n");
  return 2;
}
