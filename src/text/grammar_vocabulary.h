// GrammarVocabulary: the tokens of a model as a grammar sees them: byte strings in a tree, so that a walk through the
// tree meets every token that can follow. Built once for a model, then immutable and shared.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace foretoken {

// A tree of byte strings in preorder: the children of a node follow it, and `skip` leads behind all of them.
struct TokenTrie {
  struct Node {
    uint32_t skip = 0;         // the first node that is not below this one
    uint32_t token_begin = 0;  // tokens that end here: tokens[token_begin, token_begin of the next node)
    uint16_t depth = 0;        // bytes read, this node's included
    uint8_t byte = 0;
  };
  std::vector<Node> nodes;  // one more than there are: the last holds tokens.size()
  std::vector<TokenId> tokens;
  uint32_t node_count() const { return nodes.empty() ? 0 : static_cast<uint32_t>(nodes.size() - 1); }
};

// Added tokens are no text: a grammar names one by its mark, five bytes that UTF-8 never holds.
std::string token_mark(TokenId id);

// The first bytes of a text's characters, as a set of those of plain characters (0x20 to 0x7F, 0xC2 to 0xF4).
class LeadSet {
 public:
  void add(uint8_t byte) { words_[slot(byte) / 64] |= uint64_t{1} << (slot(byte) % 64); }
  bool is_within(const LeadSet& other) const {
    return !((words_[0] & ~other.words_[0]) | (words_[1] & ~other.words_[1]) | (words_[2] & ~other.words_[2]));
  }
  bool operator==(const LeadSet&) const = default;

 private:
  static size_t slot(uint8_t byte) { return byte < 0x80 ? byte - 0x20u : byte - 0xC2u + 96; }
  uint64_t words_[3] = {};
};

class GrammarVocabulary {
 public:
  // `rows`: the number of logits, at least tokenizer.size(); rows without a token are never allowed.
  static GrammarVocabulary from_tokenizer(const Tokenizer& tokenizer, int32_t rows);
  // bytes[id]; an empty one is never allowed. `added[id]`: reached by its mark alone. For benchmarks and tests.
  static GrammarVocabulary from_bytes(const std::vector<std::string>& bytes, const std::vector<bool>& added,
                                      int32_t rows);

  int32_t rows() const { return rows_; }
  size_t mask_words() const { return (static_cast<size_t>(rows_) + 63) / 64; }
  // What the grammar reads for `token`: its bytes or its mark; empty for none.
  std::string_view reading(TokenId token) const {
    if (token < 0 || token >= rows_) return {};
    const auto i = static_cast<size_t>(token);
    return std::string_view(arena_).substr(begin_[i], begin_[i + 1] - begin_[i]);
  }

  const TokenTrie& all() const { return all_; }
  // The tokens that are not plain. A plain token is whole characters of UTF-8, none of them a control character, '"' or
  // '\': the bulk of a vocabulary, and what goes on inside a string without a second look.
  const TokenTrie& rest() const { return rest_; }
  struct PlainToken {
    TokenId id;
    uint32_t characters;
    LeadSet leads;
  };
  const std::vector<PlainToken>& plain() const { return plain_; }  // the most characters first
  const std::vector<uint64_t>& plain_mask() const { return plain_mask_; }
  const LeadSet& plain_leads() const { return plain_leads_; }  // of all plain tokens together
  // The tokens that are not plain, and the plain ones with a character outside `leads`; nothing when those are most.
  std::optional<TokenTrie> trie_outside(const LeadSet& leads) const;

  int longest() const { return longest_; }            // bytes of the longest reading
  int most_openers() const { return most_openers_; }  // most '{' and '[' in one token

 private:
  GrammarVocabulary() = default;
  int32_t rows_ = 0;
  std::string arena_;
  std::vector<uint32_t> begin_;
  TokenTrie all_, rest_;
  std::vector<PlainToken> plain_;
  std::vector<uint64_t> plain_mask_;
  LeadSet plain_leads_;
  int longest_ = 0, most_openers_ = 0;
};

}  // namespace foretoken
