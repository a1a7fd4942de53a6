// The tokenizer against Hugging Face's ids, and its own promises: hostile files, forged tokens, long pieces.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include "text/shared_files.h"

namespace foretoken {
namespace {

using Ids = std::vector<TokenId>;

// Ids and decoded text of transformers for hand-written torture strings and for excerpts of documents.
TEST(Tokenizer, EqualsTransformersOnTheOracleCases) {
  SHARED_FILE_OR_SKIP(tokenizer_json, "models/demo-dense/tokenizer.json");
  SHARED_FILE_OR_SKIP(config_json, "models/demo-dense/tokenizer_config.json");
  auto tokenizer = Tokenizer::from_json(tokenizer_json, config_json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->split_method(), "qwen35 scanner");
  EXPECT_EQ(tokenizer->size(), 8192);
  for (const char* name : {"oracle/tokenizer_cases.json", "oracle/tokenizer_corpus_cases.json"}) {
    SHARED_FILE_OR_SKIP(cases, name);
    const OrderedJson all = parse_or_fail(cases, name);
    size_t tokens = 0;
    for (const char* list : {"encode", "chat"}) {
      if (!all.contains(list)) continue;
      for (const auto& c : all[list]) {
        const auto text = c["text"].get<std::string>();
        const auto want = c["ids"].get<Ids>();
        const auto got = tokenizer->encode(text);
        ASSERT_TRUE(got.ok()) << got.error().message;
        EXPECT_EQ(*got, want) << text;
        EXPECT_EQ(tokenizer->decode(want), c.contains("decoded") ? c["decoded"].get<std::string>() : text);
        tokens += want.size();
      }
    }
    EXPECT_GT(tokens, 1000u) << name << " says too little to prove anything";
  }
}

}  // namespace
}  // namespace foretoken
