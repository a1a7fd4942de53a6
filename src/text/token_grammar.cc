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
  // A token ends at most one round a byte, and goes deeper at most once an opening bracket and once behind the last.
  const int32_t rounds = vocabulary_->longest() + 1, levels = vocabulary_->most_openers() + 1 + grammar_.largest_need();
  Key key{stack.state, 0, 0, std::min(levels, grammar_.depth_limit() - stack.depth)};
  if (rule.counted()) {
    key.rounds_left = rule.max == Grammar::kUnbounded ? rounds : std::min(rounds, rule.max - stack.count);
    key.rounds_missing = std::clamp(rule.min - stack.count, 0, rounds);
  }
  return key;
}

std::shared_ptr<const LocalMask> TokenGrammar::local_mask(GrammarStacks& stacks, StackId stack) const {
  const Key key = key_of(stacks.stack(stack));
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = masks_.find(key); found != masks_.end()) return found->second;
  }
  auto mask = std::make_shared<const LocalMask>(compute(stacks, stack, key));
  const std::lock_guard lock(mutex_);
  if (cached_bytes_ > kCacheBytes) {  // all at once: rare, and users hold what they use
    masks_.clear();
    cached_bytes_ = 0;
  }
  const auto [found, fresh] = masks_.try_emplace(key, std::move(mask));
  if (fresh) cached_bytes_ += found->second->memory_bytes();
  return found->second;
}

// Tokens of characters that all lead back to the state are allowed without a walk.
LocalMask TokenGrammar::compute(GrammarStacks& stacks, StackId stack, const Key& key) const {
  const Grammar::State& state = grammar_.state(stacks.stack(stack).state);
  const Grammar::Rule& rule = grammar_.rule(state.rule);
  const bool counted = rule.counted() && stacks.stack(stack).state == rule.start;
  LocalMask mask;
  mask.trie = &vocabulary_->all();
  LeadSet loops;
  if (state.loops != kNoState) {
    for (size_t lead = 0; lead < 256; ++lead)
      if (grammar_.loop_set(state)[lead]) loops.add(static_cast<uint8_t>(lead));
    if (loops == vocabulary_->plain_leads()) {
      mask.trie = &vocabulary_->rest();
    } else if (std::optional<TokenTrie> outside = vocabulary_->trie_outside(loops)) {
      mask.own_trie = std::make_unique<const TokenTrie>(*std::move(outside));
      mask.trie = mask.own_trie.get();
    }
  }
  std::vector<SetId> path;
  walk_trie(stacks, *mask.trie, 0, mask.trie->node_count(), stacks.isolated(stack), path, [&](uint32_t i, SetId set) {
    const uint32_t begin = mask.trie->nodes[i].token_begin, end = mask.trie->nodes[i + 1].token_begin;
    mask.tokens.insert(mask.tokens.end(), mask.trie->tokens.begin() + begin, mask.trie->tokens.begin() + end);
    if (stacks.open(set) && i + 1 < mask.trie->nodes[i].skip) mask.exits.push_back(i);
  });
  const size_t words = vocabulary_->mask_words();
  const bool walked_all = mask.trie == &vocabulary_->all();
  if (mask.exits.empty()) mask.own_trie.reset();
  if (walked_all && mask.tokens.size() < words) return mask;
  mask.bits.assign(words, 0);
  const auto allow = [&](TokenId id) { mask.bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64); };
  for (const TokenId id : mask.tokens) allow(id);
  mask.tokens = {};
  if (walked_all) return mask;
  const auto most = counted ? static_cast<uint32_t>(key.rounds_left) : UINT32_MAX;
  if (loops != vocabulary_->plain_leads()) {
    for (const auto& [id, characters, leads] : vocabulary_->plain())
      if (characters <= most && leads.is_within(loops)) allow(id);
    return mask;
  }
  for (size_t i = 0; i < words; ++i) mask.bits[i] |= vocabulary_->plain_mask()[i];
  for (const auto& [id, characters, leads] : vocabulary_->plain()) {
    if (characters <= most) break;
    mask.bits[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64));
  }
  return mask;
}

}  // namespace foretoken
