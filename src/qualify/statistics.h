// Medians, quantiles, means and resampled intervals of measured values. Deterministic: resampling draws from a
// counter-based generator, so that whoever repeats it gets the same interval.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace foretoken {

// 0 for no values. The mean of the middle two where their number is even.
double median(std::vector<double> values);
// Linear between the sorted values; `share` in [0, 1]. 0 for no values.
double quantile(std::vector<double> values, double share);
double mean(std::span<const double> values);
// Of positive values; 0 for none, and where one is not positive.
double geometric_mean(std::span<const double> values);

struct Interval {
  double low = 0, high = 0;
};
// The percentile interval of the median over resamples of `values` (at least one).
Interval bootstrap_median(std::span<const double> values, double confidence, uint64_t seed = 1, int resamples = 1000);

}  // namespace foretoken
