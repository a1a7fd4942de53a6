// The life of a request: submitted, waiting for a lane (or for its prefix from the disk, or from another request), placed, its prompt in
// chunks, its answer in cycles, perhaps suspended and placed again, finished.
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace foretoken {
namespace {

constexpr int64_t kWorthWaiting = 64;  // tokens of a prefix that a request waits for instead of computing them
constexpr int64_t kWorthLoading = 32;  // tokens that a disk entry must hold beyond the cache's

int64_t pages_of(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

size_t pages_limit(const EngineOptions& options, size_t page_bytes) {
  if (options.pages > 0) return options.pages;
  const size_t cached = options.cache.enabled && page_bytes > 0 ? options.cache.limit_bytes / page_bytes : 0;
  return static_cast<size_t>(options.lanes) * static_cast<size_t>(pages_of(options.max_context + kMaxNodes + 1) + 1) + cached;
}

int64_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  const size_t n = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin()).first - a.begin();
}

}  // namespace

struct Engine::Job {
  enum class Phase : uint8_t { kWaiting, kLoading, kActive, kEnded };

  RequestId id = 0;
  Request request;
  std::unique_ptr<Sequence> sequence;
  Phase phase = Phase::kWaiting;
  Lane* lane = nullptr;
  bool had_lane = false, disk_asked = false, own_drafters = false;
  DiskLoadId load = 0;
  uint64_t disk_entry = 0;
  std::vector<int64_t> captures;   // lengths at which a checkpoint will be taken, ascending, all beyond the lane's
  int64_t last_capture = 0;
  int64_t coming = 0;              // tokens of a prefix that is on its way from the host tier
  bool short_of_pages = false;     // for such a prefix: not now
  size_t reported = 0;             // tokens
  int64_t reached = 0;             // tokens that its lanes have held at most
  TimePoint submitted{}, placed{};
  RequestResult result;

  std::span<const TokenId> known() const { return sequence->known(); }
  std::span<const TokenId> coming_tokens() const { return known().first(static_cast<size_t>(coming)); }
  int64_t length() const { return lane->state->length(); }
  bool prefilling() const { return phase == Phase::kActive && sequence->decided_rows() > 0; }
  bool decoding() const { return phase == Phase::kActive && sequence->decided_rows() == 0; }
  WaitingRequest facts(int64_t rows_left, bool held = false) const {
    return {.id = id, .priority = request.priority, .arrival = id, .rows_left = rows_left, .resumed = had_lane, .held = held};
  }
};

Engine::Engine(TargetModel& target, DraftModels* drafts, const EngineOptions& options, const Clock& clock, DiskTier* disk)
    : target_(target), drafts_(drafts), options_(options), clock_(clock), disk_(disk), scheduler_(options.schedule) {
  CHECK(options.lanes >= 1);
  CHECK(options.lanes <= target.options().max_rows);
  const size_t limit = pages_limit(options, target.pages().layout().page_bytes());
  CHECK(limit >= static_cast<size_t>(pages_of(options.max_context + kMaxNodes + 1)));
  target.pages().set_limit(limit);
  cache_ = std::make_unique<PrefixCache>(options.cache, target.pages());
  lanes_.resize(static_cast<size_t>(options.lanes));
  totals_.pages_limit = limit;
}

Engine::~Engine() = default;

// ---- Requests come and go

