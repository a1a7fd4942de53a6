// The backends that model and decoding tests run on.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace foretoken::test {

inline std::unique_ptr<Backend> fast_backend() { return make_reference_backend(); }

}  // namespace foretoken::test
