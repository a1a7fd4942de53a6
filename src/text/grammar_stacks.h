// GrammarStacks: where a text stands in a grammar, as a set of stacks that share their lower parts. Stacks and sets are
// interned: equal ones have equal ids, so that a step is a table look-up after its first time and going back is free.
// One object serves one answer; it grows with the different situations met and knows no tokens.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "text/grammar.h"

namespace foretoken {

using StackId = uint32_t;  // one stack: a state, its count, and the stack that goes on afterwards
using SetId = uint32_t;    // a set of stacks, each able to read a byte or ended

class GrammarStacks {
 public:
  static constexpr SetId kDead = 0;  // the empty set: no text goes on like this
  struct Stack {
    uint32_t state = 0;  // kNoState: a bottom
    int32_t count = 0;   // rounds done of a counted rule, saturated at `min` when there is no upper bound
    StackId below = 0;   // meaningless for a bottom
    uint16_t depth = 0;  // nested rules down to here
    bool open = false;   // a bottom under which something unknown goes on; otherwise a bottom ends the text
  };

  explicit GrammarStacks(const Grammar& grammar);

  SetId start() const { return start_; }
  // The set after one more byte. step() remembers the answer; step_once() only looks it up.
  SetId step(SetId set, uint8_t byte);
  SetId step_once(SetId set, uint8_t byte);

  bool complete(SetId set) const { return sets_[set].complete; }  // the text may end here
  bool open(SetId set) const { return sets_[set].open; }          // an open bottom is reached
  std::span<const StackId> stacks(SetId set) const { return {sets_[set].stacks.data(), sets_[set].stacks.size()}; }
  const Stack& stack(StackId id) const { return stacks_[id]; }

  // The top of `stack` alone, over an open bottom at the same depth: what can be said without knowing the rest.
  SetId isolated(StackId stack);
  // A stack of one state over an open bottom, as if its rule had been called at the outermost level.
  StackId alone(uint32_t state, int32_t count);
  // The most rounds that a stack of the set has done in counted rule `rule`; 0 where none stands in it.
  int32_t most_rounds(SetId set, RuleIndex rule) const;
  // What may follow when the rule on top of a stack over `below` has ended.
  SetId set_of(StackId below);

  size_t stack_count() const { return stacks_.size(); }
  size_t set_count() const { return sets_.size(); }

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX;
  struct Set {
    std::vector<StackId> stacks;
    bool complete = false, open = false;
    std::unique_ptr<SetId[]> next;  // [256], made by the first step()
  };
  struct StackHash {
    size_t operator()(const Stack& s) const;
  };
  struct StackEqual {
    bool operator()(const Stack& a, const Stack& b) const;
  };
  struct SetHash {
    size_t operator()(const std::vector<StackId>& ids) const;
  };

  StackId intern(const Stack& stack);
  StackId on_same_level(uint32_t state, int32_t count, const Stack& like) {
    return intern({state, count, like.below, like.depth, false});
  }
  SetId intern_set(std::vector<StackId> stacks);
  void enter(RuleIndex rule, StackId below, std::vector<StackId>& out);
  // Adds what `stack` becomes without reading: stacks that can read a byte, and bottoms.
  void close(StackId stack, std::vector<StackId>& out);
  void end_round(const Stack& stack, std::vector<StackId>& out);
  SetId compute_step(SetId set, uint8_t byte);

  const Grammar& grammar_;
  std::vector<Stack> stacks_;
  std::unordered_map<Stack, StackId, StackHash, StackEqual> stack_index_;
  std::deque<Set> sets_;
  std::unordered_map<std::vector<StackId>, SetId, SetHash> set_index_;
  std::vector<StackId> visited_;  // of the closure under way
  SetId start_ = kDead;
};

}  // namespace foretoken
