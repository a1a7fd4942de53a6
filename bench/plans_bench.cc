// What every plan is worth on this machine, predicted and measured. It records what each drafter proposes at every position of greedy (or
// sampled) answers, measures the cost of passes and drafts, and replays the answers under each fixed plan and under the controller with
// those costs. Prints, by prompt class: tokens per cycle of each plan; the best fixed plan in hindsight; the controller's regret against
// it; and, measured with the model itself, what `auto` reaches of the prediction. Tune on one cohort and report another.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "cohort.h"
#include "decode/generation.h"
#include "fixed_plans.h"
#include "support/traces.h"
#include "timing.h"
#include "trace_file.h"

namespace foretoken {
namespace {

using namespace test;
using test::Trace;  // recorded drafts, not the program's trace of phases

// Costs are the undisturbed ones: a neighbour's work only ever adds.
double lower_quartile(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 4];
}

struct Options {
  std::string model = "models/demo-dense", drafter, cohort = "bench/cohort.json", kv = "bf16", costs, costs_out, traces, text, draft_weights = "auto";
  int tokens = 160, rounds = 5, threads = 0, replays = 4, cost_rounds = 24;
  double temperature = 0, noise = 0.05;
  bool cycles_only = false, ends = false, seconds_only = false;
};

class Bench {
 public:
  Bench(const Options& options, app::LoadedModel& model) : o_(options), model_(model), target_(model.target()), drafts_(*model.drafts()) {}

  Status run() {
    ASSIGN_OR_RETURN(prompts_, bench::load_cohort(model_, o_.cohort));
    fmt::print("{}: {}, T={:g}, {} tokens; cohort {}\n", o_.model, model_.backend().info().detail, o_.temperature, o_.tokens, o_.cohort);
    if (!o_.seconds_only) {
      TRY(record_traces());
      if (!o_.traces.empty()) TRY(bench::write_traces(traces_, o_.traces));
    }
    if (!o_.costs.empty()) {
      ASSIGN_OR_RETURN(costs_, bench::read_costs(o_.costs));
    } else if (!o_.cycles_only || o_.seconds_only) {
      TRY(measure_costs());
    }
    if (o_.seconds_only) return {};
    replay_fixed_plans();
    print_cycles();
    if (o_.cycles_only) return {};
    replay_controller();
    if (o_.costs.empty()) TRY(measure_answers());
    print_shares();
    return {};
  }

 private:
  SamplingParams sampling() const {
    SamplingParams s{.temperature = static_cast<float>(o_.temperature), .seed = 11};
    if (o_.temperature > 0) s.top_k = 20, s.top_p = 0.95f;
    return s;
  }

  Status record_traces() {
    const auto mtp = drafts_.mtp() ? make_mtp_drafter(target_.config(), *drafts_.mtp()) : nullptr;
    const auto block = drafts_.block() ? make_block_drafter(*drafts_.block()) : nullptr;
    std::vector<Trace> given;
    if (!o_.text.empty()) {
      ASSIGN_OR_RETURN(given, bench::read_traces(o_.text));
      if (given.size() != prompts_.size()) return Error{ErrorCode::kUsage, o_.text + ": traces of another cohort"};
    }
    int64_t agreed = 0, tokens = 0;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const bench::Prompt& p = prompts_[i];
      traces_.push_back(record(target_, mtp.get(), block.get(), p.kind, p.ids, p.tokens > 0 ? p.tokens : o_.tokens, sampling(), sampling(),
                               o_.ends, given.empty() ? nullptr : &given[i].answer));
      agreed += traces_.back().agreed;
      tokens += static_cast<int64_t>(traces_.back().answer.size());
    }
    if (!given.empty())
      fmt::print("on the text of {}: the target would have chosen {:.2f}% of its tokens\n", o_.text, 100.0 * static_cast<double>(agreed) / static_cast<double>(tokens));
    return {};
  }

