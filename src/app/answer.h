// One answer, streamed: prompt ids through Generation and the detokeniser to a sink, with stop strings and Ctrl-C. Shared by run, chat and demo.
#pragma once

#include <functional>
#include <string>

#include "app/loaded_model.h"
#include "app/prompt.h"
#include "decode/generation.h"
#include "qualify/trace.h"

namespace foretoken::app {

struct Answer {
  std::string text;       // without reasoning; unsplit in raw mode
  std::string reasoning;
  std::vector<TokenId> ids;
  FinishReason reason = FinishReason::kNone;
  uint64_t seed = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, reasoning_tokens = 0;
  CycleTiming timing;
  double prefill_s = 0;
  SpeculationCounters counters;
  std::vector<std::string> dormant;  // drafters that had nothing to say, one sentence each
};

enum class AnswerPart : uint8_t { kReasoning, kText };
// `drafted`: who proposed the token that completed this piece of text, or nobody.
using AnswerSink = std::function<void(AnswerPart part, std::string_view text, std::optional<Route> drafted)>;

struct AnswerRequest {
  std::vector<TokenId> prompt;     // whole prompt; its beginning may already be in the lane
  int64_t cached = 0;              // leading prompt tokens that the lane already holds
  SamplingOptions sampling;
  bool split_reasoning = false;    // the prompt opened <think>: text up to </think> is reasoning
  Speculation speculation = {};    // nothing: plain decoding
  TokenRules* rules = nullptr;     // must outlive the answer
  Trace* trace = nullptr;          // gets the prompt's and the cycles' spans; may be null
};

// A thinking budget, and the JSON Schema of a file that the answer must follow (empty: none). Null when there are no rules.
Result<std::shared_ptr<TokenRules>> answer_rules(const LoadedModel& model, const ThinkingChoice& thinking, const std::string& schema_file, bool in_reasoning);

// Set by Ctrl-C while an answer runs; the answer then ends as cancelled, keeping what was generated.
void watch_interrupts();
bool interrupted();
void clear_interrupt();

// `tokenizer` may be null: then there is no text, and stop strings are an error.
Result<Answer> generate_answer(LoadedModel& model, LaneState& lane, const Tokenizer* tokenizer, AnswerRequest request,
                               const CommonOptions& options, const AnswerSink& sink);

// `piece` with the drafter's colour on a terminal (underlined too: colour is not the only sign); plain when nobody drafted it.
std::string marked(std::string_view piece, std::optional<Route> drafted, bool dim = false);

// True when `prompt` ends inside an opened <think> block.
bool opens_reasoning(const Tokenizer& tokenizer, std::span<const TokenId> prompt);

}  // namespace foretoken::app
