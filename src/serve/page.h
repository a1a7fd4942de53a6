// The page of GET /: src/serve/page/index.html, built in.
#pragma once

#include <string_view>

namespace foretoken::serve {

extern const std::string_view kPage;

}  // namespace foretoken::serve
