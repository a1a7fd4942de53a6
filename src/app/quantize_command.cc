// foretoken quantize: write a bundle as a GGUF file of another type.
#include <fmt/format.h>

#include <iostream>

#include "app/commands.h"
#include "app/options.h"
#include "app/output_paths.h"
#include "app/progress.h"
#include "base/threads.h"
#include "model/gguf_export.h"

namespace foretoken::app {
namespace {

struct QuantizeOptions {
  CommonOptions common;
  std::string source, destination, type;
};

Result<int> quantize_bundle(const QuantizeOptions& o) {
  ASSIGN_OR_RETURN(const Bundle bundle, Bundle::open(o.source));
  ThreadPool pool(o.common.threads > 0 ? o.common.threads : usable_processors());
  ProgressLine progress("quantizing", o.common.level() != LogLevel::kQuiet);
  const auto show = [&](const ExportProgress& p) { progress.show(p.done_bytes, p.total_bytes, std::string(p.tensor)); };
  ASSIGN_OR_RETURN(const ExportReport written, export_gguf(bundle, o.destination, {.type = o.type, .progress = show}, pool));
  progress.clear();
  for (const std::string& note : written.notes) log_info(o.common, "note: " + note);
  if (o.common.json) {
    OrderedJson elements = OrderedJson::object();
    for (const auto& [format, count] : written.elements) elements[std::string(format_info(format).name)] = count;
    std::cout << dump_json({{"path", o.destination}, {"type", o.type}, {"bytes", written.file_bytes},
                            {"bits_per_weight", written.bits_per_weight()}, {"elements", elements}, {"notes", written.notes}}) << "\n";
  } else {
    fmt::print("{}: {:.1f} MiB, {:.2f} bits per weight\n", o.destination, static_cast<double>(written.file_bytes) / (1 << 20), written.bits_per_weight());
  }
  return 0;
}

}  // namespace

Command add_quantize(CLI::App& program) {
  auto o = std::make_shared<QuantizeOptions>();
  CLI::App* app = program.add_subcommand("quantize", "Write a GGUF file of another type");
  app->add_option("source", o->source, "Folder with safetensors, or a .gguf file")->required();
  app->add_option("destination", o->destination, "The .gguf file to write")->check(check_output_file)->required();
  std::string types;
  for (const std::string_view type : export_types()) types += (types.empty() ? "" : ", ") + std::string(type);
  app->add_option("--type", o->type, "One of " + types)->required();
  app->add_option("--threads,-t", o->common.threads, "Threads (0: all usable processors)")->check(CLI::Range(0, 1024));
  app->add_option("--log-level", o->common.log_level, "quiet, info or debug")->check(CLI::IsMember({"quiet", "info", "debug"}));
  app->add_flag("--json", o->common.json, "Print the result as JSON");
  return {app, [o] {
            const auto status = quantize_bundle(*o);
            return status ? *status : report(status.error());
          }};
}

}  // namespace foretoken::app
