// What a pass costs against its rows, and what else a cycle consists of: drafts, choices, commits, and operators of an
// attributed run.
#pragma once

#include <functional>
#include <vector>

#include "qualify/speed.h"

namespace foretoken {

struct RowCostOptions {
  std::vector<int> rows = {1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64};
  int64_t prefix = 512;   // committed tokens before the passes
  int blocks = 4;         // measured; one more warms up
  double least_s = 0.02;  // of repetitions of one pass
  SamplingParams sampling;
};

// `attributed`: the same model over a TimedBackend that reports to `operators`, or null. Rows: "pass" (forward, choice
// of all rows, commit of half of them; chains, and trees where there are four rows or more), "draft" by route and
// depth, "operators" by rows.
struct RowCostModels {
  TargetModel& target;
  DraftModels& drafts;
  TargetModel* attributed = nullptr;
  std::function<void()> begin_operators;  // forgets what was reported
  std::function<Json()> operators_us;     // microseconds by operator since then
};
Status measure_row_cost(const RowCostModels& models, const Clock& clock, const RowCostOptions& options,
                        const RowSink& rows, const std::function<bool(int, int)>& progress);

}  // namespace foretoken
