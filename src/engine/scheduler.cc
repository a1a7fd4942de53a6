// Choices from counts; ties always go to whoever came first, so that the same facts give the same order.
#include "engine/scheduler.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace foretoken {
namespace {

constexpr double kRecentSeconds = 2.0;  // of passes that the shares are reckoned over

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options) : options_(options) {
  CHECK(options.decode_share > 0);
  CHECK(options.decode_share < 1);
  CHECK(options.prefill_chunk >= 1);
  CHECK(options.chunk_beside_decode >= 1);
}

int Scheduler::overtaken(uint64_t id) const {
  const auto it = overtaken_.find(id);
  return it == overtaken_.end() ? 0 : it->second;
}

std::optional<uint64_t> Scheduler::next(std::span<const WaitingRequest> waiting) {
  const auto key = [this](const WaitingRequest& w) {
    const bool due = overtaken(w.id) >= options_.most_overtaken;
    return std::tuple(-w.priority, !due, due ? 0 : !w.resumed, due ? 0 : w.rows_left, w.arrival);
  };
  const WaitingRequest* best = nullptr;
  for (const WaitingRequest& w : waiting)
    if (!w.held && (best == nullptr || key(w) < key(*best))) best = &w;
  if (best == nullptr) return std::nullopt;
  for (const WaitingRequest& w : waiting)
    if (w.arrival < best->arrival && w.priority == best->priority && !w.held) ++overtaken_[w.id];
  overtaken_.erase(best->id);
  return best->id;
}

Turn Scheduler::turn(bool can_decode, bool can_prefill) const {
  if (!can_decode && !can_prefill) return Turn::kIdle;
  if (!can_prefill) return Turn::kDecode;
  if (!can_decode) return Turn::kPrefill;
  return decode_s_ * (1 - options_.decode_share) <= prefill_s_ * options_.decode_share ? Turn::kDecode : Turn::kPrefill;
}

void Scheduler::ran(Turn turn, double seconds) {
  (turn == Turn::kDecode ? decode_s_ : prefill_s_) += seconds;
  const double total = decode_s_ + prefill_s_;
  if (total <= kRecentSeconds) return;
  decode_s_ *= kRecentSeconds / total;
  prefill_s_ *= kRecentSeconds / total;
}

std::vector<uint64_t> Scheduler::prefill_order(std::span<const WaitingRequest> lanes) {
  const auto key = [this](const WaitingRequest& w) {
    const auto it = passed_over_.find(w.id);
    const bool due = it != passed_over_.end() && it->second >= options_.most_overtaken;
    return std::tuple(-w.priority, !due, due ? 0 : w.rows_left, w.arrival);
  };
  std::vector<WaitingRequest> order(lanes.begin(), lanes.end());
  std::sort(order.begin(), order.end(), [&](const WaitingRequest& a, const WaitingRequest& b) { return key(a) < key(b); });
  std::map<uint64_t, int> passed_over;
  std::vector<uint64_t> ids;
  for (const WaitingRequest& w : order) {
    if (!ids.empty()) passed_over[w.id] = passed_over_[w.id] + 1;
    ids.push_back(w.id);
  }
  passed_over_ = std::move(passed_over);  // whoever is first, or gone, starts anew
  return ids;
}

}  // namespace foretoken
