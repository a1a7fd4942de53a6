// Sets of code points and how their members are written: as UTF-8, or inside a JSON string. Surrogates are in no set.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "text/automaton.h"

namespace foretoken {

class CodePointSet {
 public:
  struct Range {
    char32_t first, last;  // inclusive
    bool operator==(const Range&) const = default;
  };
  static CodePointSet all() { return {{0, 0x10FFFF}}; }
  CodePointSet() = default;
  CodePointSet(std::initializer_list<Range> ranges) {
    for (const Range& r : ranges) add(r.first, r.last);
  }

  void add(char32_t first, char32_t last);
  void add(const CodePointSet& other) {
    for (const Range& r : other.ranges_) add(r.first, r.last);
  }
  CodePointSet complement() const;
  CodePointSet without(char32_t first, char32_t last) const;
  bool contains(char32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }  // ascending, disjoint

 private:
  std::vector<Range> ranges_;
};

enum class Encoding : uint8_t {
  kText,        // UTF-8
  kJsonString,  // between the quotes of a JSON string, every character in one way: raw, or the escape that it needs
};

// Adds paths that read one member of `set`.
void add_code_points(Nfa& nfa, uint32_t from, const CodePointSet& set, Encoding encoding, uint32_t to);

// Adds paths that read one character of a JSON string in every way that JSON knows, a pair of surrogate escapes as one
// character. Lone surrogates are left out.
void add_any_json_character(Nfa& nfa, uint32_t from, uint32_t to);

}  // namespace foretoken
