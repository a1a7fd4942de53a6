// What the measuring commands share: options, the evidence's beginning (where, what, how) and its end (printed,
// published).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/cohort.h"
#include "app/commands.h"
#include "qualify/environment.h"
#include "qualify/report.h"

namespace foretoken::app {

struct BenchOutput {
  std::string out;    // folder of the evidence; empty: none is kept
  bool json = false;  // overrides CommonOptions::json where a command has no model
};
void add_bench_output(CLI::App& command, BenchOutput& output, bool with_json);
// --blocks and --warm-up of a trial; `least_warm`: warm-up blocks that it cannot do without.
void add_trial_blocks(CLI::App& command, int& blocks, int& warm_blocks, int least_warm = 0);

// A measurement under way. Construct it before the work begins: it samples the machine's load.
class Measurement {
 public:
  Measurement(std::string kind, std::string title);

  Evidence& evidence() { return evidence_; }
  OrderedJson& design() { return evidence_.manifest["design"]; }
  void add(Json row) { evidence_.rows.push_back(std::move(row)); }
  void describe_model(LoadedModel& model, const CommonOptions& options);
  void describe_cohort(const Cohort& cohort);
  // Computes, prints and publishes; the exit status.
  Result<int> finish(const BenchOutput& output);

 private:
  Evidence evidence_;
  LoadSample begin_;
};

// A progress callback: a line on a terminal, and a line every half minute in a log, with the time that is left; false
// after Ctrl-C.
std::function<bool(int, int)> bench_progress(const CommonOptions& options);

// Subcommands of `bench`.
Command add_bench_speed(CLI::App& bench);
Command add_bench_rows(CLI::App& bench);
Command add_bench_abba(CLI::App& bench);
Command add_bench_conversation(CLI::App& bench);
Command add_bench_load(CLI::App& bench);
Command add_bench_compare(CLI::App& bench);
Command add_bench_resolve(CLI::App& bench);
Command add_bench_variate(CLI::App& bench);
Command add_bench_report(CLI::App& bench);

}  // namespace foretoken::app
