// OutputParser: an answer's tokens, as they come, to its parts: reasoning, text and tool calls. How the tokens were grouped never changes the
// parts. It knows no API and no stop strings, and ends no answer.
//
// Reasoning begins and ends with token ids, never with their spellings. Inside it everything is reasoning, calls too: a model that writes a
// call there has not made it. White space in front of a mark and line ends behind it belong to the mark, as templates write them.
//
// A call stands in <tool_call> tags, which are found in the text however tokens cut it, in one of two forms:
//   <function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n...</function>    VALUE as text; ToolSchemas say which are JSON
//   {"name": NAME, "arguments": {...}}
// A parameter ends at the </parameter> that another parameter or the end of the function follows, so that values may hold the tags'
// spellings. What turns out not to be a call is text, tags included. A call that began and does not end as it should is given out with
// `complete` false and a reason, its arguments closed to valid JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/detokenizer.h"
#include "text/tool_schema.h"

namespace foretoken {

struct ToolCall {
  std::string id, name;
  std::string arguments;  // a JSON object as text; a parameter written twice is in it twice
  bool complete = false;
  std::string problem;    // why it is not complete: one clause
};

// What became certain with the last tokens, in the order of the answer.
struct OutputDelta {
  enum class Kind : uint8_t { kReasoning, kText, kCallBegin, kCallArguments, kCallEnd };
  Kind kind = Kind::kText;
  std::string text;  // of kCallBegin: the function's name
  int call = -1;     // which one, from 0
};

struct OutputParserOptions {
  std::optional<TokenId> think_begin, think_end;  // absent: the model has no such tokens
  bool in_reasoning = false;                      // the prompt ends inside an open <think>
  bool calls = false;                             // the request has tools; otherwise tags are text
  ToolSchemas tools;
  std::string id_prefix = "call_";                // of ToolCall::id, the call's number behind it
};

class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);

  // `bytes`: what the token adds to the text, maybe part of a character; empty for one that is not shown. Those of a reasoning
  // mark are used inside a call alone. The result is valid until the next call of add or finish.
  const std::vector<OutputDelta>& add(TokenId id, std::string_view bytes);
  // The end of the answer.
  const std::vector<OutputDelta>& finish();

  // The parts so far.
  const std::string& reasoning() const { return reasoning_; }
  const std::string& text() const { return text_; }
  const std::vector<ToolCall>& calls() const { return calls_; }
  bool in_reasoning() const { return state_ == State::kReasoning; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }  // the marks not counted

 private:
  enum class State : uint8_t { kReasoning, kText, kCallOpen, kParameters, kValue, kAfterFunction, kJson, kAfterJson };

  void take(std::string_view text);
  void parse();
  bool step();  // false: more text is needed
  bool step_reasoning();
  bool step_text();
  bool step_call_open();
  bool step_parameters();
  bool step_value();
  bool step_after_function();
  bool step_json();
  bool step_after_json();
  void end_now();

  void emit(OutputDelta::Kind kind, std::string_view text);
  void emit_spaced(OutputDelta::Kind kind, std::string_view text);  // holds white space at the end back
  void release_space(OutputDelta::Kind kind);
  void begin_call(std::string_view name);
  void add_arguments(std::string_view json);
  void end_call(std::string_view problem = {});
  void not_a_call(size_t bytes);
  void skip_blanks();
  void begin_value(std::string_view key);
  void add_value(std::string_view text);
  void close_value(size_t at);
  void end_value();
  bool outside_calls() const { return state_ == State::kText || state_ == State::kAfterFunction || state_ == State::kAfterJson; }

  OutputParserOptions options_;
  State state_;
  Utf8Stream stream_;
  bool ended_ = false;
  std::string pending_;       // text that is not decided
  std::string space_;         // white space that may belong to the mark behind it
  bool drop_line_ends_ = false;  // those that come next belong to the mark before
  std::string opening_;       // of what may be a call: given out as text when it is none
  // The call under way.
  ValueKinds value_kinds_ = kStringKind;
  std::string key_, value_;
  bool value_begins_ = false, has_arguments_ = false;
  size_t json_scanned_ = 0, json_searched_ = 0;
  int json_depth_ = 0;
  bool json_in_string_ = false, json_broken_ = false;

  std::vector<OutputDelta> deltas_;
  std::string reasoning_, text_;
  std::vector<ToolCall> calls_;
  bool call_open_ = false, after_call_ = false;
  int64_t reasoning_tokens_ = 0;
};

}  // namespace foretoken
