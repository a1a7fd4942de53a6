// Expected tokens per measured second. With `rate` the tokens per second that the best plan makes of text like this, a plan of cost c
// that yields e tokens is worth e - rate * c, and a row belongs in it as long as its own probability exceeds rate times its own cost.
#include "decode/controller.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace foretoken {
namespace {

constexpr double kCostStep = 0.2;          // least weight of a new measurement
constexpr double kMuchFaster = 0.7, kFasterStep = 0.7;  // logarithm of a fall that is believed at once, and how much of it
constexpr double kOutlier = 3.0;           // a measurement counts as at most this many times its expectation
constexpr double kSharedChange = 0.5;      // how much of a change other counts share
constexpr double kSettledWeight = 6;       // measurements after which a count is well known
constexpr double kPriorRowCost = 0.05;     // of one more row, in passes of one row, before any was measured
constexpr double kPriorStepCost = 0.15;    // of one draft step, likewise: cheap to be wrong once
constexpr float kPriorAcceptance = 0.7f;   // of a first guess by a drafter that was never tried
constexpr double kLossShare = 0.009;       // of the time that may be lost against plain decoding
constexpr double kFirstCredit = 3.0;       // plain passes that an answer may lose at first
constexpr double kSmallBet = 0.06;         // plain passes that guesses which keep coming true may risk without credit
constexpr double kMostDebt = 1.0;          // plain passes below nothing at which small bets end as well
constexpr float kGuessDecay = 0.9f;
constexpr float kEnoughGuesses = 5, kHopeless = 0.2f;  // guesses of which none came true lately
constexpr double kPriorBacklogRow = 0.02;  // plain passes a row that waits in front of a draft takes
constexpr int kUsualBacklog = 4;           // rows that are part of a draft's own cost
constexpr int64_t kFirstPatience = 256, kMostPatience = 8192;  // cycles of all answers between trials of a route that always lost
constexpr double kMostCredit = 12.0;          // plain passes
constexpr double kEnoughSaved = 0.9;         // of kMostCredit, for trying a route whatever it seems to cost
constexpr double kRecent = 0.75;          // of what the cycles before count, per cycle
constexpr double kHysteresis = 0.03;       // tokens a change of plan must promise
constexpr float kForget = 0.9f;           // of what a text showed of a route, per cycle without it
constexpr float kEaseStep = 0.2f;
constexpr float kMostTruth = 1.0f;          // recent luck beyond the estimates that is believed
constexpr int kFirstWait = 6, kLongestWait = 512;  // cycles between probes of a route that loses
constexpr int64_t kPlainAge = 96;          // cycles after which plain decoding is timed again

}  // namespace

std::string_view verify_mode_name(VerifyMode mode) {
  switch (mode) {
    case VerifyMode::kAuto: return "auto";
    case VerifyMode::kChain: return "chain";
    case VerifyMode::kLive: return "live";
    case VerifyMode::kTree: return "tree";
  }
  return "";
}

Result<VerifyMode> parse_verify_mode(std::string_view name) {
  for (const VerifyMode mode : {VerifyMode::kAuto, VerifyMode::kChain, VerifyMode::kLive, VerifyMode::kTree})
    if (verify_mode_name(mode) == name) return mode;
  return Error{ErrorCode::kUsage, "--verify " + std::string(name) + ": choose auto, chain, live or tree"};
}

// ---- Costs

CostCurve::CostCurve() {
  for (const int count : {1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 65}) knots_.push_back({.count = count});
}

bool CostCurve::known(int count) const {
  return std::any_of(knots_.begin(), knots_.end(),
                     [count](const Knot& k) { return k.weight > 0 && std::abs(k.count - count) * 4 <= count; });
}

