// One state for each place an answer can be at; each step consumes decided text from `pending_` or asks for more. What is held back is
// bounded: a prefix of a tag, white space, one tag with its name; a value is held whole only where its JSON kind needs all of it.
#include "text/output_parser.h"

#include <algorithm>
#include <utility>

namespace foretoken {
namespace {

constexpr std::string_view kCallBegin = "<tool_call>", kCallEnd = "</tool_call>";
constexpr std::string_view kFunctionBegin = "<function=", kFunctionEnd = "</function>";
constexpr std::string_view kParameterBegin = "<parameter=", kParameterEnd = "</parameter>";
constexpr std::string_view kBlanks = " \t\r\n";
constexpr size_t kMostName = 256;    // bytes of a name: a tag that goes on is no tag
constexpr size_t kMostBlanks = 256;  // between two tags

// How `text` stands to a tag that should come now.
enum class Match { kNo, kMaybe, kYes };
Match match(std::string_view text, std::string_view tag) {
  if (text.starts_with(tag)) return Match::kYes;
  return tag.starts_with(text) ? Match::kMaybe : Match::kNo;
}

// The name in <tag=NAME>, when `text` begins with the tag.
struct Named {
  Match match = Match::kNo;
  std::string_view name;
  size_t length = 0;  // of the whole tag
};
Named named(std::string_view text, std::string_view tag) {
  Named result{.match = match(text, tag), .name = {}, .length = 0};
  if (result.match != Match::kYes) return result;
  const std::string_view rest = text.substr(tag.size());
  const size_t end = rest.find_first_of(">\n<");
  if (end == std::string_view::npos) {
    result.match = rest.size() <= kMostName ? Match::kMaybe : Match::kNo;
    return result;
  }
  const size_t first = rest.find_first_not_of(kBlanks), last = rest.substr(0, end).find_last_not_of(kBlanks);
  if (rest[end] != '>' || end > kMostName || first >= end) {
    result.match = Match::kNo;
    return result;
  }
  result.name = rest.substr(first, last - first + 1);
  result.length = tag.size() + end + 1;
  return result;
}

// Whether </parameter> at the front of `text` ends a value: a parameter or the function's end comes behind it.
Match ends_value(std::string_view text) {
  const Match tag = match(text, kParameterEnd);
  if (tag != Match::kYes) return tag;
  const std::string_view rest = text.substr(kParameterEnd.size());
  const size_t next = std::min(rest.find_first_not_of(kBlanks), rest.size());
  if (next > kMostBlanks) return Match::kNo;
  Match best = Match::kNo;
  for (const std::string_view follower : {kParameterBegin, kFunctionEnd, kCallEnd}) best = std::max(best, match(rest.substr(next), follower));
  return best;
}

// The first place where a value ends, or may end when more text comes.
struct ValueEnd {
  size_t at = std::string_view::npos;
  Match match = Match::kNo;
};
ValueEnd value_end(std::string_view text) {
  for (size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1))
    if (const Match match = ends_value(text.substr(at)); match != Match::kNo) return {at, match};
  return {};
}

size_t blanks_at_end(std::string_view text) {
  const size_t last = text.find_last_not_of(kBlanks);
  return last == std::string_view::npos ? text.size() : text.size() - last - 1;
}

}  // namespace

OutputParser::OutputParser(OutputParserOptions options)
    : options_(std::move(options)), state_(options_.in_reasoning ? State::kReasoning : State::kText) {}

const std::vector<OutputDelta>& OutputParser::add(TokenId id, std::string_view bytes) {
  CHECK(!ended_);
  deltas_.clear();
  if (state_ == State::kReasoning) {
    if (id == options_.think_end) {
      take(stream_.flush());
      space_.clear();
      state_ = State::kText;
      drop_line_ends_ = true;
      return deltas_;
    }
    ++reasoning_tokens_;
  } else if ((id == options_.think_begin || id == options_.think_end) && outside_calls()) {
    take(stream_.flush());
    emit_spaced(OutputDelta::Kind::kText, std::exchange(pending_, {}));  // the start of a tag that does not go on
    if (id == options_.think_begin) state_ = State::kReasoning;          // an end without a beginning ends nothing
    else state_ = State::kText;
    space_.clear();
    drop_line_ends_ = true;
    return deltas_;
  }
  take(stream_.add(bytes));
  return deltas_;
}

