// An engine under certification: every request carries the plain answer that it must give, and every token, and every state of its lane
// that plain decoding passes through too, is held against it while it runs. Internal to this room.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "qualify/certifier.h"

namespace foretoken {

// One decode cycle as its drafters saw it.
struct CycleTrace {
  int64_t length = 0;    // of the lane when it began
  Tokens proposed;       // in the order of the tree's nodes
  int64_t accepted = 0;  // of them
  bool operator==(const CycleTrace&) const = default;
};

// What is asked, and where the comparison is noted.
struct Question {
  CertifyCell& cell;
  const PlainAnswer& expected;   // at least as long as the request's answer
  std::string name;              // in reports
  Request request;               // without events
  int64_t cancel_after = 0;      // tokens; 0: never
};

struct TrialAnswer {
  RequestId id = 0;
  Tokens tokens;
  std::vector<CycleTrace> cycles;
  std::optional<RequestResult> result;  // once it has ended
  int64_t rows() const { return result->prompt_tokens - result->cached_tokens + result->counters.verified_rows; }
};

class EngineTrial {
 public:
  // One trial at a time: the certifier's engine target is its alone.
  EngineTrial(Certifier& c, const EngineOptions& options, DiskTier* disk = nullptr);
  ~EngineTrial();
  EngineTrial(const EngineTrial&) = delete;
  EngineTrial& operator=(const EngineTrial&) = delete;

  Engine& engine() { return *engine_; }
  // The answer fills while the engine runs; it lives as long as the trial.
  Result<const TrialAnswer*> submit(Question question);
  // One pass, and a comparison of the states of lanes that were just given.
  void step();
  Status run();
  // A request alone, whose rows are counted in forward().
  Result<const TrialAnswer*> ask(Question question);
  // Running requests, in order of arrival.
  std::vector<RequestId> running() const;
  // Most that ran at once.
  size_t widest() const { return widest_; }

 private:
  struct Watch;
  void hear(Watch& watch, const RequestEvent& event);
  void compare_state(Watch& watch);
  void end(Watch& watch, const RequestResult& result);

  Certifier& c_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Watch>> watches_;
  size_t widest_ = 0;
};

// "token 12 is not plain decoding's", or empty: of a whole answer, or of the beginning of one.
std::string difference(const PlainAnswer& expected, std::span<const TokenId> got);
// Where two runs' drafts part; empty when they are the same, token for token.
std::string difference(std::span<const CycleTrace> uninterrupted, std::span<const CycleTrace> restored);

}  // namespace foretoken