double CostCurve::at(int count) const {
  const Knot *below = nullptr, *above = nullptr, *first = nullptr;
  for (const Knot& k : knots_) {
    if (k.weight == 0) continue;
    if (first == nullptr) first = &k;
    if (k.count <= count) below = &k;
    if (k.count >= count && above == nullptr) above = &k;
  }
  if (first == nullptr) return 0;
  if (below != nullptr && above != nullptr) {
    if (below == above) return below->seconds;
    return below->seconds + (above->seconds - below->seconds) * (count - below->count) / (above->count - below->count);
  }
  if (below == nullptr) {  // fewer than was ever measured: from the prior slope
    return above->seconds * (1 + kPriorRowCost * (count - 1)) / (1 + kPriorRowCost * (above->count - 1));
  }
  const double slope = below != first ? std::max(0.0, (below->seconds - first->seconds) / (below->count - first->count))
                                      : first->seconds * kPriorRowCost / (1 + kPriorRowCost * (first->count - 1));
  return below->seconds + slope * (count - below->count);
}

void CostCurve::observe(int count, double seconds) {
  if (!(seconds > 0) || count < 1) return;
  const double expected = at(count);
  size_t above = 0;
  while (above + 1 < knots_.size() && knots_[above].count < count) ++above;
  const bool exact = knots_[above].count <= count || above == 0;
  const size_t below = exact ? above : above - 1;
  const double share = exact ? 1.0 : double(count - knots_[below].count) / (knots_[above].count - knots_[below].count);
  if (std::min(knots_[below].weight, knots_[above].weight) >= 2) seconds = std::min(seconds, kOutlier * expected);
  const double change = expected > 0 ? std::log(seconds / expected) : 0;
  const bool falls = change < -kMuchFaster;  // a busy machine makes slower, nothing makes much faster: what was known was from a bad hour
  double moved = 0;
  const auto move = [&](Knot& knot, double part) {
    if (part <= 0) return;
    // A knot that was never measured starts where the curve puts it. The first run of a count is often a slow one.
    if (knot.weight == 0) knot.seconds = expected > 0 ? at(knot.count) : seconds;
    const double step = part * std::max(falls ? kFasterStep : kCostStep, 1 / (knot.weight + 1));
    knot.seconds *= std::exp(step * change);
    if (falls || knot.weight >= kSettledWeight) moved += part * step * change;
    knot.weight += part * (knot.weight == 0 ? 0.5 : 1.0);
  };
  move(knots_[below], exact ? 1.0 : 1 - share);
  if (!exact) move(knots_[above], share);
  largest_ = std::max(largest_, count);
  if (moved == 0) return;
  for (size_t i = 0; i < knots_.size(); ++i)
    if (i != below && i != above) knots_[i].seconds *= std::exp((falls ? 1 : kSharedChange) * moved);
}

void CostCurve::weaken() {
  for (Knot& knot : knots_) knot.weight = std::min(knot.weight, 0.5);
}

int SpeculationMemory::bucket(int64_t context) { return std::bit_width(static_cast<uint64_t>(std::max<int64_t>(0, context)) >> 9); }

// Passes of several lanes cost more than as many rows of one, so they are kept apart.
int SpeculationMemory::bucket(int64_t context, int lanes) {
  return bucket(context) + 64 * std::bit_width(static_cast<unsigned>(lanes - 1));
}

const CostCurve* SpeculationMemory::find(const std::map<int, CostCurve>& curves, int bucket) {
  const CostCurve* nearest = nullptr;
  int distance = 0;
  for (const auto& [at, curve] : curves)
    if (nearest == nullptr || std::abs(at - bucket) < distance) {
      nearest = &curve;
      distance = std::abs(at - bucket);
    }
  return nearest;
}

CostCurve& SpeculationMemory::obtain(std::map<int, CostCurve>& curves, int bucket) {
  const auto found = curves.find(bucket);
  if (found != curves.end()) return found->second;
  CostCurve start;
  if (const CostCurve* nearest = find(curves, bucket)) start = *nearest;
  start.weaken();
  return curves.emplace(bucket, std::move(start)).first->second;
}

double SpeculationMemory::verify_seconds(int rows, int64_t context, int lanes) const {
  const CostCurve* curve = find(verify_, bucket(context, lanes));
  return curve ? curve->at(rows) : 0;
}

