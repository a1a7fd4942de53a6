// Masks: the fast mask of every situation equals the one that reads every token's bytes, allows() is its bit, rewinding
// restores it, and walks along allowed tokens end in texts that parse and satisfy the schema.
#include "text/grammar_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <set>

#include "text/data.h"
#include "text/expression.h"
#include "text/json_schema.h"
#include "text/schema_cases.h"
#include "text/schema_validator.h"
#include "text/text_grammars.h"

namespace foretoken {
namespace {

using test::schema_cases;
using test::SchemaCase;

constexpr TokenId kEnd = 0;

// All bytes, marks of structure in every mixture, halves of characters, escapes, pieces of the cases' own texts, and
// added tokens whose spellings would be text. Id 0 ends an answer.
struct Pieces {
  std::vector<std::string> bytes{"<|end|>"};
  std::vector<bool> added{true};

  void add(const std::string& text, bool is_added = false) {
    if (!is_added && (text.empty() || !seen_.insert(text).second)) return;
    bytes.push_back(text);
    added.push_back(is_added);
  }

 private:
  std::set<std::string> seen_;
};

Pieces make_pieces() {
  Pieces pieces;
  for (int b = 0; b < 256; ++b) pieces.add(std::string(1, static_cast<char>(b)));
  const std::string marks[] = {"\"", "{", "}", "[", "]", ":", ",",   " ",    "\n",  "\\",
                               "  ", "a", "1", "-", ".", "e", "u00", "true", "null"};
  for (const std::string& a : marks)
    for (const std::string& b : marks) {
      pieces.add(a + b);
      for (const char* c : {"\"", " ", "}", "\\", "x", "0"}) pieces.add(a + b + c);
    }
  for (const char* text :
       {"\xE6\x97", "\xA5", "\x97\xA5\"",      "a\xE6",        "\xF0\x9F\x98", "\x80\"",           "\xC3",
        "\xA9\xC3", "é\"",  "日本\",",         "\\ud83d",      "\\ude00\"",    "\xFF\x01",         "}}}}",
        "]]]",      "[[[[", "{\"a\":{\"a\":{", "\n        \"", "    ",         "                ", "\t\t"})
    pieces.add(text);
  std::mt19937 random(5);
  for (const SchemaCase& c : schema_cases())
    for (const OrderedJson& value : c.accept)
      for (const std::string& text : {dump_json(value), test::spaced(value)})
        for (int i = 0; i < 3; ++i) {
          const size_t begin = random() % text.size();
          pieces.add(text.substr(begin, 2 + random() % 6));
        }
  for (const char* text : {"{", "\"", "<tool_call>", "true"}) pieces.add(text, true);
  return pieces;
}

const Pieces& pieces() {
  static const Pieces all = make_pieces();
  return all;
}

std::shared_ptr<const GrammarVocabulary> vocabulary() {
  static const auto shared = std::make_shared<const GrammarVocabulary>(
      GrammarVocabulary::from_bytes(pieces().bytes, pieces().added, static_cast<int32_t>(pieces().bytes.size()) + 70));
  return shared;
}

std::shared_ptr<const TokenGrammar> with_tokens(Grammar grammar) {
  return std::make_shared<const TokenGrammar>(std::move(grammar), vocabulary());
}

bool bit(std::span<const uint64_t> mask, TokenId id) { return mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1; }

std::vector<TokenId> allowed(std::span<const uint64_t> mask) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < mask.size() * 64; ++i)
    if (bit(mask, static_cast<TokenId>(i))) ids.push_back(static_cast<TokenId>(i));
  return ids;
}

// The mask by definition: every token's bytes are read from the text so far, with tables of its own.
std::vector<TokenId> slow_mask(const Grammar& grammar, const std::string& text) {
  GrammarStacks stacks(grammar);
  SetId at = stacks.start();
  for (const char c : text) at = stacks.step_once(at, static_cast<uint8_t>(c));
  std::vector<TokenId> ids;
  if (stacks.complete(at)) ids.push_back(kEnd);
  for (size_t i = 1; i < pieces().bytes.size(); ++i) {
    if (pieces().added[i]) continue;
    SetId set = at;
    for (const char c : pieces().bytes[i]) set = stacks.step_once(set, static_cast<uint8_t>(c));
    if (set != GrammarStacks::kDead) ids.push_back(static_cast<TokenId>(i));
  }
  return ids;
}

