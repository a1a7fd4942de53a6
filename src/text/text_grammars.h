// The grammars that a request can name beside a JSON Schema (json_schema.h): a regular expression, any JSON object.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/grammar.h"

namespace foretoken {

// Texts that `pattern` matches as a whole; `.` is no line end. Errors as of parse_regex().
Result<Grammar> regex_grammar(std::string_view pattern, GrammarLimits limits = {});

// One JSON object, with no bounds but those of white space, numbers and depth.
Result<Grammar> json_object_grammar(GrammarLimits limits = {});
// One JSON value of any kind.
Result<Grammar> json_value_grammar(GrammarLimits limits = {});

}  // namespace foretoken
