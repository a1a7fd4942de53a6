// Where a failed CHECK ends.
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace foretoken {

void check_failed(const char* file, int line, const char* expression, const std::string& values) {
  std::fprintf(stderr, "%s:%d: CHECK(%s) failed: %s\n", file, line, expression, values.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace foretoken
