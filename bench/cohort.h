// The frozen prompts of app/cohort.h under the names that benchmarks use.
#pragma once

#include "app/cohort.h"

namespace foretoken::bench {

using Prompt = BenchPrompt;

inline Result<std::vector<Prompt>> load_cohort(app::LoadedModel& model, const std::string& path) {
  ASSIGN_OR_RETURN(app::Cohort cohort, app::load_cohort(model, path));
  return std::move(cohort.prompts);
}

}  // namespace foretoken::bench
