// UTF-8 decoding by the table of well-formed sequences, classes and NFC by utf8proc's property data.
#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/check.h"

namespace foretoken {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

// Bounds of the second byte and the length of the sequence that `first` announces; length 0 when no sequence starts so.
struct Lead {
  uint8_t length, low, high;
};
constexpr Lead lead(unsigned char first) {
  if (first < 0x80) return {1, 0, 0};
  if (first < 0xC2) return {0, 0, 0};
  if (first < 0xE0) return {2, 0x80, 0xBF};
  if (first == 0xE0) return {3, 0xA0, 0xBF};
  if (first == 0xED) return {3, 0x80, 0x9F};
  if (first < 0xF0) return {3, 0x80, 0xBF};
  if (first == 0xF0) return {4, 0x90, 0xBF};
  if (first < 0xF4) return {4, 0x80, 0xBF};
  if (first == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Bytes of the longest prefix of a well-formed sequence at `at`, and whether it is whole.
struct Sequence {
  size_t size;
  size_t wanted;
};
Sequence sequence_at(std::string_view text, size_t at) {
  const Lead l = lead(static_cast<unsigned char>(text[at]));
  if (l.length == 0) return {1, 0};
  size_t size = 1;
  while (size < l.length && at + size < text.size()) {
    const auto byte = static_cast<unsigned char>(text[at + size]);
    const bool fits = size == 1 ? byte >= l.low && byte <= l.high : (byte & 0xC0) == 0x80;
    if (!fits) break;
    ++size;
  }
  return {size, l.length};
}

const utf8proc_property_t& property(char32_t c) { return *utf8proc_get_property(static_cast<utf8proc_int32_t>(c)); }
utf8proc_category_t category(char32_t c) { return static_cast<utf8proc_category_t>(property(c).category); }

bool is_trailing_jamo(char32_t c) { return (c >= 0x1161 && c <= 0x1175) || (c >= 0x11A8 && c <= 0x11C2); }

// A character that NFC never joins to what stands before it and that is its own NFC: text may be normalised in pieces
// cut before such characters. Below U+0300 all are; above, those without combining class, decomposition or backward
// composition.
bool starts_piece(char32_t c) {
  if (c < 0x300) return true;
  const utf8proc_property_t& p = property(c);
  if (p.combining_class != 0) return false;
  if (p.decomp_seqindex != UINT16_MAX && p.decomp_type == 0) return false;
  if (p.comb_index != UINT16_MAX && p.comb_index >= 0x8000) return false;
  return !is_trailing_jamo(c);
}

// NFC of one piece. utf8proc's own canonical ordering is quadratic in a run of marks, so the ordering is done here.
void append_nfc(std::string_view piece, std::string& out) {
  std::vector<utf8proc_int32_t> points;
  points.reserve(piece.size() + 4);
  for (size_t at = 0; at < piece.size();) {
    const CodePoint c = decode_utf8(piece, at);
    at += c.size;
    utf8proc_int32_t part[16];
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.value), part, 16, UTF8PROC_DECOMPOSE, &boundary);
    CHECK(count > 0);
    CHECK(count <= 16);
    points.insert(points.end(), part, part + count);
  }
  const auto combining = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (auto begin = points.begin(); begin != points.end();) {
    if (combining(*begin) == 0) {
      ++begin;
      continue;
    }
    auto end = begin;
    while (end != points.end() && combining(*end) != 0) ++end;
    std::stable_sort(begin, end, [&](auto a, auto b) { return combining(a) < combining(b); });
    begin = end;
  }
  const auto length = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  CHECK(length >= 0);
  for (utf8proc_ssize_t i = 0; i < length; ++i) append_utf8(static_cast<char32_t>(points[static_cast<size_t>(i)]), out);
}

}  // namespace

CodePoint decode_utf8_slow(std::string_view text, size_t at) {
  const Sequence s = sequence_at(text, at);
  if (s.size != s.wanted) return {kReplacement, static_cast<uint8_t>(s.size), false};
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  switch (s.size) {
    case 1:
      return {byte(0), 1, true};
    case 2:
      return {(byte(0) & 0x1F) << 6 | (byte(1) & 0x3F), 2, true};
    case 3:
      return {(byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3, true};
    default:
      return {(byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4, true};
  }
}

CodePoint decode_utf8_before(std::string_view text, size_t at) {
  for (size_t size = 1; size <= 4 && size <= at; ++size) {
    const CodePoint c = decode_utf8(text.substr(0, at), at - size);
    if (c.valid && c.size == size) return c;
  }
  return {kReplacement, 1, false};
}

void append_utf8(char32_t c, std::string& out) {
  if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) c = kReplacement;
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

bool is_valid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    if (!c.valid) return false;
    at += c.size;
  }
  return true;
}

