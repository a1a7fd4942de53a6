// What the service asks of the engine and hears from it, whatever lies between them: a process (supervisor.h), or a test's fake.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "decode/sampling.h"

namespace foretoken::serve {

// What the answer must look like: text/grammar.h.
struct GrammarSpec {
  enum class Kind : uint8_t { kJsonObject, kJsonSchema, kRegex, kTools };
  Kind kind = Kind::kJsonObject;
  OrderedJson schema;        // kJsonSchema: the schema; kTools: the list of tools that may be called
  std::string regex;
  bool call_required = true; // kTools: the answer is calls; otherwise text may come instead
  bool parallel = true;      // kTools: several calls
};

// One answer wanted.
struct Submission {
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  int64_t max_tokens = 256;
  bool ignore_eos = false;
  LogprobsWanted logprobs;
  std::vector<int64_t> boundaries;       // Request::boundaries
  bool speculate = true;
  int priority = 0;
  double timeout_s = 0;                  // 0: none
  std::vector<std::string> stop;         // texts that end the answer; not in reasoning
  bool raw = false;                      // no reasoning is told apart: completions
  bool in_reasoning = false;             // the prompt ends inside <think>
  std::optional<int64_t> thinking_budget;
  std::optional<GrammarSpec> grammar;
};

struct EngineEvent {
  enum class Kind : uint8_t { kProgress, kTokens, kFinished, kFailed };
  Kind kind = Kind::kTokens;
  // kProgress: prompt tokens read, of how many, and restored ones.
  int64_t prompt_done = 0, prompt_total = 0, cached_tokens = 0;
  // kTokens. drafted[i]: the route that proposed tokens[i], or -1. logprobs: empty when not wanted.
  std::vector<TokenId> tokens;
  std::vector<int8_t> drafted;
  std::vector<TokenLogprobs> logprobs;
  // kFinished.
  std::string reason;         // "stop", "length", "cancelled"
  int64_t prompt_tokens = 0, answer_tokens = 0;
  OrderedJson facts;          // {"speculation", "timing", "cache_note"}
  // kFailed: the last event too.
  Error error{ErrorCode::kIo, ""};
  bool engine_lost = false;   // the engine died, or is not there
  bool of_grammar = false;    // the submission's grammar is what cannot be followed
};

// What the engine says of itself when it is ready.
struct EngineFacts {
  int64_t max_context = 0;
  int vocab = 0, lanes = 0;
  std::string speculation;    // "dflash", "mtp", "copy", "grammar" or "off"
  OrderedJson identity;       // for /status: model, build, backend, numerics, speculation with why, memory plan
};

using EngineRequestId = uint64_t;

class EngineLink {
 public:
  virtual ~EngineLink() = default;
  // Null while it is not ready; `why_not` says in which state it is.
  virtual const EngineFacts* ready() const = 0;
  virtual std::string why_not() const = 0;
  // Events come later, on the loop's thread, until kFinished or kFailed. Never fails at once.
  virtual EngineRequestId submit(Submission submission, std::function<void(const EngineEvent&)> events) = 0;
  // The request's last event may still come.
  virtual void cancel(EngineRequestId id) = 0;
  // The engine's own status, fresh where it answers in time.
  virtual void status(std::function<void(OrderedJson)> then) = 0;
  virtual OrderedJson supervision() const = 0;  // restarts, last reason
};

}  // namespace foretoken::serve
