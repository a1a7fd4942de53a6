// What benchmarks measure with: host seconds, and medians, because machines are shared.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace foretoken {

inline double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The upper one of an even number; 0 of none.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace foretoken
