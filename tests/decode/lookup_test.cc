// Suffix copy without tensors: what it proposes over known texts, and that its work is bounded.
#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "decode/drafter.h"
#include "support/toy_target.h"

namespace foretoken {
namespace {

using test::TestRandom;

struct Replay {
  int cycles = 0, drafted = 0, accepted = 0, longest = 0;
  double tokens_per_cycle() const { return static_cast<double>(accepted + cycles) / cycles; }
};

// Feeds `prompt`, then lets the drafter guess its way through `answer`, as a verified chain would. `max_depth` caps one proposal.
Replay replay(Drafter& drafter, const std::vector<TokenId>& prompt, const std::vector<TokenId>& answer, int max_depth) {
  drafter.restart({});
  drafter.observe({.first = 0, .tokens = prompt, .next = answer[0]});
  Replay r;
  size_t at = 0;  // answer[at] is the anchor
  while (at + 1 < answer.size()) {
    Draft draft;
    const int64_t position = static_cast<int64_t>(prompt.size() + at + 1);
    const int depth = static_cast<int>(std::min<size_t>(static_cast<size_t>(max_depth), answer.size() - at - 1));
    drafter.propose({.position = position, .anchor = answer[at], .depth = depth, .nodes = kMaxNodes}, draft);
    int hits = 0;
    while (hits < static_cast<int>(draft.nodes.size()) && at + 1 + static_cast<size_t>(hits) + 1 < answer.size() &&
           draft.nodes[static_cast<size_t>(hits)].token == answer[at + 1 + static_cast<size_t>(hits)])
      ++hits;
    const std::vector<TokenId> committed(answer.begin() + static_cast<ptrdiff_t>(at),
                                         answer.begin() + static_cast<ptrdiff_t>(at) + hits + 1);
    at += static_cast<size_t>(hits) + 1;
    drafter.observe({.first = position - 1, .tokens = committed, .next = answer[at]});
    ++r.cycles;
    r.drafted += static_cast<int>(draft.nodes.size());
    r.accepted += hits;
    r.longest = std::max(r.longest, hits);
  }
  return r;
}

// A file of `lines` lines over a vocabulary of words and punctuation, with names that recur.
std::vector<TokenId> file_text(TestRandom& random, int lines) {
  std::vector<TokenId> text;
  for (int i = 0; i < lines; ++i) {
    const int words = 3 + random.below(9);
    for (int w = 0; w < words; ++w) text.push_back(random.below(4) == 0 ? 10 + random.below(8) : 100 + random.below(3000));
    text.push_back(1);
  }
  return text;
}

// A file copied whole with small edits costs few cycles: words replaced, inserted, deleted and lines added every so often.
TEST(Lookup, WholeFileWithSmallEdits) {
  TestRandom random(3);
  const auto file = file_text(random, 500);
  std::vector<TokenId> answer = {5, 6, 7};
  int edits = 0, written = 0;
  for (size_t i = 0; i < file.size(); ++i) {
    const int what = random.below(300);
    if (what > 3) {
      answer.push_back(file[i]);
      continue;
    }
    ++edits;
    written += what == 0 ? 1 : what == 1 ? 2 : what == 3 ? 12 : 0;
    if (what == 0) answer.push_back(5000 + random.below(100));                                     // replaced
    if (what == 1) answer.insert(answer.end(), {file[i], 5000 + random.below(100), 5200});         // inserted
    if (what == 2) i += static_cast<size_t>(random.below(5));                                      // deleted
    if (what == 3)
      for (int n = 0; n < 12; ++n) answer.push_back(5000 + random.below(400));                     // a new line
  }
  const auto drafter = make_lookup_drafter();
  const Replay r = replay(*drafter, file, answer, kMaxNodes);
  std::printf("%zu tokens, %d edits: %d cycles, %.1f tokens per cycle, %.0f%% of the drafted accepted\n", answer.size(), edits, r.cycles,
              r.tokens_per_cycle(), 100.0 * r.accepted / r.drafted);
  EXPECT_GT(edits, 30);
  EXPECT_EQ(r.longest, kMaxNodes);
  // New text costs a cycle a token; beyond that, an edit costs a handful of cycles until the copy is wide again.
  EXPECT_LT(r.cycles, static_cast<int>(answer.size()) / 64 + written + 5 * edits + 20);
  EXPECT_GT(r.tokens_per_cycle(), 9);
}

// A rename is learnt at its first occurrence and applied at the following ones: cycles do not grow with the occurrences.
TEST(Lookup, RenameIsAppliedOnceLearnt) {
  TestRandom random(4);
  const auto file = file_text(random, 300);
  const TokenId old_name = 12;
  std::vector<TokenId> answer = {5, 6};
  int renamed = 0;
  for (const TokenId t : file) {
    if (t == old_name) {
      answer.insert(answer.end(), {7001, 7002});
      ++renamed;
    } else {
      answer.push_back(t);
    }
  }
  const auto drafter = make_lookup_drafter();
  const Replay r = replay(*drafter, file, answer, kMaxNodes);
  std::printf("%zu tokens, %d renamed: %d cycles, %.1f tokens per cycle\n", answer.size(), renamed, r.cycles, r.tokens_per_cycle());
  EXPECT_GT(renamed, 50);
  EXPECT_LT(r.cycles, static_cast<int>(answer.size()) / 64 + 16);
}

// Width goes from 3 to 7 after a fully accepted window, on while the copy runs, and back after a bad one.
TEST(Lookup, WidthFollowsSuccess) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < 200; ++i) prompt.push_back(100 + i);
  const auto drafter = make_lookup_drafter();
  drafter->restart({});
  drafter->observe({.first = 0, .tokens = prompt, .next = 103});
  int64_t first = 200;
  TokenId anchor = 103;
  const auto cycle = [&](const std::vector<TokenId>& actual) {  // what follows the anchor; returns how much was proposed
    Draft draft;
    drafter->propose({.position = first + 1, .anchor = anchor, .depth = 64, .nodes = 64}, draft);
    std::vector<TokenId> committed = {anchor};
    committed.insert(committed.end(), actual.begin(), actual.end() - 1);
    drafter->observe({.first = first, .tokens = committed, .next = actual.back()});
    first += static_cast<int64_t>(committed.size());
    anchor = actual.back();
    return static_cast<int>(draft.nodes.size());
  };
  const auto run = [](int begin, int count) {
    std::vector<TokenId> t;
    for (int i = 0; i < count; ++i) t.push_back(begin + i);
    return t;
  };
  EXPECT_EQ(cycle({104, 105}), 0);         // 103 alone is no match
  EXPECT_EQ(cycle(run(106, 4)), 3);        // 103 104 105 matches
  EXPECT_EQ(cycle(run(110, 8)), 7);
  EXPECT_EQ(cycle(run(118, 8)), 7);        // a run of 16 begins only now
  EXPECT_EQ(cycle(run(126, 15)), 14);
  EXPECT_EQ(cycle(run(141, 29)), 28);
  EXPECT_EQ(cycle(run(170, 2)), 64);       // what the source still holds, then itself
  EXPECT_EQ(cycle({9}), 64);
  EXPECT_LE(cycle({9, 8, 8}), 3);          // behind an edit, a short guess
}

