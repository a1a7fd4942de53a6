// Masks of single rules.
#include "text/token_grammar.h"

#include <algorithm>

namespace foretoken {

size_t TokenGrammar::KeyHash::operator()(const Key& key) const {
  uint64_t h = key.state;
  for (const int32_t v : {key.rounds_left, key.rounds_missing, key.levels_left})
    h = (h ^ static_cast<uint32_t>(v)) * 0xFF51AFD7ED558CCDu, h ^= h >> 32;
  return static_cast<size_t>(h);
}

TokenGrammar::Key TokenGrammar::key_of(const GrammarStacks::Stack& stack) const {
  const Grammar::Rule& rule = grammar_.rule(grammar_.state(stack.state).rule);
  // A token ends at most one round a byte.
  const int32_t rounds = vocabulary_->longest() + 1;
  Key key{stack.state, 0, 0, std::min(most_levels(), grammar_.depth_limit() - stack.depth)};
  if (rule.counted()) {
    key.rounds_left = rule.max == Grammar::kUnbounded ? rounds : std::min(rounds, rule.max - stack.count);
    key.rounds_missing = std::clamp(rule.min - stack.count, 0, rounds);
  }
  return key;
}

// What lies beyond every token's reach is one.
TokenGrammar::Key TokenGrammar::within_reach(Key key) const {
  const std::lock_guard lock(mutex_);
  if (const auto known = reach_.find(key.state); known != reach_.end()) {
    key.rounds_left = std::min(key.rounds_left, known->second);
    key.rounds_missing = std::min(key.rounds_missing, known->second + 1);
  }
  return key;
}

std::shared_ptr<const LocalMask> TokenGrammar::local_mask(GrammarStacks& stacks, StackId stack) const {
  const Key key = key_of(stacks.stack(stack));
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = masks_.find(key); found != masks_.end()) return found->second;
  }
  auto mask = std::make_shared<const LocalMask>(compute(walk(stacks, stack, key), key));
  const std::lock_guard lock(mutex_);
  if (cached_bytes_ > kCacheBytes) {  // all at once: rare, and users hold what they use
    masks_.clear();
    walks_.clear();
    cached_bytes_ = 0;
  }
  const auto [found, fresh] = masks_.try_emplace(key, std::move(mask));
  if (fresh) cached_bytes_ += sizeof(LocalMask) + found->second->bits.size() * sizeof(uint64_t);
  return found->second;
}

std::shared_ptr<const RuleWalk> TokenGrammar::walk(GrammarStacks& stacks, StackId stack, const Key& key) const {
  const Key near = within_reach(key);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = walks_.find(near); found != walks_.end()) return found->second;
  }
  auto made = std::make_shared<const RuleWalk>(compute_walk(stacks, stack, key));
  {
    const std::lock_guard lock(mutex_);
    if (made->reach >= 0) reach_.try_emplace(key.state, made->reach);
  }
  const Key now = within_reach(key);
  const std::lock_guard lock(mutex_);
  const auto [found, fresh] = walks_.try_emplace(now, std::move(made));
  if (fresh) cached_bytes_ += found->second->memory_bytes();
  return found->second;
}

LeadSet TokenGrammar::loops_of(const Grammar::State& state) const {
  LeadSet loops;
  for (size_t lead = 0; lead < 256; ++lead)
    if (grammar_.loop_set(state)[lead]) loops.add(static_cast<uint8_t>(lead));
  return loops;
}

std::shared_ptr<const TokenTrie> TokenGrammar::trie_outside(const Grammar::State& state, const LeadSet& loops) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = outside_.find(state.loops); found != outside_.end()) return found->second;
  }
  std::optional<TokenTrie> trie = vocabulary_->trie_outside(loops);
  auto made = trie ? std::make_shared<const TokenTrie>(*std::move(trie)) : nullptr;
  const std::lock_guard lock(mutex_);
  return outside_.try_emplace(state.loops, std::move(made)).first->second;
}

