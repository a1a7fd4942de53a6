// JsonStyle: how a text so far spaces its JSON, to guess how it goes on: on one line or on several, with which
// indentation. Until something was seen it is the way of most models: one line, one space behind ':' and ','. It knows
// no grammar.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace foretoken {

class JsonStyle {
 public:
  void read(char byte);
  bool in_string() const { return in_string_; }
  // The white space to expect in front of `next`, the only byte that may follow it (-1: several); nothing inside
  // strings, where only the next byte could tell, and where the text has just changed its way.
  std::optional<std::string> expected(int next) const;

 private:
  struct Run {
    enum Kind : uint8_t {
      kUnknown,
      kFlat,
      kSpaces,
      kTabs
    } kind = kUnknown;  // on one line; a new line with spaces, with tabs
    uint8_t blanks = 0;
    bool steady = true;  // the one before was the same
    bool is_line() const { return kind >= kSpaces; }
    bool operator==(const Run& other) const { return kind == other.kind && blanks == other.blanks; }
  };
  enum Place : int8_t { kNowhere = -1, kColon, kComma, kBrace, kBracket, kBraceEnd, kBracketEnd, kPlaces };
  static constexpr int kDepths = 8;
  static Place place_of(char byte);
  static bool opens(Place place) { return place == kBrace || place == kBracket; }
  static bool closes(Place place) { return place == kBraceEnd || place == kBracketEnd; }

  int depth() const { return depth_ < kDepths ? depth_ : kDepths - 1; }
  void note(Place place, Run run);
  Run habit(Place place) const;

  bool in_string_ = false, escaped_ = false;
  Place place_ = kNowhere;  // of the mark that is being spaced; behind a value: nowhere
  uint8_t depth_ = 0;       // open objects and arrays
  Run run_{Run::kFlat, 0};
  // What came last behind ':', ',' and what opens, and in front of what closes, in each depth.
  Run habits_[kPlaces][kDepths] = {};
};

}  // namespace foretoken
