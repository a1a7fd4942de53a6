// Masks of whole situations: the union over the stacks of each one's own rule and of what lies beyond it.
#include "text/grammar_matcher.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace foretoken {
namespace {

bool is_word_byte(uint8_t byte) {
  return byte >= 0x80 || (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z');
}

void allow(std::vector<uint64_t>& bits, TokenId id) { bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64); }

}  // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const TokenGrammar> grammar, MatcherOptions options)
    : grammar_(std::move(grammar)), options_(std::move(options)), stacks_(grammar_->grammar()) {
  for (const TokenId id : options_.enders) CHECK(id >= 0 && id < grammar_->vocabulary().rows());
  trail_.push_back({options_.starts_after ? kWaiting : stacks_.start(), {}});
}

bool GrammarMatcher::is_ender(TokenId token) const {
  return std::find(options_.enders.begin(), options_.enders.end(), token) != options_.enders.end();
}

bool GrammarMatcher::complete() const { return trail_.back().set < kEnded && stacks_.complete(trail_.back().set); }

SetId GrammarMatcher::after(SetId set, TokenId token) {
  const std::string_view reading = grammar_->vocabulary().reading(token);
  if (reading.empty()) return GrammarStacks::kDead;
  if (after_.size() >= kCachedSteps) after_.clear();
  const auto [found, fresh] = after_.try_emplace(uint64_t{set} << 32 | static_cast<uint32_t>(token), set);
  if (!fresh) return found->second;
  for (const char c : reading)
    if ((set = stacks_.step_once(set, static_cast<uint8_t>(c))) == GrammarStacks::kDead) break;
  return found->second = set;
}

bool GrammarMatcher::allows(TokenId token) {
  if (token < 0 || token >= grammar_->vocabulary().rows()) return false;
  const SetId set = trail_.back().set;
  if (set == kEnded) return false;
  if (set == kWaiting) return !is_ender(token);
  if (is_ender(token)) return complete();
  return after(set, token) != GrammarStacks::kDead;
}

bool GrammarMatcher::advance(TokenId token) {
  const SetId set = trail_.back().set;
  if (set == kWaiting) {
    trail_.push_back({token == *options_.starts_after ? stacks_.start() : is_ender(token) ? kEnded : kWaiting, {}});
    return is_ender(token);
  }
  if (set == kEnded || is_ender(token)) {
    trail_.push_back({kEnded, {}});
    return is_ender(token);
  }
  Place place{after(set, token), trail_.back().style};
  for (const char c : grammar_->vocabulary().reading(token)) place.style.read(c);
  trail_.push_back(place);
  return false;
}

void GrammarMatcher::rewind(int64_t depth) {
  CHECK(depth >= 0);
  CHECK(depth <= this->depth());
  trail_.erase(trail_.begin() + depth + 1, trail_.end());
}

std::span<const uint64_t> GrammarMatcher::mask() {
  const SetId set = trail_.back().set;
  CachedMask* oldest = nullptr;
  for (CachedMask& cached : masks_) {
    if (cached.set == set && !cached.bits.empty()) {
      cached.used = ++uses_;
      return cached.bits;
    }
    if (!oldest || cached.used < oldest->used) oldest = &cached;
  }
  if (masks_.size() < kCachedMasks) oldest = &masks_.emplace_back();
  oldest->set = set;
  oldest->used = ++uses_;
  compute_mask(set, oldest->bits);
  return oldest->bits;
}

void GrammarMatcher::compute_mask(SetId set, std::vector<uint64_t>& bits) {
  const GrammarVocabulary& vocabulary = grammar_->vocabulary();
  bits.assign(vocabulary.mask_words(), set == kWaiting ? ~uint64_t{0} : 0);
  if (set == kWaiting) {
    for (const TokenId id : options_.enders) bits[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64));
    if (vocabulary.rows() % 64) bits.back() &= (uint64_t{1} << (vocabulary.rows() % 64)) - 1;
    return;
  }
  if (set == kEnded) return;
  const std::vector<StackId> stacks(stacks_.stacks(set).begin(), stacks_.stacks(set).end());  // the walks add sets
  for (const StackId stack : stacks)
    if (stacks_.stack(stack).state != kNoState) add_stack(stack, bits);
  for (const TokenId id : options_.enders) {
    if (stacks_.complete(set)) allow(bits, id);
    else bits[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64));
  }
}

void GrammarMatcher::add_stack(StackId stack, std::vector<uint64_t>& bits) {
  std::shared_ptr<const LocalMask>& mask = local_[stack];
  if (!mask) mask = grammar_->local_mask(stacks_, stack);
  const std::shared_ptr<const RuleWalk> walk = mask->walk;
  const std::vector<uint64_t>& own = mask->bits.empty() ? walk->bits : mask->bits;
  for (size_t i = 0; i < own.size(); ++i) bits[i] |= own[i];
  for (const TokenId id : walk->tokens) allow(bits, id);
  if (walk->exits.empty()) return;
  for (const TokenId id : crossing(walk, stacks_.set_of(stacks_.stack(stack).below))) allow(bits, id);
}

