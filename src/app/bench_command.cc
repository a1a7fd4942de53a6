// foretoken bench: the family of measuring commands, and the report that recomputes what they published.
#include <fmt/format.h>

#include <iostream>

#include "app/bench_options.h"

namespace foretoken::app {
namespace {

struct BenchReportOptions {
  std::string folder;
  bool json = false, rewrite = false;
};

Result<int> bench_report(const BenchReportOptions& o) {
  if (o.rewrite) TRY(derive_anew(o.folder));
  ASSIGN_OR_RETURN(const ReportResult result, recompute(o.folder));
  if (o.json) {
    OrderedJson j = OrderedJson::object();
    j["equal"] = result.differences.empty();
    j["differences"] = result.differences;
    j["summary"] = result.summary.json();
    std::cout << dump_json(j, 1) << "\n";
  } else {
    std::cout << result.summary.markdown() << "\n";
    for (const std::string& d : result.differences) fmt::print("DIFFERENT {}\n", d);
    fmt::print("{}\n", result.differences.empty()
                           ? "equal: every published figure and verdict follows from the raw rows"
                           : "not equal");
  }
  return result.differences.empty() ? 0 : 1;
}

}  // namespace

Command add_bench_report(CLI::App& bench) {
  auto o = std::make_shared<BenchReportOptions>();
  CLI::App* app =
      bench.add_subcommand("report", "Recompute every figure and verdict of a published measurement from its raw rows");
  app->add_option("folder", o->folder, "Folder of the evidence")->required();
  app->add_flag("--json", o->json, "Print the result as JSON");
  app->add_flag("--rewrite", o->rewrite, "First write summary, table and page anew from manifest and raw rows");
  return {app, [o] {
            const auto status = bench_report(*o);
            return status ? *status : report(status.error());
          }};
}

Command add_bench(CLI::App& program) {
  CLI::App* bench = program.add_subcommand("bench", "Measure this program here, and check published measurements");
  bench->require_subcommand(1);
  const std::vector<Command> commands = {
      add_bench_speed(*bench),   add_bench_rows(*bench),    add_bench_conversation(*bench),
      add_bench_load(*bench),    add_bench_abba(*bench),    add_bench_compare(*bench),
      add_bench_resolve(*bench), add_bench_variate(*bench), add_bench_report(*bench)};
  return {bench, [commands] {
            for (const Command& command : commands)
              if (command.app->parsed()) return command.run();
            return 2;
          }};
}

}  // namespace foretoken::app
