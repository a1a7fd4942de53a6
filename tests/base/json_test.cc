// JSON behind our limits: size and depth are refused before any value is built, and fp32 numbers survive the round trip.
#include "base/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace foretoken {
namespace {

std::string nested(int depth, char open, char close) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open == '{' ? "{\"a\":" : std::string(1, open);
  text += "1";
  return text + std::string(static_cast<size_t>(depth), close);
}

// The size limit is exact, and its error names the source and both sizes.
TEST(Json, SizeLimitIsExact) {
  const std::string text = R"({"a": 1})";
  EXPECT_TRUE(parse_json(text, "x", {.bytes = text.size()}));
  const Result<Json> refused = parse_json(text, "config.json", {.bytes = text.size() - 1});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidFile);
  EXPECT_EQ(refused.error().message, "config.json: JSON of 8 bytes is larger than the limit of 7");
}

// The depth limit is exact for arrays and objects; brackets inside strings and after escapes do not count.
TEST(Json, DepthLimitIsExact) {
  for (const auto& [open, close] : {std::pair('[', ']'), std::pair('{', '}')}) {
    EXPECT_TRUE(parse_json(nested(5, open, close), "x", {.depth = 5}));
    const Result<Json> refused = parse_json(nested(6, open, close), "x", {.depth = 5});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "x: JSON nested deeper than 5 levels");
  }
  EXPECT_TRUE(parse_json(R"(["[[[[", "\"[[[[", "\\", ["]]"]])", "x", {.depth = 2}));
  EXPECT_TRUE(parse_json("[[],[],[[]],[]]", "x", {.depth = 3}));
  EXPECT_FALSE(parse_json("[[],[],[[]],[]]", "x", {.depth = 2}));
}

// Ten million levels neither overflow the stack nor take noticeable memory.
TEST(Json, HostileNestingIsRefused) {
  const std::string text(10'000'000, '[');
  EXPECT_FALSE(parse_json(text, "x"));
  EXPECT_FALSE(parse_ordered_json(text, "x"));
  EXPECT_FALSE(parse_json(std::string(1000, ']') + "[", "x"));
}

// Damaged text is one sentence that says where; no exception crosses the room.
TEST(Json, ErrorsAreSentences) {
  for (const char* text : {"", "{", "{\"a\":}", "[1,]", "nul", "\"\xFF\"", "{\"a\" 1}", "1 2", "\"\\u12\"", "[1e999999]", "\x01"}) {
    const Result<Json> result = parse_json(text, "request body");
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidFile);
    EXPECT_TRUE(result.error().message.starts_with("request body: not valid JSON: ")) << result.error().message;
    EXPECT_EQ(result.error().message.find("json.exception"), std::string::npos) << result.error().message;
  }
  for (const std::string& text : {std::string("1\0", 2), std::string("1\0 2", 4), std::string("\0", 1), std::string("[1]\0]", 5)})
    EXPECT_FALSE(parse_json(text, "x")) << text;  // a zero byte ends nothing
}

// Ordered JSON keeps the order of keys, which templates print; sorted JSON does not.
TEST(Json, OrderIsKeptWhereItMatters) {
  const char* text = R"({"zeta":1,"alpha":{"y":2,"x":3}})";
  EXPECT_EQ(dump_json(*parse_ordered_json(text, "x")), text);
  EXPECT_EQ(parse_json(text, "x")->dump(), R"({"alpha":{"x":3,"y":2},"zeta":1})");
}

// Printing never throws: broken UTF-8 becomes the replacement character, valid text stays as it is.
TEST(Json, DumpReplacesBrokenText) {
  OrderedJson value;
  value["text"] = "caf\xC3\xA9 \xC3( \xFF";
  const std::string dumped = dump_json(value);
  EXPECT_NE(dumped.find("caf\xC3\xA9 "), std::string::npos);
  EXPECT_NE(dumped.find("\xEF\xBF\xBD"), std::string::npos);
  EXPECT_TRUE(parse_json(dumped, "x"));
}

int significant_digits(std::string text) {
  text = text.substr(0, text.find('e'));
  std::erase_if(text, [](char c) { return c < '0' || c > '9'; });
  text.erase(0, text.find_first_not_of('0'));
  return static_cast<int>(text.find_last_not_of('0')) + 1;
}

// Every finite fp32 value printed by json_float reads back with the same bits; most take nine digits or fewer.
TEST(Json, FloatsSurviveTheRoundTrip) {
  std::mt19937 random(3);
  int finite = 0, lengthy = 0;
  for (int i = 0; i < 20'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    ++finite;
    const std::string text = dump_json(json_float(value));
    const double parsed = parse_json(text, "x")->get<double>();
    ASSERT_EQ(std::bit_cast<uint32_t>(static_cast<float>(parsed)), std::bit_cast<uint32_t>(value)) << text;
    lengthy += significant_digits(text) > 9;
  }
  EXPECT_GT(finite, 19'000);
  EXPECT_LT(lengthy, finite / 10) << "the library prints a longer decimal of the same double for one value in twenty";
  EXPECT_EQ(dump_json(json_float(0.1f)), "0.1");
  EXPECT_EQ(dump_json(json_float(-2.5f)), "-2.5");
  EXPECT_TRUE(json_float(std::numeric_limits<float>::infinity()).is_null());
  EXPECT_TRUE(json_float(std::numeric_limits<float>::quiet_NaN()).is_null());
}

}  // namespace
}  // namespace foretoken
