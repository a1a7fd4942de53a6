// Figures of `bench conversation` and `bench variate`: what a kept prefix saves, and that it changes no answer.
#include <fmt/format.h>

#include <algorithm>

#include "qualify/figures.h"

namespace foretoken {
namespace {

struct TurnFacts {
  std::vector<double> first_ms, rate, cycles, accepted;
  double prompt = 0, cached = 0;
};

int block_of(const Json& row) { return static_cast<int>(integer(row, "block", 0, 10000)); }
int round_of(const Json& row) { return static_cast<int>(integer(row, "round", 0, 1)); }

}  // namespace

Summary summarize_conversation(const Evidence& evidence) {
  Summary summary;
  const std::vector<std::string> arms = design_list(evidence, "arms");
  if (arms.empty()) refuse("the design has no arms");
  std::map<std::string, std::map<std::string, TurnFacts>> facts;  // [turn][arm]
  std::map<std::string, std::string> ids;
  Rounds first, rate;  // of follow-up turns
  std::vector<std::string> turns;
  for (const Json* row : counted_rows(evidence, "turn", summary)) {
    const std::string arm = text(*row, "arm");
    const int64_t turn = integer(*row, "turn", 1, 1000);
    const std::string name = fmt::format("{} {}", text(*row, "conversation"), turn);
    if (std::find(turns.begin(), turns.end(), name) == turns.end()) turns.push_back(name);
    const auto [known, fresh] = ids.try_emplace(name, text(*row, "ids"));
    if (!fresh) {
      ++summary.compared;
      summary.different += known->second != text(*row, "ids");
    }
    TurnFacts& f = facts[name][arm];
    const double ms = number(*row, "first_token_us") / 1000, tokens = number(*row, "tokens"),
                 us = number(*row, "decode_us");
    f.first_ms.push_back(ms);
    f.prompt = number(*row, "prompt_tokens");
    f.cached = number(*row, "cached_tokens");
    f.cycles.push_back(number(*row, "cycles"));
    f.accepted.push_back(number(*row, "accepted"));
    if (tokens > 1 && us > 0) f.rate.push_back(1e6 * (tokens - 1) / us);
    if (turn > 1) {
      first.add(block_of(*row), arm, round_of(*row), ms);
      if (tokens > 1 && us > 0) rate.add(block_of(*row), arm, round_of(*row), 1e6 * (tokens - 1) / us);
    }
  }
  Table table{.title = "First token (ms) and decoding (tokens per second) of every turn", .header = {"turn", "prompt"}};
  Plot plot{
      .kind = Plot::Kind::kBars, .title = "Time to the first token", .y_label = "milliseconds", .categories = turns};
  for (const std::string& arm : arms) {
    for (const char* what : {"restored", "first ms", "tokens/s", "per cycle"}) table.header.push_back(arm + " " + what);
    plot.series.push_back({.name = arm});
  }
  for (const std::string& turn : turns) {
    std::vector<OrderedJson> line = {turn, nullptr};
    for (size_t a = 0; a < arms.size(); ++a) {
      const TurnFacts& f = facts[turn][arms[a]];
      const double cycles = mean(f.cycles);
      line[1] = counted(f.prompt);
      line.push_back(counted(f.cached));
      line.push_back(published(median(f.first_ms)));
      line.push_back(published(median(f.rate)));
      line.push_back(published(cycles > 0 ? (mean(f.accepted) + cycles) / cycles : 0));
      plot.series[a].y.push_back(median(f.first_ms));
    }
    table.rows.push_back(std::move(line));
  }
  for (size_t a = 1; a < arms.size(); ++a) {
    add_verdict(summary, {.cell = "first token of follow-ups",
                          .arm = arms[a],
                          .against = arms[0],
                          .result = judge(first.blocks(arms[0], arms[a]), Better::kLower)});
    add_verdict(summary, {.cell = "decoding of follow-ups",
                          .arm = arms[a],
                          .against = arms[0],
                          .result = judge(rate.blocks(arms[0], arms[a]))});
  }
  summary.tables = {std::move(table)};
  summary.plots = {std::move(plot)};
  conclude(summary, [](const CellVerdict&) { return true; });
  return summary;
}

Summary summarize_variate(const Evidence& evidence) {
  Summary summary;
  Table table{
      .title = "Every turn against a cold run of the same prompt",
      .header = {"turn", "prompt", "restored", "answer", "equal", "cold first ms", "first ms", "per drafted %"}};
  Plot plot{.kind = Plot::Kind::kBars,
            .title = "Time to the first token",
            .y_label = "milliseconds",
            .series = {{.name = "cold"}, {.name = "with the turns before"}}};
  for (const Json* row : counted_rows(evidence, "turn", summary)) {
    const std::string name = text(*row, "name");
    const bool equal = text(*row, "ids") == text(*row, "cold_ids");
    const double drafted = number(*row, "drafted"), cold = number(*row, "cold_first_token_us") / 1000,
                 warm = number(*row, "first_token_us") / 1000;
    ++summary.compared;
    summary.different += !equal;
    table.rows.push_back({name, counted(number(*row, "prompt_tokens")), counted(number(*row, "cached_tokens")),
                          counted(number(*row, "tokens")), equal, published(cold), published(warm),
                          drafted > 0 ? published(100 * number(*row, "accepted") / drafted) : OrderedJson(nullptr)});
    plot.categories.push_back(std::to_string(integer(*row, "turn", 1, 1000)));
    plot.series[0].y.push_back(cold);
    plot.series[1].y.push_back(warm);
    if (flag(*row, "must_restore") && number(*row, "cached_tokens") <= 0) {
      summary.notes.push_back(
          fmt::format("\"{}\" restored nothing, though its prompt begins with an earlier one.", name));
      summary.outcome = Outcome::kLoss;
    }
  }
  if (table.rows.empty()) refuse("no turn was measured");
  if (summary.different > 0) summary.outcome = Outcome::kDifferent;
  summary.tables = {std::move(table)};
  summary.plots = {std::move(plot)};
  return summary;
}

}  // namespace foretoken