Result<RequestId> Engine::submit(Request request) {
  const auto refuse = [this](Error error) {
    ++totals_.refused;
    return error;
  };
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  SequenceOptions how{.sampling = request.sampling, .max_tokens = request.max_tokens, .stop_tokens = request.stop_tokens,
                      .rules = request.rules.get(), .logprobs = request.logprobs};
  if (const Status valid = Sequence::check(request.prompt, how, target_.config().vocab); !valid) return refuse(valid.error());
  if (prompt > options_.max_context)
    return refuse({ErrorCode::kUsage, fmt::format("the prompt has {} tokens and the context is {}: shorten it or raise --max-context", prompt, options_.max_context)});
  const size_t waiting = static_cast<size_t>(std::count_if(jobs_.begin(), jobs_.end(), [](const auto& j) { return j->phase == Job::Phase::kWaiting || j->phase == Job::Phase::kLoading; }));
  if (waiting >= options_.queue) return refuse({ErrorCode::kBusy, fmt::format("{} requests wait already: try again later", waiting)});
  how.max_tokens = std::min(how.max_tokens, options_.max_context - prompt + 1);

  auto job = std::make_unique<Job>();
  job->id = next_id_++;
  job->submitted = clock_.now();
  job->result.prompt_tokens = prompt;
  Speculation speculation;
  if (drafts_ != nullptr && request.speculate) {
    job->own_drafters = !request.routes.empty();
    if (!job->own_drafters && !spare_drafters_.empty()) {
      speculation.drafters = std::move(spare_drafters_.back());
      spare_drafters_.pop_back();
    } else {
      speculation.drafters = drafts_->make(request.routes);
    }
    speculation.options = request.speculation.value_or(options_.speculation);
    speculation.memory = &drafts_->memory();
  }
  job->sequence = std::make_unique<Sequence>(std::move(request.prompt), std::move(how), std::move(speculation), clock_);
  if (request.ends) job->sequence->on_token(request.ends);
  job->request = std::move(request);
  ++totals_.submitted;
  jobs_.push_back(std::move(job));
  return jobs_.back()->id;
}

void Engine::cancel(RequestId id) { cancelled_.push_back(id); }

void Engine::end_early(TimePoint now) {
  for (const RequestId id : std::exchange(cancelled_, {}))
    if (Job* job = find(id)) {
      job->sequence->cancel();
      finish(*job, std::nullopt);
    }
  std::vector<Job*> overdue;  // a request's events may submit others
  for (const auto& job : jobs_)
    if (job->phase != Job::Phase::kEnded && job->request.deadline && *job->request.deadline <= now) overdue.push_back(job.get());
  for (Job* job : overdue)
    finish(*job, Error{ErrorCode::kTimeout, fmt::format("the deadline passed after {} of the answer's tokens", job->sequence->tokens().size())});
  // Those that asked for no token, and what the events above submitted of that kind.
  for (size_t i = 0; i < jobs_.size(); ++i)
    if (jobs_[i]->phase == Job::Phase::kWaiting && jobs_[i]->sequence->finished()) finish(*jobs_[i], std::nullopt);
}

std::optional<TimePoint> Engine::next_deadline() const {
  std::optional<TimePoint> earliest;
  for (const auto& job : jobs_)
    if (job->request.deadline && (!earliest || *job->request.deadline < *earliest)) earliest = job->request.deadline;
  return earliest;
}

bool Engine::step() {
  const TimePoint begin = clock_.now();
  const double worked = totals_.draft_s + totals_.forward_s + totals_.settle_s;
  end_early(begin);
  poll_disk();
  poll_host();
  admit();
  bool can_decode = false, can_prefill = false;
  for (const auto& job : jobs_) {
    can_decode |= job->decoding();
    can_prefill |= job->prefilling();
  }
  const Turn turn = scheduler_.turn(can_decode, can_prefill);
  const bool ended = std::any_of(jobs_.begin(), jobs_.end(), [](const auto& j) { return j->phase == Job::Phase::kEnded; });
  const bool ran = (turn == Turn::kDecode && decode_pass()) || (turn == Turn::kPrefill && prefill_pass());
  if (!ran && turn == Turn::kDecode && can_prefill) prefill_pass();  // all answers gave way, or all prompts
  if (!ran && turn == Turn::kPrefill && can_decode) decode_pass();
  drop_ended();
  const double seconds = seconds_between(begin, clock_.now());
  if (turn != Turn::kIdle) scheduler_.ran(turn, seconds);
  (turn == Turn::kPrefill ? totals_.prefill_s : totals_.decode_s) += seconds;
  totals_.other_s += seconds - (totals_.draft_s + totals_.forward_s + totals_.settle_s - worked);
  return turn != Turn::kIdle || ended;
}

// ---- Lanes

