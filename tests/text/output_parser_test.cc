// Answers of models to their parts. Each case is parsed as one token, byte by byte, and cut at random: the parts, and the order in which they
// were given out, must not depend on it. Calls that the templates of the families write are read back as they were.
#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "text/chat_template.h"
#include "text/data.h"
#include "text/unicode.h"

namespace foretoken {
namespace {

constexpr TokenId kThink = 1000, kThinkEnd = 1001, kPlain = 1;

Json weather_tools() {
  return Json::parse(R"([
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
      "city": {"type": "string"}, "days": {"type": "integer"}, "scale": {"type": "number"}, "exact": {"type": "boolean"},
      "list": {"type": "array", "items": {"type": "string"}}, "options": {"type": "object"},
      "maybe": {"type": ["string", "null"]}, "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "free": {},
      "unit": {"enum": ["c", "f"]}, "point": {"$ref": "#/$defs/point"}}, "$defs": {"point": {"type": "array"}}}}},
    {"name": "bare", "input_schema": {"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}}}])");
}

OutputParserOptions options(bool in_reasoning = false) {
  return {.think_begin = kThink, .think_end = kThinkEnd, .in_reasoning = in_reasoning, .calls = true, .tools = ToolSchemas(weather_tools())};
}

struct Parts {
  std::string reasoning, text;
  std::vector<ToolCall> calls;
  std::string order;  // deltas, neighbours of one kind joined
};

std::string shown(const Parts& p) {
  std::string all = "reasoning [" + p.reasoning + "] text [" + p.text + "]";
  for (const ToolCall& call : p.calls) all += " call " + call.id + " " + call.name + " " + call.arguments + (call.complete ? "" : " (" + call.problem + ")");
  return all + " order " + p.order;
}

// The answer's pieces: text, or \x01 and \x02 for the marks of reasoning.
Parts parse(std::string_view answer, OutputParserOptions with, const std::function<size_t()>& piece_bytes) {
  OutputParser parser(std::move(with));
  Parts parts;
  OutputDelta::Kind last{};
  int last_call = -2;
  const auto take = [&](const std::vector<OutputDelta>& deltas) {
    for (const OutputDelta& delta : deltas) {
      const bool joined = !parts.order.empty() && delta.kind == last && delta.call == last_call && delta.kind != OutputDelta::Kind::kCallBegin;
      if (!joined) parts.order += "|" + std::string(1, "RTBAE"[static_cast<int>(delta.kind)]) + (delta.call >= 0 ? std::to_string(delta.call) : "") + ":";
      parts.order += delta.text;
      last = delta.kind, last_call = delta.call;
      EXPECT_TRUE(is_valid_utf8(delta.text));
      EXPECT_FALSE(delta.text.empty() && delta.kind != OutputDelta::Kind::kCallEnd);
    }
  };
  for (size_t at = 0; at < answer.size();) {
    if (answer[at] == 1 || answer[at] == 2) {
      take(parser.add(answer[at] == 1 ? kThink : kThinkEnd, answer[at] == 1 ? "<think>" : "</think>"));
      ++at;
      continue;
    }
    const size_t mark = std::min(answer.find_first_of("\x01\x02", at), answer.size());
    const size_t bytes = std::min(std::max<size_t>(1, piece_bytes()), mark - at);
    take(parser.add(kPlain, answer.substr(at, bytes)));
    at += bytes;
  }
  take(parser.finish());
  parts.reasoning = parser.reasoning(), parts.text = parser.text(), parts.calls = parser.calls();
  return parts;
}

// The parts, the same for every cut.
Parts parsed(std::string_view answer, const OutputParserOptions& with = options()) {
  const Parts whole = parse(answer, with, [] { return size_t{1} << 20; });
  EXPECT_EQ(shown(parse(answer, with, [] { return size_t{1}; })), shown(whole)) << answer;
  std::mt19937 random(static_cast<uint32_t>(answer.size()));
  for (int trial = 0; trial < 10; ++trial) EXPECT_EQ(shown(parse(answer, with, [&] { return size_t{1 + random() % 13}; })), shown(whole)) << answer;
  for (const ToolCall& call : whole.calls) EXPECT_TRUE(Json::accept(call.arguments)) << call.arguments;
  return whole;
}

Json arguments_of(const Parts& parts, size_t call = 0) {
  EXPECT_LT(call, parts.calls.size()) << shown(parts);
  return call < parts.calls.size() ? Json::parse(parts.calls[call].arguments) : Json();
}

