// The engine under simulation: ten thousand requests over two hundred seeds.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "base/threads.h"
#include "sim/simulation.h"

namespace foretoken::sim {
namespace {

TEST(Simulation, TenThousandRequests) {
  report_place_on_abort();
  constexpr int kSeeds = 200;
  std::atomic<int> next = 1;
  std::mutex mutex;
  SimReport total;
  std::vector<std::string> failures;
  const auto work = [&] {
    SimModel models[] = {SimModel(false), SimModel(true), SimModel(false, true), SimModel(true, true)};
    for (int seed = next++; seed <= kSeeds; seed = next++) {
      SimReport report;
      std::string failure;
      try {
        SimModel& model = models[seed % 4];
        model.forget_answers();
        Simulation simulation(model, SimOptions::draw(static_cast<uint64_t>(seed)));
        simulation.serve(kRequestsPerSeed);
        report = simulation.report();
        simulation.finish();
      } catch (const std::exception& e) {
        failure = e.what();
      }
      const std::lock_guard guard(mutex);
      total.add(report);
      if (failure.empty()) continue;
      failures.push_back(failure);
      std::fprintf(stderr, "%s\n", failure.c_str());
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < std::min(usable_processors(), 4); ++i) threads.emplace_back(work);
  for (std::thread& t : threads) t.join();
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
  if (!failures.empty()) return;
  // Everything happened, and often enough to mean something.
  EXPECT_EQ(total.requests, static_cast<uint64_t>(kSeeds * kRequestsPerSeed));
  EXPECT_GT(total.finished, 6000u);
  EXPECT_GT(total.cancelled, 200u);
  EXPECT_GT(total.failed, 100u);
  EXPECT_GT(total.refused, 100u);
  EXPECT_GT(total.restarts, 100u);
  EXPECT_GT(total.host_out, 1000u);
  EXPECT_GT(total.host_in, 200u);
  EXPECT_GT(total.host_dropped, 100u);
  EXPECT_GT(total.disk_hits, 100u);
  EXPECT_GT(total.disk_faults, 100u);
  EXPECT_GT(total.damaged, 100u);
  EXPECT_GT(total.preemptions, 1000u);
  EXPECT_GT(total.restored_tokens, 100'000u);
  EXPECT_GT(total.evictions, 1000u);
  EXPECT_GT(total.answer_tokens, 50'000u);
  EXPECT_GT(total.accepted, 10'000u);
  EXPECT_GT(total.drafted, total.accepted);
  EXPECT_GT(total.hashes, 1000u);
  EXPECT_GT(total.logprobs, 1000u);
  std::printf("%llu requests, %llu steps, %llu tokens, drafted %llu, accepted %llu, restored %llu of %llu prompt tokens, %llu preemptions, %llu evictions, "
              "%llu cancelled, %llu failed, %llu refused, %llu restarts that ended %llu, %llu checkpoints to the host and %llu back, %llu disk entries stored and %llu loaded, %llu disk faults, %llu bits flipped, %llu states and %llu logprobs compared, most steps of a request %llu, %.0f simulated seconds\n",
              (unsigned long long)total.requests, (unsigned long long)total.steps, (unsigned long long)total.answer_tokens, (unsigned long long)total.drafted,
              (unsigned long long)total.accepted, (unsigned long long)total.restored_tokens, (unsigned long long)total.prompt_tokens,
              (unsigned long long)total.preemptions, (unsigned long long)total.evictions, (unsigned long long)total.cancelled, (unsigned long long)total.failed,
              (unsigned long long)total.refused, (unsigned long long)total.restarts, (unsigned long long)total.lost,
              (unsigned long long)total.host_out, (unsigned long long)total.host_in, (unsigned long long)total.disk_stored,
              (unsigned long long)total.disk_hits, (unsigned long long)total.disk_faults, (unsigned long long)total.damaged, (unsigned long long)total.hashes, (unsigned long long)total.logprobs, (unsigned long long)total.most_steps,
              total.simulated_s);
}

// A short form of tools/soak.sh: what is allocated after a thousand requests is what was after four hundred.
TEST(Simulation, MemoryStaysFlat) {
  SimModel model(false);
  Simulation simulation(model, SimOptions::soak(2));
  std::vector<size_t> allocated;
  for (int round = 0; round < 10; ++round) {
    simulation.serve(100);
    simulation.forget();
    allocated.push_back(mallinfo2().uordblks);
  }
  const SimReport report = simulation.report();
  simulation.finish();
  EXPECT_GT(report.forced, 30u);
  EXPECT_GT(report.simulated_s, 300);
  EXPECT_GT(report.disk_stored, 20u);
  const size_t early = *std::max_element(allocated.begin() + 2, allocated.begin() + 5), late = *std::max_element(allocated.end() - 3, allocated.end());
  std::printf("%.0f simulated seconds, %llu lanes taken away by force, %zu bytes allocated after 300 to 500 requests, %zu after 800 to 1,000\n", report.simulated_s,
              static_cast<unsigned long long>(report.forced), early, late);
  EXPECT_LE(late, early + early / 50 + (256 << 10));  // histories of calibration, a slab of a pool
}

}  // namespace
}  // namespace foretoken::sim
