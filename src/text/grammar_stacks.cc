// Steps and closures of sets of stacks.
#include "text/grammar_stacks.h"

#include <algorithm>

#include "base/check.h"

namespace foretoken {
namespace {

uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0xFF51AFD7ED558CCDu;
  return h ^ h >> 32;
}

}  // namespace

size_t GrammarStacks::StackHash::operator()(const Stack& s) const {
  return static_cast<size_t>(
      mix(mix(uint64_t{s.state} << 32 | s.below, static_cast<uint32_t>(s.count)), uint64_t{s.depth} << 1 | s.open));
}
bool GrammarStacks::StackEqual::operator()(const Stack& a, const Stack& b) const {
  return a.state == b.state && a.count == b.count && a.below == b.below && a.depth == b.depth && a.open == b.open;
}
size_t GrammarStacks::SetHash::operator()(const std::vector<StackId>& ids) const {
  uint64_t h = 0x9E3779B97F4A7C15u;
  for (const StackId id : ids) h = mix(h, id);
  return static_cast<size_t>(h);
}

GrammarStacks::GrammarStacks(const Grammar& grammar) : grammar_(grammar) {
  sets_.emplace_back();
  std::vector<StackId> first;
  enter(grammar.root(), intern({.state = kNoState}), first);
  start_ = intern_set(std::move(first));
}

StackId GrammarStacks::intern(const Stack& stack) {
  const auto [found, fresh] = stack_index_.try_emplace(stack, static_cast<StackId>(stacks_.size()));
  if (fresh) stacks_.push_back(stack);
  return found->second;
}

SetId GrammarStacks::intern_set(std::vector<StackId> stacks) {
  if (stacks.empty()) return kDead;
  std::sort(stacks.begin(), stacks.end());
  stacks.erase(std::unique(stacks.begin(), stacks.end()), stacks.end());
  const auto [found, fresh] = set_index_.try_emplace(stacks, static_cast<SetId>(sets_.size()));
  if (fresh) {
    Set set;
    for (const StackId id : stacks)
      if (stacks_[id].state == kNoState) (stacks_[id].open ? set.open : set.complete) = true;
    set.stacks = std::move(stacks);
    sets_.push_back(std::move(set));
  }
  return found->second;
}

// Pushes `rule`, unless the rest of it would be nested too deeply.
void GrammarStacks::enter(RuleIndex index, StackId below, std::vector<StackId>& out) {
  const Grammar::Rule& rule = grammar_.rule(index);
  const int depth = stacks_[below].depth;
  if (depth + rule.need > grammar_.depth_limit()) return;
  const Stack start{rule.start, 0, below, static_cast<uint16_t>(depth + rule.nests), false};
  close(intern(start), out);
  if (rule.counted() && rule.min == 0) close(on_same_level(rule.exit, 0, start), out);
}

void GrammarStacks::close(StackId id, std::vector<StackId>& out) {
  if (std::find(visited_.begin(), visited_.end(), id) != visited_.end()) return;
  visited_.push_back(id);
  const Stack stack = stacks_[id];
  if (stack.state == kNoState) return out.push_back(id);
  const Grammar::State& state = grammar_.state(stack.state);
  if (stack.depth + state.need > grammar_.depth_limit()) return;
  if (state.edge_begin != state.edge_end) out.push_back(id);
  if (state.marks & kAccept) close(stack.below, out);
  if (state.marks & kCounts) end_round(stack, out);
  for (const CallEdge& call : grammar_.calls(state)) {
    const Grammar::State& after = grammar_.state(call.to);
    if (stack.depth + after.need > grammar_.depth_limit()) continue;
    const bool last = after.is_end && !grammar_.rule(state.rule).nests;  // nothing to come back for
    enter(call.rule, last ? stack.below : on_same_level(call.to, stack.count, stack), out);
  }
}

void GrammarStacks::end_round(const Stack& stack, std::vector<StackId>& out) {
  const Grammar::Rule& rule = grammar_.rule(grammar_.state(stack.state).rule);
  int32_t count = stack.count + 1;
  if (rule.max == Grammar::kUnbounded) count = std::min(count, rule.min);
  if (rule.max == Grammar::kUnbounded || count < rule.max) close(on_same_level(rule.start, count, stack), out);
  if (count >= rule.min) close(on_same_level(rule.exit, 0, stack), out);
}

SetId GrammarStacks::compute_step(SetId set, uint8_t byte) {
  std::vector<StackId> out;
  visited_.clear();
  for (size_t i = 0; i < sets_[set].stacks.size(); ++i) {
    const Stack stack = stacks_[sets_[set].stacks[i]];
    if (stack.state == kNoState) continue;
    for (const ByteEdge& edge : grammar_.edges(grammar_.state(stack.state))) {
      if (byte > edge.last) continue;
      if (byte >= edge.first) close(on_same_level(edge.to, stack.count, stack), out);
      break;
    }
  }
  return intern_set(std::move(out));
}

SetId GrammarStacks::step_once(SetId set, uint8_t byte) {
  const SetId* next = sets_[set].next.get();
  return next && next[byte] != kUnknown ? next[byte] : compute_step(set, byte);
}

SetId GrammarStacks::step(SetId set, uint8_t byte) {
  if (!sets_[set].next) {
    sets_[set].next = std::make_unique<SetId[]>(256);
    std::fill_n(sets_[set].next.get(), 256, kUnknown);
  }
  const SetId known = sets_[set].next[byte];
  return known != kUnknown ? known : sets_[set].next[byte] = compute_step(set, byte);
}

SetId GrammarStacks::isolated(StackId id) {
  Stack stack = stacks_[id];
  CHECK(stack.state != kNoState);
  const Grammar::Rule& rule = grammar_.rule(grammar_.state(stack.state).rule);
  stack.below = intern({.state = kNoState, .depth = static_cast<uint16_t>(stack.depth - rule.nests), .open = true});
  return intern_set({intern(stack)});
}

StackId GrammarStacks::alone(uint32_t state, int32_t count) {
  const bool nests = grammar_.rule(grammar_.state(state).rule).nests;
  return intern({state, count, intern({.state = kNoState, .depth = 0, .open = true}), static_cast<uint16_t>(nests), false});
}

int32_t GrammarStacks::most_rounds(SetId set, RuleIndex rule) const {
  int32_t most = 0;
  for (const StackId id : sets_[set].stacks) {
    const Stack& stack = stacks_[id];
    if (stack.state != kNoState && grammar_.state(stack.state).rule == rule) most = std::max(most, stack.count);
  }
  return most;
}

SetId GrammarStacks::set_of(StackId below) {
  std::vector<StackId> out;
  visited_.clear();
  close(below, out);
  return intern_set(std::move(out));
}

}  // namespace foretoken