// ---- Reasoning

TEST(OutputParser, ReasoningIsSplitOnTokenIds) {
  const Parts parts = parsed("Let me see.\n\x02\n\nThe answer is 4.", options(true));
  EXPECT_EQ(parts.reasoning, "Let me see.");
  EXPECT_EQ(parts.text, "The answer is 4.");
  EXPECT_EQ(parts.order, "|R:Let me see.|T:The answer is 4.");
}

TEST(OutputParser, SpellingsOfTheMarksAreText) {
  EXPECT_EQ(parsed("say <think> and </think>").text, "say <think> and </think>");
  EXPECT_EQ(parsed("not </think> yet\x02" "done", options(true)).reasoning, "not </think> yet");
}

TEST(OutputParser, AModelMayOpenAndReopenReasoning) {
  const Parts parts = parsed("\x01\nfirst\n\x02\n\none \x01second\x02two");
  EXPECT_EQ(parts.reasoning, "firstsecond");
  EXPECT_EQ(parts.text, "onetwo");
  EXPECT_EQ(parts.order, "|R:first|T:one|R:second|T:two");
}

TEST(OutputParser, AnEndWithoutABeginningEndsNothing) { EXPECT_EQ(parsed("a\x02" "b").text, "ab"); }

TEST(OutputParser, AnAnswerThatEndsInReasoningKeepsItAll) {
  const Parts parts = parsed("thinking <tool_call>\n", options(true));
  EXPECT_EQ(parts.reasoning, "thinking <tool_call>\n");
  EXPECT_EQ(parts.text, "");
}

TEST(OutputParser, ReasoningTokensAreCountedWithoutTheMarks) {
  OutputParser parser(options());
  parser.add(kThink, "<think>");
  for (int i = 0; i < 5; ++i) parser.add(kPlain, "x");
  parser.add(kThinkEnd, "</think>");
  parser.add(kPlain, "y");
  EXPECT_EQ(parser.reasoning_tokens(), 5);
}

TEST(OutputParser, CharactersThatTokensCutAreWhole) {
  const Parts parts = parsed("naïve ☃ 🚀\x01π\x02☃");
  EXPECT_EQ(parts.text, "naïve ☃ 🚀☃");
  EXPECT_EQ(parts.reasoning, "π");
  EXPECT_EQ(parsed("a\xe2\x98").text, "a\xef\xbf\xbd");
}

// ---- Text

TEST(OutputParser, TextThatOnlyLooksLikeATagComesOutWhole) {
  for (const char* text : {"<", "a < b", "<tool", "<tool_cal>", "<<tool_call", "x <tool_call", "</tool_call>", "<function=f>\n</function>", " \n ", "line\n"})
    EXPECT_EQ(parsed(text).text, text);
}

TEST(OutputParser, TextIsGivenOutAsSoonAsItIsCertain) {
  OutputParser parser(options());
  EXPECT_EQ(parser.add(kPlain, "Hello").at(0).text, "Hello");
  EXPECT_TRUE(parser.add(kPlain, " \n").empty());
  EXPECT_EQ(parser.add(kPlain, "a <tool").at(0).text, " \na");
  EXPECT_EQ(parser.add(kPlain, "box>").at(0).text, " <toolbox>");
}

TEST(OutputParser, WithoutToolsTagsAreText) {
  OutputParserOptions plain = options();
  plain.calls = false;
  const std::string text = "<tool_call>\n<function=weather>\n</function>\n</tool_call>";
  EXPECT_EQ(parsed(text, plain).text, text);
}

// ---- Calls with tags

TEST(OutputParser, ACallIsRead) {
  const Parts parts = parsed(
      "I will look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>");
  EXPECT_EQ(parts.text, "I will look.");
  ASSERT_EQ(parts.calls.size(), 1u);
  EXPECT_EQ(parts.calls[0].id, "call_0");
  EXPECT_EQ(parts.calls[0].name, "weather");
  EXPECT_TRUE(parts.calls[0].complete);
  EXPECT_EQ(parts.calls[0].arguments, R"({"city": "Oslo", "days": 3})");
  EXPECT_EQ(parts.order, R"(|T:I will look.|B0:weather|A0:{"city": "Oslo", "days": 3}|E0:)");
}

