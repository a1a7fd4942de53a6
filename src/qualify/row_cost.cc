// Passes as cycles make them, without a text behind them: any tokens cost the same.
#include "qualify/row_cost.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "decode/rows.h"
#include "qualify/trial.h"

namespace foretoken {
namespace {

double tenths(double s) { return std::round(s * 1e7) / 10; }

class RowCost {
 public:
  RowCost(const RowCostModels& models, const Clock& clock, const RowCostOptions& options, const RowSink& rows)
      : m_(models), clock_(clock), o_(options), sink_(rows), vocab_(models.target.config().vocab) {
    if (m_.drafts.block()) taps_ = m_.drafts.block()->config().taps;
    for (int64_t i = 0; i < std::max<int64_t>(o_.prefix, 128); ++i)
      ids_.push_back(static_cast<TokenId>((i * 7919 + 13) % std::min(vocab_, 4096)));
  }

  Status run(const std::function<bool(int, int)>& progress) {
    for (int block = -1; block < o_.blocks; ++block) {
      warm_ = block < 0;
      block_ = std::max(block, 0);
      auto lane = filled(m_.target);
      std::vector<int> seen(o_.rows.size());
      for (const int i : block_order(static_cast<int>(o_.rows.size()), block + 1)) {
        const int rows = o_.rows[static_cast<size_t>(i)];
        for (const bool tree : {false, true})
          if (!tree || rows >= 4) pass_row(*lane, rows, tree, seen[static_cast<size_t>(i)]);
        ++seen[static_cast<size_t>(i)];
      }
      drafts();
      if (m_.attributed) operators();
      if (progress && !progress(block + 2, o_.blocks + 1))
        return Error{ErrorCode::kCheckFailed, "the measurement was interrupted, and nothing was published"};
    }
    return {};
  }

 private:
  struct Pass {
    double forward_s = 0, host_s = 0, commit_s = 0;
  };

  std::unique_ptr<LaneState> filled(TargetModel& target) {
    auto lane = target.make_lane();
    run_prompt(target, *lane, std::span(ids_).first(static_cast<size_t>(std::max<int64_t>(o_.prefix, 1))),
               target.options().max_rows, {}, [](int64_t, int64_t, const ForwardResult&) { return true; });
    return lane;
  }

  // A tree: half of the rows are its chain, the others siblings along it.
  Pass pass(TargetModel& target, LaneState& lane, int rows, bool tree) {
    std::vector<RowInput> inputs;
    std::vector<int16_t> parents;
    std::vector<int> depth, wanted(static_cast<size_t>(rows));
    std::iota(wanted.begin(), wanted.end(), 0);
    const int chain = tree ? std::max(1, rows / 2) : rows;
    for (int i = 0; i < rows; ++i) {
      const int parent = i < chain ? i - 1 : (i - chain) % chain;
      parents.push_back(static_cast<int16_t>(parent));
      depth.push_back(parent < 0 ? 0 : depth[static_cast<size_t>(parent)] + 1);
      inputs.push_back(text_row(ids_[static_cast<size_t>(i)], lane.length() + depth.back()));
    }
    const LaneRows lane_rows{.rows = rows,
                             .prefix = lane.length(),
                             .settled = 1,
                             .parent = tree ? std::span<const int16_t>(parents) : std::span<const int16_t>()};
    LaneState* lanes[] = {&lane};
    std::vector<int> path(static_cast<size_t>(std::min(chain, 1 + rows / 2)));
    std::iota(path.begin(), path.end(), 0);
    const TimePoint begin = clock_.now();
    std::vector<ChoiceSpec> choices;
    if (!o_.sampling.adjusts())
      for (int i = 0; i < rows; ++i) choices.push_back(Sampler::spec(o_.sampling, static_cast<uint64_t>(i + 1)));
    const ForwardResult r = target.forward(
        {.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = wanted, .choices = choices}, lanes, taps_);
    const TimePoint computed = clock_.now();
    for (int i = 0; i < static_cast<int>(path.size()); ++i)
      if (const uint64_t at = static_cast<uint64_t>(i + 1);
          choices.empty() || !r.choices || !sampler_.select(*r.choices, i, r.logits.cols, o_.sampling, at))
        (void)sampler_.select(r.logits.row(i), o_.sampling, at);
    const TimePoint chosen = clock_.now();
    target.commit(lane, path);
    return {seconds_between(begin, computed), seconds_between(computed, chosen), seconds_between(chosen, clock_.now())};
  }