void Engine::poll_disk() {
  if (disk_ == nullptr) return;
  for (DiskLoad& load : disk_->poll()) {
    Job* job = nullptr;
    for (const auto& j : jobs_)
      if (j->phase == Job::Phase::kLoading && j->load == load.id) job = j.get();
    if (job != nullptr) job->phase = Job::Phase::kWaiting;
    if (load.fault) continue;
    const int64_t length = static_cast<int64_t>(load.entry.tokens.size());
    if (!evict_for(static_cast<size_t>(pages_of(length)))) continue;
    const auto bytes = [](const Buffer& b) { return std::span<const std::byte>(b.data(), b.size()); };
    auto checkpoint = Checkpoint::from_bytes(target_.config(), target_.pages(), length, bytes(load.entry.pages), bytes(load.entry.state));
    if (checkpoint == nullptr || !checkpoint->finite()) {
      if (job != nullptr) disk_->discard(job->disk_entry);
      continue;
    }
    const auto drafts = bytes(load.entry.drafter);
    cache_->publish(load.entry.tokens, std::move(checkpoint), {drafts.begin(), drafts.end()});
  }
}

// Requests whose prefix has come from the host tier take it over, or wait for a lane again if it had to leave at once.
void Engine::poll_host() {
  cache_->tend();
  std::vector<Job*> arrived;  // a request's events may submit others
  for (const auto& job : jobs_)
    if (job->phase == Job::Phase::kLoading && job->coming > 0 && !cache_->arriving(job->coming_tokens())) arrived.push_back(job.get());
  for (Job* job : arrived) {
    if (cache_->refresh(job->coming_tokens()).checkpoint == nullptr) {
      release_lane(*job);
      continue;
    }
    job->coming = 0;
    place(*job, *job->lane);
  }
}

bool Engine::waits_for_copies() const {
  return std::any_of(jobs_.begin(), jobs_.end(), [](const auto& j) { return j->phase == Job::Phase::kLoading; });
}

void Engine::admit() {
  for (const auto& job : jobs_) job->short_of_pages = false;
  for (Lane& lane : lanes_) {
    while (lane.job == nullptr) {
      std::vector<WaitingRequest> waiting;
      std::vector<int64_t> cached;
      for (const auto& job : jobs_) {
        if (job->phase != Job::Phase::kWaiting || job->sequence->finished()) continue;
        cached.push_back(cache_->peek(job->known(), job->sequence->restorable()).longest());
        const int64_t left = static_cast<int64_t>(job->known().size()) - cached.back();
        waiting.push_back(job->facts(left, hold_for_producer(*job, cached.back()) || job->short_of_pages));
      }
      const std::optional<RequestId> next = scheduler_.next(waiting);
      if (!next) return;
      size_t i = 0;
      while (waiting[i].id != *next) ++i;
      Job& job = *find(*next);
      if (!wants_disk(job, cached[i]) && !wants_host(job, lane)) place(job, lane);
    }
  }
}

// Whether a longer prefix is on its way from the host tier into the lane, or waits for pages that requests with a better claim have.
bool Engine::wants_host(Job& job, Lane& lane) {
  PrefixCache::Match match = cache_->peek(job.known(), job.sequence->restorable());
  if (target_.pages().pages_free() < Checkpoint::new_pages(match.length)) {
    cache_->refresh(job.known().first(static_cast<size_t>(match.length)));
    evict_for(1);  // perhaps that prefix itself, when there is no other
    match = cache_->peek(job.known(), job.sequence->restorable());
  }
  if (match.away < match.length + kWorthLoading) return false;
  const auto tokens = job.known().first(static_cast<size_t>(match.away));
  while (!cache_->bring_in(tokens)) {
    if (!cache_->contains(tokens)) return false;
    Job* least = victim(&job);
    if (least == nullptr) return false;
    job.short_of_pages = claim(*least) < claim(job);
    if (job.short_of_pages) return true;
    suspend(*least);
  }
  job.coming = match.away;
  job.phase = Job::Phase::kLoading;
  job.lane = &lane;
  lane.job = &job;
  if (lane.state == nullptr) lane.state = target_.make_lane();
  lane.state->reserve_rows(1);  // the page that it will need of its own
  return true;
}

// Whether the disk holds a longer prefix, which is then on its way.
bool Engine::wants_disk(Job& job, int64_t cached) {
  if (disk_ == nullptr || job.disk_asked) return false;
  job.disk_asked = true;
  const std::optional<DiskMatch> match = disk_->find(job.known(), job.sequence->restorable());
  if (!match || match->tokens < cached + kWorthLoading) return false;
  job.load = disk_->begin_load(*match, job.known());
  job.disk_entry = match->entry;
  job.phase = Job::Phase::kLoading;
  return true;
}

