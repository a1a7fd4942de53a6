// Which products may take the kernels of many rows: those that gave, on this device and with the loaded weights, the
// bits of the kernel of few rows. Decided when a matrix is packed, once a shape, so nothing is tried while requests
// run.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "cuda/kernels.h"
#include "cuda/memory.h"

namespace foretoken::cuda {

class Admission {
 public:
  // `wide` false: no product is admitted.
  explicit Admission(bool wide = false) : wide_(wide) {}
  // Sets part.wide. Waits for the device where the part's shape is new.
  void decide(Part& part, Queue& queue);
  // One sentence about the shapes that were refused; empty: none was.
  std::string refused() const;

 private:
  // Of so many random rows.
  bool same_bits(const Part& part, int64_t rows, Queue& queue);

  bool wide_ = true;
  std::map<std::tuple<Layout, int64_t, int64_t>, bool> shapes_;  // layout, outputs, inputs
};

}  // namespace foretoken::cuda