// A random allowed token, structure and ends preferred so that walks come to an end.
TokenId pick(const std::vector<TokenId>& ids, std::mt19937& random, size_t step) {
  if (ids[0] == kEnd && random() % 3 == 0) return kEnd;
  if (step < 40 && random() % 3) return ids[random() % ids.size()];
  for (const char* wanted : {"}", "]", "\"", ",", ":"})
    if (random() % 2)
      for (const TokenId id : ids)
        if (pieces().bytes[static_cast<size_t>(id)] == wanted) return id;
  return ids[random() % ids.size()];
}

TEST(GrammarMatcher, FastMaskEqualsTheDefinitionAndWalksSatisfyTheSchema) {
  size_t ended = 0, masks = 0, most = 0;
  std::ofstream walks(FORETOKEN_BINARY_DIR "/schema_walks.jsonl");  // for tools/check_schemas.mjs
  for (const SchemaCase& c : schema_cases()) {
    if (c.refused) continue;
    SCOPED_TRACE(c.name);
    auto grammar = json_schema_grammar(c.schema);
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    const auto shared = with_tokens(*std::move(grammar));
    for (unsigned seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(seed);
      std::mt19937 random(seed);
      GrammarMatcher matcher(shared, {.enders = {kEnd}});
      std::string text;
      for (size_t step = 0; step < 400; ++step) {
        const std::vector<TokenId> ids = allowed(matcher.mask());
        ASSERT_FALSE(ids.empty()) << text;
        most = std::max(most, ids.size());
        if (seed == 0 && step % 5 == 0) {
          ASSERT_EQ(ids, slow_mask(shared->grammar(), text)) << text;
          ++masks;
        }
        const TokenId token = pick(ids, random, step);
        ASSERT_TRUE(matcher.allows(token));
        if (matcher.advance(token)) {
          ++ended;
          const auto value = parse_ordered_json(text, "walk");
          ASSERT_TRUE(value.ok()) << text << value.error().message;
          EXPECT_EQ(test::violation(c.schema, *value), "") << text;
          walks << dump_json({{"name", c.name}, {"text", text}}) << '\n';
          break;
        }
        text += pieces().bytes[static_cast<size_t>(token)];
      }
    }
  }
  EXPECT_GT(masks, 800u);
  EXPECT_GT(ended, 700u);  // the others were still under way
  EXPECT_GT(most, pieces().bytes.size() / 2);
}

// Masks along long counted texts are the definition's at every round, whichever round was asked for first and whether they were prepared:
// what is shared among rounds beyond a token's reach is the same in all of them.
TEST(GrammarMatcher, CountedRulesAreExactAtEveryRound) {
  const std::pair<const char*, std::string> cases[] = {
      {R"({"type":"string","minLength":25,"maxLength":44})", "\"" + std::string(44, 'a')},
      {R"({"type":"string","minLength":40})", "\"" + std::string(60, '1')},
      {R"({"type":"array","items":{"type":"array","items":{"type":"integer"},"maxItems":20},"minItems":14,"maxItems":31})",
       "[[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],[],[1],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[]]"},
      {R"({"type":"array","items":{"enum":["a","b"]},"minItems":12,"maxItems":24})",
       R"(["a","b","a","b","a","b","a","b","a","b","a","b","a","b","a","b","a","b","a","b","a","b","a","b")"}};
  for (const auto& [schema, text] : cases) {
    SCOPED_TRACE(schema);
    const Grammar grammar = *json_schema_grammar(OrderedJson::parse(schema));
    std::vector<std::vector<TokenId>> expected;
    for (size_t at = 0; at <= text.size(); ++at) expected.push_back(slow_mask(grammar, text.substr(0, at)));
    const auto expect_at = [&](const std::shared_ptr<const TokenGrammar>& shared, size_t at) {
      GrammarMatcher matcher(shared, {.enders = {kEnd}});
      for (const char c : text.substr(0, at)) matcher.advance(static_cast<TokenId>(1 + static_cast<uint8_t>(c)));
      ASSERT_EQ(allowed(matcher.mask()), expected[at]) << text.substr(0, at);
    };
    const auto forwards = with_tokens(grammar), backwards = with_tokens(grammar), prepared = with_tokens(grammar);
    EXPECT_TRUE(prepared->prepare([] { return true; }));
    EXPECT_FALSE(with_tokens(grammar)->prepare([left = 2]() mutable { return left-- > 0; }));
    for (size_t at = 0; at <= text.size(); ++at) {
      expect_at(forwards, at);
      expect_at(backwards, text.size() - at);
      expect_at(prepared, at);
    }
    EXPECT_NE(expected[text.size() / 2], expected[text.size() - 2]);
  }
}