bool SpeculationMemory::verify_known(int rows, int64_t context, int lanes) const {
  const CostCurve* curve = find(verify_, bucket(context, lanes));
  return curve && curve->known(rows);
}

double SpeculationMemory::draft_seconds(Route route, int steps, int64_t context) const {
  const CostCurve* curve = find(draft_[static_cast<size_t>(route)], bucket(context));
  if (curve && curve->known()) return curve->at(steps);
  return route == Route::kCopy || route == Route::kGrammar ? 0 : kPriorStepCost * verify_seconds(1, context) * (route == Route::kMtp ? steps : 2);
}

int SpeculationMemory::largest_verified(int64_t context, int lanes) const {
  const CostCurve* curve = find(verify_, bucket(context, lanes));
  return curve ? curve->largest() : 0;
}

double SpeculationMemory::backlog_seconds(Route route, int rows) const {
  const double row = backlog_row_[static_cast<size_t>(route)];
  return std::max(0, rows - kUsualBacklog) * (row > 0 ? row : kPriorBacklogRow * verify_seconds(1, 0));
}

void SpeculationMemory::observe_backlog(Route route, int rows, double seconds) {
  double& row = backlog_row_[static_cast<size_t>(route)];
  const double measured = std::max(0.0, seconds) / std::max(1, rows - kUsualBacklog);
  row = row > 0 ? row + kCostStep * (std::min(measured, kOutlier * row) - row) : measured;
}

void SpeculationMemory::observe_verify(int rows, int64_t context, double seconds, int lanes) {
  obtain(verify_, bucket(context, lanes)).observe(rows, seconds);
}

void SpeculationMemory::observe_draft(Route route, int steps, int64_t context, double seconds) {
  obtain(draft_[static_cast<size_t>(route)], bucket(context)).observe(steps, seconds);
}

void RouteStatistics::observe_draft(std::span<const float> cumulative_value, float least_step) {
  CHECK(!cumulative_value.empty());
  const float step = std::max(least_step, 1 / (drafts + 1));
  for (size_t n = 0; n < value.size(); ++n)
    value[n] += step * (cumulative_value[std::min(n, cumulative_value.size() - 1)] - value[n]);
  drafts += 1;
}

float RouteStatistics::per_step(float value_of_four) {
  float low = 0.02f, high = 0.995f;
  for (int i = 0; i < 20; ++i) {
    const float m = (low + high) / 2;
    (m * (1 + m * (1 + m * (1 + m))) < value_of_four ? low : high) = m;
  }
  return low;
}

void RouteStatistics::observe_outcome(float accepted_nodes, float predicted_nodes) {
  accepted = accepted * 0.9f + accepted_nodes;
  predicted = predicted * 0.9f + predicted_nodes;
}

void RouteStatistics::observe_cycle(bool won) {
  wins += std::max(0.03f, 1 / (cycles + 1)) * ((won ? 1.0f : 0.0f) - wins);
  cycles += 1;
}

// ---- Choices

Controller::Controller(SpeculationMemory& memory, const SpeculationOptions& options, std::span<const RouteOffer> offers)
    : memory_(memory), options_(options), calibration_(memory.calibration) {
  for (const RouteOffer& offer : offers) {
    allowed_[static_cast<size_t>(offer.route)] = true;
    deepest_[static_cast<size_t>(offer.route)] = offer.deepest;
  }
  pinned_ = options.width > 0 && (offers.size() == 1 || (offers.size() == 2 && allowed(Route::kGrammar)));
}

double Controller::added_seconds(int rows, const CycleLimits& limits) const {
  const OtherLanes& others = limits.others;
  const double together = memory_.verify_seconds(others.rows + rows, limits.context, 1 + others.lanes);
  return others.rows == 0 ? together : std::max(0.0, together - memory_.verify_seconds(others.rows, limits.context, 1 + others.lanes));
}

