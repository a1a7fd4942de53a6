// What all kinds share: dispatch, rounding, and the two published forms.
#include "qualify/summary.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "qualify/figures.h"

namespace foretoken {
namespace {

std::string_view outcome_word(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kDifferent:
      return "answers differ";
    case Outcome::kLoss:
      return "loss";
    case Outcome::kInconclusive:
      return "inconclusive";
  }
  return "";
}

OrderedJson verdict_json(const CellVerdict& v) {
  OrderedJson j = OrderedJson::object();
  j["cell"] = v.cell;
  j["arm"] = v.arm;
  j["against"] = v.against;
  j["verdict"] = verdict_word(v.result.verdict);
  j["change_percent"] = published(100 * v.result.change);
  j["spread_percent"] = published(100 * v.result.spread);
  j["bound_percent"] = published(100 * v.result.bound);
  j["round_spread_percent"] = published(100 * v.result.round_spread);
  j["interval_percent"] =
      OrderedJson::array({published(100 * v.result.interval.low), published(100 * v.result.interval.high)});
  j["blocks"] = v.result.blocks;
  j["wide_blocks"] = v.result.wide_blocks;
  j["reason"] = v.result.reason;
  return j;
}

std::string markdown_row(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) line += " " + cell + " |";
  return line + "\n";
}

std::string markdown_table(const Table& table) {
  std::string text = "**" + table.title + "**\n\n" + markdown_row(table.header) + "|";
  for (size_t i = 0; i < table.header.size(); ++i) text += i == 0 ? "---|" : "---:|";
  text += "\n";
  for (const auto& row : table.rows) {
    std::vector<std::string> cells;
    for (const OrderedJson& cell : row) cells.push_back(shown(cell));
    text += markdown_row(cells);
  }
  return text + (table.note.empty() ? "" : "\n" + table.note + "\n") + "\n";
}

std::string verdict_markdown(const std::vector<CellVerdict>& verdicts) {
  std::string text =
      "**Verdicts** (positive is better; disturbed blocks count all the same)\n\n| cell | arm | against | change | "
      "bound "
      "| spread | 99 % interval | verdict | disturbed blocks |\n|---|---|---|---:|---:|---:|---|---|---|\n";
  for (const CellVerdict& v : verdicts)
    text += fmt::format("| {} | {} | {} | {:+.1f} % | {:.1f} % | {:.1f} % | {:+.1f} % to {:+.1f} % | {} | {} |\n",
                        v.cell, v.arm, v.against, 100 * v.result.change, 100 * v.result.bound, 100 * v.result.spread,
                        100 * v.result.interval.low, 100 * v.result.interval.high, verdict_word(v.result.verdict),
                        disturbed_blocks(v.result));
  return text + "\n";
}

}  // namespace

std::string disturbed_blocks(const TrialResult& r) {
  return r.wide_blocks.empty() ? "-" : fmt::format("{} of {}", fmt::join(r.wide_blocks, ", "), r.blocks);
}

int exit_status(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return 0;
    case Outcome::kInconclusive:
      return 3;
    default:
      return 1;
  }
}

OrderedJson counted(double value) { return std::llround(std::isfinite(value) ? value : 0); }

OrderedJson published(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::stod(fmt::format("{:.5e}", value));
}

std::string shown(const OrderedJson& cell) {
  if (cell.is_string()) return cell.get<std::string>();
  if (cell.is_boolean()) return cell.get<bool>() ? "yes" : "no";
  if (cell.is_number_integer()) return fmt::format("{}", cell.get<int64_t>());
  if (!cell.is_number()) return "-";
  const double v = cell.get<double>(), size = std::abs(v);
  return fmt::format("{:.{}f}", v, size >= 1000 ? 0 : size >= 100 ? 1 : size >= 0.1 || size == 0 ? 2 : 4);
}

OrderedJson Summary::json() const {
  OrderedJson j = OrderedJson::object();
  j["outcome"] = outcome_word(outcome);
  j["compared_answers"] = compared;
  j["different_answers"] = different;
  j["verdicts"] = OrderedJson::array();
  for (const CellVerdict& v : verdicts) j["verdicts"].push_back(verdict_json(v));
  j["tables"] = OrderedJson::array();
  for (const Table& t : tables) {
    OrderedJson table = OrderedJson::object();
    table["title"] = t.title;
    table["header"] = t.header;
    table["rows"] = t.rows;
    table["note"] = t.note;
    j["tables"].push_back(table);
  }
  j["notes"] = notes;
  return j;
}

std::string Summary::markdown() const {
  std::string text;
  for (const Table& t : tables) text += markdown_table(t);
  if (!verdicts.empty()) text += verdict_markdown(verdicts);
  if (compared > 0) text += fmt::format("Equal answers: {} of {}.\n", compared - different, compared);
  for (const std::string& note : notes) text += "* " + note + "\n";
  return text;
}

Result<Summary> summarize(const Evidence& evidence) {
  static const std::map<std::string, Summary (*)(const Evidence&)> kinds = {
      {"speed", summarize_speed},     {"rows", summarize_rows},
      {"abba", summarize_abba},       {"conversation", summarize_conversation},
      {"load", summarize_load},       {"compare", summarize_compare},
      {"resolve", summarize_resolve}, {"variate", summarize_variate}};
  const auto kind = kinds.find(evidence.kind());
  if (kind == kinds.end())
    return Error{ErrorCode::kUnsupported, fmt::format("no measurement is of the kind \"{}\"", evidence.kind())};
  try {
    return kind->second(evidence);
  } catch (const Json::exception& e) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("the rows are not those of a {} measurement: {}", evidence.kind(), e.what())};
  } catch (const BadRows& e) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("the rows are not those of a {} measurement: {}", evidence.kind(), e.what())};
  }
}

}  // namespace foretoken
