// One pass over the source: text up to the next tag, then the tag's tokens up to its end mark.
#include "text/template_lexer.h"

#include <algorithm>

#include "text/unicode.h"

namespace foretoken::jinja {
namespace {

constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                           "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

// Universal line ends, and without one final line end, as Jinja reads a file.
std::string with_plain_line_ends(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') text += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n') text += '\n';
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) {
      const size_t tag = next_tag();
      if (tag == std::string::npos) {
        add(TokenKind::kText, source_.substr(at_));
        break;
      }
      const char kind = source_[tag + 1];
      size_t inner = tag + 2;
      char sign = '\0';
      if (inner < source_.size() && (source_[inner] == '-' || source_[inner] == '+')) sign = source_[inner++];
      add_text(at_, tag, sign, kind == '{');
      advance(inner);
      if (kind == '#') TRY(comment());
      else if (kind == '%' && raw_follows()) TRY(raw());
      else TRY(tag_body(kind == '%'));
    }
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  Error error(const std::string& what) const { return template_error(ErrorCode::kInvalidFile, line_, what); }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  void advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  size_t next_tag() const {
    for (size_t i = source_.find('{', at_); i != std::string::npos; i = source_.find('{', i + 1))
      if (i + 1 < source_.size() && (source_[i + 1] == '%' || source_[i + 1] == '{' || source_[i + 1] == '#')) return i;
    return std::string::npos;
  }

  // The text before a tag, shortened as the tag's sign and lstrip_blocks ask.
  void add_text(size_t begin, size_t end, char sign, bool is_output) {
    std::string_view text = std::string_view(source_).substr(begin, end - begin);
    if (sign == '-') {
      while (!text.empty()) {
        const CodePoint last = decode_utf8_before(text, text.size());
        if (!is_python_space(last.value)) break;
        text.remove_suffix(last.size);
      }
    } else if (sign != '+' && !is_output) {
      const size_t line_end = text.rfind('\n');
      const size_t line_begin = line_end == std::string_view::npos ? 0 : line_end + 1;
      if ((line_begin > 0 || at_line_begin_) && skip_space(text, line_begin) == text.size())
        text = text.substr(0, line_begin);
    }
    if (!text.empty()) add(TokenKind::kText, std::string(text));
    at_line_begin_ = false;
  }

  static size_t skip_space(std::string_view text, size_t at) {
    while (at < text.size()) {
      const CodePoint c = decode_utf8(text, at);
      if (!is_python_space(c.value)) break;
      at += c.size;
    }
    return at;
  }

  // Moves past an end mark at `mark` and the white space that its sign or trim_blocks removes.
  void pass_end(size_t mark, char sign, bool trims) {
    size_t end = mark + 2;
    if (sign == '-') end = skip_space(source_, end);
    else if (sign != '+' && trims && end < source_.size() && source_[end] == '\n') ++end;
    advance(end);
    at_line_begin_ = source_[end - 1] == '\n';
  }

