// Cycles by the differences of what the generation has counted and timed.
#include "qualify/measured_answer.h"

#include <algorithm>
#include <cmath>

#include "base/file.h"

namespace foretoken {
namespace {

double microseconds(double s) { return std::round(s * 1e7) / 10; }

int deepest(const Proposal& proposal) {
  int depth = 0;
  for (int node = 0; node < proposal.size(); ++node) depth = std::max(depth, proposal.depth(node));
  return depth;
}

// The plan whose count has risen.
int plan_of(MeasuredAnswer& answer, const SpeculationCounters& before, const SpeculationCounters& after) {
  std::string name = "plain";
  for (const auto& [plan, cycles] : after.plans) {
    const auto was = before.plans.find(plan);
    if (cycles > (was == before.plans.end() ? 0 : was->second)) name = plan;
  }
  const auto known = std::find(answer.plans.begin(), answer.plans.end(), name);
  if (known != answer.plans.end()) return static_cast<int>(known - answer.plans.begin());
  answer.plans.push_back(name);
  return static_cast<int>(answer.plans.size()) - 1;
}

}  // namespace

std::string digest_of(std::span<const TokenId> tokens) { return sha256_hex(std::as_bytes(tokens)).substr(0, 16); }

void MeasuredAnswer::fill(Json& row) const {
  row["tokens"] = tokens.size();
  row["ids"] = digest_of(tokens);
  row["prefill_us"] = microseconds(prefill_s);
  row["decode_us"] = microseconds(timing.decode_s);
  row["cycles"] = counters.cycles;
  row["drafted"] = counters.drafted;
  row["verified"] = counters.verified_rows;
  row["accepted"] = counters.accepted;
  row["plans"] = plans;
  Json& columns = row["cycle"] = Json::object();
  for (const char* name : {"draft_us", "verify_us", "commit_us", "host_us", "rows", "depth", "accepted", "plan"})
    columns[name] = Json::array();
  for (const Cycle& c : cycles) {
    columns["draft_us"].push_back(std::lround(c.draft_us));
    columns["verify_us"].push_back(std::lround(c.verify_us));
    columns["commit_us"].push_back(std::lround(c.commit_us));
    columns["host_us"].push_back(std::lround(std::max(0.0, c.us - c.draft_us - c.verify_us - c.commit_us)));
    columns["rows"].push_back(c.rows);
    columns["depth"].push_back(c.depth);
    columns["accepted"].push_back(c.accepted);
    columns["plan"].push_back(c.plan);
  }
}

void CycleWatch::stepped(TimePoint begin) {
  const CycleTiming now = generation_.timing();
  const SpeculationCounters counters = generation_.counters();
  answer_.cycles.push_back({.us = 1e6 * (now.decode_s - timed_.decode_s),
                            .draft_us = 1e6 * (now.draft_s - timed_.draft_s),
                            .verify_us = 1e6 * (now.verify_s - timed_.verify_s),
                            .commit_us = 1e6 * (now.commit_s - timed_.commit_s),
                            .rows = 1 + generation_.last_proposal().size(),
                            .depth = deepest(generation_.last_proposal()),
                            .accepted = static_cast<int>(counters.accepted - counted_.accepted),
                            .plan = plan_of(answer_, counted_, counters),
                            .begin = begin});
  counted_ = counters;
  timed_ = now;
}

void CycleWatch::finish() {
  answer_.tokens.assign(generation_.tokens().begin(), generation_.tokens().end());
  answer_.prefill_s = generation_.prefill_seconds();
  answer_.timing = generation_.timing();
  answer_.counters = generation_.counters();
}

Result<MeasuredAnswer> measure_answer(TargetModel& target, LaneState& lane, std::span<const TokenId> prompt,
                                      std::span<const TokenId> history, const GenerationOptions& options,
                                      Speculation speculation, const Clock& clock) {
  MeasuredAnswer answer;
  Generation generation(target, lane, options, clock, std::move(speculation));
  TRY(generation.start(prompt, {}, history));
  CycleWatch watch(generation, answer);
  while (!generation.finished()) {
    const TimePoint begin = clock.now();
    TRY(generation.step());
    watch.stepped(begin);
  }
  watch.finish();
  return answer;
}

}  // namespace foretoken
