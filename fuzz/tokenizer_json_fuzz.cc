// tokenizer.json, tokenizer_config.json and GGUF vocabularies as foreign bytes: whatever loads must encode and decode
// without losing text. The input is the JSON, then an optional line "\n#config\n" with the configuration; inputs that
// start with "GGUF\n" are a vocabulary, one token a line, its type first.
// Covers: src/text/tokenizer_load.cc src/text/tokenizer.cc src/text/bpe.cc
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

using namespace foretoken;

namespace {

// Long enough for the encoder to remember words.
const std::string& long_text() {
  static const std::string text = [] {
    std::string t;
    for (int i = 0; t.size() < 1100; ++i) t += " word" + std::to_string(i % 40) + " Hello \u00e9t\u00e9";
    return t;
  }();
  return text;
}

void use(const Tokenizer& tokenizer) {
  static const std::string_view kTexts[] = {long_text(), "x \u00a0 <think> \t y", "", "a", "Hello <|im_end|> wörld e\u0301\n\n  x",
                                                "<think>\xff\xc3</think>   ",
                                                "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
  for (const std::string_view text : kTexts) {
    const ByteRange part{text.size() / 3, text.size() / 2};
    for (const auto& ids :
         {tokenizer.encode(text), tokenizer.encode_plain(text), tokenizer.encode(text, std::span(&part, 1))}) {
      if (!ids) continue;
      for (const TokenId id : *ids)
        if (!tokenizer.has(id)) std::abort();
      Detokenizer detokenizer(tokenizer);
      std::string streamed;
      for (const TokenId id : *ids) streamed += detokenizer.add(id);
      if (streamed + detokenizer.flush() != tokenizer.decode(*ids)) std::abort();
    }
    if (const auto ids = tokenizer.encode_plain(text))
      for (const TokenId id : *ids)
        if (tokenizer.is_special(id)) std::abort();
  }
  for (TokenId id = -1; id < std::min(tokenizer.size(), 600) + 1; ++id)
    tokenizer.find(tokenizer.bytes(id)), tokenizer.spelling(id);
}

void load_gguf(std::string_view text) {
  std::vector<std::string_view> tokens, merges;
  std::vector<int64_t> types;
  GgufVocabulary gguf;
  gguf.pre = "qwen35";
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (line.starts_with("m")) merges.push_back(line.substr(1));
    else if (line.starts_with("p")) gguf.pre = line.substr(1);
    else if (line.starts_with("e")) gguf.eos = static_cast<int64_t>(line.size());
    else if (!line.empty()) {
      types.push_back(line[0] - '0');
      tokens.push_back(line.substr(1));
    }
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  gguf.tokens = tokens;
  gguf.merges = merges;
  if (tokens.size() % 7 != 0) gguf.token_types = types;
  if (const auto tokenizer = Tokenizer::from_gguf(gguf)) use(*tokenizer);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.starts_with("GGUF\n")) {
    load_gguf(input.substr(5));
    return 0;
  }
  static constexpr std::string_view kConfig = "\n#config\n";
  const size_t split = input.find(kConfig);
  const auto tokenizer = split == std::string_view::npos
                             ? Tokenizer::from_json(input)
                             : Tokenizer::from_json(input.substr(0, split), input.substr(split + kConfig.size()));
  if (tokenizer) use(*tokenizer);
  return 0;
}
