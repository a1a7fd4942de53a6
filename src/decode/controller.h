// Controller: how many rows, and whose guesses. Every cycle it chooses the plan with the most expected tokens per measured second:
// acceptance is learnt from every cycle, conditioned on the drafts' own confidence; costs are measured and kept per living model. Pure:
// it is told the seconds, touches no tensor and no token, and nothing it does can change what is emitted.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "decode/calibration.h"
#include "decode/proposal.h"

namespace foretoken {

enum class VerifyMode : uint8_t { kAuto, kChain, kLive, kTree };
std::string_view verify_mode_name(VerifyMode mode);                 // "auto", "chain", "live", "tree"
Result<VerifyMode> parse_verify_mode(std::string_view name);

// Deepest chain of the native head.
inline constexpr int kMtpDepth = 7;

struct SpeculationOptions {
  VerifyMode verify = VerifyMode::kAuto;
  int width = 0;               // proposed nodes per cycle; 0: the controller's choice. With a single drafter it pins every cycle
  float live_threshold = -1;   // live prefix: least cumulative confidence of a row; negative: by expected gain, 0.1 when pinned
};

// Seconds as a function of a count (rows, steps): values at fixed counts, linear in between, learnt from measurements at any count.
// Once a count is well known, a change there moves the others half as far, because most changes of speed are the machine's and not
// the count's.
class CostCurve {
 public:
  CostCurve();
  bool known() const { return largest_ > 0; }
  bool known(int count) const;  // measured at this very count, or close by
  int largest() const { return largest_; }  // count that was measured
  double at(int count) const;   // 0 when nothing is known
  void observe(int count, double seconds);
  void weaken();                // keeps the values, trusts them little

 private:
  struct Knot {
    int count;
    double seconds = 0, weight = 0;  // weight 0: never measured
  };
  std::vector<Knot> knots_;  // ascending
  int largest_ = 0;
};

// How much a route's drafts are worth before one is made: expected accepted tokens of its best n nodes.
struct RouteStatistics {
  std::array<float, kMaxNodes + 1> value{};  // value[n], of calibrated estimates
  float drafts = 0;                          // how many it averages
  float accepted = 0, predicted = 0;         // decayed sums over verified nodes
  float wins = 0, cycles = 0;                // share of cycles with its draft that beat plain decoding, decayed; how many it averages
  float truth() const { return (accepted + 5.0f) / (predicted + 5.0f); }
  // Worth credit at the beginning of an answer: it has not been tried enough, or it wins at times.
  bool trusted() const { return young() || wins > 0.1f; }
  bool young() const { return cycles < 6; }

  void observe_draft(std::span<const float> cumulative_value, float least_step);
  void observe_outcome(float accepted_nodes, float predicted_nodes);
  void observe_cycle(bool won);
  // The acceptance per step that, the same at every step of a chain, gives value[4].
  static float per_step(float value_of_four);
};

// What one living model object has taught. Owned beside the model and shared by its lanes and requests; never outlives the model, so a
// new model begins with nothing.
class SpeculationMemory {
 public:
  // Seconds of one pass of `rows` rows of `lanes` lanes over `context` committed tokens each, and of a draft of `steps` steps.
  double verify_seconds(int rows, int64_t context, int lanes = 1) const;
  bool verify_known(int rows, int64_t context, int lanes = 1) const;
  int largest_verified(int64_t context, int lanes = 1) const;
  double draft_seconds(Route route, int steps, int64_t context) const;
  // Seconds to work off `rows` that wait in front of a draft, beyond the few of every cycle.
  double backlog_seconds(Route route, int rows) const;
  void observe_verify(int rows, int64_t context, double seconds, int lanes = 1);
  void observe_draft(Route route, int steps, int64_t context, double seconds);
  void observe_backlog(Route route, int rows, double seconds);

  // What answers whose routes had all lost before saved up for trying one again: seconds. And how patiently: cycles of all answers.
  double savings = 0;
  int64_t cycle = 0;
  struct Patience {
    int64_t last = 0;
    int64_t wait = 0;
  };
  std::array<Patience, kRoutes> patience{};

  Calibration calibration;
  std::array<RouteStatistics, kRoutes> routes;

