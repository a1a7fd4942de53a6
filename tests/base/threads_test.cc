// The pool: every index of a job is visited exactly once by one thread, in a partition that depends on nothing but the job's
// size; every thread flushes subnormal numbers to zero.
#include "base/threads.h"

#include <gtest/gtest.h>
#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace foretoken {
namespace {

struct Range {
  int64_t begin, end;
  int thread;
  bool operator==(const Range& other) const { return begin == other.begin && end == other.end; }
};

// The ranges of one job, sorted by begin.
std::vector<Range> ranges_of(ThreadPool& pool, int64_t count, int64_t grain) {
  std::mutex mutex;
  std::vector<Range> ranges;
  pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int thread) {
    const std::lock_guard lock(mutex);
    ranges.push_back({begin, end, thread});
  });
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  return ranges;
}

// For many sizes, grains and pools the ranges tile [0, count): no gap, no overlap, bounds at multiples of the grain, at most
// kPiecesPerShare ranges per thread, and ranges that differ by at most one grain.
TEST(ThreadPool, PartitionCoversEverythingOnce) {
  for (const int threads : {1, 2, 3, 4, 7}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.size(), threads);
    for (const int64_t grain : {1, 2, 5, 16, 64})
      for (const int64_t count : {0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 63, 64, 65, 100, 255, 256, 1000, 1001}) {
        SCOPED_TRACE(testing::Message() << threads << " threads, grain " << grain << ", count " << count);
        const std::vector<Range> ranges = ranges_of(pool, count, grain);
        ASSERT_LE(ranges.size(), static_cast<size_t>(threads * ThreadPool::kPiecesPerShare));
        int64_t at = 0, smallest = count + grain, largest = 0;
        for (const Range& range : ranges) {
          ASSERT_EQ(range.begin, at);
          ASSERT_LT(range.begin, range.end);
          ASSERT_EQ(range.begin % grain, 0);
          ASSERT_TRUE(range.end == count || range.end % grain == 0);
          ASSERT_GE(range.thread, 0);
          ASSERT_LT(range.thread, threads);
          at = range.end;
          const int64_t grains = (range.end - range.begin + grain - 1) / grain;
          smallest = std::min(smallest, grains);
          largest = std::max(largest, grains);
        }
        ASSERT_EQ(at, count);
        ASSERT_TRUE(ranges.empty() || largest - smallest <= 1);
      }
  }
}

// The same job has the same partition every time, whoever runs its ranges.
TEST(ThreadPool, PartitionIsStatic) {
  ThreadPool pool(4);
  const std::vector<Range> first = ranges_of(pool, 1003, 8);
  ASSERT_EQ(first.size(), 4u * ThreadPool::kPiecesPerShare);
  for (int round = 0; round < 200; ++round) ASSERT_EQ(ranges_of(pool, 1003, 8), first);
}

// No two ranges run under one name at once, so that a name may index scratch memory; slow ranges are helped with, which shows that names
// are the runners' and not the ranges'.
TEST(ThreadPool, ANameIsHeldByOneRangeAtATime) {
  ThreadPool pool(3);
  std::atomic<bool> busy[3] = {};
  std::atomic<int> clashes{0}, helped{0};
  for (int job = 0; job < 200; ++job)
    pool.parallel_for(240, 1, [&](int64_t begin, int64_t, int thread) {
      if (busy[thread].exchange(true)) ++clashes;
      if (begin < 80) std::this_thread::sleep_for(std::chrono::microseconds(50));  // the first share is slow
      if (begin < 80 && thread != 0) ++helped;
      busy[thread].store(false);
    });
  EXPECT_EQ(clashes, 0);
  EXPECT_GT(helped, 0);
}

// Thousands of jobs in a row, some after the workers went to sleep, each complete when the call returns.
TEST(ThreadPool, EveryJobIsCompleteWhenTheCallReturns) {
  ThreadPool pool(3);
  std::vector<int> visits(257);
  for (int job = 1; job <= 3000; ++job) {
    pool.parallel_for(257, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
    });
    ASSERT_EQ(visits[0], job);
    ASSERT_EQ(visits[128], job);
    ASSERT_EQ(visits[256], job);
    if (job % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Jobs no larger than a grain, and all jobs of a pool of one, run on the caller.
TEST(ThreadPool, SmallJobsRunInline) {
  const std::thread::id caller = std::this_thread::get_id();
  ThreadPool pool(4), alone(1);
  const auto expect_inline = [&](int64_t begin, int64_t, int thread) {
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(thread, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  };
  pool.parallel_for(16, 16, expect_inline);
  alone.parallel_for(100'000, 1, expect_inline);
}

constexpr unsigned kFlushBits = 0x8040u;  // FTZ and DAZ

// Control bits and arithmetic agree: a subnormal result and a subnormal operand are both zero in every thread of a pool.
TEST(ThreadPool, EveryThreadFlushesSubnormals) {
  // A fresh thread inherits the test's own settings, so the test starts from a clean one.
  std::thread([] {
    _mm_setcsr(_mm_getcsr() & ~kFlushBits);
    volatile float tiny = 1e-30f, tinier = 1e-15f, subnormal = 1e-40f, one = 1.0f;
    ASSERT_NE(tiny * tinier, 0.0f) << "without the flags this product is subnormal: the reference is not trivial";
    ASSERT_NE(subnormal * one, 0.0f);
    ThreadPool pool(3);
    std::atomic<int> seen{0};
    pool.parallel_for(3, 1, [&](int64_t, int64_t, int) {
      volatile float a = 1e-30f, b = 1e-15f, c = 1e-40f, d = 1.0f;
      EXPECT_EQ(_mm_getcsr() & kFlushBits, kFlushBits);
      EXPECT_EQ(a * b, 0.0f);
      EXPECT_EQ(c * d, 0.0f);
      ++seen;
    });
    EXPECT_EQ(seen, 3);
  }).join();
}

// A job inside a job of the same pool would wait for itself; a grain below one has no meaning.
TEST(ThreadPoolDeathTest, MisuseEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto nested = [] {
    ThreadPool pool(2);
    pool.parallel_for(2, 1, [&](int64_t, int64_t, int thread) {
      if (thread == 0) pool.parallel_for(8, 1, [](int64_t, int64_t, int) {});
    });
  };
  EXPECT_DEATH(nested(), "CHECK\\(!s\\.running\\) failed");
  EXPECT_DEATH(ThreadPool(1).parallel_for(4, 0, [](int64_t, int64_t, int) {}), "CHECK\\(grain >= 1\\) failed");
  EXPECT_DEATH(ThreadPool(0), "CHECK\\(threads >= 1\\) failed");
}

// At least one processor, and no more than the affinity mask of this process allows.
TEST(Processors, RespectAffinity) {
  const int all = usable_processors();
  EXPECT_GE(all, 1);
  std::thread([&] {
    cpu_set_t before, one;
    ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
    EXPECT_LE(all, CPU_COUNT(&before));
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &before)) {
        CPU_SET(cpu, &one);
        break;
      }
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(usable_processors(), 1);
  }).join();
}

}  // namespace
}  // namespace foretoken
