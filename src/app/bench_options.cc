// Manifests, and what becomes of a finished measurement.
#include "app/bench_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iostream>

#include "app/answer.h"
#include "app/output_paths.h"
#include "app/progress.h"
#include "base/file.h"

namespace foretoken::app {
namespace {

std::string today() {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return date;
}

using Steady = std::chrono::steady_clock;

std::string duration_text(double seconds) {
  return seconds < 90 ? fmt::format("{:.0f} s", seconds) : fmt::format("{:.0f} min", seconds / 60);
}

}  // namespace

void add_bench_output(CLI::App& command, BenchOutput& output, bool with_json) {
  command.add_option("--out", output.out, "Folder for the evidence: raw rows, summary, table and page")
      ->check(check_output_folder);
  if (with_json) command.add_flag("--json", output.json, "Print the summary as JSON");
}

void add_trial_blocks(CLI::App& command, int& blocks, int& warm_blocks, int least_warm) {
  command.add_option("--blocks", blocks, "Measured blocks (4 at least to claim a gain)")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--warm-up", warm_blocks, "Blocks that are measured and not counted")
      ->check(CLI::Range(least_warm, 100))
      ->capture_default_str();
}

Measurement::Measurement(std::string kind, std::string title) : begin_(sample_load()) {
  OrderedJson& m = evidence_.manifest;
  m["kind"] = std::move(kind);
  m["title"] = std::move(title);
  m["date"] = today();
  m["command"] = own_command();
  m["environment"] = describe_machine();
  OrderedJson build = OrderedJson::object();
  build["version"] = FORETOKEN_VERSION;
  if (const auto program = MappedFile::open("/proc/self/exe"); program) build["sha256"] = sha256_hex(program->bytes());
  m["build"] = build;
  m["design"] = OrderedJson::object();
}

void Measurement::describe_model(LoadedModel& model, const CommonOptions& options) {
  OrderedJson j = OrderedJson::object();
  std::error_code ignored;
  const auto path = std::filesystem::canonical(model.bundle().path(), ignored);
  j["name"] = (ignored ? model.bundle().path() : path).filename().string();
  j["architecture"] = model.config().architecture;
  j["fingerprint"] = model.bundle().fingerprint();
  j["weights_bytes"] = model.bundle().tensor_bytes();
  j["kv_format"] = options.kv_format;
  const BackendInfo backend = model.backend().info();
  j["backend"] = backend.name + " " + backend.detail;
  if (model.drafts()) {
    j["speculation"] = model.drafts()->resolution().resolved;
    j["why"] = publishable(model.drafts()->resolution().why);
  }
  evidence_.manifest["model"] = j;
}

void Measurement::describe_cohort(const Cohort& cohort) {
  OrderedJson j = OrderedJson::object();
  j["name"] = cohort.name;
  j["sha256"] = cohort.sha256;
  j["prompts"] = cohort.prompts.size();
  evidence_.manifest["cohort"] = j;
}

Result<int> Measurement::finish(const BenchOutput& output) {
  evidence_.manifest["load"] = describe_load(begin_, sample_load());
  Summary summary;
  if (output.out.empty()) {
    ASSIGN_OR_RETURN(summary, summarize(evidence_));
  } else {
    ASSIGN_OR_RETURN(summary, publish(output.out, evidence_));
  }
  if (output.json) std::cout << dump_json(summary.json(), 1) << "\n";
  else std::cout << summary.markdown() << std::flush;
  return exit_status(summary.outcome);
}

std::function<bool(int, int)> bench_progress(const CommonOptions& options) {
  watch_interrupts();
  struct Progress {
    explicit Progress(bool wanted) : line("measuring", wanted) {}
    ProgressLine line;
    Steady::time_point begin = Steady::now(), said = begin;
  };
  const bool wanted = options.level() != LogLevel::kQuiet, in_a_log = wanted && !::isatty(STDERR_FILENO);
  auto progress = std::make_shared<Progress>(wanted);
  return [progress, in_a_log](int done, int total) {
    const auto now = Steady::now();
    const double passed_s = std::chrono::duration<double>(now - progress->begin).count();
    const std::string left = "about " + duration_text(passed_s * (total - done) / std::max(done, 1)) + " left";
    progress->line.show(static_cast<uint64_t>(done), static_cast<uint64_t>(total), left);
    if (done == total) progress->line.clear();
    if (in_a_log && done < total && now - progress->said >= std::chrono::seconds(30)) {
      progress->said = now;
      fmt::print(stderr, "measured {} of {}, {}\n", done, total, left);
    }
    return !interrupted();
  };
}

}  // namespace foretoken::app
