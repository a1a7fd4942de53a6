// foretoken bench abba A B: two commands, two binaries or two sets of options, in alternating blocks of processes.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <thread>

#include "app/bench_options.h"
#include "base/file.h"
#include "qualify/process.h"

namespace foretoken::app {
namespace {

namespace fs = std::filesystem;

struct BenchAbbaOptions {
  BenchOutput output;
  std::string a, b, metric, better, cohort = "standard", log_level = "info";
  std::vector<std::string> run;  // further options of every run
  int blocks = 4, warm_blocks = 1, tokens = 96;
  double settle_s = 0;
  bool outputs_may_differ = false;
};

struct Prompt {
  std::string kind;
  std::vector<std::string> words;  // of the command line
};

// How one arm answers one prompt.
struct Arm {
  std::string name;
  std::vector<std::string> words;
  bool whole = false;  // a command of its own: there are no prompts
};

Result<Arm> arm_of(const std::string& name, const std::string& text, const BenchAbbaOptions& o) {
  if (text.starts_with("--")) {
    Arm arm{.name = name, .words = {"/proc/self/exe", "run"}};
    std::error_code ignored;
    if (const fs::path self = fs::read_symlink("/proc/self/exe", ignored); !self.empty()) arm.words[0] = self.string();
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(' ', begin), text.size());
      if (end > begin) arm.words.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    arm.words.insert(arm.words.end(), o.run.begin(), o.run.end());
    return arm;
  }
  if (fs::is_regular_file(text) && ::access(text.c_str(), X_OK) == 0) {
    Arm arm{.name = name, .words = {fs::absolute(text).string(), "run"}};
    arm.words.insert(arm.words.end(), o.run.begin(), o.run.end());
    return arm;
  }
  if (text.find_first_not_of(" ") == std::string::npos)
    return Error{ErrorCode::kUsage, "an arm is a command, a program or options that begin with --, not nothing"};
  return Arm{.name = name, .words = {"/bin/sh", "-c", text}, .whole = true};
}

Result<std::vector<Prompt>> prompts_of(const BenchAbbaOptions& o) {
  std::string list;
  if (o.cohort == "standard") list = kStandardCohort;
  else if (o.cohort == "holdout") list = kHoldoutCohort;
  else {
    ASSIGN_OR_RETURN(list, read_file(o.cohort));
  }
  ASSIGN_OR_RETURN(const Json cohort, parse_json(list, o.cohort));
  std::vector<Prompt> prompts;
  try {
    for (const Json& entry : cohort) {
      if (!entry.contains("text") || entry.contains("file")) continue;
      Prompt p{.kind = entry.at("class").get<std::string>(),
               .words = {"--json", "--log-level", "quiet", "--ignore-eos", "-n", std::to_string(o.tokens)}};
      if (entry.value("raw", false)) p.words.push_back("--raw");
      else p.words.insert(p.words.end(), {"--thinking", entry.value("thinking", false) ? "on" : "off"});
      p.words.push_back("--");
      p.words.push_back(entry.at("text").get<std::string>());
      prompts.push_back(std::move(p));
    }
  } catch (const Json::exception& e) {
    return Error{ErrorCode::kInvalidFile, fmt::format("{} is no cohort: {}", o.cohort, e.what())};
  }
  if (prompts.empty()) return Error{ErrorCode::kInvalidFile, o.cohort + " has no prompts that a command line can hold"};
  return prompts;
}

// The row's figure, and what the arms must agree on.
void read_result(Json& row, const ProcessResult& got, const std::string& metric) {
  row["wall_us"] = std::round(got.wall_s * 1e6);
  row["cpu_us"] = std::round(got.cpu_s * 1e6);
  row["peak_bytes"] = got.peak_bytes;
  if (got.status != 0) {
    row["failed"] = fmt::format("exit status {}", got.status);
    return;
  }
  const auto json = parse_json(got.output, "its output");
  if (json && json->is_object()) {
    if (json->contains("ids") && (*json)["ids"].is_array())
      row["ids"] = sha256_hex((*json)["ids"].dump()).substr(0, 16);
    if (json->contains("speculation"))
      for (const char* key : {"drafted", "accepted"})
        if (const Json& s = (*json)["speculation"]; s.is_object() && s.contains(key) && s[key].is_number())
          row[key] = s[key];
  }
  if (metric == "wall") row["figure"] = got.wall_s;
  else if (metric == "cpu") row["figure"] = got.cpu_s;
  else if (!json) row["failed"] = "its output is no JSON";
  else {
    const Json::json_pointer pointer(metric);
    if (json->contains(pointer) && (*json)[pointer].is_number() && (*json)[pointer].get<double>() > 0)
      row["figure"] = (*json)[pointer];
    else row["failed"] = fmt::format("its output has no positive number at {}", metric);
  }
}

Status run_block(Measurement& measurement, const std::array<Arm, 2>& arms, const std::vector<Prompt>& prompts,
                 const BenchAbbaOptions& o, int block) {
  for (size_t p = 0; p < prompts.size(); ++p) {
    int seen[2] = {0, 0};
    for (const int a : block_order(2, block + o.warm_blocks + static_cast<int>(p))) {
      const Arm& arm = arms[static_cast<size_t>(a)];
      std::vector<std::string> words = arm.words;
      words.insert(words.end(), prompts[p].words.begin(), prompts[p].words.end());
      ASSIGN_OR_RETURN(const ProcessResult got, run_process(words, o.log_level == "quiet"));
      Json row = Json::object();
      row["row"] = "round";
      row["block"] = std::max(block, 0);
      row["round"] = seen[a]++;
      row["arm"] = arm.name;
      row["prompt"] = p;
      row["class"] = prompts[p].kind;
      if (block < 0) row["warm"] = true;
      read_result(row, got, o.metric);
      measurement.add(std::move(row));
    }
  }
  return {};
}

Result<int> bench_abba(BenchAbbaOptions o) {
  ASSIGN_OR_RETURN(const Arm a, arm_of("A", o.a, o));
  ASSIGN_OR_RETURN(const Arm b, arm_of("B", o.b, o));
  if (a.whole != b.whole)
    return Error{ErrorCode::kUsage, "A and B must both be commands, or both programs or options of this one"};
  if (o.metric.empty()) o.metric = a.whole ? "wall" : "/timing/decode_tok_s";
  if (o.metric != "wall" && o.metric != "cpu" && !o.metric.starts_with("/"))
    return Error{ErrorCode::kUsage, "--metric takes wall, cpu or a JSON pointer such as /timing/decode_tok_s"};
  if (o.better.empty()) o.better = o.metric.starts_with("/") ? "higher" : "lower";
  std::vector<Prompt> prompts = {{.kind = "command", .words = {}}};
  if (!a.whole) {
    ASSIGN_OR_RETURN(prompts, prompts_of(o));
  }
  Measurement measurement("abba", "B against A");
  OrderedJson& design = measurement.design();
  design["A"] = publishable(o.a);
  design["B"] = publishable(o.b);
  for (const auto& [name, text] : {std::pair{"A_sha256", o.a}, {"B_sha256", o.b}})
    if (const auto program = MappedFile::open(text); !text.starts_with("--") && program)
      design[name] = sha256_hex(program->bytes());
  design["run"] = publishable(o.run);
  design["metric"] = o.metric;
  design["better"] = o.better;
  design["order"] = "ABBA and BAAB in alternation, a process each";
  design["blocks"] = o.blocks;
  design["warm_up_blocks"] = o.warm_blocks;
  design["settle_s"] = o.settle_s;
  if (!a.whole)
    design["cohort"] =
        o.cohort == "standard" || o.cohort == "holdout" ? o.cohort : fs::path(o.cohort).filename().string();
  design["tokens"] = o.tokens;
  design["outputs_may_differ"] = o.outputs_may_differ;
  CommonOptions common{.log_level = o.log_level};
  const auto progress = bench_progress(common);
  for (int block = -o.warm_blocks; block < o.blocks; ++block) {
    if (o.settle_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(o.settle_s));
    TRY(run_block(measurement, {a, b}, prompts, o, block));
    if (!progress(block + o.warm_blocks + 1, o.blocks + o.warm_blocks))
      return Error{ErrorCode::kCheckFailed, "the trial was interrupted, and nothing was published"};
  }
  return measurement.finish(o.output);
}

}  // namespace

