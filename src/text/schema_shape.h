// What a JSON Schema says about values, as shapes: a value is allowed when it fits one shape of a list. Reading turns
// keywords into shapes, follows references and merges what allOf, siblings of $ref and patterns of names put together.
// Sub-schemas stay as conjunctions, lists of schemas that all hold, so that recursive schemas end. No grammar is known
// here.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "text/code_points.h"
#include "text/number_automaton.h"
#include "text/value_set.h"

namespace foretoken {

// Schemas that all hold; none: anything is allowed. They live as long as the reader's document.
using Conjunction = std::vector<const OrderedJson*>;
void join(Conjunction& into, const Conjunction& from);  // without repetitions

enum TypeBit : uint8_t {
  kNullType = 1,
  kBooleanType = 2,
  kNumberType = 4,
  kStringType = 8,
  kArrayType = 16,
  kObjectType = 32
};
inline constexpr uint8_t kAllTypes = 63;

struct StringShape {
  uint32_t min = 0, max = UINT32_MAX;                 // characters
  std::vector<const OrderedJson*> patterns, formats;  // the keywords' values
  bool plain() const { return patterns.empty() && formats.empty(); }
};

struct ArrayShape {
  std::vector<Conjunction> prefix;
  Conjunction rest;
  uint32_t min = 0, max = UINT32_MAX;
  const Conjunction& at(size_t i) const { return i < prefix.size() ? prefix[i] : rest; }
};

// The members that one schema object describes.
struct ObjectLayer {
  std::vector<std::pair<std::string, Conjunction>> properties;
  std::vector<std::pair<const Dfa*, Conjunction>> patterns;  // over characters of a JSON string, found anywhere
  Conjunction additional;
  std::optional<Conjunction> names;  // what each name must be, as a string
};
struct ObjectShape {
  std::vector<ObjectLayer> layers;  // all hold
  std::vector<std::string> required;
  uint32_t min = 0, max = UINT32_MAX;  // members
  // What holds for the member `name`.
  Conjunction at(const std::string& name) const;
};

struct Shape {
  uint8_t types = kAllTypes;
  NumberRange number;
  StringShape string;
  ArrayShape array;
  ObjectShape object;
  std::optional<ValueSet> values;  // of enum and const
  std::string where;               // the pointer of the schema it began with
};

struct SchemaLimits {
  size_t nodes = 50'000;         // values in it
  size_t shapes = 256;           // alternatives of one value
  size_t work = 200'000;         // shapes and comparisons of all values together
  size_t automata = 30'000'000;  // steps of building the automata of patterns and formats
  int depth = 64;                // of nested sub-schemas
  bool ignore_unknown = false;   // keywords of no draft; otherwise they are refused
};

class SchemaReader {
 public:
  // `document` is borrowed. kUsage: no schema at all, or too large.
  static Result<SchemaReader> open(const OrderedJson& document, SchemaLimits limits = {});

  const OrderedJson& root() const { return *document_; }
  // Of every automaton that is made of strings or names; what is left is shared by all.
  AutomatonLimits automaton_limits() const { return {.work_left = automaton_work_.get()}; }
  const std::string& where(const OrderedJson& schema) const;  // "#/properties/a"
  // The same conjunction, with references that say nothing of their own replaced by what they refer to.
  Result<Conjunction> canonical(const Conjunction& schemas) const;
  // The branches of a schema that is only `anyOf`; nothing for others.
  std::optional<std::vector<Conjunction>> pure_choice(const Conjunction& schemas) const;

  // All shapes that satisfy every schema of the conjunction. kUsage: a malformed keyword; kUnsupported: one that is
  // refused; both with its pointer. The reference holds until the reader goes.
  Result<const std::vector<Shape>*> shapes(const Conjunction& schemas);

  // Whether a value satisfies all schemas.
  Result<bool> admits(const Conjunction& schemas, const OrderedJson& value);
  Result<bool> admits(const Shape& shape, const OrderedJson& value);
  // Whether provably no value satisfies both.
  Result<bool> disjoint(const Conjunction& a, const Conjunction& b, int depth = 0);
  // Strings of the shape between their quotes, lengths included; enumerated values are left to the caller.
  Result<Dfa> string_words(const StringShape& shape, Encoding encoding, const std::string& where) const;

 private:
  friend class KeywordReader;
  SchemaReader(const OrderedJson& document, SchemaLimits limits)
      : document_(&document), limits_(limits), automaton_work_(std::make_unique<size_t>(limits.automata)) {}
  Status index(const OrderedJson& node, const std::string& pointer, int depth);
  Error error(ErrorCode code, const OrderedJson& schema, std::string_view key, std::string_view what) const;
  Status spend(size_t work);

  Result<const OrderedJson*> resolve(const OrderedJson& schema) const;
  Result<std::vector<Shape>> shapes_of(const OrderedJson& schema, std::vector<const OrderedJson*>& open);
  Result<std::vector<Shape>> cross(const std::vector<Shape>& a, const std::vector<Shape>& b, const OrderedJson& schema);
  Status check_disjoint_branches(const OrderedJson& schema);
  Result<bool> disjoint(const Shape& a, const Shape& b, int depth);
  Result<bool> disjoint_objects(const ObjectShape& a, const ObjectShape& b, int depth);
  Result<bool> admits_string(const Shape& shape, const std::string& value);
  Result<bool> admits_array(const ArrayShape& shape, const OrderedJson& value);
  Result<bool> admits_object(const ObjectShape& shape, const OrderedJson& value);
  Result<const Dfa*> pattern(const std::string& text, const std::string& where);

  const OrderedJson* document_;
  SchemaLimits limits_;
  size_t work_ = 0;
  std::unique_ptr<size_t> automaton_work_;  // left
  std::unordered_map<const OrderedJson*, std::string> where_;
  std::unordered_map<std::string, const OrderedJson*> by_pointer_, by_anchor_;
  std::map<Conjunction, std::unique_ptr<std::vector<Shape>>> shapes_;
  std::map<std::string, std::unique_ptr<Dfa>> patterns_;
  std::map<Conjunction, std::unique_ptr<Dfa>> words_;  // by the keywords' values, without lengths
};

// The schema that allows nothing.
const OrderedJson& false_schema();

}  // namespace foretoken
