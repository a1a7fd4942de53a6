// A frozen list of prompts for measurements: [{"class", "raw", "text"}], also "thinking" (of messages), "tokens"
// (longest answer), "file" (a path beside the list whose content follows the words of "text"), or "random" with "count"
// (ids drawn evenly from the vocabulary: text that nothing predicts). Raw prompts are continued; others are one user
// message in the model's chat template.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/loaded_model.h"
#include "qualify/speed.h"

namespace foretoken::app {

// Of the program itself: "standard", and "holdout", which nothing is ever tuned on.
extern const std::string_view kStandardCohort, kHoldoutCohort;

struct Cohort {
  std::string name;                  // "standard", "holdout" or the file's name
  std::string sha256;                // of its text
  std::vector<BenchPrompt> prompts;  // their `tokens` are 0 where the cohort leaves them to the measurement
};
// `which`: "standard", "holdout", or a file. `classes`: only these, where not empty.
Result<Cohort> load_cohort(LoadedModel& model, const std::string& which, const std::vector<std::string>& classes = {});

}  // namespace foretoken::app