Rewritten rewrite_valid(std::string_view text) {
  Rewritten result;
  result.text.reserve(text.size() + 8);
  size_t copied = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    if (!c.valid) {
      result.text.append(text, copied, at - copied);
      const size_t begin = result.text.size();
      append_utf8(kReplacement, result.text);
      copied = at + c.size;
      result.changed.push_back({{at, copied}, {begin, result.text.size()}});
    }
    at += c.size;
  }
  result.text.append(text, copied);
  return result;
}

std::string repair_utf8(std::string_view text) { return rewrite_valid(text).text; }

size_t incomplete_utf8_tail(std::string_view text) {
  for (size_t size = 1; size <= 3 && size <= text.size(); ++size) {
    const size_t at = text.size() - size;
    if ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) continue;
    const Sequence s = sequence_at(text, at);
    return s.size == size && s.wanted > size ? size : 0;
  }
  return 0;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

CharClass char_class(char32_t c) {
  if (is_white_space(c)) return CharClass::kSpace;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return CharClass::kMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    default:
      return CharClass::kOther;
  }
}

bool is_word_char(char32_t c) {
  switch (char_class(c)) {
    case CharClass::kLetter:
    case CharClass::kMark:
      return true;
    case CharClass::kNumber:
      return category(c) != UTF8PROC_CATEGORY_NO;
    default:
      break;
  }
  if (category(c) == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D) return true;
  // Circled, squared and parenthesised Latin letters: symbols with the Other_Alphabetic property.
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

bool is_surely_nfc(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0xCC) {  // below U+0300
      ++at;
      continue;
    }
    const CodePoint c = decode_utf8(text, at);
    if (!starts_piece(c.value)) return false;
    at += c.size;
  }
  return true;
}

Rewritten rewrite_nfc(std::string_view text) {
  Rewritten result;
  result.text.reserve(text.size());
  size_t piece = 0;  // start of the last character that may begin a piece
  size_t copied = 0;
  std::string composed;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    if (starts_piece(c.value)) {
      piece = at;
      at += c.size;
      continue;
    }
    size_t end = at + c.size;
    while (end < text.size()) {
      const CodePoint next = decode_utf8(text, end);
      if (starts_piece(next.value)) break;
      end += next.size;
    }
    composed.clear();
    append_nfc(text.substr(piece, end - piece), composed);
    result.text.append(text, copied, piece - copied);
    if (composed != text.substr(piece, end - piece))
      result.changed.push_back({{piece, end}, {result.text.size(), result.text.size() + composed.size()}});
    result.text += composed;
    copied = end;
    piece = end;
    at = end;
  }
  result.text.append(text, copied);
  return result;
}

std::vector<ByteRange> move_ranges(const std::vector<Rewritten::Change>& changed, std::vector<ByteRange> ranges) {
  size_t passed = 0;  // changes that end at or before the offset in hand
  const auto moved = [&](size_t offset, bool is_end) {
    while (passed < changed.size() && changed[passed].source.end <= offset) ++passed;
    if (passed < changed.size() && changed[passed].source.begin < offset)
      return is_end ? changed[passed].result.end : changed[passed].result.begin;
    return passed == 0 ? offset : changed[passed - 1].result.end + (offset - changed[passed - 1].source.end);
  };
  size_t last = 0;
  for (ByteRange& range : ranges) {
    const size_t begin = moved(range.begin, false);
    const size_t end = moved(range.end, true);
    range = {std::max(begin, last), std::max(end, last)};
    last = range.end;
  }
  return ranges;
}

char32_t to_upper(char32_t c) { return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))); }
char32_t to_lower(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))); }
char32_t to_title(char32_t c) { return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))); }
bool is_upper(char32_t c) { return utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0; }
bool is_lower(char32_t c) { return utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0; }
bool is_alphabetic(char32_t c) { return char_class(c) == CharClass::kLetter; }
bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

}  // namespace foretoken
