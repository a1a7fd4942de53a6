# Writes OUTPUT, a source file that holds the bytes of INPUT as foretoken::serve::kPage.
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "((0x..,){32})" "\\1\n" bytes "${bytes}")
file(WRITE ${OUTPUT} "// Written by page/embed.cmake.
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
