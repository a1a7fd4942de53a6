// Studies whose truth is planted: rounds of two arms on a machine that drifts, jitters and is disturbed now and then.
#pragma once

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "qualify/trial.h"

namespace foretoken::test {

struct PlantedNoise {
  double round = 0.005;  // standard deviation of a round's logarithm
  double drift = 0;      // what the machine loses from the first round to the last
  double bursts = 0;     // share of rounds that a neighbour slows down, by 10 % on average
};

class Draws {
 public:
  explicit Draws(uint64_t seed) : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)} {}
  double uniform() { return (static_cast<double>(philox4x32({count_++, 1, 2, 3}, key_)[0]) + 0.5) * 0x1p-32; }
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform()); }
  double exponential() { return -std::log(uniform()); }

 private:
  std::array<uint32_t, 2> key_;
  uint32_t count_ = 0;
};

// `effect`: how much better b is, 0.03 for three percent.
inline std::vector<TrialBlock> planted_study(int blocks, double effect, const PlantedNoise& noise, uint64_t seed) {
  Draws draws(seed);
  std::vector<TrialBlock> study(static_cast<size_t>(blocks));
  int round = 0;
  for (int b = 0; b < blocks; ++b) {
    int seen[2] = {0, 0};
    for (const int arm : block_order(2, b)) {
      double log = noise.round * draws.normal() - noise.drift * round++ / (4.0 * blocks);
      if (draws.uniform() < noise.bursts) log -= 0.1 * draws.exponential();
      if (arm == 1) log += std::log1p(effect);
      TrialBlock& block = study[static_cast<size_t>(b)];
      (arm == 0 ? block.a : block.b)[seen[arm]++] = 100 * std::exp(log);
    }
  }
  return study;
}

}  // namespace foretoken::test