const std::vector<TokenId>& GrammarMatcher::crossing(const std::shared_ptr<const RuleWalk>& walk, SetId after) {
  Crossing& known = crossings_[walk.get()];
  known.walk = walk;
  const auto [found, fresh] = known.tokens.try_emplace(after);
  std::vector<TokenId>& tokens = found->second;
  if (!fresh) return tokens;
  const TokenTrie& trie = *walk->trie;
  for (const uint32_t exit : walk->exits)
    walk_trie(stacks_, trie, exit + 1, trie.nodes[exit].skip, after, path_, [&](uint32_t i, SetId) {
      tokens.insert(tokens.end(), trie.tokens.begin() + trie.nodes[i].token_begin,
                    trie.tokens.begin() + trie.nodes[i + 1].token_begin);
    });
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

GrammarMatcher::Choice GrammarMatcher::choice(SetId set) const {
  constexpr std::string_view kBlanks = " \n\t";
  Choice out;
  const Grammar& grammar = grammar_->grammar();
  bool several = false, any = false;
  unsigned blanks = 0;  // bit per kind
  for (const StackId stack : stacks_.stacks(set)) {
    const uint32_t state = stacks_.stack(stack).state;
    if (state == kNoState) return {};
    for (const ByteEdge& edge : grammar.edges(grammar.state(state))) {
      const size_t blank = edge.first == edge.last ? kBlanks.find(static_cast<char>(edge.first)) : kBlanks.npos;
      if (blank != kBlanks.npos) {
        blanks |= 1u << blank;
        continue;
      }
      any = true;
      if (edge.first != edge.last || (out.byte >= 0 && out.byte != edge.first)) several = true;
      else out.byte = edge.first;
    }
  }
  if (several) out.byte = -1;
  if (!any && std::has_single_bit(blanks)) out.byte = kBlanks[static_cast<size_t>(std::countr_zero(blanks))];
  else out.blank = blanks != 0;
  return out;
}

std::string GrammarMatcher::forced(size_t most_bytes) {
  std::string run;
  for (SetId set = trail_.back().set; set < kEnded && run.size() < most_bytes;) {
    Choice only = choice(set);
    if (only.blank) break;
    if (only.byte < 0 || (set = stacks_.step_once(set, static_cast<uint8_t>(only.byte))) == GrammarStacks::kDead) break;
    run.push_back(static_cast<char>(only.byte));
  }
  return run;
}

std::string GrammarMatcher::likely(size_t most_bytes) {
  std::string run;
  read_likely(most_bytes, run);
  return run;
}

// Appends the likely run; returns where the text stands behind it.
GrammarMatcher::Ahead GrammarMatcher::read_likely(size_t most_bytes, std::string& run) {
  SetId set = trail_.back().set;
  JsonStyle style = trail_.back().style;
  const auto read = [&](char c) {
    const SetId next = stacks_.step_once(set, static_cast<uint8_t>(c));
    if (next == GrammarStacks::kDead) return false;
    set = next;
    style.read(c);
    run.push_back(c);
    return true;
  };
  while (set < kEnded && run.size() < most_bytes) {
    const Choice next = choice(set);
    if (next.blank) {
      const std::optional<std::string> expected = style.expected(next.byte);
      if (!expected) break;
      size_t blanks = 0;
      for (; blanks < expected->size() && read((*expected)[blanks]); ++blanks) {
      }
      if (blanks < expected->size()) break;
      if (blanks > 0) continue;
    }
    if (next.byte < 0 || !read(static_cast<char>(next.byte))) break;
  }
  return {set, style.in_string()};
}

// Whether a word may go on behind `last`, or begin behind it if it is a space: then the token that ends with it may be a longer one.
bool GrammarMatcher::word_may_follow(char last, SetId set) const {
  if (last != ' ' && !is_word_byte(static_cast<uint8_t>(last))) return false;
  const Grammar& grammar = grammar_->grammar();
  for (const StackId stack : stacks_.stacks(set)) {
    if (stacks_.stack(stack).state == kNoState) continue;
    for (const ByteEdge& edge : grammar.edges(grammar.state(stacks_.stack(stack).state)))
      for (int byte = edge.first; byte <= edge.last; ++byte)
        if (is_word_byte(static_cast<uint8_t>(byte)) && (last != ' ' || byte < '0' || byte > '9')) return true;
  }
  return false;
}

bool GrammarMatcher::nothing_follows(SetId set) const {
  const std::span<const StackId> stacks = stacks_.stacks(set);
  return stacks_.complete(set) && std::all_of(stacks.begin(), stacks.end(), [&](StackId s) { return stacks_.stack(s).state == kNoState; });
}

std::vector<TokenId> GrammarMatcher::draft(const Tokenizer& tokenizer, size_t most_tokens) {
  std::vector<TokenId> tokens;
  if (trail_.back().set >= kEnded) return tokens;
  std::string run;
  const auto [end_set, in_string] = read_likely(8 * most_tokens, run);
  const bool ends = nothing_follows(end_set);
  // Inside a string all characters join, so the run is only sure up to the opening quote.
  const size_t quote = in_string && !ends ? run.rfind('"') : run.npos;
  const bool unsure = !ends && !run.empty() && (in_string ? run.back() != '"' : word_may_follow(run.back(), end_set));
  const bool cut = unsure && quote != run.npos;
  if (cut) run.resize(quote + 1);
  for (size_t at = 0; at < run.size() && tokens.size() < most_tokens;) {
    if (run[at] == token_mark(0)[0]) {
      if (run.size() - at < token_mark(0).size()) break;
      TokenId id = 0;
      for (size_t i = 1; i < token_mark(0).size(); ++i) id = id << 7 | run[at + i];
      tokens.push_back(id);
      at += token_mark(0).size();
      continue;
    }
    const size_t end = std::min(run.find(token_mark(0)[0], at), run.size());
    const auto ids = tokenizer.encode_plain(std::string_view(run).substr(at, end - at));
    if (!ids) break;
    tokens.insert(tokens.end(), ids->begin(), ids->end());
    at = end;
  }
  if (tokens.size() >= most_tokens) tokens.resize(most_tokens);
  else if (ends) tokens.insert(tokens.end(), options_.enders.begin(), options_.enders.begin() + !options_.enders.empty());
  else if (unsure && !cut && !tokens.empty()) tokens.pop_back();
  return tokens;
}

}  // namespace foretoken
