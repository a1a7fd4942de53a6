// Statements, expressions and calls, evaluated by walking the tree. Names are looked up through the scopes of `for`,
// `with`, macros and blocks, then among the variables given to the rendering.
#include "text/template_interpreter.h"

#include <algorithm>

#include "text/template_lexer.h"
#include "text/unicode.h"

namespace foretoken::jinja {
namespace {

struct Deeper {
  explicit Deeper(int& depth) : depth_(depth) { ++depth_; }
  ~Deeper() { --depth_; }
  int& depth_;
};

}  // namespace

Interpreter::Interpreter(const Syntax& syntax, const RenderLimits& limits, std::optional<std::time_t> now)
    : syntax_(syntax), limits_(limits), now_(now), globals_(syntax.symbols.size()) {
  set_global("range", Value::function(Function::kRange));
  set_global("namespace", Value::function(Function::kNamespace));
  set_global("dict", Value::function(Function::kDict));
  set_global("raise_exception", Value::function(Function::kRaiseException));
  set_global("strftime_now", Value::function(Function::kStrftimeNow));
}

void Interpreter::set_global(std::string_view name, Value value) {
  const auto it = syntax_.symbol_ids.find(std::string(name));
  if (it != syntax_.symbol_ids.end()) globals_[static_cast<size_t>(it->second)] = std::move(value);
}

Value Interpreter::from_json(const OrderedJson& json) {
  Deeper deeper(depth_);
  if (depth_ > limits_.depth) return fail("the messages or tools are nested too deeply");
  const auto outside = [](const std::string& text) {
    MarkedText marked;
    marked.append(is_valid_utf8(text) ? std::string_view(text) : std::string_view(repair_utf8(text)), false);
    return Value::text(std::move(marked));
  };
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case OrderedJson::value_t::number_unsigned:
      return Value::integer(static_cast<Int>(json.get<uint64_t>()));
    case OrderedJson::value_t::number_float:
      return Value::number(json.get<double>());
    case OrderedJson::value_t::string:
      return outside(json.get_ref<const std::string&>());
    case OrderedJson::value_t::array: {
      auto* list = make_object<List>(json.size());
      for (const auto& element : json) list->items.push_back(from_json(element));
      return Value::object(Kind::kList, list);
    }
    case OrderedJson::value_t::object: {
      auto* dict = make_object<Dict>(json.size());
      for (const auto& [key, value] : json.items()) dict->set(outside(key), from_json(value));
      return Value::object(Kind::kDict, dict);
    }
    default:
      return Value::none();
  }
}

Result<MarkedText> Interpreter::run() {
  MarkedText out;
  out_ = &out;
  if (!failed()) run_body(syntax_.body, *make_object<Scope>());
  if (failed()) return *error_;
  return out;
}

// ---- failure and budget

Value Interpreter::fail(const std::string& what, ErrorCode code) {
  if (!error_) error_ = template_error(code, line_, what);
  return {};
}

bool Interpreter::spend(uint64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps) fail("the template takes more than " + std::to_string(limits_.steps) + " steps");
  return !failed();
}

bool Interpreter::room(size_t bytes) {
  if (bytes > limits_.text_bytes - std::min(text_bytes_, limits_.text_bytes))
    fail("the template makes more than " + std::to_string(limits_.text_bytes) + " bytes of text");
  else text_bytes_ += bytes;
  return !failed() && spend(1 + bytes / 64);
}

void Interpreter::put(MarkedText& out, const MarkedText& text, size_t begin, size_t end) {
  if (begin < end && room(end - begin)) out.append(text, begin, end);
}

void Interpreter::put(MarkedText& out, std::string_view text, bool trusted) {
  if (!text.empty() && room(text.size())) out.append(text, trusted);
}

Value Interpreter::make_list(std::vector<Value> items, Kind kind) {
  auto* list = make_object<List>(items.size());
  list->items = std::move(items);
  return Value::object(kind, list);
}

Value Interpreter::make_pair(Value first, Value second) {
  std::vector<Value> items;
  items.push_back(std::move(first));
  items.push_back(std::move(second));
  return make_list(std::move(items), Kind::kTuple);
}

// ---- statements

