// The bounds-checked cursor: what it reads, and that nothing past the end is ever touched.
#include "base/bytes.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace foretoken {
namespace {

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> out;
  for (int v : values) out.push_back(static_cast<std::byte>(v));
  return out;
}

// Values are little-endian, in order, and the offset counts what was read.
TEST(ByteReader, ReadsLittleEndianValuesInOrder) {
  const auto data = bytes_of({0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 'a', 'b', 0x00, 0x00, 0x80, 0x3F});
  ByteReader reader(data);
  EXPECT_EQ(reader.read<uint8_t>(), 0x01);
  EXPECT_EQ(reader.read<uint16_t>(), 0x0302);
  EXPECT_EQ(reader.read<uint32_t>(), 0x07060504u);
  EXPECT_EQ(reader.take_text(2), "ab");
  EXPECT_EQ(reader.read<float>(), 1.0f);
  EXPECT_EQ(reader.offset(), data.size());
  EXPECT_EQ(reader.remaining(), 0u);
  EXPECT_TRUE(reader.ok());
}

// A read past the end yields zero, marks the reader, and no later read succeeds even where bytes remain.
TEST(ByteReader, FailsOnceAndStaysFailed) {
  const auto data = bytes_of({1, 2, 3});
  ByteReader reader(data);
  EXPECT_EQ(reader.read<uint16_t>(), 0x0201);
  EXPECT_EQ(reader.read<uint32_t>(), 0u);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.offset(), 2u);
  EXPECT_EQ(reader.read<uint8_t>(), 0) << "the byte at offset 2 is 3: it must not be read after a failure";
  EXPECT_TRUE(reader.take(1).empty());
  EXPECT_TRUE(reader.take_text(0).empty());
}

// Sizes from a hostile file, up to the largest 64-bit number, fail without arithmetic that wraps.
TEST(ByteReader, HugeSizesFail) {
  const auto data = bytes_of({1, 2, 3, 4});
  for (const uint64_t size : {uint64_t{5}, uint64_t{1} << 32, uint64_t{1} << 63, std::numeric_limits<uint64_t>::max(),
                              std::numeric_limits<uint64_t>::max() - 3}) {
    ByteReader reader(data);
    (void)reader.read<uint8_t>();
    EXPECT_TRUE(reader.take(size).empty()) << size;
    EXPECT_FALSE(reader.ok()) << size;
    EXPECT_EQ(reader.offset(), 1u) << size;
  }
}

// Taking nothing is always possible; taking everything borrows the very bytes that were given.
TEST(ByteReader, EdgesAreExact) {
  const auto data = bytes_of({9, 8, 7});
  ByteReader reader(data);
  EXPECT_TRUE(reader.take(0).empty());
  const auto all = reader.take(3);
  EXPECT_EQ(all.data(), data.data());
  EXPECT_EQ(all.size(), 3u);
  EXPECT_TRUE(reader.take(0).empty());
  EXPECT_TRUE(reader.ok());
  ByteReader empty({});
  EXPECT_EQ(empty.remaining(), 0u);
  EXPECT_EQ(empty.read<uint64_t>(), 0u);
  EXPECT_FALSE(empty.ok());
}

// Random walks agree with plain indexing at every step, failures included.
TEST(ByteReader, RandomWalksAgreeWithIndexing) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::byte> data(random() % 64);
    for (std::byte& b : data) b = static_cast<std::byte>(random());
    ByteReader reader(data);
    size_t at = 0;
    bool ok = true;
    for (int step = 0; step < 40; ++step) {
      const size_t size = random() % 9;
      const auto part = reader.take(size);
      ok = ok && size <= data.size() - at;
      ASSERT_EQ(reader.ok(), ok) << "round " << round;
      ASSERT_EQ(part.size(), ok ? size : 0);
      for (size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], data[at + i]);
      if (ok) at += size;
      ASSERT_EQ(reader.offset(), at);
    }
  }
}

}  // namespace
}  // namespace foretoken
