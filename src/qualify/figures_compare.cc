// Figures of `bench compare`: other servers on the same prompts, and whether they wrote the same tokens.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "qualify/figures.h"

namespace foretoken {
namespace {

constexpr double kNearTie = 0.5;  // logits: a choice that other sums or other roundings may turn

struct Agreement {
  double prompts = 0, equal = 0;
  std::vector<double> margins;  // between the two tokens where answers part

  double near_ties() const {
    return static_cast<double>(std::count_if(margins.begin(), margins.end(), [](double m) { return m < kNearTie; }));
  }
};

struct Counts {
  double drafted = 0, accepted = 0;
};

}  // namespace

Summary summarize_compare(const Evidence& evidence) {
  Summary summary;
  const std::vector<std::string> arms = design_list(evidence, "arms"), ours = design_list(evidence, "ours");
  if (arms.empty() || ours.empty()) refuse("the design has no arms");
  std::map<std::string, Rounds> cells;
  std::map<std::string, Counts> counts;
  std::map<std::string, Agreement> agreements;
  std::map<int64_t, std::string> ids;
  std::map<std::pair<std::string, std::string>, int> failures;  // by arm and reason
  std::set<std::string> classes;
  for (const Json& row : evidence.rows)
    if (text(row, "row") == "agreement") {
      Agreement& a = agreements[text(row, "arm")];
      ++a.prompts;
      a.equal += flag(row, "equal");
      if (!flag(row, "equal") && row.contains("margin")) a.margins.push_back(std::abs(number(row, "margin")));
    }
  for (const Json* row : counted_rows(evidence, "answer", summary)) {
    const std::string arm = text(*row, "arm"), kind = text(*row, "class");
    if (row->contains("failed")) {
      ++failures[{arm, text(*row, "failed")}];
      continue;
    }
    if (std::find(arms.begin(), arms.end(), arm) == arms.end()) refuse("an arm is not of the design");
    classes.insert(kind);
    const double us = number(*row, "decode_us"), tokens = number(*row, "timed_tokens");
    if (us > 0 && tokens > 0)
      for (const std::string& cell : {kind, std::string("all")})
        cells[cell].add(static_cast<int>(integer(*row, "block", 0, 10000)), arm,
                        static_cast<int>(integer(*row, "round", 0, 1)), 1e6 * tokens / us);
    counts[arm].drafted += number(*row, "drafted");
    counts[arm].accepted += number(*row, "accepted");
    if (std::find(ours.begin(), ours.end(), arm) == ours.end()) continue;
    const auto [known, fresh] = ids.try_emplace(integer(*row, "prompt", 0, 1 << 20), text(*row, "ids"));
    if (fresh) continue;
    ++summary.compared;
    summary.different += known->second != text(*row, "ids");
  }
  const std::string& best_of_ours = ours.back();
  std::vector<std::string> order(classes.begin(), classes.end());
  order.push_back("all");
  Table table{.title = "Tokens per second", .header = {"class"}};
  Plot plot{.kind = Plot::Kind::kBars,
            .title = "Tokens per second by class of prompt",
            .y_label = "tokens per second",
            .categories = order};
  for (const std::string& arm : arms) {
    table.header.push_back(arm);
    plot.series.push_back({.name = arm, .colour = static_cast<int>(plot.series.size())});
  }
  table.header.push_back(best_of_ours + " over the best other");
  for (const std::string& cell : order) {
    std::vector<OrderedJson> line = {cell};
    double mine = 0, other = 0;
    for (size_t a = 0; a < arms.size(); ++a) {
      const double rate = cells[cell].typical(arms[a]);
      line.push_back(rate > 0 ? published(rate) : OrderedJson(nullptr));
      plot.series[a].y.push_back(rate);
      if (arms[a] == best_of_ours) mine = rate;
      if (std::find(ours.begin(), ours.end(), arms[a]) != ours.end()) continue;
      other = std::max(other, rate);
      if (rate > 0)
        add_verdict(summary, {.cell = cell,
                              .arm = best_of_ours,
                              .against = arms[a],
                              .result = judge(cells[cell].blocks(arms[a], best_of_ours))});
    }
    line.push_back(other > 0 ? published(mine / other) : OrderedJson(nullptr));
    table.rows.push_back(std::move(line));
  }
  Table agreement{.title = "Agreement with our tokens, and drafts",
                  .header = {"arm", "prompts", "same answer", "part at a near tie", "margin where they part (median)",
                             "largest", "drafted", "accepted"}};
  agreement.note =
      "Margins are between the two tokens' logits in our model: 0 is a tie, below 0.5 a near one. Answers are compared "
      "up "
      "to our end of text, which other servers are told to skip. Servers that do not report tokens are not compared.";
  for (const std::string& arm : arms) {
    const Agreement& a = agreements[arm];
    agreement.rows.push_back({arm, a.prompts > 0 ? counted(a.prompts) : OrderedJson(nullptr),
                              a.prompts > 0 ? counted(a.equal) : OrderedJson(nullptr),
                              a.margins.empty() ? OrderedJson(nullptr) : counted(a.near_ties()),
                              a.margins.empty() ? OrderedJson(nullptr) : published(median(a.margins)),
                              a.margins.empty() ? OrderedJson(nullptr) : published(quantile(a.margins, 1)),
                              counted(counts[arm].drafted), counted(counts[arm].accepted)});
  }
  const auto design = evidence.manifest.at("design");
  if (const auto out = design.find("arms_left_out"); out != design.end() && out->is_array())
    for (const OrderedJson& why : *out)
      if (why.is_string()) summary.notes.push_back("Left out: " + why.get<std::string>().substr(0, 300) + ".");
  summary.tables = {std::move(table), std::move(agreement)};
  summary.plots = {std::move(plot)};
  for (const auto& [failure, count] : failures)
    summary.notes.push_back(fmt::format("{} failed {} times: {}.", failure.first, count, failure.second));
  conclude(summary, [](const CellVerdict& v) { return v.cell == "all"; });
  if (!failures.empty() && summary.outcome == Outcome::kOk) summary.outcome = Outcome::kInconclusive;
  return summary;
}

}  // namespace foretoken