  Status comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return error("a comment is not closed with #}");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    pass_end(end, sign == '-' || sign == '+' ? sign : '\0', true);
    return {};
  }

  bool raw_follows() const {
    size_t i = skip_space(source_, at_);
    if (source_.compare(i, 3, "raw") != 0) return false;
    i = skip_space(source_, i + 3);
    if (i < source_.size() && source_[i] == '-') ++i;
    return source_.compare(i, 2, "%}") == 0;
  }

  Status raw() {
    const size_t mark = source_.find("%}", at_);
    pass_end(mark, source_[mark - 1], false);
    at_line_begin_ = source_[at_ - 1] == '\n';
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      size_t i = tag + 2;
      char sign = '\0';
      if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) sign = source_[i++];
      i = skip_space(source_, i);
      if (source_.compare(i, 6, "endraw") != 0) continue;
      i = skip_space(source_, i + 6);
      char end_sign = '\0';
      if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) end_sign = source_[i++];
      if (source_.compare(i, 2, "%}") != 0) continue;
      add_text(at_, tag, sign, false);
      pass_end(i, end_sign, true);
      return {};
    }
    return error("a raw block is not closed with {% endraw %}");
  }

  // Tokens up to the end mark of a statement ("%}") or of an output ("}}").
  Status tag_body(bool is_block) {
    add(is_block ? TokenKind::kBlockBegin : TokenKind::kOutputBegin, "");
    const std::string_view end_mark = is_block ? "%}" : "}}";
    std::string open;  // brackets waiting for their partners
    while (true) {
      advance(skip_space(source_, at_));
      if (at_ >= source_.size()) return error(std::string("a tag is not closed with ") + std::string(end_mark));
      if (open.empty()) {
        const char c = source_[at_];
        const bool signed_end = (c == '-' || (c == '+' && is_block)) && source_.compare(at_ + 1, 2, end_mark) == 0;
        if (signed_end || source_.compare(at_, 2, end_mark) == 0) {
          add(is_block ? TokenKind::kBlockEnd : TokenKind::kOutputEnd, "");
          pass_end(signed_end ? at_ + 1 : at_, signed_end ? c : '\0', is_block);
          return {};
        }
      }
      TRY(token(open));
    }
  }

  Status token(std::string& open) {
    const char c = source_[at_];
    if (is_name_start(c)) {
      size_t end = at_ + 1;
      while (end < source_.size() && is_name_part(source_[end])) ++end;
      add(TokenKind::kName, source_.substr(at_, end - at_));
      at_ = end;
      return {};
    }
    if (is_digit(c)) return number();
    if (c == '"' || c == '\'') return string(c);
    for (const std::string_view op : kOperators) {
      if (source_.compare(at_, op.size(), op) != 0) continue;
      if (op == "(" || op == "[" || op == "{") {
        open += op == "(" ? ')' : op == "[" ? ']' : '}';
      } else if (op == ")" || op == "]" || op == "}") {
        if (open.empty() || open.back() != op[0]) return error("unexpected '" + std::string(op) + "'");
        open.pop_back();
      }
      add(TokenKind::kOperator, std::string(op));
      at_ += op.size();
      return {};
    }
    const CodePoint strange = decode_utf8(source_, at_);
    return error("unexpected character '" + source_.substr(at_, strange.size) + "'");
  }

  size_t digits(size_t i) const {
    while (i < source_.size() &&
           (is_digit(source_[i]) || (source_[i] == '_' && i + 1 < source_.size() && is_digit(source_[i + 1]))))
      ++i;
    return i;
  }

  Status number() {
    if (source_[at_] == '0' && at_ + 1 < source_.size() &&
        std::string_view("xXoObB").find(source_[at_ + 1]) != std::string_view::npos) {
      size_t end = at_ + 2;
      while (end < source_.size() && (is_name_part(source_[end]))) ++end;
      add(TokenKind::kInteger, source_.substr(at_, end - at_));
      at_ = end;
      return {};
    }
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';  // x.0.1 is two subscripts
    size_t end = digits(at_);
    bool is_float = false;
    if (!after_dot) {
      if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
        end = digits(end + 1);
        is_float = true;
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        size_t i = end + 1;
        if (i < source_.size() && (source_[i] == '+' || source_[i] == '-')) ++i;
        if (i < source_.size() && is_digit(source_[i])) {
          end = digits(i);
          is_float = true;
        }
      }
    }
    if (!is_float && end < source_.size() && is_name_part(source_[end])) return error("a number runs into a name");
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    if (!is_float && text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != std::string::npos)
      return error("the number " + text + " starts with 0");
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(text));
    at_ = end;
    return {};
  }

  Status string(char quote) {
    std::string value;
    size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\') {
        value += source_[i];
        continue;
      }
      if (++i == source_.size()) break;
      TRY(escape(i, value));
    }
    if (i >= source_.size()) return error("a string is not closed");
    add(TokenKind::kString, std::move(value));
    advance(i + 1);
    return {};
  }

  // Python's escapes; `i` stands on the character after the backslash and ends on the last one used.
  Status escape(size_t& i, std::string& value) {
    const char c = source_[i];
    static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t known = kFrom.find(c); known != std::string_view::npos) {
      value += kTo[known];
      return {};
    }
    if (c == '\n') return {};
    const int wanted = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (wanted > 0) {
      char32_t code = 0;
      for (int k = 0; k < wanted; ++k) {
        const char digit = ++i < source_.size() ? source_[i] : '\0';
        const int nibble = is_digit(digit)                ? digit - '0'
                           : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
                           : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                                                          : -1;
        if (nibble < 0) return error(std::string("a \\") + c + " escape has too few digits");
        code = code << 4 | static_cast<char32_t>(nibble);
      }
      if (code > 0x10FFFF) return error("an escape names no character");
      append_utf8(code, value);
      return {};
    }
    if (c >= '0' && c <= '7') {
      char32_t code = 0;
      size_t end = i;
      while (end < source_.size() && end < i + 3 && source_[end] >= '0' && source_[end] <= '7')
        code = code * 8 + static_cast<char32_t>(source_[end++] - '0');
      i = end - 1;
      append_utf8(code, value);
      return {};
    }
    if (c == 'N')
      return template_error(ErrorCode::kUnsupported, line_, "escapes by character name (\\N) are not supported");
    value += '\\';
    value += c;
    return {};
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool at_line_begin_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

Error template_error(ErrorCode code, int line, const std::string& what) {
  return {code, "chat template line " + std::to_string(line) + ": " + what};
}

Result<std::vector<Token>> tokenize_template(std::string_view source) {
  return Lexer(with_plain_line_ends(source)).run();
}

}  // namespace foretoken::jinja
