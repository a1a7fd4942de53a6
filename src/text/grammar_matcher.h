// GrammarMatcher: one answer under a grammar, token by token: what may come next, and going back along drafted tokens.
// The shape is that of a decoder's rules (mask, allows, advance, depth, rewind); it does not choose.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/json_style.h"
#include "text/token_grammar.h"

namespace foretoken {

struct MatcherOptions {
  std::vector<TokenId> enders;  // allowed exactly where the text is complete; none of them is a token of the grammar
  std::optional<TokenId> starts_after;  // until this token has come (the end of thinking) all but the enders is allowed
};

class GrammarMatcher {
 public:
  GrammarMatcher(std::shared_ptr<const TokenGrammar> grammar, MatcherOptions options);

  // One bit a row, lowest first. Valid until the next call of any member.
  std::span<const uint64_t> mask();
  // The bit of mask(), without the others.
  bool allows(TokenId token);
  // `token` comes next; one that is not allowed leaves nothing allowed. True when it ends the answer.
  bool advance(TokenId token);
  int64_t depth() const { return static_cast<int64_t>(trail_.size()) - 1; }
  void rewind(int64_t depth);

  // Whether the text may end here.
  bool complete() const;
  // The longest run, of at most `most_bytes`, in which only one byte is possible at each place: what the grammar alone
  // knows about the continuation. Token marks are among them.
  std::string forced(size_t most_bytes = 512);
  // The same, and where white space is the only choice, what the text did before. Both are guesses at tokens, never a
  // reason to skip the model: which tokens spell the run is its choice.
  std::string likely(size_t most_bytes = 512);
  // Tokens that spell the likely run, for a drafter: the answer's end included where nothing else can come, what may be the
  // beginning of a longer token left out.
  std::vector<TokenId> draft(const Tokenizer& tokenizer, size_t most_tokens);

 private:
  static constexpr SetId kWaiting = UINT32_MAX, kEnded = UINT32_MAX - 1;
  static constexpr size_t kCachedMasks = 32, kCachedSteps = size_t{1} << 15;
  struct CachedMask {
    SetId set = kEnded;
    uint64_t used = 0;
    std::vector<uint64_t> bits;
  };
  struct Crossing {  // tokens that leave a rule, by the rule's walk and what follows
    std::shared_ptr<const RuleWalk> walk;
    std::unordered_map<SetId, std::vector<TokenId>> tokens;
  };

  bool is_ender(TokenId token) const;
  void compute_mask(SetId set, std::vector<uint64_t>& bits);
  void add_stack(StackId stack, std::vector<uint64_t>& bits);
  const std::vector<TokenId>& crossing(const std::shared_ptr<const RuleWalk>& walk, SetId after);
  SetId after(SetId set, TokenId token);
  struct Choice {
    int byte = -1;       // the only one, white space beside another aside; -1: none or several
    bool blank = false;  // there is white space to choose
  };
  Choice choice(SetId set) const;
  struct Ahead {
    SetId set;
    bool in_string;
  };
  Ahead read_likely(size_t most_bytes, std::string& run);
  bool word_may_follow(char last, SetId set) const;
  bool nothing_follows(SetId set) const;

  std::shared_ptr<const TokenGrammar> grammar_;
  MatcherOptions options_;
  GrammarStacks stacks_;
  struct Place {
    SetId set;
    JsonStyle style;
  };
  std::vector<Place> trail_;  // one at each depth
  std::vector<CachedMask> masks_;
  uint64_t uses_ = 0;
  std::unordered_map<StackId, std::shared_ptr<const LocalMask>> local_;
  std::unordered_map<const RuleWalk*, Crossing> crossings_;
  std::vector<SetId> path_;
  std::unordered_map<uint64_t, SetId> after_;  // by set and token
};

}  // namespace foretoken