TEST(OutputParser, SeveralCallsOneBehindTheOther) {
  const std::string one = "<tool_call>\n<function=weather>\n<parameter=days>\n1\n</parameter>\n</function>\n</tool_call>";
  const Parts parts = parsed("a\n" + one + "\n" + one + "\n\nand text\n" + one + "\n");
  EXPECT_EQ(parts.calls.size(), 3u);
  EXPECT_EQ(parts.calls[2].id, "call_2");
  EXPECT_EQ(parts.text, "a\n\nand text");
}

TEST(OutputParser, SeveralFunctionsInOnePairOfTags) {
  const Parts parts = parsed("<tool_call>\n<function=a>\n</function>\n<function=b>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>");
  ASSERT_EQ(parts.calls.size(), 2u);
  EXPECT_EQ(parts.calls[0].arguments, "{}");
  EXPECT_EQ(parts.calls[1].arguments, R"({"x": "1"})");
  EXPECT_TRUE(parts.calls[0].complete && parts.calls[1].complete);
}

TEST(OutputParser, ValuesHaveTheKindsOfTheirSchemas) {
  const auto value = [&](const std::string& key, const std::string& text, const std::string& function = "weather") {
    return arguments_of(parsed("<tool_call>\n<function=" + function + ">\n<parameter=" + key + ">\n" + text + "\n</parameter>\n</function>\n</tool_call>"))[key];
  };
  EXPECT_EQ(value("days", "-12"), Json(-12));
  EXPECT_EQ(value("days", " 7 "), Json(7));
  EXPECT_EQ(value("days", "7.0"), Json(7.0));
  EXPECT_EQ(value("days", "7.5"), Json("7.5"));          // not an integer: kept as it is
  EXPECT_EQ(value("days", "many"), Json("many"));
  EXPECT_EQ(value("days", std::string("1\0", 2)), Json(std::string("1\0", 2)));
  EXPECT_EQ(value("days", "\xEF\xBB\xBF" "1"), Json("\xEF\xBB\xBF" "1"));
  EXPECT_EQ(value("days", ""), Json(""));
  EXPECT_EQ(value("scale", "2"), Json(2));
  EXPECT_EQ(value("scale", "-1.5e3"), Json(-1500.0));
  EXPECT_EQ(value("exact", "true"), Json(true));
  EXPECT_EQ(value("exact", "False"), Json(false));
  EXPECT_EQ(value("exact", "yes"), Json("yes"));
  EXPECT_EQ(value("list", "[\"a\",\n \"b\"]"), Json({"a", "b"}));
  EXPECT_EQ(value("list", "[1, 2"), Json("[1, 2"));
  EXPECT_EQ(value("options", "{\"deep\": {\"x\": [null]}}"), Json::parse(R"({"deep": {"x": [null]}})"));
  EXPECT_EQ(value("city", "5"), Json("5"));
  EXPECT_EQ(value("city", "\"quoted\""), Json("\"quoted\""));
  EXPECT_EQ(value("city", "{\"a\": 1}"), Json("{\"a\": 1}"));
  EXPECT_EQ(value("maybe", "null"), Json());
  EXPECT_EQ(value("maybe", "None"), Json());
  EXPECT_EQ(value("maybe", "nothing"), Json("nothing"));
  EXPECT_EQ(value("maybe", "5"), Json("5"));
  EXPECT_EQ(value("either", "5"), Json(5));
  EXPECT_EQ(value("either", "five"), Json("five"));
  EXPECT_EQ(value("free", "[1]"), Json({1}));
  EXPECT_EQ(value("free", "plain words"), Json("plain words"));
  EXPECT_EQ(value("unit", "c"), Json("c"));
  EXPECT_EQ(value("point", "[1, 2]"), Json({1, 2}));
  EXPECT_EQ(value("unknown", "5"), Json("5"));
  EXPECT_EQ(value("anything", "5", "bare"), Json(5));
  EXPECT_EQ(value("anything", "5", "nobody_knows_it"), Json("5"));
}

TEST(OutputParser, DigitsOfNumbersAreKept) {
  const Parts parts = parsed("<tool_call><function=weather><parameter=days>123456789012345678901234567890</parameter><parameter=scale>0.10</parameter></function>");
  EXPECT_EQ(parts.calls.at(0).arguments, R"({"days": 123456789012345678901234567890, "scale": 0.10})");
}

