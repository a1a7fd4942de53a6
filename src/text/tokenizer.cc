// Encoding: added tokens on the raw text, then for each part in between NFC, pre-tokenizer and merges. Decoding: bytes,
// joined.
#include "text/tokenizer.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "text/byte_alphabet.h"
#include "text/unicode.h"

namespace foretoken {
namespace {

constexpr size_t kLongestText = size_t{1} << 30;

bool touches(std::span<const ByteRange> ranges, ByteRange part) {
  // The first range that ends after the part's begin; they are ascending.
  const auto it = std::upper_bound(ranges.begin(), ranges.end(), part.begin,
                                   [](size_t at, const ByteRange& range) { return at < range.end; });
  return it != ranges.end() && it->begin < part.end && it->begin < it->end;
}

// The parts of `ranges` inside `part`, counted from its begin.
std::vector<ByteRange> clip(std::span<const ByteRange> ranges, ByteRange part) {
  std::vector<ByteRange> inside;
  for (const ByteRange& range : ranges) {
    const size_t begin = std::max(range.begin, part.begin), end = std::min(range.end, part.end);
    if (begin < end) inside.push_back({begin - part.begin, end - part.begin});
  }
  return inside;
}

}  // namespace

void Tokenizer::Matcher::add(const std::string& text, size_t index) {
  if (!by_text_.emplace(text, index).second) return;
  auto& lengths = lengths_[static_cast<uint8_t>(text[0])];
  const auto length = static_cast<uint32_t>(text.size());
  const auto at = std::lower_bound(lengths.begin(), lengths.end(), length, std::greater<>{});
  if (at == lengths.end() || *at != length) lengths.insert(at, length);
}

std::optional<size_t> Tokenizer::Matcher::find(std::string_view text) const {
  const auto it = by_text_.find(text);
  if (it == by_text_.end()) return std::nullopt;
  return it->second;
}

std::optional<Tokenizer::Matcher::Match> Tokenizer::Matcher::next(std::string_view text, size_t from,
                                                                  std::span<const ByteRange> plain) const {
  for (size_t at = from; at < text.size(); ++at) {
    for (const uint32_t length : lengths_[static_cast<uint8_t>(text[at])]) {
      if (length > text.size() - at) continue;
      const auto it = by_text_.find(text.substr(at, length));
      if (it != by_text_.end() && !touches(plain, {at, at + length})) return Match{{at, at + length}, it->second};
    }
  }
  return std::nullopt;
}

std::vector<Tokenizer::Part> Tokenizer::find_added(const Matcher& matcher, std::string_view text,
                                                   std::span<const ByteRange> plain) const {
  std::vector<Part> parts;
  size_t done = 0;
  for (size_t from = 0; !matcher.empty();) {
    const auto match = matcher.next(text, from, plain);
    if (!match) break;
    auto [begin, end] = match->range;
    from = end;
    const AddedToken& token = added_[match->index];
    if (token.single_word) {
      if (begin > 0 && is_word_char(decode_utf8_before(text, begin).value)) continue;
      if (end < text.size() && is_word_char(decode_utf8(text, end).value)) continue;
    }
    if (begin < done) continue;  // inside the white space that the token before has swallowed
    if (token.lstrip) {
      while (begin > done) {
        const CodePoint before = decode_utf8_before(text, begin);
        if (!is_white_space(before.value)) break;
        begin -= before.size;
      }
    }
    if (token.rstrip) {
      while (end < text.size()) {
        const CodePoint after = decode_utf8(text, end);
        if (!is_white_space(after.value)) break;
        end += after.size;
      }
    }
    if (begin > done) parts.push_back({{done, begin}, nullptr});
    parts.push_back({{begin, end}, &token});
    done = end;
  }
  if (done < text.size()) parts.push_back({{done, text.size()}, nullptr});
  return parts;
}

// One call of encode(): the output, and the ids of short pieces already met.
class Tokenizer::Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, size_t text_size) : tokenizer_(tokenizer) {
    ids_.reserve(text_size / 4 + 8);
    if (text_size >= kCachePays) cache_ = std::make_unique<Entry[]>(kCacheEntries);
  }

  Status add(std::string_view text, std::span<const ByteRange> plain) {
    for (const Part& part : tokenizer_.find_added(tokenizer_.raw_matcher_, text, plain)) {
      if (part.token) ids_.push_back(part.token->id);
      else TRY(add_unnormalized(text.substr(part.range.begin, part.range.end - part.range.begin), plain, part.range));
    }
    return {};
  }

  // `text` has no added token of the raw pass.
  Status add_unnormalized(std::string_view text, std::span<const ByteRange> plain, ByteRange place) {
    const bool unchanged = !tokenizer_.normalize_nfc_ || is_surely_nfc(text);
    if (unchanged && tokenizer_.normalized_matcher_.empty()) return add_words(text);
    const Rewritten normal = unchanged ? Rewritten{std::string(text), {}} : rewrite_nfc(text);
    if (tokenizer_.normalized_matcher_.empty()) return add_words(normal.text);
    const auto inner = move_ranges(normal.changed, clip(plain, place));
    for (const Part& part : tokenizer_.find_added(tokenizer_.normalized_matcher_, normal.text, inner)) {
      const std::string_view piece =
          std::string_view(normal.text).substr(part.range.begin, part.range.end - part.range.begin);
      if (part.token) ids_.push_back(part.token->id);
      else TRY(add_words(piece));
    }
    return {};
  }

  std::vector<TokenId> take() { return std::move(ids_); }

 private:
  static constexpr size_t kCachePays = 1024;  // bytes of text from which clearing a cache costs less than it saves
  static constexpr size_t kCacheEntries = 4096;
  struct Entry {
    uint8_t length = 0, count = 0;
    char piece[18];
    TokenId ids[7];
  };

  Status add_words(std::string_view text) {
    ends_.clear();
    TRY(tokenizer_.pretokenizer_.split(text, ends_));
    size_t begin = 0;
    for (const size_t end : ends_) {
      add_word(text.substr(begin, end - begin));
      begin = end;
    }
    return {};
  }

  void add_word(std::string_view word) {
    if (word.size() == 1) {
      ids_.push_back(tokenizer_.bpe_.byte_id(static_cast<uint8_t>(word[0])));
      return;
    }
    if (tokenizer_.ignore_merges_) {
      if (const auto whole = tokenizer_.find_normal(word); whole && !tokenizer_.is_special(*whole)) {
        ids_.push_back(*whole);
        return;
      }
    }
    if (!cache_ || word.size() > sizeof(Entry::piece)) {
      tokenizer_.bpe_.encode(word, ids_);
      return;
    }
    Entry& entry = cache_[std::hash<std::string_view>{}(word) % kCacheEntries];
    if (entry.length == word.size() && std::memcmp(entry.piece, word.data(), word.size()) == 0) {
      ids_.insert(ids_.end(), entry.ids, entry.ids + entry.count);
      return;
    }
    const size_t first = ids_.size();
    tokenizer_.bpe_.encode(word, ids_);
    const size_t count = ids_.size() - first;
    if (count > std::size(entry.ids)) return;
    entry.length = static_cast<uint8_t>(word.size());
    entry.count = static_cast<uint8_t>(count);
    std::memcpy(entry.piece, word.data(), word.size());
    std::copy(ids_.begin() + static_cast<std::ptrdiff_t>(first), ids_.end(), entry.ids);
  }

  const Tokenizer& tokenizer_;
  std::vector<TokenId> ids_;
  std::vector<size_t> ends_;
  std::unique_ptr<Entry[]> cache_;
};

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, std::span<const ByteRange> plain) const {
  if (text.size() > kLongestText)
    return Error{ErrorCode::kUsage, "a text of " + std::to_string(text.size()) +
                                        " bytes is longer than the tokenizer's limit of 1 GiB; split it"};
  size_t last = 0;
  for (const ByteRange& range : plain) {
    CHECK(range.begin >= last);
    CHECK(range.begin <= range.end);
    CHECK(range.end <= text.size());
    last = range.end;
  }
  Encoder encoder(*this, text.size());
  if (is_valid_utf8(text)) {
    TRY(encoder.add(text, plain));
  } else {
    const Rewritten valid = rewrite_valid(text);
    TRY(encoder.add(valid.text, move_ranges(valid.changed, {plain.begin(), plain.end()})));
  }
  return encoder.take();
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text) const {
  return encode(text, std::span<const ByteRange>());
}

