// One cycle's guesses: what is free first (what the grammar leaves no choice about, and copies), then the controller's choice, the model
// drafter, one merged tree, and as many of its nodes as are worth a row.
#include "decode/speculator.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace foretoken {
namespace {

constexpr int kDormantCycles = 64;
constexpr int kTimedBacklog = 24;     // rows; a draft that works off more says little about the next one
constexpr float kFreeFloor = 0.02f;

std::vector<RouteOffer> offers_of(const std::vector<std::unique_ptr<Drafter>>& drafters) {
  std::vector<RouteOffer> offers;
  for (const auto& d : drafters) offers.push_back({d->route(), d->deepest()});
  return offers;
}

// Drops what the rules forbid, and whatever follows the answer's end. The rules come back to where they were.
void prune(Draft& draft, TokenRules& rules) {
  std::vector<std::vector<int>> children(draft.nodes.size() + 1);
  for (size_t i = 0; i < draft.nodes.size(); ++i) children[static_cast<size_t>(draft.nodes[i].parent + 1)].push_back(static_cast<int>(i));
  std::vector<bool> keep(draft.nodes.size(), false);
  const std::function<void(int)> visit = [&](int node) {
    const int64_t depth = rules.depth();
    for (const int child : children[static_cast<size_t>(node + 1)]) {
      const TokenId token = draft.nodes[static_cast<size_t>(child)].token;
      if (!rules.allows(token)) continue;
      keep[static_cast<size_t>(child)] = true;
      if (!rules.advance(token)) visit(child);
      rules.rewind(depth);
    }
  };
  visit(-1);
  Draft kept{.by = draft.by, .nodes = {}};
  std::vector<int> place(draft.nodes.size(), -1);
  for (size_t i = 0; i < draft.nodes.size(); ++i) {
    if (!keep[i]) continue;
    const DraftNode& n = draft.nodes[i];
    place[i] = kept.add(n.token, n.parent < 0 ? -1 : place[static_cast<size_t>(n.parent)], n.probability, n.rank, n.by);
  }
  draft = std::move(kept);
}

// Cumulative probabilities along the chain of best nodes.
std::vector<float> best_chain(const Draft& draft) {
  std::vector<float> chain;
  int at = -1;
  for (size_t i = 0; i < draft.nodes.size(); ++i)
    if (draft.nodes[i].parent == at && draft.nodes[i].rank == 0) {
      chain.push_back((chain.empty() ? 1.0f : chain.back()) * draft.nodes[i].probability);
      at = static_cast<int>(i);
    }
  return chain;
}

// Adds to value[n], the expected accepted tokens of the best n nodes, the nodes that a chain would have had down to `depth`.
void add_extrapolated(std::span<const float> chain, int depth, std::vector<float>& value) {
  const float ratio = std::min(0.95f, chain.size() > 1 ? chain.back() / std::max(1e-6f, chain[chain.size() - 2]) : chain.back());
  std::vector<float> nodes;
  for (size_t n = 1; n < value.size(); ++n) nodes.push_back(value[n] - value[n - 1]);
  float more = chain.back() * ratio;
  for (int at = static_cast<int>(chain.size()); at < depth; ++at, more *= ratio) nodes.push_back(more);
  std::sort(nodes.begin(), nodes.end(), std::greater<>());
  value.resize(1);
  for (const float node : nodes) value.push_back(value.back() + node);
}

}  // namespace

void SpeculationCounters::add(const SpeculationCounters& other) {
  cycles += other.cycles;
  drafted += other.drafted;
  verified_rows += other.verified_rows;
  accepted += other.accepted;
  for (size_t r = 0; r < by_drafter.size(); ++r) {
    by_drafter[r].cycles += other.by_drafter[r].cycles;
    by_drafter[r].drafted += other.by_drafter[r].drafted;
    by_drafter[r].verified += other.by_drafter[r].verified;
    by_drafter[r].accepted += other.by_drafter[r].accepted;
  }
  for (const auto& [plan, count] : other.plans) plans[plan] += count;
}

