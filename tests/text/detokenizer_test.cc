// Streaming: ids to text without split characters, and stop strings found at any cut of the stream.
#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/data.h"
#include "text/unicode.h"

namespace foretoken {
namespace {

// Joined pieces equal decode() of all ids, every piece is valid UTF-8, and nothing but an incomplete character is held
// back.
TEST(Detokenizer, PiecesJoinToTheDecodedText) {
  auto tokenizer = Tokenizer::from_json(read_data("small_tokenizer.json"));
  ASSERT_TRUE(tokenizer.ok());
  std::mt19937 random(4);
  const std::string emoji = "x👩‍👩‍👧‍👦é日<|im_end|>";
  size_t held = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> ids;
    if (round == 0) ids = *tokenizer->encode(emoji);
    else
      for (size_t n = random() % 20; n > 0; --n)
        ids.push_back(static_cast<TokenId>(random() % static_cast<unsigned>(tokenizer->size() + 3)));
    for (const bool skip : {false, true}) {
      Detokenizer detokenizer(*tokenizer, {.skip_special = skip});
      std::string text, bytes;
      for (const TokenId id : ids) {
        const std::string piece = detokenizer.add(id);
        EXPECT_TRUE(is_valid_utf8(piece));
        text += piece;
        if (!skip || !tokenizer->is_special(id)) bytes += tokenizer->bytes(id);
        const size_t waiting = incomplete_utf8_tail(bytes);
        held += waiting > 0;
        EXPECT_EQ(text, repair_utf8(std::string_view(bytes).substr(0, bytes.size() - waiting)));
      }
      text += detokenizer.flush();
      EXPECT_EQ(text, tokenizer->decode(ids, skip));
      EXPECT_EQ(detokenizer.flush(), "");
    }
  }
  EXPECT_GT(held, 100u);
  EXPECT_EQ(tokenizer->decode(*tokenizer->encode(emoji)), emoji);
}

// Where the text ends by definition: before the stop whose end comes first, the longest of those.
struct Cut {
  std::string text;
  std::optional<std::string> stop;
};
Cut cut_by_definition(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* best = nullptr;
    for (const std::string& stop : stops)
      if (!stop.empty() && end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0 &&
          (!best || stop.size() > best->size()))
        best = &stop;
    if (best) return {text.substr(0, end - best->size()), *best};
  }
  return {text, std::nullopt};
}

// Random texts over two letters with overlapping stop strings, cut into random pieces: always the same end, never a
// byte too many, and what is given out early is never more than what is certain.
TEST(StopMatcher, EndsWhereTheDefinitionSays) {
  std::mt19937 random(9);
  const auto word = [&](size_t longest) {
    std::string text;
    for (size_t n = random() % (longest + 1); n > 0; --n) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  size_t stopped = 0, ran_out = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (size_t n = random() % 4; n > 0; --n) stops.push_back(word(6));
    const std::string text = word(24);
    const Cut want = cut_by_definition(text, stops);
    for (int cuts = 0; cuts < 4; ++cuts) {
      StopMatcher matcher(stops);
      std::string got;
      for (size_t at = 0; at < text.size();) {
        const size_t size = cuts == 0 ? text.size() : cuts == 1 ? 1 : 1 + random() % 5;
        got += matcher.add(std::string_view(text).substr(at, size));
        at += std::min(size, text.size() - at);
        EXPECT_EQ(want.text.compare(0, got.size(), got), 0) << "gave out more than was certain";
      }
      if (!matcher.stopped()) got += matcher.flush();
      EXPECT_EQ(got, want.text) << text;
      EXPECT_EQ(matcher.emitted(), want.text.size());
      ASSERT_EQ(matcher.stopped(), want.stop.has_value());
      EXPECT_TRUE(!want.stop || *matcher.matched() == *want.stop);
    }
    (want.stop ? stopped : ran_out)++;
  }
  EXPECT_GT(stopped, 500u);
  EXPECT_GT(ran_out, 500u);
}

TEST(StopMatcher, HoldsBackNoMoreThanNeeded) {
  StopMatcher matcher({"</end>", "\n\nUser:"});
  EXPECT_EQ(matcher.add("hello </e"), "hello ");
  EXPECT_EQ(matcher.add("m> and"), "</em> and");
  EXPECT_EQ(matcher.add("\n\n"), "");
  EXPECT_EQ(matcher.add("\nUser:"), "\n");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(*matcher.matched(), "\n\nUser:");
  EXPECT_EQ(matcher.add("more"), "");
  EXPECT_EQ(matcher.emitted(), std::string("hello </em> and\n").size());
}

}  // namespace
}  // namespace foretoken
