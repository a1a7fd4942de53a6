// Reliability bins with decay.
#include "decode/calibration.h"

#include <algorithm>

namespace foretoken {
namespace {

constexpr float kDecay = 0.97f;       // of a bin's sums per observation in it
constexpr float kPriorTrials = 3.0f;  // how many observations the estimate itself is worth

}  // namespace

size_t Calibration::bin_of(float estimate) {
  return static_cast<size_t>(std::upper_bound(kEdges.begin(), kEdges.end(), estimate) - kEdges.begin());
}

float Calibration::measured(Route route, float estimate, int rank) const {
  estimate = std::clamp(estimate, 0.0f, 1.0f);
  const Bin& bin = bins_[static_cast<size_t>(route)][rank > 0][bin_of(estimate)];
  // Inside a bin the estimates keep their order: the bin's observed surplus or lack is spread over both sides of 1.
  const float p = (bin.hits + kPriorTrials * estimate) / (bin.trials + kPriorTrials);
  if (bin.trials <= 0) return estimate;
  const float tilt = estimate - bin.estimates / bin.trials;
  return std::clamp(p + tilt * bin.trials / (bin.trials + kPriorTrials), 0.001f, 0.999f);
}

void Calibration::record(Route route, float estimate, int rank, bool hit) {
  estimate = std::clamp(estimate, 0.0f, 1.0f);
  Bin& bin = bins_[static_cast<size_t>(route)][rank > 0][bin_of(estimate)];
  bin.trials = bin.trials * kDecay + 1.0f;
  bin.hits = bin.hits * kDecay + (hit ? 1.0f : 0.0f);
  bin.estimates = bin.estimates * kDecay + estimate;
}

}  // namespace foretoken
