// What grammars are made of, each against a slow and obvious reference: products of automata, encodings of characters,
// patterns against PCRE2, ranges of numbers against scaled integers; and tool calls and regular expressions as whole
// texts.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <memory>
#include <random>

#include "text/grammar_vocabulary.h"
#include "text/json_grammar.h"
#include "text/number_automaton.h"
#include "text/regex.h"
#include "text/schema_cases.h"
#include "text/string_format.h"
#include "text/text_grammars.h"
#include "text/tool_grammar.h"
#include "text/unicode.h"

namespace foretoken {
namespace {

using test::accepts;

Dfa found_by(const std::string& pattern, Encoding encoding = Encoding::kText) {
  const auto expression = parse_regex(pattern);
  EXPECT_TRUE(expression.ok()) << pattern;
  auto automaton = search(*expression, encoding);
  EXPECT_TRUE(automaton.ok()) << pattern;
  return *std::move(automaton);
}

// All words over the letters up to a length.
std::vector<std::string> words(const std::string& letters, size_t most) {
  std::vector<std::string> all{""};
  for (size_t begin = 0, length = 0; length < most; ++length) {
    const size_t end = all.size();
    for (size_t i = begin; i < end; ++i)
      for (const char c : letters) all.push_back(all[i] + c);
    begin = end;
  }
  return all;
}

TEST(GrammarParts, ProductsAreIntersectionAndDifference) {
  const char* patterns[] = {"^a*b?$", "ab|ba", "^(a|bb)+$", "^.{2}$", "b", "^$", "^[^a]*$"};
  size_t both_count = 0, only_count = 0;
  for (const char* a : patterns)
    for (const char* b : patterns) {
      const Dfa left = found_by(a), right = found_by(b);
      const Dfa both = *intersect(left, right), only = *subtract(left, right);
      for (const std::string& w : words("abc", 5)) {
        ASSERT_EQ(both.accepts(w), left.accepts(w) && right.accepts(w)) << a << " " << b << " " << w;
        ASSERT_EQ(only.accepts(w), left.accepts(w) && !right.accepts(w)) << a << " " << b << " " << w;
        both_count += both.accepts(w);
        only_count += only.accepts(w);
      }
    }
  EXPECT_GT(both_count, 500u);
  EXPECT_GT(only_count, 500u);
}

TEST(GrammarParts, CharactersAreReadInTheirOwnEncodingAlone) {
  const CodePointSet sets[] = {CodePointSet::all(),
                               {{'a', 'z'}},
                               {{0x7F, 0x80}, {0x7FF, 0x800}, {0xFFFF, 0x10000}},
                               {{0xE0, 0x1F60F}},
                               CodePointSet{{'"', '"'}, {0, 0x1F}}.complement()};
  for (const CodePointSet& set : sets)
    for (const Encoding encoding : {Encoding::kText, Encoding::kJsonString}) {
      const Dfa automaton = *whole(expr::set(set), encoding);
      for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 37) {
        if (c >= 0xD800 && c < 0xE000) continue;
        std::string text;
        append_utf8(c, text);
        ASSERT_EQ(automaton.accepts(encoding == Encoding::kText ? text : json_characters(text)), set.contains(c))
            << static_cast<uint32_t>(c);
      }
    }
  const Dfa any = *whole(expr::set(CodePointSet::all()), Encoding::kText);
  for (const char* bad :
       {"\xED\xA0\x80", "\xC0\x80", "\xE0\x80\x80", "\xF4\x90\x80\x80", "\xFF", "\x80", "\xE6\x97", "ab"})
    EXPECT_FALSE(any.accepts(bad));
}

bool pcre_finds(pcre2_code* code, const std::string& text) {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data.get(), nullptr) >= 0;
}

