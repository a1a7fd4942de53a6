// Rows are foreign: every field is checked before it is used.
#include "qualify/figures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace foretoken {

void refuse(const std::string& what) { throw BadRows(what); }

namespace {

const Json& at(const Json& row, const char* key) {
  const auto it = row.find(key);
  if (it == row.end()) refuse(fmt::format("a row has no \"{}\"", key));
  return *it;
}

double finite(const Json& value, const char* key) {
  const double v = value.is_number() ? value.get<double>() : std::nan("");
  if (!std::isfinite(v)) refuse(fmt::format("\"{}\" is no number", key));
  return v;
}

}  // namespace

double number(const Json& row, const char* key) { return finite(at(row, key), key); }

int64_t integer(const Json& row, const char* key, int64_t least, int64_t most) {
  const double v = number(row, key);
  if (v != std::floor(v) || v < static_cast<double>(least) || v > static_cast<double>(most))
    refuse(fmt::format("\"{}\" is out of range", key));
  return static_cast<int64_t>(v);
}

std::string text(const Json& row, const char* key) {
  const Json& value = at(row, key);
  if (!value.is_string() || value.get_ref<const std::string&>().size() > 400)
    refuse(fmt::format("\"{}\" is no short text", key));
  return value.get<std::string>();
}

std::vector<double> numbers(const Json& row, const char* key) {
  const Json& value = at(row, key);
  if (!value.is_array()) refuse(fmt::format("\"{}\" is no list", key));
  std::vector<double> out;
  for (const Json& v : value) out.push_back(finite(v, key));
  return out;
}

bool flag(const Json& row, const char* key) {
  const auto it = row.find(key);
  return it != row.end() && it->is_boolean() && it->get<bool>();
}

std::vector<std::string> design_list(const Evidence& evidence, const char* key) {
  std::vector<std::string> out;
  const auto design = evidence.manifest.find("design");
  if (design == evidence.manifest.end() || !design->is_object() || !design->contains(key))
    refuse(fmt::format("the design has no \"{}\"", key));
  const OrderedJson& list = (*design)[key];
  if (!list.is_array() || list.size() > 64) refuse(fmt::format("\"{}\" is no short list", key));
  for (const OrderedJson& item : list) {
    if (!item.is_string() || item.get_ref<const std::string&>().size() > 400)
      refuse(fmt::format("\"{}\" holds something that is no short text", key));
    out.push_back(item.get<std::string>());
  }
  return out;
}

void Rounds::add(int block, const std::string& arm, int round, double figure) {
  arms_[arm][block][static_cast<size_t>(round)].push_back(figure);
}

std::vector<TrialBlock> Rounds::blocks(const std::string& a, const std::string& b) const {
  std::vector<TrialBlock> out;
  const auto of_a = arms_.find(a), of_b = arms_.find(b);
  if (of_a == arms_.end() || of_b == arms_.end()) return out;
  for (const auto& [block, rounds] : of_a->second) {
    const auto others = of_b->second.find(block);
    if (others == of_b->second.end()) continue;
    TrialBlock t;
    for (size_t i = 0; i < 2; ++i) {
      t.a[i] = geometric_mean(rounds[i]);
      t.b[i] = geometric_mean(others->second[i]);
    }
    out.push_back(t);
  }
  return out;
}

std::vector<double> Rounds::figures(const std::string& arm) const {
  std::vector<double> out;
  if (const auto it = arms_.find(arm); it != arms_.end())
    for (const auto& [block, rounds] : it->second)
      for (const auto& round : rounds)
        if (!round.empty()) out.push_back(geometric_mean(round));
  return out;
}

std::vector<const Json*> counted_rows(const Evidence& evidence, const char* row_kind, Summary& summary) {
  std::vector<const Json*> rows;
  size_t warm = 0;
  for (const Json& row : evidence.rows) {
    if (text(row, "row") != row_kind) continue;
    if (flag(row, "warm")) ++warm;
    else rows.push_back(&row);
  }
  if (warm > 0)
    summary.notes.push_back(
        fmt::format("{} {} rows of warm-up blocks are in the raw rows and in no figure.", warm, row_kind));
  return rows;
}

void add_verdict(Summary& summary, CellVerdict verdict) {
  const TrialResult& r = verdict.result;
  if (r.verdict == TrialVerdict::kInconclusive && r.spread <= TrialRule{}.most_spread)  // the spread has its column
    summary.notes.push_back(
        fmt::format("{}, {} against {} is inconclusive: {}.", verdict.cell, verdict.arm, verdict.against, r.reason));
  summary.verdicts.push_back(std::move(verdict));
}

Series distribution(std::string name, std::vector<double> values) {
  Series s{.name = std::move(name), .x = {}, .y = {}, .low = {}, .high = {}};
  if (values.empty()) return s;
  std::sort(values.begin(), values.end());
  constexpr int kPoints = 60;
  for (int i = 0; i <= kPoints; ++i) {
    const double share = static_cast<double>(i) / kPoints;
    s.x.push_back(quantile(values, share));
    s.y.push_back(100 * share);
  }
  return s;
}

}  // namespace foretoken
