// The page of GET /: src/serve/web, built in as one file.
#pragma once

#include <string>
#include <string_view>

namespace foretoken::serve {

extern const std::string_view kPage;

// The Content-Security-Policy under which `page` runs its own script and style sheets, by their hashes, and nothing
// else: it loads nothing, talks to its own server alone, and no text becomes markup. Elements that the policy must
// allow are written <script ...> and <style>.
std::string page_policy(std::string_view page);

}  // namespace foretoken::serve
