// Times speculation against plain decoding on a frozen cohort, alternating the arms in one process: for every prompt and round, plain and
// each arm in turn. Prints tokens per second relative to plain by prompt class, tokens per cycle, and whether every answer was identical.
// Ratios are medians over rounds; the first round warms up what the controller learns and is not counted.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>

#include "cohort.h"
#include "decode/generation.h"
#include "timing.h"
#include "wrong_drafter.h"

namespace foretoken {
namespace {

struct Options {
  std::string model = "models/demo-dense", drafter, rates, cohort = "bench/cohort.json", kv = "bf16", arms = "auto,mtp chain 3,dflash chain 7,dflash live 7,dflash tree 16,copy chain 7";
  int tokens = 160, rounds = 5, threads = 0;
  double temperature = 0;
};

struct Arm {
  std::string name;
  std::vector<Route> routes;
  SpeculationOptions options;
  bool wrong = false;  // every proposal is bent
};

// "auto", "wrong" (auto over drafters that are always wrong), or "ROUTE MODE WIDTH".
Result<Arm> parse_arm(const std::string& text) {
  Arm arm{.name = text};
  if (text == "auto" || text == "wrong") {
    arm.wrong = text == "wrong";
    arm.routes = {Route::kBlock, Route::kMtp, Route::kCopy};
    return arm;
  }
  char route[16], mode[16];
  if (std::sscanf(text.c_str(), "%15s %15s %d", route, mode, &arm.options.width) != 3)
    return Error{ErrorCode::kUsage, fmt::format("an arm is auto, wrong or \"ROUTE MODE WIDTH\", not \"{}\"", text)};
  ASSIGN_OR_RETURN(arm.options.verify, parse_verify_mode(mode));
  const std::string name = route;
  if (name == "copy") arm.routes = {Route::kCopy};
  else if (name == "mtp") arm.routes = {Route::kMtp};
  else if (name == "dflash") arm.routes = {Route::kBlock};
  else return Error{ErrorCode::kUsage, fmt::format("\"{}\" is no route (copy, mtp, dflash)", name)};
  return arm;
}

Result<int> run(const Options& o) {
  app::CommonOptions common{.model = o.model, .threads = o.threads, .kv_format = o.kv, .draft_model = o.drafter};
  const app::SpeculationFlags every{.speculate = "copy,mtp,dflash"};
  ASSIGN_OR_RETURN(auto loaded, app::LoadedModel::load(common, &every));
  TargetModel& target = loaded->target();
  DraftModels& drafts = *loaded->drafts();

  std::vector<Arm> arms;
  for (size_t begin = 0; begin <= o.arms.size();) {
    const size_t comma = std::min(o.arms.find(',', begin), o.arms.size());
    ASSIGN_OR_RETURN(Arm arm, parse_arm(o.arms.substr(begin, comma - begin)));
    arms.push_back(std::move(arm));
    begin = comma + 1;
  }
  ASSIGN_OR_RETURN(const std::vector<bench::Prompt> prompts, bench::load_cohort(*loaded, o.cohort));

  const SteadyClock clock;
  SpeculationMemory wrong_memory;
  struct Trial {
    double tokens_per_second, tokens_per_cycle;
    std::vector<TokenId> ids;
  };
  const auto answer = [&](const bench::Prompt& prompt, const Arm* arm) -> Result<Trial> {
    auto lane = target.make_lane();
    SamplingParams sampling{.temperature = static_cast<float>(o.temperature), .seed = 11};
    if (o.temperature > 0) sampling.top_k = 20, sampling.top_p = 0.95f;
    Speculation speculation;
    if (arm) speculation = {.drafters = drafts.make(arm->routes), .options = arm->options, .memory = arm->wrong ? &wrong_memory : &drafts.memory()};
    if (arm && arm->wrong)
      for (auto& d : speculation.drafters) d = std::make_unique<bench::WrongDrafter>(std::move(d), target.config().vocab);
    const int64_t tokens = prompt.tokens > 0 ? prompt.tokens : o.tokens;
    Generation generation(target, *lane, {.sampling = sampling, .max_tokens = tokens}, clock, std::move(speculation));
    TRY(generation.start(prompt.ids));
    while (!generation.finished()) TRY(generation.step());
    return Trial{static_cast<double>(generation.tokens().size() - 1) / generation.timing().decode_s, generation.counters().tokens_per_cycle(),
                 {generation.tokens().begin(), generation.tokens().end()}};
  };

  struct Series { std::vector<double> ratio, per_cycle, rate; };
  std::map<std::string, std::map<std::string, Series>> by_class;  // [class][arm]
  std::map<std::string, std::vector<double>> prompt_ratio;        // [arm]: median ratio of every prompt
  std::map<std::string, std::vector<double>> plain_rate;
  int64_t compared = 0, different = 0;
  Json rates = Json::array();
  for (const bench::Prompt& prompt : prompts) {
    std::map<std::string, std::vector<double>> ratios, prompt_rates;
    std::vector<TokenId> plain_answer;
    for (int round = -1; round < o.rounds; ++round)
      for (size_t i = 0; i < arms.size(); ++i) {
        // Plain before or after the arm in alternation, so that drift falls on both.
        const Arm& arm = arms[i];
        const bool first = (round + static_cast<int>(i)) % 2 == 0;
        ASSIGN_OR_RETURN(Trial one, answer(prompt, first ? nullptr : &arm));
        ASSIGN_OR_RETURN(Trial two, answer(prompt, first ? &arm : nullptr));
        const Trial& plain = first ? one : two;
        const Trial& fast = first ? two : one;
        ++compared;
        different += plain.ids != fast.ids;
        if (round < 0) continue;
        ratios[arm.name].push_back(fast.tokens_per_second / plain.tokens_per_second);
        Series& s = by_class[prompt.kind][arm.name];
        s.per_cycle.push_back(fast.tokens_per_cycle);
        s.rate.push_back(fast.tokens_per_second);
        prompt_rates[arm.name].push_back(fast.tokens_per_second);
        prompt_rates["plain"].push_back(plain.tokens_per_second);
        plain_answer = plain.ids;
        plain_rate[prompt.kind].push_back(plain.tokens_per_second);
      }
    rates.push_back({{"class", prompt.kind}, {"ids", prompt.ids}, {"rates", prompt_rates}, {"answer", plain_answer}});
    for (auto& [name, values] : ratios) {
      prompt_ratio[name].push_back(median(values));
      by_class[prompt.kind][name].ratio.push_back(median(values));
    }
  }

  fmt::print("{}: {}, T={:g}, {} tokens, {} rounds; ratio to plain decoding, and (tokens per cycle)\n", o.model,
             loaded->backend().info().detail, o.temperature, o.tokens, o.rounds);
  fmt::print("{:<16} {:>9}", "class", "plain t/s");
  for (const Arm& arm : arms) fmt::print(" {:>18}", arm.name);
  fmt::print("\n");
  const auto geometric_mean = [](const std::vector<double>& values) {
    double sum = 0;
    for (const double v : values) sum += std::log(v);
    return values.empty() ? 0 : std::exp(sum / static_cast<double>(values.size()));
  };
  for (auto& [kind, series] : by_class) {
    fmt::print("{:<16} {:>9.0f}", kind, median(plain_rate[kind]));
    for (const Arm& arm : arms) fmt::print(" {:>18}", fmt::format("{:.2f} ({:.2f})", geometric_mean(series[arm.name].ratio), median(series[arm.name].per_cycle)));
    fmt::print("\n");
  }
  fmt::print("{:<16} {:>9}", "geometric mean", "");
  for (const Arm& arm : arms) fmt::print(" {:>18}", fmt::format("{:.2f}", geometric_mean(prompt_ratio[arm.name])));
  fmt::print("\n{:<16} {:>9}", "worst prompt", "");
  for (const Arm& arm : arms) fmt::print(" {:>18}", fmt::format("{:.2f}", *std::min_element(prompt_ratio[arm.name].begin(), prompt_ratio[arm.name].end())));
  fmt::print("\nidentical to plain: {} of {} answers\n", compared - different, compared);
  if (!o.rates.empty()) TRY(write_file_atomically(o.rates, rates.dump()));
  return different == 0 ? 0 : 1;
}

}  // namespace
}  // namespace foretoken