// Two windows without an accepted token silence it for 16 proposals, unless a long match says otherwise.
TEST(Lookup, SilenceAfterTwoMisses) {
  TestRandom random(9);
  std::vector<TokenId> prompt;
  for (int i = 0; i < 400; ++i) {
    prompt.insert(prompt.end(), {1, 2, 3});
    prompt.push_back(1000 + random.below(50000));
  }
  std::vector<TokenId> answer;
  for (int i = 0; i < 100; ++i) {
    answer.insert(answer.end(), {1, 2, 3});
    answer.push_back(100000 + i);
  }
  const auto drafter = make_lookup_drafter();
  const Replay r = replay(*drafter, prompt, answer, 7);
  int always = 0;
  {
    const auto eager = make_lookup_drafter({.silence = 0});
    always = replay(*eager, prompt, answer, 7).drafted;
  }
  EXPECT_LT(r.drafted, always / 2);
  EXPECT_GT(always, 0);
}

// A loop is continued beyond what has been written: the copy follows itself.
TEST(Lookup, LoopFollowsItself) {
  std::vector<TokenId> prompt, answer;
  for (int i = 0; i < 20; ++i) prompt.push_back(500 + i);
  for (int i = 0; i < 400; ++i) answer.push_back(10 + i % 5);
  const auto drafter = make_lookup_drafter();
  const Replay r = replay(*drafter, prompt, answer, kMaxNodes);
  EXPECT_EQ(r.longest, kMaxNodes);
  EXPECT_LT(r.cycles, 24);
}