// Whether a prompt under way will soon leave a checkpoint that is worth waiting for; it is asked for one where the two part.
bool Engine::hold_for_producer(const Job& job, int64_t cached) {
  if (!options_.cache.enabled) return false;
  for (const auto& producer : jobs_) {
    if (!producer->prefilling()) continue;
    const int64_t shared = std::min(common_prefix(producer->known(), job.known()), job.sequence->restorable());
    auto& captures = producer->captures;
    const auto behind = std::upper_bound(captures.begin(), captures.end(), shared);
    const int64_t coming = behind == captures.begin() ? 0 : *(behind - 1);
    if (shared - std::max({cached, producer->length(), coming}) >= kWorthWaiting) captures.insert(behind, shared);
    else if (coming - cached < kWorthWaiting) continue;
    return true;
  }
  return false;
}

void Engine::place(Job& job, Lane& lane) {
  const TimePoint now = clock_.now();
  if (lane.state == nullptr) lane.state = target_.make_lane();
  LaneState& state = *lane.state;
  CHECK(state.length() == 0);
  Sequence& sequence = *job.sequence;
  PrefixCache::Match match;
  if (!state.pages().empty() || evict_for(1)) match = cache_->lookup(job.known(), sequence.restorable());
  if (match.checkpoint != nullptr) state.restore(*match.checkpoint);
  sequence.attach(state, match.drafts);
  lane.job = &job;
  job.lane = &lane;
  job.phase = Job::Phase::kActive;
  job.last_capture = state.length();
  if (!job.had_lane) {
    job.placed = now;
    job.result.queue_s = seconds_between(job.submitted, now);
    if (match.shared > match.length)
      job.result.cache_note = fmt::format("the first {} tokens were computed before, and the last checkpoint in them is at {}", match.shared, match.length);
    else if (match.length > 0)
      job.result.cache_note = fmt::format("differs from every earlier prompt behind token {}", match.length);
    else
      job.result.cache_note = "no earlier prompt begins like this";
  }
  // A suspended prompt may find more than it had computed, because others went on.
  const int64_t gained = std::max<int64_t>(0, match.length - job.reached);
  job.reached += gained;
  job.result.cached_tokens += gained;
  totals_.restored_tokens += static_cast<uint64_t>(gained);
  if (!job.had_lane || gained > 0) report_progress(job);
  job.had_lane = true;
  plan_captures(job, match.shared);
}

// Where later prompts may want to begin: ends of turns, every so often, where this prompt parts from an earlier one, and its end.
void Engine::plan_captures(Job& job, int64_t matched) {
  job.captures.clear();
  if (!options_.cache.enabled || job.sequence->decided_rows() == 0) return;
  const int64_t length = job.length(), end = length + job.sequence->decided_rows();
  std::vector<int64_t>& at = job.captures;
  if (end == job.result.prompt_tokens) {
    at = job.request.boundaries;
    if (std::none_of(at.begin(), at.end(), [&](int64_t b) { return b < end && b >= end - 2 * kPageTokens; })) at.push_back((end - 1) / kPageTokens * kPageTokens);
    if (matched - length >= kPageTokens) at.push_back(std::min(matched, end - 1));
    at.push_back(end);
  }
  for (int64_t n = (length / options_.cache.checkpoint_every + 1) * options_.cache.checkpoint_every; n < end; n += options_.cache.checkpoint_every) at.push_back(n);
  std::sort(at.begin(), at.end());
  at.erase(std::unique(at.begin(), at.end()), at.end());
  std::erase_if(at, [&](int64_t n) { return n <= length || n > end; });
}

// ---- Memory

// Pages for lanes: the cache gives first, then whoever is least entitled, which may be `needy` itself; it runs only when it is still active.
// False when it cannot have them alone.
bool Engine::make_room(size_t pages, Job& needy) {
  for (;;) {
    if (evict_for(pages)) return true;
    Job* least = victim(&needy);
    if (least == nullptr) return false;
    const bool itself = claim(needy) > claim(*least);
    suspend(itself ? needy : *least);
    if (itself) return true;
  }
}

bool Engine::evict_for(size_t pages) {
  while (target_.pages().pages_free() < pages)
    if (!cache_->evict()) return false;
  return true;
}

