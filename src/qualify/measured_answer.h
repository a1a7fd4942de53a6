// One answer, watched cycle by cycle: what a raw row of an answer holds. The watching lies between cycles and is in no
// figure.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/json.h"
#include "decode/generation.h"

namespace foretoken {

struct MeasuredAnswer {
  std::vector<TokenId> tokens;
  double prefill_s = 0;
  CycleTiming timing;
  SpeculationCounters counters;
  // By cycle.
  struct Cycle {
    double us = 0, draft_us = 0, verify_us = 0, commit_us = 0;
    int rows = 1, depth = 0, accepted = 0, plan = 0;  // depth: of the deepest proposed token
    TimePoint begin;                                  // not in the rows
  };
  std::vector<Cycle> cycles;
  std::vector<std::string> plans;  // names by Cycle::plan

  // Fields of the row that follow from the answer: tokens, ids (a digest), decode_us, counts and the columns of the
  // cycles. Those hold whole microseconds of the phases and of the rest (host_us), whose sum is the cycle: tenths of
  // them and the sum beside its parts would triple the published bytes and tell nothing.
  void fill(Json& row) const;
};

// Adds a cycle to `answer` for each step of `generation` that it is told of.
class CycleWatch {
 public:
  CycleWatch(const Generation& generation, MeasuredAnswer& answer)
      : generation_(generation), answer_(answer), counted_(generation.counters()), timed_(generation.timing()) {}
  void stepped(TimePoint begin);
  void finish();  // fills the rest of the answer

 private:
  const Generation& generation_;
  MeasuredAnswer& answer_;
  SpeculationCounters counted_;
  CycleTiming timed_;
};

// `history`: what the lane holds already.
Result<MeasuredAnswer> measure_answer(TargetModel& target, LaneState& lane, std::span<const TokenId> prompt,
                                      std::span<const TokenId> history, const GenerationOptions& options,
                                      Speculation speculation, const Clock& clock);

// A name for a list of tokens that shows nothing of it: 16 hexadecimal digits.
std::string digest_of(std::span<const TokenId> tokens);

}  // namespace foretoken