int Controller::widest(const CycleLimits& limits) const {
  return std::max(1, 2 * memory_.largest_verified(limits.context, 1 + limits.others.lanes) + 1 - limits.others.rows);
}

// All the answer's tokens have to be made, so what a token saved now is worth is what a token costs hereabouts, under the best plan for
// text like this; a rate reached over other text says nothing.
double Controller::rate_here(const CycleLimits& limits) const {
  const OtherLanes& others = limits.others;
  const auto pass = [&](int rows) { return memory_.verify_seconds(others.rows + rows, limits.context, 1 + others.lanes); };
  double best = (others.tokens + 1) / pass(1);
  for (const Route route : {Route::kMtp, Route::kBlock, Route::kScripted}) {
    if (!allowed(route) || memory_.routes[static_cast<size_t>(route)].drafts == 0) continue;
    const auto values = expected_values(route);
    const int most = std::min({limits.nodes, kMaxNodes, widest(limits)});
    for (int n = 1; n <= most; ++n) {
      const double draft = memory_.draft_seconds(route, std::min(n, deepest(route)), limits.context);
      best = std::max(best, (others.tokens + 1 + values[static_cast<size_t>(n)]) / (draft + pass(1 + n)));
    }
  }
  return best;
}

// Whether a route may use an answer's first credit: it wins at times, and it does not seem to cost more than that. A first draft is often a
// slow one, so few of them do not decide.
bool Controller::trusted(Route route, int64_t context, double plain) const {
  const RouteStatistics& known = memory_.routes[static_cast<size_t>(route)];
  return known.trusted() && memory_.draft_seconds(route, 1, context) <= (known.young() ? kMostCredit : kFirstCredit) * plain;
}

void Controller::open_credit(int64_t context, double plain) {
  if (has_credit_) return;
  has_credit_ = true;
  saving_ = true;
  for (const Route route : {Route::kMtp, Route::kBlock, Route::kScripted})
    if (allowed(route) && trusted(route, context, plain)) saving_ = false;
  credit_ = saving_ ? memory_.savings : kFirstCredit * plain;
}

bool Controller::affordable(Route route, double seconds, double plain) const {
  const Guesses& own = guesses_[static_cast<size_t>(route)];
  if (own.trials > kEnoughGuesses && own.hits < kHopeless) return false;  // whatever its estimates say
  const double risk = seconds * (1 - own.rate());
  return risk <= credit_ || (risk <= kSmallBet * plain && credit_ > -kMostDebt * plain);
}

// A route that has always lost is tried again when that was saved up, and more and more rarely. What it seemed to cost may come from a bad
// hour of the machine, and only trying tells: nearly all that can be saved is always enough.
bool Controller::saved_enough(Route route, double price, double plain) const {
  const SpeculationMemory::Patience& p = memory_.patience[static_cast<size_t>(route)];
  return !tried_ && std::min(price, kEnoughSaved * kMostCredit * plain) <= credit_ && memory_.cycle - p.last >= std::max(kFirstPatience, p.wait);
}

DraftPlan Controller::pinned_plan(const CycleLimits& limits, const FreeDraft& free) const {
  DraftPlan plan;
  plan.free = true;
  for (const Route route : {Route::kMtp, Route::kBlock, Route::kScripted})
    if (allowed(route)) {
      plan.model = true;
      plan.route = route;
    }
  plan.nodes = std::min(limits.nodes, options_.width);
  if (free.run >= std::min(limits.depth, plan.nodes)) plan.model = false;  // the grammar knows it all
  plan.depth = std::min(limits.depth, plan.nodes);
  plan.tree = options_.verify == VerifyMode::kTree;
  return plan;
}