const std::vector<OutputDelta>& OutputParser::finish() {
  CHECK(!ended_);
  deltas_.clear();
  take(stream_.flush());
  ended_ = true;
  parse();
  end_now();
  return deltas_;
}

void OutputParser::take(std::string_view text) {
  pending_ += text;
  parse();
}

void OutputParser::parse() {
  while (!pending_.empty() && step()) {}
}

bool OutputParser::step() {
  switch (state_) {
    case State::kReasoning: return step_reasoning();
    case State::kText: return step_text();
    case State::kCallOpen: return step_call_open();
    case State::kParameters: return step_parameters();
    case State::kValue: return step_value();
    case State::kAfterFunction: return step_after_function();
    case State::kJson: return step_json();
    case State::kAfterJson: return step_after_json();
  }
  return false;
}

// ---- Reasoning and text

bool OutputParser::step_reasoning() {
  emit_spaced(OutputDelta::Kind::kReasoning, std::exchange(pending_, {}));
  return true;
}

bool OutputParser::step_text() {
  if (!options_.calls) {
    emit_spaced(OutputDelta::Kind::kText, std::exchange(pending_, {}));
    return true;
  }
  const size_t angle = std::min(pending_.find('<'), pending_.size());
  if (angle > 0) {
    emit_spaced(OutputDelta::Kind::kText, std::string_view(pending_).substr(0, angle));
    pending_.erase(0, angle);
    return true;
  }
  const Match tag = match(pending_, kCallBegin);
  if (tag == Match::kMaybe && !ended_) return false;
  if (tag == Match::kYes) {
    opening_ = std::exchange(space_, {}) + std::string(kCallBegin);
    pending_.erase(0, kCallBegin.size());
    state_ = State::kCallOpen;
    return true;
  }
  emit_spaced(OutputDelta::Kind::kText, pending_.substr(0, 1));
  pending_.erase(0, 1);
  return true;
}

// ---- The form with tags

bool OutputParser::step_call_open() {
  const size_t blanks = std::min(pending_.find_first_not_of(kBlanks), pending_.size());
  opening_ += pending_.substr(0, blanks);
  pending_.erase(0, blanks);
  if (pending_.empty()) return false;
  if (pending_[0] == '{') {
    state_ = State::kJson;
    json_scanned_ = json_searched_ = 0;
    json_depth_ = 0;
    json_in_string_ = json_broken_ = false;
    return true;
  }
  const Named function = named(pending_, kFunctionBegin);
  if (function.match == Match::kMaybe && !ended_) return false;
  if (function.match != Match::kYes) {
    not_a_call(0);
    return true;
  }
  begin_call(function.name);
  pending_.erase(0, function.length);
  state_ = State::kParameters;
  return true;
}

bool OutputParser::step_parameters() {
  skip_blanks();
  if (pending_.empty()) return false;
  const Named parameter = named(pending_, kParameterBegin);
  const Match function_end = match(pending_, kFunctionEnd), call_end = match(pending_, kCallEnd);
  if (parameter.match == Match::kYes) {
    begin_value(parameter.name);
    pending_.erase(0, parameter.length);
    state_ = State::kValue;
  } else if (function_end == Match::kYes) {
    end_call();
    pending_.erase(0, kFunctionEnd.size());
    state_ = State::kAfterFunction;
  } else if (call_end == Match::kYes) {  // the function's end was left out
    end_call();
    state_ = State::kAfterFunction;
  } else if (!ended_ && (parameter.match == Match::kMaybe || function_end == Match::kMaybe || call_end == Match::kMaybe)) {
    return false;
  } else {
    end_call("text stands where a parameter or the end of the function belongs");
    state_ = State::kText;
  }
  return true;
}

bool OutputParser::step_value() {
  if (value_begins_) {  // one line end belongs to the tag
    value_begins_ = false;
    if (pending_[0] == '\n') {
      pending_.erase(0, 1);
      return true;
    }
  }
  const auto [at, match] = value_end(pending_);
  if (match == Match::kYes) {
    close_value(at);
    return true;
  }
  if (ended_) return false;
  size_t certain = std::min(at, pending_.size());
  if (certain > 0 && pending_[certain - 1] == '\n') --certain;
  add_value(std::string_view(pending_).substr(0, certain));
  pending_.erase(0, certain);
  return false;
}

