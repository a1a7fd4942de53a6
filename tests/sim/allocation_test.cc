// What a warm engine allocates: no buffer in a cycle (weights, pages, lanes' memory, scratch, checkpoints), hardly one where answers end,
// and small objects alone besides. Counts what goes through operator new and aligned_alloc, of which Buffer takes its memory.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <new>

#include "support/engine_rig.h"

namespace {

// Of the thread that counts; -1: it does not.
thread_local int64_t new_calls = -1, new_bytes = 0, largest_new = 0, buffers = 0, buffer_bytes = 0;

void* counted_new(size_t bytes) {
  if (new_calls >= 0) {
    ++new_calls;
    new_bytes += static_cast<int64_t>(bytes);
    largest_new = std::max(largest_new, static_cast<int64_t>(bytes));
  }
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return counted_new(bytes); }
void* operator new[](size_t bytes) { return counted_new(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

extern "C" void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  if (new_calls >= 0) {
    ++buffers;
    buffer_bytes += static_cast<int64_t>(bytes);
  }
  return memalign(alignment, bytes);
}

namespace foretoken {
namespace {

struct Counted {
  int64_t steps = 0, calls = 0, bytes = 0, largest = 0, buffers = 0, buffer_bytes = 0;
};

// Steps of `bench` until it is idle, or the first `steps` of them.
Counted count_steps(test::EngineBench& bench, int64_t steps = std::numeric_limits<int64_t>::max()) {
  Counted c;
  new_calls = new_bytes = largest_new = buffers = buffer_bytes = 0;
  while (c.steps < steps && !bench.engine->idle()) c.steps += bench.engine->step();
  c.calls = new_calls, c.bytes = new_bytes, c.largest = largest_new, c.buffers = buffers, c.buffer_bytes = buffer_bytes;
  new_calls = -1;
  return c;
}

TEST(Allocation, AWarmEngineAllocatesNoBuffers) {
  for (const char* speculate : {"off", "copy", "mtp", "dflash"}) {
    test::EngineRig& rig = test::EngineRig::embedded(speculate);
    // A width makes every cycle's plan the same, so that no pass is larger than all before it: scratch grows to the largest pass seen.
    // A cache that is full after a few requests, so that each checkpoint pushes others out.
    test::EngineBench bench(rig, {.lanes = 4, .max_context = 400, .speculation = {.width = 6}, .cache = {.limit_bytes = size_t{12} << 20}});
    const auto submit = [&](int round) {
      for (int i = 0; i < 4; ++i) bench.submit({.prompt = test::text_like(60 + 9 * i, round * 10 + i), .max_tokens = 60});
    };
    Counted first;
    for (int round = 0; round < 3; ++round) {
      submit(round);
      const Counted c = count_steps(bench);
      if (round == 0) first = c;
    }
    EXPECT_GT(first.buffers, 10) << "the counter counts nothing";
    EXPECT_GT(bench.engine->status().cache.evictions, 0u);

    submit(50);
    while (bench.engine->status().active < 4 || bench.heard[bench.next - 1].tokens.empty()) bench.engine->step();
    const Counted cycles = count_steps(bench, 8);
    const Counted rest = count_steps(bench);  // ends and their checkpoints
    std::printf("%s: a cycle of 4 lanes makes %.0f small objects of %.0f bytes in all, the largest %lld; buffers: %lld in cycles, %lld at the ends, %lld in the first round\n",
                speculate, static_cast<double>(cycles.calls) / static_cast<double>(cycles.steps), static_cast<double>(cycles.bytes) / static_cast<double>(cycles.steps),
                static_cast<long long>(cycles.largest), static_cast<long long>(cycles.buffers), static_cast<long long>(rest.buffers), static_cast<long long>(first.buffers));
    EXPECT_EQ(cycles.buffers, 0) << speculate;
    // A checkpoint may find no memory of a dropped one where the one before it pushed nobody out.
    EXPECT_LE(rest.buffers, 4) << speculate;
    EXPECT_LT(cycles.largest, 64 << 10) << speculate;
  }
}

}  // namespace
}  // namespace foretoken
