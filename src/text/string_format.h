// The formats of strings that JSON Schema names, as expressions for whole strings. Where a format's own definition is
// wider than what we write (email, uri, duration), the narrower one is used: each word satisfies the definition.
#pragma once

#include <optional>
#include <string_view>

#include "text/expression.h"

namespace foretoken {

// Nothing for a name that is not known.
std::optional<Expr> string_format(std::string_view name);

}  // namespace foretoken
