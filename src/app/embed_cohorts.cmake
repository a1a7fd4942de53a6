# Writes OUTPUT, a source file that holds the bytes of STANDARD and HOLDOUT as the program's own cohorts.
function(bytes_of file out)
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(REGEX REPLACE "((0x..,){32})" "\\1\n" bytes "${bytes}")
  set(${out} "${bytes}" PARENT_SCOPE)
endfunction()
bytes_of(${STANDARD} standard)
bytes_of(${HOLDOUT} holdout)
file(WRITE ${OUTPUT} "// Written by app/embed_cohorts.cmake.
#include \"app/cohort.h\"

namespace foretoken::app {
namespace {
constexpr unsigned char kStandard[] = {
${standard}
};
constexpr unsigned char kHoldout[] = {
${holdout}
};
}  // namespace
const std::string_view kStandardCohort(reinterpret_cast<const char*>(kStandard), sizeof kStandard);
const std::string_view kHoldoutCohort(reinterpret_cast<const char*>(kHoldout), sizeof kHoldout);
}  // namespace foretoken::app
")