Engine::Job* Engine::victim(const Job* needy) {
  Job* least = nullptr;
  for (const auto& job : jobs_)
    if ((job->phase == Job::Phase::kActive || job->coming > 0) && job.get() != needy &&
        (least == nullptr || claim(*job) > claim(*least)))
      least = job.get();
  return least;
}

// Who has less of a claim to pages has the larger one.
std::pair<int, RequestId> Engine::claim(const Job& job) { return {-job.request.priority, job.id}; }

// Gives the lane back. What it held goes to the cache, as far as there is room, and is found there when the request has a lane again.
void Engine::suspend(Job& job) {
  if (job.coming > 0) {
    cache_->await(job.coming_tokens());  // and may leave again
    release_lane(job);
    return;
  }
  publish(job, true, LaneAfter::kIsEmpty);
  job.sequence->detach();
  release_lane(job);
  job.disk_asked = false;
  ++job.result.preemptions;
  ++totals_.preemptions;
}

// Back to the queue.
void Engine::release_lane(Job& job) {
  job.lane->state->reset();
  job.lane->job = nullptr;
  job.lane = nullptr;
  job.coming = 0;
  job.phase = Job::Phase::kWaiting;
}

bool Engine::preempt(RequestId id) {
  Job* job = find(id);
  if (job == nullptr || job->phase != Job::Phase::kActive) return false;
  suspend(*job);
  return true;
}

// ---- Passes

bool Engine::prefill_pass() {
  bool decoding = false;
  std::vector<WaitingRequest> lanes;
  for (const auto& job : jobs_) {
    decoding |= job->decoding();
    if (job->prefilling()) lanes.push_back(job->facts(job->sequence->decided_rows()));
  }
  const std::vector<uint64_t> order = scheduler_.prefill_order(lanes);
  int budget = std::min(scheduler_.chunk(decoding), target_.options().max_rows);
  std::vector<Job*> jobs;
  pass_.clear();
  for (const uint64_t id : order) {
    Job& job = *find(id);
    if (budget == 0 || job.phase != Job::Phase::kActive) continue;
    const int64_t stop = job.captures.empty() ? std::numeric_limits<int64_t>::max() : job.captures.front();
    const int rows = static_cast<int>(std::min({static_cast<int64_t>(budget), job.sequence->decided_rows(), stop - job.length()}));
    // One page more for the checkpoint; only the first may push others out, before any row is in the pass.
    const size_t pages = job.lane->state->pages_needed(rows) + 1;
    const bool first = jobs.empty();
    if (first ? !make_room(pages, job) : !evict_for(pages)) {
      if (first) finish(job, Error{ErrorCode::kOutOfMemory, "there are not enough K/V pages for this request alone: lower --max-context or raise --max-memory"});
      break;
    }
    if (job.phase != Job::Phase::kActive) continue;
    job.lane->state->reserve_rows(rows);
    totals_.recomputed_rows += static_cast<uint64_t>(std::clamp<int64_t>(job.reached - job.length(), 0, rows));
    job.sequence->add_decided(pass_, rows, stop);
    jobs.push_back(&job);
    budget -= rows;
  }
  if (jobs.empty()) return false;
  const TimePoint begin = clock_.now();
  const ForwardResult result = pass_.run(target_);
  totals_.prompt_rows += static_cast<uint64_t>(pass_.rows());
  ++totals_.prefill_passes;
  settle(jobs, result, seconds_between(begin, clock_.now()));
  return true;
}

