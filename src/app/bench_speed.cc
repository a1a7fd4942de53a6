// foretoken bench speed: plain decoding and every route, alternating in one process, by class of prompt.
#include <fmt/format.h>

#include "app/bench_options.h"
#include "app/output_paths.h"
#include "app/prompt.h"

namespace foretoken::app {
namespace {

struct BenchSpeedOptions {
  CommonOptions common;
  BenchOutput output;
  std::string cohort = "standard", arms = "auto,mtp chain 3,dflash chain 7,dflash live 7,dflash tree 16,copy chain 7";
  std::vector<std::string> classes;
  std::string trace;
  int blocks = 4, warm_blocks = 1;
  int64_t tokens = 160;
  double temperature = 0;
};

// Arms of a comma list that this model can run; the others are named in the design.
Result<std::vector<SpeedArm>> arms_of(const std::string& list, const DraftModels& drafts, OrderedJson& left_out) {
  std::vector<SpeedArm> arms = {{.name = "plain", .plain = true}};
  left_out = OrderedJson::array();
  for (size_t begin = 0; begin <= list.size();) {
    const size_t comma = std::min(list.find(',', begin), list.size());
    ASSIGN_OR_RETURN(SpeedArm arm, parse_speed_arm(list.substr(begin, comma - begin)));
    begin = comma + 1;
    const std::string missing = missing_for(arm, drafts);
    if (!missing.empty()) left_out.push_back(missing);
    else if (!arm.plain) arms.push_back(std::move(arm));
  }
  return arms;
}

Result<int> bench_speed(BenchSpeedOptions o) {
  const SpeculationFlags every{.speculate = "copy,mtp,dflash"};
  ASSIGN_OR_RETURN(auto model, LoadedModel::load(o.common, &every));
  Measurement measurement("speed", "Speculation against plain decoding");
  ASSIGN_OR_RETURN(Cohort cohort, load_cohort(*model, o.cohort, o.classes));
  measurement.describe_model(*model, o.common);
  measurement.describe_cohort(cohort);
  SpeedOptions s{.prompts = std::move(cohort.prompts),
                 .blocks = o.blocks,
                 .warm_blocks = o.warm_blocks,
                 .prefill_chunk = o.common.prefill_chunk};
  for (BenchPrompt& p : s.prompts)
    if (p.tokens <= 0) p.tokens = o.tokens;
  s.sampling = {.temperature = static_cast<float>(o.temperature), .seed = 11};
  if (o.temperature > 0) s.sampling.top_k = 20, s.sampling.top_p = 0.95f;
  OrderedJson left_out;
  ASSIGN_OR_RETURN(s.arms, arms_of(o.arms, *model->drafts(), left_out));
  OrderedJson& design = measurement.design();
  for (const SpeedArm& arm : s.arms) design["arms"].push_back(arm.name);
  design["arms_left_out"] = left_out;
  design["order"] = "every prompt meets all arms in mirrored order, twice a block";
  design["blocks"] = o.blocks;
  design["warm_up_blocks"] = o.warm_blocks;
  design["tokens"] = o.tokens;
  design["temperature"] = o.temperature;
  const SteadyClock clock;
  Trace trace(clock.now());
  if (!o.trace.empty()) s.trace = &trace;
  TRY(measure_speed(
      model->target(), *model->drafts(), clock, s, [&](Json row) { measurement.add(std::move(row)); },
      bench_progress(o.common)));
  if (!o.trace.empty()) TRY(trace.write(o.trace));
  o.output.json = o.common.json;
  return measurement.finish(o.output);
}

}  // namespace

Command add_bench_speed(CLI::App& bench) {
  auto o = std::make_shared<BenchSpeedOptions>();
  CLI::App* app = bench.add_subcommand("speed", "Plain decoding and every route on a cohort of prompts, alternating");
  add_common_options(*app, o->common);
  add_bench_output(*app, o->output, false);
  app->add_option("--cohort", o->cohort, "standard, holdout, or a JSON list of prompts")->capture_default_str();
  app->add_option("--classes", o->classes, "Only prompts of these classes")->delimiter(',');
  app->add_option("--arms", o->arms, "Comma list of auto and \"ROUTE MODE WIDTH\"")->capture_default_str();
  add_trial_blocks(*app, o->blocks, o->warm_blocks);
  app->add_option("--tokens,-n", o->tokens, "Longest answer")->check(CLI::Range(2, 100000))->capture_default_str();
  app->add_option("--trace", o->trace, "Write all cycles and their phases to a file in Chrome's trace format")
      ->check(check_output_file);
  app->add_option("--temperature", o->temperature, "0: greedy; otherwise top-k 20, top-p 0.95")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  return {app, [o] {
            const auto status = bench_speed(*o);
            return status ? *status : report(status.error());
          }};
}

}  // namespace foretoken::app
