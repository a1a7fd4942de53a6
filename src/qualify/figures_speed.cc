// Figures of `bench speed`: arms against plain decoding, by class of prompt.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "qualify/figures.h"

namespace foretoken {
namespace {

constexpr int kMostBlocks = 10000, kDeepest = 16, kBins = 24;

struct ArmTotals {
  double cycles = 0, accepted = 0, drafted = 0, tokens = 0;
  std::vector<double> cycle_ms;
  std::vector<double> reached = std::vector<double>(kDeepest + 1),
                      taken = std::vector<double>(kDeepest + 1);  // by depth of the proposal
  std::map<std::string, std::vector<double>> plans;               // cycles by part of the answer
};

void add_cycles(ArmTotals& arm, const Json& row) {
  const auto cycle = row.find("cycle");
  if (cycle == row.end()) return;
  const std::vector<double> depth = numbers(*cycle, "depth"), accepted = numbers(*cycle, "accepted"),
                            plan = numbers(*cycle, "plan");
  std::vector<double> us(depth.size());
  for (const char* phase : {"draft_us", "verify_us", "commit_us", "host_us"}) {
    const std::vector<double> part = numbers(*cycle, phase);
    us.resize(std::min(us.size(), part.size()));
    for (size_t i = 0; i < us.size(); ++i) us[i] += part[i];
  }
  std::vector<std::string> names;
  for (const Json& name : row.at("plans")) names.push_back(name.get<std::string>());
  const size_t count = std::min({us.size(), depth.size(), accepted.size(), plan.size()});
  for (size_t i = 0; i < count; ++i) {
    arm.cycle_ms.push_back(us[i] / 1000);
    const int deep = static_cast<int>(std::clamp(depth[i], 0.0, double{kDeepest})),
              took = static_cast<int>(std::clamp(accepted[i], 0.0, double{kDeepest}));
    for (int d = 1; d <= deep; ++d) {
      ++arm.reached[static_cast<size_t>(d)];
      arm.taken[static_cast<size_t>(d)] += took >= d;
    }
    if (plan[i] < 0 || plan[i] >= static_cast<double>(names.size())) continue;
    auto& bins = arm.plans[names[static_cast<size_t>(plan[i])]];
    bins.resize(kBins);
    ++bins[i * kBins / count];
  }
}

Plot acceptance_plot(const std::vector<std::string>& arms, const std::map<std::string, ArmTotals>& totals) {
  Plot plot{.kind = Plot::Kind::kLines,
            .title = "Acceptance by position",
            .x_label = "position of a drafted token",
            .y_label = "accepted, % of those proposed"};
  for (size_t a = 0; a < arms.size(); ++a) {
    const ArmTotals& arm = totals.at(arms[a]);
    Series s{.name = arms[a], .colour = static_cast<int>(a)};
    for (int d = 1; d <= kDeepest; ++d)
      if (arm.reached[static_cast<size_t>(d)] >= 20) {
        s.x.push_back(d);
        s.y.push_back(100 * arm.taken[static_cast<size_t>(d)] / arm.reached[static_cast<size_t>(d)]);
      }
    if (!s.x.empty()) plot.series.push_back(std::move(s));
  }
  return plot;
}

// What the controller chose, over the course of the answers.
Plot choices_plot(const std::string& name, const ArmTotals& arm) {
  Plot plot{.kind = Plot::Kind::kStack,
            .title = "Choices of the controller over an answer: " + name,
            .x_label = "part of the answer",
            .y_label = "cycles, %"};
  std::vector<double> sum(kBins);
  for (const auto& [plan, bins] : arm.plans)
    for (size_t b = 0; b < bins.size(); ++b) sum[b] += bins[b];
  for (int b = 0; b < kBins; ++b) plot.categories.push_back(b == 0 ? "begin" : b == kBins - 1 ? "end" : "");
  for (const auto& [plan, bins] : arm.plans) {
    Series s{.name = plan, .colour = plan == "plain" ? 0 : -1};  // as in the other plots
    for (size_t b = 0; b < bins.size(); ++b) s.y.push_back(sum[b] > 0 ? 100 * bins[b] / sum[b] : 0);
    plot.series.push_back(std::move(s));
  }
  return plot;
}

// Equal answers to one prompt, whatever the arm, round and block.
void compare_answers(Summary& summary, const std::vector<const Json*>& rows) {
  std::map<std::string, std::string> first;
  for (const Json* row : rows) {
    const auto [it, fresh] = first.try_emplace(
        text(*row, "set") + fmt::format(" {}", integer(*row, "prompt", 0, 1 << 20)), text(*row, "ids"));
    if (fresh) continue;
    ++summary.compared;
    summary.different += it->second != text(*row, "ids");
  }
}

}  // namespace

Summary summarize_speed(const Evidence& evidence) {
  Summary summary;
  const std::vector<std::string> arms = design_list(evidence, "arms");
  if (arms.empty()) refuse("the design has no arms");
  const std::string& plain = arms[0];
  const std::vector<const Json*> rows = counted_rows(evidence, "answer", summary);
  std::map<std::string, Rounds> cells;  // by class, and "all"
  std::map<std::string, ArmTotals> totals;
  for (const std::string& arm : arms) totals[arm];
  std::set<std::string> classes;
  for (const Json* row : rows) {
    const std::string arm = text(*row, "arm"), kind = text(*row, "class");
    if (!totals.contains(arm)) refuse("an arm is not of the design");
    const int block = static_cast<int>(integer(*row, "block", 0, kMostBlocks)),
              round = static_cast<int>(integer(*row, "round", 0, 1));
    const double tokens = number(*row, "tokens"), us = number(*row, "decode_us");
    classes.insert(kind);
    if (tokens > 1 && us > 0)
      for (const std::string& cell : {kind, std::string("all")})
        cells[cell].add(block, arm, round, 1e6 * (tokens - 1) / us);
    ArmTotals& t = totals[arm];
    t.cycles += number(*row, "cycles");
    t.accepted += number(*row, "accepted");
    t.drafted += number(*row, "drafted");
    t.tokens += tokens;
    add_cycles(t, *row);
  }
  compare_answers(summary, rows);

  std::vector<std::string> order(classes.begin(), classes.end());
  order.push_back("all");
  Table speed{.title = "Tokens per second, and the ratio to " + plain, .header = {"class", plain}};
  Plot bars{.kind = Plot::Kind::kBars,
            .title = "Speed by class of prompt",
            .x_label = "",
            .y_label = "ratio to " + plain,
            .note = "Whiskers: 99 % intervals of the median over blocks.",
            .categories = order};
  bars.base = 1;
  for (size_t a = 1; a < arms.size(); ++a) {
    speed.header.push_back(arms[a]);
    speed.header.push_back("ratio");
    bars.series.push_back({.name = arms[a], .colour = static_cast<int>(a)});
  }
  for (const std::string& cell : order) {
    std::vector<OrderedJson> line = {cell, published(cells[cell].typical(plain))};
    for (size_t a = 1; a < arms.size(); ++a) {
      const TrialResult r = judge(cells[cell].blocks(plain, arms[a]));
      line.push_back(published(cells[cell].typical(arms[a])));
      line.push_back(published(1 + r.change));
      Series& s = bars.series[a - 1];
      s.y.push_back(1 + r.change);
      s.low.push_back(1 + r.interval.low);
      s.high.push_back(1 + r.interval.high);
      add_verdict(summary, {.cell = cell, .arm = arms[a], .against = plain, .result = r});
    }
    speed.rows.push_back(std::move(line));
  }
  Table counts{
      .title = "Tokens per cycle and acceptance",
      .header = {"arm", "tokens per cycle", "drafted", "accepted", "acceptance %", "cycle ms (median)", "p95"}};
  for (const std::string& name : arms) {
    const ArmTotals& t = totals[name];
    counts.rows.push_back({name, published(t.cycles > 0 ? (t.accepted + t.cycles) / t.cycles : 0), counted(t.drafted),
                           counted(t.accepted),
                           t.drafted > 0 ? published(100 * t.accepted / t.drafted) : OrderedJson(nullptr),
                           published(quantile(t.cycle_ms, 0.5)), published(quantile(t.cycle_ms, 0.95))});
  }
  summary.tables = {std::move(speed), std::move(counts)};

  summary.plots.push_back(std::move(bars));
  summary.plots.push_back(acceptance_plot(arms, totals));
  for (const std::string& name : arms)
    if (totals[name].plans.size() > 2)  // a pinned arm has its own plan, and plain cycles where it has no guess
      summary.plots.push_back(choices_plot(name, totals[name]));
  Plot latency{.kind = Plot::Kind::kLines,
               .title = "Latency of a cycle",
               .x_label = "milliseconds",
               .y_label = "cycles at or below, %",
               .log_x = true};
  for (size_t a = 0; a < arms.size(); ++a)
    if (!totals[arms[a]].cycle_ms.empty()) {
      latency.series.push_back(distribution(arms[a], totals[arms[a]].cycle_ms));
      latency.series.back().colour = static_cast<int>(a);
    }
  summary.plots.push_back(std::move(latency));

  conclude(summary, [](const CellVerdict& v) { return v.cell == "all"; });
  return summary;
}

}  // namespace foretoken
