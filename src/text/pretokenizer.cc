// The Qwen scanner follows the alternatives of the pattern in their order:
//   1 '(s|t|re|ve|m|ll|d), any case   2 one optional non-letter, then letters   3 one number character
//   4 optional space, symbols, then line ends   5 white space up to its last line end
//   6 white space that leaves its last character to a following word   7 white space
// Every character begins one of them, so the pieces cover the text. Source: docs/formats.md, "Tokenizer".
#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <limits>

#include "text/unicode.h"

namespace foretoken {

const std::string_view kQwen35Pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
                                        R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen2Pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                                       R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

enum class Kind : uint8_t { kWord, kNumber, kSpace, kSymbol };

struct Scanner {
  std::string_view text;
  bool marks_are_letters;

  struct Char {
    char32_t value;
    size_t size;
    Kind kind;
  };
  Char at(size_t i) const {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      if ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z') return {byte, 1, Kind::kWord};
      if (byte == ' ' || (byte >= 9 && byte <= 13)) return {byte, 1, Kind::kSpace};
      return {byte, 1, byte >= '0' && byte <= '9' ? Kind::kNumber : Kind::kSymbol};
    }
    const CodePoint c = decode_utf8(text, i);
    switch (char_class(c.value)) {
      case CharClass::kLetter:
        return {c.value, c.size, Kind::kWord};
      case CharClass::kMark:
        return {c.value, c.size, marks_are_letters ? Kind::kWord : Kind::kSymbol};
      case CharClass::kNumber:
        return {c.value, c.size, Kind::kNumber};
      case CharClass::kSpace:
        return {c.value, c.size, Kind::kSpace};
      default:
        return {c.value, c.size, Kind::kSymbol};
    }
  }

  size_t run(size_t i, Kind kind) const {
    while (i < text.size()) {
      const Char c = at(i);
      if (c.kind != kind) break;
      i += c.size;
    }
    return i;
  }

  bool is_kind(size_t i, Kind kind) const { return i < text.size() && at(i).kind == kind; }

  // Length of the contraction after an apostrophe at `i`, or 0. U+017F folds to s in a caseless match.
  size_t contraction(size_t i) const {
    const auto letter = [&](size_t k) -> char { return k < text.size() ? static_cast<char>(text[k] | 0x20) : '\0'; };
    const char first = letter(i + 1), second = letter(i + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if ((first == 'r' || first == 'v') && second == 'e') return 3;
    if (first == 'l' && second == 'l') return 3;
    return text.substr(i + 1, 2) == "\u017F" ? 3 : 0;
  }

  size_t next(size_t begin) const {
    if (text[begin] == '\'')
      if (const size_t length = contraction(begin)) return begin + length;

    const Char first = at(begin);
    const size_t second = begin + first.size;
    if (first.kind == Kind::kWord) return run(second, Kind::kWord);
    if (first.kind == Kind::kNumber) return second;
    const bool line_end = first.value == '\r' || first.value == '\n';
    if (!line_end && is_kind(second, Kind::kWord)) return run(second, Kind::kWord);

    if (first.kind == Kind::kSymbol || (first.value == ' ' && is_kind(second, Kind::kSymbol))) {
      size_t end = run(second, Kind::kSymbol);
      while (end < text.size() && (text[end] == '\r' || text[end] == '\n')) ++end;
      return end;
    }

    size_t end = begin, last = begin, after_line_end = 0;
    while (end < text.size()) {
      const Char c = at(end);
      if (c.kind != Kind::kSpace) break;
      last = end;
      end += c.size;
      if (c.value == '\r' || c.value == '\n') after_line_end = end;
    }
    if (after_line_end > 0) return after_line_end;
    if (end == text.size() || last == begin) return end;
    return last;
  }
};

}  // namespace

size_t next_qwen_piece(std::string_view text, size_t begin, bool marks_are_letters) {
  return Scanner{text, marks_are_letters}.next(begin);
}

struct Pretokenizer::Regex {
  pcre2_code* code = nullptr;
  bool jit = false;
  Regex() = default;
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;
  ~Regex() { pcre2_code_free(code); }
};

