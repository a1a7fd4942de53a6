// Figures of `bench load`: what users see at each rate of arrivals.
#include <fmt/format.h>

#include <algorithm>

#include "qualify/figures.h"

namespace foretoken {
namespace {

struct RateFacts {
  std::vector<double> first_ms, gap_ms, total_ms, per_token_ms, late_ms;
  double requests = 0, failed = 0, good = 0, tokens = 0, last_s = 0;
  std::map<std::string, int> failures;
};

double limit_of(const Evidence& evidence, const char* key) {
  const Json design = evidence.manifest.at("design");
  return number(design, key);
}

}  // namespace

Summary summarize_load(const Evidence& evidence) {
  Summary summary;
  const double first_limit = limit_of(evidence, "first_token_limit_ms"),
               gap_limit = limit_of(evidence, "token_limit_ms");
  std::map<double, RateFacts> rates;
  for (const Json* row : counted_rows(evidence, "request", summary)) {
    RateFacts& f = rates[number(*row, "rate")];
    ++f.requests;
    if (row->contains("failed")) {
      ++f.failed;
      ++f.failures[text(*row, "failed")];
      continue;
    }
    const double first = number(*row, "first_us") / 1000, total = number(*row, "total_us") / 1000,
                 at = number(*row, "at_us") / 1e6;
    f.first_ms.push_back(first);
    f.total_ms.push_back(total);
    f.late_ms.push_back(number(*row, "late_us") / 1000);
    for (const double gap : numbers(*row, "gaps_us")) f.gap_ms.push_back(gap / 1000);
    const double tokens = row->contains("tokens") ? number(*row, "tokens") : 0;
    const double per_token = tokens > 1 ? (total - first) / (tokens - 1) : 0;
    f.per_token_ms.push_back(per_token);
    f.tokens += tokens;
    f.last_s = std::max(f.last_s, at + total / 1000);
    f.good += first <= first_limit && per_token <= gap_limit;
  }
  if (rates.empty()) refuse("no request was measured");
  Table table{.title = "What users see, milliseconds",
              .header = {"requests/s", "requests", "failed", "first p50", "p95", "p99", "gap p50", "p95", "p99",
                         "per token p50", "p95", "tokens/s", "goodput/s", "good %"}};
  table.note = fmt::format(
      "Good: a first token within {:g} ms and {:g} ms a token. A gap is the time between two pieces of text; a piece "
      "may hold several tokens.",
      first_limit, gap_limit);
  Plot first{.kind = Plot::Kind::kLines,
             .title = "Time to the first token",
             .x_label = "milliseconds",
             .y_label = "requests at or below, %",
             .log_x = true};
  Plot gaps{.kind = Plot::Kind::kLines,
            .title = "Time between pieces of text",
            .x_label = "milliseconds",
            .y_label = "gaps at or below, %",
            .log_x = true};
  for (auto& [rate, f] : rates) {
    const double seconds = f.last_s > 0 ? f.last_s : 1;
    std::vector<OrderedJson> line = {published(rate), counted(f.requests), counted(f.failed)};
    for (const auto* values : {&f.first_ms, &f.gap_ms})
      for (const double share : {0.5, 0.95, 0.99}) line.push_back(published(quantile(*values, share)));
    for (const double share : {0.5, 0.95}) line.push_back(published(quantile(f.per_token_ms, share)));
    line.push_back(published(f.tokens / seconds));
    line.push_back(published(f.good / seconds));
    line.push_back(published(100 * f.good / f.requests));
    table.rows.push_back(std::move(line));
    const std::string name = fmt::format("{:g} requests/s", rate);
    if (!f.first_ms.empty()) first.series.push_back(distribution(name, f.first_ms));
    if (!f.gap_ms.empty()) gaps.series.push_back(distribution(name, f.gap_ms));
    for (const auto& [why, count] : f.failures)
      summary.notes.push_back(fmt::format("At {}: {} requests failed: {}.", name, count, why));
    if (quantile(f.late_ms, 0.95) > 50) {
      summary.notes.push_back(
          fmt::format("At {}: the client itself was late by {:.0f} ms (p95), so arrivals were not the ones asked for.",
                      name, quantile(f.late_ms, 0.95)));
      summary.outcome = Outcome::kInconclusive;
    }
  }
  summary.tables = {std::move(table)};
  summary.plots = {std::move(first), std::move(gaps)};
  return summary;
}

}  // namespace foretoken
