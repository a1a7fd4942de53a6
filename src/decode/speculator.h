// Speculator: the drafting half of a lane's cycle. It owns the lane's drafters and its controller, makes the proposal of a cycle, and
// learns from what the walk accepted. It never sees logits and cannot emit.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "decode/controller.h"
#include "decode/drafter.h"
#include "decode/rules.h"
#include "decode/verifier.h"

namespace foretoken {

// What happened, as `run --json` and /status report it.
struct SpeculationCounters {
  struct Of {
    int64_t cycles = 0;         // in which the drafter proposed something
    int64_t drafted = 0;        // proposals made, those dropped before verification included
    int64_t verified = 0;       // of them, rows that ran
    int64_t accepted = 0;       // of them, committed after budget and stop clamping
  };
  int64_t cycles = 0, drafted = 0, verified_rows = 0, accepted = 0;  // verified_rows includes the anchors
  std::array<Of, kRoutes> by_drafter{};
  std::map<std::string, int64_t> plans;  // cycles by plan: "plain", "copy", "mtp", "dflash", "dflash tree", "dflash+grammar", ...

  void add(const SpeculationCounters& other);
  const Of& of(Route route) const { return by_drafter[static_cast<size_t>(route)]; }
  double tokens_per_cycle() const { return cycles > 0 ? static_cast<double>(accepted + cycles) / static_cast<double>(cycles) : 0; }
};

// Where a cycle begins.
struct Situation {
  int64_t context = 0;      // committed tokens; the anchor has this sequence index
  TokenId anchor = -1;
  int64_t budget = 0;       // tokens the answer may still take
  int max_nodes = kMaxNodes;
  const SamplingParams* sampling = nullptr;
  const TokenCounts* counts = nullptr;
  TokenRules* rules = nullptr;  // may be null
};

class Speculator {
 public:
  // `clock` must outlive it, and `memory` too (null: what is learnt ends with this object).
  Speculator(std::vector<std::unique_ptr<Drafter>> drafters, const SpeculationOptions& options, SpeculationMemory* memory,
             const Clock& clock);

  // Gives the drafters away; nothing can be proposed after that.
  std::vector<std::unique_ptr<Drafter>> release_drafters() { return std::move(drafters_); }

  bool needs_hidden() const { return needs_hidden_; }
  std::span<const int> tap_layers() const { return tap_layers_; }

  void restart(std::span<const TokenId> history);
  void observe(const Committed& committed);
  // The drafters' memories of the committed tokens as bytes, for the prefix cache; `restore` is `restart` with them. A drafter whose part is
  // absent or does not fit starts without it. Guesses may differ after a restore, answers cannot.
  std::vector<std::byte> save();
  void restore(std::span<const TokenId> history, std::span<const std::byte> saved);

  // A cycle's proposal in three steps, so that the model drafts of several lanes run together: what is worth drafting, the drafts of all
  // `lanes` that want one, and the proposal, which is valid until the next cycle and may be empty (plain decoding). `others` shares the
  // pass; it may have become better known in between.
  void prepare(const Situation& situation, const OtherLanes& others);
  static void draft(std::span<Speculator* const> lanes);
  const Proposal& complete(const OtherLanes& others);
  // All three for one lane alone.
  const Proposal& propose(const Situation& situation);
  // What the walk made of it.
  void settle(const Accepted& accepted, const CycleCost& cost);

  const SpeculationCounters& counters() const { return counters_; }
  // Seconds of the last proposal's model draft.
  double draft_seconds() const { return draft_s_; }
  // One sentence for each drafter that has proposed nothing for 64 cycles.
  std::vector<std::string> dormant() const;

 private:
  Drafter* drafter(Route route) const;
  void draft_free(Route route);
  void take_draft(Draft draft, double seconds, bool timed, bool alone);
  void read_model_draft();
  void calibrate(Draft& draft) const;
  std::vector<float> values(std::span<const Draft> drafts, const MergeLimits& limits) const;
  MergeLimits merge_limits(const CycleLimits& limits) const;
  void count(const Proposal& whole, int verified);
  void learn(const Accepted& accepted);

  std::vector<std::unique_ptr<Drafter>> drafters_;
  SpeculationOptions options_;
  std::unique_ptr<SpeculationMemory> own_memory_;
  Controller controller_;
  const Clock& clock_;
  bool needs_hidden_ = false;
  std::vector<int> tap_layers_;

  CycleLimits limits_;
  DraftPlan plan_;
  DraftRequest request_;
  TokenRules* rules_ = nullptr;
  std::vector<Draft> free_;          // of the drafters without cost, calibrated; the grammar's first
  int run_ = 0;                      // tokens of the grammar's own draft
  std::vector<Draft> raw_, drafts_;  // as the drafters estimate, and calibrated; the model's first
  Proposal proposal_;
  double draft_s_ = 0;
  int draft_steps_ = 0, backlog_ = 0;
  bool draft_timed_ = true;
  std::array<int64_t, kRoutes> idle_{};  // cycles without a proposal
  SpeculationCounters counters_;
};

}  // namespace foretoken