// What this text has shown of the route lately, and otherwise what the memory averages, made easier or harder as the other routes find
// this text.
std::array<float, kMaxNodes + 1> Controller::expected_values(Route route) const {
  const RouteStatistics& own = routes_[static_cast<size_t>(route)];
  const RouteStatistics& known = memory_.routes[static_cast<size_t>(route)];
  const Use& use = uses_[static_cast<size_t>(route)];
  const float trust = own.drafts == 0 ? 0.0f
                                      : std::min(1.0f, 0.2f * own.drafts) * std::pow(kForget, static_cast<float>(cycle_ - 1 - use.last));
  std::array<float, kMaxNodes + 1> value{};
  float last = 1;
  for (size_t n = 1; n < value.size(); ++n) {
    const float typical = known.drafts > 0 ? std::max(0.0f, known.value[n] - known.value[n - 1]) : last * kPriorAcceptance;
    const float eased = std::pow(std::clamp(typical, 0.0f, 1.0f), ease_);
    value[n] = value[n - 1] + trust * (own.value[n] - own.value[n - 1]) + (1 - trust) * eased;
    last = typical;
  }
  const float truth = std::min(kMostTruth, own.drafts > 0 ? own.truth() : known.truth());
  for (float& v : value) v *= truth;
  return value;
}

// The best depth of a route's own draft, the free drafts beside it free of charge; it goes on behind the grammar's run.
Controller::Candidate Controller::best_of(Route route, const CycleLimits& limits, const FreeDraft& free, double rate) const {
  const auto values = expected_values(route);
  const bool tried = memory_.routes[static_cast<size_t>(route)].drafts > 0;
  Candidate best{true, route, 0, 0, -1e300};
  const int deepest = std::min(limits.depth, this->deepest(route));
  const int most = std::min({limits.nodes, kMaxNodes, widest(limits), tried ? kMaxNodes : 3});
  for (int n = 1; n <= most; ++n) {
    double value = values[static_cast<size_t>(n)];
    if (!free.value.empty()) {
      const auto known = [&](int nodes) { return free.value[std::min(static_cast<size_t>(nodes), free.value.size() - 1)]; };
      value = std::max<double>(value, known(n));
      if (free.run > 0 && n > free.run)
        value = std::max<double>(value, known(free.run) + free.run_probability * values[static_cast<size_t>(n - free.run)]);
    }
    const int depth = std::min(n, deepest);
    const double draft = memory_.draft_seconds(route, depth, limits.context);
    const double gain = 1 + value - rate * (draft + added_seconds(1 + n, limits));
    if (gain > best.gain) best = {true, route, depth, n, gain};
  }
  return best;
}

