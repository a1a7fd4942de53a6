// The tokenizer against Hugging Face's ids, and its own promises: scanners equal the regular expressions, merges equal
// the naive algorithm, added tokens with all their options, foreign text that cannot forge one, hostile files.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <map>
#include <random>

#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/pretokenizer.h"
#include "support/shared.h"
#include "text/data.h"
#include "text/unicode.h"

namespace foretoken {
namespace {

using Ids = std::vector<TokenId>;

Tokenizer small_tokenizer() {
  auto tokenizer = Tokenizer::from_json(read_data("small_tokenizer.json"));
  EXPECT_TRUE(tokenizer.ok()) << (tokenizer.ok() ? "" : tokenizer.error().message);
  return *std::move(tokenizer);
}

OrderedJson small_json() { return parse_or_fail(read_data("small_tokenizer.json"), "small_tokenizer.json"); }

// Ids and decoded text of transformers for hand-written torture strings and for excerpts of documents.
TEST(Tokenizer, EqualsTransformersOnTheOracleCases) {
  FORETOKEN_NEEDS_SHARED("models/demo-dense/tokenizer.json");
  const std::string tokenizer_json = test::read_shared("models/demo-dense/tokenizer.json");
  FORETOKEN_NEEDS_SHARED("models/demo-dense/tokenizer_config.json");
  const std::string config_json = test::read_shared("models/demo-dense/tokenizer_config.json");
  auto tokenizer = Tokenizer::from_json(tokenizer_json, config_json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->split_method(), "qwen35 scanner");
  EXPECT_EQ(tokenizer->size(), 8192);
  for (const char* name : {"oracle/tokenizer_cases.json", "oracle/tokenizer_corpus_cases.json"}) {
    FORETOKEN_NEEDS_SHARED(name);
    const std::string cases = test::read_shared(name);
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

// ---- pre-tokenizer

// Cuts by a regular expression that must match everywhere; stops where it does not.
class RegexOracle {
 public:
  explicit RegexOracle(std::string_view pattern) {
    int code = 0;
    size_t at = 0;
    regex_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP, &code,
                           &at, nullptr);
    EXPECT_NE(regex_, nullptr);
    match_ = pcre2_match_data_create_from_pattern(regex_, nullptr);
  }
  RegexOracle(const RegexOracle&) = delete;
  ~RegexOracle() {
    pcre2_match_data_free(match_);
    pcre2_code_free(regex_);
  }
  std::vector<size_t> ends(std::string_view text) const {
    const size_t* bounds = pcre2_get_ovector_pointer(match_);
    std::vector<size_t> ends;
    for (size_t at = 0; at < text.size(); ends.push_back(at)) {
      const int found =
          pcre2_match(regex_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, 0, match_, nullptr);
      if (found <= 0 || bounds[0] != at) break;
      at = bounds[1];
    }
    return ends;
  }

 private:
  pcre2_code* regex_ = nullptr;
  pcre2_match_data* match_ = nullptr;
};

// Both scanners cut where PCRE2 cuts with the files' own patterns: on random mixtures of what the alternatives
// distinguish, and on every character of planes 0 to 2 between a letter and a digit. Two differences between the
// libraries' data are left out: U+180E, which PCRE2 takes for white space and Unicode no longer does, and characters
// too new for PCRE2.
TEST(Pretokenizer, ScannersEqualTheRegularExpressions) {
  const std::vector<std::string> parts = {
      "a",      "Z",  "s",    "t",      "re",     "VE",     "m",      "ll",     "d",      "'",      "'s",    "'LL",
      "\u017f", "é",  "日本", "\u0301", "\u0903", "\u20dd", "1",      "٣",      "Ⅷ",      "½",      " ",     "  ",
      "\t",     "\n", "\r",   "\r\n",   "\u00a0", "\u0085", "\u2028", "\u3000", "\u200b", "\ufeff", ".",     "...",
      "!?",     "_",  "-",    "<|",     "👍",      "🏽",   "\u200d", "$",      "€",      "\x01",   "\u0378"};
  std::mt19937 random(3);
  std::vector<std::string> texts;
  for (int i = 0; i < 4000; ++i) {
    std::string text;
    for (size_t n = 1 + random() % 10; n > 0; --n) text += parts[random() % parts.size()];
    texts.push_back(std::move(text));
  }
  size_t too_new = 0;
  const RegexOracle unassigned(R"(\p{Cn})");
  for (char32_t c = 1; c < 0x30000; ++c) {
    if ((c >= 0xD800 && c <= 0xDFFF) || c == 0x180E) continue;
    if (char_class(c) != CharClass::kOther) {
      std::string one;
      append_utf8(c, one);
      if (!unassigned.ends(one).empty()) {
        ++too_new;
        continue;
      }
    }
    if (c % 512 == 1 || texts.empty()) texts.emplace_back();
    append_utf8('a', texts.back());
    append_utf8(c, texts.back());
    append_utf8(c, texts.back());
    append_utf8('1', texts.back());
  }
  EXPECT_LT(too_new, 1000u);
  for (const std::string_view pattern : {kQwen35Pattern, kQwen2Pattern}) {
    auto pretokenizer = Pretokenizer::from_patterns({std::string(pattern)});
    ASSERT_TRUE(pretokenizer.ok());
    EXPECT_NE(pretokenizer->method(), "PCRE2");
    const RegexOracle oracle(pattern);
    size_t pieces = 0;
    for (const std::string& text : texts) {
      std::vector<size_t> ends;
      ASSERT_TRUE(pretokenizer->split(text, ends).ok());
      ASSERT_EQ(ends, oracle.ends(text)) << "in " << OrderedJson(text).dump();
      pieces += ends.size();
    }
    EXPECT_GT(pieces, 400000u);
  }
  std::vector<size_t> with, without;  // the two patterns differ
  ASSERT_TRUE(Pretokenizer::from_patterns({std::string(kQwen35Pattern)})->split("a\u0301\u0301b", with).ok());
  ASSERT_TRUE(Pretokenizer::from_patterns({std::string(kQwen2Pattern)})->split("a\u0301\u0301b", without).ok());
  EXPECT_NE(with, without);
}

// Any other pattern runs in PCRE2, piece by piece through several stages; parts that no pattern matches stay pieces.
TEST(Pretokenizer, OtherPatternsRunInPcre2) {
  auto stages = Pretokenizer::from_patterns({R"(\p{N}{1,3})", R"(\s+|[a-z]+)"});
  ASSERT_TRUE(stages.ok());
  EXPECT_EQ(stages->method(), "PCRE2");
  std::vector<size_t> ends;
  ASSERT_TRUE(stages->split("ab 12345!!é", ends).ok());
  EXPECT_EQ(ends, (std::vector<size_t>{2, 3, 6, 8, 12}));
  // \C would cut characters apart, and a pattern behind it would read beyond what is left of them.
  for (const std::vector<std::string>& patterns :
       {std::vector<std::string>{"(a"}, {R"(\C)", R"(\B)"}, {R"([a-z]+|\C\s)"}, {R"((*UTF)\C)"}}) {
    const auto broken = Pretokenizer::from_patterns(patterns);
    ASSERT_FALSE(broken.ok()) << patterns[0];
    EXPECT_EQ(broken.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(broken.error().message.find("'" + patterns[0] + "'"), std::string::npos) << broken.error().message;
  }
}

// A pattern that tries everything gives up with one sentence; long runs of one kind are nothing of the sort.
TEST(Pretokenizer, PatternsGiveUp) {
  std::vector<size_t> ends;
  const Status status = Pretokenizer::from_patterns({R"((?:a?){4220}a{40}$)"})->split("\n" + std::string(39, 'a') + "b", ends);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(status.error().message.find("gave up"), std::string::npos) << status.error().message;
  const auto words = Pretokenizer::from_patterns({R"((?i:'s|'t)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"});
  for (const char c : {' ', 'a', '1', '.', '\n'}) {
    ends.clear();
    EXPECT_TRUE(words->split(std::string(3 << 20, c) + "a", ends).ok()) << c;
    EXPECT_EQ(ends.back(), size_t{(3 << 20) + 1});
  }
}

// ---- merges

// The definition: find the lowest rank, the leftmost among equals, join, repeat.
Ids naive_merge(Ids ids, const std::map<std::pair<TokenId, TokenId>, std::pair<size_t, TokenId>>& merges) {
  while (true) {
    size_t best_rank = SIZE_MAX, at = 0;
    TokenId joined = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = merges.find({ids[i], ids[i + 1]});
      if (it == merges.end() || it->second.first >= best_rank) continue;
      best_rank = it->second.first;
      joined = it->second.second;
      at = i;
    }
    if (best_rank == SIZE_MAX) return ids;
    ids[at] = joined;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// Random merge tables over three letters: short and long pieces (array and heap) follow the definition, ties included.
TEST(Bpe, FollowsTheDefinitionAtEveryLength) {
  std::mt19937 random(11);
  size_t merged = 0;
  for (int round = 0; round < 60; ++round) {
    Bpe bpe(4);  // grows
    std::map<std::pair<TokenId, TokenId>, std::pair<size_t, TokenId>> merges;
    for (int letter = 0; letter < 3; ++letter) bpe.set_byte(static_cast<uint8_t>('a' + letter), letter);
    TokenId next = 3;
    for (size_t rank = 0; rank < 30; ++rank) {
      const auto left = static_cast<TokenId>(random() % static_cast<unsigned>(next)),
                 right = static_cast<TokenId>(random() % static_cast<unsigned>(next));
      merges[{left, right}] = {rank, next};  // a pair given twice keeps its last rank
      bpe.add_merge(left, right, next++);
    }
    for (const size_t length : {1u, 2u, 3u, 7u, 30u, 47u, 48u, 49u, 50u, 120u, 400u}) {
      std::string piece;
      Ids letters;
      for (size_t i = 0; i < length; ++i) {
        letters.push_back(static_cast<TokenId>(random() % 3));
        piece += static_cast<char>('a' + letters.back());
      }
      Ids got;
      bpe.encode(piece, got);
      EXPECT_EQ(got, naive_merge(letters, merges)) << piece;
      merged += length - got.size();
    }
  }
  EXPECT_GT(merged, 5000u);
}

// One piece of a million characters must neither take quadratic time nor lose a byte.
TEST(Tokenizer, AMillionOfOneCharacter) {
  const Tokenizer tokenizer = small_tokenizer();
  for (const char* unit : {"a", " ", "\n", "é", "!", "1", "\u0301\u0323", "日", "<"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    const auto ids = tokenizer.encode(text);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(tokenizer.decode(*ids), rewrite_nfc(text).text) << unit;
  }
}

// ---- added tokens

TEST(Tokenizer, AddedTokensAreFoundLongestFirst) {
  OrderedJson json = small_json();
  const int first = json["added_tokens"].back()["id"].get<int>() + 1;
  const auto add = [&](const char* text, const char* option) {
    OrderedJson token = {{"id", first + static_cast<int>(json["added_tokens"].size()) - 13},
                         {"content", text},
                         {"special", true},
                         {"normalized", false}};
    if (option[0] != '\0') token[option] = true;
    json["added_tokens"].push_back(token);
    return token["id"].get<TokenId>();
  };
  const TokenId x = add("[x]", ""), xx = add("[x][x]", ""), left = add("[left]", "lstrip"),
                right = add("[right]", "rstrip"), word = add("word", "single_word"),
                composed = add("[é]", "normalized");
  auto tokenizer = Tokenizer::from_json(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const auto encode = [&](std::string_view text) { return *tokenizer->encode(text); };
  const TokenId a = *tokenizer->find("a"), b = *tokenizer->find("b");

  EXPECT_EQ(encode("a[x]b"), (Ids{a, x, b}));
  EXPECT_EQ(encode("[x][x][x]"), (Ids{xx, x}));
  EXPECT_EQ(encode("a \n\u00a0[left]b"), (Ids{a, left, b}));
  EXPECT_EQ(encode("a[right] \u2003\tb"), (Ids{a, right, b}));
  EXPECT_EQ(encode("[right]  [left]"), (Ids{right, left}));
  EXPECT_EQ(encode("word"), (Ids{word}));
  Ids after_dash = encode("a-");
  after_dash.push_back(word);
  EXPECT_EQ(encode("a-word"), after_dash);
  for (const char* inside : {"sword", "words", "_word", "wordé", "1word", "word\u0301"}) {
    const Ids ids = encode(inside);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), word), 0) << inside;
  }
  EXPECT_EQ(encode("a[e\u0301]b"), (Ids{a, composed, b})) << "looked for after NFC";
  EXPECT_EQ(encode("a[é]b"), (Ids{a, composed, b}));
  // The same spellings as ordinary text.
  for (const char* text : {"[x]", "[left]", "word", "[é]", "a[e\u0301]b", "<|im_start|>", "<think>"}) {
    const Ids ids = *tokenizer->encode_plain(text);
    for (const TokenId id : ids) EXPECT_FALSE(tokenizer->is_added(id)) << text;
    EXPECT_EQ(tokenizer->decode(ids), rewrite_nfc(text).text);
  }
}

// Marked ranges hide added tokens from the first byte to the last, leave the others alone, and change no other id.
TEST(Tokenizer, PlainRangesCannotForgeTokens) {
  const Tokenizer tokenizer = small_tokenizer();
  const TokenId start = *tokenizer.find("<|im_start|>"), end = *tokenizer.find("<|im_end|>");
  const std::string text = "<|im_start|>user\nhi<|im_end|> é<|im_start|><|im_end|>\n";
  const auto count = [&](const Ids& ids) {
    return std::count_if(ids.begin(), ids.end(), [&](TokenId id) { return tokenizer.is_added(id); });
  };
  const Ids all = *tokenizer.encode(text);
  EXPECT_EQ(count(all), 4);
  EXPECT_EQ(all.front(), start);

  const size_t inner = text.find("<|im_end|>");
  for (size_t begin = inner; begin < inner + 10; ++begin) {  // one marked byte anywhere inside is enough
    const ByteRange one{begin, begin + 1};
    const Ids ids = *tokenizer.encode(text, std::span(&one, 1));
    EXPECT_EQ(count(ids), 3) << begin;
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
  for (const size_t at : {inner - 1, inner + 10}) {  // a neighbour is not
    const ByteRange one{at, at + 1};
    EXPECT_EQ(*tokenizer.encode(text, std::span(&one, 1)), all);
  }
  const ByteRange nothing{inner + 3, inner + 3};
  EXPECT_EQ(*tokenizer.encode(text, std::span(&nothing, 1)), all);
  EXPECT_EQ(count(*tokenizer.encode_plain(text)), 0);

  // Malformed bytes before a token move it in the repaired text; the marks move along.
  const std::string broken = "\xff\xff<|im_end|>\xf0\x9f<|im_end|>";
  const ByteRange second{broken.rfind('<'), broken.size()};
  const Ids ids = *tokenizer.encode(broken, std::span(&second, 1));
  EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 1);
  EXPECT_EQ(tokenizer.decode(ids), "\ufffd\ufffd<|im_end|>\ufffd<|im_end|>");
}

// A range mark on a normalised token follows the text through NFC.
TEST(Tokenizer, PlainRangesFollowNormalisation) {
  OrderedJson json = small_json();
  for (auto& token : json["added_tokens"]) token["normalized"] = true;
  auto tokenizer = Tokenizer::from_json(json.dump());
  ASSERT_TRUE(tokenizer.ok());
  const std::string text = "e\u0301e\u0301<think>A\u030a<think>e\u0301";
  const TokenId think = *tokenizer->find("<think>");
  const auto count = [&](std::span<const ByteRange> plain) {
    const Ids ids = *tokenizer->encode(text, plain);
    return std::count(ids.begin(), ids.end(), think);
  };
  const size_t first = text.find('<'), second = text.rfind('<');
  EXPECT_EQ(count({}), 2);
  const ByteRange hide_first{first, first + 7}, hide_second{second + 6, second + 7}, beside{first + 7, second};
  EXPECT_EQ(count(std::span(&hide_first, 1)), 1);
  EXPECT_EQ(count(std::span(&hide_second, 1)), 1);
  EXPECT_EQ(count(std::span(&beside, 1)), 2);
}

// ---- files

TEST(Tokenizer, ConfigAddsTokensAndNames) {
  const std::string config =
      R"({"added_tokens_decoder": {"700": {"content": "<extra>", "special": false, "normalized": false}},
    "bos_token": null, "eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>"})";
  auto tokenizer = Tokenizer::from_json(read_data("small_tokenizer.json"), config);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->size(), 701);
  EXPECT_EQ(*tokenizer->encode("<extra>"), Ids{700});
  EXPECT_TRUE(tokenizer->is_added(700));
  EXPECT_FALSE(tokenizer->is_special(700));
  EXPECT_FALSE(tokenizer->has(600)) << "a hole in the ids";
  EXPECT_EQ(tokenizer->bytes(600), "");
  EXPECT_EQ(tokenizer->bytes(-1), "");
  EXPECT_FALSE(tokenizer->bos());
  EXPECT_EQ(tokenizer->eos(), tokenizer->find("<|im_end|>"));
  EXPECT_EQ(tokenizer->end_ids(), (Ids{*tokenizer->find("<|im_end|>"), *tokenizer->find("<|endoftext|>")}));
  EXPECT_EQ(tokenizer->spelling(*tokenizer->find(" ")), "Ġ");
  EXPECT_EQ(tokenizer->spelling(700), "<extra>");
  EXPECT_EQ(tokenizer->find("no such token"), std::nullopt);
  const Ids ids = *tokenizer->encode("a<|im_end|><extra>b");
  EXPECT_EQ(tokenizer->decode(ids), "a<|im_end|><extra>b");
  EXPECT_EQ(tokenizer->decode(ids, /*skip_special=*/true), "a<extra>b");
}

// The same vocabulary as GGUF metadata gives the same ids.
TEST(Tokenizer, GgufEqualsJson) {
  const OrderedJson json = small_json();
  std::vector<std::string> spellings(512), merges;
  std::vector<int64_t> types(512, 5);
  for (size_t i = 0; i < 512; ++i) spellings[i] = "[PAD" + std::to_string(i) + "]";
  for (const auto& [spelling, id] : json["model"]["vocab"].items()) {
    spellings[id.get<size_t>()] = spelling;
    types[id.get<size_t>()] = 1;
  }
  for (const auto& token : json["added_tokens"]) {
    spellings[token["id"].get<size_t>()] = token["content"];
    types[token["id"].get<size_t>()] = token["special"].get<bool>() ? 3 : 4;
  }
  for (const auto& merge : json["model"]["merges"])
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  const std::vector<std::string_view> token_views(spellings.begin(), spellings.end()),
      merge_views(merges.begin(), merges.end());
  GgufVocabulary gguf{.tokens = token_views, .token_types = types, .merges = merge_views, .pre = "qwen35", .eos = 482};
  auto from_gguf = Tokenizer::from_gguf(gguf);
  ASSERT_TRUE(from_gguf.ok()) << from_gguf.error().message;
  const Tokenizer from_json = small_tokenizer();
  const OrderedJson golden = parse_or_fail(read_data("golden_encode.json"), "golden_encode.json");
  for (const auto& text : golden["texts"])
    EXPECT_EQ(*from_gguf->encode(text.get<std::string>()), *from_json.encode(text.get<std::string>()));
  EXPECT_TRUE(from_gguf->is_special(*from_gguf->find("<|im_end|>")));
  EXPECT_FALSE(from_gguf->is_special(*from_gguf->find("<think>")));
  EXPECT_FALSE(from_gguf->has(511)) << "unused rows have no token";
  EXPECT_EQ(from_gguf->end_ids().front(), 482);

  const auto fails_with = [&](GgufVocabulary changed, const char* part) {
    const auto result = Tokenizer::from_gguf(changed);
    ASSERT_FALSE(result.ok()) << part;
    EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
  };
  GgufVocabulary changed = gguf;
  changed.pre = "llama-bpe";
  fails_with(changed, "llama-bpe");
  changed = gguf;
  changed.model = "llama";
  fails_with(changed, "tokenizer.ggml.model");
  changed = gguf;
  changed.token_types = changed.token_types.subspan(1);
  fails_with(changed, "token_type has 511");
  changed = gguf;
  changed.eos = 100000;
  fails_with(changed, "100000");
  changed = gguf;
  changed.tokens = {};
  fails_with(changed, "is empty");
  const std::vector<std::string_view> bad_merge = {"a b c"};
  changed = gguf;
  changed.merges = bad_merge;
  fails_with(changed, "not two tokens");
  types[0] = 9;
  fails_with(gguf, "unknown type 9");
}

// What would encode otherwise than Hugging Face's code, or is damaged, is refused in one sentence that names it.
TEST(Tokenizer, RefusesWhatItDoesNotUnderstand) {
  using Change = void (*)(OrderedJson&);
  const auto fails_with = [](Change change, const char* part, std::string_view config = {}) {
    OrderedJson json = small_json();
    change(json);
    const auto result = Tokenizer::from_json(json.dump(), config);
    ASSERT_FALSE(result.ok()) << part;
    EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
  };
  const auto nothing = [](OrderedJson&) {};
  fails_with([](OrderedJson& j) { j.erase("model"); }, "no model object");
  fails_with([](OrderedJson& j) { j["model"]["type"] = "Unigram"; }, "Unigram");
  fails_with([](OrderedJson& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix");
  fails_with([](OrderedJson& j) { j["model"]["dropout"] = 0.1; }, "dropout");
  fails_with([](OrderedJson& j) { j["normalizer"] = {{"type", "Lowercase"}}; }, "Lowercase");
  fails_with([](OrderedJson& j) { j["pre_tokenizer"] = {{"type", "Whitespace"}}; }, "Whitespace");
  fails_with([](OrderedJson& j) { j["pre_tokenizer"] = nullptr; }, "ByteLevel");
  fails_with([](OrderedJson& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, "Removed");
  fails_with([](OrderedJson& j) { j["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; }, "invert");
  fails_with(
      [](OrderedJson& j) {
        j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "(a"}};
      },
      "does not compile");
  fails_with([](OrderedJson& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = 1; }, "neither a Regex");
  fails_with([](OrderedJson& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; },
             "add_prefix_space");
  fails_with(
      [](OrderedJson& j) { std::swap(j["pre_tokenizer"]["pretokenizers"][0], j["pre_tokenizer"]["pretokenizers"][1]); },
      "after ByteLevel");
  fails_with([](OrderedJson& j) { j["post_processor"] = {{"type", "TemplateProcessing"}}; }, "post-processor");
  fails_with([](OrderedJson& j) { j["decoder"] = {{"type", "WordPiece"}}; }, "WordPiece");
  fails_with([](OrderedJson& j) { j["model"]["vocab"] = 3; }, "vocab is not an object");
  fails_with([](OrderedJson& j) { j["model"]["vocab"]["a"] = "x"; }, "not an integer");
  fails_with([](OrderedJson& j) { j["model"]["vocab"]["a"] = -1; }, "outside 0..");
  fails_with([](OrderedJson& j) { j["model"]["vocab"]["a"] = 1 << 30; }, "outside 0..");
  fails_with([](OrderedJson& j) { j["model"]["vocab"]["a"] = j["model"]["vocab"]["b"]; }, "another token has already");
  fails_with([](OrderedJson& j) { j["model"]["vocab"].erase("Ġ"); }, "vocabulary lacks");
  fails_with(
      [](OrderedJson& j) {
        j["model"]["vocab"].erase("ñ");
        j["model"]["merges"] = OrderedJson::array();
      },
      "no token for the byte 241");
  fails_with([](OrderedJson& j) { j["model"]["vocab"][std::string(5000, 'x')] = 4000; }, "bytes long");
  fails_with([](OrderedJson& j) { j["model"]["merges"] = "x"; }, "merges is not a list");
  fails_with([](OrderedJson& j) { j["model"]["merges"].push_back(7); }, "neither a string nor a pair");
  fails_with([](OrderedJson& j) { j["model"]["merges"].push_back({"a", "b", "c"}); }, "pair of strings");
  fails_with([](OrderedJson& j) { j["model"]["merges"].push_back({"a"}); }, "pair of strings");
  fails_with([](OrderedJson& j) { j["model"]["merges"].push_back("ab"); }, "not two tokens");
  fails_with([](OrderedJson& j) { j["model"]["merges"].push_back({"a", "~~~"}); }, "vocabulary lacks");
  fails_with([](OrderedJson& j) { j["added_tokens"] = 1; }, "not a list");
  fails_with([](OrderedJson& j) { j["added_tokens"][0].erase("id"); }, "no integer id");
  fails_with([](OrderedJson& j) { j["added_tokens"][0].erase("content"); }, "no content");
  fails_with([](OrderedJson& j) { j["added_tokens"][0]["content"] = ""; }, "is empty");
  fails_with([](OrderedJson& j) { j["added_tokens"][0]["id"] = 1LL << 40; }, "outside 0..");
  fails_with([](OrderedJson& j) { j["added_tokens"][0]["id"] = j["added_tokens"][1]["id"]; }, "contradict");
  fails_with([](OrderedJson& j) { j["added_tokens"][0]["id"] = 5; }, "which the vocabulary gives to");
  fails_with(
      [](OrderedJson& j) {
        j["added_tokens"].push_back({{"id", j["model"]["vocab"]["a"]}, {"content", "a"}, {"special", true}});
      },
      "is one byte");
  fails_with(nothing, "tokenizer_config.json: not valid JSON", "{");
  fails_with(nothing, "no id", R"({"added_tokens_decoder": {"x": {"content": "y"}}})");
  fails_with(nothing, "not an object", R"({"added_tokens_decoder": 5})");
  for (const char* text : {"", "[]", "{", "nul", "{\"model\": {}}"})
    EXPECT_FALSE(Tokenizer::from_json(text).ok()) << text;
}

// Older spellings of the same file, and pieces that are tokens whatever the merges say.
TEST(Tokenizer, ReadsTheOtherSpellings) {
  const Tokenizer plain = small_tokenizer();
  OrderedJson json = small_json();
  OrderedJson merges = OrderedJson::array();
  for (const auto& merge : json["model"]["merges"])
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  json["model"]["merges"] = merges;
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", OrderedJson::array({json["normalizer"]})}};
  json["post_processor"] = nullptr;
  json.erase("decoder");
  auto spaced = Tokenizer::from_json(json.dump());
  ASSERT_TRUE(spaced.ok()) << spaced.error().message;
  EXPECT_EQ(*spaced->encode("Hello e\u0301 world, don't"), *plain.encode("Hello e\u0301 world, don't"));

  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  auto gpt2 = Tokenizer::from_json(json.dump());
  ASSERT_TRUE(gpt2.ok()) << gpt2.error().message;
  EXPECT_EQ(gpt2->split_method(), "PCRE2");
  EXPECT_EQ(gpt2->decode(*gpt2->encode("a 123  b")), "a 123  b");

  json["pre_tokenizer"] = OrderedJson::parse(
      R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated", "pattern": {"String": "-+"}},
    {"type": "Digits", "individual_digits": true},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})");
  json["model"]["vocab"]["zq"] = 600;
  json["model"]["ignore_merges"] = true;
  auto whole = Tokenizer::from_json(json.dump());
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  EXPECT_EQ(*whole->encode("zq"), Ids{600});
  EXPECT_EQ(*whole->encode("zq-+zq1zq"), (Ids{600, *whole->find("-"), *whole->find("+"), 600, *whole->find("1"), 600}));
}

// A merge that would spell a special token is not performed: only the added-token pass makes one.
TEST(Tokenizer, MergesNeverMakeASpecialToken) {
  OrderedJson json = small_json();
  json["model"]["vocab"]["zq"] = 600;
  json["model"]["merges"].push_back({"z", "q"});
  json["added_tokens"].push_back({{"id", 600}, {"content", "zq"}, {"special", true}, {"normalized", false}});
  auto tokenizer = Tokenizer::from_json(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(*tokenizer->encode("zq"), Ids{600});
  EXPECT_EQ(*tokenizer->encode_plain("zq"), (Ids{*tokenizer->find("z"), *tokenizer->find("q")}));
}

TEST(ByteAlphabet, EveryByteHasOneCharacter) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(bytes_of_spelling(spelling_of_bytes(all)), all);
  EXPECT_EQ(spelling_of_bytes("a \n\xff"), "aĠĊÿ");
  EXPECT_EQ(bytes_of_spelling("a b"), std::nullopt);
  EXPECT_EQ(bytes_of_spelling("日"), std::nullopt);
}

}  // namespace
}  // namespace foretoken