bool OutputParser::step_after_function() {
  skip_blanks();
  if (pending_.empty()) return false;
  const Match call_end = match(pending_, kCallEnd);
  const Named function = named(pending_, kFunctionBegin);
  if (call_end == Match::kYes) {
    pending_.erase(0, kCallEnd.size());
  } else if (function.match == Match::kYes) {  // several functions in one pair of tags
    begin_call(function.name);
    pending_.erase(0, function.length);
    state_ = State::kParameters;
    return true;
  } else if (!ended_ && (call_end == Match::kMaybe || function.match == Match::kMaybe)) {
    return false;
  }
  state_ = State::kText;
  return true;
}

// ---- The form in JSON

// Finds the object's end, reading strings as JSON does: a tag in one does not count. In broken JSON the first </tool_call> ends it.
bool OutputParser::step_json() {
  size_t& i = json_scanned_;
  bool whole = false;
  for (; i < pending_.size() && !whole && !json_broken_; ++i) {
    const char c = pending_[i];
    if (json_in_string_) {
      if (c == '\\') {
        if (i + 1 == pending_.size()) return false;
        ++i;
      } else if (c == '"') {
        json_in_string_ = false;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        json_broken_ = true;
      }
    } else if (c == '"') {
      json_in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++json_depth_;
    } else if (c == '}' || c == ']') {
      whole = --json_depth_ == 0;
    } else if (c == '<') {
      json_broken_ = true;
    }
  }
  if (json_broken_) {
    const size_t end = pending_.find(kCallEnd, json_searched_);
    if (end == std::string::npos && !ended_) {
      json_searched_ = pending_.size() - std::min(pending_.size(), kCallEnd.size() - 1);
      return false;
    }
    not_a_call(std::min(end, pending_.size()));
    return true;
  }
  if (!whole) return false;
  const std::string object = pending_.substr(0, i);
  const auto call = parse_ordered_json(object, "a tool call");
  const bool sound = call && call->is_object() && call->contains("name") && (*call)["name"].is_string();
  if (!sound) {
    not_a_call(i);
    return true;
  }
  begin_call((*call)["name"].get<std::string>());
  for (const char* key : {"arguments", "parameters"}) {
    if (!call->contains(key)) continue;
    const OrderedJson& arguments = (*call)[key];
    // Some models write the arguments as the text of an object.
    const auto inner = arguments.is_string() ? parse_ordered_json(arguments.get_ref<const std::string&>(), "arguments") : Result<OrderedJson>(arguments);
    if (inner && inner->is_object()) {
      add_arguments(dump_json(*inner));
      has_arguments_ = true;
      end_call();
    } else if (!arguments.is_null()) {
      add_arguments(OrderedJson{{key, arguments}}.dump());
      has_arguments_ = true;
      end_call("the arguments are no object");
    }
    break;
  }
  if (call_open_) end_call();
  pending_.erase(0, i);
  state_ = State::kAfterJson;
  return true;
}

bool OutputParser::step_after_json() {
  skip_blanks();
  if (pending_.empty()) return false;
  const Match call_end = match(pending_, kCallEnd);
  if (call_end == Match::kMaybe && !ended_) return false;
  if (call_end == Match::kYes) pending_.erase(0, kCallEnd.size());
  state_ = State::kText;
  return true;
}

// ---- The end

void OutputParser::end_now() {
  switch (state_) {
    case State::kReasoning: release_space(OutputDelta::Kind::kReasoning); break;
    case State::kText:
      if (!after_call_) release_space(OutputDelta::Kind::kText);
      break;
    case State::kCallOpen:
    case State::kJson:
      not_a_call(pending_.size());
      release_space(OutputDelta::Kind::kText);
      break;
    case State::kParameters: end_call("the answer ended inside the call"); break;
    case State::kValue:
      if (const size_t at = value_end(pending_).at; at != std::string::npos && pending_.compare(at, kParameterEnd.size(), kParameterEnd) == 0) {
        close_value(at);
        end_call("the answer ended inside the call");
      } else {
        add_value(pending_);
        end_value();
        end_call("the answer ended inside parameter " + key_);
      }
      pending_.clear();
      break;
    case State::kAfterFunction:
    case State::kAfterJson: break;
  }
}