DraftPlan Controller::plan(const CycleLimits& limits, const FreeDraft& free) {
  planned_nodes_ = std::min(limits.nodes, options_.width > 0 ? options_.width : kMaxNodes);
  if (limits.depth <= 0 || planned_nodes_ <= 0) return {};
  if (pinned_) return pinned_plan(limits, free);
  const int lanes = 1 + limits.others.lanes;
  const double plain = added_seconds(1, limits), share = plain_share(limits);
  if (!memory_.verify_known(lanes, limits.context, lanes) || share <= 0) return {};  // nothing can be compared before one plain pass was timed
  open_credit(limits.context, share);
  // A copy or a run of the grammar sets the pace itself: rows past its best width cost more than they bring, however slow other plans are.
  const float truth = std::min(kMostTruth, routes_[static_cast<size_t>(free.route)].truth());
  double free_rate = 0;
  for (int n = 1; n < static_cast<int>(free.value.size()) && n <= planned_nodes_; ++n)
    free_rate = std::max(free_rate, (limits.others.tokens + 1 + free.value[static_cast<size_t>(n)] * truth) /
                                        memory_.verify_seconds(limits.others.rows + 1 + n, limits.context, lanes));
  if (recent_seconds_ > 0) free_rate = std::min(free_rate, recent_tokens_ / recent_seconds_);
  const double rate = rate_ = std::max(rate_here(limits), free_rate);
  CycleLimits within = limits;
  within.nodes = planned_nodes_;
  if (cycle_ - last_plain_ >= kPlainAge) return {};

  DraftPlan plan;
  plan.free = true;
  Candidate best{false, free.route, 0, 0, 1 - rate * plain};
  for (int n = 1; n < static_cast<int>(free.value.size()) && n <= within.nodes; ++n)
    if (const double pass = added_seconds(1 + n, limits), gain = 1 + free.value[static_cast<size_t>(n)] * truth - rate * pass;
        gain > best.gain && affordable(free.route, pass - plain, share))
      best = {false, free.route, n, n, gain};
  if (!last_model_) best.gain += kHysteresis;
  Candidate probe{false, Route::kCopy, 0, 0, 0};
  for (const Route route : {Route::kMtp, Route::kBlock, Route::kScripted}) {
    if (!allowed(route)) continue;
    Candidate c = best_of(route, within, free, rate);
    const Use& use = uses_[static_cast<size_t>(route)];
    const int64_t idle = use.last < 0 ? cycle_ : cycle_ - use.last;
    const double draft = memory_.draft_seconds(route, c.depth, limits.context);
    const double backlog = memory_.backlog_seconds(route, limits.backlog[static_cast<size_t>(route)]);
    const double price = draft + backlog + added_seconds(3, limits) - plain;
    if (!trusted(route, limits.context, share) && use.last < 0) {  // whatever it promises, it has not kept it
      if (saved_enough(route, price, share) && free.value.size() <= 1 && !probe.model) probe = c;
      continue;
    }
    const bool young = memory_.routes[static_cast<size_t>(route)].young();
    if (credit_ > (young ? std::min(price, kEnoughSaved * kFirstCredit * share) : price) && idle >= use.wait && (!probe.model || idle > cycle_ - uses_[static_cast<size_t>(probe.route)].last)) probe = c;
    if (!affordable(route, draft, share) || (tried_ && backlog > std::max(credit_, kSmallBet * share))) continue;
    if (last_model_ && last_route_ == route) c.gain += kHysteresis;
    if (c.gain > best.gain) best = c;
  }
  plan.probe = !best.model && probe.model && free.value.size() <= 1;
  if (plan.probe) best = probe;
  last_model_ = best.model;
  last_route_ = best.route;
  if (options_.verify == VerifyMode::kChain) planned_nodes_ = best.nodes;
  if (!best.model) return plan;
  plan.model = true;
  plan.route = best.route;
  plan.depth = std::min(limits.depth, std::max(1, best.depth));
  plan.nodes = trees() ? within.nodes : std::min(within.nodes, plan.depth);
  plan.tree = trees();
  const double row = (added_seconds(9, limits) - plain) / 8;
  const double step = best.route == Route::kMtp ? memory_.draft_seconds(best.route, 2, limits.context) -
                                                      memory_.draft_seconds(best.route, 1, limits.context)
                                                : 0;
  plan.floor = static_cast<float>(std::clamp(0.5 * rate * (row + std::max(0.0, step)), 0.005, 0.5));
  if (options_.verify == VerifyMode::kChain) plan.floor = 0;
  return plan;
}

int Controller::cut(const Proposal& proposal, const CycleLimits& limits) const {
  int size = std::min(proposal.size(), planned_nodes_);
  if (options_.verify == VerifyMode::kLive && (pinned_ || options_.live_threshold >= 0)) {
    const float threshold = options_.live_threshold >= 0 ? options_.live_threshold : 0.1f;
    int live = 0;
    while (live < size && proposal.cumulative(live) >= threshold) ++live;
    return live;
  }
  if (pinned_ || options_.verify == VerifyMode::kChain) return size;
  size = std::min(size, widest(limits));  // wide passes are approached, not jumped at
  const double rate = rate_, plain = added_seconds(1, limits);
  double value = 0, best_gain = 1 - rate * plain;
  int best = 0;
  for (int n = 1; n <= size; ++n) {
    const Route by = proposal.by(n - 1);
    value += proposal.cumulative(n - 1) * std::min(kMostTruth, routes_[static_cast<size_t>(by)].truth());
    const double pass = added_seconds(1 + n, limits);
    if (!affordable(by, pass - plain, plain_share(limits))) break;
    const double gain = 1 + value - rate * pass;
    if (gain > best_gain) {
      best_gain = gain;
      best = n;
    }
  }
  return best;
}

