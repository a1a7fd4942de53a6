// Speed of the disk tier on the machine's own files: opening a folder of many entries, looking prompts up, storing and restoring. Every
// figure is a median. The folder is made below the one that is named, and removed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "support/temp_dir.h"
#include "support/toy_entries.h"
#include "timing.h"

namespace {

using namespace foretoken;
using namespace foretoken::testing;

template <class Work>
double seconds(Work&& work) {
  const SteadyClock clock;
  const TimePoint begin = clock.now();
  work();
  return seconds_between(begin, clock.now());
}

DiskTierOptions options_of(const std::filesystem::path& folder, const ToyShape& shape) {
  return {.folder = folder, .fingerprint = "bench", .page_bytes = shape.page_bytes(), .limit_bytes = uint64_t{8} << 30,
          .queue_bytes = uint64_t{1} << 30, .write_bytes_per_hour = 0, .least_free_bytes = 0, .least_gain_tokens = 1};
}

// Conversations of twenty turns: as many chains as roots.
void bench_many(const std::filesystem::path& folder, int entries) {
  const ToyShape shape{.slot_bytes = 1, .state_bytes = 64, .drafter_bytes = 0};
  PosixFiles files;
  const SteadyClock clock;
  const int turns = 20;
  Tokens last;
  {
    const auto tier = DiskTier::open(options_of(folder, shape), files, clock);
    for (int i = 0; i < entries; ++i) {
      const Tokens turn = random_tokens(static_cast<uint64_t>(i), 200);
      last = i % turns == 0 ? turn : joined(std::move(last), turn);
      tier->store(ToyEntry(last, shape).source());
    }
    fmt::print("storing {} small entries          {:8.2f} s, flushed\n", entries, seconds([&] { tier->flush(); }));
  }
  std::unique_ptr<DiskTier> tier;
  std::vector<double> opens, finds, misses;
  for (int i = 0; i < 5; ++i) {
    tier.reset();
    opens.push_back(seconds([&] { tier = DiskTier::open(options_of(folder, shape), files, clock); }));
  }
  fmt::print("opening {} entries                {:8.1f} ms ({} found)\n", entries, 1e3 * median(opens), tier->statistics().entries);
  const Tokens absent = random_tokens(1u << 30, last.size());
  for (int i = 0; i < 1001; ++i) {
    finds.push_back(seconds([&] { CHECK(tier->find(last, static_cast<int64_t>(last.size()) - 1).has_value()); }));
    misses.push_back(seconds([&] { CHECK(!tier->find(absent, static_cast<int64_t>(absent.size())).has_value()); }));
  }
  fmt::print("finding, {} tokens               {:8.1f} us\n", last.size(), 1e6 * median(finds));
  fmt::print("finding nothing, {} tokens       {:8.1f} us\n", absent.size(), 1e6 * median(misses));
  std::vector<double> loads;
  for (int i = 0; i < 21; ++i) {
    const auto match = tier->find(last, static_cast<int64_t>(last.size()));
    loads.push_back(seconds([&] { CHECK(!tier->load(*match, last).fault); }));
  }
  fmt::print("restoring a chain of {} files       {:8.2f} ms\n", turns, 1e3 * median(loads));
}

void bench_large(const std::filesystem::path& folder, uint64_t state_mib) {
  const ToyShape shape{.slot_bytes = 16384, .state_bytes = state_mib << 20, .drafter_bytes = 1 << 20};
  PosixFiles files;
  const SteadyClock clock;
  const auto tier = DiskTier::open(options_of(folder, shape), files, clock);
  std::vector<double> stores, flushes, loads;
  double mib = 0;
  for (uint64_t i = 0; i < 5; ++i) {
    const ToyEntry entry(random_tokens(i, 4096), shape);
    EntrySource source = entry.source();
    source.state.owner = std::shared_ptr<const void>(std::shared_ptr<void>(), &entry);  // lent, as the engine lends a checkpoint
    stores.push_back(seconds([&] { tier->store(source); }));
    flushes.push_back(seconds([&] { tier->flush(); }));
    const auto match = tier->find(entry.tokens(), 4096);
    CHECK(match.has_value());
    mib = static_cast<double>(match->host_bytes) / (1 << 20);
    loads.push_back(seconds([&] { CHECK(!tier->load(*match, entry.tokens()).fault); }));
  }
  fmt::print("an entry of 4096 tokens, {:.0f} MiB: stored in {:.1f} ms by the caller, written at {:.0f} MiB/s, restored at {:.0f} MiB/s (cached)\n", mib,
             1e3 * median(stores), mib / median(flushes), mib / median(loads));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Speed of the disk tier"};
  int entries = 10'000;
  uint64_t state_mib = 20;
  app.add_option("--entries", entries, "small entries to scan");
  app.add_option("--state-mib", state_mib, "of the large entry");
  CLI11_PARSE(app, argc, argv);
  TempDir temp;
  bench_many(temp.path() / "many", entries);
  bench_large(temp.path() / "large", state_mib);
  return 0;
}