// Tokens of characters that all lead back to the state are left to compute().
RuleWalk TokenGrammar::compute_walk(GrammarStacks& stacks, StackId id, const Key& key) const {
  const GrammarStacks::Stack top = stacks.stack(id);
  const Grammar::State& state = grammar_.state(top.state);
  const Grammar::Rule& rule = grammar_.rule(state.rule);
  RuleWalk out;
  out.trie = &vocabulary_->all();
  if (state.loops != kNoState) {
    const LeadSet loops = loops_of(state);
    if (loops == vocabulary_->plain_leads()) out.trie = &vocabulary_->rest();
    else if ((out.own_trie = trie_outside(state, loops))) out.trie = out.own_trie.get();
  }
  int32_t rounds = 0;
  const bool whole = out.trie == &vocabulary_->all();
  std::vector<SetId> path;
  walk_trie(stacks, *out.trie, 0, out.trie->node_count(), stacks.isolated(id), path, [&](uint32_t i, SetId set) {
    const uint32_t begin = out.trie->nodes[i].token_begin, end = out.trie->nodes[i + 1].token_begin;
    out.tokens.insert(out.tokens.end(), out.trie->tokens.begin() + begin, out.trie->tokens.begin() + end);
    const bool exit = stacks.open(set) && i + 1 < out.trie->nodes[i].skip;
    if (exit) out.exits.push_back(i);
    if (rule.counted() && (exit || begin < end))
      rounds = std::max(rounds, stacks.most_rounds(set, state.rule) - top.count);
  });
  // A round under way counts as well, and a walk that met a bound of the rule, or of depth, tells nothing.
  const int32_t bound = rule.max == Grammar::kUnbounded ? rule.min - top.count : key.rounds_left;
  if (rule.counted() && rounds + 1 < bound && key.levels_left == most_levels()) out.reach = rounds + 1;
  if (whole && out.tokens.size() < vocabulary_->mask_words()) return out;
  out.bits.assign(vocabulary_->mask_words(), 0);
  for (const TokenId token : out.tokens) out.bits[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
  out.tokens = {};
  return out;
}

LocalMask TokenGrammar::compute(std::shared_ptr<const RuleWalk> walk, const Key& key) const {
  const Grammar::State& state = grammar_.state(key.state);
  const Grammar::Rule& rule = grammar_.rule(state.rule);
  LocalMask mask{.bits = {}, .walk = std::move(walk)};
  if (mask.walk->trie == &vocabulary_->all()) return mask;
  const bool counted = rule.counted() && key.state == rule.start;
  const auto most = counted ? static_cast<uint32_t>(key.rounds_left) : UINT32_MAX;
  const LeadSet loops = loops_of(state);
  mask.bits = mask.walk->bits;
  if (loops != vocabulary_->plain_leads()) {
    for (const auto& [id, characters, leads] : vocabulary_->plain())
      if (characters <= most && leads.is_within(loops))
        mask.bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
    return mask;
  }
  for (size_t i = 0; i < mask.bits.size(); ++i) mask.bits[i] |= vocabulary_->plain_mask()[i];
  for (const auto& [id, characters, leads] : vocabulary_->plain()) {
    if (characters <= most) break;
    mask.bits[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64));
  }
  return mask;
}

// All states, by the least number of bytes and rules in front of them.
std::vector<uint32_t> TokenGrammar::states_by_distance() const {
  std::vector<uint32_t> order;
  std::vector<bool> seen(grammar_.state_count(), false);
  const auto visit = [&](uint32_t state) {
    if (state == kNoState || seen[state]) return;
    seen[state] = true;
    order.push_back(state);
  };
  const auto visit_rule = [&](const Grammar::Rule& rule) {
    visit(rule.start);
    visit(rule.exit);
  };
  visit_rule(grammar_.rule(grammar_.root()));
  for (size_t i = 0; i < order.size(); ++i) {
    const Grammar::State& state = grammar_.state(order[i]);
    for (const CallEdge& call : grammar_.calls(state)) visit_rule(grammar_.rule(call.rule));
    for (const ByteEdge& edge : grammar_.edges(state)) visit(edge.to);
    for (const CallEdge& call : grammar_.calls(state)) visit(call.to);
  }
  return order;
}

bool TokenGrammar::prepare(const std::function<bool()>& go_on) const {
  GrammarStacks stacks(grammar_);
  for (const uint32_t index : states_by_distance()) {
    const Grammar::State& state = grammar_.state(index);
    if (state.edge_begin == state.edge_end || state.need == Grammar::kNever) continue;
    if (!go_on()) return false;
    local_mask(stacks, stacks.alone(index, 0));
    if (!prepare_rounds(stacks, index, go_on)) return false;
    const std::lock_guard lock(mutex_);
    if (cached_bytes_ > kPreparedBytes) break;
  }
  return true;
}

// The rounds of a counted rule that differ: up to the least number, and the last ones.
bool TokenGrammar::prepare_rounds(GrammarStacks& stacks, uint32_t state, const std::function<bool()>& go_on) const {
  constexpr int32_t kMostRounds = 64;
  const Grammar::Rule& rule = grammar_.rule(grammar_.state(state).rule);
  if (!rule.counted()) return true;
  const auto prepare_round = [&](int32_t count) {
    const StackId stack = stacks.alone(state, count);
    walk(stacks, stack, key_of(stacks.stack(stack)));
    return go_on();
  };
  for (int32_t count = 1; count <= std::min(rule.min, kMostRounds) && count < rule.max; ++count)
    if (!prepare_round(count)) return false;
  if (rule.max == Grammar::kUnbounded) return true;
  for (int32_t left = 1; left <= kMostRounds && rule.max - left > rule.min; ++left)
    if (!prepare_round(rule.max - left)) return false;
  return true;
}

}  // namespace foretoken
