// JSON Schemas as grammars, byte by byte: the instances of tests/data/text/schema_cases.json are read or refused as
// their schema says, in compact and in indented form; schemas that cannot be kept are refused by name.
#include <gtest/gtest.h>

#include "text/data.h"
#include "text/grammar_stacks.h"
#include "text/json_schema.h"
#include "text/schema_cases.h"
#include "text/schema_validator.h"

namespace foretoken {
namespace {

using test::accepts;
using test::schema_cases;
using test::SchemaCase;

// The forms in which models write a value.
std::vector<std::string> forms(const OrderedJson& value) {
  return {dump_json(value), dump_json(value, 2), dump_json(value, 4), test::spaced(value)};
}

TEST(GrammarSchema, ReadsWhatTheSchemaAllowsAndNothingElse) {
  size_t read = 0, stopped = 0;
  for (const SchemaCase& c : schema_cases()) {
    if (c.refused) continue;
    SCOPED_TRACE(c.name);
    const auto grammar = json_schema_grammar(c.schema);
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    for (const OrderedJson& value : c.accept)
      for (const std::string& text : forms(value)) {
        EXPECT_TRUE(accepts(*grammar, text)) << text;
        ++read;
      }
    for (const std::string& text : c.accept_text) EXPECT_TRUE(accepts(*grammar, text)) << text;
    for (const OrderedJson& value : c.reject)
      for (const std::string& text : forms(value)) {
        EXPECT_FALSE(accepts(*grammar, text)) << text;
        ++stopped;
      }
    for (const std::string& text : c.reject_text) EXPECT_FALSE(accepts(*grammar, text)) << text;
    for (const OrderedJson& value : c.narrowed) EXPECT_FALSE(accepts(*grammar, dump_json(value))) << value;
  }
  EXPECT_GT(read, 1500u);
  EXPECT_GT(stopped, 1500u);
}

TEST(GrammarSchema, RefusesByThePointerOfTheKeyword) {
  size_t count = 0;
  for (const SchemaCase& c : schema_cases()) {
    if (!c.refused) continue;
    SCOPED_TRACE(c.name);
    ++count;
    const auto grammar = json_schema_grammar(c.schema);
    ASSERT_FALSE(grammar.ok());
    EXPECT_TRUE(grammar.error().message.starts_with(*c.refused)) << grammar.error().message;
    EXPECT_TRUE(grammar.error().code == ErrorCode::kUsage || grammar.error().code == ErrorCode::kUnsupported);
  }
  EXPECT_GT(count, 50u);
}

// A described member comes once, at its place, in one spelling, and a further member never takes its name, whatever it begins or ends
// with. Further members may repeat each other's names: what a reader keeps of them has the schema's form all the same, because each of them
// has, and because nothing that counts members is followed beside them.
TEST(GrammarSchema, DescribedNamesAreNotRepeated) {
  for (const std::string more : {R"("additionalProperties":true)", R"("additionalProperties":{"type":"integer"})",
                                 R"("patternProperties":{"^n":{"type":"integer"}},"additionalProperties":{"type":"integer"})",
                                 R"("propertyNames":{"maxLength":5},"additionalProperties":{"type":"integer"})"}) {
    SCOPED_TRACE(more);
    const auto schema = *parse_ordered_json(R"({"type":"object","properties":{"name":{"type":"integer"},"é\"n":{"type":"integer"}},"required":["name"],)" + more + "}", "schema");
    const auto grammar = json_schema_grammar(schema);
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    EXPECT_TRUE(accepts(*grammar, R"({"name":1,"é\"n":2,"other":3})"));
    EXPECT_TRUE(accepts(*grammar, R"({"name":1,"other":3})"));
    for (const char* near : {"nam", "names", "Name", "n", "", "é", "n\\\"e"})
      EXPECT_TRUE(accepts(*grammar, R"({"name":1,")" + std::string(near) + R"(":3})")) << near;
    for (const char* text : {R"({"name":1,"name":2})", R"({"name":1,"other":3,"name":2})", R"({"name":1,"é\"n":2,"é\"n":3})",
                             R"({"name":1,"other":3,"é\"n":2})", R"({"other":3,"name":1})", R"({"name":1,"\u006eame":2})",
                             R"({"name":1,"n\u0061me":2})", R"({"\u006eame":1})", R"({"name":1,"\u00e9\"n":2,"é\"n":2})"})
      EXPECT_FALSE(accepts(*grammar, text)) << text;
    const std::string repeated = R"({"name":1,"other":3,"other":4})";
    EXPECT_TRUE(accepts(*grammar, repeated));
    EXPECT_EQ(test::violation(schema, *parse_ordered_json(repeated, "text")), "");
  }
  for (const char* counts : {R"({"type":"object","required":["a"],"maxProperties":2})", R"({"type":"object","minProperties":2})"})
    EXPECT_FALSE(json_schema_grammar(*parse_ordered_json(counts, "schema")).ok()) << counts;
}

// Tens of thousands of values: each of them and nothing else, and more than were listed before are of use (equal ones count once, 1.0 is 1).
TEST(GrammarSchema, ManyValues) {
  OrderedJson values = OrderedJson::array({1, 1.0, true, nullptr, "1"});
  for (int i = 0; i < 30'000; ++i) values.push_back("value " + std::to_string(i * 7919));
  const auto grammar = json_schema_grammar({{"enum", values}});
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  for (size_t i = 0; i < values.size(); i += 97) EXPECT_TRUE(accepts(*grammar, dump_json(values[i]))) << values[i];
  EXPECT_TRUE(accepts(*grammar, dump_json(values.back())));
  for (const char* text : {"2", "\"value\"", "\"value 7918\"", "\"value 79190", "\"value  7919\"", "\"value 237562082\"", "false"}) EXPECT_FALSE(accepts(*grammar, text)) << text;
  const auto fewer = json_schema_grammar({{"enum", values}, {"pattern", "0$"}, {"type", "string"}});
  ASSERT_TRUE(fewer.ok()) << fewer.error().message;
  EXPECT_TRUE(accepts(*fewer, "\"value 79190\""));
  EXPECT_FALSE(accepts(*fewer, "\"value 7919\""));
  EXPECT_FALSE(accepts(*fewer, "1"));
}

// Bounds that leave no length: alone nothing may be written, in a choice the other branch remains.
TEST(GrammarSchema, BoundsTheWrongWayRoundAllowNothing) {
  for (const std::string impossible : {R"({"type":"array","items":{"type":"integer"},"minItems":54,"maxItems":30})",
                                       R"({"type":"array","minItems":3,"maxItems":2})", R"({"type":"string","minLength":54,"maxLength":30})",
                                       R"({"type":"string","pattern":"^a*$","minLength":54,"maxLength":30})",
                                       R"({"type":"number","minimum":2,"maximum":1})"}) {
    const auto alone = json_schema_grammar(*parse_ordered_json(impossible, "schema"));
    ASSERT_FALSE(alone.ok()) << impossible;
    EXPECT_EQ(alone.error().code, ErrorCode::kUsage);
    const auto choice = json_schema_grammar(*parse_ordered_json(R"({"anyOf":[{"type":"null"},)" + impossible + "]}", "schema"));
    ASSERT_TRUE(choice.ok()) << impossible;
    EXPECT_TRUE(accepts(*choice, "null"));
    EXPECT_FALSE(accepts(*choice, "[]"));
    EXPECT_FALSE(accepts(*choice, "\"\""));
  }
}

}  // namespace
}  // namespace foretoken