TEST(OutputParser, StringsAreVerbatimButForOneLineEndOnEachSide) {
  const auto city = [&](const std::string& between) {
    return arguments_of(parsed("<tool_call><function=weather><parameter=city>" + between + "</parameter></function></tool_call>"))["city"].get<std::string>();
  };
  EXPECT_EQ(city("\nOslo\n"), "Oslo");
  EXPECT_EQ(city("Oslo"), "Oslo");
  EXPECT_EQ(city("\n\n  two\nlines \n\n"), "\n  two\nlines \n");
  EXPECT_EQ(city("\n\n"), "");
  EXPECT_EQ(city("\n"), "");
  EXPECT_EQ(city(""), "");
  EXPECT_EQ(city("\n\"\\\t\r\x7f\x1b ☃ </p> <parameter=city \n"), "\"\\\t\r\x7f\x1b ☃ </p> <parameter=city ");
}

// A file about this very format: only the tag that the format goes on behind ends the value.
TEST(OutputParser, ValuesMayHoldTheSpellingsOfTags) {
  const std::string text = "a </parameter> b\n</parameter>\nc <tool_call> </tool_call> </function> <parameter=x> </parameter>\n";
  const Parts parts = parsed("<tool_call>\n<function=weather>\n<parameter=city>\n" + text + "\n</parameter>\n<parameter=days>\n1\n</parameter>\n</function>\n</tool_call>");
  EXPECT_EQ(arguments_of(parts), Json({{"city", text}, {"days", 1}}));
}

TEST(OutputParser, StringsAreStreamedAndOtherKindsComeWhole) {
  OutputParser parser(options());
  parser.add(kPlain, "<tool_call><function=weather><parameter=city>\nLong");
  EXPECT_EQ(parser.calls().at(0).arguments, R"({"city": "Long)");
  parser.add(kPlain, " text\n");
  EXPECT_EQ(parser.calls().at(0).arguments, R"({"city": "Long text)");
  parser.add(kPlain, "more</par");
  EXPECT_EQ(parser.calls().at(0).arguments, R"({"city": "Long text\nmore)");
  parser.add(kPlain, "ameter><parameter=list>[1,");
  EXPECT_EQ(parser.calls().at(0).arguments, R"({"city": "Long text\nmore", "list": )");
  parser.add(kPlain, "2]</parameter></function>");
  EXPECT_EQ(parser.calls().at(0).arguments, R"({"city": "Long text\nmore", "list": [1,2]})");
  EXPECT_TRUE(parser.calls().at(0).complete);
}

TEST(OutputParser, CallsInsideReasoningAreReasoning) {
  const std::string call = "<tool_call>\n<function=weather>\n</function>\n</tool_call>";
  const Parts parts = parsed("perhaps " + call + "\x02\n\n" + call, options(true));
  EXPECT_EQ(parts.reasoning, "perhaps " + call);
  EXPECT_EQ(parts.calls.size(), 1u);
  EXPECT_EQ(parts.text, "");
}

// ---- Calls in JSON

TEST(OutputParser, ACallInJsonIsRead) {
  const Parts parts = parsed("Now:\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"</tool_call> \\\" }\", \"days\": 3}}\n</tool_call>\n"
                             "<tool_call>{\"arguments\": \"{\\\"a\\\": 1}\", \"name\": \"other\"}</tool_call><tool_call>{\"name\": \"none\"}</tool_call>");
  EXPECT_EQ(parts.text, "Now:");
  ASSERT_EQ(parts.calls.size(), 3u) << shown(parts);
  EXPECT_EQ(arguments_of(parts, 0), Json({{"city", "</tool_call> \" }"}, {"days", 3}}));
  EXPECT_EQ(arguments_of(parts, 1), Json({{"a", 1}}));
  EXPECT_EQ(arguments_of(parts, 2), Json::object());
  for (const ToolCall& call : parts.calls) EXPECT_TRUE(call.complete);
}

TEST(OutputParser, ArgumentsThatAreNoObjectMakeACallIncomplete) {
  const Parts parts = parsed("<tool_call>{\"name\": \"weather\", \"arguments\": [1]}</tool_call>");
  ASSERT_EQ(parts.calls.size(), 1u);
  EXPECT_FALSE(parts.calls[0].complete);
  EXPECT_EQ(arguments_of(parts), Json({{"arguments", {1}}}));
}

TEST(OutputParser, WhatIsNoCallIsText) {
  for (const char* text : {"<tool_call>\nweather(city)\n</tool_call>", "<tool_call>{\"name\": weather}</tool_call>", "<tool_call>{\"no\": 1}</tool_call>", "<tool_call>",
                           "<tool_call>\n<func", "<tool_call>\n<function=a\nb>", "<tool_call>{\"name\": \"x\"", "<tool_call>{\"name\": \"x\ny\"}</tool_call> more",
                           "a <tool_call>\n <tool_call>", "<tool_call>[1]</tool_call>", "<tool_call>{}<b>"}) {
    const Parts parts = parsed(text);
    EXPECT_EQ(parts.text, text);
    EXPECT_TRUE(parts.calls.empty());
  }
}