Speculator::Speculator(std::vector<std::unique_ptr<Drafter>> drafters, const SpeculationOptions& options, SpeculationMemory* memory,
                       const Clock& clock)
    : drafters_(std::move(drafters)), options_(options), own_memory_(memory ? nullptr : std::make_unique<SpeculationMemory>()),
      controller_(memory ? *memory : *own_memory_, options, offers_of(drafters_)), clock_(clock) {
  for (const auto& d : drafters_) {
    needs_hidden_ |= d->needs().hidden;
    if (d->needs().tap_layers.empty()) continue;
    CHECK(tap_layers_.empty() || tap_layers_ == d->needs().tap_layers);
    tap_layers_ = d->needs().tap_layers;
  }
}

void Speculator::restart(std::span<const TokenId> history) {
  for (const auto& d : drafters_) d->restart(history);
}

void Speculator::observe(const Committed& committed) {
  for (const auto& d : drafters_) d->observe(committed);
}

namespace {

// One drafter's part: its route and its size, then its bytes.
struct PartHeader {
  uint64_t route = 0, size = 0;
};

}  // namespace

std::vector<std::byte> Speculator::save() {
  std::vector<std::byte> all;
  for (const auto& d : drafters_) {
    const std::vector<std::byte> part = d->save();
    const PartHeader header{static_cast<uint64_t>(d->route()), part.size()};
    const auto* bytes = reinterpret_cast<const std::byte*>(&header);
    all.insert(all.end(), bytes, bytes + sizeof header);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void Speculator::restore(std::span<const TokenId> history, std::span<const std::byte> saved) {
  std::array<std::span<const std::byte>, kRoutes> parts{};
  while (saved.size() >= sizeof(PartHeader)) {
    PartHeader header;
    std::memcpy(&header, saved.data(), sizeof header);
    saved = saved.subspan(sizeof header);
    if (header.route >= kRoutes || header.size > saved.size()) break;
    parts[header.route] = saved.first(header.size);
    saved = saved.subspan(header.size);
  }
  for (const auto& d : drafters_) d->restore(history, parts[static_cast<size_t>(d->route())]);
}

Drafter* Speculator::drafter(Route route) const {
  for (const auto& d : drafters_)
    if (d->route() == route) return d.get();
  return nullptr;
}

void Speculator::calibrate(Draft& draft) const {
  if (controller_.pinned()) return;
  for (DraftNode& n : draft.nodes) n.probability = controller_.calibration().measured(n.by, n.probability, n.rank);
}

MergeLimits Speculator::merge_limits(const CycleLimits& limits) const {
  MergeLimits merge{.nodes = limits.nodes, .depth = limits.depth};
  if (controller_.pinned()) {
    merge.nodes = std::min(limits.nodes, options_.width);
    merge.chain_only = options_.verify != VerifyMode::kTree;
    merge.seed_chain = kMaxNodes;
  } else {
    merge.chain_only = options_.verify == VerifyMode::kChain || options_.verify == VerifyMode::kLive;
  }
  return merge;
}

// values[n]: expected accepted tokens of the drafts' best n nodes.
std::vector<float> Speculator::values(std::span<const Draft> drafts, const MergeLimits& limits) const {
  const Proposal best = merge(drafts, limits);
  std::vector<float> value = {0};
  for (int i = 0; i < best.size(); ++i) value.push_back(value.back() + best.cumulative(i));
  return value;
}

void Speculator::prepare(const Situation& s, const OtherLanes& others) {
  raw_.clear();
  drafts_.clear();
  proposal_ = {};
  free_.clear();
  run_ = 0;
  draft_s_ = 0;
  draft_timed_ = true;
  backlog_ = 0;
  rules_ = s.rules;
  limits_ = {.depth = static_cast<int>(std::clamp<int64_t>(s.budget - 1, 0, kMaxNodes)), .nodes = std::min(kMaxNodes, s.max_nodes),
             .context = s.context, .others = others, .backlog = {}};
  for (const auto& d : drafters_) limits_.backlog[static_cast<size_t>(d->route())] = d->backlog();
  request_ = {.position = s.context + 1, .anchor = s.anchor, .depth = limits_.depth, .nodes = limits_.nodes,
              .insist = controller_.pinned(), .sampling = s.sampling, .counts = s.counts,
              .calibration = controller_.pinned() ? nullptr : &controller_.calibration(),
              .rules = rules_, .foresee = rules_ != nullptr && drafter(Route::kGrammar) != nullptr};
  FreeDraft free;
  std::vector<float> value;
  if (limits_.depth > 0) {
    if (request_.foresee) draft_free(Route::kGrammar);
    if (!free_.empty()) {
      run_ = static_cast<int>(free_.front().nodes.size());
      free = {.route = Route::kGrammar, .value = {}, .run = run_, .run_probability = 1};
      for (const DraftNode& n : free_.front().nodes) free.run_probability *= n.probability;
    }
    draft_free(Route::kCopy);
    free.value = value = values(free_, merge_limits(limits_));
  }
  plan_ = controller_.plan(limits_, free);
  request_.depth = plan_.depth;
  request_.nodes = plan_.nodes;
  request_.tree = plan_.tree;
  request_.floor = plan_.floor;
}

void Speculator::draft_free(Route route) {
  Drafter* d = drafter(route);
  if (d == nullptr) return;
  DraftRequest wanted = request_;
  if (options_.width > 0) wanted.depth = std::min(wanted.depth, options_.width);
  wanted.floor = controller_.pinned() ? 0 : kFreeFloor;
  Draft draft;
  d->propose(wanted, draft);
  if (rules_ != nullptr) prune(draft, *rules_);
  if (draft.empty()) return;
  raw_.push_back(draft);
  calibrate(draft);
  free_.push_back(std::move(draft));
}

void Speculator::draft(std::span<Speculator* const> lanes) {
  for (size_t r = 0; r < kRoutes; ++r) {
    std::vector<Speculator*> wanting;
    std::vector<Drafter*> drafters;
    std::vector<DraftRequest> requests;
    bool timed = true;
    for (Speculator* lane : lanes) {
      if (!lane->plan_.model || lane->plan_.route != static_cast<Route>(r)) continue;
      wanting.push_back(lane);
      drafters.push_back(lane->drafter(lane->plan_.route));
      CHECK(drafters.back() != nullptr);
      requests.push_back(lane->request_);
      timed &= drafters.back()->backlog() <= kTimedBacklog;
    }
    if (wanting.empty()) continue;
    std::vector<Draft> drafts(wanting.size());
    const Clock& clock = wanting.front()->clock_;
    const TimePoint begin = clock.now();
    drafters.front()->propose_group(drafters, requests, drafts);
    const double each = seconds_between(begin, clock.now()) / static_cast<double>(wanting.size());
    for (size_t i = 0; i < wanting.size(); ++i) wanting[i]->take_draft(std::move(drafts[i]), each, timed, wanting.size() == 1);
  }
}

void Speculator::take_draft(Draft draft, double seconds, bool timed, bool alone) {
  if (rules_ != nullptr) prune(draft, *rules_);
  draft_s_ = seconds;
  draft_timed_ = timed;
  backlog_ = !timed && alone ? limits_.backlog[static_cast<size_t>(plan_.route)] : 0;
  raw_.push_back(std::move(draft));
  drafts_.push_back(raw_.back());
  calibrate(drafts_.back());
  read_model_draft();
}

// What the draft says about the next ones.
void Speculator::read_model_draft() {
  const std::vector<float> chain = best_chain(drafts_.back());
  const int deepest = std::min(drafter(plan_.route)->deepest(), limits_.depth), asked = std::min(plan_.depth, deepest);
  const bool ended = static_cast<int>(chain.size()) < asked;  // its own doubt ended it
  draft_steps_ = plan_.route == Route::kMtp ? static_cast<int>(chain.size()) + ended : asked;
  if (controller_.pinned() || limits_.depth < kMtpDepth) return;
  std::vector<float> value = values({&drafts_.back(), 1}, merge_limits(limits_));
  // A chain that ended because no more was asked for would have gone on falling as it did.
  if (!ended && !chain.empty()) add_extrapolated(chain, deepest, value);
  controller_.observe_draft(plan_.route, value);
}

const Proposal& Speculator::complete(const OtherLanes& others) {
  limits_.others = others;
  // A model's draft comes first: it holds the grammar's run already, or what it is surer of.
  if (plan_.free) drafts_.insert(drafts_.end(), free_.begin(), free_.end());
  proposal_ = merge(drafts_, merge_limits(limits_));
  const int kept = controller_.cut(proposal_, limits_);
  count(proposal_, kept);
  proposal_.truncate(kept);
  return proposal_;
}

const Proposal& Speculator::propose(const Situation& situation) {
  prepare(situation, {});
  Speculator* self = this;
  draft({&self, 1});
  return complete({});
}

// Proposals made: the drafters' best chains and every alternative that runs. What was never wanted is not counted.
void Speculator::count(const Proposal& whole, int verified) {
  std::array<int64_t, kRoutes> drafted{}, ran{};
  std::vector<bool> best(static_cast<size_t>(whole.size()));
  for (int i = 0; i < whole.size(); ++i) {
    best[size_t(i)] = whole.rank(i) == 0 && (whole.parent(i) < 0 || best[size_t(whole.parent(i))]);
    const size_t by = static_cast<size_t>(whole.by(i));
    drafted[by] += best[size_t(i)] || i < verified;
    ran[by] += i < verified;
  }
  for (size_t r = 0; r < kRoutes; ++r) {
    SpeculationCounters::Of& of = counters_.by_drafter[r];
    of.cycles += drafted[r] > 0;
    of.drafted += drafted[r];
    of.verified += ran[r];
    counters_.drafted += drafted[r];
    const bool could = static_cast<Route>(r) != Route::kGrammar || rules_ != nullptr;
    idle_[r] = drafted[r] > 0 ? 0 : idle_[r] + could;
  }
}

void Speculator::settle(const Accepted& accepted, const CycleCost& cost) {
  ++counters_.cycles;
  counters_.verified_rows += 1 + proposal_.size();
  counters_.accepted += accepted.accepted();
  for (const int row : accepted.rows())
    if (row > 0) ++counters_.by_drafter[static_cast<size_t>(proposal_.by(row - 1))].accepted;
  std::string plan;
  for (const Route route : {Route::kScripted, Route::kBlock, Route::kMtp, Route::kCopy, Route::kGrammar}) {
    bool used = false;
    for (int i = 0; i < proposal_.size(); ++i) used |= proposal_.proposed_by(i, route);
    if (used) plan += (plan.empty() ? "" : "+") + std::string(route_name(route));
  }
  if (plan.empty()) plan = "plain";
  else if (!proposal_.is_chain()) plan += " tree";
  ++counters_.plans[plan];
  if (!controller_.pinned()) learn(accepted);
  controller_.observe({.context = limits_.context, .rows = 1 + proposal_.size(), .tokens = static_cast<int>(accepted.tokens().size()),
                       .drafted = plan_.model, .route = plan_.route, .steps = draft_steps_, .backlog = backlog_,
                       .draft_timed = draft_timed_, .draft_s = draft_s_, .pass = cost});
}

// Every guess whose parent the target reached was right or wrong, verified or not: the emitted tokens tell.
void Speculator::learn(const Accepted& accepted) {
  for (const Draft& draft : raw_) {
    int at = -1, depth = 0;
    for (const TokenId token : accepted.tokens()) {
      ++depth;
      int next = -1;
      for (int i = at + 1; i < static_cast<int>(draft.nodes.size()); ++i) {
        const DraftNode& n = draft.nodes[size_t(i)];
        if (n.parent != at) continue;
        if (n.by == draft.by || depth > run_) controller_.observe_guess(n.by, n.probability, n.rank, n.token == token);
        if (n.token == token) next = i;
      }
      if (next < 0) break;
      at = next;
    }
  }
  // An answer that ends inside the proposal says nothing about what would have followed.
  if (accepted.stopped()) return;
  for (size_t r = 0; r < kRoutes; ++r) {
    const Route route = static_cast<Route>(r);
    float right = 0, predicted = 0;
    for (const int row : accepted.rows()) right += row > 0 && proposal_.proposed_by(row - 1, route);
    for (int i = 0; i < proposal_.size(); ++i) predicted += proposal_.proposed_by(i, route) ? proposal_.cumulative(i) : 0;
    controller_.observe_nodes(route, right, predicted);
  }
}

std::vector<std::string> Speculator::dormant() const {
  std::vector<std::string> lines;
  for (const auto& d : drafters_) {
    const Route route = d->route();
    if (idle_[static_cast<size_t>(route)] < kDormantCycles) continue;
    lines.push_back(std::string(route_name(route)) + " has proposed nothing for " +
                    std::to_string(idle_[static_cast<size_t>(route)]) + " cycles: " +
                    (route == Route::kCopy      ? "nothing of the text occurred before, or copying did not pay"
                     : route == Route::kGrammar ? "the grammar left a choice everywhere"
                                                : "another plan measured faster, or its proposals were not accepted"));
  }
  return lines;
}

}  // namespace foretoken
