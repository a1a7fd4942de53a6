// The walk and the proposals, without tensors: whatever is proposed, what comes out is plain decoding.
#include "decode/verifier.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "decode/sampling.h"
#include "support/toy_target.h"

namespace foretoken {
namespace {

using test::TestRandom;
using test::ToyTarget;

// The token after `context` by the one definition of sampling.
TokenId target_token(const ToyTarget& target, std::span<const TokenId> context, const SamplingParams& sampling) {
  TokenCounts counts;
  for (const TokenId t : context) counts.add_answer(t);
  Sampler sampler;
  const auto logits = target.logits(context);
  return *sampler.select(logits, sampling, context.size(), &counts);
}

// Plain decoding: `count` tokens after `prompt`.
std::vector<TokenId> plain(const ToyTarget& target, std::vector<TokenId> context, int count, const SamplingParams& sampling) {
  const size_t prompt = context.size();
  for (int i = 0; i < count; ++i) context.push_back(target_token(target, context, sampling));
  return {context.begin() + static_cast<ptrdiff_t>(prompt), context.end()};
}

// A random tree of at most `nodes` nodes that holds the right continuation, or a wrong one, or both, with duplicate tokens among cousins.
Proposal random_tree(TestRandom& random, std::span<const TokenId> truth, int vocab, int nodes) {
  Proposal p;
  int on_path = -1, depth = 0;
  for (int i = 0; i < nodes; ++i) {
    const bool extend = random.below(3) > 0 && depth < static_cast<int>(truth.size());
    if (extend) {
      on_path = p.add(truth[static_cast<size_t>(depth++)], on_path);
    } else {
      const int parent = random.below(p.size() + 1) - 1;
      p.add(random.below(vocab), parent);
    }
  }
  return p;
}

enum class Bug { kNone, kAnyChild, kOneRowShort, kWrongBonus, kUnclampedBudget, kStopIgnored };

// The walk with planted mistakes; Bug::kNone is the verifier's own.
struct Walk {
  std::vector<TokenId> tokens;
  std::vector<int> rows;
  bool stopped = false;
};
Walk walk(Bug bug, const Proposal& p, int64_t budget, const std::function<Result<TokenId>(int, int)>& choose,
          const std::function<bool(TokenId)>& emit) {
  Walk w;
  if (bug == Bug::kNone) {
    const auto accepted = Verifier::accept(p, budget, choose, emit);
    w.tokens.assign(accepted->tokens().begin(), accepted->tokens().end());
    w.rows.assign(accepted->rows().begin(), accepted->rows().end());
    w.stopped = accepted->stopped();
    return w;
  }
  for (int node = -1;;) {
    const TokenId token = *choose(bug == Bug::kWrongBonus && p.size() > 1 && p.child(node, p.token(0)) < 0 ? 0 : node + 1,
                                  static_cast<int>(w.tokens.size()));
    w.tokens.push_back(token);
    w.rows.push_back(node + 1);
    int child = p.child(node, token);
    if (bug == Bug::kAnyChild && child < 0) child = p.first_child(node);
    const bool stop = emit(token);
    if (stop && (bug != Bug::kStopIgnored || child < 0)) {
      w.stopped = true;
      break;
    }
    if (child < 0) break;
    if (bug != Bug::kUnclampedBudget && static_cast<int64_t>(w.tokens.size()) == budget) break;
    node = child;
  }
  if (bug == Bug::kOneRowShort && w.rows.size() > 1) w.rows.pop_back();
  return w;
}

// Decodes with random trees of up to 16 nodes. The context the target sees is built from the committed rows' tokens alone, as a real
// target's state is: a wrong row shows as wrong later text. Returns the first difference to plain decoding, or "".
std::string decode_with_trees(Bug bug, uint64_t seed, const SamplingParams& sampling) {
  TestRandom random(seed);
  const int vocab = 6 + random.below(20);
  const ToyTarget target(vocab, seed, 3 + random.below(5));
  std::vector<TokenId> prompt(static_cast<size_t>(1 + random.below(5)));
  for (TokenId& t : prompt) t = random.below(vocab);
  const int max_tokens = 1 + random.below(40);
  const TokenId stop_token = random.below(vocab);
  std::vector<TokenId> expected = plain(target, prompt, max_tokens, sampling);
  if (const auto stop = std::find(expected.begin(), expected.end(), stop_token); stop != expected.end())
    expected.erase(stop + 1, expected.end());

  std::vector<TokenId> committed = prompt, out = {target_token(target, prompt, sampling)};
  bool stopped = out.back() == stop_token;
  while (!stopped && static_cast<int>(out.size()) < max_tokens) {
    const TokenId anchor = out.back();
    std::vector<TokenId> context = committed;
    context.push_back(anchor);
    const auto truth = plain(target, context, 12, sampling);
    const Proposal p = random_tree(random, truth, vocab, random.below(17));
    const auto path_context = [&](int row) {
      std::vector<TokenId> path;
      for (int node = row - 1; node >= 0; node = p.parent(node)) path.push_back(p.token(node));
      std::vector<TokenId> c = context;
      c.insert(c.end(), path.rbegin(), path.rend());
      return c;
    };
    const Walk w = walk(
        bug, p, max_tokens - static_cast<int64_t>(out.size()),
        [&](int row, int) -> Result<TokenId> { return target_token(target, path_context(row), sampling); },
        [&](TokenId t) {
          out.push_back(t);
          return t == stop_token;
        });
    if (bug == Bug::kNone && w.tokens.size() != w.rows.size()) return "tokens and rows differ in number";
    for (const int row : w.rows) committed.push_back(row == 0 ? anchor : p.token(row - 1));
    stopped = w.stopped;
    std::vector<TokenId> should = prompt;
    should.insert(should.end(), out.begin(), out.end() - 1);
    if (committed != should) return "the committed rows are not the answer without its last token";
  }
  return out == expected ? "" : "the answer is not plain decoding's";
}

SamplingParams params(int which) {
  SamplingParams s;
  s.temperature = which == 0 ? 0.0f : which == 1 ? 0.7f : 1.0f;
  if (which == 2) {
    s.top_p = 0.9f;
    s.frequency_penalty = 0.4f;
    s.repetition_penalty = 1.1f;
  }
  s.seed = 77;
  return s;
}

// Random trees, with right and wrong branches, duplicates and every budget, leave answer and committed rows as plain decoding has them,
// greedy and sampled, with penalties counted along the path.
TEST(Verifier, AnyTreeGivesPlainDecoding) {
  for (uint64_t seed = 0; seed < 2000; ++seed)
    ASSERT_EQ(decode_with_trees(Bug::kNone, seed, params(static_cast<int>(seed % 3))), "") << "seed " << seed;
}

// The test above sees each of five planted mistakes within a few hundred seeds.
TEST(Verifier, PlantedMistakesAreSeen) {
  for (const Bug bug : {Bug::kAnyChild, Bug::kOneRowShort, Bug::kWrongBonus, Bug::kUnclampedBudget, Bug::kStopIgnored}) {
    int seen = 0;
    for (uint64_t seed = 0; seed < 300; ++seed) seen += decode_with_trees(bug, seed, params(static_cast<int>(seed % 3))) != "";
    EXPECT_GT(seen, 0) << "bug " << static_cast<int>(bug);
  }
}

// An error behind the first token ends the walk before it, and the tokens before it stand.
TEST(Verifier, LaterErrorEndsTheWalkBeforeIt) {
  Proposal p;
  p.add(5, -1);
  p.add(6, 0);
  std::vector<TokenId> emitted;
  const auto emit = [&](TokenId t) {
    emitted.push_back(t);
    return false;
  };
  const auto fails_at = [&](int failing) {
    emitted.clear();
    return Verifier::accept(p, 10,
                            [failing](int row, int) -> Result<TokenId> {
                              if (row == failing) return Error{ErrorCode::kInvalidFile, "not finite"};
                              return TokenId{5 + row};
                            },
                            emit);
  };
  EXPECT_FALSE(fails_at(0));
  const auto second = fails_at(1);
  ASSERT_TRUE(second);
  EXPECT_EQ(std::vector<TokenId>(second->tokens().begin(), second->tokens().end()), std::vector<TokenId>{5});
  EXPECT_EQ(emitted, std::vector<TokenId>{5});
  const auto third = fails_at(2);
  ASSERT_TRUE(third);
  EXPECT_EQ(third->tokens().size(), 2u);
  EXPECT_EQ(third->rows()[1], 1);
}

// A chain is described by an empty span, a tree by parents that precede their children, also after cutting a tree back to a chain.
TEST(Proposal, RowParents) {
  Proposal p;
  p.add(1, -1);
  p.add(2, 0);
  EXPECT_TRUE(p.is_chain());
  EXPECT_TRUE(p.row_parents().empty());
  p.add(3, 0);
  EXPECT_FALSE(p.is_chain());
  const std::vector<int16_t> expected = {-1, 0, 1, 1};
  EXPECT_TRUE(std::ranges::equal(p.row_parents(), expected));
  EXPECT_EQ(p.child(0, 3), 2);
  EXPECT_EQ(p.child(0, 4), -1);
  p.truncate(2);
  EXPECT_TRUE(p.is_chain());
  EXPECT_EQ(p.child(0, 3), -1);
  EXPECT_EQ(p.child(0, 2), 1);
  EXPECT_EQ(p.add(2, 0), 1);  // shared
  EXPECT_EQ(p.size(), 2);
}

// Merging equals a brute-force best-first choice over the union of the drafts, shares equal prefixes, and joins their evidence.
TEST(Proposal, MergeIsBestFirstOverTheUnion) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    TestRandom random(seed);
    std::vector<Draft> drafts(static_cast<size_t>(1 + random.below(3)));
    for (size_t d = 0; d < drafts.size(); ++d) {
      drafts[d].by = static_cast<Route>(d);
      const int nodes = 1 + random.below(20);
      for (int i = 0; i < nodes; ++i) {
        const int parent = random.below(i + 1) - 1;
        int token = random.below(5), rank = 0;
        bool taken = false;
        for (const DraftNode& n : drafts[d].nodes) {
          rank += n.parent == parent;
          taken |= n.parent == parent && n.token == token;
        }
        if (!taken) drafts[d].add(token, parent, static_cast<float>(random.uniform()), rank);
        else drafts[d].add(100 + i, parent, static_cast<float>(random.uniform()), rank);
      }
    }
    // Paths as token strings, with the doubt of each last token.
    std::vector<std::pair<std::vector<TokenId>, double>> paths;
    for (const Draft& draft : drafts) {
      std::vector<std::vector<TokenId>> own(draft.nodes.size());
      for (size_t i = 0; i < draft.nodes.size(); ++i) {
        if (draft.nodes[i].parent >= 0) own[i] = own[static_cast<size_t>(draft.nodes[i].parent)];
        own[i].push_back(draft.nodes[i].token);
        auto it = std::find_if(paths.begin(), paths.end(), [&](const auto& p) { return p.first == own[i]; });
        if (it == paths.end()) paths.emplace_back(own[i], 1.0 - draft.nodes[i].probability);
        else it->second *= 1.0 - draft.nodes[i].probability;
      }
    }
    const auto value = [&](const std::vector<TokenId>& path) {
      double v = 1;
      for (size_t n = 1; n <= path.size(); ++n) {
        const std::vector<TokenId> head(path.begin(), path.begin() + static_cast<ptrdiff_t>(n));
        double sum = 0, own = 0;
        for (const auto& [other, doubt] : paths)
          if (other.size() == n && std::equal(head.begin(), head.end() - 1, other.begin())) {
            sum += 1 - doubt;
            if (other == head) own = 1 - doubt;
          }
        v *= own / std::max(1.0, sum);
      }
      return v;
    };
    std::vector<double> values;
    for (const auto& [path, doubt] : paths) values.push_back(value(path));
    std::sort(values.begin(), values.end(), std::greater<>());
    const int limit = 1 + random.below(24);
    const Proposal p = merge(drafts, {.nodes = limit});
    ASSERT_EQ(p.size(), std::min<int>(limit, static_cast<int>(paths.size())));
    for (int i = 0; i < p.size(); ++i) {
      ASSERT_NEAR(p.cumulative(i), values[static_cast<size_t>(i)], 1e-5) << "seed " << seed << " node " << i;
      ASSERT_LT(p.parent(i), i);
      for (int j = 0; j < i; ++j) ASSERT_FALSE(p.parent(j) == p.parent(i) && p.token(j) == p.token(i));
    }
    const Proposal seeded = merge(drafts, {.nodes = limit, .seed_chain = 4});
    for (int i = 1; i < std::min(4, seeded.size()); ++i)
      if (seeded.depth(i) == i + 1) { ASSERT_EQ(seeded.parent(i), i - 1); }
    ASSERT_TRUE(merge(drafts, {.nodes = limit, .chain_only = true}).is_chain());
    for (const int depth : {1, 2}) {
      const Proposal shallow = merge(drafts, {.nodes = limit, .depth = depth, .seed_chain = 4});
      for (int i = 0; i < shallow.size(); ++i) ASSERT_LE(shallow.depth(i), depth);
    }
  }
}

}  // namespace
}  // namespace foretoken
