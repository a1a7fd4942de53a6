// Utf8Stream and Detokenizer: bytes and ids to text as they come, never splitting a character. StopMatcher: ends a
// streamed text at the first stop string. None knows where its input comes from or where the text goes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace foretoken {

// Bytes to valid UTF-8 in pieces: malformed UTF-8 becomes U+FFFD exactly where Python's bytes.decode("utf-8",
// "replace") puts it in the whole. At most 3 bytes wait for the rest of their character.
class Utf8Stream {
 public:
  std::string add(std::string_view bytes);  // text that is certain by now; empty for parts of a character
  std::string flush();                      // the end: an incomplete character becomes U+FFFD

 private:
  std::string pending_;
};

// The pieces returned, joined, are Tokenizer::decode of all ids.
class Detokenizer {
 public:
  struct Options {
    bool skip_special = false;
  };
  explicit Detokenizer(const Tokenizer& tokenizer, Options options) : tokenizer_(&tokenizer), options_(options) {}
  explicit Detokenizer(const Tokenizer& tokenizer) : Detokenizer(tokenizer, Options()) {}

  std::string add(TokenId id);
  std::string flush() { return stream_.flush(); }

 private:
  const Tokenizer* tokenizer_;  // outlives the detokenizer
  Options options_;
  Utf8Stream stream_;
};

// The text ends just before the stop string whose last byte comes first; of several that end together, before the
// longest. The result does not depend on how the text was cut into pieces.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // empty strings are ignored

  // Text that certainly lies before any stop string. Once stopped() it stays empty.
  std::string add(std::string_view piece);
  std::string flush();  // the end without a stop: what was held back

  bool stopped() const { return stopped_.has_value(); }
  // The stop string that matched.
  const std::string* matched() const { return stopped_ ? &stops_[*stopped_] : nullptr; }
  // Bytes given out so far; when stopped() and after flush(), the length of the whole text.
  size_t emitted() const { return emitted_; }

 private:
  std::vector<std::string> stops_;
  std::vector<std::vector<size_t>> borders_;  // KMP failure lengths of each stop
  std::vector<size_t> lengths_;               // matched prefix of each stop at the end of the text so far
  std::string held_;
  std::optional<size_t> stopped_;
  size_t emitted_ = 0;
};

}  // namespace foretoken