  // One cycle's pass: forward of `rows` rows of a chain or a tree, a choice for a few of them, commit of `kept` of them.
  double pass_seconds(LaneState& lane, int rows, bool tree) {
    std::vector<RowInput> inputs;
    std::vector<int> wanted(static_cast<size_t>(rows));
    std::iota(wanted.begin(), wanted.end(), 0);
    std::vector<int16_t> parents;
    std::vector<int> depth;
    for (int i = 0; i < rows; ++i) {
      // A tree: half of the rows are its chain, the others siblings along it.
      const int chain = std::max(1, rows / 2);
      const int parent = i == 0 ? -1 : !tree || i < chain ? i - 1 : (i - chain) % chain;
      parents.push_back(static_cast<int16_t>(parent));
      depth.push_back(parent < 0 ? 0 : depth[static_cast<size_t>(parent)] + 1);
      inputs.push_back(text_row(prompts_[0].ids[static_cast<size_t>(i) % prompts_[0].ids.size()], lane.length() + depth.back()));
    }
    const LaneRows lane_rows{.rows = rows, .prefix = lane.length(), .settled = 1, .parent = tree ? std::span<const int16_t>(parents) : std::span<const int16_t>()};
    LaneState* lanes[] = {&lane};
    std::vector<int> taps;
    if (drafts_.block()) taps = drafts_.block()->config().taps;
    const int kept = std::min(rows, 1 + rows / 2);
    const TimePoint begin = clock_.now();
    const ForwardResult r = target_.forward({.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = wanted}, lanes, taps);
    for (int i = 0; i < kept; ++i)
      (void)sampler_.select({r.logits.f32(i), static_cast<size_t>(r.logits.cols)}, sampling(), static_cast<uint64_t>(i + 1));
    std::vector<int> path(static_cast<size_t>(tree ? std::min(kept, std::max(1, rows / 2)) : kept));
    std::iota(path.begin(), path.end(), 0);
    target_.commit(lane, path);
    return seconds_between(begin, clock_.now());
  }