TEST(GrammarParts, PatternsFindWhatPcre2Finds) {
  const char* patterns[] = {
      "a",         "^a",  "a$",     "^a$",     "^ab*|c$", "a(b|c)*d",  "(^|b)a", "(a|$)", "^(?:a|b){2,3}$", "[^ab]",
      "^[ab]+c?$", "a.b", "^\\w+$", "\\d|\\s", "(a*)*",   "(a|b|)+c",  "^a{0}b", "a{2,}", "^(a?){3}$",      "é|b",
      "^[é-ü]$",   "^.$", "a$b",    "^^a$$",   "()",      "(?<n>a)b?", "x*?y+?", "\\S\\D"};
  std::mt19937 random(7);
  size_t found = 0, asked = 0;
  for (const char* pattern : patterns) {
    int error = 0;
    PCRE2_SIZE at = 0;
    const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_DOLLAR_ENDONLY,
                      &error, &at, nullptr),
        pcre2_code_free);
    ASSERT_TRUE(code) << pattern;
    const Dfa text = found_by(pattern), json = found_by(pattern, Encoding::kJsonString);
    std::vector<std::string> subjects = words("abc", 4);
    const char* letters[] = {"a", "b", "c", "d", "x", "y", "0", " ", "é", "ü", "日", "_", "\"", "\\"};
    for (int i = 0; i < 300; ++i) {
      std::string& s = subjects.emplace_back();
      for (size_t n = random() % 6; n > 0; --n) s += letters[random() % std::size(letters)];
    }
    for (const std::string& s : subjects) {
      const bool want = pcre_finds(code.get(), s);
      ASSERT_EQ(text.accepts(s), want) << pattern << " in '" << s << "'";
      ASSERT_EQ(json.accepts(json_characters(s)), want) << pattern << " in '" << s << "'";
      found += want;
      ++asked;
    }
  }
  EXPECT_GT(found, asked / 5);
  EXPECT_LT(found, asked * 4 / 5);
}

TEST(GrammarParts, PatternsThatAreRefused) {
  for (const char* bad : {"(", ")", "[", "[a", "a**", "*", "[b-a]", "a{2,1}", "\\", "\\q", "(?<n", "(?x)", "[\\d-",
                          "\\u12", "\\xg0", "\\u{110000}", "\\ud800", "\\01"}) {
    const auto parsed = parse_regex(bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_EQ(parsed.error().code, ErrorCode::kUsage) << bad;
  }
  for (const char* refused : {"(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", "(a)\\1", "\\ba", "\\B", "\\p{L}", "a{100001}"}) {
    const auto parsed = parse_regex(refused);
    ASSERT_FALSE(parsed.ok()) << refused;
    EXPECT_EQ(parsed.error().code, ErrorCode::kUnsupported) << refused;
  }
  const auto huge = regex_grammar("(a{1000}){1000}");
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().code, ErrorCode::kUnsupported);
}

// Every number with at most three digits before and behind the point, in thousandths.
TEST(GrammarParts, RangesOfNumbersAreExact) {
  std::mt19937 random(9);
  const auto decimal = [](int thousandths) {
    const int magnitude = std::abs(thousandths);
    Decimal d{thousandths < 0, std::to_string(magnitude / 1000), std::to_string(1000 + magnitude % 1000).substr(1)};
    while (!d.fraction.empty() && d.fraction.back() == '0') d.fraction.pop_back();
    return d;
  };
  size_t inside = 0, outside = 0;
  for (int trial = 0; trial < 60; ++trial) {
    NumberRange range;
    const int scale = trial % 3 == 0 ? 1000 : trial % 3 == 1 ? 100 : 1;
    int low = (static_cast<int>(random() % 1200) - 600) * scale,
        high = (static_cast<int>(random() % 1200) - 600) * scale;
    if (low > high && trial % 7) std::swap(low, high);
    const bool has_low = random() % 4, has_high = random() % 4, open_low = random() % 2, open_high = random() % 2;
    if (has_low) range.lower = {decimal(low), open_low};
    if (has_high) range.upper = {decimal(high), open_high};
    range.integer = random() % 3 == 0;
    if (range.integer) range.multiple = 1 + random() % 12;
    const Dfa automaton = *number_automaton(range);
    const auto expect = [&](const std::string& text, int value, bool written_as_integer) {
      bool want = (!has_low || (open_low ? value > low : value >= low)) &&
                  (!has_high || (open_high ? value < high : value <= high));
      if (range.integer) want = want && written_as_integer && value / 1000 % static_cast<int>(range.multiple) == 0;
      ASSERT_EQ(automaton.accepts(text), want) << text << " trial " << trial;
      if (want == range.contains(decimal(value)) || !written_as_integer) (want ? inside : outside) += 1;
    };
    for (int i = 0; i < 1500; ++i) {
      const int value =
          i < 40 ? (i < 20 ? low : high) + i % 20 - 10 : static_cast<int>(random() % 2'000'000) - 1'000'000;
      const Decimal d = decimal(value);
      if (value == 0 && d.negative) continue;
      const std::string whole = (d.negative ? "-" : "") + d.integer;
      if (d.fraction.empty()) expect(whole, value, true);
      expect(whole + "." + (d.fraction.empty() ? "0" : d.fraction), value, false);
      expect(whole + "." + d.fraction + "00", value, false);
    }
    for (const char* never : {"-0", "-0.0", "00", "01", "-", "", ".5", "5.", "1e1", "+1", "-00.5"})
      ASSERT_FALSE(automaton.accepts(never)) << never;
  }
  EXPECT_GT(inside, 5000u);
  EXPECT_GT(outside, 5000u);
}