Result<std::vector<TokenId>> Tokenizer::encode_plain(std::string_view text) const {
  const ByteRange all{0, text.size()};
  return encode(text, std::span(&all, 1));
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string joined;
  for (const TokenId id : ids)
    if (!skip_special || !is_special(id)) joined += bytes(id);
  return is_valid_utf8(joined) ? joined : repair_utf8(joined);
}

std::string_view Tokenizer::bytes(TokenId id) const {
  if (!has(id)) return {};
  const Token& token = tokens_[static_cast<size_t>(id)];
  return std::string_view(arena_).substr(token.begin, token.length);
}

std::string Tokenizer::spelling(TokenId id) const {
  return is_added(id) ? std::string(bytes(id)) : spelling_of_bytes(bytes(id));
}

std::optional<TokenId> Tokenizer::find_normal(std::string_view text) const {
  if (index_.empty()) return std::nullopt;
  const size_t mask = index_.size() - 1;
  for (size_t at = std::hash<std::string_view>{}(text)&mask; index_[at] != 0; at = (at + 1) & mask) {
    const auto id = static_cast<TokenId>(index_[at] - 1);
    if (bytes(id) == text) return id;
  }
  return std::nullopt;
}

std::optional<TokenId> Tokenizer::find(std::string_view text) const {
  for (const Matcher* matcher : {&raw_matcher_, &normalized_matcher_})
    if (const auto index = matcher->find(text)) return added_[*index].id;
  return find_normal(text);
}

}  // namespace foretoken
