// Subset construction, products of two automata, trimming and minimisation.
#include "text/automaton.h"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace foretoken {
namespace {

struct VectorHash {
  size_t operator()(const std::vector<uint32_t>& values) const {
    uint64_t h = 0x9E3779B97F4A7C15u;
    for (const uint32_t v : values) h = (h ^ v) * 0xFF51AFD7ED558CCDu, h ^= h >> 32;
    return static_cast<size_t>(h);
  }
};

Error too_large(size_t states) {
  return Error{ErrorCode::kUnsupported, "needs too large an automaton (at most " + std::to_string(states) + " states)"};
}

void spend(const AutomatonLimits& limits, size_t work) {
  if (limits.work_left) *limits.work_left -= std::min(work, *limits.work_left);
}

// Appends an edge, joined to the one before when that continues it.
void append_edge(std::vector<ByteEdge>& edges, uint8_t first, uint8_t last, uint32_t to) {
  if (!edges.empty() && edges.back().to == to && edges.back().last + 1 == first) edges.back().last = last;
  else edges.push_back({first, last, to});
}

}  // namespace

uint32_t Dfa::next(uint32_t state, uint8_t byte) const {
  for (const ByteEdge& edge : states[state].edges)
    if (byte <= edge.last) return byte >= edge.first ? edge.to : kNoState;
  return kNoState;
}

bool Dfa::accepts(std::string_view word) const {
  if (empty()) return false;
  uint32_t state = starts[0];
  for (const char c : word)
    if ((state = next(state, static_cast<uint8_t>(c))) == kNoState) return false;
  return states[state].marks & kAccept;
}

uint32_t Nfa::add_state() {
  if (states_.size() >= limits_.nfa_states) full_ = true;
  if (full_) return 0;
  states_.emplace_back();
  return static_cast<uint32_t>(states_.size() - 1);
}

void Nfa::literal(uint32_t from, std::string_view text, uint32_t to) {
  if (text.empty()) return skip(from, to);
  for (size_t i = 0; i < text.size(); ++i) {
    const uint32_t next = i + 1 == text.size() ? to : add_state();
    bytes(from, static_cast<uint8_t>(text[i]), static_cast<uint8_t>(text[i]), next);
    from = next;
  }
}

void Nfa::embed(const Dfa& automaton, uint32_t from, uint32_t to) {
  if (automaton.empty()) return;
  std::vector<uint32_t> copies(automaton.states.size());
  for (uint32_t& copy : copies) copy = add_state();
  for (size_t i = 0; i < copies.size(); ++i) {
    for (const ByteEdge& edge : automaton.states[i].edges) bytes(copies[i], edge.first, edge.last, copies[edge.to]);
    for (const CallEdge& edge : automaton.states[i].calls) call(copies[i], edge.rule, copies[edge.to]);
    if (automaton.states[i].marks & kAccept) skip(copies[i], to);
  }
  skip(from, copies[automaton.starts[0]]);
}

class Determiniser {
 public:
  explicit Determiniser(const Nfa& nfa) : nfa_(nfa), seen_(nfa.states_.size(), 0) {}

  Result<Dfa> run(std::span<const uint32_t> seeds) {
    if (nfa_.full_) return too_large(nfa_.limits_.nfa_states);
    for (const uint32_t seed : seeds) dfa_.starts.push_back(state_of({seed}));
    for (size_t i = 0; i < dfa_.states.size(); ++i) {
      const size_t work = std::min(nfa_.limits_.work, nfa_.limits_.work_left ? *nfa_.limits_.work_left : SIZE_MAX);
      if (dfa_.states.size() > nfa_.limits_.dfa_states || work_ > work) return too_large(nfa_.limits_.dfa_states);
      expand(i);
    }
    spend(nfa_.limits_, work_);
    trim(dfa_);
    minimise(dfa_);
    return std::move(dfa_);
  }

 private:
  // The state of everything reachable from `targets` without reading; kNoState when that holds nothing of interest.
  uint32_t state_of(std::vector<uint32_t> targets) {
    std::vector<uint32_t> set;
    ++stamp_;
    while (!targets.empty()) {
      const uint32_t s = targets.back();
      targets.pop_back();
      if (seen_[s] == stamp_) continue;
      seen_[s] = stamp_;
      const Nfa::State& state = nfa_.states_[s];
      if (!state.edges.empty() || !state.calls.empty() || state.marks) set.push_back(s);
      targets.insert(targets.end(), state.skips.begin(), state.skips.end());
      ++work_;
    }
    if (set.empty()) return kNoState;
    std::sort(set.begin(), set.end());
    const auto [found, fresh] = index_.try_emplace(set, static_cast<uint32_t>(dfa_.states.size()));
    if (fresh) {
      dfa_.states.emplace_back();
      for (const uint32_t s : set) dfa_.states.back().marks |= nfa_.states_[s].marks;
      sets_.push_back(std::move(set));
    }
    return found->second;
  }