  Status measure_costs() {
    const std::vector<int> counts = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 17, 20, 24, 25, 28, 32, 33, 40, 48, 56, 64};
    std::map<int, std::vector<double>> chains, trees;
    std::array<std::vector<double>, kMtpDepth + 1> mtp_s, block_s;
    const auto mtp = drafts_.mtp() ? make_mtp_drafter(target_.config(), *drafts_.mtp()) : nullptr;
    const auto block = drafts_.block() ? make_block_drafter(*drafts_.block()) : nullptr;
    const std::vector<TokenId>& ids = prompts_[0].ids;
    const SamplingParams how = sampling();
    for (int round = -1; round < o_.cost_rounds; ++round) {
      auto lane = target_.make_lane();
      std::vector<int> all;
      for (int i = 0; i < 96; ++i) all.push_back(i);
      std::vector<TokenId> prompt;
      for (int i = 0; i < 96; ++i) prompt.push_back(ids[static_cast<size_t>(i) % ids.size()]);
      std::vector<int> taps;
      if (block) taps = block->needs().tap_layers;
      if (mtp) mtp->restart({});
      if (block) block->restart({});
      std::vector<float> hidden_memory, taps_memory;
      run_prompt(target_, *lane, prompt, 96, {}, [&](int64_t, int64_t, const ForwardResult& r) {
        const Committed c{.first = 0, .tokens = prompt, .next = prompt[0], .rows = all, .hidden = r.hidden, .taps = r.taps};
        if (mtp) mtp->observe(c);
        if (block) block->observe(c);
        hidden_memory.assign(r.hidden.f32(), r.hidden.f32() + 4 * r.hidden.cols);
        taps_memory.assign(r.taps.f32(), r.taps.f32() + (r.taps.cols > 0 ? 4 * r.taps.cols : 0));
        return true;
      }, taps);
      // Drafts: as a cycle of three committed tokens makes them.
      const View hidden = View::of(hidden_memory.data(), 4, target_.config().hidden);
      const View tapped = View::of(taps_memory.data(), 4, static_cast<int64_t>(taps.size()) * target_.config().hidden);
      int64_t at = 96;
      Draft draft;
      for (const int step : {0, 1, 2, 3, 4, 5, 6, 7}) {  // the first works off the prompt
        const int depth = std::max(1, step);
        const TokenId three[] = {prompt[1], prompt[2], prompt[3]};
        const Committed c{.first = at, .tokens = three, .next = prompt[4], .rows = std::span(all).first(3), .hidden = hidden, .taps = tapped};
        at += 3;
        const DraftRequest request{.position = at + 1, .anchor = prompt[4], .depth = depth, .nodes = depth, .sampling = &how};
        for (Drafter* drafter : {mtp.get(), block.get()}) {
          if (!drafter) continue;
          draft.nodes.clear();
          const TimePoint begin = clock_.now();
          drafter->observe(c);
          drafter->propose(request, draft);
          const double s = seconds_between(begin, clock_.now());
          if (round >= 0) (drafter == mtp.get() ? mtp_s : block_s)[static_cast<size_t>(step)].push_back(s);
        }
      }
      pass_seconds(*lane, 2, false);  // the first pass behind something else is a slow one
      const auto fastest = [&](int rows, bool tree) {
        double s = pass_seconds(*lane, rows, tree);
        for (int again = 0; again < 2; ++again) s = std::min(s, pass_seconds(*lane, rows, tree));
        return s;
      };
      for (const int rows : counts) {
        const double chain = fastest(rows, false), tree = rows >= 4 ? fastest(rows, true) : 0;
        if (round < 0) continue;
        chains[rows].push_back(chain);
        if (tree > 0) trees[rows].push_back(tree);
      }
    }
    Json costs = {{"passes", Json::object()}, {"mtp", Json::array()}, {"dflash", Json::array()}};
    for (const int rows : counts) costs["passes"][std::to_string(rows)] = lower_quartile(chains[rows]);
    for (int depth = 1; depth <= kMtpDepth; ++depth) {
      costs["mtp"].push_back(lower_quartile(mtp_s[static_cast<size_t>(depth)]));
      costs["dflash"].push_back(lower_quartile(block_s[static_cast<size_t>(depth)]));
    }
    // What the first draft takes beyond an ordinary one it spends on the rows of the prompt.
    costs["mtp row"] = std::max(0.0, lower_quartile(mtp_s[0]) - lower_quartile(mtp_s[1])) / 96;
    costs["dflash row"] = std::max(0.0, lower_quartile(block_s[0]) - lower_quartile(block_s[1])) / 96;
    costs_ = bench::costs_from_json(costs);
    if (!o_.costs_out.empty()) TRY(write_file_atomically(o_.costs_out, costs.dump(1)));
    const double plain = costs_.pass(1);
    fmt::print("one row {:.3f} ms. Passes in rows of one, chain (tree):", plain * 1e3);
    for (const int rows : counts) {
      fmt::print(" {}: {:.2f}", rows, costs_.pass(rows) / plain);
      if (!trees[rows].empty()) fmt::print(" ({:.2f})", lower_quartile(trees[rows]) / plain);
    }
    fmt::print("\nDrafts by depth: mtp");
    for (int d = 1; d <= kMtpDepth; ++d) fmt::print(" {:.2f}", costs_.mtp_draft(d) / plain);
    fmt::print("; dflash");
    for (int d = 1; d <= kMtpDepth; ++d) fmt::print(" {:.2f}", costs_.block_draft(d) / plain);
    fmt::print("; a row of backlog: mtp {:.3f}, dflash {:.3f}\n", costs_.mtp_row / plain, costs_.block_row / plain);
    return {};
  }

  std::vector<std::unique_ptr<Drafter>> recorded(const Trace& trace, std::span<const Route> routes, ScriptedClock& clock) const {
    std::vector<std::unique_ptr<Drafter>> d;
    for (const Route route : routes) {
      if (route == Route::kCopy) d.push_back(make_lookup_drafter());
      else if (drafts_.has(route)) d.push_back(std::make_unique<RecordedDrafter>(trace, route, costs_, clock));
    }
    return d;
  }

  void replay_fixed_plans() {
    for (const bench::Plan& plan : bench::fixed_plans()) {
      if (plan.route && *plan.route != Route::kCopy && !drafts_.has(*plan.route)) continue;
      plan_names_.push_back(plan.name);
      for (const Trace& trace : traces_) {
        ScriptedClock clock;
        std::vector<Route> routes;
        if (plan.route) routes.push_back(*plan.route);
        Speculator speculator(recorded(trace, routes, clock), plan.options, nullptr, clock);
        const Replayed r = replay(trace, speculator, clock, costs_);
        for (const std::string& key : {trace.name, std::string("all")}) {
          Replayed& sum = fixed_[key][plan.name];
          sum.seconds += r.seconds;
          sum.tokens += r.tokens;
          sum.cycles += r.cycles;
        }
      }
    }
  }

  void print_cycles() const {
    fmt::print("\nTokens per cycle\n{:<18}", "plan");
    for (const auto& [kind, plans] : fixed_) fmt::print(" {:>14}", kind);
    fmt::print("\n");
    for (const std::string& name : plan_names_) {
      fmt::print("{:<18}", name);
      for (const auto& [kind, plans] : fixed_) fmt::print(" {:>14.3f}", plans.at(name).tokens_per_cycle());
      fmt::print("\n");
    }
    if (!plan_names_.empty() && fixed_.at("all").contains("dflash tree 16")) {
      fmt::print("{:<18}", "tree 16 / chain 7");
      for (const auto& [kind, plans] : fixed_)
        fmt::print(" {:>13.1f}%", 100 * (plans.at("dflash tree 16").tokens_per_cycle() / plans.at("dflash chain 7").tokens_per_cycle() - 1));
      fmt::print("\n");
    }
  }

  // All routes under the controller; the first replay of all traces meets an empty memory and is not counted.
  void replay_controller() {
    SpeculationMemory memory;
    Costs noisy = costs_;
    noisy.noise = o_.noise;
    for (int round = 0; round <= o_.replays; ++round)
      for (const Trace& trace : traces_) {
        ScriptedClock clock;
        const Route all[] = {Route::kBlock, Route::kMtp, Route::kCopy};
        Speculator speculator(recorded(trace, all, clock), {}, &memory, clock);
        const Replayed r = replay(trace, speculator, clock, noisy, 7 + static_cast<uint64_t>(round));
        if (round == 0) continue;
        for (const std::string& key : {trace.name, std::string("all")}) {
          Replayed& sum = controlled_[key];
          sum.seconds += r.seconds / o_.replays;
          sum.tokens += r.tokens / o_.replays;
          sum.cycles += r.cycles / o_.replays;
          for (const auto& [plan, cycles] : speculator.counters().plans) chosen_[key][plan] += cycles;
        }
      }
  }

  std::pair<std::string, double> best_fixed(const std::string& kind) const {
    const auto& plans = fixed_.at(kind);
    const auto best = std::min_element(plans.begin(), plans.end(), [](const auto& a, const auto& b) { return a.second.seconds < b.second.seconds; });
    return {best->first, best->second.seconds};
  }

  Status measure_answers() {
    std::vector<std::vector<double>> ratio(prompts_.size());
    for (int round = -1; round < o_.rounds; ++round)
      for (size_t i = 0; i < prompts_.size(); ++i) {
        double seconds[2] = {0, 0};
        std::vector<TokenId> ids[2];
        for (int turn = 0; turn < 2; ++turn) {
          const int which = (turn + round + static_cast<int>(i)) & 1;  // 0 plain, 1 auto
          auto lane = target_.make_lane();
          Speculation speculation;
          if (which == 1) speculation = {.drafters = drafts_.make(), .options = {}, .memory = &drafts_.memory()};
          GenerationOptions how{.sampling = sampling(), .max_tokens = prompts_[i].tokens > 0 ? prompts_[i].tokens : o_.tokens};
          if (o_.ends) how.stop_tokens = target_.config().stop_tokens;
          Generation generation(target_, *lane, how, clock_, std::move(speculation));
          TRY(generation.start(prompts_[i].ids));
          while (!generation.finished()) TRY(generation.step());
          seconds[which] = generation.timing().decode_s;
          ids[which].assign(generation.tokens().begin(), generation.tokens().end());
        }
        different_ += ids[0] != ids[1];
        ++compared_;
        if (round >= 0) ratio[i].push_back(seconds[0] / seconds[1]);
      }
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const double log = std::log(median(ratio[i]));
      for (const std::string& key : {prompts_[i].kind, std::string("all")}) measured_[key].push_back(log);
      worst_ = std::min(worst_, median(ratio[i]));
    }
    return {};
  }

  void print_shares() const {
    fmt::print("\n{:<16} {:>18} {:>9} {:>9} {:>8} {:>9} {:>7}\n", "class", "best fixed", "predicted", "auto pred", "regret", "measured", "share");
    for (const auto& [kind, plans] : fixed_) {
      const auto [name, seconds] = best_fixed(kind);
      const double plain = plans.at("plain").seconds, own = controlled_.at(kind).seconds;
      fmt::print("{:<16} {:>18} {:>8.2f}x {:>8.2f}x {:>7.1f}%", kind, name, plain / seconds, plain / own, 100 * (own / seconds - 1));
      if (const auto logs = measured_.find(kind); logs != measured_.end()) {
        const double reached = std::exp(std::accumulate(logs->second.begin(), logs->second.end(), 0.0) / static_cast<double>(logs->second.size()));
        fmt::print(" {:>8.2f}x {:>6.0f}%", reached, 100 * reached / (plain / std::min(seconds, own)));
      }
      fmt::print("\n");
    }
    fmt::print("best fixed: in hindsight, from the costs; share: measured of the better prediction.\n");
    if (!measured_.empty()) fmt::print("worst prompt {:.3f}x\n", worst_);
    for (const auto& [kind, plans] : chosen_) {
      fmt::print("{:<16} chose", kind);
      int64_t total = 0;
      for (const auto& [plan, cycles] : plans) total += cycles;
      for (const auto& [plan, cycles] : plans)
        if (cycles * 100 >= total) fmt::print(" {} {:.0f}%", plan, 100.0 * static_cast<double>(cycles) / static_cast<double>(total));
      fmt::print("\n");
    }
    if (compared_ > 0) fmt::print("identical to plain: {} of {} answers\n", compared_ - different_, compared_);
  }

  const Options& o_;
  app::LoadedModel& model_;
  TargetModel& target_;
  DraftModels& drafts_;
  SteadyClock clock_;
  Sampler sampler_;
  std::vector<bench::Prompt> prompts_;
  std::vector<Trace> traces_;
  Costs costs_;
  std::vector<std::string> plan_names_;
  std::map<std::string, std::map<std::string, Replayed>> fixed_;  // [class][plan]
  std::map<std::string, Replayed> controlled_;
  std::map<std::string, std::map<std::string, int64_t>> chosen_;
  std::map<std::string, std::vector<double>> measured_;           // [class]: logarithms of prompts' ratios
  double worst_ = 1e9;
  int64_t compared_ = 0, different_ = 0;
};

