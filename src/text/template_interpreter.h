// Interpreter: one rendering of a parsed template. It holds the variables, the objects made on the way and what may
// still be spent. The first failure is kept; every operation after it returns at once with an undefined value.
#pragma once

#include <ctime>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/chat_template.h"
#include "text/template_ast.h"

namespace foretoken::jinja {

struct Scope : Object {
  Scope* parent = nullptr;
  std::vector<std::pair<int, Value>> variables;  // few: searched from the end
};

struct Macro : Object {
  const Stmt* stmt = nullptr;
  Scope* scope = nullptr;  // where it was defined
};

struct Loop : Object {
  const Stmt* stmt = nullptr;
  Scope* scope = nullptr;  // around the loop
  std::vector<Value> items;
  size_t index = 0;
  int depth = 0;
  std::optional<Value> last_changed;
};

// Arguments of a call, evaluated.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Interpreter {
 public:
  Interpreter(const Syntax& syntax, const RenderLimits& limits, std::optional<std::time_t> now);

  // Before run(): a variable that the template can read.
  void set_global(std::string_view name, Value value);
  Value from_json(const OrderedJson& json);  // strings marked as coming from outside

  Result<MarkedText> run();

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  // ---- failure and budget (template_interpreter.cc)
  bool failed() const { return error_.has_value(); }
  Value fail(const std::string& what, ErrorCode code = ErrorCode::kInvalidFile);
  bool spend(uint64_t steps);
  bool room(size_t bytes);  // accounts for text about to be made
  void put(MarkedText& out, const MarkedText& text, size_t begin, size_t end);
  void put(MarkedText& out, const MarkedText& text) { put(out, text, 0, text.bytes.size()); }
  void put(MarkedText& out, std::string_view text, bool trusted = true);
  template <class T>
  T* make_object(size_t entries = 0) {
    auto object = std::make_unique<T>();
    T* raw = object.get();
    heap_.push_back(std::move(object));
    objects_ += 1 + entries;
    if (objects_ > limits_.objects)
      fail("the template makes more than " + std::to_string(limits_.objects) + " objects");
    return raw;
  }
  Value make_list(std::vector<Value> items, Kind kind = Kind::kList);
  Value make_pair(Value first, Value second);

  // ---- statements and expressions (template_interpreter.cc)
  Flow run_body(const Body& body, Scope& scope);
  Flow run_stmt(const Stmt& stmt, Scope& scope);
  void run_for(const Stmt& stmt, Scope& scope, const Value& iterable, int depth);
  Flow run_if(const Stmt& stmt, Scope& scope);
  MarkedText captured(const Body& body, Scope& scope);
  void assign(const Expr& target, const Value& value, Scope& scope);
  void set_variable(Scope& scope, int symbol, Value value);
  Value lookup(const Expr& name, Scope& scope);
  Value eval(const Expr& expr, Scope& scope);
  Value eval_compare(const Expr& expr, Scope& scope);
  Value eval_call(const Expr& expr, Scope& scope, const Value* caller = nullptr);
  Value eval_slice(const Expr& expr, Scope& scope);
  Value eval_filter(const Expr& expr, const Value& input, Scope& scope);
  Arguments eval_arguments(const Expr& expr, Scope& scope);
  Value call(const Value& callee, Arguments arguments, const Value* caller);
  Value call_macro(const Macro& macro, Arguments arguments, const Value* caller);

  // ---- operators (template_operators.cc)
  bool truthy(const Value& value) const;
  bool equal(const Value& a, const Value& b, int depth = 0);
  int compare(const Value& a, const Value& b, const char* op, int depth = 0);  // sign of a - b
  bool contains(const Value& container, const Value& item);
  Value binary(Op op, const Value& a, const Value& b);
  Value arithmetic(Op op, const Value& a, const Value& b);
  Value repeat(const Value& value, Int times);
  Value negate(const Value& value, bool minus);
  Value attribute(const Value& self, const std::string& name);
  Value item(const Value& self, const Value& key);
  Value slice(const Value& self, std::optional<Int> begin, std::optional<Int> end, std::optional<Int> step);
  Value loop_attribute(Loop& loop, const std::string& name);
  std::vector<Value> iterate(const Value& value);
  std::optional<Int> length(const Value& value);
  void print(MarkedText& out, const Value& value);                      // str(value)
  void print_repr(MarkedText& out, const Value& value, int depth = 0);  // repr(value)
  MarkedText text_of(const Value& value);                               // str(value)
  struct JsonStyle {
    std::string indent;  // empty: one line
    bool indented = false;
    bool sort_keys = false;
    bool ascii = false;
    MarkedText item_separator, key_separator;
  };
  void print_json(MarkedText& out, const Value& value, const JsonStyle& style, int depth = 0);
  void print_json_string(MarkedText& out, const MarkedText& text, bool ascii);

