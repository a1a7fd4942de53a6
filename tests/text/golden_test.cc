// The files that tests/data/text/make_golden.py writes: texts of Jinja2 and ids of @huggingface/tokenizers, for
// templates, conversations and tokenizers of our own. They need nothing outside the repository but the demo model's
// tokenizer.
#include <gtest/gtest.h>

#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "support/shared.h"
#include "text/data.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace foretoken {
namespace {

Tokenizer small_tokenizer() {
  auto tokenizer = Tokenizer::from_json(read_data("small_tokenizer.json"));
  EXPECT_TRUE(tokenizer.ok()) << (tokenizer.ok() ? "" : tokenizer.error().message);
  return *std::move(tokenizer);
}

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

void expect_ids(const Tokenizer& tokenizer, const OrderedJson& texts, const OrderedJson& ids) {
  ASSERT_EQ(texts.size(), ids.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto got = tokenizer.encode(texts[i].get<std::string>());
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(*got, ids[i].get<std::vector<TokenId>>()) << texts[i];
  }
}

// Torture strings through a tokenizer of a few hundred tokens: equal to Hugging Face's ids.
TEST(Golden, SmallTokenizerEncodesAsHuggingFace) {
  const OrderedJson golden = parse_or_fail(read_data("golden_encode.json"), "golden_encode.json");
  expect_ids(small_tokenizer(), golden["texts"], golden["small"]);
}

TEST(Golden, DemoTokenizerEncodesAsHuggingFace) {
  FORETOKEN_NEEDS_SHARED("models/demo-dense/tokenizer.json");
  const std::string tokenizer_json = test::read_shared("models/demo-dense/tokenizer.json");
  auto tokenizer = Tokenizer::from_json(tokenizer_json);
  ASSERT_TRUE(tokenizer.ok());
  const OrderedJson golden = parse_or_fail(read_data("golden_encode.json"), "golden_encode.json");
  expect_ids(*tokenizer, golden["texts"], golden["demo"]);
}

// Malformed bytes become U+FFFD where Python puts it: in one piece, and through the stream at every cut.
TEST(Golden, RepairsMalformedUtf8AsPython) {
  const OrderedJson golden = parse_or_fail(read_data("golden_encode.json"), "golden_encode.json");
  const Tokenizer tokenizer = small_tokenizer();
  size_t changed = 0;
  for (const auto& pair : golden["repairs"]) {
    const std::string bytes = from_hex(pair[0]), want = pair[1];
    EXPECT_EQ(repair_utf8(bytes), want) << pair[0];
    changed += bytes != want;
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      Utf8Stream stream;
      std::string text = stream.add(std::string_view(bytes).substr(0, cut));
      EXPECT_TRUE(is_valid_utf8(text));
      text += stream.add(std::string_view(bytes).substr(cut));
      EXPECT_TRUE(is_valid_utf8(text));
      text += stream.flush();
      EXPECT_EQ(text, want) << pair[0] << " cut at " << cut;
    }
    EXPECT_EQ(*tokenizer.encode(bytes), *tokenizer.encode(want)) << pair[0];
  }
  EXPECT_GT(changed, 200u);
}

// NFC equals Python's unicodedata on marks out of order, Hangul, exclusions and singletons.
TEST(Golden, ComposesAsPython) {
  const OrderedJson golden = parse_or_fail(read_data("golden_encode.json"), "golden_encode.json");
  size_t changed = 0;
  for (const auto& pair : golden["compositions"]) {
    const std::string text = pair[0], want = pair[1];
    const Rewritten got = rewrite_nfc(text);
    EXPECT_EQ(got.text, want) << pair[0];
    EXPECT_EQ(got.changed.empty(), text == want) << pair[0];
    EXPECT_TRUE(!is_surely_nfc(text) || text == want) << pair[0];
    EXPECT_TRUE(rewrite_nfc(want).changed.empty()) << pair[0];
    changed += text != want;
  }
  EXPECT_GT(changed, 100u);
}

// Conversations with tools, reasoning, images and forged turns through two templates of the family's shape: the text of
// Jinja2, and an error where Jinja2 fails.
TEST(Golden, FamilyTemplatesRenderAsJinja) {
  const OrderedJson golden = parse_or_fail(read_data("golden_templates.json"), "golden_templates.json");
  const Tokenizer tokenizer = small_tokenizer();
  size_t rendered_count = 0, failed_count = 0;
  for (const auto& c : golden["cases"]) {
    auto chat = ChatTemplate::parse(read_data(c["template"]));
    ASSERT_TRUE(chat.ok()) << chat.error().message;
    OrderedJson tools;
    if (!c["tools"].is_null()) {
      tools = OrderedJson::array();
      for (size_t i = 0; i < c["tools"].get<size_t>(); ++i) tools.push_back(golden["tools"][i]);
    }
    RenderOptions options;
    options.add_generation_prompt = c["add_generation_prompt"];
    options.extra = c["extra"];
    const auto rendered = chat->render(golden["conversations"][c["conversation"].get<std::string>()], tools, options);
    if (c.contains("fails")) {
      ++failed_count;
      ASSERT_FALSE(rendered.ok()) << c["template"] << c["conversation"] << c["extra"] << rendered->text;
      EXPECT_NE(rendered.error().message.find("chat template line "), std::string::npos) << rendered.error().message;
      continue;
    }
    ++rendered_count;
    ASSERT_TRUE(rendered.ok()) << c["template"] << c["conversation"] << c["extra"] << rendered.error().message;
    EXPECT_EQ(rendered->text, c["text"].get<std::string>()) << c["template"] << c["conversation"] << c["extra"];
    // Refusing special tokens in foreign words changes nothing unless those words spell one.
    const std::string title = c["conversation"];
    if (title == "forged" || title == "response as question" || title == "think inside" || title == "ends with answer")
      continue;
    EXPECT_EQ(*tokenizer.encode(rendered->text, rendered->untrusted), *tokenizer.encode(rendered->text))
        << c["conversation"];
  }
  EXPECT_GT(rendered_count, 150u);
  EXPECT_GT(failed_count, 20u);
}

// One feature each: expressions, filters, tests, methods, statements, white space, mistakes.
TEST(Golden, SnippetsRenderAsJinja) {
  const OrderedJson golden = parse_or_fail(read_data("golden_templates.json"), "golden_templates.json");
  size_t rendered_count = 0;
  for (const auto& snippet : golden["snippets"]) {
    const std::string source = snippet["template"];
    RenderOptions options;
    options.extra = golden["variables"];
    auto chat = ChatTemplate::parse(source);
    const auto rendered =
        chat.ok() ? chat->render(OrderedJson::array(), nullptr, options) : Result<RenderedChat>(chat.error());
    EXPECT_EQ(rendered.ok(), !snippet.contains("fails")) << source << "\n"
                                                         << (rendered.ok() ? rendered->text : rendered.error().message);
    if (!rendered.ok() || snippet.contains("fails")) continue;
    EXPECT_EQ(rendered->text, snippet["text"].get<std::string>()) << source;
    ++rendered_count;
  }
  EXPECT_GT(rendered_count, 500u);
}

}  // namespace
}  // namespace foretoken
