// Patterns: the regular part of ECMAScript's regular expressions (as JSON Schema uses them) as expressions. What needs
// more than a finite automaton, or data that we do not have, is refused by name: back references, look-around, word
// boundaries, Unicode properties.
#pragma once

#include <string_view>

#include "text/expression.h"

namespace foretoken {

// kUsage: not a pattern (with the offset); kUnsupported: a feature that is refused.
Result<Expr> parse_regex(std::string_view pattern);

// The expression that matches only whole texts: ^(?:e)$.
Expr anchored(Expr expression);

}  // namespace foretoken