 private:
  static int bucket(int64_t context);
  static int bucket(int64_t context, int lanes);
  static const CostCurve* find(const std::map<int, CostCurve>& curves, int bucket);
  static CostCurve& obtain(std::map<int, CostCurve>& curves, int bucket);
  std::map<int, CostCurve> verify_;                     // by context bucket
  std::array<std::map<int, CostCurve>, kRoutes> draft_;
  std::array<double, kRoutes> backlog_row_{};           // seconds of one row; 0: never measured
};

// What to draft this cycle.
struct DraftPlan {
  bool free = false;        // drafts that cost nothing to make (copies, runs of the grammar) may be used
  bool model = false;       // run the model drafter `route`
  Route route = Route::kMtp;
  int depth = 0, nodes = 0; // of the model draft
  bool tree = false;
  float floor = 0;          // cumulative probability below which a guess is of no use
  bool probe = false;
};

// Who shares the pass with a lane, as far as is known when it is planned.
struct OtherLanes {
  int lanes = 0;
  int rows = 0;        // theirs
  double tokens = 0;   // that they are expected to bring
};

struct CycleLimits {
  int depth = 0;            // tokens that may still be proposed before the answer's last one
  int nodes = kMaxNodes;
  int64_t context = 0;      // committed tokens
  OtherLanes others;
  std::array<int, kRoutes> backlog{};  // rows that wait in front of a route's draft
};

// What is drafted already, for nothing: the grammar's run, if there is one, and copies.
struct FreeDraft {
  Route route = Route::kCopy;    // whose the best of it is
  std::span<const float> value;  // value[n]: expected accepted tokens of the best n nodes; empty: no draft
  int run = 0;                   // tokens of the grammar's run, behind which a model drafter goes on
  float run_probability = 1;     // that all of it comes
};

// The pass of a cycle: its rows over all lanes, and its seconds without the drafts (those of the whole cycle).
struct CycleCost {
  int rows = 1, lanes = 1;
  double seconds = 0;
  bool learn = true;  // whether the seconds are to be learnt: once per pass
};

struct CycleOutcome {
  int64_t context = 0;
  int rows = 1;                  // verified, the anchor's included; of this lane
  int tokens = 1;                // emitted
  bool drafted = false;          // the model drafter ran
  Route route = Route::kMtp;
  int steps = 0;                 // its draft's depth
  int backlog = 0;               // rows that it worked off besides, where draft_s tells what they cost
  bool draft_timed = true;       // draft_s is of that draft alone (no backlog of prompt or plain cycles in it)
  double draft_s = 0;
  CycleCost pass;
};

// A drafter at hand, and the deepest branch it proposes.
struct RouteOffer {
  Route route;
  int deepest;
};

class Controller {
 public:
  // `memory` must outlive the controller.
  Controller(SpeculationMemory& memory, const SpeculationOptions& options, std::span<const RouteOffer> offers);

  // One drafter, the grammar's runs beside it or not, and a width: every cycle is the same plan, and the clock decides nothing.
  bool pinned() const { return pinned_; }
  // Chooses before the model drafter runs.
  DraftPlan plan(const CycleLimits& limits, const FreeDraft& free);
  // How many nodes of `proposal` (best first) are worth a row.
  int cut(const Proposal& proposal, const CycleLimits& limits) const;

  const Calibration& calibration() const { return calibration_; }
  void observe_guess(Route route, float estimate, int rank, bool hit);
  // The values of a route's draft: value[n] = sum of the calibrated cumulative probabilities of its best n nodes, value[0] = 0.
  void observe_draft(Route route, std::span<const float> value);
  void observe_nodes(Route route, float accepted, float predicted);
  void observe(const CycleOutcome& outcome);

 private:
  struct Candidate {
    bool model;
    Route route;
    int depth, nodes;
    double gain;
  };
  // Seconds that `rows` rows of this lane add to the pass, and its share of a pass of plain lanes.
  double added_seconds(int rows, const CycleLimits& limits) const;
  double plain_share(const CycleLimits& limits) const { return plain_share(1 + limits.others.lanes, limits.context); }
  double plain_share(int lanes, int64_t context) const { return memory_.verify_seconds(lanes, context, lanes) / lanes; }
  int widest(const CycleLimits& limits) const;        // nodes whose pass is not far beyond what was measured
  void open_credit(int64_t context, double plain);
  bool trusted(Route route, int64_t context, double plain) const;
  // Whether `seconds` more than plain decoding may be bet on a route's guesses.
  bool affordable(Route route, double seconds, double plain) const;
  bool saved_enough(Route route, double price, double plain) const;  // for trying a route that has always lost
  double rate_here(const CycleLimits& limits) const;  // tokens per second of the best plan for text like this
  int deepest(Route route) const { return deepest_[static_cast<size_t>(route)]; }
  bool allowed(Route route) const { return allowed_[static_cast<size_t>(route)]; }
  bool trees() const { return options_.verify == VerifyMode::kAuto || options_.verify == VerifyMode::kTree; }
  DraftPlan pinned_plan(const CycleLimits& limits, const FreeDraft& free) const;
  // value[n] of a draft that `route` might make now.
  std::array<float, kMaxNodes + 1> expected_values(Route route) const;
  Candidate best_of(Route route, const CycleLimits& limits, const FreeDraft& free, double rate) const;

  SpeculationMemory& memory_;
  SpeculationOptions options_;
  std::array<bool, kRoutes> allowed_{};
  std::array<int, kRoutes> deepest_{};
  bool pinned_ = false;
  Calibration calibration_;
  std::array<RouteStatistics, kRoutes> routes_;
  float ease_ = 1;  // exponent on acceptances: below 1 where the text is easier than what the memory averages

  double rate_ = 0;                  // tokens per second, as of this cycle's plan
  double recent_tokens_ = 0, recent_seconds_ = 0;  // decayed sums over the last cycles
  // Seconds that may still be lost against plain decoding; at first a few passes or, where every route has always lost, what earlier
  // answers saved.
  double credit_ = 0;
  bool has_credit_ = false, saving_ = false, tried_ = false;
  struct Guesses {
    float trials = 0, hits = 0;      // decayed, of this answer's best guesses, verified or not
    float rate() const { return hits / (trials + 1); }
  };
  std::array<Guesses, kRoutes> guesses_{};
  int64_t cycle_ = 0, last_plain_ = 0;
  struct Use {
    int64_t last = -1;               // cycle of the last draft
    int wait = 16;                   // cycles until it may be probed
  };
  std::array<Use, kRoutes> uses_;
  bool last_model_ = false;
  Route last_route_ = Route::kCopy;
  int planned_nodes_ = 0;
};

}  // namespace foretoken
