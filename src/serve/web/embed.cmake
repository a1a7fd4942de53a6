# Writes OUTPUT, a source file that holds WEB/index.html as foretoken::serve::kPage, with its style sheet and its modules inside: the page is
# one file. A module's imports and exports are lines of their own and are left out, since all modules share one script: MODULES, separated
# by commas, are in the order of their use, and their names at the outermost level differ.
file(READ ${WEB}/index.html page)
file(READ ${WEB}/style.css style)
set(script "")
string(REPLACE "," ";" modules "${MODULES}")
foreach(module IN LISTS modules)
  file(READ ${WEB}/${module} text)
  string(REGEX REPLACE "\nimport [^\n]* from '[^\n]*';" "" text "\n${text}")
  string(REPLACE "\nexport " "\n" text "${text}")
  string(APPEND script "${text}")
endforeach()
if(script MATCHES "</script|<!--")
  message(FATAL_ERROR "a module of the page holds text that would end its script")
endif()
string(REPLACE "<link rel=\"stylesheet\" href=\"style.css\">" "<style>\n${style}</style>" page "${page}")
string(REPLACE "<script type=\"module\" src=\"app.js\"></script>" "<script type=\"module\">${script}</script>" page "${page}")
if(page MATCHES "(src|href)=\"[a-z]+\\.(js|css)\"" OR NOT page MATCHES "<style>" OR NOT page MATCHES "<script type=\"module\">\n")
  message(FATAL_ERROR "the page's style sheet or script was not found in index.html")
endif()
string(HEX "${page}" bytes)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "((0x..,){32})" "\\1\n" bytes "${bytes}")
file(WRITE ${OUTPUT} "// Written by web/embed.cmake.
#include \"serve/page.h\"

namespace foretoken::serve {
namespace {
constexpr unsigned char kBytes[] = {
${bytes}
};
}  // namespace
const std::string_view kPage(reinterpret_cast<const char*>(kBytes), sizeof kBytes);
}  // namespace foretoken::serve
")
