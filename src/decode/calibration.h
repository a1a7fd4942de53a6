// Calibration: what drafters' own estimates were worth so far. Each observation is a guess whose parent the target had picked, and
// whether it picked the guess too. It knows neither tokens nor tensors.
#pragma once

#include <array>
#include <cstddef>

#include "decode/proposal.h"

namespace foretoken {

class Calibration {
 public:
  // The measured probability behind a drafter's estimate; without observations, the estimate itself.
  float measured(Route route, float estimate, int rank) const;
  void record(Route route, float estimate, int rank, bool hit);

 private:
  static constexpr std::array<float, 12> kEdges = {0.02f, 0.05f, 0.1f, 0.2f, 0.35f, 0.5f, 0.65f, 0.8f, 0.9f, 0.95f, 0.98f, 0.995f};
  struct Bin {
    float trials = 0, hits = 0, estimates = 0;  // decayed sums
  };
  static size_t bin_of(float estimate);
  std::array<std::array<std::array<Bin, kEdges.size() + 1>, 2>, kRoutes> bins_{};  // [route][best or alternative]
};

}  // namespace foretoken
