// Automata over bytes, the material of grammars: nondeterministic ones are easy to put together, deterministic ones are
// walked. An edge reads a range of bytes or calls a rule of the grammar; what rules are, and text, is not known here.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace foretoken {

using RuleIndex = uint32_t;
inline constexpr uint32_t kNoState = UINT32_MAX;

struct ByteEdge {
  uint8_t first = 0, last = 0;  // inclusive
  uint32_t to = 0;
};
struct CallEdge {
  RuleIndex rule = 0;
  uint32_t to = 0;  // where reading goes on after the rule
};

// What a state means beside its edges.
enum StateMark : uint8_t {
  kAccept = 1,  // a word may end here
  kCounts = 2,  // one round of a counted rule ends here (grammar.h)
};

struct Dfa {
  struct State {
    std::vector<ByteEdge> edges;  // ascending, disjoint
    std::vector<CallEdge> calls;  // ascending by rule, one per rule
    uint8_t marks = 0;
  };
  std::vector<State> states;     // none: the automaton accepts nothing
  std::vector<uint32_t> starts;  // one per seed of determinise(); kNoState when nothing can be read from there

  uint32_t next(uint32_t state, uint8_t byte) const;  // kNoState: none
  bool accepts(std::string_view word) const;          // from starts[0], without calls
  bool empty() const { return states.empty() || starts[0] == kNoState; }
};

// Bounds on what one automaton may take; beyond them building ends with kUnsupported.
struct AutomatonLimits {
  size_t nfa_states = 200'000;
  size_t dfa_states = 40'000;
  size_t work = 10'000'000;     // elements of all state sets together
  size_t* work_left = nullptr;  // the same for several automata together; borrowed
};

class Nfa {
 public:
  explicit Nfa(AutomatonLimits limits = {}) : limits_(limits) { states_.emplace_back(); }

  // A new state; state 0 once the limit is reached, and then full() is true and determinise() fails.
  uint32_t add_state();
  bool full() const { return full_; }
  static constexpr uint32_t start() { return 0; }

  void mark(uint32_t state, uint8_t marks) { states_[state].marks |= marks; }
  void bytes(uint32_t from, uint8_t first, uint8_t last, uint32_t to) {
    states_[from].edges.push_back({first, last, to});
  }
  void skip(uint32_t from, uint32_t to) { states_[from].skips.push_back(to); }
  void call(uint32_t from, RuleIndex rule, uint32_t to) { states_[from].calls.push_back({rule, to}); }
  void literal(uint32_t from, std::string_view text, uint32_t to);
  void embed(const Dfa& automaton, uint32_t from, uint32_t to);  // its words, from starts[0], between two states

  // Only states that can still lead to a mark are kept. starts[i] is what seeds[i] became.
  Result<Dfa> determinise(std::span<const uint32_t> seeds) const;
  Result<Dfa> determinise() const;  // from start()

 private:
  friend class Determiniser;
  struct State {
    std::vector<ByteEdge> edges;
    std::vector<CallEdge> calls;
    std::vector<uint32_t> skips;
    uint8_t marks = 0;
  };
  AutomatonLimits limits_;
  std::vector<State> states_;
  bool full_ = false;
};

// The smallest automaton of `words`, in about the time that sorting them takes.
Dfa automaton_of(std::vector<std::string> words);

// Words of both, or of `a` and not of `b`; neither may hold calls. Trimmed and minimised.
Result<Dfa> intersect(const Dfa& a, const Dfa& b, AutomatonLimits limits = {});
Result<Dfa> subtract(const Dfa& a, const Dfa& b, AutomatonLimits limits = {});

// Drops states that lead to no mark.
void trim(Dfa& automaton);
// Joins states that nothing tells apart. Large automata stay as they are.
void minimise(Dfa& automaton);

}  // namespace foretoken
