// Request: what somebody wants answered, and what the engine reports of it while it runs. Plain data with token ids; text, HTTP and
// grammars reach the engine only through `rules`, `ends` and `events`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "decode/rules.h"
#include "decode/sequence.h"

namespace foretoken {

using RequestId = uint64_t;

// How a request ended.
struct RequestResult {
  FinishReason reason = FinishReason::kNone;
  std::optional<Error> error;       // then the answer ended early, and what was emitted stands
  int64_t prompt_tokens = 0, answer_tokens = 0;
  int64_t cached_tokens = 0;        // prompt tokens whose rows were not computed
  std::string cache_note;           // why no more: "no earlier prompt begins like this", "differs from an earlier prompt at token 812", ...
  int preemptions = 0;
  double queue_s = 0;               // until it had a lane
  double prefill_s = 0;             // from then on until its first token
  double total_s = 0;
  CycleTiming decode;
  SpeculationCounters counters;
  std::vector<std::string> dormant; // Speculator::dormant
};

// Valid during the call.
struct RequestEvent {
  enum class Kind : uint8_t { kProgress, kTokens, kFinished };
  Kind kind;
  RequestId id = 0;
  // kProgress: prompt tokens that are done, restored ones included, of how many. Never falls, whatever is suspended; all of them before the
  // first token.
  int64_t prompt_done = 0, prompt_total = 0, cached_tokens = 0;
  // kTokens: sequence->tokens()[first, first + count) are new; also Sequence::drafted_by and Sequence::logprobs of them.
  const Sequence* sequence = nullptr;
  size_t first = 0, count = 0;
  // kFinished: the last event.
  const RequestResult* result = nullptr;
};

struct Request {
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  int64_t max_tokens = 256;
  std::vector<TokenId> stop_tokens;        // each ends the answer and is part of its ids
  LogprobsWanted logprobs;
  // Lengths of prefixes of `prompt` that later prompts are likely to share: ends of the turns, the place before the generation suffix.
  std::vector<int64_t> boundaries;
  bool speculate = true;
  std::vector<Route> routes;               // that may draft; empty: all there are
  std::optional<SpeculationOptions> speculation;  // instead of the engine's
  int priority = 0;                        // higher goes first, and is preempted last
  std::optional<TimePoint> deadline;       // not finished by then: ended with an error

  // Called on the engine's thread.
  std::unique_ptr<TokenRules> rules;       // may be null
  std::function<bool(TokenId)> ends;       // with each emitted token; true ends the answer with it (stop strings). May be empty
  std::function<void(const RequestEvent&)> events;  // may cancel or submit requests, not run the engine
};

}  // namespace foretoken
