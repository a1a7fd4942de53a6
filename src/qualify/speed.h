// Speed: plain decoding and every route on a cohort, alternating in one process, as raw rows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "decode/draft_models.h"
#include "qualify/measured_answer.h"
#include "qualify/trace.h"

namespace foretoken {

struct BenchPrompt {
  std::string kind;  // its class
  std::vector<TokenId> ids;
  int64_t tokens = 0;  // longest answer
};

struct SpeedArm {
  std::string name;
  bool plain = false;
  std::vector<Route> routes;  // empty: all there are
  SpeculationOptions options;
};
// "plain", "auto", or "ROUTE MODE WIDTH" such as "mtp chain 3".
Result<SpeedArm> parse_speed_arm(const std::string& text);
// Whether `drafts` have what the arm needs; a sentence if not.
std::string missing_for(const SpeedArm& arm, const DraftModels& drafts);

using RowSink = std::function<void(Json)>;

struct SpeedOptions {
  std::vector<BenchPrompt> prompts;
  std::vector<SpeedArm> arms;  // the first is what the others are held against
  int blocks = 4, warm_blocks = 1;
  SamplingParams sampling;
  std::vector<TokenId> stop_tokens;
  int prefill_chunk = 512;
  Trace* trace = nullptr;  // gets a track an arm; may be null
};
// Each prompt meets all arms in mirrored order (trial.h) before the next prompt's turn. `progress(done, total)` may
// return false to stop.
Status measure_speed(TargetModel& target, DraftModels& drafts, const Clock& clock, const SpeedOptions& options,
                     const RowSink& rows, const std::function<bool(int, int)>& progress);

}  // namespace foretoken
