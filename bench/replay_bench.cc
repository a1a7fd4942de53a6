// The controller over recorded traces, without a model: what it takes against the best fixed plan in hindsight, and against plain decoding
// when every guess is wrong. Traces and costs are files that plans_bench writes; nothing is timed and the same files give the same figures.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>

#include "fixed_plans.h"
#include "trace_file.h"
#include "wrong_drafter.h"

namespace foretoken {
namespace {

using namespace test;
using test::Trace;  // recorded drafts, not the program's trace of phases

constexpr int kAnyVocabulary = 1 << 30;

struct Options {
  std::string traces, costs;
  int replays = 4, tokens = 0;
  double noise = 0.05;
  bool brief = false;
};

std::vector<std::unique_ptr<Drafter>> recorded(const Trace& trace, std::span<const Route> routes, const Costs& costs, ScriptedClock& clock,
                                               bool wrong = false) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  for (const Route route : routes) {
    std::unique_ptr<Drafter> one;
    if (route == Route::kCopy) one = make_lookup_drafter();
    else one = std::make_unique<RecordedDrafter>(trace, route, costs, clock);
    drafters.push_back(wrong ? std::make_unique<bench::WrongDrafter>(std::move(one), kAnyVocabulary) : std::move(one));
  }
  return drafters;
}

// [trace][plan]
std::vector<std::map<std::string, double>> replay_fixed(const std::vector<Trace>& traces, const Costs& costs) {
  std::vector<std::map<std::string, double>> seconds(traces.size());
  for (const bench::Plan& plan : bench::fixed_plans())
    for (size_t i = 0; i < traces.size(); ++i) {
      ScriptedClock clock;
      std::vector<Route> routes;
      if (plan.route) routes.push_back(*plan.route);
      Speculator speculator(recorded(traces[i], routes, costs, clock), plan.options, nullptr, clock);
      seconds[i][plan.name] = replay(traces[i], speculator, clock, costs).seconds;
    }
  return seconds;
}

struct Controlled {
  std::vector<double> seconds, worst;        // of every trace: mean, and slowest replay
  std::vector<std::map<std::string, int64_t>> plans;
};

// All routes under the controller; the first replay of all traces meets an empty memory and is not counted.
Controlled replay_controller(const Options& o, const std::vector<Trace>& traces, Costs costs, bool wrong) {
  Controlled sum{.seconds = std::vector<double>(traces.size()), .worst = std::vector<double>(traces.size()), .plans = {}};
  sum.plans.resize(traces.size());
  SpeculationMemory memory;
  costs.noise = o.noise;
  for (int round = 0; round <= o.replays; ++round)
    for (size_t i = 0; i < traces.size(); ++i) {
      ScriptedClock clock;
      const Route all[] = {Route::kBlock, Route::kMtp, Route::kCopy};
      Speculator speculator(recorded(traces[i], all, costs, clock, wrong), {}, &memory, clock);
      const double s = replay(traces[i], speculator, clock, costs, 7 + static_cast<uint64_t>(round)).seconds;
      if (round == 0) continue;
      sum.seconds[i] += s / o.replays;
      sum.worst[i] = std::max(sum.worst[i], s);
      for (const auto& [plan, cycles] : speculator.counters().plans) sum.plans[i][plan] += cycles;
    }
  return sum;
}

Status run(const Options& o) {
  ASSIGN_OR_RETURN(std::vector<Trace> traces, bench::read_traces(o.traces));
  ASSIGN_OR_RETURN(const Costs costs, bench::read_costs(o.costs));
  if (o.tokens > 0)
    for (Trace& t : traces) t.answer.resize(std::min(t.answer.size(), static_cast<size_t>(o.tokens)));
  const auto fixed = replay_fixed(traces, costs);
  const Controlled own = replay_controller(o, traces, costs, false), wrong = replay_controller(o, traces, costs, true);
  std::map<std::string, std::vector<size_t>> classes;
  for (size_t i = 0; i < traces.size(); ++i) classes[traces[i].name].push_back(i);
  const auto total = [](const auto& of, const std::vector<size_t>& members) {
    double sum = 0;
    for (const size_t i : members) sum += of(i);
    return sum;
  };
  if (!o.brief) fmt::print("{:<16} {:>18} {:>9} {:>9} {:>8}\n", "class", "best fixed", "it", "auto", "regret");
  double worst_regret = -1e9, best_total = 0, own_total = 0;
  for (const auto& [kind, members] : classes) {
    std::string best;
    double best_seconds = 1e300;
    for (const auto& [plan, unused] : fixed[0])
      if (const double s = total([&, &name = plan](size_t i) { return fixed[i].at(name); }, members); s < best_seconds) {
        best = plan;
        best_seconds = s;
      }
    const double plain = total([&](size_t i) { return fixed[i].at("plain"); }, members);
    const double mine = total([&](size_t i) { return own.seconds[i]; }, members);
    const double regret = 100 * (mine / best_seconds - 1);
    worst_regret = std::max(worst_regret, regret);
    best_total += std::log(plain / best_seconds);
    own_total += std::log(plain / mine);
    if (o.brief) continue;
    fmt::print("{:<16} {:>18} {:>8.3f}x {:>8.3f}x {:>7.1f}%  ", kind, best, plain / best_seconds, plain / mine, regret);
    std::map<std::string, int64_t> plans;
    for (const size_t i : members)
      for (const auto& [plan, cycles] : own.plans[i]) plans[plan] += cycles;
    for (const auto& [plan, cycles] : plans) fmt::print(" {} {}", plan, cycles / o.replays);
    fmt::print("\n");
  }
  double worst = 1e9, wrong_worst = 1e9, wrong_mean = 0, wrong_log = 0, own_log = 0;
  for (size_t i = 0; i < traces.size(); ++i) {
    const double plain = fixed[i].at("plain");
    worst = std::min(worst, plain / own.worst[i]);
    wrong_worst = std::min(wrong_worst, plain / wrong.worst[i]);
    wrong_mean = i == 0 ? plain / wrong.seconds[i] : std::min(wrong_mean, plain / wrong.seconds[i]);
    wrong_log += std::log(plain / wrong.seconds[i]);
    own_log += std::log(plain / own.seconds[i]);
  }
  const double count = static_cast<double>(traces.size()), kinds = static_cast<double>(classes.size());
  fmt::print("worst regret {:.1f}%, mean of classes {:.1f}%; auto: geometric mean {:.3f}x, slowest replay of any prompt {:.3f}x; "
             "wrong drafters: geometric mean {:.3f}x, worst prompt {:.3f}x, slowest replay {:.3f}x\n",
             worst_regret, 100 * (std::exp((best_total - own_total) / kinds) - 1), std::exp(own_log / count), worst,
             std::exp(wrong_log / count), wrong_mean, wrong_worst);
  return {};
}

}  // namespace
}  // namespace foretoken

int main(int argc, char** argv) {
  foretoken::Options o;
  CLI::App program("The controller over recorded traces and measured costs");
  program.add_option("--traces", o.traces, "what plans_bench --traces wrote")->required();
  program.add_option("--costs", o.costs, "what plans_bench --costs-out wrote")->required();
  program.add_option("--replays", o.replays, "counted replays")->check(CLI::PositiveNumber);
  program.add_option("--tokens,-n", o.tokens, "answers end after so many tokens");
  program.add_option("--noise", o.noise, "relative noise of a pass")->check(CLI::NonNegativeNumber);
  program.add_flag("--brief", o.brief, "one line");
  CLI11_PARSE(program, argc, argv);
  const auto status = foretoken::run(o);
  if (status) return 0;
  fmt::print(stderr, "replay_bench: {}\n", status.error().message);
  return foretoken::exit_status(status.error().code);
}
