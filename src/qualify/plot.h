// Plots as SVG for a page that has colours --c0, --c1, ... and the classes that page.cc defines. Foreign texts are
// escaped.
#pragma once

#include <string>
#include <string_view>

#include "qualify/summary.h"

namespace foretoken {

std::string svg(const Plot& plot);
std::string escaped(std::string_view text);  // for HTML and SVG

}  // namespace foretoken
