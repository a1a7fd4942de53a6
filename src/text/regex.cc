// A recursive-descent parser of patterns.
#include "text/regex.h"

#include <optional>

#include "text/unicode.h"

namespace foretoken {
namespace {

const CodePointSet& digits() {
  static const CodePointSet set{{'0', '9'}};
  return set;
}
const CodePointSet& word_characters() {
  static const CodePointSet set{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return set;
}
const CodePointSet& white_space() {
  static const CodePointSet set{{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                                {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return set;
}
const CodePointSet& not_line_ends() {
  static const CodePointSet set = CodePointSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.complement();
  return set;
}

class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern) : text_(pattern) {}

  Result<Expr> parse() {
    if (!is_valid_utf8(text_)) return Error{ErrorCode::kUsage, "the pattern is not UTF-8"};
    ASSIGN_OR_RETURN(Expr result, alternatives(0));
    if (at_ < text_.size()) return bad("an unmatched ')'");
    return result;
  }

 private:
  static constexpr int kDeepestGroup = 100;
  static constexpr uint32_t kMostRepeats = 100'000;

  Error bad(std::string_view what) const {
    return {ErrorCode::kUsage, "the pattern has " + std::string(what) + " at byte " + std::to_string(at_)};
  }
  Error unsupported(std::string_view what) const {
    return {ErrorCode::kUnsupported, "the pattern uses " + std::string(what) + " at byte " + std::to_string(at_) +
                                         ", which no finite automaton here does"};
  }
  bool more() const { return at_ < text_.size(); }
  bool sees(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool take(std::string_view what) {
    if (!sees(what)) return false;
    at_ += what.size();
    return true;
  }
  char32_t take_character() {
    const CodePoint c = decode_utf8(text_, at_);
    at_ += c.size;
    return c.value;
  }

  Result<Expr> alternatives(int depth) {
    if (depth > kDeepestGroup) return bad("groups nested too deeply");
    std::vector<Expr> choices;
    do {
      ASSIGN_OR_RETURN(Expr choice, sequence(depth));
      choices.push_back(std::move(choice));
    } while (take("|"));
    return choices.size() == 1 ? choices[0] : expr::choice(std::move(choices));
  }

  Result<Expr> sequence(int depth) {
    std::vector<Expr> parts;
    while (more() && !sees("|") && !sees(")")) {
      ASSIGN_OR_RETURN(Expr part, term(depth));
      parts.push_back(std::move(part));
    }
    return parts.size() == 1 ? parts[0] : expr::sequence(std::move(parts));
  }

  Result<Expr> term(int depth) {
    if (take("^")) return expr::begin();
    if (take("$")) return expr::end();
    ASSIGN_OR_RETURN(Expr part, atom(depth));
    ASSIGN_OR_RETURN(const auto bounds, quantifier());
    if (!bounds) return part;
    take("?");  // lazy: the same texts match
    const auto [min, max] = *bounds;
    if (min > max) return bad("a repetition whose bounds are out of order");
    return expr::repeat(std::move(part), min, max);
  }

  using Bounds = std::optional<std::pair<uint32_t, uint32_t>>;

  // {a}, {a,} or {a,b} is a quantifier; another brace is a character.
  Result<Bounds> quantifier() {
    if (take("*")) return Bounds({0, Expression::kUnbounded});
    if (take("+")) return Bounds({1, Expression::kUnbounded});
    if (take("?")) return Bounds({0, 1});
    const size_t begin = at_;
    if (!take("{")) return Bounds();
    const auto low = number();
    if (low && take("}")) return within(*low, *low);
    if (low && take(",")) {
      if (take("}")) return within(*low, Expression::kUnbounded);
      if (const auto high = number(); high && take("}")) return within(*low, *high);
    }
    at_ = begin;
    return Bounds();
  }
  Result<Bounds> within(uint32_t low, uint32_t high) const {
    if (low > kMostRepeats || (high > kMostRepeats && high != Expression::kUnbounded))
      return Error{ErrorCode::kUnsupported, "the pattern repeats more than " + std::to_string(kMostRepeats) + " times"};
    return Bounds({low, high});
  }
  std::optional<uint32_t> number() {
    uint64_t value = 0;
    const size_t begin = at_;
    for (; more() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(text_[at_] - '0'), kMostRepeats + 1);
    return at_ > begin ? std::optional(static_cast<uint32_t>(value)) : std::nullopt;
  }

  Result<Expr> atom(int depth) {
    if (take("(")) return group(depth);
    if (take("[")) return bracket();
    if (take(".")) return expr::set(not_line_ends());
    if (sees("*") || sees("+") || sees("?")) return bad("a quantifier with nothing before it");
    if (take("\\")) {
      ASSIGN_OR_RETURN(CodePointSet set, escape(false));
      return expr::set(std::move(set));
    }
    const char32_t c = take_character();
    return expr::set({{c, c}});
  }

  Result<Expr> group(int depth) {
    for (const char* look : {"?=", "?!", "?<=", "?<!"})
      if (sees(look)) return unsupported("look-around");
    if (take("?")) {
      if (take("<")) {
        while (more() && !sees(">")) ++at_;
        if (!take(">")) return bad("a group name without an end");
      } else if (!take(":")) {
        return bad("an unknown kind of group");
      }
    }
    ASSIGN_OR_RETURN(Expr inner, alternatives(depth + 1));
    if (!take(")")) return bad("a group without an end");
    return inner;
  }

  Result<Expr> bracket() {
    const bool negated = take("^");
    CodePointSet set;
    while (!take("]")) {
      if (!more()) return bad("a character class without an end");
      ASSIGN_OR_RETURN(const CodePointSet low, class_member());
      const bool one = is_one(low);
      if (sees("-") && !sees("-]") && one) {
        take("-");
        ASSIGN_OR_RETURN(const CodePointSet high, class_member());
        if (!is_one(high)) return bad("a character range that ends with a class");
        const char32_t first = low.ranges()[0].first, last = high.ranges()[0].first;
        if (first > last) return bad("a character range out of order");
        set.add(first, last);
      } else {
        set.add(low);
      }
    }
    return expr::set(negated ? set.complement() : std::move(set));
  }
  static bool is_one(const CodePointSet& set) {
    return set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].last;
  }
  Result<CodePointSet> class_member() {
    if (!more()) return bad("a character class without an end");
    if (take("\\")) return escape(true);
    const char32_t c = take_character();
    return CodePointSet{{c, c}};
  }

  // After a backslash.
  Result<CodePointSet> escape(bool in_class) {
    if (!more()) return bad("a backslash at its end");
    const auto one = [](char32_t c) { return CodePointSet{{c, c}}; };
    const char32_t c = take_character();
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return digits().complement();
      case 'w':
        return word_characters();
      case 'W':
        return word_characters().complement();
      case 's':
        return white_space();
      case 'S':
        return white_space().complement();
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'v':
        return one('\v');
      case 'f':
        return one('\f');
      case 'r':
        return one('\r');
      case '0':
        return more() && text_[at_] >= '0' && text_[at_] <= '9' ? Result<CodePointSet>(bad("an octal escape")) : one(0);
      case 'b':
        return in_class ? Result<CodePointSet>(one('\b')) : unsupported("a word boundary");
      case 'B':
        return unsupported("a word boundary");
      case 'p':
      case 'P':
        return unsupported("a Unicode property");
      case 'c': {
        const char32_t letter = more() ? take_character() : 0;
        if (!((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z'))) return bad("a bad control escape");
        return one(letter & 31);
      }
      case 'x':
        return coded(2);
      case 'u':
        return unicode_escape();
      default:
        break;
    }
    if (c >= '1' && c <= '9') return unsupported("a back reference");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return bad("an unknown escape");
    return one(c);
  }

  std::optional<char32_t> hex(size_t least, size_t most) {
    char32_t value = 0;
    size_t count = 0;
    for (; count < most && more(); ++count, ++at_) {
      const char c = text_[at_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return count >= least ? std::optional(value) : std::nullopt;
  }
  Result<CodePointSet> coded(size_t digits) {
    const auto value = hex(digits, digits);
    if (!value) return bad("a bad escape of a character");
    return CodePointSet{{*value, *value}};
  }
  Result<CodePointSet> unicode_escape() {
    std::optional<char32_t> value;
    if (take("{")) {
      value = hex(1, 8);
      if (!take("}") || (value && *value > 0x10FFFF)) value.reset();
    } else {
      value = hex(4, 4);
      if (value && *value >= 0xD800 && *value < 0xDC00 && take("\\u"))
        if (const auto low = hex(4, 4); low && *low >= 0xDC00 && *low < 0xE000)
          value = 0x10000 + ((*value - 0xD800) << 10) + (*low - 0xDC00);
    }
    if (!value || (*value >= 0xD800 && *value < 0xE000)) return bad("a bad escape of a character");
    return CodePointSet{{*value, *value}};
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Result<Expr> parse_regex(std::string_view pattern) { return RegexParser(pattern).parse(); }

Expr anchored(Expr expression) { return expr::sequence({expr::begin(), std::move(expression), expr::end()}); }

}  // namespace foretoken
