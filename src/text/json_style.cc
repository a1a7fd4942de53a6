// Habits by depth; what opens an object or array tells how the rest of it is spaced.
#include "text/json_style.h"

#include <algorithm>
#include <cstdlib>

namespace foretoken {

JsonStyle::Place JsonStyle::place_of(char byte) {
  switch (byte) {
    case ':':
      return kColon;
    case ',':
      return kComma;
    case '{':
      return kBrace;
    case '[':
      return kBracket;
    case '}':
      return kBraceEnd;
    case ']':
      return kBracketEnd;
    default:
      return kNowhere;
  }
}

void JsonStyle::note(Place place, Run run) {
  Run& habit = habits_[place][depth()];
  run.steady = habit.kind == Run::kUnknown || habit == run;
  habit = run;
  if (!opens(place)) return;
  const uint8_t step = run.blanks / std::max(1, depth());
  const Run end = run.is_line() ? Run{run.kind, static_cast<uint8_t>(run.blanks - step)} : Run{Run::kFlat, 0};
  habits_[place == kBrace ? kBraceEnd : kBracketEnd][depth()] = end;
  Run& comma = habits_[kComma][depth()];
  if (run.is_line()) comma = run;
  else if (comma.is_line()) comma = {};
}

void JsonStyle::read(char byte) {
  if (in_string_) {
    if (escaped_) escaped_ = false;
    else if (byte == '\\') escaped_ = true;
    else if (byte == '"') in_string_ = false;
    return;
  }
  if (byte == '\n') {
    run_ = {Run::kSpaces, 0};
  } else if (byte == '\t') {
    run_ = {Run::kTabs, static_cast<uint8_t>(std::min(254, int{run_.blanks}) + 1)};
  } else if (byte == ' ') {
    run_.blanks += run_.blanks < 255;
  } else {
    const Place mark = place_of(byte);
    if (place_ >= 0 && !closes(mark)) note(place_, run_);
    if (place_ < 0 && closes(mark)) note(mark, run_);
    if (opens(mark)) ++depth_;
    if (closes(mark) && depth_ > 0) --depth_;
    place_ = closes(mark) ? kNowhere : mark;
    run_ = {Run::kFlat, 0};
    in_string_ = byte == '"';
  }
}

// What was seen at this depth, otherwise what was seen nearest: behind what opens, a line's indentation in proportion.
JsonStyle::Run JsonStyle::habit(Place place) const {
  const Run own = habits_[place][depth()];
  if (own.kind != Run::kUnknown) return own;
  for (const Place like : {place, place == kBrace ? kBracket : place == kBracket ? kBrace : place})
    for (int distance = 1; distance < kDepths; ++distance)
      for (const int other : {depth() - distance, depth() + distance}) {
        if (other < 1 || other >= kDepths || habits_[like][other].kind == Run::kUnknown) continue;
        Run run = habits_[like][other];
        if (run.is_line() && !opens(place)) continue;
        if (run.is_line()) run.blanks = static_cast<uint8_t>(std::min(255, run.blanks * depth() / other));
        return run;
      }
  return {Run::kFlat, static_cast<uint8_t>(place == kColon || place == kComma)};
}

std::optional<std::string> JsonStyle::expected(int next) const {
  if (in_string_) return std::nullopt;
  const Place mark = next < 0 ? kNowhere : place_of(static_cast<char>(next));
  Run run{Run::kFlat, 0};
  if (place_ >= 0 && !closes(mark)) run = habit(place_);
  else if (place_ < 0 && closes(mark)) run = habit(mark);
  else if (place_ < 0) return std::nullopt;
  if (!run.steady) return std::nullopt;
  if (run == run_) return "";
  if (run_ == Run{Run::kFlat, 0})
    return (run.is_line() ? "\n" : "") + std::string(run.blanks, run.kind == Run::kTabs ? '\t' : ' ');
  const bool begun =
      run_.is_line() && run.is_line() && run_.blanks < run.blanks && (run_.blanks == 0 || run_.kind == run.kind);
  return begun ? std::optional(
                     std::string(static_cast<size_t>(run.blanks - run_.blanks), run.kind == Run::kTabs ? '\t' : ' '))
               : std::nullopt;
}

}  // namespace foretoken