  void expand(size_t index) {
    const std::vector<uint32_t> set = sets_[index];
    expand_bytes(index, set);
    std::map<RuleIndex, std::vector<uint32_t>> calls;
    for (const uint32_t s : set)
      for (const CallEdge& call : nfa_.states_[s].calls) calls[call.rule].push_back(call.to);
    for (auto& [rule, targets] : calls)
      if (const uint32_t to = state_of(std::move(targets)); to != kNoState)
        dfa_.states[index].calls.push_back({rule, to});
  }

  void expand_bytes(size_t index, const std::vector<uint32_t>& set) {
    bool cut[257] = {};
    for (const uint32_t s : set)
      for (const ByteEdge& edge : nfa_.states_[s].edges) cut[edge.first] = cut[edge.last + 1] = true;
    std::vector<ByteEdge> edges;
    for (int first = 0; first < 256;) {
      int end = first + 1;
      while (end < 256 && !cut[end]) ++end;
      std::vector<uint32_t> targets;
      for (const uint32_t s : set)
        for (const ByteEdge& edge : nfa_.states_[s].edges)
          if (edge.first <= first && first <= edge.last) targets.push_back(edge.to);
      work_ += targets.size();
      if (!targets.empty())
        if (const uint32_t to = state_of(std::move(targets)); to != kNoState)
          append_edge(edges, static_cast<uint8_t>(first), static_cast<uint8_t>(end - 1), to);
      first = end;
    }
    dfa_.states[index].edges = std::move(edges);
  }

  const Nfa& nfa_;
  Dfa dfa_;
  std::vector<std::vector<uint32_t>> sets_;
  std::unordered_map<std::vector<uint32_t>, uint32_t, VectorHash> index_;
  std::vector<uint32_t> seen_;
  uint32_t stamp_ = 0;
  size_t work_ = 0;
};

Result<Dfa> Nfa::determinise(std::span<const uint32_t> seeds) const { return Determiniser(*this).run(seeds); }
Result<Dfa> Nfa::determinise() const {
  const uint32_t seed = start();
  return determinise({&seed, 1});
}

namespace {

// Words in ascending order, of which only the last one's path may still change; what leaves that path is joined with the first state like
// it. Source: Daciuk, Mihov, Watson and Watson, "Incremental construction of minimal acyclic finite-state automata", 2000.
class WordSet {
 public:
  void add(std::string_view word) {
    const size_t shared = static_cast<size_t>(std::mismatch(word.begin(), word.end(), last_.begin(), last_.end()).first - word.begin());
    settle(shared);
    open_.resize(word.size() + 1);
    open_.back().marks = kAccept;
    last_ = word;
  }
  Dfa finish() {
    settle(0);
    Dfa dfa;
    const uint32_t start = state_of(std::move(open_[0]));
    dfa.states = std::move(states_);
    dfa.starts = {start};
    return dfa;
  }

 private:
  // The open states deeper than `depth` are complete.
  void settle(size_t depth) {
    for (; open_.size() > depth + 1; open_.pop_back()) {
      const size_t above = open_.size() - 2;
      const auto byte = static_cast<uint8_t>(last_[above]);
      const uint32_t to = state_of(std::move(open_.back()));
      append_edge(open_[above].edges, byte, byte, to);
    }
  }
  uint32_t state_of(Dfa::State state) {
    std::vector<uint32_t> signature{state.marks};
    for (const ByteEdge& edge : state.edges) signature.insert(signature.end(), {edge.first, edge.last, edge.to});
    const auto [found, fresh] = index_.try_emplace(std::move(signature), static_cast<uint32_t>(states_.size()));
    if (fresh) states_.push_back(std::move(state));
    return found->second;
  }

  std::string_view last_;
  std::vector<Dfa::State> open_ = std::vector<Dfa::State>(1);  // along last_
  std::vector<Dfa::State> states_;
  std::unordered_map<std::vector<uint32_t>, uint32_t, VectorHash> index_;
};

}  // namespace

Dfa automaton_of(std::vector<std::string> words) {
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  if (words.empty()) return {};
  WordSet set;
  for (const std::string& word : words) set.add(word);
  return set.finish();
}

