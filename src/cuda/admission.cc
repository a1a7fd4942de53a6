// Inputs of an admission come from a generator of its own: no request's random numbers are touched.
#include "cuda/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "numerics/dtype.h"

namespace foretoken::cuda {
namespace {

// A count for each kernel of many rows (linear_q4k_wide.cu: 32, 64 and 128 columns), none of which fills its columns.
constexpr int64_t kTriedRows[] = {24, 40, 72};

}  // namespace

void Admission::decide(Part& part, Queue& queue) {
  part.wide = false;
  if (!wide_ || (part.layout != Layout::kQ4K && part.layout != Layout::kQ6K)) return;
  const auto [shape, is_new] = shapes_.try_emplace({part.layout, part.rows, part.cols}, false);
  if (is_new)
    shape->second = std::all_of(std::begin(kTriedRows), std::end(kTriedRows),
                                [&](int64_t rows) { return same_bits(part, rows, queue); });
  part.wide = shape->second;
}

bool Admission::same_bits(const Part& part, int64_t rows, Queue& queue) {
  const size_t inputs = static_cast<size_t>((rows + 63) / 64 * 64 * padded_cols(part.cols));
  std::vector<Bf16> values(inputs);
  uint64_t state = static_cast<uint64_t>(part.rows) * 1000003 + static_cast<uint64_t>(part.cols);
  for (size_t i = 0; i < inputs; ++i) {  // of another magnitude in every super-block
    state = state * 6364136223846793005u + 1442695040888963407u;
    values[i] = to_bf16(
        std::ldexp(static_cast<float>(static_cast<int32_t>(state >> 32)), static_cast<int>(i / 256 * 7 % 24) - 43));
  }
  Buffer x = device_memory(inputs * sizeof(uint16_t)), differences = device_memory(sizeof(int));
  check(cudaMemcpyAsync(x.data(), values.data(), x.size(), cudaMemcpyHostToDevice, queue.stream()), "an upload");
  Buffer results[2], works[2];
  const bool sliced = plane_count(part) > 1;
  const int64_t floats = plane_count(part) * rows * part.rows;
  for (const bool wide : {false, true}) {
    Part tried = part;
    tried.wide = wide;
    works[wide] = device_memory(linear_work_bytes(tried, rows));
    results[wide] = device_memory(static_cast<size_t>(rows * part.rows) * sizeof(float));
    const Rows out{reinterpret_cast<float*>(results[wide].data()), rows, part.rows, part.rows};
    launch_linear(tried, Rows{nullptr, rows, part.cols, part.cols}, reinterpret_cast<const uint16_t*>(x.data()), out, 0,
                  works[wide].data(), queue);
  }
  Buffer* const from = sliced ? works : results;
  launch_differences(reinterpret_cast<const float*>(from[0].data()), reinterpret_cast<const float*>(from[1].data()),
                     floats, reinterpret_cast<int*>(differences.data()), queue);
  queue.flush();
  int count = 0;
  check(cudaMemcpyAsync(&count, differences.data(), sizeof(count), cudaMemcpyDeviceToHost, queue.stream()),
        "a download");
  queue.synchronize("an admission");
  return count == 0;
}

std::string Admission::refused() const {
  int64_t count = 0;
  for (const auto& [shape, admitted] : shapes_) count += !admitted;
  if (count == 0) return {};
  return fmt::format(
      "{} of {} shapes of products run in groups of 16 rows, since this device adds up more of them in another order",
      count, shapes_.size());
}

}  // namespace foretoken::cuda