TEST(GrammarParts, RegularExpressionsMatchWholeTexts) {
  const Grammar grammar = *regex_grammar("yes|no( way)?");
  for (const char* good : {"yes", "no", "no way"}) EXPECT_TRUE(accepts(grammar, good)) << good;
  for (const char* bad : {"", "y", "yes!", "oh no", "no  way", "yesno"}) EXPECT_FALSE(accepts(grammar, bad)) << bad;
  EXPECT_TRUE(accepts(*regex_grammar("(?:^a|b$)"), "a"));
  EXPECT_FALSE(regex_grammar("a^b").ok());  // nothing matches
}

TEST(GrammarParts, AnyObjectIsAnObject) {
  const Grammar grammar = *json_object_grammar();
  for (const char* good : {"{}", "{\"a\": [1, 2.5e3, null, {\"b\": \"\\u00e9\"}]}", "\n\n{\n  \"a\": {}\n}"})
    EXPECT_TRUE(accepts(grammar, good)) << good;
  for (const char* bad : {"[]", "1", "\"a\"", "{", "{}{}", "{} ", "{\"a\"}", "{1: 2}"})
    EXPECT_FALSE(accepts(grammar, bad)) << bad;
  EXPECT_TRUE(accepts(*json_value_grammar(), "[1]"));
}

std::vector<ToolSchema> tools() {
  return {
      {"search",
       OrderedJson::parse(
           R"({"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer","minimum":1},"mode":{"enum":["fast","deep"]},
             "tags":{"type":"array","items":{"type":"string"}},"code":{"type":"string","pattern":"^[A-Z]{3}$"}},"required":["query"],"additionalProperties":false})")},
      {"now", nullptr},
      {"stop", OrderedJson::parse(R"({"type":"object","properties":{},"additionalProperties":false})")}};
}

TEST(GrammarParts, ToolCallsAsXml) {
  const Grammar grammar = *tool_grammar(tools(), {.most_calls = 2});
  const std::string open = "<tool_call>\n", close = "\n</tool_call>";
  const auto call = [&](const std::string& body) { return open + body + close; };
  const auto parameter = [](const std::string& name, const std::string& value) {
    return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
  };
  const std::string search = "<function=search>\n", end = "</function>";
  for (const std::string& good :
       {call(search + parameter("query", "two\nlines \"quoted\" </parameter> é") + end),
        call(search + parameter("query", "") + parameter("limit", "5") + end),
        call(search + parameter("query", "q") + parameter("mode", "deep") + parameter("tags", "[\"a\", \"b\"]") +
             parameter("code", "ABC") + end),
        call("<function=stop>\n</function>"), call("<function=now>\n" + parameter("zone", "UTC") + end),
        call("<function=now>\n</function>"),
        "\n\n" + call("<function=stop>\n</function>") + "\n" + call("<function=now>\n</function>")})
    EXPECT_TRUE(accepts(grammar, good)) << good;
  // A text in which a reader would see the parameter's end is no value.
  for (const std::string& value : {"</parameter>\n</function>", "</parameter></function>", "a</parameter> \n<parameter=limit>\n5", "a\n</parameter>\n</function>\nb"})
    EXPECT_FALSE(accepts(grammar, call(search + parameter("query", value) + end))) << value;
  for (const std::string& bad :
       {call(search + end), call(search + parameter("limit", "5") + end),
        call(search + parameter("query", "a") + parameter("limit", "0") + end),
        call(search + parameter("query", "a") + parameter("limit", "x") + end),
        call(search + parameter("query", "a") + parameter("mode", "\"deep\"") + end),
        call(search + parameter("query", "a") + parameter("code", "AB") + end),
        call(search + parameter("query", "a") + parameter("other", "b") + end),
        call("<function=stop>\n" + parameter("a", "b") + end), call("<function=find>\n</function>"), std::string(),
        call("<function=stop>\n</function>") + "x",
        call("<function=stop>\n</function>") + "\n" + call("<function=now>\n</function>") + "\n" +
            call("<function=now>\n</function>")})
    EXPECT_FALSE(accepts(grammar, bad)) << bad;
}

