// TokenGrammar: a grammar together with a vocabulary, and what is known about their tokens so far. It is shared by all
// answers under one grammar; a GrammarMatcher is one answer's place in it. Any number of threads may use one object.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "text/grammar.h"
#include "text/grammar_stacks.h"
#include "text/grammar_vocabulary.h"

namespace foretoken {

// What a walk through the vocabulary found in one state of one rule, whatever called the rule.
struct RuleWalk {
  std::vector<uint64_t> bits;       // [mask_words], or empty:
  std::vector<TokenId> tokens;      // then the allowed tokens, when they are few
  const TokenTrie* trie = nullptr;  // of `exits`: the vocabulary's, or one without what needs no walk
  std::shared_ptr<const TokenTrie> own_trie;
  std::vector<uint32_t> exits;  // nodes at which the rule may have ended: what lies below depends on the caller
  int32_t reach = -1;           // no token takes more rounds than this; -1: the walk did not tell
  size_t memory_bytes() const {
    return sizeof *this + bits.size() * sizeof bits[0] + tokens.size() * sizeof tokens[0] +
           exits.size() * sizeof exits[0];
  }
};

// Which tokens may come in one state of one rule, whatever called the rule.
struct LocalMask {
  std::vector<uint64_t> bits;            // [mask_words], or empty: those of the walk
  std::shared_ptr<const RuleWalk> walk;  // its exits, and its tokens where there are no bits
};

class TokenGrammar {
 public:
  TokenGrammar(Grammar grammar, std::shared_ptr<const GrammarVocabulary> vocabulary)
      : grammar_(std::move(grammar)), vocabulary_(std::move(vocabulary)) {}

  const Grammar& grammar() const { return grammar_; }
  const GrammarVocabulary& vocabulary() const { return *vocabulary_; }

  // The mask of the rule on top of `stack`, found or computed; `stacks` is the caller's own.
  std::shared_ptr<const LocalMask> local_mask(GrammarStacks& stacks, StackId stack) const;

  // Computes beforehand what answers will ask for, the states that are near the beginning first, until all is done,
  // much memory is taken or `go_on` says no; then false. For a thread that has nothing better to do.
  bool prepare(const std::function<bool()>& go_on) const;

 private:
  // All that a token's way through the top rule can depend on: counts and depths beyond a token's reach are one.
  struct Key {
    uint32_t state;
    int32_t rounds_left, rounds_missing, levels_left;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  static constexpr size_t kCacheBytes = 256u << 20, kPreparedBytes = 48u << 20;

  // A token goes deeper at most once an opening bracket and once behind the last.
  int32_t most_levels() const { return vocabulary_->most_openers() + 1 + grammar_.largest_need(); }
  Key key_of(const GrammarStacks::Stack& stack) const;
  Key within_reach(Key key) const;
  LeadSet loops_of(const Grammar::State& state) const;
  std::shared_ptr<const TokenTrie> trie_outside(const Grammar::State& state, const LeadSet& loops) const;
  std::shared_ptr<const RuleWalk> walk(GrammarStacks& stacks, StackId stack, const Key& key) const;
  RuleWalk compute_walk(GrammarStacks& stacks, StackId stack, const Key& key) const;
  LocalMask compute(std::shared_ptr<const RuleWalk> walk, const Key& key) const;
  std::vector<uint32_t> states_by_distance() const;
  bool prepare_rounds(GrammarStacks& stacks, uint32_t state, const std::function<bool()>& go_on) const;

  Grammar grammar_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<Key, std::shared_ptr<const LocalMask>, KeyHash> masks_;
  mutable std::unordered_map<Key, std::shared_ptr<const RuleWalk>, KeyHash> walks_;
  mutable std::unordered_map<uint32_t, int32_t> reach_;                             // by state, where a walk told
  mutable std::unordered_map<uint32_t, std::shared_ptr<const TokenTrie>> outside_;  // by set of loops
  mutable size_t cached_bytes_ = 0;
};

// Calls visit(node index, set) for every node in [begin, end) that the grammar can read from `from`, the set before
// `begin`. `path` is scratch.
template <class Visit>
void walk_trie(GrammarStacks& stacks, const TokenTrie& trie, uint32_t begin, uint32_t end, SetId from,
               std::vector<SetId>& path, Visit visit) {
  if (begin >= end) return;
  const size_t base = trie.nodes[begin].depth;
  path.assign(1, from);
  for (uint32_t i = begin; i < end;) {
    const TokenTrie::Node& node = trie.nodes[i];
    const size_t level = node.depth - base;
    const SetId set = stacks.step(path[level], node.byte);
    if (set == GrammarStacks::kDead) {
      i = node.skip;
      continue;
    }
    path.resize(level + 1);
    path.push_back(set);
    visit(i, set);
    ++i;
  }
}

}  // namespace foretoken
