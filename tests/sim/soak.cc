// Hours of simulated traffic on one engine: every answer is compared with the one its request has alone, hundreds of lanes are taken away
// by force, and memory must stay flat. Prints a line per interval; exit status 1 when an answer or an invariant is wrong or memory grows.
// `--replay N` runs one seed of the test instead. Started by tools/soak.sh.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "sim/simulation.h"

namespace foretoken::sim {
namespace {

double resident_mib() {
  std::ifstream status("/proc/self/statm");
  long total = 0, resident = 0;
  status >> total >> resident;
  return static_cast<double>(resident) * 4096 / (1 << 20);
}

struct SoakOptions {
  double hours = 8, most_s = 0;
  uint64_t seed = 1, preemptions = 600;
  int intervals = 16;
};

int soak(const SoakOptions& o) {
  SimModel model(false);
  Simulation simulation(model, SimOptions::soak(o.seed));
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  std::printf("%8s %9s %9s %8s %7s %7s %8s %8s %8s %10s %9s\n", "hours", "requests", "tokens", "RSS MiB", "pages", "of", "entries", "on disk", "forced", "restored", "seconds");
  double warm_mib = 0, last_mib = 0;
  int printed = 0;
  while (simulation.report().simulated_s < o.hours * 3600 && (o.most_s <= 0 || seconds() < o.most_s)) {
    simulation.serve(50);
    simulation.forget();
    const SimReport& r = simulation.report();
    const double hours = r.simulated_s / 3600;
    if (hours < o.hours * (printed + 1) / o.intervals) continue;
    ++printed;
    last_mib = resident_mib();
    if (printed == std::max(1, o.intervals / 4)) warm_mib = last_mib;
    const EngineStatus status = simulation.engine().status();
    std::printf("%8.2f %9llu %9llu %8.2f %7zu %7zu %8zu %8llu %8llu %10llu %9.1f\n", hours, (unsigned long long)r.requests, (unsigned long long)r.answer_tokens, last_mib,
                status.pages_in_use, status.pages_limit, status.cache.entries, (unsigned long long)status.disk->entries, (unsigned long long)r.forced, (unsigned long long)r.restored_tokens, seconds());
    std::fflush(stdout);
  }
  const SimReport r = simulation.report();
  simulation.finish();
  std::printf("%.2f simulated hours in %.1f s: %llu requests, %llu tokens, drafted %llu, accepted %llu, %llu lanes taken away by force, %llu preemptions in all; "
              "memory after a quarter %.2f MiB, at the end %.2f MiB\n",
              r.simulated_s / 3600, seconds(), (unsigned long long)r.requests, (unsigned long long)r.answer_tokens, (unsigned long long)r.drafted,
              (unsigned long long)r.accepted, (unsigned long long)r.forced, (unsigned long long)r.preemptions, warm_mib, last_mib);
  if (r.simulated_s < o.hours * 3600) {
    std::printf("stopped by --seconds\n");
    return 3;
  }
  if (r.forced < o.preemptions) {
    std::printf("FAILED: fewer than %llu lanes were taken away by force\n", (unsigned long long)o.preemptions);
    return 1;
  }
  if (last_mib > warm_mib * 1.02 + 1) {
    std::printf("FAILED: memory grew from %.2f to %.2f MiB\n", warm_mib, last_mib);
    return 1;
  }
  std::printf("ok\n");
  return 0;
}

int replay(uint64_t seed) {
  SimModel model(seed % 2 == 1);
  Simulation simulation(model, SimOptions::draw(seed));
  simulation.serve(kRequestsPerSeed);
  const SimReport r = simulation.report();
  simulation.finish();
  std::printf("seed %llu: %llu steps, %llu requests, %llu tokens\n", (unsigned long long)seed, (unsigned long long)r.steps, (unsigned long long)r.requests,
              (unsigned long long)r.answer_tokens);
  return 0;
}

}  // namespace
}  // namespace foretoken::sim

int main(int argc, char** argv) {
  using namespace foretoken::sim;
  CLI::App app{"Simulated hours of traffic on the engine"};
  SoakOptions options;
  std::optional<uint64_t> seed;
  app.add_option("--hours", options.hours, "simulated (8)");
  app.add_option("--seconds", options.most_s, "real ones at most; 0: no bound");
  app.add_option("--seed", options.seed, "of the traffic");
  app.add_option("--preemptions", options.preemptions, "lanes that must be taken away by force (600)");
  app.add_option("--replay", seed, "run one seed of the simulation test");
  CLI11_PARSE(app, argc, argv);
  report_place_on_abort();
  try {
    return seed ? replay(*seed) : soak(options);
  } catch (const std::exception& e) {
    std::printf("FAILED: %s\n", e.what());
    return 1;
  }
}
