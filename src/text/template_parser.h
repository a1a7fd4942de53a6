// Jinja's grammar: tokens to a syntax tree, or the line and reason why not. It evaluates nothing.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/template_ast.h"

namespace foretoken::jinja {

// `source` is valid UTF-8.
Result<Syntax> parse_template(std::string_view source);

}  // namespace foretoken::jinja
