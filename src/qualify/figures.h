// What the summaries of several kinds compute alike. Accessors throw BadRows where a row is not what it should be;
// summarize() turns that into its error.
#pragma once

#include <array>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "qualify/summary.h"

namespace foretoken {

struct BadRows : std::runtime_error {
  using std::runtime_error::runtime_error;
};
[[noreturn]] void refuse(const std::string& what);

// A finite number of the row.
double number(const Json& row, const char* key);
int64_t integer(const Json& row, const char* key, int64_t least, int64_t most);
std::string text(const Json& row, const char* key);
std::vector<double> numbers(const Json& row, const char* key);
bool flag(const Json& row, const char* key);  // false where absent
std::vector<std::string> design_list(const Evidence& evidence, const char* key);

// Rounds of arms in blocks, as rows report them: an arm's first and second figure of each block.
class Rounds {
 public:
  // Figures of one round of one arm; several (one a prompt) make a round's figure, their geometric mean.
  void add(int block, const std::string& arm, int round, double figure);
  // Blocks in which both arms have both rounds.
  std::vector<TrialBlock> blocks(const std::string& a, const std::string& b) const;
  std::vector<double> figures(const std::string& arm) const;  // of all rounds
  double typical(const std::string& arm) const { return median(figures(arm)); }

 private:
  std::map<std::string, std::map<int, std::array<std::vector<double>, 2>>> arms_;
};

// Counted rows alone; a note says how many warm-up rows were set aside.
std::vector<const Json*> counted_rows(const Evidence& evidence, const char* row_kind, Summary& summary);
// Keeps the verdict; a note says why it is undecided where its figures do not.
void add_verdict(Summary& summary, CellVerdict verdict);
// The outcome of a measurement whose equal answers were compared: different, or inconclusive when a verdict that
// `decides` is.
template <class Decides>
void conclude(Summary& summary, Decides decides) {
  if (summary.different > 0) summary.outcome = Outcome::kDifferent;
  else
    for (const CellVerdict& v : summary.verdicts)
      if (decides(v) && v.result.verdict == TrialVerdict::kInconclusive) summary.outcome = Outcome::kInconclusive;
}
// Evenly spaced points of the distribution: x the values, y the share at or below.
Series distribution(std::string name, std::vector<double> values);

}  // namespace foretoken
