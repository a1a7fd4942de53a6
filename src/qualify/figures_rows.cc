// Figures of `bench rows`: the row-cost curve, and what a cycle consists of.
#include <fmt/format.h>

#include <algorithm>

#include "qualify/figures.h"

namespace foretoken {
namespace {

struct Phases {
  std::vector<double> forward, host, commit;
};

void append(std::vector<double>& to, const std::vector<double>& values) {
  to.insert(to.end(), values.begin(), values.end());
}

Table operators_table(const Evidence& evidence, Summary& summary, Plot& plot) {
  std::map<int, std::map<std::string, std::vector<double>>> us;  // [rows][operator]
  std::map<std::string, double> weight;
  for (const Json* row : counted_rows(evidence, "operators", summary)) {
    const auto by = row->find("us");
    if (by == row->end() || !by->is_object()) refuse("a row of operators has no times");
    for (const auto& [op, value] : by->items()) {
      if (!value.is_number() || op.size() > 64) refuse("a time of an operator is no number");
      us[static_cast<int>(integer(*row, "rows", 1, 4096))][op].push_back(value.get<double>());
    }
  }
  Table table{.title = "Operators of one pass, microseconds (attributed run: ranks, not claims)",
              .header = {"operator"}};
  for (const auto& [rows, ops] : us) {
    table.header.push_back(fmt::format("{} rows", rows));
    plot.categories.push_back(std::to_string(rows));
    for (const auto& [op, values] : ops) weight[op] += median(values);
  }
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [op, w] : weight) order.push_back({-w, op});
  std::sort(order.begin(), order.end());
  for (const auto& [w, op] : order) {
    std::vector<OrderedJson> line = {op};
    Series series{.name = op};
    for (auto& [rows, ops] : us) {
      line.push_back(published(median(ops[op])));
      series.y.push_back(median(ops[op]) / 1000);
    }
    table.rows.push_back(std::move(line));
    if (plot.series.size() < 7) {
      plot.series.push_back(std::move(series));
    } else {
      if (plot.series.size() == 7) plot.series.push_back({.name = "others", .y = std::vector<double>(us.size())});
      for (size_t i = 0; i < series.y.size(); ++i) plot.series[7].y[i] += series.y[i];
    }
  }
  return table;
}

Table drafts_table(const Evidence& evidence, Summary& summary, double one_row) {
  std::map<std::pair<std::string, int>, std::vector<double>> us;
  for (const Json* row : counted_rows(evidence, "draft", summary))
    us[{text(*row, "route"), static_cast<int>(integer(*row, "depth", 1, 64))}].push_back(number(*row, "us"));
  Table table{.title = "Drafts", .header = {"route", "depth", "ms", "in passes of one row"}};
  for (const auto& [key, values] : us)
    table.rows.push_back({key.first, key.second, published(median(values) / 1000),
                          one_row > 0 ? published(median(values) / one_row) : OrderedJson(nullptr)});
  return table;
}

}  // namespace

Summary summarize_rows(const Evidence& evidence) {
  Summary summary;
  std::map<std::string, std::map<int, Phases>> shapes;
  Rounds rounds;
  for (const Json* row : counted_rows(evidence, "pass", summary)) {
    const int rows = static_cast<int>(integer(*row, "rows", 1, 4096));
    const std::string shape = text(*row, "shape");
    const std::vector<double> forward = numbers(*row, "forward_us");
    Phases& p = shapes[shape][rows];
    append(p.forward, forward);
    append(p.host, numbers(*row, "host_us"));
    append(p.commit, numbers(*row, "commit_us"));
    if (shape == "chain")
      rounds.add(static_cast<int>(integer(*row, "block", 0, 10000)), std::to_string(rows),
                 static_cast<int>(integer(*row, "round", 0, 1)), median(forward));
  }
  auto& chains = shapes["chain"];
  auto& trees = shapes["tree"];
  if (chains.empty()) refuse("no pass was measured");
  const double one = median(chains.begin()->second.forward);
  Table curve{.title = "Cost of a pass against its rows",
              .header = {"rows", "chain ms", "x fewest rows", "rows per second", "tree ms", "choosing ms", "commit ms",
                         "rounds disagree by %"}};
  Plot cost{.kind = Plot::Kind::kLines,
            .title = "Cost of a pass against its rows",
            .x_label = "rows",
            .y_label = "in passes of the fewest rows",
            .note = "Flat is free: that many guesses are checked at the price of none.",
            .log_x = true};
  Series chain{.name = "chain"}, tree{.name = "tree"}, linear{.name = "as many passes of one row"};
  double widest = 0;
  for (auto& [rows, p] : chains) {
    const double ms = median(p.forward) / 1000;
    const TrialResult same = judge(rounds.blocks(std::to_string(rows), std::to_string(rows)));
    widest = std::max(widest, same.spread);
    const bool has_tree = trees.contains(rows);
    curve.rows.push_back(
        {rows, published(ms), published(one > 0 ? 1000 * ms / one : 0), published(ms > 0 ? rows / ms * 1000 : 0),
         has_tree ? published(median(trees[rows].forward) / 1000) : OrderedJson(nullptr),
         published(median(p.host) / 1000), published(median(p.commit) / 1000), published(100 * same.spread)});
    const auto add = [x = static_cast<double>(rows)](Series& s, double y) {
      s.x.push_back(x);
      s.y.push_back(y);
    };
    add(chain, one > 0 ? 1000 * ms / one : 0);
    if (has_tree) add(tree, one > 0 ? median(trees[rows].forward) / one : 0);
    if (rows <= 16) add(linear, rows);
  }
  Plot operators{.kind = Plot::Kind::kStack,
                 .title = "What a pass consists of (attributed)",
                 .x_label = "rows",
                 .y_label = "milliseconds"};
  Table by_operator = operators_table(evidence, summary, operators);
  summary.tables.push_back(std::move(curve));
  if (Table drafts = drafts_table(evidence, summary, one); !drafts.rows.empty())
    summary.tables.push_back(std::move(drafts));
  if (!by_operator.rows.empty()) summary.tables.push_back(std::move(by_operator));
  cost.series = {std::move(chain), std::move(tree), std::move(linear)};
  if (cost.series[1].x.empty()) cost.series.erase(cost.series.begin() + 1);
  summary.plots.push_back(std::move(cost));
  if (!operators.series.empty()) summary.plots.push_back(std::move(operators));
  if (widest > TrialRule{}.most_spread) {
    summary.outcome = Outcome::kInconclusive;
    summary.notes.push_back(fmt::format(
        "Rounds of the same pass disagree by up to {:.1f} %: the machine was not quiet, and the curve is inconclusive.",
        100 * widest));
  }
  return summary;
}

}  // namespace foretoken
