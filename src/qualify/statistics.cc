// Plain definitions; the samples are small.
#include "qualify/statistics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/rng.h"

namespace foretoken {

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(at);
  if (below + 1 >= values.size()) return values.back();
  return values[below] + (at - static_cast<double>(below)) * (values[below + 1] - values[below]);
}

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double geometric_mean(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) {
    if (!(v > 0)) return 0;
    sum += std::log(v);
  }
  return values.empty() ? 0 : std::exp(sum / static_cast<double>(values.size()));
}

Interval bootstrap_median(std::span<const double> values, double confidence, uint64_t seed, int resamples) {
  CHECK(!values.empty());
  std::vector<double> medians, sample(values.size());
  uint32_t draw = 0;
  for (int r = 0; r < resamples; ++r) {
    for (double& s : sample) {
      const auto random =
          philox4x32({draw++, 0, 0, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
      s = values[static_cast<size_t>((uint64_t{random[0]} * values.size()) >> 32)];
    }
    medians.push_back(median(sample));
  }
  const double tail = (1 - confidence) / 2;
  return {quantile(medians, tail), quantile(medians, 1 - tail)};
}

}  // namespace foretoken
