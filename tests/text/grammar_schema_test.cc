// JSON Schemas as grammars, byte by byte: the instances of tests/data/text/schema_cases.json are read or refused as
// their schema says, in compact and in indented form; schemas that cannot be kept are refused by name.
#include <gtest/gtest.h>

#include "text/data.h"
#include "text/grammar_stacks.h"
#include "text/json_schema.h"
#include "text/schema_cases.h"

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