  // ---- built-in functions, filters, tests and methods
  // Positional and named arguments as slots in the order of `names`; null where absent.
  using Slots = std::vector<const Value*>;
  std::optional<Slots> bind(const Arguments& arguments, const char* function,
                            std::initializer_list<std::string_view> names, size_t required = 0);
  Value call_function(Function function, const Arguments& arguments);
  Value range(const Arguments& arguments);
  Value strftime_now(const Arguments& arguments);

  Value apply_filter(const std::string& name, const Value& input, Arguments arguments);  // template_filters.cc
  bool apply_test(const std::string& name, const Value& input, const Arguments& arguments);
  Value filter_text(const std::string& name, const Value& input, const Arguments& arguments, bool& known);
  Value filter_number(const std::string& name, const Value& input, const Arguments& arguments, bool& known);
  Value filter_list(const std::string& name, const Value& input, const Arguments& arguments, bool& known);
  Value filter_select(const Value& input, Arguments arguments, bool by_attribute, bool keep);
  Value filter_map(const Value& input, Arguments arguments);
  Value filter_tojson(const Value& input, const Arguments& arguments);
  Value filter_indent(const Value& input, const Arguments& arguments);
  Value filter_round(const Value& input, const Arguments& arguments);
  Value filter_join(const Value& input, const Arguments& arguments);
  Value filter_sort(const Value& input, const Arguments& arguments);
  Value filter_dictsort(const Value& input, const Arguments& arguments);
  Value filter_unique(const Value& input, const Arguments& arguments);
  Value filter_groupby(const Value& input, const Arguments& arguments);
  Value filter_batch(const Value& input, const Arguments& arguments);
  Value filter_extreme(const Value& input, const Arguments& arguments, bool largest);
  Value attribute_path(const Value& value, const Value& path);  // "a.b.0"
  Value case_folded(const Value& value, bool case_sensitive);

  static bool has_method(const Value& self, std::string_view name);  // template_methods.cc
  Value call_method(const Value& self, const std::string& name, const Arguments& arguments);
  Value string_method(const MarkedText& text, const std::string& name, const Arguments& arguments);
  Value list_method(const Value& self, const std::string& name, const Arguments& arguments);
  Value dict_method(const Value& self, const std::string& name, const Arguments& arguments);
  Value split(const MarkedText& text, const Arguments& arguments, bool from_right);
  Value split_lines(const MarkedText& text, bool keep_ends);
  Value replace(const MarkedText& text, const Value& from, const Value& to, std::optional<Int> count);
  Value strip(const MarkedText& text, const Value* characters, bool left, bool right);
  Value map_case(const MarkedText& text, std::string_view how);
  Value format_braces(const MarkedText& format, const Arguments& arguments);
  Value format_percent(const MarkedText& format, const Value& values, const Arguments* named = nullptr);
  bool put_formatted(MarkedText& out, const Value& value, std::string_view spec, char conversion);

  const Syntax& syntax_;
  const RenderLimits& limits_;
  std::optional<std::time_t> now_;
  std::optional<Error> error_;
  int line_ = 0;  // of the expression in hand
  int depth_ = 0;
  uint64_t steps_ = 0;
  size_t text_bytes_ = 0;
  size_t objects_ = 0;
  std::vector<std::unique_ptr<Object>> heap_;
  std::vector<std::optional<Value>> globals_;  // by symbol
  MarkedText* out_ = nullptr;
};

// Characters (code points) of `text`, and the byte offset of the n-th one (the size when there are fewer).
size_t count_characters(std::string_view text);
size_t offset_of_character(std::string_view text, size_t n);

}  // namespace foretoken::jinja
