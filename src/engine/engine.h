// Engine: many requests on one model. Each step is one pass: the decode cycles of all lanes, or chunks of prompts. Every answer is the one
// the request would have had alone on a cold engine; lanes, order, preemption and cached prefixes change its speed only. Single-threaded:
// one thread calls everything. It knows neither text nor HTTP. docs/engine.md tells the life of a request.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "decode/draft_models.h"
#include "engine/disk_tier.h"
#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "model/target.h"

namespace foretoken {

struct EngineOptions {
  int lanes = 4;
  int64_t max_context = 32768;        // prompt and answer of one request
  size_t queue = 256;                 // requests that may wait
  size_t pages = 0;                   // of K/V in all, lanes' and cached ones; 0: as many as max_context times lanes takes
  SchedulerOptions schedule;
  SpeculationOptions speculation;
  PrefixCacheOptions cache;
};

struct EngineStatus {
  int lanes = 0, active = 0, waiting = 0, suspended = 0, loading = 0;
  size_t queue_limit = 0;
  size_t pages_in_use = 0, pages_limit = 0, page_bytes = 0;
  uint64_t submitted = 0, finished = 0, failed = 0, cancelled = 0, refused = 0, preemptions = 0;
  uint64_t prompt_rows = 0, decode_rows = 0;  // executed: decided tokens', and cycles' with their proposals
  // prompt_rows + restored_tokens is what requests' lanes have held of their prompts, and recomputed_rows: what a suspended request had
  // computed before, prompt or answer, and computed once more.
  uint64_t restored_tokens = 0, recomputed_rows = 0;
  uint64_t emitted_tokens = 0;
  uint64_t decode_passes = 0, prefill_passes = 0;
  double decode_s = 0, prefill_s = 0, draft_s = 0, forward_s = 0, settle_s = 0, other_s = 0;  // of the steps; other_s: all but drafts, forwards, commits
  SpeculationCounters speculation;    // of ended requests
  PrefixCacheStatistics cache;
  std::optional<HostTierStatistics> host;
  std::optional<DiskTierStatistics> disk;
};

class Engine {
 public:
  // `target`, `drafts` (null: plain decoding only), `disk` (may be null) and `clock` must outlive the engine. The target's page pool is the
  // engine's alone.
  Engine(TargetModel& target, DraftModels* drafts, const EngineOptions& options, const Clock& clock, DiskTier* disk = nullptr);
  ~Engine();

  // kUsage: a prompt or option that cannot run; kBusy: the queue is full.
  Result<RequestId> submit(Request request);
  // Takes effect before the next pass; the request's last event comes from the next step(). Unknown ids are ignored.
  void cancel(RequestId id);
  // At most one pass. False when there was nothing to do.
  bool step();
  bool idle() const { return jobs_.empty(); }
  // Something the engine waits for goes on beside it (a disk read, a copy from the host tier): step() again soon.
  bool waits_for_copies() const;
  // Earliest deadline of a request, for a caller that sleeps.
  std::optional<TimePoint> next_deadline() const;

  // Gives the lanes' memory back to the system, and the drafters'; the next request takes it anew. Cached prefixes stay. Only while idle.
  void release_lanes();

  EngineStatus status() const;
  PrefixCache& cache() { return *cache_; }

  // For tests and certificates: the lane of a running request (null otherwise; empty while its prefix is on the way), and a request's forced way back to the queue.
  const LaneState* lane_of(RequestId id) const;
  bool preempt(RequestId id);

 private:
  struct Job;
  struct Lane {
    std::unique_ptr<LaneState> state;  // made when the lane is first used
    Job* job = nullptr;
  };

  void end_early(TimePoint now);
  void poll_disk();
  void poll_host();
  void admit();
  bool wants_disk(Job& job, int64_t cached);
  bool wants_host(Job& job, Lane& lane);
  bool hold_for_producer(const Job& job, int64_t cached);
  void place(Job& job, Lane& lane);
  void plan_captures(Job& job, int64_t matched);
  bool prefill_pass();
  bool decode_pass();
  bool make_room(size_t pages, Job& needy);
  bool evict_for(size_t pages);
  Job* victim(const Job* needy);
  static std::pair<int, RequestId> claim(const Job& job);
  void suspend(Job& job);
  void release_lane(Job& job);
  void settle(std::span<Job* const> jobs, const ForwardResult& result, double forward_s);
  void report_progress(Job& job);
  void report_tokens(Job& job);
  void capture(Job& job);
  enum class LaneAfter : uint8_t { kGoesOn, kIsEmpty };
  void publish(Job& job, bool to_disk, LaneAfter after);
  void finish(Job& job, std::optional<Error> error);
  void release(Job& job);
  Job* find(RequestId id);
  const Job* find(RequestId id) const;
  void drop_ended();

  TargetModel& target_;
  DraftModels* drafts_;
  EngineOptions options_;
  const Clock& clock_;
  DiskTier* disk_;
  std::unique_ptr<PrefixCache> cache_;
  Scheduler scheduler_;
  std::vector<std::unique_ptr<Job>> jobs_;  // in order of arrival
  std::vector<Lane> lanes_;
  std::vector<RequestId> cancelled_;
  std::vector<std::vector<std::unique_ptr<Drafter>>> spare_drafters_;  // of ended requests with all routes
  Pass pass_;
  RequestId next_id_ = 1;
  EngineStatus totals_;
};

}  // namespace foretoken
