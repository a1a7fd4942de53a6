// What the engine counts, as /status and answers show it.
#pragma once

#include "base/json.h"
#include "decode/draft_models.h"
#include "engine/engine.h"

namespace foretoken::serve {

OrderedJson status_json(const EngineStatus& status);
// An answer's facts: "speculation" as `run --json` has it, "timing", "cache_note".
OrderedJson result_json(const RequestResult& result, const DraftModels* drafts, const std::string& verify);
OrderedJson counters_json(const SpeculationCounters& counters);

}  // namespace foretoken::serve
