// Scheduler: who gets a lane, and what the next pass does. Pure: it sees counts and times, no tensors and no tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"

namespace foretoken {

struct SchedulerOptions {
  double decode_share = 0.5;   // of the time, for answers under way, while prompts wait too; (0, 1)
  int prefill_chunk = 512;     // rows of a prompt pass
  int chunk_beside_decode = 128;  // the same while answers are under way: what one of their tokens may have to wait for
  int most_overtaken = 8;      // later requests that may go before one
};

struct WaitingRequest {
  uint64_t id = 0;
  int priority = 0;
  uint64_t arrival = 0;        // order of arrival
  int64_t rows_left = 0;       // of its prompt, as far as is known
  bool resumed = false;        // it had a lane before
  bool held = false;           // it waits for another's prefix: not now
};

enum class Turn : uint8_t { kIdle, kDecode, kPrefill };

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // Who gets the next free lane: the highest priority; in it whoever has been overtaken as often as is allowed, then those that had a lane
  // before, then the shortest rest of a prompt, then the earliest.
  std::optional<uint64_t> next(std::span<const WaitingRequest> waiting);
  void forget(uint64_t id) { overtaken_.erase(id); }
  int overtaken(uint64_t id) const;

  // What the next pass does when both are possible: whoever is behind its share of the time.
  Turn turn(bool can_decode, bool can_prefill) const;
  void ran(Turn turn, double seconds);
  int chunk(bool can_decode) const { return can_decode ? std::min(options_.chunk_beside_decode, options_.prefill_chunk) : options_.prefill_chunk; }
  // Order in which lanes fill a prompt pass: shortest rest first, but a lane that was passed over most_overtaken times before all others.
  std::vector<uint64_t> prefill_order(std::span<const WaitingRequest> lanes);

 private:
  SchedulerOptions options_;
  std::map<uint64_t, int> overtaken_;    // by requests that came later, while it waited
  std::map<uint64_t, int> passed_over_;  // prompt passes without it, while it had a lane
  double decode_s_ = 0, prefill_s_ = 0;  // of late
};

}  // namespace foretoken