bool Engine::decode_pass() {
  std::vector<Job*> jobs;
  for (const auto& job : jobs_)
    if (job->decoding()) jobs.push_back(job.get());
  if (jobs.empty()) return false;
  const int most_rows = std::min(1 + kMaxNodes, target_.options().max_rows / static_cast<int>(jobs.size()));
  // Whoever came first keeps its lane when pages run out.
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i]->phase != Job::Phase::kActive) continue;
    if (!make_room(jobs[i]->lane->state->pages_needed(most_rows), *jobs[i])) {
      finish(*jobs[i], Error{ErrorCode::kOutOfMemory, "there are not enough K/V pages for this request alone: lower --max-context or raise --max-memory"});
      continue;
    }
    if (jobs[i]->phase == Job::Phase::kActive) jobs[i]->lane->state->reserve_rows(most_rows);
  }
  std::erase_if(jobs, [](const Job* job) { return job->phase != Job::Phase::kActive; });
  if (jobs.empty()) return false;

  const TimePoint begin = clock_.now();
  OtherLanes all{.lanes = static_cast<int>(jobs.size()) - 1, .rows = 0, .tokens = 0};
  for (const Job* job : jobs) {
    all.rows += job->sequence->cycle_rows();
    all.tokens += job->sequence->recent_tokens();
  }
  const auto without = [&all](const Sequence& s) { return OtherLanes{all.lanes, all.lanes == 0 ? 0 : all.rows - s.cycle_rows(), all.lanes == 0 ? 0.0 : all.tokens - s.recent_tokens()}; };
  std::vector<Speculator*> speculators;
  for (Job* job : jobs) {
    job->sequence->plan(without(*job->sequence), most_rows);
    speculators.push_back(&job->sequence->speculator());
  }
  Speculator::draft(speculators);
  pass_.clear();
  for (Job* job : jobs) {
    const OtherLanes others = without(*job->sequence);
    job->sequence->add_cycle(pass_, others);
    all.rows = others.rows + job->sequence->cycle_rows();
  }
  const TimePoint drafted = clock_.now();
  const ForwardResult result = pass_.run(target_);
  totals_.draft_s += seconds_between(begin, drafted);
  totals_.decode_rows += static_cast<uint64_t>(pass_.rows());
  ++totals_.decode_passes;
  settle(jobs, result, seconds_between(drafted, clock_.now()));
  return true;
}

void Engine::settle(std::span<Job* const> jobs, const ForwardResult& result, double forward_s) {
  const TimePoint begin = clock_.now();
  Sequence::PassFacts facts{.rows = pass_.rows(), .lanes = pass_.lanes(), .forward_s = forward_s, .learn_cost = true};
  std::vector<std::optional<Error>> errors(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (const Status done = jobs[i]->sequence->settle(target_, result, facts); !done) errors[i] = done.error();
    jobs[i]->reached = std::max(jobs[i]->reached, jobs[i]->length());
    facts.learn_cost = false;
  }
  totals_.forward_s += forward_s;
  totals_.settle_s += seconds_between(begin, clock_.now());
  for (size_t i = 0; i < jobs.size(); ++i) {
    Job& job = *jobs[i];
    report_tokens(job);
    if (errors[i]) finish(job, std::move(errors[i]));
    else if (job.sequence->finished()) finish(job, std::nullopt);
    else capture(job);
  }
}

void Engine::report_progress(Job& job) {
  if (!job.request.events) return;
  job.request.events({.kind = RequestEvent::Kind::kProgress, .id = job.id, .prompt_done = std::min(job.reached, job.result.prompt_tokens),
                      .prompt_total = job.result.prompt_tokens, .cached_tokens = job.result.cached_tokens});
}

void Engine::report_tokens(Job& job) {
  const size_t now = job.sequence->tokens().size();
  const size_t first = std::exchange(job.reported, now);
  if (first == 0 && now > 0) job.result.prefill_s = seconds_between(job.placed, clock_.now());
  totals_.emitted_tokens += now - first;
  if (first == 0) report_progress(job);
  if (now > first && job.request.events)
    job.request.events({.kind = RequestEvent::Kind::kTokens, .id = job.id, .sequence = job.sequence.get(), .first = first, .count = now - first});
}

// ---- Checkpoints

void Engine::capture(Job& job) {
  const int64_t length = job.length();
  bool wanted = length - job.last_capture >= options_.cache.checkpoint_every;
  while (!job.captures.empty() && job.captures.front() <= length) {
    wanted |= job.captures.front() == length;
    job.captures.erase(job.captures.begin());
  }
  // The disk is spared what the answer's end will supersede, and stepping stones inside a prompt.
  const bool passing = length == job.result.prompt_tokens || length % options_.cache.checkpoint_every == 0 || !job.sequence->tokens().empty();
  if (wanted) publish(job, !passing, LaneAfter::kGoesOn);
}

