// The engine under simulation: ten thousand requests over two hundred seeds.
#include <gtest/gtest.h>

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
    SimModel models[] = {SimModel(false), SimModel(true)};
    for (int seed = next++; seed <= kSeeds; seed = next++) {
      SimReport report;
      std::string failure;
      try {
        SimModel& model = models[seed % 2];
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
  EXPECT_GT(total.preemptions, 1000u);
  EXPECT_GT(total.restored_tokens, 100'000u);
  EXPECT_GT(total.evictions, 1000u);
  EXPECT_GT(total.answer_tokens, 50'000u);
  EXPECT_GT(total.accepted, 10'000u);
  EXPECT_GT(total.drafted, total.accepted);
  EXPECT_GT(total.hashes, 1000u);
  EXPECT_GT(total.logprobs, 1000u);
  std::printf("%llu requests, %llu steps, %llu tokens, drafted %llu, accepted %llu, restored %llu of %llu prompt tokens, %llu preemptions, %llu evictions, "
              "%llu cancelled, %llu failed, %llu refused, %llu states and %llu logprobs compared, most steps of a request %llu, %.0f simulated seconds\n",
              (unsigned long long)total.requests, (unsigned long long)total.steps, (unsigned long long)total.answer_tokens, (unsigned long long)total.drafted,
              (unsigned long long)total.accepted, (unsigned long long)total.restored_tokens, (unsigned long long)total.prompt_tokens,
              (unsigned long long)total.preemptions, (unsigned long long)total.evictions, (unsigned long long)total.cancelled, (unsigned long long)total.failed,
              (unsigned long long)total.refused, (unsigned long long)total.hashes, (unsigned long long)total.logprobs, (unsigned long long)total.most_steps,
              total.simulated_s);
}

}  // namespace
}  // namespace foretoken::sim
