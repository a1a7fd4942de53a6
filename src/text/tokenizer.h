// Tokenizer: text to token ids and back, as Hugging Face's byte-level BPE does it: added tokens, NFC, pre-tokenizer,
// merges. It is built from tokenizer.json or from GGUF metadata and knows nothing about models, files on disk or
// templates. Immutable after construction: any number of threads may use one object.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/bpe.h"
#include "text/byte_range.h"
#include "text/pretokenizer.h"

namespace foretoken {

using TokenId = int32_t;

// A token found in the text before any merging. `special` ones are control marks that decoding may skip.
struct AddedToken {
  std::string text;
  TokenId id = -1;
  bool special = false;
  bool normalized = false;   // looked for after NFC instead of in the raw text
  bool lstrip = false;       // swallows white space on its left
  bool rstrip = false;       // swallows white space on its right
  bool single_word = false;  // only where no word character touches it
};

// GGUF metadata `tokenizer.ggml.*`. The strings are borrowed for the call alone.
struct GgufVocabulary {
  std::span<const std::string_view> tokens;
  std::span<const int64_t> token_types;  // empty when the file has none
  std::span<const std::string_view> merges;
  std::string_view model = "gpt2";
  std::string_view pre;
  std::optional<int64_t> bos, eos, pad, eot;
};

class Tokenizer {
 public:
  // `config_text` is tokenizer_config.json, or empty when there is none.
  static Result<Tokenizer> from_json(std::string_view tokenizer_text, std::string_view config_text = {});
  static Result<Tokenizer> from_gguf(const GgufVocabulary& vocabulary);

  // Ids of `text` with every added token recognised: raw prompts and other text that the user may steer entirely.
  // Malformed UTF-8 is read as U+FFFD, one per maximal malformed part, as Python's "replace" handler would pass it on.
  Result<std::vector<TokenId>> encode(std::string_view text) const;

  // The same, but no added token is recognised that touches a byte of `plain` (ascending, disjoint ranges): their
  // spellings are ordinary text there. Where no spelling occurs inside `plain`, the ids are those of encode(text).
  Result<std::vector<TokenId>> encode(std::string_view text, std::span<const ByteRange> plain) const;

  // Ids of `text` with no added token recognised anywhere.
  Result<std::vector<TokenId>> encode_plain(std::string_view text) const;

  // All tokens' bytes joined, malformed UTF-8 replaced. Ids without a token add nothing.
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  // One more than the largest id. A model's embedding may have more rows; those ids have no token.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  bool has(TokenId id) const {
    return id >= 0 && id < size() && tokens_[static_cast<size_t>(id)].kind != Kind::kAbsent;
  }
  bool is_added(TokenId id) const { return has(id) && tokens_[static_cast<size_t>(id)].kind >= Kind::kAdded; }
  bool is_special(TokenId id) const { return has(id) && tokens_[static_cast<size_t>(id)].kind == Kind::kSpecial; }

  // What the token adds to a text; not always whole UTF-8. Empty for ids without a token. Valid as long as the
  // tokenizer.
  std::string_view bytes(TokenId id) const;
  // The token as tokenizer.json spells it: in the byte alphabet ("Ġthe") or, for an added token, as it is.
  std::string spelling(TokenId id) const;

  // The token whose bytes are exactly `text`; added tokens come first.
  std::optional<TokenId> find(std::string_view text) const;

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  std::optional<TokenId> pad() const { return pad_; }
  // Ids that end an answer as far as the tokenizer can tell: eos, <|im_end|>, <|endoftext|>, those that exist, without
  // repetition. A generation_config.json may name others.
  const std::vector<TokenId>& end_ids() const { return end_ids_; }

  const std::vector<AddedToken>& added_tokens() const { return added_; }  // by id
  size_t merge_count() const { return bpe_.merge_count(); }
  std::string_view split_method() const { return pretokenizer_.method(); }

 private:
  friend class TokenizerBuilder;
  Tokenizer() = default;
  enum class Kind : uint8_t { kAbsent, kNormal, kAdded, kSpecial };
  struct Token {
    uint32_t begin = 0;  // in arena_
    uint32_t length : 30 = 0;
    Kind kind : 2 = Kind::kAbsent;
  };

  // The added tokens looked for in one pass.
  class Matcher {
   public:
    void add(const std::string& text, size_t index);
    bool empty() const { return by_text_.empty(); }
    std::optional<size_t> find(std::string_view text) const;
    struct Match {
      ByteRange range;
      size_t index = 0;  // into added_
    };
    // The leftmost longest match at or after `from` that touches no byte of `plain`.
    std::optional<Match> next(std::string_view text, size_t from, std::span<const ByteRange> plain) const;

   private:
    struct Hash {
      using is_transparent = void;
      size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
    };
    std::unordered_map<std::string, size_t, Hash, std::equal_to<>> by_text_;
    std::vector<uint32_t> lengths_[256];  // lengths of the texts that start with this byte, descending
  };
  struct Part {
    ByteRange range;
    const AddedToken* token = nullptr;  // null: ordinary text
  };
  class Encoder;

  std::vector<Part> find_added(const Matcher& matcher, std::string_view text, std::span<const ByteRange> plain) const;
  std::optional<TokenId> find_normal(std::string_view bytes) const;

  std::string arena_;  // bytes of all tokens
  std::vector<Token> tokens_;
  std::vector<uint32_t> index_;  // open addressing over the normal tokens' bytes: id + 1, 0 = free
  std::vector<AddedToken> added_;
  Matcher raw_matcher_, normalized_matcher_;
  Bpe bpe_;
  Pretokenizer pretokenizer_;
  bool normalize_nfc_ = false;
  bool ignore_merges_ = false;  // a piece that is a token is that token, whatever the merges say
  std::optional<TokenId> bos_, eos_, pad_;
  std::vector<TokenId> end_ids_;
};

}  // namespace foretoken
