// Pretokenizer: cuts text into the pieces inside which byte-pair merges happen. The two Qwen patterns are scanned by
// hand; every other pattern runs in PCRE2. It knows neither vocabulary nor special tokens.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace foretoken {

// The split patterns of the family, exactly as their files spell them.
extern const std::string_view kQwen35Pattern;  // Qwen3.5, 3.6, 3.8: marks belong to words
extern const std::string_view kQwen2Pattern;   // Qwen2, 2.5, 3, Qwen3-Next: marks belong to symbols
extern const std::string_view kGpt2Pattern;    // what a ByteLevel pre-tokenizer with use_regex means

class Pretokenizer {
 public:
  // Patterns are applied one after another, each inside the pieces of the one before.
  static Result<Pretokenizer> from_patterns(const std::vector<std::string>& patterns);

  // Appends the end offset of every piece of `text` (valid UTF-8) to `ends`, ascending; the pieces cover the text.
  Status split(std::string_view text, std::vector<size_t>& ends) const;

  // How the pieces are found, for a person: "qwen35 scanner", "qwen2 scanner", "PCRE2".
  std::string_view method() const;

 private:
  enum class Rule : uint8_t { kQwen35, kQwen2, kRegex };
  struct Regex;
  struct Stage {
    Rule rule;
    std::shared_ptr<const Regex> regex;
  };
  static Status split_regex(const Regex& regex, std::string_view text, size_t offset, std::vector<size_t>& ends);

  std::vector<Stage> stages_;
};

// End of the piece that starts at `begin` (< text.size()) by the Qwen rule; `marks_are_letters` is the Qwen3.5 variant.
size_t next_qwen_piece(std::string_view text, size_t begin, bool marks_are_letters);

}  // namespace foretoken