TEST(GrammarMatcher, AllowsIsTheBitOfTheMask) {
  std::mt19937 random(11);
  for (const SchemaCase& c : schema_cases()) {
    if (c.refused || random() % 4) continue;
    SCOPED_TRACE(c.name);
    GrammarMatcher matcher(with_tokens(*json_schema_grammar(c.schema)), {.enders = {kEnd}});
    for (size_t step = 0; step < 12; ++step) {
      // Asked before the mask is made, and after.
      std::vector<bool> before;
      for (TokenId id = 0; id < vocabulary()->rows(); ++id) before.push_back(matcher.allows(id));
      const std::vector<uint64_t> mask(matcher.mask().begin(), matcher.mask().end());
      for (TokenId id = 0; id < vocabulary()->rows(); ++id) {
        ASSERT_EQ(before[static_cast<size_t>(id)], bit(mask, id)) << id;
        ASSERT_EQ(matcher.allows(id), bit(mask, id)) << id;
      }
      EXPECT_FALSE(matcher.allows(-1));
      EXPECT_FALSE(matcher.allows(vocabulary()->rows()));
      if (matcher.advance(pick(allowed(mask), random, step))) break;
    }
  }
}

TEST(GrammarMatcher, RewindRestoresMasks) {
  std::mt19937 random(3);
  const auto shared = with_tokens(*json_object_grammar());
  GrammarMatcher matcher(shared, {.enders = {kEnd}});
  std::vector<std::vector<TokenId>> masks;
  std::vector<TokenId> path;
  for (size_t step = 0; step < 300; ++step) {
    EXPECT_EQ(matcher.depth(), static_cast<int64_t>(path.size()));
    masks.push_back(allowed(matcher.mask()));
    const TokenId token = pick(masks.back(), random, step % 60);
    path.push_back(token);
    if (matcher.advance(token) || random() % 5 == 0) {
      const size_t back = random() % path.size();
      matcher.rewind(static_cast<int64_t>(back));
      path.resize(back);
      EXPECT_EQ(allowed(matcher.mask()), masks[back]);
      masks.resize(back);
    }
  }
  matcher.rewind(0);
  EXPECT_EQ(allowed(matcher.mask()), slow_mask(shared->grammar(), ""));
}

TEST(GrammarMatcher, AddedTokensComeByNameAlone) {
  GrammarBuilder builder;
  const RuleIndex rule = builder.declare("tag");
  const auto tool_call = static_cast<TokenId>(std::find(pieces().bytes.begin(), pieces().bytes.end(), "<tool_call>") -
                                              pieces().bytes.begin());
  ASSERT_LT(tool_call, static_cast<TokenId>(pieces().bytes.size()));
  ASSERT_TRUE(builder
                  .define(rule, *whole(expr::sequence({expr::literal(token_mark(tool_call)), expr::literal("{\"")}),
                                       Encoding::kText))
                  .ok());
  GrammarMatcher matcher(with_tokens(*std::move(builder).build(rule)), {.enders = {kEnd}});
  EXPECT_EQ(allowed(matcher.mask()), std::vector<TokenId>{tool_call});
  EXPECT_EQ(matcher.forced(), token_mark(tool_call) + "{\"");
  EXPECT_FALSE(matcher.advance(tool_call));
  for (const TokenId id : allowed(matcher.mask())) {
    EXPECT_FALSE(pieces().added[static_cast<size_t>(id)]);
    EXPECT_TRUE(std::string("{\"").starts_with(pieces().bytes[static_cast<size_t>(id)]));
  }
  EXPECT_EQ(allowed(matcher.mask()).size(), 2u);  // `{` and `{"`
}

TEST(GrammarMatcher, StartsBehindTheTokenThatEndsThinking) {
  const auto marker = static_cast<TokenId>(std::find(pieces().bytes.begin(), pieces().bytes.end(), "<tool_call>") -
                                           pieces().bytes.begin());
  GrammarMatcher matcher(with_tokens(*json_object_grammar()), {.enders = {kEnd}, .starts_after = marker});
  EXPECT_EQ(allowed(matcher.mask()).size(), static_cast<size_t>(vocabulary()->rows()) - 1);
  EXPECT_FALSE(matcher.allows(kEnd));
  EXPECT_TRUE(matcher.allows(5));
  EXPECT_FALSE(matcher.advance(5));
  EXPECT_FALSE(matcher.advance(marker));
  EXPECT_FALSE(matcher.allows(5));
  EXPECT_FALSE(matcher.complete());
  for (const char* piece : {"{", "}"})
    matcher.advance(
        static_cast<TokenId>(std::find(pieces().bytes.begin(), pieces().bytes.end(), piece) - pieces().bytes.begin()));
  EXPECT_TRUE(matcher.complete());
  EXPECT_EQ(allowed(matcher.mask()), std::vector<TokenId>{kEnd});
  EXPECT_TRUE(matcher.advance(kEnd));
  matcher.rewind(1);
  EXPECT_EQ(allowed(matcher.mask()).size(), static_cast<size_t>(vocabulary()->rows()) - 1);
}

