// The backends that tests run on.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

#include "ops/ops.h"

namespace foretoken::test {

inline std::unique_ptr<Backend> cpu_backend(Isa isa, int threads) {
  auto backend = make_cpu_backend({.isa = isa, .threads = threads});
  if (!backend) throw std::runtime_error(backend.error().message);
  return *std::move(backend);
}

inline std::unique_ptr<Backend> fast_backend() { return cpu_backend(Isa::kAuto, 0); }

// The instruction sets of this machine, scalar first.
inline std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512})
    if (make_cpu_backend({.isa = isa, .threads = 1})) isas.push_back(isa);
  return isas;
}

}  // namespace foretoken::test
