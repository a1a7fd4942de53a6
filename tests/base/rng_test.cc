// Philox 4x32-10 against the published test vectors of its authors' distribution, and its independence of call order.
#include "base/rng.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>

namespace foretoken {
namespace {

using Words = std::array<uint32_t, 4>;

TEST(Philox, KnownAnswers) {
  constexpr uint32_t kOnes = 0xFFFFFFFFu;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u}));
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408F276Du, 0x41C83B0Eu, 0xA20BC7C6u, 0x6D5451FDu}));
  EXPECT_EQ(philox4x32({0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u}, {0xA4093822u, 0x299F31D0u}),
            (Words{0xD16CFE09u, 0x94FDCCEBu, 0x5001E420u, 0x24126EA1u}));
}

// Neighbouring counters and keys share no structure: about half of all bits differ.
TEST(Philox, NeighboursDiffer) {
  int bits = 0;
  const Words first = philox4x32({1, 2, 3, 4}, {5, 6});
  for (const Words& other : {philox4x32({2, 2, 3, 4}, {5, 6}), philox4x32({1, 2, 3, 5}, {5, 6}), philox4x32({1, 2, 3, 4}, {5, 7})})
    for (int i = 0; i < 4; ++i) bits += std::popcount(first[i] ^ other[i]);
  EXPECT_GT(bits, 3 * 40);
  EXPECT_LT(bits, 3 * 88);
}

}  // namespace
}  // namespace foretoken
