// Summary: every figure and verdict of a measurement, computed from its manifest and raw rows and from nothing else.
// What a command prints, what it publishes and what `bench report` recomputes is one function of the evidence.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "qualify/evidence.h"
#include "qualify/trial.h"

namespace foretoken {

// Cells are numbers, texts or null (nothing to say). The first column names the row.
struct Table {
  std::string title;
  std::vector<std::string> header;
  std::vector<std::vector<OrderedJson>> rows;
  std::string note;
};

struct CellVerdict {
  std::string cell;  // "code", or "all"
  std::string arm, against;
  TrialResult result;
};

struct Series {
  std::string name;
  int colour = -1;  // the same thing has the same one in every plot of a page; negative: by its place
  std::vector<double> x, y;
  std::vector<double> low, high;  // whiskers of bars; empty: none
};
struct Plot {
  enum class Kind : uint8_t { kBars, kLines, kStack };
  Kind kind = Kind::kLines;
  std::string title, x_label, y_label, note;
  std::vector<std::string> categories;  // of bars and stacks: what stands at x = 0, 1, ...
  std::vector<Series> series;
  double base = 0;  // where bars begin, and a line is drawn
  bool log_x = false;
};

enum class Outcome : uint8_t { kOk, kDifferent, kLoss, kInconclusive };

struct Summary {
  std::vector<Table> tables;
  std::vector<CellVerdict> verdicts;
  std::vector<std::string> notes;       // what was left out, failed or stayed undecided, one sentence each
  int64_t compared = 0, different = 0;  // answers that had to be one another's equal
  Outcome outcome = Outcome::kOk;
  std::vector<Plot> plots;  // not published as figures: drawn from the rows

  OrderedJson json() const;      // without the plots
  std::string markdown() const;  // tables, verdicts and notes
};

// kInvalidFile when the rows are not what a measurement of this kind writes.
Result<Summary> summarize(const Evidence& evidence);

// Exit status of a command with this outcome: 0, 1 or 3.
int exit_status(Outcome outcome);

// Six significant digits: what is published survives other compilers' last bits.
OrderedJson published(double value);
OrderedJson counted(double value);           // of things that are counted: whole
std::string shown(const OrderedJson& cell);  // of a table, for people
// Blocks whose rounds of one arm disagree by more than 5 %, such as "0, 3 of 4"; "-": none.
std::string disturbed_blocks(const TrialResult& result);

// ---- Of one kind each; they may throw Json::exception and BadRows (figures.h), which summarize() turns into its
// error.
Summary summarize_speed(const Evidence& evidence);
Summary summarize_rows(const Evidence& evidence);
Summary summarize_abba(const Evidence& evidence);
Summary summarize_conversation(const Evidence& evidence);
Summary summarize_load(const Evidence& evidence);
Summary summarize_compare(const Evidence& evidence);
Summary summarize_resolve(const Evidence& evidence);
Summary summarize_variate(const Evidence& evidence);

}  // namespace foretoken