TEST(OutputParser, ACallBehindWhatIsNoneIsFound) {
  const std::string call = "<tool_call><function=weather></function></tool_call>";
  for (const std::string before : {"<tool_call>{}", "<tool_call>{broken}</tool_call>", "<tool_call> nothing", "<tool_call>"}) {
    const Parts parts = parsed(before + call);
    EXPECT_EQ(parts.text, before);
    EXPECT_EQ(parts.calls.size(), 1u) << before;
  }
}

// ---- Calls that do not end as they should

TEST(OutputParser, UnfinishedCallsAreGivenOutWithAReason) {
  const std::string begin = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo";
  struct Case {
    std::string answer, city;
    const char* problem;
  };
  for (const Case& c : {Case{begin, "Oslo", "the answer ended inside parameter city"}, Case{begin + "\n</para", "Oslo\n</para", "the answer ended inside parameter city"},
                        Case{begin + "\n</parameter>", "Oslo", "the answer ended inside the call"}, Case{begin + "\n</parameter>\n</func", "Oslo", "the answer ended inside the call"},
                        Case{begin + " </parameter> x", "Oslo </parameter> x", "the answer ended inside parameter city"}}) {
    const Parts parts = parsed(c.answer);
    ASSERT_EQ(parts.calls.size(), 1u) << c.answer;
    EXPECT_FALSE(parts.calls[0].complete);
    EXPECT_EQ(parts.calls[0].problem, c.problem) << c.answer;
    EXPECT_EQ(arguments_of(parts), Json({{"city", c.city}}));
  }
  EXPECT_EQ(parsed("<tool_call><function=weather>").calls.at(0).arguments, "{}");
  EXPECT_FALSE(parsed("<tool_call><function=weather>").calls.at(0).complete);
}

TEST(OutputParser, AFunctionThatEndedIsACallWhateverFollows) {
  for (const std::string end : {"</function>", "</function>\n", "</function>\n</tool_call>", "</function></tool", "</function> text", "</tool_call>"}) {
    const Parts parts = parsed("<tool_call><function=weather><parameter=days>1</parameter>" + end);
    ASSERT_EQ(parts.calls.size(), 1u) << end;
    EXPECT_TRUE(parts.calls[0].complete) << end;
    EXPECT_EQ(arguments_of(parts), Json({{"days", 1}}));
  }
  EXPECT_EQ(parsed("<tool_call><function=weather></function> text").text, "text");
}

TEST(OutputParser, TextInsideACallEndsItAndIsKept) {
  const Parts parts = parsed("<tool_call>\n<function=weather>\n<parameter=days>\n1\n</parameter>\nwell, <b>\n</function>\n</tool_call>");
  ASSERT_EQ(parts.calls.size(), 1u) << shown(parts);
  EXPECT_FALSE(parts.calls[0].complete);
}

// ---- Templates