Status run(const Options& o) {
  app::CommonOptions common{.model = o.model, .threads = o.threads, .kv_format = o.kv, .draft_model = o.drafter, .draft_weights = o.draft_weights};
  const app::SpeculationFlags every{.speculate = "copy,mtp,dflash"};
  ASSIGN_OR_RETURN(auto loaded, app::LoadedModel::load(common, &every));
  return Bench(o, *loaded).run();
}

}  // namespace
}  // namespace foretoken

int main(int argc, char** argv) {
  foretoken::Options o;
  CLI::App program("What every plan of speculation is worth here: predicted from costs and recorded drafts, and measured");
  program.add_option("--model,-m", o.model, "bundle")->capture_default_str();
  program.add_option("--draft-model", o.drafter, "drafter (default: beside the weights)");
  program.add_option("--draft-weights", o.draft_weights, "as the program's option")->capture_default_str();
  program.add_option("--cohort", o.cohort, "JSON list of prompts")->capture_default_str();
  program.add_option("--kv-format", o.kv, "f32, bf16, int8")->capture_default_str();
  program.add_option("--tokens,-n", o.tokens, "longest answer")->check(CLI::PositiveNumber);
  program.add_option("--rounds", o.rounds, "measured rounds")->check(CLI::PositiveNumber);
  program.add_option("--costs", o.costs, "JSON of costs to replay with instead of measuring; nothing is timed then");
  program.add_option("--costs-out", o.costs_out, "write the measured costs to this JSON file");
  program.add_option("--traces", o.traces, "write the recorded traces to this JSON file, for replay_bench");
  program.add_option("--text", o.text, "follow the answers of these traces instead of the target's own: targets compared on one text");
  program.add_option("--cost-rounds", o.cost_rounds, "rounds of measured costs")->check(CLI::PositiveNumber);
  program.add_option("--replays", o.replays, "counted replays under the controller")->check(CLI::PositiveNumber);
  program.add_option("--noise", o.noise, "relative noise of a replayed pass")->check(CLI::NonNegativeNumber);
  program.add_option("--threads,-t", o.threads, "threads (0: all)")->check(CLI::Range(0, 64));
  program.add_option("--temperature", o.temperature, "0: greedy; otherwise top-k 20, top-p 0.95")->check(CLI::NonNegativeNumber);
  program.add_flag("--ends", o.ends, "stop tokens end answers");
  program.add_flag("--cycles-only", o.cycles_only, "tokens per cycle of the fixed plans, nothing timed");
  program.add_flag("--costs-only", o.seconds_only, "the costs of passes and drafts alone");
  CLI11_PARSE(program, argc, argv);
  const auto status = foretoken::run(o);
  if (status) return 0;
  fmt::print(stderr, "plans_bench: {}\n", status.error().message);
  return foretoken::exit_status(status.error().code);
}
