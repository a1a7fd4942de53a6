// Sorting a vocabulary into its trees.
#include "text/grammar_vocabulary.h"

#include <algorithm>

#include "base/check.h"
#include "text/unicode.h"

namespace foretoken {
namespace {

// What is known of a plain token; nothing for others.
std::optional<GrammarVocabulary::PlainToken> plain_token(TokenId id, std::string_view bytes) {
  GrammarVocabulary::PlainToken token{id, 0, {}};
  for (size_t at = 0; at < bytes.size(); ++token.characters) {
    const CodePoint c = decode_utf8(bytes, at);
    if (!c.valid || c.value < 0x20 || c.value == '"' || c.value == '\\') return std::nullopt;
    token.leads.add(static_cast<uint8_t>(bytes[at]));
    at += c.size;
  }
  return token;
}

// `ids` are in the order of what they read.
template <class Reading>
TokenTrie make_trie(const std::vector<TokenId>& ids, Reading reading) {
  TokenTrie trie;
  std::vector<uint32_t> open;  // the path of the latest token
  std::string_view last;
  const auto close_to = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back())
      trie.nodes[open.back()].skip = static_cast<uint32_t>(trie.nodes.size());
  };
  for (const TokenId id : ids) {
    const std::string_view text = reading(id);
    const auto shared =
        static_cast<size_t>(std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first - text.begin());
    close_to(shared);
    for (size_t i = shared; i < text.size(); ++i) {
      open.push_back(static_cast<uint32_t>(trie.nodes.size()));
      trie.nodes.push_back(
          {0, static_cast<uint32_t>(trie.tokens.size()), static_cast<uint16_t>(i + 1), static_cast<uint8_t>(text[i])});
    }
    trie.tokens.push_back(id);
    last = text;
  }
  close_to(0);
  trie.nodes.push_back({0, static_cast<uint32_t>(trie.tokens.size()), 0, 0});
  return trie;
}

}  // namespace

std::string token_mark(TokenId id) {
  CHECK(id >= 0);
  std::string mark = "\xFF";
  for (int shift = 21; shift >= 0; shift -= 7) mark.push_back(static_cast<char>(id >> shift & 0x7F));
  return mark;
}

GrammarVocabulary GrammarVocabulary::from_bytes(const std::vector<std::string>& bytes, const std::vector<bool>& added,
                                                int32_t rows) {
  constexpr size_t kLongest = 1024;  // of bytes; a longer token is not worth its walk
  CHECK(bytes.size() == added.size());
  CHECK(static_cast<size_t>(rows) >= bytes.size());
  CHECK(rows <= 1 << 28);
  GrammarVocabulary v;
  v.rows_ = rows;
  v.plain_mask_.assign(v.mask_words(), 0);
  std::vector<TokenId> all, rest;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    v.begin_.push_back(static_cast<uint32_t>(v.arena_.size()));
    if (bytes[i].empty() || bytes[i].size() > kLongest) continue;
    if (!added[i] && bytes[i].find('\xFF') != std::string::npos) continue;  // in no text, and could pass for a mark
    const std::string reading = added[i] ? token_mark(id) : bytes[i];
    v.arena_ += reading;
    all.push_back(id);
    v.longest_ = std::max(v.longest_, static_cast<int>(reading.size()));
    if (!added[i])
      v.most_openers_ = std::max(
          v.most_openers_,
          static_cast<int>(std::count_if(reading.begin(), reading.end(), [](char c) { return c == '{' || c == '['; })));
    if (const auto plain = plain_token(id, reading)) {
      v.plain_.push_back(*plain);
      v.plain_mask_[i / 64] |= uint64_t{1} << (i % 64);
    } else {
      rest.push_back(id);
    }
  }
  v.begin_.resize(static_cast<size_t>(rows) + 1, static_cast<uint32_t>(v.arena_.size()));
  std::stable_sort(v.plain_.begin(), v.plain_.end(),
                   [](const PlainToken& a, const PlainToken& b) { return a.characters > b.characters; });
  for (int lead = 0x20; lead <= 0xF4; ++lead)
    if (lead != '"' && lead != '\\' && (lead < 0x80 || lead >= 0xC2)) v.plain_leads_.add(static_cast<uint8_t>(lead));
  const auto reading = [&v](TokenId id) { return v.reading(id); };
  for (std::vector<TokenId>* ids : {&all, &rest})
    std::sort(ids->begin(), ids->end(), [&](TokenId a, TokenId b) {
      const int order = reading(a).compare(reading(b));
      return order != 0 ? order < 0 : a < b;
    });
  v.all_ = make_trie(all, reading);
  v.rest_ = make_trie(rest, reading);
  return v;
}

std::optional<TokenTrie> GrammarVocabulary::trie_outside(const LeadSet& leads) const {
  std::vector<uint64_t> inside(mask_words(), 0);
  size_t count = 0;
  for (const PlainToken& token : plain_)
    if (token.leads.is_within(leads)) {
      inside[static_cast<size_t>(token.id) / 64] |= uint64_t{1} << (token.id % 64);
      ++count;
    }
  if (2 * count < plain_.size()) return std::nullopt;
  std::vector<TokenId> outside;
  for (const TokenId id : all_.tokens)
    if (!(inside[static_cast<size_t>(id) / 64] >> (id % 64) & 1)) outside.push_back(id);
  return make_trie(outside, [this](TokenId id) { return reading(id); });
}

GrammarVocabulary GrammarVocabulary::from_tokenizer(const Tokenizer& tokenizer, int32_t rows) {
  std::vector<std::string> bytes(static_cast<size_t>(std::min(rows, tokenizer.size())));
  std::vector<bool> added(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = tokenizer.bytes(static_cast<TokenId>(i));
    added[i] = tokenizer.is_added(static_cast<TokenId>(i));
  }
  return from_bytes(bytes, added, rows);
}

}  // namespace foretoken
