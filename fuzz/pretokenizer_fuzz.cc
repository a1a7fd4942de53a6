// Text through the pre-tokenizer: the hand-written scanners cut exactly where PCRE2 cuts by the pattern they stand for, pieces cover the
// text, and spellings of bytes are the bytes again. Inputs that begin with "/" name patterns of their own: "/first/second\ntext".
// Covers: src/text/pretokenizer.cc src/text/byte_alphabet.cc
#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_alphabet.h"
#include "text/pretokenizer.h"
#include "text/unicode.h"

using namespace foretoken;

namespace {

void check(bool condition) {
  if (!condition) std::abort();
}

std::vector<size_t> cut(const Pretokenizer& pretokenizer, std::string_view text) {
  std::vector<size_t> ends;
  check(pretokenizer.split(text, ends).ok());
  size_t last = 0;
  for (const size_t end : ends) {
    check(end > last);
    last = end;
  }
  check(last == text.size());
  return ends;
}

// Characters that PCRE2 and we put into the same class. The libraries know different versions of Unicode, and characters that one of
// them does not know yet would be told apart for no fault of the scanner.
const std::vector<bool>& agreed_characters() {
  static const std::vector<bool> agreed = [] {
    std::vector<bool> all(0x110000, true);
    struct Class {
      const char* pattern;
      CharClass kind;
      char other;  // an ASCII character outside the class
    };
    for (const Class& c : {Class{"\\p{L}", CharClass::kLetter, '\n'}, Class{"\\p{M}", CharClass::kMark, '\n'},
                           Class{"\\p{N}", CharClass::kNumber, '\n'}, Class{"\\s", CharClass::kSpace, 'a'}}) {
      // Every character with `other` behind it: a match is a piece of one character, and no other piece is, but `other` alone.
      std::string text;
      for (char32_t value = 0x80; value < all.size(); ++value)
        if (value < 0xD800 || value >= 0xE000) append_utf8(value, text), text += c.other;
      std::vector<bool> theirs(all.size(), false);
      size_t begin = 0;
      for (const size_t end : cut(*Pretokenizer::from_patterns({c.pattern}), text)) {
        const CodePoint first = decode_utf8(text, begin);
        if (first.size == end - begin) theirs[first.value] = true;
        begin = end;
      }
      for (char32_t value = 0x80; value < all.size(); ++value)
        if (theirs[value] != (char_class(value) == c.kind)) all[value] = false;
    }
    check(std::count(all.begin(), all.end(), false) < 12'000);  // two versions of Unicode; more would leave nothing to compare
    return all;
  }();
  return agreed;
}

struct Pair {
  Pretokenizer scanner, regex;
};

Pair pair_of(std::string_view pattern) {
  const auto scanner = Pretokenizer::from_patterns({std::string(pattern)});
  const auto regex = Pretokenizer::from_patterns({"(?:" + std::string(pattern) + ")"});  // spelt differently, so not recognised
  check(scanner.ok() && scanner->method() != "PCRE2");
  check(regex.ok() && regex->method() == "PCRE2");
  return {*scanner, *regex};
}

void own_patterns(std::string_view input) {
  const size_t line = std::min(input.find('\n'), input.size());
  std::vector<std::string> patterns;
  for (size_t begin = 1; begin <= line && patterns.size() < 3;) {
    const size_t end = std::min(input.find('/', begin), line);
    patterns.emplace_back(input.substr(begin, end - begin));
    begin = end + 1;
  }
  const auto pretokenizer = Pretokenizer::from_patterns(patterns);
  if (!pretokenizer) return;
  check(pretokenizer->method().size() > 3);
  const std::string text = repair_utf8(input.substr(std::min(line + 1, input.size())));
  std::vector<size_t> ends;
  if (pretokenizer->split(text, ends)) check(text.empty() || ends.back() == text.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  check(bytes_of_spelling(spelling_of_bytes(input)) == input);
  if (const auto bytes = bytes_of_spelling(input)) check(spelling_of_bytes(*bytes) == input);
  if (input.starts_with('/')) {
    own_patterns(input);
    return 0;
  }
  std::string text;
  const std::string repaired = repair_utf8(input);
  for (size_t at = 0; at < repaired.size();) {
    const CodePoint c = decode_utf8(repaired, at);
    append_utf8(agreed_characters()[c.value] ? c.value : U'?', text);
    at += c.size;
  }
  static const Pair kPairs[] = {pair_of(kQwen35Pattern), pair_of(kQwen2Pattern)};
  for (const Pair& pair : kPairs) check(cut(pair.scanner, text) == cut(pair.regex, text));
  check(Pretokenizer::from_patterns({})->method() == "none");
  return 0;
}