// Restored history is found again although no rows of it were seen.
TEST(Lookup, RestoredHistory) {
  std::vector<TokenId> history;
  for (int i = 0; i < 100; ++i) history.push_back(200 + i);
  const auto drafter = make_lookup_drafter();
  drafter->restart(history);
  drafter->observe({.first = 100, .tokens = std::vector<TokenId>{240, 241, 242}, .next = 243});
  Draft draft;
  drafter->propose({.position = 104, .anchor = 243, .depth = 8, .nodes = 8}, draft);
  ASSERT_EQ(draft.nodes.size(), 3u);
  EXPECT_EQ(draft.nodes[0].token, 244);
  EXPECT_EQ(draft.nodes[2].token, 246);
}

// Equal histories give equal proposals however they were told.
TEST(Lookup, ChunksDoNotMatter) {
  TestRandom random(11);
  const auto file = file_text(random, 60);
  const auto propose = [&](size_t chunk) {
    const auto drafter = make_lookup_drafter();
    drafter->restart({});
    std::vector<TokenId> all = file;
    all.insert(all.end(), file.begin() + 50, file.begin() + 70);
    for (size_t first = 0; first + 1 < all.size(); first += chunk) {
      const size_t end = std::min(first + chunk, all.size() - 1);
      drafter->observe({.first = static_cast<int64_t>(first),
                        .tokens = std::span<const TokenId>(all).subspan(first, end - first), .next = all[end]});
    }
    Draft draft;
    drafter->propose({.position = static_cast<int64_t>(all.size()), .anchor = all.back(), .depth = 5, .nodes = 5}, draft);
    std::vector<TokenId> tokens;
    for (const DraftNode& n : draft.nodes) tokens.push_back(n.token);
    return tokens;
  };
  const auto whole = propose(100000);
  EXPECT_EQ(whole, std::vector<TokenId>(file.begin() + 70, file.begin() + 73));
  EXPECT_EQ(propose(1), whole);
  EXPECT_EQ(propose(7), whole);
}

// A million tokens, periodic text (every probe a long match) included, cost well under a microsecond each plus bounded searches.
TEST(Lookup, MillionsOfTokens) {
  TestRandom random(5);
  std::vector<TokenId> prompt(1'000'000), answer(3000);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = i % 4 ? static_cast<TokenId>(i % 97) : random.below(30);
  for (size_t i = 0; i < answer.size(); ++i) answer[i] = static_cast<TokenId>(i % 3);
  const auto drafter = make_lookup_drafter();
  const auto begin = std::chrono::steady_clock::now();
  const Replay r = replay(*drafter, prompt, answer, 1);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%.0f ns per token\n", seconds * 1e9 / 1.003e6);
  EXPECT_GT(r.accepted, 1400);
}

}  // namespace
}  // namespace foretoken