int main(int argc, char** argv) {
  foretoken::Options o;
  CLI::App program("Speculation against plain decoding on a cohort of prompts");
  program.add_option("--model,-m", o.model, "bundle")->capture_default_str();
  program.add_option("--draft-model", o.drafter, "drafter (default: beside the weights)");
  program.add_option("--cohort", o.cohort, "JSON list of prompts")->capture_default_str();
  program.add_option("--kv-format", o.kv, "f32, bf16, int8")->capture_default_str();
  program.add_option("--rates", o.rates, "write every prompt's ids, answer and rates to this JSON file");
  program.add_option("--arms", o.arms, "comma list of auto, wrong and \"ROUTE MODE WIDTH\"")->capture_default_str();
  program.add_option("--tokens,-n", o.tokens, "longest answer")->check(CLI::PositiveNumber);
  program.add_option("--rounds", o.rounds, "measured rounds")->check(CLI::PositiveNumber);
  program.add_option("--threads,-t", o.threads, "threads (0: all)")->check(CLI::Range(0, 64));
  program.add_option("--temperature", o.temperature, "0: greedy; otherwise top-k 20, top-p 0.95")->check(CLI::NonNegativeNumber);
  CLI11_PARSE(program, argc, argv);
  const auto status = foretoken::run(o);
  if (status) return *status;
  fmt::print(stderr, "speculation_bench: {}\n", status.error().message);
  return foretoken::exit_status(status.error().code);
}