Interpreter::Flow Interpreter::run_body(const Body& body, Scope& scope) {
  Deeper deeper(depth_);
  if (depth_ > limits_.depth) fail("the template calls itself too deeply");
  for (const auto& stmt : body) {
    if (failed()) break;
    if (const Flow flow = run_stmt(*stmt, scope); flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_stmt(const Stmt& stmt, Scope& scope) {
  line_ = stmt.line;
  if (!spend(1)) return Flow::kNext;
  switch (stmt.kind) {
    case StmtKind::kText:
      put(*out_, stmt.text_value.marked());
      break;
    case StmtKind::kOutput:
      print(*out_, eval(*stmt.exprs[0], scope));
      break;
    case StmtKind::kIf:
      return run_if(stmt, scope);
    case StmtKind::kFor:
      run_for(stmt, scope, eval(*stmt.exprs[0], scope), 0);
      break;
    case StmtKind::kSet:
      assign(*stmt.target, eval(*stmt.exprs[0], scope), scope);
      break;
    case StmtKind::kSetBlock: {
      Value text = Value::text(captured(stmt.bodies[0], scope));
      for (const ExprPtr& filter : stmt.exprs) text = eval_filter(*filter, text, scope);
      assign(*stmt.target, text, scope);
      break;
    }
    case StmtKind::kWith: {
      auto* inner = make_object<Scope>();
      inner->parent = &scope;
      for (size_t i = 0; i < stmt.targets.size(); ++i) assign(*stmt.targets[i], eval(*stmt.exprs[i], scope), *inner);
      return run_body(stmt.bodies[0], *inner);
    }
    case StmtKind::kMacro: {
      auto* macro = make_object<Macro>();
      macro->stmt = &stmt;
      macro->scope = &scope;
      set_variable(scope, stmt.symbol, Value::object(Kind::kMacro, macro));
      break;
    }
    case StmtKind::kCallBlock: {
      auto* macro = make_object<Macro>();
      macro->stmt = &stmt;
      macro->scope = &scope;
      const Value caller = Value::object(Kind::kMacro, macro);
      print(*out_, eval_call(*stmt.exprs[0], scope, &caller));
      break;
    }
    case StmtKind::kFilterBlock: {
      Value text = Value::text(captured(stmt.bodies[0], scope));
      for (const ExprPtr& filter : stmt.exprs) text = eval_filter(*filter, text, scope);
      print(*out_, text);
      break;
    }
    case StmtKind::kGroup:
      return run_body(stmt.bodies[0], scope);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  if (out_->bytes.size() > limits_.output_bytes)
    fail("the template's output is longer than " + std::to_string(limits_.output_bytes) + " bytes");
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_if(const Stmt& stmt, Scope& scope) {
  for (size_t i = 0; i < stmt.exprs.size(); ++i) {
    const bool chosen = truthy(eval(*stmt.exprs[i], scope));
    if (failed()) return Flow::kNext;
    if (chosen) return run_body(stmt.bodies[i], scope);
  }
  return stmt.bodies.size() > stmt.exprs.size() ? run_body(stmt.bodies.back(), scope) : Flow::kNext;
}

void Interpreter::run_for(const Stmt& stmt, Scope& scope, const Value& iterable, int depth) {
  std::vector<Value> items = iterate(iterable);
  if (const Expr* wanted = stmt.exprs[1].get()) {
    std::vector<Value> kept;
    auto* inner = make_object<Scope>();
    inner->parent = &scope;
    for (Value& item : items) {
      if (failed()) return;
      inner->variables.clear();
      assign(*stmt.target, item, *inner);
      if (truthy(eval(*wanted, *inner))) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (failed()) return;
  if (items.empty()) {
    auto* inner = make_object<Scope>();
    inner->parent = &scope;
    run_body(stmt.bodies[1], *inner);
    return;
  }
  static const std::string kLoopName = "loop";
  const auto symbol = syntax_.symbol_ids.find(kLoopName);
  auto* loop = make_object<Loop>(items.size());
  loop->stmt = &stmt;
  loop->scope = &scope;
  loop->items = std::move(items);
  loop->depth = depth;
  Scope* inner = nullptr;
  for (; loop->index < loop->items.size() && !failed(); ++loop->index) {
    // Every iteration has variables of its own; the scope is used again unless a macro may still refer to it.
    if (!inner || stmt.makes_closures) inner = make_object<Scope>();
    inner->variables.clear();
    inner->parent = &scope;
    if (symbol != syntax_.symbol_ids.end()) set_variable(*inner, symbol->second, Value::object(Kind::kLoop, loop));
    assign(*stmt.target, loop->items[loop->index], *inner);
    if (!spend(1)) return;
    if (run_body(stmt.bodies[0], *inner) == Flow::kBreak) break;
  }
}

MarkedText Interpreter::captured(const Body& body, Scope& scope) {
  MarkedText text;
  MarkedText* outer = std::exchange(out_, &text);
  auto* inner = make_object<Scope>();
  inner->parent = &scope;
  run_body(body, *inner);
  out_ = outer;
  return text;
}

void Interpreter::set_variable(Scope& scope, int symbol, Value value) {
  for (auto& [known, old] : scope.variables) {
    if (known != symbol) continue;
    old = std::move(value);
    return;
  }
  scope.variables.emplace_back(symbol, std::move(value));
}

void Interpreter::assign(const Expr& target, const Value& value, Scope& scope) {
  if (failed()) return;
  line_ = target.line;
  if (target.kind == ExprKind::kName) {
    set_variable(scope, target.symbol, value);
  } else if (target.kind == ExprKind::kAttribute) {
    const Value self = lookup(*target.children[0], scope);
    if (!self.is(Kind::kNamespace)) {
      fail("cannot set attribute '" + target.name + "': '" + target.children[0]->name + "' is not a namespace");
      return;
    }
    self.dict().set(Value::text(target.name), value);
  } else {
    const std::vector<Value> parts = iterate(value);
    if (failed()) return;
    if (parts.size() != target.children.size()) {
      fail("cannot unpack " + std::to_string(parts.size()) + " values into " + std::to_string(target.children.size()) +
           " names");
      return;
    }
    for (size_t i = 0; i < parts.size(); ++i) assign(*target.children[i], parts[i], scope);
  }
}

// ---- expressions

Value Interpreter::lookup(const Expr& name, Scope& scope) {
  for (const Scope* s = &scope; s; s = s->parent)
    for (auto it = s->variables.rbegin(); it != s->variables.rend(); ++it)
      if (it->first == name.symbol) return it->second;
  if (const auto& global = globals_[static_cast<size_t>(name.symbol)]) return *global;
  return Value::undefined("'" + name.name + "' is undefined");
}

Value Interpreter::eval(const Expr& expr, Scope& scope) {
  if (failed()) return {};
  Deeper deeper(depth_);
  line_ = expr.line;
  if (depth_ > limits_.depth) return fail("the template calls itself too deeply");
  if (!spend(1)) return {};
  switch (expr.kind) {
    case ExprKind::kLiteral:
      return expr.literal;
    case ExprKind::kName:
      return lookup(expr, scope);
    case ExprKind::kList:
    case ExprKind::kTuple: {
      std::vector<Value> items;
      for (const ExprPtr& child : expr.children) items.push_back(eval(*child, scope));
      return make_list(std::move(items), expr.kind == ExprKind::kList ? Kind::kList : Kind::kTuple);
    }
    case ExprKind::kDict: {
      auto* dict = make_object<Dict>(expr.children.size() / 2);
      for (size_t i = 0; i < expr.children.size() && !failed(); i += 2) {
        const Value key = eval(*expr.children[i], scope);
        if (!dict->set(key, eval(*expr.children[i + 1], scope)))
          return fail(std::string("a ") + type_name(key) + " cannot be a key");
      }
      return Value::object(Kind::kDict, dict);
    }
    case ExprKind::kAttribute: {
      const Value self = eval(*expr.children[0], scope);
      line_ = expr.line;
      return attribute(self, expr.name);
    }
    case ExprKind::kSubscript: {
      const Value self = eval(*expr.children[0], scope);
      const Value key = eval(*expr.children[1], scope);
      line_ = expr.line;
      return item(self, key);
    }
    case ExprKind::kSlice:
      return eval_slice(expr, scope);
    case ExprKind::kCall:
      return eval_call(expr, scope);
    case ExprKind::kFilter:
      return eval_filter(expr, eval(*expr.children[0], scope), scope);
    case ExprKind::kTest: {
      const Value value = eval(*expr.children[0], scope);
      const Arguments arguments = eval_arguments(expr, scope);
      line_ = expr.line;
      if (failed()) return {};
      return Value::boolean(apply_test(expr.name, value, arguments));
    }
    case ExprKind::kNot:
      return Value::boolean(!truthy(eval(*expr.children[0], scope)));
    case ExprKind::kNegate:
    case ExprKind::kPlus:
      return negate(eval(*expr.children[0], scope), expr.kind == ExprKind::kNegate);
    case ExprKind::kBinary: {
      const Value a = eval(*expr.children[0], scope);
      const Value b = eval(*expr.children[1], scope);
      line_ = expr.line;
      return binary(expr.op, a, b);
    }
    case ExprKind::kConcat: {
      MarkedText text;
      for (const ExprPtr& child : expr.children) print(text, eval(*child, scope));
      return Value::text(std::move(text));
    }
    case ExprKind::kCompare:
      return eval_compare(expr, scope);
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value value;
      for (const ExprPtr& child : expr.children) {
        value = eval(*child, scope);
        if (failed() || truthy(value) == (expr.kind == ExprKind::kOr)) break;
      }
      return value;
    }
    case ExprKind::kConditional: {
      const bool chosen = truthy(eval(*expr.children[1], scope));
      if (failed()) return {};
      if (chosen) return eval(*expr.children[0], scope);
      if (expr.children[2]) return eval(*expr.children[2], scope);
      return Value::undefined("an inline if without else has no value here");
    }
  }
  return {};
}

Value Interpreter::eval_compare(const Expr& expr, Scope& scope) {
  Value left = eval(*expr.children[0], scope);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = eval(*expr.children[i + 1], scope);
    line_ = expr.line;
    if (failed()) return {};
    const Value holds = binary(expr.ops[i], left, right);
    if (failed()) return {};
    if (!truthy(holds)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::eval_slice(const Expr& expr, Scope& scope) {
  const Value self = eval(*expr.children[0], scope);
  std::optional<Int> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (!expr.children[i + 1]) continue;
    const Value bound = eval(*expr.children[i + 1], scope);
    if (failed()) return {};
    if (bound.is_integral()) bounds[i] = bound.as_int();
    else if (!bound.is_none()) return fail(std::string("a slice needs integers, not ") + type_name(bound));
  }
  line_ = expr.line;
  return slice(self, bounds[0], bounds[1], bounds[2]);
}

Value Interpreter::eval_filter(const Expr& expr, const Value& input, Scope& scope) {
  Arguments arguments = eval_arguments(expr, scope);
  line_ = expr.line;
  if (failed() || !spend(1)) return {};
  return apply_filter(expr.name, input, std::move(arguments));
}

Arguments Interpreter::eval_arguments(const Expr& expr, Scope& scope) {
  Arguments arguments;
  for (size_t i = 1; i < expr.children.size(); ++i) arguments.positional.push_back(eval(*expr.children[i], scope));
  for (const auto& [name, value] : expr.named) arguments.named.emplace_back(name, eval(*value, scope));
  return arguments;
}

Value Interpreter::eval_call(const Expr& expr, Scope& scope, const Value* caller) {
  const Expr& callee = *expr.children[0];
  if (callee.kind == ExprKind::kAttribute) {
    const Value self = eval(*callee.children[0], scope);
    if (failed()) return {};
    if (has_method(self, callee.name)) {
      const Arguments arguments = eval_arguments(expr, scope);
      line_ = expr.line;
      return failed() ? Value() : call_method(self, callee.name, arguments);
    }
    line_ = callee.line;
    const Value target = attribute(self, callee.name);
    Arguments arguments = eval_arguments(expr, scope);
    line_ = expr.line;
    return call(target, std::move(arguments), caller);
  }
  const Value target = eval(callee, scope);
  Arguments arguments = eval_arguments(expr, scope);
  line_ = expr.line;
  return call(target, std::move(arguments), caller);
}

Value Interpreter::call(const Value& callee, Arguments arguments, const Value* caller) {
  if (failed()) return {};
  switch (callee.kind()) {
    case Kind::kMacro:
      return call_macro(callee.macro(), std::move(arguments), caller);
    case Kind::kFunction:
      return call_function(callee.as_function(), arguments);
    case Kind::kMethod:
      return call_method(callee.method().self, callee.method().name, arguments);
    case Kind::kLoop: {
      Loop& loop = callee.loop();
      if (!loop.stmt->recursive) return fail("the loop is called but not marked 'recursive'");
      if (arguments.positional.size() != 1) return fail("loop() takes the list to walk");
      MarkedText text;
      MarkedText* outer = std::exchange(out_, &text);
      Deeper deeper(depth_);
      if (depth_ > limits_.depth) fail("the template calls itself too deeply");
      else run_for(*loop.stmt, *loop.scope, arguments.positional[0], loop.depth + 1);
      out_ = outer;
      return Value::text(std::move(text));
    }
    case Kind::kUndefined:
      return fail(std::string(callee.undefined_name()) + " and cannot be called");
    default:
      return fail(std::string("a ") + type_name(callee) + " cannot be called");
  }
}

Value Interpreter::call_macro(const Macro& macro, Arguments arguments, const Value* caller) {
  const Stmt& stmt = *macro.stmt;
  auto* scope = make_object<Scope>();
  scope->parent = macro.scope;
  const size_t given = std::min(arguments.positional.size(), stmt.parameters.size());
  std::vector<char> filled(stmt.parameters.size(), 0);
  for (size_t i = 0; i < given; ++i) {
    set_variable(*scope, stmt.parameters[i].symbol, std::move(arguments.positional[i]));
    filled[i] = 1;
  }
  auto* rest = make_object<Dict>();
  for (auto& [name, value] : arguments.named) {
    size_t i = 0;
    while (i < stmt.parameters.size() && syntax_.symbols[static_cast<size_t>(stmt.parameters[i].symbol)] != name) ++i;
    if (i == stmt.parameters.size()) {
      if (name == "caller" && !caller) {
        caller = &value;
        continue;
      }
      if (!stmt.takes_rest) return fail("'" + stmt.text + "' takes no argument named '" + name + "'");
      rest->set(Value::text(name), std::move(value));
    } else if (filled[i]) {
      return fail("'" + stmt.text + "' gets its argument '" + name + "' twice");
    } else {
      set_variable(*scope, stmt.parameters[i].symbol, std::move(value));
      filled[i] = 1;
    }
  }
  if (arguments.positional.size() > given && !stmt.takes_rest)
    return fail("'" + stmt.text + "' takes at most " + std::to_string(stmt.parameters.size()) + " arguments");
  for (size_t i = 0; i < stmt.parameters.size(); ++i) {
    if (filled[i]) continue;
    const Parameter& parameter = stmt.parameters[i];
    Value value = parameter.otherwise
                      ? eval(*parameter.otherwise, *scope)
                      : Value::undefined("parameter '" + syntax_.symbols[static_cast<size_t>(parameter.symbol)] +
                                         "' was not provided");
    set_variable(*scope, parameter.symbol, std::move(value));
  }
  const auto symbol_of = [&](const char* name) {
    const auto it = syntax_.symbol_ids.find(name);
    return it == syntax_.symbol_ids.end() ? -1 : it->second;
  };
  if (stmt.takes_rest) {
    std::vector<Value> extra(std::make_move_iterator(arguments.positional.begin() + static_cast<std::ptrdiff_t>(given)),
                             std::make_move_iterator(arguments.positional.end()));
    if (const int symbol = symbol_of("varargs"); symbol >= 0)
      set_variable(*scope, symbol, make_list(std::move(extra), Kind::kTuple));
    if (const int symbol = symbol_of("kwargs"); symbol >= 0)
      set_variable(*scope, symbol, Value::object(Kind::kDict, rest));
  }
  if (stmt.kind == StmtKind::kMacro) {
    if (const int symbol = symbol_of("caller"); symbol >= 0)
      set_variable(*scope, symbol, caller ? *caller : Value::undefined("no caller defined"));
  }
  if (failed()) return {};
  MarkedText text;
  MarkedText* outer = std::exchange(out_, &text);
  run_body(stmt.bodies[0], *scope);
  out_ = outer;
  return Value::text(std::move(text));
}

}  // namespace foretoken::jinja
