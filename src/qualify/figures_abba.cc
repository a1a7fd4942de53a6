// Figures of `bench abba`: two arms of anything, B held against A.
#include <fmt/format.h>

#include <set>

#include "qualify/figures.h"

namespace foretoken {
namespace {

struct ArmFacts {
  double figures = 0, failed = 0, drafted = 0, accepted = 0;
};

Better better_of(const Evidence& evidence) {
  const auto design = evidence.manifest.find("design");
  if (design == evidence.manifest.end() || !design->is_object()) refuse("there is no design");
  const auto better = design->find("better");
  if (better == design->end() || (*better != "higher" && *better != "lower"))
    refuse("the design does not say which figures are better");
  return *better == "higher" ? Better::kHigher : Better::kLower;
}

// Two names of one program, run alike.
bool same_program(const Evidence& evidence) {
  const auto& design = evidence.manifest.at("design");
  const auto a = design.find("A_sha256"), b = design.find("B_sha256");
  return a != design.end() && b != design.end() && *a == *b;
}

bool expects_change(const Evidence& evidence) {
  const auto& design = evidence.manifest.at("design");
  const auto it = design.find("outputs_may_differ");
  return it != design.end() && it->is_boolean() && it->get<bool>();
}

void compare_outputs(Summary& summary, const std::vector<const Json*>& rows) {
  std::map<int64_t, std::string> first;
  for (const Json* row : rows) {
    if (!row->contains("ids")) continue;
    const auto [it, fresh] = first.try_emplace(integer(*row, "prompt", 0, 1 << 20), text(*row, "ids"));
    if (fresh) continue;
    ++summary.compared;
    summary.different += it->second != text(*row, "ids");
  }
}

}  // namespace

Summary summarize_abba(const Evidence& evidence) {
  Summary summary;
  const Better better = better_of(evidence);
  const std::string unit = text(Json(evidence.manifest.at("design")), "metric");
  const std::vector<const Json*> rows = counted_rows(evidence, "round", summary);
  std::map<std::string, Rounds> cells;
  std::map<std::string, ArmFacts> facts = {{"A", {}}, {"B", {}}};
  std::set<std::string> classes;
  for (const Json* row : rows) {
    const std::string arm = text(*row, "arm"), kind = text(*row, "class");
    if (!facts.contains(arm)) refuse("an arm is neither A nor B");
    ArmFacts& f = facts[arm];
    classes.insert(kind);
    if (row->contains("failed")) {
      ++f.failed;
      summary.notes.push_back(fmt::format("{} failed in block {} ({}): {}.", arm, integer(*row, "block", 0, 10000),
                                          kind, text(*row, "failed")));
      continue;
    }
    ++f.figures;
    if (row->contains("drafted")) f.drafted += number(*row, "drafted");
    if (row->contains("accepted")) f.accepted += number(*row, "accepted");
    for (const std::string& cell : {kind, std::string("all")})
      cells[cell].add(static_cast<int>(integer(*row, "block", 0, 10000)), arm,
                      static_cast<int>(integer(*row, "round", 0, 1)), number(*row, "figure"));
  }
  if (!expects_change(evidence)) compare_outputs(summary, rows);
  std::vector<std::string> order;
  if (classes.size() > 1) order.assign(classes.begin(), classes.end());
  order.push_back("all");
  Table table{.title = "B against A: " + unit, .header = {"class", "A", "B", "change %"}};
  Plot bars{.kind = Plot::Kind::kBars,
            .title = "B against A",
            .y_label = "change, % (positive is better)",
            .note = "Whiskers: 99 % intervals of the median over blocks.",
            .categories = order,
            .series = {{.name = "B against A"}}};
  for (const std::string& cell : order) {
    const TrialResult r = judge(cells[cell].blocks("A", "B"), better);
    table.rows.push_back(
        {cell, published(cells[cell].typical("A")), published(cells[cell].typical("B")), published(100 * r.change)});
    bars.series[0].y.push_back(100 * r.change);
    bars.series[0].low.push_back(100 * r.interval.low);
    bars.series[0].high.push_back(100 * r.interval.high);
    add_verdict(summary, {.cell = cell, .arm = "B", .against = "A", .result = r});
  }
  Plot blocks{.kind = Plot::Kind::kLines, .title = "Rounds in order", .x_label = "round", .y_label = unit};
  for (const char* arm : {"A", "B"}) {
    Series s{.name = arm};
    for (const double f : cells["all"].figures(arm)) {
      s.x.push_back(static_cast<double>(s.x.size() + 1));
      s.y.push_back(f);
    }
    blocks.series.push_back(std::move(s));
  }
  summary.tables.push_back(std::move(table));
  summary.plots = {std::move(bars), std::move(blocks)};
  if (facts["A"].drafted != facts["B"].drafted || facts["A"].accepted != facts["B"].accepted)
    summary.notes.push_back(fmt::format("Drafted and accepted tokens: A {} and {}, B {} and {}.", facts["A"].drafted,
                                        facts["A"].accepted, facts["B"].drafted, facts["B"].accepted));
  if (same_program(evidence))
    summary.notes.push_back("A and B are the same program: whatever differs is this machine's doing.");
  const TrialVerdict all = summary.verdicts.back().result.verdict;
  if (summary.different > 0) summary.outcome = Outcome::kDifferent;
  else if (all == TrialVerdict::kLoss) summary.outcome = Outcome::kLoss;
  else if (all == TrialVerdict::kInconclusive || facts["A"].failed + facts["B"].failed > 0)
    summary.outcome = Outcome::kInconclusive;
  return summary;
}

}  // namespace foretoken
