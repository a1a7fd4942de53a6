// Recursive descent in Jinja's order of precedence. The first mistake is kept and everything after it returns at once;
// nesting is bounded, so a hostile template cannot exhaust the stack here or in the interpreter.
#include "text/template_parser.h"

#include <algorithm>
#include <initializer_list>

#include "text/template_lexer.h"

namespace foretoken::jinja {
namespace {

constexpr int kDeepest = 150;  // nested parentheses, lists and blocks
constexpr int kTallest = 400;  // height of an expression, however it came about (a.b.c..., a + b + c ...)
constexpr std::string_view kUnsupportedTags[] = {"extends",    "include", "import", "from", "block",
                                                 "autoescape", "trans",   "do",     "debug"};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Syntax> run() {
    syntax_.body = body({});
    if (error_) return *error_;
    return std::move(syntax_);
  }

 private:
  // ---- tokens and failure

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool failed() const { return error_.has_value(); }

  std::nullptr_t fail(int line, const std::string& what, ErrorCode code = ErrorCode::kInvalidFile) {
    if (!error_) error_ = template_error(code, line, what);
    return nullptr;
  }
  std::nullptr_t fail(const std::string& what) { return fail(now().line, what); }

  static std::string describe(const Token& token) {
    switch (token.kind) {
      case TokenKind::kText:
        return "text";
      case TokenKind::kBlockBegin:
        return "'{%'";
      case TokenKind::kBlockEnd:
        return "'%}'";
      case TokenKind::kOutputBegin:
        return "'{{'";
      case TokenKind::kOutputEnd:
        return "'}}'";
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kString:
        return "a string";
      default:
        return "'" + token.text + "'";
    }
  }

  bool is_operator(std::string_view op) const { return now().kind == TokenKind::kOperator && now().text == op; }
  bool is_name(std::string_view name) const { return now().kind == TokenKind::kName && now().text == name; }
  bool skip_operator(std::string_view op) {
    if (!is_operator(op)) return false;
    next();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!is_name(name)) return false;
    next();
    return true;
  }
  bool expect_operator(std::string_view op) {
    if (skip_operator(op)) return true;
    fail("'" + std::string(op) + "' expected, " + describe(now()) + " found");
    return false;
  }
  bool expect_name(std::string_view name) {
    if (skip_name(name)) return true;
    fail("'" + std::string(name) + "' expected, " + describe(now()) + " found");
    return false;
  }
  std::string expect_any_name(const char* what) {
    if (now().kind != TokenKind::kName) {
      fail(std::string(what) + " expected, " + describe(now()) + " found");
      return {};
    }
    std::string name = now().text;
    next();
    return name;
  }
  bool expect_block_end() {
    if (now().kind != TokenKind::kBlockEnd) {
      fail("'%}' expected, " + describe(now()) + " found");
      return false;
    }
    next();
    return true;
  }