  Json row(const char* kind, int round) const {
    Json j = Json::object();
    j["row"] = kind;
    j["block"] = block_;
    j["round"] = round;
    if (warm_) j["warm"] = true;
    return j;
  }

  void pass_row(LaneState& lane, int rows, bool tree, int round) {
    Json j = row("pass", round);
    j["rows"] = rows;
    j["shape"] = tree ? "tree" : "chain";
    for (const char* key : {"forward_us", "host_us", "commit_us"}) j[key] = Json::array();
    pass(m_.target, lane, rows, tree);  // what ran before has other data in the caches
    const TimePoint begin = clock_.now();
    do {
      const Pass p = pass(m_.target, lane, rows, tree);
      j["forward_us"].push_back(tenths(p.forward_s));
      j["host_us"].push_back(tenths(p.host_s));
      j["commit_us"].push_back(tenths(p.commit_s));
    } while (seconds_between(begin, clock_.now()) < o_.least_s && j["forward_us"].size() < 16);
    sink_(std::move(j));
  }

  // As a cycle of three committed tokens makes them.
  void drafts() {
    for (const Route route : {Route::kMtp, Route::kBlock}) {
      if (!m_.drafts.has(route)) continue;
      const Route only[] = {route};
      auto drafters = m_.drafts.make(only);
      Drafter& drafter = *drafters[0];
      auto lane = m_.target.make_lane();
      constexpr int kBehind = 96;
      std::vector<int> all(kBehind);
      std::iota(all.begin(), all.end(), 0);
      const std::span<const TokenId> known = std::span(ids_).first(kBehind);
      drafter.restart({});
      RowStore hidden(m_.target.pages().backend()), tapped(m_.target.pages().backend());
      run_prompt(
          m_.target, *lane, known, kBehind, {},
          [&](int64_t, int64_t, const ForwardResult& r) {
            drafter.observe(
                {.first = 0, .tokens = known, .next = known[0], .rows = all, .hidden = r.hidden.computed(), .taps = r.taps.computed()});
            hidden.append(r.hidden.computed().row_range(0, 4));
            if (r.taps.cols > 0) tapped.append(r.taps.computed().row_range(0, 4));
            return true;
          },
          taps_);
      int64_t at = kBehind;
      for (int depth = 1; depth <= kMtpDepth; ++depth) {
        const Committed three{
            .first = at,
            .tokens = known.subspan(1, 3),
            .next = known[4],
            .rows = std::span<const int>(all).first(3),
            .hidden = hidden.view(),
            .taps = tapped.view()};
        at += 3;
        Draft draft;
        const TimePoint begin = clock_.now();
        drafter.observe(three);
        drafter.propose({.position = at + 1,
                         .anchor = known[4],
                         .depth = depth,
                         .nodes = depth,
                         .insist = true,
                         .sampling = &o_.sampling},
                        draft);
        Json j = row("draft", 0);
        j["route"] = route_name(route);
        j["depth"] = depth;
        j["us"] = tenths(seconds_between(begin, clock_.now()));
        sink_(std::move(j));
      }
    }
  }

  void operators() {
    auto lane = filled(*m_.attributed);
    for (const int rows : o_.rows) {
      pass(*m_.attributed, *lane, rows, false);
      m_.begin_operators();
      const Pass p = pass(*m_.attributed, *lane, rows, false);
      Json j = row("operators", 0);
      j["rows"] = rows;
      j["us"] = m_.operators_us();
      j["pass_us"] = tenths(p.forward_s + p.commit_s);
      sink_(std::move(j));
    }
  }

  const RowCostModels& m_;
  const Clock& clock_;
  const RowCostOptions& o_;
  const RowSink& sink_;
  int vocab_, block_ = 0;
  bool warm_ = false;
  Sampler sampler_;
  std::vector<int> taps_;
  std::vector<TokenId> ids_;
};

}  // namespace

Status measure_row_cost(const RowCostModels& models, const Clock& clock, const RowCostOptions& options,
                        const RowSink& rows, const std::function<bool(int, int)>& progress) {
  return RowCost(models, clock, options, rows).run(progress);
}

}  // namespace foretoken
