// foretoken bench rows: what a pass costs against its rows, with drafts, commits, the host's share and operators.
#include <cmath>
#include <map>

#include "app/bench_options.h"
#include "qualify/row_cost.h"
#include "qualify/timed_backend.h"

namespace foretoken::app {
namespace {

struct BenchRowsOptions {
  CommonOptions common;
  BenchOutput output;
  RowCostOptions cost;
};

Result<int> bench_rows(BenchRowsOptions o) {
  const SpeculationFlags every{.speculate = "copy,mtp,dflash"};
  ASSIGN_OR_RETURN(auto model, LoadedModel::load(o.common, &every));
  Measurement measurement("rows", "What a pass costs against its rows");
  measurement.describe_model(*model, o.common);
  OrderedJson& design = measurement.design();
  design["rows"] = o.cost.rows;
  design["prefix"] = o.cost.prefix;
  design["blocks"] = o.cost.blocks;
  design["order"] = "row counts in mirrored order, every count twice a block; each first pass is not counted";
  const SteadyClock clock;
  std::map<std::string, double> seconds;
  TimedBackend timed(model->backend(), clock, [&](std::string_view op, TimePoint begin, TimePoint end) {
    seconds[std::string(op)] += seconds_between(begin, end);
  });
  const auto attributed = model->make_target(timed);
  const RowCostModels models{.target = model->target(),
                             .drafts = *model->drafts(),
                             .attributed = attributed.get(),
                             .begin_operators = [&] { seconds.clear(); },
                             .operators_us =
                                 [&] {
                                   Json us = Json::object();
                                   for (const auto& [op, s] : seconds) us[op] = std::round(s * 1e7) / 10;
                                   return us;
                                 }};
  TRY(measure_row_cost(
      models, clock, o.cost, [&](Json row) { measurement.add(std::move(row)); }, bench_progress(o.common)));
  o.output.json = o.common.json;
  return measurement.finish(o.output);
}

}  // namespace

Command add_bench_rows(CLI::App& bench) {
  auto o = std::make_shared<BenchRowsOptions>();
  CLI::App* app = bench.add_subcommand("rows", "What a pass costs against its rows, and what a cycle consists of");
  add_common_options(*app, o->common);
  add_bench_output(*app, o->output, false);
  app->add_option("--rows", o->cost.rows, "Row counts, ascending")->delimiter(',')->check(CLI::Range(1, 65));
  app->add_option("--prefix", o->cost.prefix, "Committed tokens before the passes")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--blocks", o->cost.blocks, "Measured blocks")->check(CLI::Range(1, 1000))->capture_default_str();
  return {app, [o] {
            const auto status = bench_rows(*o);
            return status ? *status : report(status.error());
          }};
}

}  // namespace foretoken::app