void Engine::publish(Job& job, bool to_disk, LaneAfter after) {
  LaneState& state = *job.lane->state;
  const int64_t length = state.length();
  if (!options_.cache.enabled || length == 0) return;
  job.last_capture = length;
  const auto tokens = job.known().first(static_cast<size_t>(length));
  const PrefixCache::Match known = cache_->refresh(tokens);
  const bool whole = !known.drafts.empty() || drafts_ == nullptr || !job.request.speculate;
  const Checkpoint* published = whole ? known.checkpoint : nullptr;
  if (published == nullptr) {
    if (after == LaneAfter::kGoesOn && !evict_for(Checkpoint::new_pages(length))) return;
    std::vector<std::byte> drafts = job.sequence->save_drafts();
    published = cache_->publish(tokens, after == LaneAfter::kGoesOn ? state.checkpoint() : state.give_up(), std::move(drafts));
  }
  if (published == nullptr || disk_ == nullptr || !to_disk) return;
  const std::vector<std::byte> recurrent = published->recurrent();
  const PrefixCache::Match match = cache_->peek(tokens, length);
  disk_->store({.tokens = tokens,
                .copy_page = [&](int64_t page, std::span<std::byte> out) {
                  const std::vector<std::byte> bytes = published->page(static_cast<size_t>(page));
                  std::copy(bytes.begin(), bytes.end(), out.begin());
                },
                .state = {.bytes = recurrent, .owner = nullptr},
                .drafter = {.bytes = match.drafts, .owner = nullptr}});
}

// ---- Ends

void Engine::finish(Job& job, std::optional<Error> error) {
  if (job.phase == Job::Phase::kEnded) return;
  const bool kept = !error && job.phase == Job::Phase::kActive;
  if (!job.sequence->finished()) job.sequence->cancel();
  RequestResult& r = job.result;
  r.reason = job.sequence->reason();
  r.error = std::move(error);
  r.answer_tokens = static_cast<int64_t>(job.sequence->tokens().size());
  r.total_s = seconds_between(job.submitted, clock_.now());
  r.decode = job.sequence->timing();
  r.counters = job.sequence->counters();
  r.dormant = job.sequence->dormant();
  ++(r.error ? totals_.failed : r.reason == FinishReason::kCancelled ? totals_.cancelled : totals_.finished);
  totals_.speculation.add(r.counters);
  if (job.request.events) job.request.events({.kind = RequestEvent::Kind::kFinished, .id = job.id, .sequence = job.sequence.get(), .result = &r});
  if (kept) publish(job, true, LaneAfter::kIsEmpty);
  release(job);
}

void Engine::release(Job& job) {
  if (job.lane != nullptr) {
    job.lane->state->reset();
    job.lane->job = nullptr;
    job.lane = nullptr;
  }
  job.coming = 0;
  scheduler_.forget(job.id);
  if (!job.own_drafters && job.request.speculate && drafts_ != nullptr && spare_drafters_.size() < lanes_.size())
    spare_drafters_.push_back(job.sequence->release_drafters());
  job.phase = Job::Phase::kEnded;
}

void Engine::drop_ended() {
  std::erase_if(jobs_, [](const auto& job) { return job->phase == Job::Phase::kEnded; });
}

void Engine::release_lanes() {
  CHECK(idle());
  for (Lane& lane : lanes_) lane.state.reset();
  spare_drafters_.clear();
}

Engine::Job* Engine::find(RequestId id) {
  for (const auto& job : jobs_)
    if (job->id == id && job->phase != Job::Phase::kEnded) return job.get();
  return nullptr;
}
const Engine::Job* Engine::find(RequestId id) const { return const_cast<Engine*>(this)->find(id); }

const LaneState* Engine::lane_of(RequestId id) const {
  const Job* job = find(id);
  return job != nullptr && job->lane != nullptr ? job->lane->state.get() : nullptr;
}

EngineStatus Engine::status() const {
  EngineStatus s = totals_;
  s.lanes = static_cast<int>(lanes_.size());
  s.queue_limit = options_.queue;
  for (const auto& job : jobs_) {
    s.active += job->phase == Job::Phase::kActive;
    s.loading += job->phase == Job::Phase::kLoading;
    s.waiting += job->phase == Job::Phase::kWaiting && !job->had_lane;
    s.suspended += job->phase == Job::Phase::kWaiting && job->had_lane;
  }
  s.pages_in_use = target_.pages().pages_in_use();
  s.page_bytes = target_.pages().layout().page_bytes();
  s.cache = cache_->statistics();
  s.host = cache_->host_statistics();
  if (disk_ != nullptr) s.disk = disk_->statistics();
  return s;
}

}  // namespace foretoken
