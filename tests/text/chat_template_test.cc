// The template interpreter against transformers' renderings, against Jinja's rules, and against hostile templates.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include "text/shared_files.h"
#include "text/tokenizer.h"

namespace foretoken {
namespace {

// The demo model's own template on every reference conversation: the text of transformers, and, with content refused special
// tokens, the ids of transformers too, for no content here spells one.
TEST(ChatTemplate, EqualsTransformersOnTheOracleConversations) {
  SHARED_FILE_OR_SKIP(tokenizer_json, "models/demo-dense/tokenizer.json");
  SHARED_FILE_OR_SKIP(source, "models/demo-dense/chat_template.jinja");
  SHARED_FILE_OR_SKIP(cases, "oracle/tokenizer_cases.json");
  auto tokenizer = Tokenizer::from_json(tokenizer_json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  auto chat = ChatTemplate::parse(source);
  ASSERT_TRUE(chat.ok()) << chat.error().message;
  size_t thinking = 0, tools = 0, compared = 0;
  const OrderedJson all = parse_or_fail(cases, "tokenizer_cases.json");
  for (const auto& c : all["chat"]) {
    RenderOptions options;
    options.add_generation_prompt = c["add_generation_prompt"];
    options.enable_thinking = c["enable_thinking"].get<bool>();
    auto rendered = chat->render(c["messages"], c["tools"], options);
    ASSERT_TRUE(rendered.ok()) << rendered.error().message;
    EXPECT_EQ(rendered->text, c["text"].get<std::string>());
    EXPECT_FALSE(rendered->untrusted.empty());
    const auto ids = tokenizer->encode(rendered->text, rendered->untrusted);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(*ids, c["ids"].get<std::vector<TokenId>>()) << rendered->text;
    thinking += *options.enable_thinking;
    tools += !c["tools"].is_null();
    ++compared;
  }
  EXPECT_GT(compared, 50u);
  EXPECT_GT(thinking, 5u);
  EXPECT_GT(tools, 5u);
}

}  // namespace
}  // namespace foretoken