Result<Pretokenizer> Pretokenizer::from_patterns(const std::vector<std::string>& patterns) {
  Pretokenizer result;
  for (const std::string& pattern : patterns) {
    if (pattern == kQwen35Pattern || pattern == kQwen2Pattern) {
      result.stages_.push_back({pattern == kQwen35Pattern ? Rule::kQwen35 : Rule::kQwen2, nullptr});
      continue;
    }
    auto regex = std::make_shared<Regex>();
    int code = 0;
    size_t at = 0;
    // \C would cut between the bytes of a character, and what follows is matched as valid UTF-8 without a look.
    regex->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, nullptr);
    if (!regex->code) {
      PCRE2_UCHAR reason[128] = {};
      pcre2_get_error_message(code, reason, sizeof reason);
      return Error{ErrorCode::kUnsupported, "the pre-tokenizer pattern '" + pattern.substr(0, 200) +
                                                "' does not compile at offset " + std::to_string(at) + " (" +
                                                reinterpret_cast<const char*>(reason) + "); use a model whose " +
                                                "tokenizer.json splits with a PCRE-compatible pattern"};
    }
    regex->jit = pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE) == 0;
    result.stages_.push_back({Rule::kRegex, std::move(regex)});
  }
  return result;
}

std::string_view Pretokenizer::method() const {
  if (stages_.size() != 1) return stages_.empty() ? "none" : "PCRE2";
  switch (stages_[0].rule) {
    case Rule::kQwen35:
      return "qwen35 scanner";
    case Rule::kQwen2:
      return "qwen2 scanner";
    default:
      return "PCRE2";
  }
}

namespace {

// What a match may take: a few steps for every byte of a long run, and enough for what looks ahead and back. The library's own limits
// are a stack of 32 KiB for compiled code and ten million steps of its interpreter, which are two minutes of a pattern that tries
// everything, and short for a run of many megabytes. Of one thread.
class MatchLimits {
 public:
  MatchLimits() : stack_(pcre2_jit_stack_create(32 << 10, 16 << 20, nullptr)), context_(pcre2_match_context_create(nullptr)) {
    pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  MatchLimits(const MatchLimits&) = delete;
  ~MatchLimits() {
    pcre2_match_context_free(context_);
    pcre2_jit_stack_free(stack_);
  }
  pcre2_match_context* of(std::string_view text, bool compiled) {
    const uint64_t steps = (compiled ? 1'000'000 : 100'000) + 8 * uint64_t{text.size()};
    pcre2_set_match_limit(context_, static_cast<uint32_t>(std::min<uint64_t>(steps, std::numeric_limits<uint32_t>::max())));
    return context_;
  }

 private:
  pcre2_jit_stack* stack_;
  pcre2_match_context* context_;
};

}  // namespace

Status Pretokenizer::split_regex(const Regex& regex, std::string_view text, size_t offset, std::vector<size_t>& ends) {
  pcre2_match_data* match = pcre2_match_data_create_from_pattern(regex.code, nullptr);
  thread_local MatchLimits limits;
  const size_t* bounds = pcre2_get_ovector_pointer(match);
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t cut = 0;
  Status status;
  for (size_t at = 0; at < text.size();) {
    int found = pcre2_match(regex.code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, match, limits.of(text, regex.jit));
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found = pcre2_match(regex.code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match,
                          limits.of(text, false));
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      PCRE2_UCHAR reason[128] = {};
      pcre2_get_error_message(found, reason, sizeof reason);
      status = Error{ErrorCode::kUnsupported, "the pre-tokenizer pattern gave up on this text (" +
                                                  std::string(reinterpret_cast<const char*>(reason)) +
                                                  "); split the text into shorter parts"};
      break;
    }
    const size_t begin = bounds[0], end = bounds[1];
    if (end <= begin) {  // an empty match cuts nothing; look further on
      at = begin >= text.size() ? text.size() : begin + decode_utf8(text, begin).size;
      continue;
    }
    if (begin > cut) ends.push_back(offset + begin);
    ends.push_back(offset + end);
    cut = at = end;
  }
  if (cut < text.size()) ends.push_back(offset + text.size());
  pcre2_match_data_free(match);
  return status;
}

Status Pretokenizer::split(std::string_view text, std::vector<size_t>& ends) const {
  if (text.empty()) return {};
  std::vector<size_t> pieces{text.size()}, finer;
  for (const Stage& stage : stages_) {
    finer.clear();
    size_t begin = 0;
    for (const size_t end : pieces) {
      const std::string_view piece = text.substr(begin, end - begin);
      if (stage.rule == Rule::kRegex) {
        TRY(split_regex(*stage.regex, piece, begin, finer));
      } else {
        for (size_t at = 0; at < piece.size();) {
          at = next_qwen_piece(piece, at, stage.rule == Rule::kQwen35);
          finer.push_back(begin + at);
        }
      }
      begin = end;
    }
    pieces.swap(finer);
  }
  ends.insert(ends.end(), pieces.begin(), pieces.end());
  return {};
}

}  // namespace foretoken
