// Cuts Jinja source into text, tag marks and the tokens inside tags, with the white-space control of trim_blocks and
// lstrip_blocks applied. It knows no grammar.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace foretoken::jinja {

enum class TokenKind : uint8_t {
  kText,
  kBlockBegin,
  kBlockEnd,
  kOutputBegin,
  kOutputEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // of a string: unescaped; of a number: without underscores
};

Error template_error(ErrorCode code, int line, const std::string& what);

// `source` is valid UTF-8.
Result<std::vector<Token>> tokenize_template(std::string_view source);

}  // namespace foretoken::jinja