namespace {

// Pairs of states of two automata; `keep_alone` lets the left one go on where the right one cannot.
Result<Dfa> product(const Dfa& a, const Dfa& b, bool keep_alone, AutomatonLimits limits) {
  Dfa out;
  if (a.empty()) return out;
  std::unordered_map<uint64_t, uint32_t> index;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  size_t work = 0;
  const auto state_of = [&](uint32_t left, uint32_t right) {
    const auto [found, fresh] = index.try_emplace(uint64_t{left} << 32 | right, static_cast<uint32_t>(pairs.size()));
    if (fresh) pairs.emplace_back(left, right);
    return found->second;
  };
  out.starts.push_back(state_of(a.starts[0], b.empty() ? kNoState : b.starts[0]));
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (i >= limits.dfa_states || (limits.work_left && work > *limits.work_left)) return too_large(limits.dfa_states);
    const auto [left, right] = pairs[i];
    const bool right_accepts = right != kNoState && (b.states[right].marks & kAccept);
    Dfa::State state;
    if ((a.states[left].marks & kAccept) && right_accepts != keep_alone) state.marks = kAccept;
    for (const ByteEdge& edge : a.states[left].edges) {
      int from = edge.first;
      if (right != kNoState)
        for (const ByteEdge& other : b.states[right].edges) {
          const int first = std::max(from, int{other.first}), last = std::min(edge.last, other.last);
          if (first > last) continue;
          if (keep_alone && from < first)
            append_edge(state.edges, static_cast<uint8_t>(from), static_cast<uint8_t>(first - 1),
                        state_of(edge.to, kNoState));
          append_edge(state.edges, static_cast<uint8_t>(first), static_cast<uint8_t>(last),
                      state_of(edge.to, other.to));
          from = last + 1;
        }
      if (keep_alone && from <= edge.last)
        append_edge(state.edges, static_cast<uint8_t>(from), edge.last, state_of(edge.to, kNoState));
    }
    work += state.edges.size();
    out.states.push_back(std::move(state));
  }
  spend(limits, work);
  trim(out);
  minimise(out);
  return out;
}

}  // namespace

Result<Dfa> intersect(const Dfa& a, const Dfa& b, AutomatonLimits limits) { return product(a, b, false, limits); }
Result<Dfa> subtract(const Dfa& a, const Dfa& b, AutomatonLimits limits) { return product(a, b, true, limits); }

namespace {

// Keeps the states with a number in `renumbered`; edges to the others go.
void keep(Dfa& automaton, const std::vector<uint32_t>& renumbered, uint32_t count) {
  std::vector<Dfa::State> states(count);
  std::vector<bool> filled(count, false);
  for (size_t i = 0; i < automaton.states.size(); ++i) {
    const uint32_t to = renumbered[i];
    if (to == kNoState || filled[to]) continue;
    filled[to] = true;
    Dfa::State& state = states[to];
    state.marks = automaton.states[i].marks;
    for (const ByteEdge& edge : automaton.states[i].edges)
      if (renumbered[edge.to] != kNoState) append_edge(state.edges, edge.first, edge.last, renumbered[edge.to]);
    for (const CallEdge& edge : automaton.states[i].calls)
      if (renumbered[edge.to] != kNoState) state.calls.push_back({edge.rule, renumbered[edge.to]});
  }
  automaton.states = std::move(states);
  for (uint32_t& start : automaton.starts)
    if (start != kNoState) start = renumbered[start];
}

}  // namespace

void trim(Dfa& automaton) {
  const size_t n = automaton.states.size();
  std::vector<std::vector<uint32_t>> before(n);
  std::vector<uint32_t> work;
  std::vector<bool> useful(n, false);
  for (uint32_t i = 0; i < n; ++i) {
    for (const ByteEdge& edge : automaton.states[i].edges) before[edge.to].push_back(i);
    for (const CallEdge& edge : automaton.states[i].calls) before[edge.to].push_back(i);
    if (automaton.states[i].marks) {
      useful[i] = true;
      work.push_back(i);
    }
  }
  while (!work.empty()) {
    const uint32_t s = work.back();
    work.pop_back();
    for (const uint32_t p : before[s])
      if (!useful[p]) {
        useful[p] = true;
        work.push_back(p);
      }
  }
  std::vector<uint32_t> renumbered(n, kNoState);
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; ++i)
    if (useful[i]) renumbered[i] = count++;
  keep(automaton, renumbered, count);
}

void minimise(Dfa& automaton) {
  constexpr size_t kMostWork = 100'000;  // refinement takes up to one round a state, each over all states
  const size_t n = automaton.states.size();
  std::vector<uint32_t> group(n);
  for (size_t i = 0; i < n; ++i) group[i] = automaton.states[i].marks;
  size_t groups = 0;
  for (size_t work = n;; work += n) {
    if (work > kMostWork) return;
    std::unordered_map<std::vector<uint32_t>, uint32_t, VectorHash> index;
    std::vector<uint32_t> refined(n);
    for (size_t i = 0; i < n; ++i) {
      std::vector<uint32_t> signature{group[i]};
      const Dfa::State& state = automaton.states[i];
      for (size_t e = 0; e < state.edges.size(); ++e) {
        const ByteEdge& edge = state.edges[e];
        size_t end = e;  // neighbouring ranges into one group read as one
        while (end + 1 < state.edges.size() && group[state.edges[end + 1].to] == group[edge.to] &&
               state.edges[end].last + 1 == state.edges[end + 1].first)
          ++end;
        signature.insert(signature.end(), {edge.first, state.edges[end].last, group[edge.to]});
        e = end;
      }
      signature.push_back(kNoState);
      for (const CallEdge& edge : state.calls) signature.insert(signature.end(), {edge.rule, group[edge.to]});
      refined[i] = index.try_emplace(std::move(signature), static_cast<uint32_t>(index.size())).first->second;
    }
    group = std::move(refined);
    if (index.size() == groups) break;
    groups = index.size();
  }
  if (groups < n) keep(automaton, group, static_cast<uint32_t>(groups));
}

}  // namespace foretoken
