// The syntax tree of a chat template: plain data between the parser and the interpreter.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/template_value.h"

namespace foretoken::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kLiteral,      // literal
  kName,         // symbol
  kList,         // children
  kTuple,        // children
  kDict,         // children: key, value, key, value, ...
  kAttribute,    // child 0 . name
  kSubscript,    // child 0 [ child 1 ]
  kSlice,        // child 0 [ child 1 : child 2 : child 3 ], absent ones null
  kCall,         // child 0 (children 1.., named)
  kFilter,       // child 0 | name (children 1.., named); child 0 null inside a filter block's chain
  kTest,         // child 0 is name (children 1.., named)
  kNot,          // not child 0
  kNegate,       // - child 0
  kPlus,         // + child 0
  kBinary,       // child 0 op child 1
  kConcat,       // children joined as text
  kCompare,      // child 0 ops[0] child 1 ops[1] child 2 ...
  kAnd,          // children
  kOr,           // children
  kConditional,  // child 0 if child 1 else child 2 (null: undefined)
};

enum class Op : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

struct Expr {
  ExprKind kind;
  int line = 0;
  int height = 1;   // of the tree below; the parser bounds it, so that nobody's recursion runs away
  int symbol = -1;  // kName
  Op op = Op::kAdd;
  std::string name;
  Value literal;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<Op> ops;
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

enum class StmtKind : uint8_t {
  kText,         // text
  kOutput,       // exprs 0
  kIf,           // exprs: conditions; bodies: one each, then the else body
  kFor,          // target; exprs: iterable, filter or null; bodies: loop, else
  kSet,          // target; exprs 0
  kSetBlock,     // target; exprs: filters; bodies 0
  kWith,         // targets; exprs: values; bodies 0
  kMacro,        // symbol, parameters; bodies 0
  kCallBlock,    // exprs 0: the call; parameters of caller(); bodies 0
  kFilterBlock,  // exprs: filters; bodies 0
  kGroup,        // bodies 0 (generation marks)
  kBreak,
  kContinue,
};

struct Parameter {
  int symbol = -1;
  ExprPtr otherwise;  // null: undefined
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  int symbol = -1;
  bool recursive = false;       // kFor
  bool takes_rest = false;      // kMacro, kCallBlock: the body mentions varargs or kwargs
  bool makes_closures = false;  // kFor: the body defines a macro or call block, which may outlive an iteration
  std::string text;             // kText, kMacro's name
  Value text_value;             // kText
  ExprPtr target;
  std::vector<ExprPtr> targets;
  std::vector<ExprPtr> exprs;
  std::vector<Parameter> parameters;
  std::vector<Body> bodies;
};

struct Syntax {
  Body body;
  std::vector<std::string> symbols;
  std::unordered_map<std::string, int> symbol_ids;
  int symbol(std::string_view name) {
    const auto [it, fresh] = symbol_ids.emplace(std::string(name), static_cast<int>(symbols.size()));
    if (fresh) symbols.emplace_back(name);
    return it->second;
  }
};

}  // namespace foretoken::jinja