// Random calls through the families' templates and back: names, values and their kinds are those that went in.
TEST(OutputParser, CallsOfTheTemplatesAreReadBack) {
  std::mt19937 random(7);
  const auto upto = [&](size_t most) { return random() % (most + 1); };
  const std::vector<std::string> texts = {"Oslo", "", "\n", " x ", "a\nb\n", "</parameter>", "</parameter>\n", "<tool_call>", "\"", "\\n", "☃", "5", "null", "{\"a\": 1}", "</think>", "<|im_end|>"};
  int calls = 0;
  for (const char* name : {"family35.jinja", "family38.jinja"}) {
    const auto parsed_template = ChatTemplate::parse(read_data(name));
    ASSERT_TRUE(parsed_template) << parsed_template.error().message;
    for (int trial = 0; trial < 100; ++trial) {
      Json wanted = Json::array();
      OrderedJson list = OrderedJson::array();
      for (size_t i = 0; i <= upto(2); ++i) {
        Json arguments = Json::object();
        if (upto(1)) arguments["city"] = texts[upto(texts.size() - 1)] + texts[upto(texts.size() - 1)];
        if (upto(1)) arguments["days"] = static_cast<int>(upto(1000)) - 500;
        if (upto(1)) arguments["scale"] = static_cast<double>(upto(1000)) / 8;
        if (upto(1)) arguments["exact"] = upto(1) == 1;
        if (upto(1)) arguments["list"] = {texts[upto(texts.size() - 1)], texts[upto(texts.size() - 1)]};
        if (upto(1)) arguments["options"] = {{texts[upto(texts.size() - 1)], {1, nullptr}}};
        if (upto(1)) arguments["unknown"] = "some " + texts[upto(texts.size() - 1)];
        wanted.push_back(arguments);
        list.push_back({{"type", "function"}, {"function", {{"name", "weather"}, {"arguments", OrderedJson::parse(arguments.dump())}}}});
      }
      const OrderedJson messages = {{{"role", "user"}, {"content", "?"}},
                                    {{"role", "assistant"}, {"content", "Well."}, {"reasoning_content", "Hm."}, {"tool_calls", list}}};
      const auto rendered = parsed_template->render(messages, OrderedJson(), {.add_generation_prompt = false});
      ASSERT_TRUE(rendered) << rendered.error().message;
      std::string answer = rendered->text;
      answer = answer.substr(answer.find("<think>\n") + 8);
      const std::string close = "\n</think>\n\n", end = "<|im_end|>\n";
      answer = answer.substr(0, answer.rfind(end));
      const size_t at = answer.find(close);
      answer.replace(at, close.size(), "\n\x02\n\n");
      const Parts parts = parsed(answer, options(true));
      EXPECT_EQ(parts.reasoning, "Hm.");
      EXPECT_EQ(parts.text, "Well.");
      ASSERT_EQ(parts.calls.size(), wanted.size()) << answer;
      for (size_t i = 0; i < wanted.size(); ++i) {
        ++calls;
        EXPECT_TRUE(parts.calls[i].complete) << answer;
        EXPECT_EQ(arguments_of(parts, i), wanted[i]) << answer;
      }
    }
  }
  EXPECT_GT(calls, 300);
}

// Random sequences of everything that an answer may hold, sound or not: every cut gives the same parts, arguments are JSON, and no text is
// lost: what was not consumed as tags and values is there.
TEST(OutputParser, EveryCutOfRandomAnswersGivesTheSameParts) {
  const std::vector<std::string> pieces = {"<tool_call>", "</tool_call>", "<function=", "weather", ">", "<function=weather>", "</function>", "<parameter=", "city", "days",
                                           "<parameter=city>", "<parameter=days>", "</parameter>", "\n", " ", "text", "{", "}", "\"name\": \"weather\"", ",", "\"arguments\": {}", "\"", "\\", "<",
                                           "1", "[2]", "\x01", "\x02", "☃", "\xe2", "{\"name\": \"weather\", \"arguments\": {\"city\": \"x\"}}"};
  int calls = 0, incomplete = 0, texts = 0;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    std::string answer;
    if (random() % 2) answer = "<tool_call>\n<function=weather>\n";
    const size_t count = random() % 24;
    for (size_t i = 0; i < count; ++i) answer += pieces[random() % pieces.size()];
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Parts parts = parsed(answer, options(random() % 4 == 0));
    for (const ToolCall& call : parts.calls) ++calls, incomplete += !call.complete;
    texts += !parts.text.empty();
  }
  EXPECT_GT(calls, 600);
  EXPECT_GT(incomplete, 130);
  EXPECT_LT(incomplete, calls);
  EXPECT_GT(texts, 600);
}

TEST(ToolSchema, HostileSchemasEnd) {
  Json schema = Json::parse(R"({"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "string"}], "allOf": [{"$ref": "#/anyOf/0"}, {"$ref": "#/nowhere"}]})");
  EXPECT_NE(kinds_of_schema(schema, schema), 0);
  EXPECT_EQ(kinds_of_schema(Json::parse(R"({"type": "integer", "enum": ["a"]})"), Json()), kStringKind);
  EXPECT_EQ(kinds_of_schema(Json::parse(R"({"type": ["integer", 5, "tensor"]})"), Json()), kAnyKind);
  EXPECT_EQ(kinds_of_schema(Json::parse(R"({"allOf": [{"type": ["integer", "null"]}, {"type": ["integer", "string"]}]})"), Json()), kIntegerKind);
  EXPECT_EQ(kinds_of_schema(Json(5), Json()), kAnyKind);
  EXPECT_TRUE(ToolSchemas(Json::parse(R"([5, {"name": 5}, {"function": 7}, "x"])")).empty());
}

}  // namespace
}  // namespace foretoken
