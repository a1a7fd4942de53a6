// What the text room needs of Unicode: UTF-8 decoding and repair, character classes, and NFC that remembers where it
// changed something. Data comes from utf8proc; this file knows nothing about tokens or templates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_range.h"

namespace foretoken {

// One code point read from UTF-8. A malformed sequence yields U+FFFD and the length of its maximal valid prefix (at
// least 1 byte), which is how Python's bytes.decode("utf-8", "replace") and the Unicode standard's recommendation cut
// it.
struct CodePoint {
  char32_t value = 0;
  uint8_t size = 0;  // bytes consumed
  bool valid = true;
};
CodePoint decode_utf8(std::string_view text, size_t at);  // at < text.size()
CodePoint decode_utf8_slow(std::string_view text, size_t at);

// The code point that ends just before `at` (at > 0); U+FFFD when the bytes there are no whole character.
CodePoint decode_utf8_before(std::string_view text, size_t at);

void append_utf8(char32_t code_point, std::string& out);  // surrogates and values past U+10FFFF become U+FFFD
bool is_valid_utf8(std::string_view text);
std::string repair_utf8(std::string_view text);  // every malformed sequence becomes one U+FFFD

// Number of bytes at the end of `text` that begin a character and could still be completed by more bytes (0 to 3).
size_t incomplete_utf8_tail(std::string_view text);

// The general categories the pre-tokenizers distinguish. kSpace is the White_Space property (U+0085, but not U+180E).
enum class CharClass : uint8_t { kLetter, kMark, kNumber, kSpace, kOther };
CharClass char_class(char32_t c);

bool is_white_space(char32_t c);   // the White_Space property: \s of Hugging Face's regular expressions
bool is_python_space(char32_t c);  // str.isspace(): White_Space plus U+001C..U+001F
bool is_word_char(char32_t c);     // \w: letters, marks, decimal digits, connectors, joiners, other alphabetics

// A text rewritten from a source, with the parts that differ: outside `changed` it equals the source.
struct Rewritten {
  struct Change {
    ByteRange source;
    ByteRange result;
  };
  std::string text;
  std::vector<Change> changed;  // ascending
};

// Every malformed sequence becomes one U+FFFD.
Rewritten rewrite_valid(std::string_view text);

// True when `text` (valid UTF-8) is its own NFC by the quick check; false means that rewrite_nfc() must look closer.
bool is_surely_nfc(std::string_view text);
Rewritten rewrite_nfc(std::string_view text);

// Ranges of the source (ascending, disjoint) as ranges of the result. A range that touches a change covers all of it.
std::vector<ByteRange> move_ranges(const std::vector<Rewritten::Change>& changed, std::vector<ByteRange> ranges);

// Single-character case mappings (one code point to one; the few that grow, such as the German sharp s, stay as they
// are).
char32_t to_upper(char32_t c);
char32_t to_lower(char32_t c);
char32_t to_title(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_alphabetic(char32_t c);  // str.isalpha(): letters
bool is_decimal(char32_t c);     // category Nd
bool is_printable(char32_t c);  // str.isprintable(): no control, format, private, unassigned or separator but the space

inline CodePoint decode_utf8(std::string_view text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1, true};
  return decode_utf8_slow(text, at);
}

}  // namespace foretoken
