// What the parts of the certificate share: the subject, plain answers once they are computed, and where finished cells go. Internal to
// this room.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "qualify/certify.h"

namespace foretoken {

using Tokens = std::vector<TokenId>;

// A small generator for shapes, guesses and moments: replayable, and nothing to do with sampling.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2654435761u + 1) {}
  uint32_t below(uint32_t bound) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>((state_ >> 33) % bound);
  }

 private:
  uint64_t state_;
};

struct PlainAnswer {
  Tokens tokens;
  int64_t length = 0;                     // of the lane at the end
  std::map<int64_t, std::string> states;  // hash of the lane by its length; the prompt's end and the answer's end are always there
};

enum class States : uint8_t { kEnds, kEvery };  // lengths whose hash a plain answer keeps

class Certifier {
 public:
  Certifier(const CertifySubject& subject, const CertifyOptions& options, const std::function<void(const CertifyCell&)>& progress)
      : subject_(subject), options_(options), progress_(progress) {}

  TargetModel& target() { return subject_.target; }
  TargetModel& engine_target() { return subject_.engine_target; }
  DraftModels& drafts() { return subject_.drafts; }
  const CertifyOptions& options() const { return options_; }
  const SteadyClock& clock() const { return clock_; }
  int vocab() const { return subject_.target.config().vocab; }
  const Tokens& prompt(size_t i) const { return options_.prompts[i]; }
  size_t prompts() const { return options_.prompts.size(); }
  // The routes that the bundle offers.
  std::vector<Route> routes() const;

  struct Outcome {
    PlainAnswer answer;
    SpeculationCounters counters;
  };
  // One answer of `tokens` tokens on a lane of its own; end tokens do not end it, so that every cell has its length.
  Result<Outcome> answer(const Tokens& prompt, const SamplingParams& sampling, int64_t tokens, Speculation speculation, States states = States::kEnds, TokenRules* rules = nullptr);
  // The same without speculation; known once computed. Valid as long as the certifier.
  Result<const PlainAnswer*> plain(const Tokens& prompt, const SamplingParams& sampling, int64_t tokens, States states = States::kEnds);

  // Compares a speculative answer with the plain one.
  void compare(CertifyCell& cell, const PlainAnswer& expected, const Outcome& got, size_t prompt);
  bool enough(const CertifyCell& cell) const { return cell.drafted >= options_.least_drafted && cell.rejected >= options_.least_rejected; }
  // A cell that passed without enough drafts to mean anything becomes inconclusive.
  void demand_enough(CertifyCell& cell) const;

  // True once a cell failed and the caller wants no more: then `finish` ends the run through an error that certify() drops.
  bool failed() const { return options_.fail_fast && result_.certificate.verdict() == Verdict::kFail; }
  Status finish(CertifyCell cell);
  void leave_out(std::string reason) { result_.absent.push_back(std::move(reason)); }
  CertifyResult take() { return std::move(result_); }

 private:
  CertifySubject subject_;
  const CertifyOptions& options_;
  const std::function<void(const CertifyCell&)>& progress_;
  SteadyClock clock_;
  std::map<std::tuple<Tokens, float, float, uint64_t, int64_t, States>, PlainAnswer> plain_;
  CertifyResult result_;
};

// Greedy, or top-p 0.95 of the best 20 with a seed of its own.
SamplingParams certify_sampling(float temperature, uint64_t seed);
// The pinned plan of one route: a width, and a threshold where the live prefix wants one.
SpeculationOptions pinned_plan(Route route, VerifyMode mode);
// Notes the first failure of a cell.
void fail(CertifyCell& cell, std::string detail);

// The parts. Each ends its cells through Certifier::finish.
Status certify_rows(Certifier& c);
Status certify_chunks(Certifier& c);
Status certify_ids(Certifier& c);
Status certify_grammar(Certifier& c);  // of the ids
Status certify_forced(Certifier& c);
Status certify_lanes(Certifier& c);
Status certify_preemption(Certifier& c);
Status certify_restore(Certifier& c);

}  // namespace foretoken
