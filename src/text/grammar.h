// Grammar: a pushdown automaton over bytes. Rules are deterministic automata that may call each other; what a text may
// go on with is a set of stacks of states (grammar_stacks.h). Built once, then immutable. It knows no tokens.
//
// A counted rule reads its body between `min` and `max` times (its states marked kCounts end one round), then its exit
// part: long arrays and strings keep a number instead of a state for each element.
#pragma once

#include <bitset>
#include <memory>
#include <string>
#include <vector>

#include "text/automaton.h"

namespace foretoken {

struct GrammarLimits {
  size_t rules = 20'000;
  size_t states = 200'000;  // of all rules together
  int depth = 64;           // nested rules (objects and arrays) while generating; shallower ends are kept reachable
};

class Grammar {
 public:
  static constexpr int32_t kUnbounded = INT32_MAX;
  static constexpr int kNever = 0xFFFF;

  struct State {
    uint32_t edge_begin = 0, edge_end = 0;  // in edges()
    uint32_t call_begin = 0, call_end = 0;  // in calls()
    RuleIndex rule = 0;
    uint16_t need = 0;  // levels of nesting that the rest of the rule takes at least; kNever: it cannot end
    uint8_t marks = 0;
    uint32_t loops = kNoState;  // which plain characters lead back here (loop_set()); kNoState: few do
    bool is_end = false;        // nothing follows but the rule's end
  };
  struct Rule {
    uint32_t start = 0;
    uint32_t exit = kNoState;  // after the rounds; kNoState: not counted
    int32_t min = 1, max = 1;  // rounds; max may be kUnbounded
    bool nests = false;        // one level of depth; its first byte is '{' or '['
    uint16_t need = 0;         // levels that it takes at least, its own included
    std::string name;          // where it comes from, for errors
    bool counted() const { return exit != kNoState; }
  };

  const Rule& rule(RuleIndex index) const { return rules_[index]; }
  const State& state(uint32_t index) const { return states_[index]; }
  std::span<const ByteEdge> edges(const State& s) const {
    return {edges_.data() + s.edge_begin, edges_.data() + s.edge_end};
  }
  std::span<const CallEdge> calls(const State& s) const {
    return {calls_.data() + s.call_begin, calls_.data() + s.call_end};
  }
  // Plain characters, by their first byte, all of which lead back to the state; in a counted body, each ends one round.
  const std::bitset<256>& loop_set(const State& s) const { return loop_sets_[s.loops]; }
  RuleIndex root() const { return root_; }
  int depth_limit() const { return depth_limit_; }
  int largest_need() const { return largest_need_; }  // of the states that can end
  size_t state_count() const { return states_.size(); }
  size_t rule_count() const { return rules_.size(); }

 private:
  friend class GrammarBuilder;
  Grammar() = default;
  std::vector<Rule> rules_;
  std::vector<State> states_;
  std::vector<ByteEdge> edges_;
  std::vector<CallEdge> calls_;
  std::vector<std::bitset<256>> loop_sets_;
  RuleIndex root_ = 0;
  int depth_limit_ = 0;
  int largest_need_ = 0;
};

struct CountedBounds {
  int32_t min = 0;
  int32_t max = Grammar::kUnbounded;
};

class GrammarBuilder {
 public:
  explicit GrammarBuilder(GrammarLimits limits = {}) : limits_(limits) {}

  // A rule is declared, so that others can call it, and defined once. `name` appears in errors.
  RuleIndex declare(std::string name);
  Status define(RuleIndex rule, Dfa automaton, bool nests = false);
  // starts = {body, exit}; the ends of the body are marked kCounts. The body reads at least one byte.
  Status define_counted(RuleIndex rule, Dfa automaton, CountedBounds bounds);
  const std::string& name(RuleIndex rule) const { return parts_[rule].name; }

  // kUnsupported: a rule that begins with itself, or too many states. kUsage: no text is allowed.
  Result<Grammar> build(RuleIndex root) &&;

 private:
  struct Part {
    std::string name;
    Dfa automaton;
    CountedBounds bounds;
    bool counted = false, nests = false, defined = false;
  };
  Status define_part(RuleIndex rule, Part part);
  void lay_out();
  void find_needs();
  void drop_dead_ends();
  Status check_left_recursion() const;
  std::vector<bool> find_nullable() const;
  void find_loops();
  std::bitset<256> loops_of(uint32_t state) const;
  bool reads_plain_or_ends(uint32_t state) const;

  GrammarLimits limits_;
  std::vector<Part> parts_;
  size_t state_total_ = 0;
  Grammar grammar_;
};

}  // namespace foretoken