  struct Nesting {
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kDeepest) parser_.fail("the template is nested too deeply");
    }
    ~Nesting() { --parser_.depth_; }
    Parser& parser_;
  };

  ExprPtr make(ExprKind kind, int line) {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line;
    return expr;
  }
  // Call when all children are in place.
  ExprPtr done(ExprPtr expr) {
    if (failed()) return nullptr;
    int height = 0;
    for (const ExprPtr& child : expr->children)
      if (child) height = std::max(height, child->height);
    for (const auto& [name, child] : expr->named) height = std::max(height, child->height);
    expr->height = height + 1;
    if (expr->height > kTallest) return fail(expr->line, "an expression is too long or too deeply nested");
    return expr;
  }

  // ---- statements

  // Statements up to one of the tags in `ends`, whose name is left in end_; its arguments and '%}' are still to be
  // read.
  Body body(std::initializer_list<std::string_view> ends) {
    Nesting nesting(*this);
    Body result;
    while (!failed()) {
      const Token& token = now();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() > 0) fail("the template ends where {% " + std::string(*(ends.end() - 1)) + " %} is expected");
        break;
      }
      if (token.kind == TokenKind::kText) {
        auto stmt = make_stmt(StmtKind::kText);
        stmt->text_value = Value::text(token.text);
        result.push_back(std::move(stmt));
        next();
      } else if (token.kind == TokenKind::kOutputBegin) {
        auto stmt = make_stmt(StmtKind::kOutput);
        next();
        stmt->exprs.push_back(tuple_or_expression());
        if (now().kind != TokenKind::kOutputEnd) fail("'}}' expected, " + describe(now()) + " found");
        else next();
        result.push_back(std::move(stmt));
      } else {
        next();  // '{%'
        if (now().kind == TokenKind::kName && std::find(ends.begin(), ends.end(), now().text) != ends.end()) {
          end_ = now().text;
          next();
          return result;
        }
        if (auto stmt = statement()) result.push_back(std::move(stmt));
      }
    }
    end_.clear();
    return result;
  }

  // The body up to `end`, and past that tag.
  Body body_through(std::string_view end) {
    Body result = body({end});
    if (!failed()) expect_block_end();
    return result;
  }

  std::unique_ptr<Stmt> make_stmt(StmtKind kind) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = now().line;
    return stmt;
  }

  std::unique_ptr<Stmt> statement() {
    const int line = now().line;
    const std::string tag = expect_any_name("the name of a tag");
    if (failed()) return nullptr;
    if (tag == "if") return if_tag();
    if (tag == "for") return for_tag();
    if (tag == "set") return set_tag();
    if (tag == "with") return with_tag();
    if (tag == "macro") return macro_tag();
    if (tag == "call") return call_tag();
    if (tag == "filter") return filter_tag();
    if (tag == "generation") {
      auto stmt = make_stmt(StmtKind::kGroup);
      if (!expect_block_end()) return nullptr;
      stmt->bodies.push_back(body_through("endgeneration"));
      return stmt;
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) return fail(line, "'" + tag + "' stands outside a loop");
      auto stmt = make_stmt(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue);
      expect_block_end();
      return stmt;
    }
    if (std::find(std::begin(kUnsupportedTags), std::end(kUnsupportedTags), tag) != std::end(kUnsupportedTags))
      return fail(line, "the tag '" + tag + "' is not supported", ErrorCode::kUnsupported);
    return fail(line, "unknown or misplaced tag '" + tag + "'");
  }

  std::unique_ptr<Stmt> if_tag() {
    auto stmt = make_stmt(StmtKind::kIf);
    while (!failed()) {
      stmt->exprs.push_back(tuple_or_expression(/*conditional=*/false));
      if (!expect_block_end()) return nullptr;
      stmt->bodies.push_back(body({"elif", "else", "endif"}));
      if (end_ == "elif") continue;
      if (end_ == "else") {
        if (!expect_block_end()) return nullptr;
        stmt->bodies.push_back(body({"endif"}));
      }
      if (!failed()) expect_block_end();
      break;
    }
    return stmt;
  }

  std::unique_ptr<Stmt> for_tag() {
    auto stmt = make_stmt(StmtKind::kFor);
    if (is_name("loop")) return fail("'loop' cannot be the name of a for loop's item");
    stmt->target = target(/*may_be_attribute=*/false);
    if (failed() || !expect_name("in")) return nullptr;
    stmt->exprs.push_back(tuple_or_expression(/*conditional=*/false));
    stmt->exprs.push_back(skip_name("if") ? expression() : nullptr);
    stmt->recursive = skip_name("recursive");
    if (!expect_block_end()) return nullptr;
    const int closures = closures_;
    ++loops_;
    stmt->bodies.push_back(body({"else", "endfor"}));
    --loops_;
    stmt->makes_closures = closures_ != closures;
    if (end_ == "else") {
      if (!expect_block_end()) return nullptr;
      stmt->bodies.push_back(body({"endfor"}));
    } else {
      stmt->bodies.emplace_back();
    }
    if (!failed()) expect_block_end();
    return stmt;
  }

  std::unique_ptr<Stmt> set_tag() {
    auto stmt = make_stmt(StmtKind::kSet);
    stmt->target = target(/*may_be_attribute=*/true);
    if (failed()) return nullptr;
    if (skip_operator("=")) {
      stmt->exprs.push_back(tuple_or_expression());
      if (!failed()) expect_block_end();
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    if (stmt->target->kind == ExprKind::kTuple) return fail("a set block needs one name");
    stmt->exprs = filter_chain();
    if (failed() || !expect_block_end()) return nullptr;
    stmt->bodies.push_back(body_through("endset"));
    return stmt;
  }

  std::unique_ptr<Stmt> with_tag() {
    auto stmt = make_stmt(StmtKind::kWith);
    while (!failed() && now().kind != TokenKind::kBlockEnd) {
      if (!stmt->targets.empty() && !expect_operator(",")) return nullptr;
      stmt->targets.push_back(target(false));
      if (failed() || !expect_operator("=")) return nullptr;
      stmt->exprs.push_back(expression());
    }
    if (failed() || !expect_block_end()) return nullptr;
    stmt->bodies.push_back(body_through("endwith"));
    return stmt;
  }

  // The body of a macro or of a call block: loops outside it cannot be broken from inside.
  void closure_body(Stmt& stmt, std::string_view end) {
    if (!expect_block_end()) return;
    const int loops = std::exchange(loops_, 0);
    const bool rest = std::exchange(mentions_rest_, false);
    stmt.bodies.push_back(body_through(end));
    stmt.takes_rest = std::exchange(mentions_rest_, rest);
    loops_ = loops;
    ++closures_;
  }

  std::unique_ptr<Stmt> macro_tag() {
    auto stmt = make_stmt(StmtKind::kMacro);
    stmt->text = expect_any_name("the macro's name");
    stmt->symbol = syntax_.symbol(stmt->text);
    parameters(*stmt);
    if (!failed()) closure_body(*stmt, "endmacro");
    return stmt;
  }

  std::unique_ptr<Stmt> call_tag() {
    auto stmt = make_stmt(StmtKind::kCallBlock);
    stmt->text = "caller";
    if (is_operator("(")) parameters(*stmt);
    stmt->exprs.push_back(expression());
    if (failed()) return nullptr;
    if (stmt->exprs[0]->kind != ExprKind::kCall) return fail(stmt->line, "a call block needs a call");
    closure_body(*stmt, "endcall");
    return stmt;
  }

  std::unique_ptr<Stmt> filter_tag() {
    auto stmt = make_stmt(StmtKind::kFilterBlock);
    stmt->exprs.push_back(filter_after_bar(nullptr));
    for (ExprPtr& more : filter_chain()) stmt->exprs.push_back(std::move(more));
    if (failed() || !expect_block_end()) return nullptr;
    stmt->bodies.push_back(body_through("endfilter"));
    return stmt;
  }

  void parameters(Stmt& stmt) {
    if (!expect_operator("(")) return;
    while (!failed() && !is_operator(")")) {
      if (!stmt.parameters.empty() && !expect_operator(",")) return;
      Parameter parameter;
      parameter.symbol = syntax_.symbol(expect_any_name("a parameter's name"));
      if (skip_operator("=")) parameter.otherwise = expression();
      else if (!stmt.parameters.empty() && stmt.parameters.back().otherwise)
        fail("a parameter without default follows one with a default");
      stmt.parameters.push_back(std::move(parameter));
    }
    if (!failed()) expect_operator(")");
  }

  // name, name.attribute (of a namespace), or names separated by commas, perhaps in parentheses.
  ExprPtr target(bool may_be_attribute) {
    ExprPtr first = one_target(may_be_attribute);
    if (failed() || !is_operator(",")) return first;
    ExprPtr all = make(ExprKind::kTuple, first->line);
    all->children.push_back(std::move(first));
    while (!failed() && skip_operator(",")) {
      if (is_name("in") || is_operator("=")) break;
      all->children.push_back(one_target(false));
    }
    return done(std::move(all));
  }

  ExprPtr one_target(bool may_be_attribute) {
    Nesting nesting(*this);
    if (failed()) return nullptr;
    if (skip_operator("(")) {
      ExprPtr inner = target(false);
      if (!failed()) expect_operator(")");
      return failed() ? nullptr : std::move(inner);
    }
    const int line = now().line;
    const std::string name = expect_any_name("a name to assign to");
    if (failed()) return nullptr;
    if (name == "true" || name == "false" || name == "none" || name == "True" || name == "False" || name == "None")
      return fail(line, "'" + name + "' cannot be assigned to");
    ExprPtr result = make(ExprKind::kName, line);
    result->name = name;
    result->symbol = syntax_.symbol(name);
    if (!may_be_attribute || !skip_operator(".")) return result;
    ExprPtr attribute = make(ExprKind::kAttribute, line);
    attribute->name = expect_any_name("an attribute's name");
    attribute->children.push_back(std::move(result));
    return done(std::move(attribute));
  }

  // ---- expressions

  bool ends_tuple() const {
    const TokenKind kind = now().kind;
    return kind == TokenKind::kBlockEnd || kind == TokenKind::kOutputEnd || is_operator(")") || is_name("recursive");
  }

  ExprPtr tuple_or_expression(bool conditional = true) {
    const int line = now().line;
    ExprPtr first = conditional ? expression() : or_expression();
    if (failed() || !is_operator(",")) return first;
    ExprPtr all = make(ExprKind::kTuple, line);
    all->children.push_back(std::move(first));
    while (!failed() && skip_operator(",")) {
      if (ends_tuple()) break;
      all->children.push_back(conditional ? expression() : or_expression());
    }
    return done(std::move(all));
  }

  ExprPtr expression() {
    Nesting nesting(*this);
    ExprPtr value = or_expression();
    while (!failed() && is_name("if")) {
      ExprPtr choice = make(ExprKind::kConditional, now().line);
      next();
      choice->children.push_back(std::move(value));
      choice->children.push_back(or_expression());
      choice->children.push_back(!failed() && skip_name("else") ? expression() : nullptr);
      value = done(std::move(choice));
    }
    return value;
  }

  template <class Operand>
  ExprPtr joined_by(const char* word, ExprKind kind, Operand operand) {
    ExprPtr first = operand();
    if (failed() || !is_name(word)) return first;
    ExprPtr all = make(kind, now().line);
    all->children.push_back(std::move(first));
    while (!failed() && skip_name(word)) all->children.push_back(operand());
    return done(std::move(all));
  }

  ExprPtr or_expression() {
    return joined_by("or", ExprKind::kOr,
                     [&] { return joined_by("and", ExprKind::kAnd, [&] { return not_expression(); }); });
  }

  ExprPtr not_expression() {
    if (!is_name("not")) return comparison();
    Nesting nesting(*this);
    if (failed()) return nullptr;
    ExprPtr negation = make(ExprKind::kNot, now().line);
    next();
    negation->children.push_back(not_expression());
    return done(std::move(negation));
  }

  bool comparison_operator(Op& op) {
    if (now().kind == TokenKind::kOperator) {
      static constexpr std::pair<std::string_view, Op> kTable[] = {{"==", Op::kEqual},  {"!=", Op::kNotEqual},
                                                                   {"<", Op::kLess},    {"<=", Op::kLessEqual},
                                                                   {">", Op::kGreater}, {">=", Op::kGreaterEqual}};
      for (const auto& [text, value] : kTable) {
        if (now().text != text) continue;
        op = value;
        next();
        return true;
      }
      return false;
    }
    if (skip_name("in")) {
      op = Op::kIn;
      return true;
    }
    if (is_name("not") && ahead().kind == TokenKind::kName && ahead().text == "in") {
      next();
      next();
      op = Op::kNotIn;
      return true;
    }
    return false;
  }

  ExprPtr comparison() {
    ExprPtr first = sum();
    if (failed()) return nullptr;
    const int line = now().line;
    Op op;
    if (!comparison_operator(op)) return first;
    ExprPtr chain = make(ExprKind::kCompare, line);
    chain->children.push_back(std::move(first));
    do {
      chain->ops.push_back(op);
      chain->children.push_back(sum());
    } while (!failed() && comparison_operator(op));
    return done(std::move(chain));
  }

  using Level = ExprPtr (Parser::*)();
  ExprPtr binary(std::initializer_list<std::pair<std::string_view, Op>> table, Level operand) {
    ExprPtr left = (this->*operand)();
    while (!failed() && now().kind == TokenKind::kOperator) {
      const auto found =
          std::find_if(table.begin(), table.end(), [&](const auto& row) { return row.first == now().text; });
      if (found == table.end()) break;
      ExprPtr node = make(ExprKind::kBinary, now().line);
      node->op = found->second;
      next();
      node->children.push_back(std::move(left));
      node->children.push_back((this->*operand)());
      left = done(std::move(node));
    }
    return left;
  }
  ExprPtr sum() { return binary({{"+", Op::kAdd}, {"-", Op::kSubtract}}, &Parser::concat); }
  ExprPtr product() {
    return binary({{"*", Op::kMultiply}, {"/", Op::kDivide}, {"//", Op::kFloorDivide}, {"%", Op::kModulo}},
                  &Parser::power);
  }
  ExprPtr power() { return binary({{"**", Op::kPower}}, &Parser::filtered_unary); }
  ExprPtr filtered_unary() { return unary(true); }

  ExprPtr concat() {
    ExprPtr first = product();
    if (failed() || !is_operator("~")) return first;
    ExprPtr all = make(ExprKind::kConcat, now().line);
    all->children.push_back(std::move(first));
    while (!failed() && skip_operator("~")) all->children.push_back(product());
    return done(std::move(all));
  }

  ExprPtr unary(bool with_filters) {
    Nesting nesting(*this);
    if (failed()) return nullptr;
    ExprPtr value;
    if (is_operator("-") || is_operator("+")) {
      ExprPtr signed_value = make(is_operator("-") ? ExprKind::kNegate : ExprKind::kPlus, now().line);
      next();
      signed_value->children.push_back(unary(false));
      value = done(std::move(signed_value));
    } else {
      value = primary();
    }
    value = postfix(std::move(value));
    return with_filters ? filters_and_tests(std::move(value)) : std::move(value);
  }

  ExprPtr literal(Value value, int line) {
    ExprPtr expr = make(ExprKind::kLiteral, line);
    expr->literal = std::move(value);
    return expr;
  }

  ExprPtr primary() {
    if (failed()) return nullptr;
    const Token& token = now();
    const int line = token.line;
    switch (token.kind) {
      case TokenKind::kName: {
        const std::string name = token.text;
        next();
        if (name == "true" || name == "True") return literal(Value::boolean(true), line);
        if (name == "false" || name == "False") return literal(Value::boolean(false), line);
        if (name == "none" || name == "None") return literal(Value::none(), line);
        if (name == "varargs" || name == "kwargs") mentions_rest_ = true;
        ExprPtr expr = make(ExprKind::kName, line);
        expr->name = name;
        expr->symbol = syntax_.symbol(name);
        return expr;
      }
      case TokenKind::kString: {
        std::string text;
        for (; now().kind == TokenKind::kString; next()) text += now().text;
        return literal(Value::text(text), line);
      }
      case TokenKind::kInteger: {
        const char letter = token.text.size() > 1 ? static_cast<char>(token.text[1] | 0x20) : '\0';
        const auto value = parse_int(token.text, letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10);
        if (!value) return fail("'" + token.text + "' is not an integer, or too large");
        next();
        return literal(Value::integer(*value), line);
      }
      case TokenKind::kFloat: {
        const auto value = parse_float(token.text);
        if (!value) return fail("'" + token.text + "' is not a number");
        next();
        return literal(Value::number(*value), line);
      }
      default:
        break;
    }
    if (skip_operator("(")) {
      if (skip_operator(")")) return make(ExprKind::kTuple, line);
      ExprPtr inner = tuple_or_expression();
      if (!failed()) expect_operator(")");
      return inner;
    }
    if (skip_operator("[")) {
      ExprPtr list = make(ExprKind::kList, line);
      while (!failed() && !is_operator("]")) {
        if (!list->children.empty() && !expect_operator(",")) return nullptr;
        if (is_operator("]")) break;
        list->children.push_back(expression());
      }
      if (!failed()) expect_operator("]");
      return done(std::move(list));
    }
    if (skip_operator("{")) {
      ExprPtr dict = make(ExprKind::kDict, line);
      while (!failed() && !is_operator("}")) {
        if (!dict->children.empty() && !expect_operator(",")) return nullptr;
        if (is_operator("}")) break;
        dict->children.push_back(expression());
        if (failed() || !expect_operator(":")) return nullptr;
        dict->children.push_back(expression());
      }
      if (!failed()) expect_operator("}");
      return done(std::move(dict));
    }
    return fail("an expression is expected, " + describe(token) + " found");
  }

  ExprPtr postfix(ExprPtr value) {
    while (!failed()) {
      if (is_operator(".") || is_operator("[")) value = subscript(std::move(value));
      else if (is_operator("(")) value = call(std::move(value));
      else break;
    }
    return failed() ? nullptr : std::move(value);
  }

  ExprPtr subscript(ExprPtr value) {
    const int line = now().line;
    if (skip_operator(".")) {
      if (now().kind == TokenKind::kInteger) {
        ExprPtr node = make(ExprKind::kSubscript, line);
        node->children.push_back(std::move(value));
        node->children.push_back(primary());
        return done(std::move(node));
      }
      ExprPtr node = make(ExprKind::kAttribute, line);
      node->name = expect_any_name("an attribute's name");
      node->children.push_back(std::move(value));
      return done(std::move(node));
    }
    next();  // '['
    ExprPtr node = make(ExprKind::kSubscript, line);
    node->children.push_back(std::move(value));
    ExprPtr begin;
    if (!is_operator(":")) begin = tuple_or_expression();
    if (failed()) return nullptr;
    if (!is_operator(":")) {
      node->children.push_back(std::move(begin));
      expect_operator("]");
      return done(std::move(node));
    }
    node->kind = ExprKind::kSlice;
    node->children.push_back(std::move(begin));
    for (int part = 0; part < 2; ++part) {
      const bool given = !failed() && skip_operator(":");
      node->children.push_back(given && !is_operator(":") && !is_operator("]") ? expression() : nullptr);
    }
    if (!failed()) expect_operator("]");
    return done(std::move(node));
  }

  void arguments(Expr& node) {
    if (!expect_operator("(")) return;
    bool first = true;
    while (!failed() && !is_operator(")")) {
      if (!first && !expect_operator(",")) return;
      if (is_operator(")")) break;
      first = false;
      if (is_operator("*") || is_operator("**")) {
        fail(now().line, "unpacking arguments with * is not supported", ErrorCode::kUnsupported);
        return;
      }
      if (now().kind == TokenKind::kName && ahead().kind == TokenKind::kOperator && ahead().text == "=") {
        std::string name = now().text;
        next();
        next();
        ExprPtr value = expression();
        if (!failed()) node.named.emplace_back(std::move(name), std::move(value));
      } else {
        if (!node.named.empty()) {
          fail("an argument without name follows a named one");
          return;
        }
        node.children.push_back(expression());
      }
    }
    if (!failed()) expect_operator(")");
  }

  ExprPtr call(ExprPtr callee) {
    ExprPtr node = make(ExprKind::kCall, now().line);
    node->children.push_back(std::move(callee));
    arguments(*node);
    return done(std::move(node));
  }

  // The filter whose bar has just been read.
  ExprPtr filter_after_bar(ExprPtr value) {
    ExprPtr node = make(ExprKind::kFilter, now().line);
    node->name = expect_any_name("a filter's name");
    node->children.push_back(std::move(value));
    if (!failed() && is_operator("(")) arguments(*node);
    return done(std::move(node));
  }

  std::vector<ExprPtr> filter_chain() {
    std::vector<ExprPtr> chain;
    while (!failed() && skip_operator("|")) chain.push_back(filter_after_bar(nullptr));
    return chain;
  }

  ExprPtr filters_and_tests(ExprPtr value) {
    while (!failed()) {
      if (skip_operator("|")) value = filter_after_bar(std::move(value));
      else if (is_name("is")) value = test(std::move(value));
      else if (is_operator("(")) value = call(std::move(value));
      else break;
    }
    return failed() ? nullptr : std::move(value);
  }

  ExprPtr test(ExprPtr value) {
    const int line = now().line;
    next();  // 'is'
    const bool negated = skip_name("not");
    ExprPtr node = make(ExprKind::kTest, line);
    node->name = expect_any_name("a test's name");
    node->children.push_back(std::move(value));
    if (failed()) return nullptr;
    if (is_operator("(")) {
      arguments(*node);
    } else if (begins_argument()) {
      if (is_name("is")) return fail("tests cannot be chained with 'is'");
      node->children.push_back(postfix(primary()));
    }
    node = done(std::move(node));
    if (!negated || failed()) return node;
    ExprPtr negation = make(ExprKind::kNot, line);
    negation->children.push_back(std::move(node));
    return done(std::move(negation));
  }

  bool begins_argument() const {
    switch (now().kind) {
      case TokenKind::kName:
        return !is_name("else") && !is_name("or") && !is_name("and") && !is_name("if");
      case TokenKind::kString:
      case TokenKind::kInteger:
      case TokenKind::kFloat:
        return true;
      default:
        return is_operator("[") || is_operator("{");
    }
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;     // around the statement in hand, inside the same macro
  int closures_ = 0;  // macros and call blocks met so far
  bool mentions_rest_ = false;
  std::string end_;
  std::optional<Error> error_;
  Syntax syntax_;
};

}  // namespace

Result<Syntax> parse_template(std::string_view source) {
  ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize_template(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace foretoken::jinja
