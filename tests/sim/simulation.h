// A simulation of the engine from one seed: the real engine, scheduler, prefix cache, lanes and drafters over the tiny model, a disk
// tier over simulated files, a clock that a cost model moves, and a script of conversations, resends, cancels, deadlines, preemptions, limits
// that run out, disks that fail and processes that crash. Every answer is
// compared with the one its request has alone, and what must always hold is checked after every step. A failure is thrown with its seed
// and step; `sim_soak --replay N` replays it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "sim/sim_model.h"

namespace foretoken::sim {

inline constexpr int kRequestsPerSeed = 50;  // of the test

struct SimOptions {
  uint64_t seed = 1;
  KvFormat kv_format = KvFormat::kBF16;
  EngineOptions engine;
  int max_rows = 128;
  std::string speculate = "copy,mtp";  // "off": no drafters at all
  bool scripted = false;     // beside them, a drafter that knows the answer
  double right = 0.7;        // of its guesses
  bool branching = false;    // it proposes trees
  // Of one step.
  double submit = 0.2, preempt = 0.01, clear = 0.002, evict = 0.01;
  double cancel = 0.05;      // of a request's
  bool disk = false;         // a disk tier over simulated files
  uint64_t disk_bytes = 1 << 20;
  double restart = 0, disk_fault = 0, damage = 0;  // the process ends, well or by a crash; an operation fails; a bit of a file flips
  int late = 0;              // polls until a copy between memories is done, at most; where there are such
  int burst = 3;             // requests that come together, at most
  double idle_s = 1;         // simulated seconds between requests, on average, when nothing runs
  double pass_s = 0.01, row_s = 0.0005;  // what a pass takes
  bool hashes = true;        // now and then a lane's state is compared too

  // Everything from `seed`.
  static SimOptions draw(uint64_t seed);
  // What a soak runs: four lanes, pages and caches that are too small, drafters that are often right, a disk tier, lanes taken away by force.
  static SimOptions soak(uint64_t seed);
};

struct SimReport {
  uint64_t steps = 0, requests = 0, finished = 0, failed = 0, cancelled = 0, refused = 0, preemptions = 0;
  uint64_t prompt_tokens = 0, restored_tokens = 0, answer_tokens = 0, drafted = 0, accepted = 0;
  uint64_t forced = 0;      // lanes taken away by the script
  uint64_t hashes = 0, logprobs = 0, evictions = 0;
  uint64_t restarts = 0, lost = 0;  // lost: requests that a restart ended
  uint64_t host_out = 0, host_in = 0, host_dropped = 0;
  uint64_t disk_stored = 0, disk_hits = 0, disk_faults = 0, damaged = 0;
  uint64_t most_steps = 0;  // between a request's arrival and its end
  double simulated_s = 0;
  void add(const SimReport& other);
};

class Simulation {
 public:
  // `model` must outlive it.
  Simulation(SimModel& model, const SimOptions& options);
  ~Simulation();

  // Submits `requests` more requests at times of its own choice and runs until all have ended. May be called again.
  void serve(int requests);
  // What must hold at the very end: a cleared cache leaves nothing in use. The simulation is over.
  void finish();

  const SimReport& report() const;
  Engine& engine();
  TargetModel& target();
  DraftModels* drafts();
  // Forgets conversations and answers, so that a long simulation stays small. Only between calls of serve().
  void forget();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Where simulations are: what a failing CHECK prints before the process ends.
void report_place_on_abort();

}  // namespace foretoken::sim
