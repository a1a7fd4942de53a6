// Rules for JSON texts, shared by everything that builds a grammar of values. White space is what models write (one
// space, or a line end with an indentation, both bounded), so that a habit is not broken and no text is white space for
// ever.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "text/grammar.h"

namespace foretoken {

class JsonRules {
 public:
  explicit JsonRules(GrammarBuilder& builder) : builder_(builder) {}
  GrammarBuilder& builder() { return builder_; }

  // Rules made on first use. A string's tail is its characters and the closing quote.
  Result<RuleIndex> white_space();  // or none
  Result<RuleIndex> string_tail(CountedBounds characters = {});
  Result<RuleIndex> string();
  Result<RuleIndex> number();
  Result<RuleIndex> value();   // any
  Result<RuleIndex> object();  // any
  Result<RuleIndex> array();   // any

  struct Member {
    std::string name;
    RuleIndex value = 0;
    bool required = true;
  };
  struct Extra {  // further members, any number of them, after those that are named
    Dfa key;      // with its closing quote; may call rules
    RuleIndex value = 0;
  };
  struct ObjectPlan {
    std::vector<Member> members;  // in this order
    std::vector<Extra> extras;
    bool may_be_empty = true;
  };
  Status define_object(RuleIndex rule, const ObjectPlan& plan);

  struct ArrayPlan {
    std::vector<RuleIndex> prefix;
    RuleIndex rest = 0;
    CountedBounds length;
  };
  Status define_array(RuleIndex rule, const ArrayPlan& plan);

  // The value and no other, with the freedom of white space.
  Result<RuleIndex> constant(const OrderedJson& value, const std::string& name);
  Status define_constant(RuleIndex rule, const OrderedJson& value);

  // A whole text that is one `value`, after at most two line ends or a space.
  Result<RuleIndex> document(RuleIndex value);

 private:
  Result<RuleIndex> array_tail(RuleIndex array, RuleIndex element, CountedBounds rounds);

  GrammarBuilder& builder_;
  std::optional<RuleIndex> white_space_, number_, string_, value_, object_, array_;
  std::vector<std::pair<CountedBounds, RuleIndex>> string_tails_;
};

// What a JSON string's quotes hold for `text`: every character raw or with the one escape it needs.
std::string json_characters(std::string_view text);

}  // namespace foretoken
