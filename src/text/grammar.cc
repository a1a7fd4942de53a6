// Laying rules out as one table of states, and what is found out about them beforehand.
#include "text/grammar.h"

#include <algorithm>

#include "base/check.h"

namespace foretoken {

RuleIndex GrammarBuilder::declare(std::string name) {
  parts_.push_back({.name = std::move(name)});
  return static_cast<RuleIndex>(parts_.size() - 1);
}

Status GrammarBuilder::define_part(RuleIndex rule, Part part) {
  CHECK(rule < parts_.size());
  CHECK(!parts_[rule].defined);
  state_total_ += part.automaton.states.size();
  if (state_total_ > limits_.states || parts_.size() > limits_.rules)
    return Error{ErrorCode::kUnsupported, parts_[rule].name + ": the grammar needs more than " +
                                              std::to_string(limits_.states) + " states or " +
                                              std::to_string(limits_.rules) + " rules"};
  part.name = std::move(parts_[rule].name);
  part.defined = true;
  parts_[rule] = std::move(part);
  return {};
}

Status GrammarBuilder::define(RuleIndex rule, Dfa automaton, bool nests) {
  return define_part(rule, {.automaton = std::move(automaton), .nests = nests});
}

Status GrammarBuilder::define_counted(RuleIndex rule, Dfa automaton, CountedBounds bounds) {
  CHECK(automaton.starts.size() == 2);
  CHECK(bounds.min <= bounds.max);
  return define_part(rule, {.automaton = std::move(automaton), .bounds = bounds, .counted = true});
}

Result<Grammar> GrammarBuilder::build(RuleIndex root) && {
  grammar_.root_ = root;
  grammar_.depth_limit_ = limits_.depth;
  lay_out();
  find_needs();
  const Grammar::Rule& first = grammar_.rules_[root];
  if (first.need > limits_.depth)
    return Error{ErrorCode::kUsage,
                 first.name + (first.need == Grammar::kNever ? ": no text is allowed here"
                                                             : ": every text is nested deeper than " +
                                                                   std::to_string(limits_.depth) + " levels")};
  drop_dead_ends();
  TRY(check_left_recursion());
  find_loops();
  return std::move(grammar_);
}

// A rule without states becomes one dead state.
void GrammarBuilder::lay_out() {
  for (RuleIndex r = 0; r < parts_.size(); ++r) {
    Part& part = parts_[r];
    CHECK(part.defined);
    const auto base = static_cast<uint32_t>(grammar_.states_.size());
    const auto moved = [base](uint32_t state) { return state == kNoState ? kNoState : base + state; };
    Grammar::Rule rule{.min = part.counted ? part.bounds.min : 1,
                       .max = part.counted ? part.bounds.max : 1,
                       .nests = part.nests,
                       .name = part.name};
    for (const Dfa::State& s : part.automaton.states) {
      Grammar::State state{.rule = r, .marks = s.marks};
      state.edge_begin = static_cast<uint32_t>(grammar_.edges_.size());
      for (const ByteEdge& e : s.edges) grammar_.edges_.push_back({e.first, e.last, base + e.to});
      state.edge_end = static_cast<uint32_t>(grammar_.edges_.size());
      state.call_begin = static_cast<uint32_t>(grammar_.calls_.size());
      for (const CallEdge& e : s.calls) grammar_.calls_.push_back({e.rule, base + e.to});
      state.call_end = static_cast<uint32_t>(grammar_.calls_.size());
      grammar_.states_.push_back(state);
    }
    const auto dead = [&] {
      grammar_.states_.push_back({.rule = r});
      return static_cast<uint32_t>(grammar_.states_.size() - 1);
    };
    rule.start = part.automaton.empty() ? dead() : moved(part.automaton.starts[0]);
    if (part.counted) {
      const uint32_t exit = part.automaton.states.empty() ? kNoState : part.automaton.starts[1];
      rule.exit = exit == kNoState ? dead() : moved(exit);
    }
    part.automaton = {};
    grammar_.rules_.push_back(std::move(rule));
  }
}

// The least levels of nesting that each state's rest takes: values only fall from kNever, until nothing changes.
void GrammarBuilder::find_needs() {
  auto& states = grammar_.states_;
  std::vector<std::vector<uint32_t>> before(states.size()), callers(grammar_.rules_.size());
  std::vector<uint32_t> unsettled;
  for (uint32_t i = 0; i < states.size(); ++i) {
    Grammar::State& s = states[i];
    s.need = Grammar::kNever;
    for (const ByteEdge& e : grammar_.edges(s)) before[e.to].push_back(i);
    for (const CallEdge& e : grammar_.calls(s)) {
      before[e.to].push_back(i);
      callers[e.rule].push_back(i);
    }
    unsettled.push_back(i);
  }
  for (Grammar::Rule& rule : grammar_.rules_) rule.need = Grammar::kNever;
  for (uint32_t i = 0; i < states.size(); ++i)
    if (states[i].marks & kCounts) before[grammar_.rules_[states[i].rule].exit].push_back(i);
  while (!unsettled.empty()) {
    const uint32_t i = unsettled.back();
    unsettled.pop_back();
    Grammar::State& s = states[i];
    Grammar::Rule& rule = grammar_.rules_[s.rule];
    int need = s.marks & kAccept ? 0 : Grammar::kNever;
    if (s.marks & kCounts) need = std::min(need, int{states[rule.exit].need});
    for (const ByteEdge& e : grammar_.edges(s)) need = std::min(need, int{states[e.to].need});
    for (const CallEdge& e : grammar_.calls(s))
      need = std::min(need, std::max(int{grammar_.rules_[e.rule].need}, int{states[e.to].need}));
    if (need >= s.need && i != rule.start && i != rule.exit) continue;
    if (need < s.need) {
      s.need = static_cast<uint16_t>(need);
      unsettled.insert(unsettled.end(), before[i].begin(), before[i].end());
    }
    int whole = states[rule.start].need;
    if (rule.counted() && rule.min == 0) whole = std::min(whole, int{states[rule.exit].need});
    if (whole != Grammar::kNever) whole += rule.nests;
    if (whole < rule.need) {
      rule.need = static_cast<uint16_t>(whole);
      unsettled.insert(unsettled.end(), callers[s.rule].begin(), callers[s.rule].end());
    }
  }
}

void GrammarBuilder::drop_dead_ends() {
  for (Grammar::State& s : grammar_.states_) {
    const auto dead = [&](const auto& edge) { return grammar_.states_[edge.to].need == Grammar::kNever; };
    const auto dead_call = [&](const CallEdge& e) {
      return dead(e) || grammar_.rules_[e.rule].need == Grammar::kNever;
    };
    const auto edges = grammar_.edges_.begin();
    const auto calls = grammar_.calls_.begin();
    s.edge_end = static_cast<uint32_t>(std::remove_if(edges + s.edge_begin, edges + s.edge_end, dead) - edges);
    s.call_end = static_cast<uint32_t>(std::remove_if(calls + s.call_begin, calls + s.call_end, dead_call) - calls);
    s.is_end = s.marks == kAccept && s.edge_begin == s.edge_end && s.call_begin == s.call_end;
    if (s.need != Grammar::kNever) grammar_.largest_need_ = std::max(grammar_.largest_need_, int{s.need});
  }
  for (const Grammar::Rule& rule : grammar_.rules_)
    if (rule.need != Grammar::kNever) grammar_.largest_need_ = std::max(grammar_.largest_need_, int{rule.need});
}

namespace {

// Calls `visit` for every state of `rule` that is reached before anything is read, given which rules may read nothing.
template <class Visit>
void for_each_leading_state(const Grammar& grammar, const Grammar::Rule& rule, const std::vector<bool>& nullable,
                            Visit visit) {
  std::vector<uint32_t> unsettled{rule.start}, seen;
  if (rule.counted() && rule.min == 0) unsettled.push_back(rule.exit);
  while (!unsettled.empty()) {
    const uint32_t s = unsettled.back();
    unsettled.pop_back();
    if (std::find(seen.begin(), seen.end(), s) != seen.end()) continue;
    seen.push_back(s);
    visit(grammar.state(s));
    for (const CallEdge& call : grammar.calls(grammar.state(s)))
      if (nullable[call.rule]) unsettled.push_back(call.to);
  }
}

}  // namespace

std::vector<bool> GrammarBuilder::find_nullable() const {
  std::vector<bool> nullable(grammar_.rule_count(), false);
  for (bool changed = true; changed;) {
    changed = false;
    for (RuleIndex r = 0; r < nullable.size(); ++r) {
      if (nullable[r]) continue;
      bool accepts = false;
      for_each_leading_state(grammar_, grammar_.rule(r), nullable,
                             [&](const Grammar::State& s) { accepts |= (s.marks & kAccept) != 0; });
      if (accepts) nullable[r] = changed = true;
    }
  }
  return nullable;
}

// A rule that calls itself before it reads anything would push for ever; a counted body that reads nothing would count
// so.
Status GrammarBuilder::check_left_recursion() const {
  const std::vector<bool> nullable = find_nullable();
  const size_t n = grammar_.rule_count();
  std::vector<std::vector<RuleIndex>> leads(n);
  for (RuleIndex r = 0; r < n; ++r) {
    bool counts = false;
    for_each_leading_state(grammar_, grammar_.rule(r), nullable, [&](const Grammar::State& s) {
      counts |= (s.marks & kCounts) != 0;
      for (const CallEdge& call : grammar_.calls(s)) leads[r].push_back(call.rule);
    });
    CHECK(!counts);
  }
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> mark(n, kNew);
  for (RuleIndex root = 0; root < n; ++root) {
    std::vector<std::pair<RuleIndex, size_t>> path;
    if (mark[root] == kNew) path.emplace_back(root, 0);
    while (!path.empty()) {
      auto& [r, next] = path.back();
      mark[r] = kOpen;
      if (next == leads[r].size()) {
        mark[r] = kDone;
        path.pop_back();
        continue;
      }
      const RuleIndex to = leads[r][next++];
      if (mark[to] == kOpen)
        return Error{ErrorCode::kUnsupported, grammar_.rule(to).name + ": refers to itself with nothing in between"};
      if (mark[to] == kNew) path.emplace_back(to, 0);
    }
  }
  return {};
}

// The plain characters: U+0020 and above but '"' and '\'. Their bytes as a small automaton: 0 is a boundary between
// characters, the others wait for continuation bytes.
namespace {

struct PlainStep {
  uint8_t first, last;
  int from, to;
};
constexpr PlainStep kPlainSteps[] = {{0x20, 0x21, 0, 0}, {0x23, 0x5B, 0, 0}, {0x5D, 0x7F, 0, 0}, {0xC2, 0xDF, 0, 1},
                                     {0xE0, 0xE0, 0, 4}, {0xE1, 0xEC, 0, 2}, {0xED, 0xED, 0, 5}, {0xEE, 0xEF, 0, 2},
                                     {0xF0, 0xF0, 0, 6}, {0xF1, 0xF3, 0, 3}, {0xF4, 0xF4, 0, 7}, {0x80, 0xBF, 1, 0},
                                     {0x80, 0xBF, 2, 1}, {0x80, 0xBF, 3, 2}, {0xA0, 0xBF, 4, 1}, {0x80, 0x9F, 5, 1},
                                     {0x90, 0xBF, 6, 2}, {0x80, 0x8F, 7, 2}};

}  // namespace

bool GrammarBuilder::reads_plain_or_ends(uint32_t index) const {
  const Grammar::State& state = grammar_.states_[index];
  if ((state.marks & kAccept) || state.call_begin != state.call_end) return true;
  const auto edges = grammar_.edges(state);
  return std::any_of(edges.begin(), edges.end(), [](const ByteEdge& e) {
    return e.last >= 0x20 && !(e.first == e.last && (e.first == '"' || e.first == '\\'));
  });
}

// Plain characters by their first byte: those whose every character leads from `state` back to it, or ends a round
// there.
std::bitset<256> GrammarBuilder::loops_of(uint32_t state) const {
  const Grammar::Rule& rule = grammar_.rules_[grammar_.states_[state].rule];
  const bool starts_round = rule.counted() && state == rule.start;
  if (starts_round && reads_plain_or_ends(rule.exit)) return {};  // plain characters would not all stay in the rounds
  const auto comes_back = [&](uint32_t to) {
    if (!starts_round) return to == state;
    const Grammar::State& s = grammar_.states_[to];
    return s.marks == kCounts && s.edge_begin == s.edge_end && s.call_begin == s.call_end;
  };
  // Whether all characters come back that go on at `at` with the bytes of `step` from `first` on.
  const auto all_loop = [&](const auto& self, uint32_t at, const PlainStep& step, int first, int last) -> bool {
    for (int b = first; b <= last;) {
      const auto edges = grammar_.edges(grammar_.states_[at]);
      const auto edge =
          std::find_if(edges.begin(), edges.end(), [&](const ByteEdge& e) { return e.first <= b && b <= e.last; });
      if (edge == edges.end()) return false;
      if (step.to == 0) {
        if (!comes_back(edge->to)) return false;
      } else {
        for (const PlainStep& next : kPlainSteps)
          if (next.from == step.to && !self(self, edge->to, next, next.first, next.last)) return false;
      }
      b = edge->last + 1;
    }
    return true;
  };
  std::bitset<256> loops;
  for (const PlainStep& step : kPlainSteps)
    for (int b = step.first; step.from == 0 && b <= step.last; ++b)
      if (all_loop(all_loop, state, step, b, b)) loops.set(static_cast<size_t>(b));
  return loops;
}

void GrammarBuilder::find_loops() {
  constexpr size_t kWorthwhile = 110;  // of the 94 plain characters of one byte and the 51 first bytes of the others
  for (Grammar::State& s : grammar_.states_) {
    size_t bytes = 0;
    for (const ByteEdge& edge : grammar_.edges(s)) bytes += size_t{edge.last} - edge.first + 1;
    if (bytes < kWorthwhile || s.need == Grammar::kNever) continue;
    const std::bitset<256> loops = loops_of(static_cast<uint32_t>(&s - grammar_.states_.data()));
    if (loops.count() < kWorthwhile) continue;
    const auto found = std::find(grammar_.loop_sets_.begin(), grammar_.loop_sets_.end(), loops);
    s.loops = static_cast<uint32_t>(found - grammar_.loop_sets_.begin());
    if (found == grammar_.loop_sets_.end()) grammar_.loop_sets_.push_back(loops);
  }
}

}  // namespace foretoken