// ---- Learning

void Controller::observe_guess(Route route, float estimate, int rank, bool hit) {
  calibration_.record(route, estimate, rank, hit);
  memory_.calibration.record(route, estimate, rank, hit);
  if (rank > 0) return;
  Guesses& own = guesses_[static_cast<size_t>(route)];
  own.trials = kGuessDecay * own.trials + 1;
  own.hits = kGuessDecay * own.hits + (hit ? 1.0f : 0.0f);
}

void Controller::observe_draft(Route route, std::span<const float> value) {
  RouteStatistics& known = memory_.routes[static_cast<size_t>(route)];
  if (known.drafts >= 8) {
    const float here = RouteStatistics::per_step(value[std::min<size_t>(4, value.size() - 1)]);
    const float typical = RouteStatistics::per_step(known.value[4]);
    const float ease = std::clamp(std::log(here) / std::log(typical), 0.1f, 4.0f);
    ease_ *= std::pow(ease / ease_, kEaseStep);
  }
  routes_[static_cast<size_t>(route)].observe_draft(value, 0.15f);
  known.observe_draft(value, 0.01f);
}

void Controller::observe_nodes(Route route, float accepted, float predicted) {
  routes_[static_cast<size_t>(route)].observe_outcome(accepted, predicted);
  memory_.routes[static_cast<size_t>(route)].observe_outcome(accepted, predicted);
}

void Controller::observe(const CycleOutcome& o) {
  if (o.pass.learn) memory_.observe_verify(o.pass.rows, o.context, o.pass.seconds, o.pass.lanes);
  const double plain = plain_share(o.pass.lanes, o.context);
  if (o.drafted && o.draft_timed) memory_.observe_draft(o.route, o.steps, o.context, o.draft_s);
  const double expected_draft = o.drafted ? memory_.draft_seconds(o.route, o.steps, o.context) : 0;
  if (o.drafted && o.backlog > 0) memory_.observe_backlog(o.route, o.backlog, o.draft_s - expected_draft);
  // The rows in front of a first draft are part of what trusted routes are given; those of others have to be earned.
  const double backlog = o.drafted && (saving_ || tried_) ? memory_.backlog_seconds(o.route, o.backlog) : 0;
  // Free of the moment's noise; a lane's share of a pass goes by its rows.
  const double seconds = memory_.verify_seconds(o.pass.rows, o.context, o.pass.lanes) * o.rows / o.pass.rows + expected_draft;
  recent_tokens_ = kRecent * recent_tokens_ + o.tokens;
  recent_seconds_ = kRecent * recent_seconds_ + seconds;
  if (has_credit_) {
    const double before = credit_;
    credit_ += kLossShare * seconds;
    if (o.rows > 1 || o.drafted) credit_ += o.tokens * plain - seconds - backlog;
    credit_ = std::min(credit_, kMostCredit * plain);
    if (saving_) memory_.savings = std::min(memory_.savings + credit_ - before, kMostCredit * plain);
  }
  if (o.drafted) {
    Use& use = uses_[static_cast<size_t>(o.route)];
    const bool won = o.tokens * plain > seconds;
    use.wait = won ? kFirstWait : std::min(kLongestWait, use.wait * 2);
    use.last = cycle_;
    tried_ = true;
    if (plain > 0 && !pinned_) memory_.routes[static_cast<size_t>(o.route)].observe_cycle(won);
    SpeculationMemory::Patience& patience = memory_.patience[static_cast<size_t>(o.route)];
    patience.last = memory_.cycle;
    patience.wait = won ? kFirstPatience : std::min(kMostPatience, 2 * std::max(kFirstPatience, patience.wait));
  }
  if (o.rows == 1 && !o.drafted) last_plain_ = cycle_;
  if (!o.drafted) ease_ = std::pow(ease_, kForget);  // what follows may be easier, or harder, again
  ++cycle_;
  ++memory_.cycle;
}

}  // namespace foretoken