TEST(GrammarMatcher, ForcedRunsAreTheOnlyContinuation) {
  const auto grammar = json_schema_grammar(OrderedJson::parse(
      R"({"type":"object","properties":{"temperature":{"const":"cold"}},"required":["temperature"],"additionalProperties":false})"));
  GrammarMatcher matcher(with_tokens(*grammar), {.enders = {kEnd}});
  EXPECT_EQ(matcher.forced(), "");  // white space may come first
  matcher.advance(
      static_cast<TokenId>(std::find(pieces().bytes.begin(), pieces().bytes.end(), "{\"") - pieces().bytes.begin()));
  EXPECT_EQ(matcher.forced(), "temperature\":");
  EXPECT_EQ(matcher.forced(4), "temp");
}

// White space is guessed as the text did it before; the guess is always allowed.
TEST(GrammarMatcher, LikelyRunsFollowTheStyleOfTheText) {
  const auto shared = with_tokens(*json_schema_grammar(OrderedJson::parse(
      R"({"type":"array","items":{"type":"object","properties":{"kind":{"const":"k"},"size":{"type":"integer"}},
      "required":["kind","size"],"additionalProperties":false},"minItems":3,"maxItems":3})")));
  const auto after = [&](const std::string& text) {
    GrammarMatcher matcher(shared, {.enders = {kEnd}});
    for (const char c : text) {  // bytes are tokens
      const auto token = static_cast<TokenId>(1 + static_cast<uint8_t>(c));
      EXPECT_TRUE(matcher.allows(token)) << text;
      matcher.advance(token);
    }
    const std::string likely = matcher.likely();
    EXPECT_TRUE(likely.starts_with(matcher.forced()));
    for (const char c : likely) {
      const auto token = static_cast<TokenId>(1 + static_cast<uint8_t>(c));
      EXPECT_TRUE(matcher.allows(token)) << text << "|" << likely;
      matcher.advance(token);
    }
    return likely;
  };
  EXPECT_EQ(after("["), "{\"kind\": \"k\", \"size\": ");
  EXPECT_EQ(after("[{\"kind\":"), " \"k\", \"size\": ");
  EXPECT_EQ(after("[{\"kind\":\"k\",\"size\":1}"), ",{\"kind\":\"k\",\"size\":");
  EXPECT_EQ(after("[\n  {\n    \"kind\": \"k\",\n    \"size\": 1\n  },"),
            "\n  {\n    \"kind\": \"k\",\n    \"size\": ");
  EXPECT_EQ(after("[\n\t{\n\t\t\"kind\": \"k\",\n\t\t\"size\": 1\n\t},"),
            "\n\t{\n\t\t\"kind\": \"k\",\n\t\t\"size\": ");
  EXPECT_EQ(after("[\n  {\"kind\": \"k\", \"size\": 1},"), "\n  {\"kind\": \"k\", \"size\": ");
  EXPECT_EQ(after("[\n  {"), "\n    \"kind\": \"k\",\n    \"size\": ");
  EXPECT_EQ(after("[{\"kind\":\"k\", \"size\":1},{\n"), "");  // not as before, so nothing is known
  EXPECT_EQ(after("[{\"kind\": \"k\", \"size\": 1"), "");  // more digits, or the end
}