// Where strings and other values are allowed, text that would be read as one of the others is not written as a string.
TEST(GrammarParts, TextBesideOtherValuesIsNotMistaken) {
  const Grammar grammar = *tool_grammar(
      {{"f",
        OrderedJson::parse(
            R"({"type":"object","properties":{"a":{"anyOf":[{"type":"string"},{"type":"integer","minimum":10},{"type":"null"}]}}})")}},
      {});
  const auto call = [](const std::string& value) {
    return "<tool_call>\n<function=f>\n<parameter=a>\n" + value + "\n</parameter>\n</function>\n</tool_call>";
  };
  for (const char* good : {"text", "", "\"quoted\"", "[1", "nullify", "12", "null", "é 5", "true"})
    EXPECT_TRUE(accepts(grammar, call(good))) << good;
  for (const char* bad : {"5", " 5", "None", "-x", " null "}) EXPECT_FALSE(accepts(grammar, call(bad))) << bad;
  const Grammar any = *tool_grammar({{"f", OrderedJson::parse(R"({"properties":{"a":{}}})")}}, {});
  for (const char* good : {"text", "{\"b\": [1]}", "3.5", "true"}) EXPECT_TRUE(accepts(any, call(good))) << good;
  for (const char* bad : {"{b", "[1", "True"}) EXPECT_FALSE(accepts(any, call(bad))) << bad;
}

TEST(GrammarParts, ToolCallsAsJson) {
  const Grammar grammar = *tool_grammar(
      tools(), {.form = ToolCallForm::kJson, .open_tag = 7, .close_tag = 300, .least_calls = 0, .text_before = true});
  const auto call = [](const std::string& body) { return token_mark(7) + "\n" + body + "\n" + token_mark(300); };
  for (const std::string& good : {call(R"({"name": "search", "arguments": {"query": "a", "limit": 3}})"),
                                  call(R"({"name": "now", "arguments": {"any": [1]}})"), std::string("plain answer"),
                                  std::string(), "Let me look.\n" + call(R"({"name": "stop", "arguments": {}})")})
    EXPECT_TRUE(accepts(grammar, good)) << good;
  for (const std::string& bad :
       {call(R"({"name": "search", "arguments": {}})"), call(R"({"name": "none", "arguments": {}})"), call("x"),
        std::string("<tool_call>"), call(R"({"name": "stop", "arguments": {"a": 1}})")})
    EXPECT_FALSE(accepts(grammar, bad)) << bad;
}

TEST(GrammarParts, ToolsThatAreRefused) {
  const auto message = [](std::vector<ToolSchema> list, ToolGrammarOptions options = {}) {
    const auto grammar = tool_grammar(list, options);
    return grammar.ok() ? std::string("accepted") : grammar.error().message;
  };
  EXPECT_TRUE(message({}).starts_with("tools: "));
  EXPECT_TRUE(message({{"a>b", nullptr}}).starts_with("tool 'a>b': "));
  EXPECT_TRUE(message({{"a", OrderedJson::parse(R"({"type":"object","properties":{"x":{"not":{}}}})")}})
                  .starts_with("tool 'a': #/properties/x/not: "));
  // In tags nothing counts parameters or reads their names, and what is not followed must not be accepted.
  for (const char* schema : {R"({"type":"object","propertyNames":{"enum":["k"]}})", R"({"type":"object","minProperties":1})", R"({"type":"object","maxProperties":2})",
                             R"({"type":"object","properties":{"a":{},"b":{}},"maxProperties":1})"}) {
    EXPECT_NE(message({{"a", OrderedJson::parse(schema)}}).find("no XML form"), std::string::npos) << schema;
    const bool counted = std::string(schema).find("max") == std::string::npos;  // what JSON's grammar follows
    EXPECT_EQ(message({{"a", OrderedJson::parse(schema)}}, {.form = ToolCallForm::kJson}) == "accepted", counted) << schema;
  }
  EXPECT_EQ(message({{"a", OrderedJson::parse(R"({"properties":{"a":{},"b":{}},"required":["a"],"minProperties":1,"maxProperties":2})")}}), "accepted");
  EXPECT_TRUE(message({{"a", OrderedJson::parse(R"({"properties":{"x":{"items":{"uniqueItems":true}}}})")}},
                      {.form = ToolCallForm::kJson})
                  .starts_with("tool 'a': #/properties/x/items/uniqueItems: "));
}

}  // namespace
}  // namespace foretoken
