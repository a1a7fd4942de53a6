// GrammarMatcher: one answer under a grammar, token by token: what may come next, and going back along drafted tokens.
// The shape is that of a decoder's rules (mask, allows, advance, depth, rewind); it does not choose.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/token_grammar.h"

namespace foretoken {

struct MatcherOptions {
  std::vector<TokenId> enders;  // allowed exactly where the text is complete; none of them is a token of the grammar
  std::optional<TokenId> starts_after;  // until this token has come (the end of thinking) all but the enders is allowed
};

// How the text so far spaces its JSON, to guess how it goes on: the white space that came last behind each mark. Until
// there was one it is that of most models, one space behind ':' and ','.
class JsonStyle {
 public:
  void read(char byte);
  // The white space to expect now; nothing inside strings and anywhere but behind a mark.
  std::optional<std::string> expected() const;

 private:
  struct Run {
    bool line = false;
    uint8_t blanks = 0;  // spaces, or the spaces behind the line end
    bool operator==(const Run&) const = default;
  };
  static int place_of(char mark);
  bool in_string_ = false, escaped_ = false;
  int8_t place_ = -1;  // of the mark that is being spaced
  Run run_;
  Run habits_[4] = {{false, 1}, {false, 1}, {}, {}};  // behind : , { [
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
  // Tokens that spell the likely run, for a drafter.
  std::vector<TokenId> draft(const Tokenizer& tokenizer, size_t most_tokens);

 private:
  static constexpr SetId kWaiting = UINT32_MAX, kEnded = UINT32_MAX - 1;
  static constexpr size_t kCachedMasks = 32;
  struct CachedMask {
    SetId set = kEnded;
    uint64_t used = 0;
    std::vector<uint64_t> bits;
  };
  struct Crossing {  // tokens that leave a rule, by the rule's mask and what follows
    std::shared_ptr<const LocalMask> mask;
    std::unordered_map<SetId, std::vector<TokenId>> tokens;
  };

  bool is_ender(TokenId token) const;
  void compute_mask(SetId set, std::vector<uint64_t>& bits);
  void add_stack(StackId stack, std::vector<uint64_t>& bits);
  const std::vector<TokenId>& crossing(const std::shared_ptr<const LocalMask>& mask, SetId after);
  SetId after(SetId set, TokenId token);
  struct Choice {
    int byte = -1;       // the only one, white space aside; -1: none or several
    bool blank = false;  // white space is possible too
  };
  Choice choice(SetId set) const;

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
  std::unordered_map<const LocalMask*, Crossing> crossings_;
  std::vector<SetId> path_;
};

}  // namespace foretoken