// What closes is spaced as what opened was, at each depth; the text's end is part of what is foreseen, in the order of its tokens.
TEST(GrammarMatcher, LikelyRunsCloseWhatIsOpen) {
  const auto shared = with_tokens(*json_schema_grammar(OrderedJson::parse(
      R"({"type":"object","properties":{"a":{"type":"object","properties":{"b":{"enum":["x"]}},"required":["b"],"additionalProperties":false}},
      "required":["a"],"additionalProperties":false})")));
  const auto after = [&](const std::string& text) {
    GrammarMatcher matcher(shared, {.enders = {kEnd}});
    for (const char c : text) matcher.advance(static_cast<TokenId>(1 + static_cast<uint8_t>(c)));
    return matcher.likely();
  };
  EXPECT_EQ(after("{"), "\"a\": {\"b\": \"x\"}}");
  EXPECT_EQ(after("{\n  \""), "a\": {\n    \"b\": \"x\"\n  }\n}");
  EXPECT_EQ(after("{\n  \"a\": {\""), "b\": \"x\"}\n}");
  EXPECT_EQ(after("{\"a\":{ \"b\":"), "\"x\"}}");
}

// Drafted tokens are allowed one after the other and spell the likely run; the end is among them, and a word that may go on is not.
TEST(GrammarMatcher, DraftsSpellTheLikelyRun) {
  const Tokenizer tokenizer = *Tokenizer::from_json(read_data("small_tokenizer.json"));
  const auto vocabulary = std::make_shared<const GrammarVocabulary>(GrammarVocabulary::from_tokenizer(tokenizer, tokenizer.size()));
  const auto grammar_of = [&](const char* schema) {
    return std::make_shared<const TokenGrammar>(*json_schema_grammar(OrderedJson::parse(schema)), vocabulary);
  };
  TokenId end = 0;
  while (!tokenizer.is_added(end)) ++end;
  const auto drafted = [&](const std::shared_ptr<const TokenGrammar>& grammar, const std::string& text, size_t most = 64) {
    GrammarMatcher matcher(grammar, {.enders = {end}});
    const auto before = tokenizer.encode_plain(text);
    for (const TokenId id : *before) matcher.advance(id);
    const std::vector<TokenId> draft = matcher.draft(tokenizer, most);
    EXPECT_EQ(matcher.depth(), static_cast<int64_t>(before->size()));
    std::string spelt;
    for (const TokenId id : draft) {
      EXPECT_TRUE(matcher.allows(id)) << text << "|" << spelt;
      matcher.advance(id);
      spelt += id == end ? "<end>" : std::string(tokenizer.bytes(id));
    }
    return spelt;
  };
  const auto kinds = grammar_of(R"({"type":"object","properties":{"kind":{"enum":["reader","writer","runner"]},"on":{"const":true}},"required":["kind","on"],"additionalProperties":false})");
  EXPECT_EQ(drafted(kinds, "{\""), "kind\": \"");
  EXPECT_EQ(drafted(kinds, "{\"kind\": \"w"), "riter\", \"on\": true}<end>");
  EXPECT_EQ(drafted(kinds, "{\"kind\": \"w", 3).substr(0, 1), "r");
  EXPECT_EQ(drafted(kinds, "{\"kind\": \"r"), "");  // reader or runner
  EXPECT_EQ(drafted(kinds, "{\"kind\": \"writer\", \"on\": true}"), "<end>");
  const auto paths = grammar_of(R"({"enum":["report one","report two"]})");
  EXPECT_EQ(drafted(paths, " "), "\"");  // "report one" and "report two" may be spelt in one token
}

// A branch that would be nested too deeply is never begun.
TEST(GrammarMatcher, DepthEndsWithoutADeadEnd) {
  for (
      const char* schema :
      {R"({"type":"object","properties":{"next":{"$ref":"#"}},"additionalProperties":false})",
       R"({"$ref":"#/$defs/l","$defs":{"l":{"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#/$defs/l"},"minItems":1,"maxItems":1}]}}})"}) {
    const auto grammar = json_schema_grammar(OrderedJson::parse(schema), {}, {.depth = 6});
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    const auto shared = with_tokens(*grammar);
    GrammarMatcher matcher(shared, {.enders = {kEnd}});
    std::string text;
    size_t deepest = 0;
    for (int step = 0; step < 200; ++step) {
      const std::vector<TokenId> ids = allowed(matcher.mask());
      ASSERT_FALSE(ids.empty()) << text;
      ASSERT_EQ(ids, slow_mask(shared->grammar(), text)) << text;
      TokenId token = ids.back();
      for (const char* wanted : {"{\"", "[[", "[", "{"})  // as deep as it goes
        for (const TokenId id : ids)
          if (pieces().bytes[static_cast<size_t>(id)] == wanted) token = id;
      if (matcher.advance(token)) break;
      text += pieces().bytes[static_cast<size_t>(token)];
      deepest = std::max(deepest, static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                                                    [](char c) { return c == '{' || c == '['; })));
    }
    EXPECT_TRUE(matcher.depth() > 6 && matcher.depth() < 200) << text;
    EXPECT_TRUE(parse_json(text, "text").ok()) << text;
    EXPECT_GE(deepest, 5u);
    EXPECT_LE(deepest, 6u);
  }
}

}  // namespace
}  // namespace foretoken
