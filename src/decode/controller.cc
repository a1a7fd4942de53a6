// Expected tokens per measured second. With `rate` the tokens per second reached lately, a plan of cost c that yields e tokens is worth
// e - rate * c: the best plan by that measure is the one that raises the rate most, and a row belongs in it as long as its own
// probability exceeds rate times its own cost.
#include "decode/controller.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace foretoken {
namespace {

constexpr double kRateDecay = 0.97;        // of the sums behind the rate, per cycle
constexpr double kCostStep = 0.2;          // least weight of a new measurement
constexpr double kOutlier = 3.0;           // a measurement counts as at most this many times its expectation
constexpr double kSharedChange = 0.5;      // how much of a change other counts share
constexpr double kPriorRowCost = 0.05;     // of one more row, in passes of one row, before any was measured
constexpr double kPriorStepCost = 0.15;    // of one draft step, likewise: cheap to be wrong once
constexpr float kPriorAcceptance = 0.7f;   // of a first guess by a drafter that was never tried
constexpr double kLossShare = 0.01;        // of the time that may be lost against plain decoding
constexpr double kFirstCredit = 3.0;       // plain passes that may be lost at first
constexpr double kMostCredit = 12.0;
constexpr double kHysteresis = 0.03;       // tokens a change of plan must promise
constexpr int kFirstWait = 16, kLongestWait = 512;  // cycles between probes of a route that loses
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

bool CostCurve::known(int count) const {
  return std::any_of(knots_.begin(), knots_.end(), [count](const Knot& k) { return k.count == count; });
}

double CostCurve::at(int count) const {
  if (knots_.empty()) return 0;
  const auto above = std::lower_bound(knots_.begin(), knots_.end(), count, [](const Knot& k, int c) { return k.count < c; });
  if (above != knots_.end() && above->count == count) return above->seconds;
  const Knot &first = knots_.front(), &last = knots_.back();
  if (above != knots_.begin() && above != knots_.end()) {
    const Knot& below = *(above - 1);
    return below.seconds + (above->seconds - below.seconds) * (count - below.count) / (above->count - below.count);
  }
  const double slope = knots_.size() > 1 ? std::max(0.0, (last.seconds - first.seconds) / (last.count - first.count))
                                         : first.seconds * kPriorRowCost / (1 + kPriorRowCost * (first.count - 1));
  const Knot& nearest = above == knots_.begin() ? first : last;
  return std::max(nearest.seconds + slope * (count - nearest.count), 0.2 * nearest.seconds);
}

void CostCurve::observe(int count, double seconds) {
  if (!(seconds > 0)) return;
  const auto place = std::lower_bound(knots_.begin(), knots_.end(), count, [](const Knot& k, int c) { return k.count < c; });
  if (place == knots_.end() || place->count != count) {
    const double expected = at(count);
    if (expected > 0) seconds = std::min(seconds, kOutlier * expected);
    knots_.insert(place, {count, seconds, 0.5});  // the first run of a count is often a slow one: the second weighs more
    return;
  }
  const double old = place->seconds;
  const double step = std::max(kCostStep, 1 / (place->weight + 1));
  const double value = place->weight >= 2 ? std::min(seconds, kOutlier * old) : seconds;
  place->seconds += step * (value - old);
  place->weight += 1;
  if (place->weight < 3) return;
  const double factor = std::pow(place->seconds / old, kSharedChange);
  for (Knot& knot : knots_)
    if (knot.count != count) knot.seconds *= factor;
}

void CostCurve::weaken() {
  for (Knot& knot : knots_) knot.weight = std::min(knot.weight, 0.5);
}

int SpeculationMemory::bucket(int64_t context) { return std::bit_width(static_cast<uint64_t>(std::max<int64_t>(0, context)) >> 9); }

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

double SpeculationMemory::verify_seconds(int rows, int64_t context) const {
  const CostCurve* curve = find(verify_, bucket(context));
  return curve ? curve->at(rows) : 0;
}

bool SpeculationMemory::verify_known(int rows, int64_t context) const {
  const CostCurve* curve = find(verify_, bucket(context));
  return curve && curve->known(rows);
}

double SpeculationMemory::draft_seconds(Route route, int steps, int64_t context) const {
  const CostCurve* curve = find(draft_[static_cast<size_t>(route)], bucket(context));
  if (curve && curve->known()) return curve->at(steps);
  return route == Route::kCopy ? 0 : kPriorStepCost * verify_seconds(1, context) * (route == Route::kMtp ? steps : 2);
}

bool SpeculationMemory::draft_known(Route route) const { return !draft_[static_cast<size_t>(route)].empty(); }

void SpeculationMemory::observe_verify(int rows, int64_t context, double seconds) {
  obtain(verify_, bucket(context)).observe(rows, seconds);
}

void SpeculationMemory::observe_draft(Route route, int steps, int64_t context, double seconds) {
  obtain(draft_[static_cast<size_t>(route)], bucket(context)).observe(steps, seconds);
}

void RouteStatistics::observe_draft(std::span<const float> cumulative_value) {
  CHECK(!cumulative_value.empty());
  const float step = std::max(0.12f, 1 / (drafts + 1));
  for (size_t n = 0; n < value.size(); ++n)
    value[n] += step * (cumulative_value[std::min(n, cumulative_value.size() - 1)] - value[n]);
  drafts += 1;
}

void RouteStatistics::observe_outcome(float accepted_nodes, float predicted_nodes) {
  accepted = accepted * 0.9f + accepted_nodes;
  predicted = predicted * 0.9f + predicted_nodes;
}

// ---- Choices

Controller::Controller(SpeculationMemory& memory, const SpeculationOptions& options, std::span<const Route> routes)
    : memory_(memory), options_(options), calibration_(memory.calibration), routes_(memory.routes) {
  for (const Route route : routes) allowed_[static_cast<size_t>(route)] = true;
  pinned_ = routes.size() == 1 && options.width > 0;
  for (RouteStatistics& r : routes_) r.drafts = std::min(r.drafts, 4.0f);  // another text: what is known counts, but little
}

double Controller::rate(int64_t context) const {
  const double plain = memory_.verify_seconds(1, context);
  const double least = plain > 0 ? 1 / plain : 0;
  return seconds_ > 0 ? std::max(least, tokens_ / seconds_) : least;
}

DraftPlan Controller::pinned_plan(const CycleLimits& limits) const {
  DraftPlan plan;
  plan.copy = allowed(Route::kCopy);
  for (const Route route : {Route::kMtp, Route::kBlock, Route::kScripted})
    if (allowed(route)) {
      plan.model = true;
      plan.route = route;
    }
  plan.nodes = std::min(limits.nodes, options_.width);
  plan.depth = std::min(limits.depth, plan.nodes);
  plan.tree = options_.verify == VerifyMode::kTree;
  return plan;
}

// The best depth of a route's own draft, the copy draft beside it free of charge.
Controller::Candidate Controller::best_of(Route route, const CycleLimits& limits, std::span<const float> copy_value,
                                          double rate) const {
  const RouteStatistics& statistics = routes_[static_cast<size_t>(route)];
  const double plain = memory_.verify_seconds(1, limits.context);
  Candidate best{true, route, 0, 0, -1e300};
  const int deepest = std::min(limits.depth, route == Route::kMtp ? kMtpDepth : kMaxNodes);
  double prior = 0, reach = 1;
  for (int n = 1; n <= std::min(limits.nodes, kMaxNodes); ++n) {
    reach *= kPriorAcceptance;
    prior += reach;
    double value = statistics.drafts > 0 ? statistics.value[static_cast<size_t>(n)] * statistics.truth() : prior;
    if (!copy_value.empty())
      value = std::max<double>(value, copy_value[std::min<size_t>(static_cast<size_t>(n), copy_value.size() - 1)]);
    const int depth = std::min(n, deepest);
    const double draft = memory_.draft_seconds(route, depth, limits.context);
    const double verify = plain > 0 ? memory_.verify_seconds(1 + n, limits.context) : 0;
    const double gain = 1 + value - rate * (draft + verify);
    if (gain > best.gain) best = {true, route, depth, n, gain};
    if (statistics.drafts == 0 && n >= 3) break;  // a first trial is a short one
  }
  return best;
}

DraftPlan Controller::plan(const CycleLimits& limits, std::span<const float> copy_value) {
  planned_nodes_ = std::min(limits.nodes, options_.width > 0 ? options_.width : kMaxNodes);
  if (limits.depth <= 0 || planned_nodes_ <= 0) return {};
  if (pinned_) return pinned_plan(limits);
  const double plain = memory_.verify_seconds(1, limits.context);
  if (!memory_.verify_known(1, limits.context) || plain <= 0) return {};  // nothing can be compared before one plain pass was timed
  if (!has_credit_) {
    credit_ = kFirstCredit * plain;
    has_credit_ = true;
  }
  const double rate = this->rate(limits.context);
  CycleLimits within = limits;
  within.nodes = planned_nodes_;
  if (cycle_ - last_plain_ >= kPlainAge) return {};

  DraftPlan plan;
  plan.copy = allowed(Route::kCopy) && credit_ > 0;
  Candidate best{false, Route::kCopy, 0, 0, 1 - rate * plain};
  if (plan.copy)
    for (int n = 1; n < static_cast<int>(copy_value.size()) && n <= within.nodes; ++n)
      if (const double gain = 1 + copy_value[static_cast<size_t>(n)] - rate * memory_.verify_seconds(1 + n, limits.context);
          gain > best.gain)
        best = {false, Route::kCopy, n, n, gain};
  if (!last_model_) best.gain += kHysteresis;
  Candidate probe{false, Route::kCopy, 0, 0, 0};
  for (const Route route : {Route::kMtp, Route::kBlock, Route::kScripted}) {
    if (!allowed(route)) continue;
    Candidate c = best_of(route, within, plan.copy ? copy_value : std::span<const float>{}, rate);
    const Use& use = uses_[static_cast<size_t>(route)];
    const int64_t idle = use.last < 0 ? cycle_ : cycle_ - use.last;
    const double price = memory_.draft_seconds(route, c.depth, limits.context) + memory_.verify_seconds(3, limits.context) - plain;
    if (credit_ > price && idle >= use.wait && (!probe.model || idle > cycle_ - uses_[static_cast<size_t>(probe.route)].last)) probe = c;
    if (credit_ <= 0) continue;
    if (last_model_ && last_route_ == route) c.gain += kHysteresis;
    if (c.gain > best.gain) best = c;
  }
  plan.probe = !best.model && probe.model && copy_value.size() <= 1;
  if (plan.probe) best = probe;
  last_model_ = best.model;
  last_route_ = best.route;
  if (options_.verify == VerifyMode::kChain) planned_nodes_ = best.nodes;
  if (!best.model) return plan;
  plan.model = true;
  plan.route = best.route;
  plan.depth = std::min(limits.depth, best.route == Route::kMtp ? std::max(1, best.depth) : limits.depth);
  plan.nodes = trees() ? within.nodes : std::min(within.nodes, plan.depth);
  plan.tree = trees();
  const double row = (memory_.verify_seconds(9, limits.context) - plain) / 8;
  const double step = best.route == Route::kMtp ? memory_.draft_seconds(best.route, 2, limits.context) -
                                                      memory_.draft_seconds(best.route, 1, limits.context)
                                                : 0;
  plan.floor = static_cast<float>(std::clamp(0.5 * rate * (row + std::max(0.0, step)), 0.005, 0.5));
  if (options_.verify == VerifyMode::kChain) plan.floor = 0;
  return plan;
}

int Controller::cut(const Proposal& proposal, const CycleLimits& limits) const {
  const int size = std::min(proposal.size(), planned_nodes_);
  if (options_.verify == VerifyMode::kLive && (pinned_ || options_.live_threshold >= 0)) {
    const float threshold = options_.live_threshold >= 0 ? options_.live_threshold : 0.1f;
    int live = 0;
    while (live < size && proposal.cumulative(live) >= threshold) ++live;
    return live;
  }
  if (pinned_ || options_.verify == VerifyMode::kChain) return size;
  const double rate = this->rate(limits.context);
  double value = 0, best_gain = 1 - rate * memory_.verify_seconds(1, limits.context);
  int best = 0;
  for (int n = 1; n <= size; ++n) {
    const Route by = proposal.by(n - 1);
    value += proposal.cumulative(n - 1) * std::min(1.2f, routes_[static_cast<size_t>(by)].truth());
    const double gain = 1 + value - rate * memory_.verify_seconds(1 + n, limits.context);
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
}

void Controller::observe_draft(Route route, std::span<const float> value) {
  routes_[static_cast<size_t>(route)].observe_draft(value);
  memory_.routes[static_cast<size_t>(route)].observe_draft(value);
}

void Controller::observe_nodes(Route route, float accepted, float predicted) {
  routes_[static_cast<size_t>(route)].observe_outcome(accepted, predicted);
  memory_.routes[static_cast<size_t>(route)].observe_outcome(accepted, predicted);
}

void Controller::observe(const CycleOutcome& o) {
  memory_.observe_verify(o.rows, o.context, o.cycle_s);
  const double plain = memory_.verify_seconds(1, o.context);
  if (o.drafted && o.draft_timed) memory_.observe_draft(o.route, o.steps, o.context, o.draft_s);
  const double expected_draft = o.drafted ? memory_.draft_seconds(o.route, o.steps, o.context) : 0;
  const double seconds = memory_.verify_seconds(o.rows, o.context) + expected_draft;  // free of the moment's noise
  tokens_ = tokens_ * kRateDecay + o.tokens;
  seconds_ = seconds_ * kRateDecay + seconds;
  if (has_credit_) {
    credit_ += kLossShare * seconds;
    if (o.rows > 1 || o.drafted) credit_ += o.tokens * plain - seconds;
    credit_ = std::min(credit_, kMostCredit * plain);
  }
  if (o.drafted) {
    Use& use = uses_[static_cast<size_t>(o.route)];
    const bool won = o.tokens * plain > seconds;
    use.wait = won ? kFirstWait : std::min(kLongestWait, use.wait * 2);
    use.last = cycle_;
  }
  if (o.rows == 1 && !o.drafted) last_plain_ = cycle_;
  ++cycle_;
}

}  // namespace foretoken
