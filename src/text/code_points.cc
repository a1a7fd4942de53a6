// Ranges of code points as ranges of bytes.
#include "text/code_points.h"

#include <algorithm>

#include "base/check.h"
#include "text/unicode.h"

namespace foretoken {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

struct Utf8 {
  uint8_t bytes[4];
  int size;
};

Utf8 utf8_of(char32_t c) {
  std::string text;
  append_utf8(c, text);
  Utf8 out{{}, static_cast<int>(text.size())};
  std::copy(text.begin(), text.end(), out.bytes);
  return out;
}

// One range whose ends have the same number of bytes: split until every position is a range of its own.
void add_utf8_range(Nfa& nfa, uint32_t from, char32_t first, char32_t last, uint32_t to) {
  const Utf8 a = utf8_of(first), b = utf8_of(last);
  CHECK(a.size == b.size);
  for (int i = 0; i + 1 < a.size; ++i) {
    if (a.bytes[i] == b.bytes[i]) continue;
    const char32_t low = (char32_t{1} << (6 * (a.size - 1 - i))) - 1;  // bits of the bytes behind position i
    if (first & low) {
      add_utf8_range(nfa, from, first, first | low, to);
      return add_utf8_range(nfa, from, (first | low) + 1, last, to);
    }
    if ((last & low) != low) {
      add_utf8_range(nfa, from, first, (last & ~low) - 1, to);
      return add_utf8_range(nfa, from, last & ~low, last, to);
    }
    break;
  }
  for (int i = 0; i < a.size; ++i) {
    const uint32_t next = i + 1 == a.size ? to : nfa.add_state();
    nfa.bytes(from, a.bytes[i], b.bytes[i], next);
    from = next;
  }
}

void add_utf8(Nfa& nfa, uint32_t from, const CodePointSet& set, uint32_t to) {
  constexpr char32_t kLast[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};  // of one byte, two, three, four
  for (const auto& [first, last] : set.ranges()) {
    char32_t begin = first;
    for (const char32_t end : kLast) {
      if (begin > last) break;
      if (begin > end) continue;
      add_utf8_range(nfa, from, begin, std::min(end, last), to);
      begin = end + 1;
    }
  }
}

constexpr struct {
  char32_t character;
  char letter;
} kShortEscapes[] = {{'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};

void add_hex_digit(Nfa& nfa, uint32_t from, int digit, uint32_t to) {
  if (digit < 10) {
    nfa.bytes(from, static_cast<uint8_t>('0' + digit), static_cast<uint8_t>('0' + digit), to);
    return;
  }
  for (const char ten : {'a', 'A'})
    nfa.bytes(from, static_cast<uint8_t>(ten + digit - 10), static_cast<uint8_t>(ten + digit - 10), to);
}

void add_hex_digits(Nfa& nfa, uint32_t from, int first, int last, uint32_t to) {
  for (int digit = first; digit <= last; ++digit) add_hex_digit(nfa, from, digit, to);
}

}  // namespace

void CodePointSet::add(char32_t first, char32_t last) {
  if (first <= kLastSurrogate && last >= kFirstSurrogate) {
    if (first < kFirstSurrogate) add(first, kFirstSurrogate - 1);
    if (last > kLastSurrogate) add(kLastSurrogate + 1, last);
    return;
  }
  const auto begin = std::lower_bound(ranges_.begin(), ranges_.end(), first,
                                      [](const Range& r, char32_t c) { return r.last < c && r.last + 1 < c; });
  auto end = begin;
  while (end != ranges_.end() && end->first <= last + 1) {
    first = std::min(first, end->first);
    last = std::max(last, end->last);
    ++end;
  }
  ranges_.insert(ranges_.erase(begin, end), {first, last});
}

CodePointSet CodePointSet::complement() const {
  CodePointSet out;
  char32_t begin = 0;
  for (const Range& r : ranges_) {
    if (begin < r.first) out.add(begin, r.first - 1);
    begin = r.last + 1;
  }
  if (begin <= 0x10FFFF) out.add(begin, 0x10FFFF);
  return out;
}

CodePointSet CodePointSet::without(char32_t first, char32_t last) const {
  CodePointSet out;
  for (const Range& r : ranges_) {
    if (r.first < first) out.add(r.first, std::min<char32_t>(r.last, first - 1));
    if (r.last > last) out.add(std::max<char32_t>(r.first, last + 1), r.last);
  }
  return out;
}

bool CodePointSet::contains(char32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& r) { return r.first <= c && c <= r.last; });
}

void add_code_points(Nfa& nfa, uint32_t from, const CodePointSet& set, Encoding encoding, uint32_t to) {
  if (encoding == Encoding::kText) return add_utf8(nfa, from, set, to);
  add_utf8(nfa, from, set.without(0, 0x1F).without('"', '"').without('\\', '\\'), to);
  uint32_t escape = kNoState, zeros = kNoState;  // made when first needed: after '\', after '\u00'
  const auto escaped = [&] {
    if (escape == kNoState) nfa.bytes(from, '\\', '\\', escape = nfa.add_state());
    return escape;
  };
  uint64_t shorts = 0;
  for (const auto& [character, letter] : kShortEscapes) {
    if (character < 0x20) shorts |= uint64_t{1} << character;
    if (set.contains(character)) nfa.bytes(escaped(), static_cast<uint8_t>(letter), static_cast<uint8_t>(letter), to);
  }
  for (char32_t c = 0; c < 0x20; ++c) {
    if ((shorts >> c & 1) || !set.contains(c)) continue;
    if (zeros == kNoState) nfa.literal(escaped(), "u00", zeros = nfa.add_state());
    const uint32_t high = nfa.add_state();
    add_hex_digit(nfa, zeros, static_cast<int>(c >> 4), high);
    add_hex_digit(nfa, high, static_cast<int>(c & 15), to);
  }
}

void add_any_json_character(Nfa& nfa, uint32_t from, uint32_t to) {
  add_utf8(nfa, from, CodePointSet::all().without(0, 0x1F).without('"', '"').without('\\', '\\'), to);
  const uint32_t escape = nfa.add_state(), hex = nfa.add_state();
  nfa.bytes(from, '\\', '\\', escape);
  for (const char letter : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'})
    nfa.bytes(escape, static_cast<uint8_t>(letter), static_cast<uint8_t>(letter), to);
  nfa.bytes(escape, 'u', 'u', hex);
  const uint32_t last = nfa.add_state(), last_two = nfa.add_state(), last_three = nfa.add_state();
  add_hex_digits(nfa, last, 0, 15, to);
  add_hex_digits(nfa, last_two, 0, 15, last);
  add_hex_digits(nfa, last_three, 0, 15, last_two);
  add_hex_digits(nfa, hex, 0, 12, last_three);
  add_hex_digits(nfa, hex, 14, 15, last_three);
  const uint32_t d = nfa.add_state(), high = nfa.add_state(), high_last = nfa.add_state(), pair = nfa.add_state();
  const uint32_t low_d = nfa.add_state(), low = nfa.add_state();
  add_hex_digit(nfa, hex, 13, d);
  add_hex_digits(nfa, d, 0, 7, last_two);
  add_hex_digits(nfa, d, 8, 11, high);
  add_hex_digits(nfa, high, 0, 15, high_last);
  add_hex_digits(nfa, high_last, 0, 15, pair);
  nfa.literal(pair, "\\u", low_d);
  const uint32_t low_first = nfa.add_state();
  add_hex_digit(nfa, low_d, 13, low_first);
  add_hex_digits(nfa, low_first, 12, 15, low);
  add_hex_digits(nfa, low, 0, 15, last);
}

}  // namespace foretoken