Command add_bench_abba(CLI::App& bench) {
  auto o = std::make_shared<BenchAbbaOptions>();
  CLI::App* app =
      bench.add_subcommand("abba", "Hold B against A: two commands, two programs, or two sets of options of this one");
  add_bench_output(*app, o->output, true);
  // Values that begin with dashes come as --a="--threads 1".
  app->add_option("A,--a", o->a, "Command line, program, or options of `run` in one word that begins with --")
      ->required();
  app->add_option("B,--b", o->b, "The same for the other arm")->required();
  app->add_option("--run", o->run, "A further word of every `run` (repeatable), such as --run=--model=a.gguf")
      ->allow_extra_args(false);
  app->add_option(
      "--metric", o->metric,
      "wall, cpu, or a JSON pointer into the output (default: decode speed of runs, wall time of commands)");
  app->add_option("--better", o->better, "higher or lower figures")->check(CLI::IsMember({"higher", "lower"}));
  app->add_option("--cohort", o->cohort, "standard, holdout, or a JSON list of prompts")->capture_default_str();
  add_trial_blocks(*app, o->blocks, o->warm_blocks);
  app->add_option("--settle", o->settle_s, "Seconds of rest before each block")->check(CLI::Range(0.0, 3600.0));
  app->add_option("--tokens,-n", o->tokens, "Tokens of each answer")
      ->check(CLI::Range(2, 100000))
      ->capture_default_str();
  app->add_flag("--outputs-may-differ", o->outputs_may_differ, "The arms are meant to answer differently");
  app->add_option("--log-level", o->log_level, "quiet or info")->check(CLI::IsMember({"quiet", "info"}));
  return {app, [o] {
            const auto status = bench_abba(*o);
            return status ? *status : report(status.error());
          }};
}

}  // namespace foretoken::app
