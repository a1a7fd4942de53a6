// ToyTarget: a deterministic language model computed from a hash of the context, so that what plain decoding gives is known without
// tensors. Its logits are a pure function of the prefix, as the real target's are. Test-only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "numerics/dtype.h"

namespace foretoken::test {

class ToyTarget {
 public:
  // `context`: how many last tokens decide the next one (small values make text that repeats). `spread`: range of the logits.
  explicit ToyTarget(int vocab, uint64_t seed, int context = 6, float spread = 8)
      : vocab_(vocab), context_(context), seed_(seed), spread_(spread) {}
  int vocab() const { return vocab_; }

  std::vector<float> logits(std::span<const TokenId> prefix) const {
    uint64_t h = seed_ * 0x9E3779B97F4A7C15ull + 1;
    const size_t first = prefix.size() > static_cast<size_t>(context_) ? prefix.size() - static_cast<size_t>(context_) : 0;
    for (size_t i = first; i < prefix.size(); ++i) h = mix(h ^ (static_cast<uint64_t>(prefix[i]) + 0x51ull));
    std::vector<float> l(static_cast<size_t>(vocab_));
    for (int i = 0; i < vocab_; ++i)
      l[static_cast<size_t>(i)] = static_cast<float>(mix(h + static_cast<uint64_t>(i)) >> 40) * (spread_ / (1 << 24));
    return l;
  }

 private:
  static uint64_t mix(uint64_t x) {
    x ^= x >> 30; x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27; x *= 0x94D049BB133111EBull;
    return x ^ (x >> 31);
  }
  int vocab_, context_;
  uint64_t seed_;
  float spread_;
};

// Small deterministic draws for test data.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed * 2 + 1) {}
  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(next() % static_cast<uint64_t>(n)); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

}  // namespace foretoken::test
