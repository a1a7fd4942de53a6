// Looking on the CUDA backend for what is not finite: the contract of every backend, a recurrent memory of the 27B
// shape at every alignment, values that operators have yet to make, and how long it takes. Without a device nothing
// runs.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "support/cuda_device.h"
#include "support/finite_contract.h"
#include "support/mirrored.h"

namespace foretoken::test {
namespace {

class CudaFinite : public DeviceTest {};

// 48 layers of 48 states of 128 x 128 and tails of 3 x 10,240.
constexpr int64_t kFloats = 48 * (48 * 128 * 128 + 3 * 10240);

View floats(const Buffer& buffer, int64_t first, int64_t count) {
  return View::of(reinterpret_cast<float*>(buffer.data()) + first, 1, count);
}

bool all_finite(View view) { return cuda()->all_finite({&view, 1}); }

TEST_F(CudaFinite, Contract) {
  Mirrored mirrored(*make_cuda_backend());
  expect_all_finite(mirrored, "cuda");
}

// One value among 39 million, on both sides of both ends and between, whatever the alignment of the first.
TEST_F(CudaFinite, OneOfMany) {
  Backend& b = *cuda();
  const Buffer memory = b.allocate(static_cast<size_t>(kFloats + 8) * sizeof(float));
  const auto write = [&](int64_t at, uint32_t bits) {
    float value;
    put_bits(value, bits);
    b.upload(View::of(&value, 1, 1), floats(memory, at, 1));
  };
  Random random(5);
  std::vector<float> values(static_cast<size_t>(kFloats + 8));
  for (float& v : values) v = random.value();
  b.upload(View::of(values.data(), 1, kFloats + 8), floats(memory, 0, kFloats + 8));
  int asked = 0;
  for (int64_t first = 0; first < 4; ++first)
    for (const int64_t shorter : {0, 1, 2, 3}) {
      const View view = floats(memory, first, kFloats - shorter);
      const int64_t end = first + view.cols;
      ASSERT_TRUE(all_finite(view)) << first << " to " << end;
      std::vector<int64_t> places;
      for (int64_t i = 0; i < 5; ++i)
        places.insert(places.end(),
                      {first + i, end - 1 - i, first + static_cast<int64_t>(random.bits() % kFloats) % view.cols});
      for (const int64_t place : places) {
        write(place, kNotFinite[static_cast<size_t>(asked++) % std::size(kNotFinite)]);
        ASSERT_FALSE(all_finite(view)) << first << " to " << end << ", float " << place;
        write(place, 0x00000001);
        ASSERT_TRUE(all_finite(view)) << first << " to " << end << ", float " << place;
      }
      write(end, kNotFinite[0]);  // beside it
      if (first > 0) write(first - 1, kNotFinite[2]);
      ASSERT_TRUE(all_finite(view)) << first << " to " << end;
      write(end, 0);
      if (first > 0) write(first - 1, 0);
    }
  EXPECT_EQ(asked, 4 * 4 * 15);
}

// What operators that are still enqueued make of it is what is looked at.
TEST_F(CudaFinite, BehindOperators) {
  Backend& b = *cuda();
  const Buffer memory = b.allocate(static_cast<size_t>(kFloats) * sizeof(float)), copy = b.allocate(memory.size());
  std::vector<float> values(static_cast<size_t>(kFloats), 0.25f);
  values[12345678] = 3.0f;
  b.upload(View::of(values.data(), 1, kFloats), floats(memory, 0, kFloats));
  for (int i = 0; i < 3; ++i) b.scale(floats(memory, 0, kFloats), 0x1p42f);
  EXPECT_TRUE(all_finite(floats(memory, 0, kFloats)));
  b.scale(floats(memory, 0, kFloats), 2.0f);  // 3 * 2^127
  b.copy(floats(memory, 0, kFloats), floats(copy, 0, kFloats));
  EXPECT_FALSE(all_finite(floats(copy, 0, kFloats)));
  b.clear(floats(copy, 12345678, 1));
  EXPECT_TRUE(all_finite(floats(copy, 0, kFloats)));
}

// Prints what the question costs, beside what bringing the memory to the host does.
TEST_F(CudaFinite, Speed) {
  Backend& b = *cuda();
  const Buffer memory = b.allocate(static_cast<size_t>(kFloats) * sizeof(float));
  std::vector<float> here(static_cast<size_t>(kFloats));
  const auto median = [](auto&& call) {
    std::vector<double> seconds;
    for (int round = 0; round < 21; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      call();
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::nth_element(seconds.begin(), seconds.begin() + 10, seconds.end());
    return seconds[10];
  };
  const double nothing = median([&] { EXPECT_TRUE(all_finite(floats(memory, 0, 1))); });
  const double asked = median([&] { EXPECT_TRUE(all_finite(floats(memory, 0, kFloats))); });
  const double brought = median([&] { b.download(floats(memory, 0, kFloats), View::of(here.data(), 1, kFloats)); });
  std::printf("%.1f MB: asked in %.1f us (of one float %.1f us; the rest %.2f TB/s), brought to the host in %.0f us\n",
              kFloats * 4e-6, asked * 1e6, nothing * 1e6, kFloats * 4e-12 / (asked - nothing), brought * 1e6);
}

}  // namespace
}  // namespace foretoken::test