// ---- What is given out

void OutputParser::emit(OutputDelta::Kind kind, std::string_view text) {
  if (text.empty()) return;
  const int call = kind == OutputDelta::Kind::kCallArguments ? static_cast<int>(calls_.size()) - 1 : -1;
  if (kind == OutputDelta::Kind::kReasoning) reasoning_ += text;
  if (kind == OutputDelta::Kind::kText) {
    text_ += text;
    after_call_ = false;
  }
  if (kind == OutputDelta::Kind::kCallArguments) calls_.back().arguments += text;
  if (!deltas_.empty() && deltas_.back().kind == kind && deltas_.back().call == call) deltas_.back().text += text;
  else deltas_.push_back({kind, std::string(text), call});
}

void OutputParser::emit_spaced(OutputDelta::Kind kind, std::string_view text) {
  if (drop_line_ends_) {
    const size_t line_ends = std::min(text.find_first_not_of('\n'), text.size());
    text.remove_prefix(line_ends);
    if (text.empty()) return;
    drop_line_ends_ = false;
  }
  const size_t blanks = blanks_at_end(text);
  if (blanks < text.size()) {
    release_space(kind);
    emit(kind, text.substr(0, text.size() - blanks));
  }
  space_ += text.substr(text.size() - blanks);
}

void OutputParser::release_space(OutputDelta::Kind kind) { emit(kind, std::exchange(space_, {})); }

void OutputParser::begin_call(std::string_view name) {
  opening_.clear();
  space_.clear();
  drop_line_ends_ = false;
  call_open_ = true;
  has_arguments_ = false;
  const int number = static_cast<int>(calls_.size());
  calls_.push_back({.id = options_.id_prefix + std::to_string(number), .name = std::string(name), .arguments = {}, .problem = {}});
  deltas_.push_back({OutputDelta::Kind::kCallBegin, calls_.back().name, number});
}

void OutputParser::add_arguments(std::string_view json) { emit(OutputDelta::Kind::kCallArguments, json); }

void OutputParser::end_call(std::string_view problem) {
  if (calls_.back().arguments.empty()) add_arguments("{}");
  else if (!has_arguments_) add_arguments("}");
  calls_.back().complete = problem.empty();
  calls_.back().problem = problem;
  deltas_.push_back({OutputDelta::Kind::kCallEnd, {}, static_cast<int>(calls_.size()) - 1});
  call_open_ = false;
  after_call_ = true;
}

// The opening and `bytes` of what stands behind it go out as text, without being looked at again.
void OutputParser::not_a_call(size_t bytes) {
  emit_spaced(OutputDelta::Kind::kText, std::exchange(opening_, {}));
  emit_spaced(OutputDelta::Kind::kText, std::string_view(pending_).substr(0, bytes));
  pending_.erase(0, bytes);
  state_ = State::kText;
}

void OutputParser::skip_blanks() { pending_.erase(0, std::min(pending_.find_first_not_of(kBlanks), pending_.size())); }

void OutputParser::begin_value(std::string_view key) {
  key_ = key;
  value_kinds_ = options_.tools.kinds_of(calls_.back().name, key);
  value_.clear();
  value_begins_ = true;
  add_arguments(std::string(calls_.back().arguments.empty() ? "{" : ", ") + '"' + json_escaped(key) + "\": " + (value_kinds_ == kStringKind ? "\"" : ""));
}

void OutputParser::add_value(std::string_view text) {
  if (value_kinds_ == kStringKind) add_arguments(json_escaped(text));
  else value_ += text;
}

// The value ends in front of the tag at `at`, and in front of one line end that belongs to it.
void OutputParser::close_value(size_t at) {
  const size_t line_end = at > 0 && pending_[at - 1] == '\n';
  add_value(std::string_view(pending_).substr(0, at - line_end));
  end_value();
  pending_.erase(0, at + kParameterEnd.size());
  state_ = State::kParameters;
}

void OutputParser::end_value() {
  add_arguments(value_kinds_ == kStringKind ? "\"" : json_of_value(value_, value_kinds_));
}

}  // namespace foretoken
