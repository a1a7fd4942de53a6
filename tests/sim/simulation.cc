// The script, the watch over every request, and the checks after every step.
#include "sim/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cmath>
#include <set>
#include <stdexcept>

#include "sim/conversations.h"
#include "sim/oracle_drafter.h"
#include "support/simulated_files.h"

namespace foretoken::sim {
namespace {

// Where each thread's simulation is, for report_place_on_abort().
thread_local uint64_t current_seed = 0, current_step = 0;

void on_abort(int) {
  std::fprintf(stderr, "simulation: seed %llu, step %llu; replay with: sim_soak --replay %llu\n", static_cast<unsigned long long>(current_seed),
               static_cast<unsigned long long>(current_step), static_cast<unsigned long long>(current_seed));
}

// Time that passes as the target runs rows.
class CostClock final : public Clock {
 public:
  CostClock(const TargetModel& target, double pass_s, double row_s) : target_(target), pass_s_(pass_s), row_s_(row_s), rows_(target.rows_run()) {}
  TimePoint now() const override {
    if (const uint64_t rows = target_.rows_run(); rows != rows_) {
      seconds_ += pass_s_ + row_s_ * static_cast<double>(rows - rows_);
      rows_ = rows;
    }
    return TimePoint(std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(seconds_)));
  }
  void advance(double seconds) { seconds_ += seconds; }

 private:
  const TargetModel& target_;
  double pass_s_, row_s_;
  mutable uint64_t rows_;
  mutable double seconds_ = 0;
};

constexpr uint64_t kMostSteps = 20000;  // of any request: far beyond what the fairest share of all work takes

}  // namespace

void report_place_on_abort() { std::signal(SIGABRT, on_abort); }

void SimReport::add(const SimReport& o) {
  steps += o.steps, requests += o.requests, finished += o.finished, failed += o.failed, cancelled += o.cancelled, refused += o.refused;
  preemptions += o.preemptions, prompt_tokens += o.prompt_tokens, restored_tokens += o.restored_tokens, answer_tokens += o.answer_tokens;
  forced += o.forced, drafted += o.drafted, accepted += o.accepted, hashes += o.hashes, logprobs += o.logprobs, evictions += o.evictions;
  host_out += o.host_out, host_in += o.host_in, host_dropped += o.host_dropped;
  restarts += o.restarts, lost += o.lost, disk_stored += o.disk_stored, disk_hits += o.disk_hits, disk_faults += o.disk_faults, damaged += o.damaged;
  most_steps = std::max(most_steps, o.most_steps);
  simulated_s += o.simulated_s;
}

SimOptions SimOptions::draw(uint64_t seed) {
  test::TestRandom random(seed * 977 + 5);
  const auto one_of = [&random](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[random.below(static_cast<int>(sizeof...(values)))];
  };
  SimOptions o;
  o.seed = seed;
  o.kv_format = one_of(KvFormat::kBF16, KvFormat::kBF16, KvFormat::kInt8, KvFormat::kF32);
  EngineOptions& e = o.engine;
  e.lanes = 1 + random.below(6);
  e.max_context = one_of(160, 256, 384);
  e.queue = static_cast<size_t>(one_of(6, 40, 100, 100));
  const int least = static_cast<int>((e.max_context + kMaxNodes + kPageTokens) / kPageTokens) + 1;
  e.pages = random.below(2) == 0 ? 0 : static_cast<size_t>(least + random.below(least * e.lanes));
  e.schedule = {.decode_share = one_of(0.2, 0.5, 0.8), .prefill_chunk = one_of(1, 7, 16, 33, 64, 128), .chunk_beside_decode = one_of(1, 8, 24, 100),
                .most_overtaken = one_of(1, 3, 8)};
  e.speculation.verify = one_of(VerifyMode::kAuto, VerifyMode::kAuto, VerifyMode::kChain, VerifyMode::kLive, VerifyMode::kTree);
  e.speculation.width = one_of(0, 0, 0, 3, 8);
  e.cache.enabled = random.below(5) != 0;
  e.cache.limit_bytes = static_cast<size_t>(one_of(0, 30'000, 200'000, 4'000'000));
  e.cache.checkpoint_every = one_of(16, 33, 64, 1024);
  o.max_rows = one_of(16, 70, 128);
  o.speculate = one_of("off", "copy", "mtp", "copy,mtp", "copy,mtp,grammar");
  o.scripted = o.speculate != std::string("off") && random.below(3) != 0;
  o.right = one_of(0.3, 0.7, 0.95);
  o.branching = random.below(2) == 0;
  o.submit = one_of(0.02, 0.1, 0.3);
  o.cancel = one_of(0.0, 0.05, 0.15);
  o.preempt = one_of(0.0, 0.01, 0.1);
  o.burst = one_of(1, 3, 8);
  o.disk = random.below(2) == 0;
  o.disk_bytes = static_cast<uint64_t>(one_of(100'000, 1'000'000, 8'000'000));
  o.restart = one_of(0.0, 0.001, 0.006);
  o.disk_fault = one_of(0.0, 0.01, 0.05);
  o.damage = one_of(0.0, 0.0, 0.02);
  e.cache.host_bytes = static_cast<size_t>(one_of(0, 60'000, 300'000, 8'000'000));
  o.late = one_of(0, 2, 9, 40);
  return o;
}

SimOptions SimOptions::soak(uint64_t seed) {
  SimOptions o;
  o.seed = seed;
  o.engine = {.lanes = 4, .max_context = 384, .queue = 32, .pages = 80,
              .schedule = {.prefill_chunk = 64, .chunk_beside_decode = 24}, .cache = {.limit_bytes = 400'000, .checkpoint_every = 64}};
  o.scripted = true;
  o.branching = true;
  o.submit = 0.15;
  o.preempt = 0.02;
  o.idle_s = 6;
  o.disk = true;
  return o;
}

// One request, what it must answer, and what was heard of it.
struct Watch {
  RequestId id = 0;
  const Answer* answer = nullptr;
  int64_t prompt = 0;
  size_t expected = 0;       // tokens
  FinishReason reason = FinishReason::kNone;  // unless it is cancelled, overdue or fails
  bool fails = false, cancelled = false, hashed = false, ended = false;
  std::optional<TimePoint> deadline;
  int logprobs = -1;
  uint64_t arrived = 0, cancel_at = 0;  // steps
  size_t heard = 0;          // tokens
  int64_t progress = 0, cached = 0;
  RequestResult result;
};

struct Simulation::State {
  SimModel& model;
  SimOptions options;
  std::unique_ptr<TargetModel> target;
  std::unique_ptr<DraftModels> drafts;
  CostClock clock;
  testing::SimulatedFiles files;
  std::unique_ptr<DiskTier> disk;
  std::unique_ptr<Engine> engine;
  uint64_t rows_before = 0;  // this engine
  SimReport before;          // likewise, of what its status counts
  test::TestRandom random;
  Conversations conversations;
  std::map<RequestId, std::unique_ptr<Watch>> watches;  // not ended
  std::set<RequestId> cancelled_late;  // by an event of this step: they end with the next
  SimReport report;
  uint64_t step = 0;
  int left = 0;             // requests to submit
  int64_t prompt_done = 0;  // prompt tokens of ended requests that their lanes held
  bool in_step = false;

  State(SimModel& m, const SimOptions& o)
      : model(m), options(o), target(m.make_target(o.kv_format, o.max_rows)),
        drafts(o.speculate == "off" ? nullptr : m.make_drafts(o.speculate, o.kv_format)), clock(*target, o.pass_s, o.row_s), random(o.seed),
        conversations(o.seed, m.vocab(), o.engine.max_context) {
    if (drafts && o.scripted)
      drafts->offer_scripted([this] { return std::make_unique<OracleDrafter>(model, options.right, options.branching, random.next()); });
    start();
  }

  // The engine of one process, over whatever is on disk.
  void start() {
    if (options.disk) {
      disk = DiskTier::open({.folder = "/cache", .fingerprint = "sim", .page_bytes = target->pages().layout().page_bytes(), .limit_bytes = options.disk_bytes,
                             .queue_bytes = 1 << 20, .write_bytes_per_hour = 0, .least_free_bytes = 0, .least_gain_tokens = 8,
                             .retry = std::chrono::seconds(2), .background = false},
                            files, clock);
    }
    if (model.far() != nullptr) model.far()->set_late(options.late);
    engine = std::make_unique<Engine>(*target, drafts.get(), options.engine, clock, disk.get());
    rows_before = target->rows_run();
    before = report;
    prompt_done = 0;
  }

  // What an engine that is about to end counted.
  void take_counts() {
    const EngineStatus s = engine->status();
    expect_equal(s.finished, report.finished - before.finished, "finished requests");
    expect_equal(s.failed, report.failed - before.failed, "failed requests");
    expect_equal(s.cancelled, report.cancelled - before.cancelled, "cancelled requests");
    expect_equal(s.refused, report.refused - before.refused, "refused requests");
    report.restored_tokens = before.restored_tokens + s.restored_tokens;
    report.drafted = before.drafted + static_cast<uint64_t>(s.speculation.drafted);
    report.accepted = before.accepted + static_cast<uint64_t>(s.speculation.accepted);
    report.evictions = before.evictions + s.cache.evictions;
    if (s.host) {
      report.host_out = before.host_out + s.host->moved_out;
      report.host_in = before.host_in + s.host->moved_in;
      report.host_dropped = before.host_dropped + s.host->dropped;
    }
    if (!s.disk) return;
    report.disk_stored = before.disk_stored + s.disk->stored;
    report.disk_hits = before.disk_hits + s.disk->hits;
    report.disk_faults = before.disk_faults;
    for (const uint64_t faults : s.disk->faults) report.disk_faults += faults;
  }

  // The process ends, by a crash or in order, and another begins. Requests under way are lost.
  void restart() {
    take_counts();
    ++report.restarts;
    report.lost += watches.size();
    const bool crash = chance(0.7);
    if (crash) files.fail(files.operations(), testing::SimulatedFiles::Failure::kDead);
    engine.reset();
    watches.clear();
    expect_equal(target->pages().pages_in_use(), 0u, "pages that an engine left behind");
    disk.reset();
    if (crash) files.crash(random.next());
    start();
  }

  void hurt_the_disk() {
    using Failure = testing::SimulatedFiles::Failure;
    const double kind = random.uniform();
    if (kind < 0.4) files.fail(files.operations() + random.below(12), chance(0.5) ? Failure::kBefore : Failure::kAfter);
    else if (kind < 0.6) files.refuse(chance(0.5) ? "write" : "read");
    else files.heal();
  }

  void flip_a_bit() {
    const std::vector<std::string> paths = files.paths();
    if (paths.empty()) return;
    std::vector<std::byte>& bytes = files.bytes(paths[static_cast<size_t>(random.below(static_cast<int>(paths.size())))]);
    if (bytes.empty()) return;
    bytes[random.next() % bytes.size()] ^= std::byte{1} << random.below(8);
    ++report.damaged;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(fmt::format("seed {}, step {}: {} (sim_soak --replay {})", options.seed, step, what, options.seed));
  }
  template <class A, class B>
  void expect_equal(const A& a, const B& b, const char* what) const {
    if (!std::cmp_equal(a, b)) fail(fmt::format("{}: {} and {}", what, a, b));
  }
  void expect(bool condition, const char* what) const {
    if (!condition) fail(what);
  }
  bool chance(double probability) { return random.uniform() < probability; }
  Watch* any() {
    if (watches.empty()) return nullptr;
    auto it = watches.begin();
    std::advance(it, random.below(static_cast<int>(watches.size())));
    return it->second.get();
  }

  // ---- The script

  void act() {
    if (left > 0 && (watches.empty() || chance(options.submit))) {
      if (watches.empty()) clock.advance(-options.idle_s * std::log(1 - random.uniform()));
      for (int n = 1 + random.below(options.burst); n > 0 && left > 0; --n) submit();
    }
    for (const auto& [id, w] : watches)
      if (w->cancel_at == step) cancel(*w);
    if (chance(options.preempt))
      if (Watch* w = any()) report.forced += engine->preempt(w->id);
    if (chance(options.clear)) engine->cache().clear();
    if (chance(options.evict)) engine->cache().evict();
    if (chance(0.005)) bad_request();
    if (chance(options.restart)) restart();
    if (options.disk && chance(options.disk_fault)) hurt_the_disk();
    if (options.disk && chance(options.damage)) flip_a_bit();
  }

  void cancel(Watch& w) {
    if (w.ended) return;
    engine->cancel(w.id);
    w.cancelled = true;
    if (chance(0.2)) engine->cancel(w.id);      // twice
    if (chance(0.2)) engine->cancel(w.id + 99);  // unknown, or not yet there
  }

  void bad_request() {
    const uint64_t refused = engine->status().refused;
    Request request;
    if (chance(0.5)) request.prompt = {0, model.vocab()};
    expect(!engine->submit(std::move(request)), "a request that cannot run was taken");
    expect_equal(engine->status().refused, refused + 1, "refused requests");
    ++report.refused;
  }

  void submit() {
    --left;
    auto w = std::make_unique<Watch>();
    Conversations::Prompt next = conversations.next();
    Style style = chance(0.45) ? Style::kGreedy : static_cast<Style>(random.below(kStyles));
    if (style == Style::kBanned && chance(0.7)) style = Style::kWarm;
    const Answer& answer = model.answer(options.kv_format, next.tokens, style, random.below(3) / 2);
    w->answer = &answer;
    w->prompt = static_cast<int64_t>(next.tokens.size());
    w->arrived = step;
    if (chance(options.cancel)) w->cancel_at = step + 1 + static_cast<uint64_t>(random.below(random.below(2) == 0 ? 8 : 80));

    Request request;
    request.prompt = next.tokens;
    request.sampling = answer.sampling;
    request.max_tokens = chance(0.06) ? 0 : chance(0.1) ? 1 : 1 + random.below(chance(0.3) ? 40 : 16);
    request.boundaries = next.boundaries;
    request.speculate = !chance(0.1);
    if (drafts && chance(0.1)) {
      const Route route = static_cast<Route>(random.below(kRoutes));
      if (drafts->has(route)) request.routes = {route};
    }
    if (chance(0.05)) request.speculation = SpeculationOptions{.verify = VerifyMode::kTree, .width = 5};
    request.priority = chance(0.1) ? random.below(3) - 1 : 0;
    if (chance(0.08)) request.deadline = w->deadline = clock.now() + std::chrono::milliseconds(random.below(3000));
    if (chance(0.1)) request.logprobs = {.chosen = true, .top = w->logprobs = random.below(4)};
    request.rules = rules_of(style, model.vocab());
    w->hashed = options.hashes && chance(0.08);
    if (w->hashed) model.with_hashes(options.kv_format, answer);
    if (w->logprobs >= 0) model.with_logprobs(options.kv_format, answer);

    const size_t most = static_cast<size_t>(std::min(request.max_tokens, options.engine.max_context - w->prompt + 1));
    w->expected = std::min(most, answer.tokens.size());
    w->fails = answer.fails && most > answer.tokens.size();
    w->reason = FinishReason::kLength;
    const auto stop_behind = [&](size_t count) {  // tokens
      if (count > w->expected) return;
      w->expected = count;
      w->reason = FinishReason::kStop;
      w->fails = false;
    };
    if (!answer.tokens.empty() && chance(0.15)) {
      const TokenId stop = answer.tokens[static_cast<size_t>(random.below(static_cast<int>(answer.tokens.size())))];
      request.stop_tokens = {stop};
      stop_behind(static_cast<size_t>(std::find(answer.tokens.begin(), answer.tokens.end(), stop) - answer.tokens.begin()) + 1);
    }
    if (chance(0.1)) {
      const size_t at = 1 + static_cast<size_t>(random.below(20));
      request.ends = [count = size_t{0}, at](TokenId) mutable { return ++count == at; };
      stop_behind(at);
    }
    Watch* watch = w.get();
    request.events = [this, watch](const RequestEvent& e) { hear(*watch, e); };
    conversations.answered(next, Ids(answer.tokens.begin(), answer.tokens.begin() + static_cast<ptrdiff_t>(w->expected)));

    const EngineStatus before = engine->status();
    const size_t waits = static_cast<size_t>(before.waiting + before.suspended + before.loading);
    const Result<RequestId> id = engine->submit(std::move(request));
    ++report.requests;
    if (waits >= options.engine.queue) {
      expect(!id && id.error().code == ErrorCode::kBusy, "a full queue took a request");
      ++report.refused;
      return;
    }
    if (!id) fail("a request was refused: " + id.error().message);
    w->id = *id;
    watches[*id] = std::move(w);
  }

  // ---- What is heard

  void hear(Watch& w, const RequestEvent& e) {
    expect(in_step, "an event outside a step");
    expect(!w.ended, "an event behind the last one");
    if (w.id != 0) expect_equal(e.id, w.id, "whose event");
    switch (e.kind) {
      case RequestEvent::Kind::kProgress:
        expect(w.heard == 0, "progress of a prompt behind the first token");
        expect_equal(e.prompt_total, w.prompt, "the prompt's length");
        expect(e.prompt_done >= w.progress && e.prompt_done <= w.prompt, "progress goes back");
        expect(e.cached_tokens >= w.cached && e.cached_tokens <= e.prompt_done, "cached tokens of a progress event");
        w.progress = e.prompt_done;
        w.cached = e.cached_tokens;
        break;
      case RequestEvent::Kind::kTokens: hear_tokens(w, e); break;
      case RequestEvent::Kind::kFinished: hear_end(w, *e.result); break;
    }
    // Events may submit and cancel.
    if (left > 0 && chance(0.01)) submit();
    if (chance(0.002))
      if (Watch* other = any()) cancel(*other);
  }

  void hear_tokens(Watch& w, const RequestEvent& e) {
    expect_equal(w.progress, w.prompt, "tokens before the whole prompt");
    expect_equal(e.first, w.heard, "tokens that follow each other");
    expect(e.count > 0, "an event without tokens");
    if (e.first + e.count > w.expected)
      fail(fmt::format("request {}: {} tokens, and alone it has {} ({}{})", w.id, e.first + e.count, w.expected, finish_reason_name(w.reason), w.fails ? ", then fails" : ""));
    const auto tokens = e.sequence->tokens();
    expect_equal(tokens.size(), e.first + e.count, "the sequence's tokens");
    for (size_t i = e.first; i < e.first + e.count; ++i) {
      if (tokens[i] != w.answer->tokens[i])
        fail(fmt::format("request {}: token {} of the answer is {} and alone it is {} (prompt of {}, cached {})", w.id, i, tokens[i], w.answer->tokens[i], w.prompt, w.cached));
      if (w.logprobs < 0) continue;
      const TokenLogprobs &got = e.sequence->logprobs(i), &alone = w.answer->logprobs[i];
      expect(got.chosen == alone.chosen, "a token's logprob");
      expect(std::equal(got.top.begin(), got.top.end(), alone.top.begin(), alone.top.begin() + w.logprobs), "the likeliest tokens");
      ++report.logprobs;
    }
    w.heard += e.count;
    report.answer_tokens += e.count;
  }

  void hear_end(Watch& w, const RequestResult& r) {
    w.ended = true;
    w.result = r;
    expect_equal(r.prompt_tokens, w.prompt, "the result's prompt");
    expect_equal(r.answer_tokens, w.heard, "the result's answer");
    expect_equal(r.cached_tokens, w.cached, "the result's cached tokens");
    expect(w.heard == 0 || r.cached_tokens < w.prompt, "the whole prompt was cached");
    prompt_done += w.progress;
    report.prompt_tokens += static_cast<uint64_t>(w.prompt);
    report.preemptions += static_cast<uint64_t>(r.preemptions);
    report.most_steps = std::max(report.most_steps, step - w.arrived);
    if (r.error) {
      ++report.failed;
      if (r.error->code == ErrorCode::kTimeout) return expect(w.deadline && *w.deadline <= clock.now(), "a deadline that had not passed");
      if (!w.fails || w.heard != w.expected) fail(fmt::format("request {} failed: {}", w.id, r.error->message));
      return;
    }
    if (r.reason == FinishReason::kCancelled) {
      ++report.cancelled;
      return expect(w.cancelled, "cancelled by nobody");
    }
    ++report.finished;
    expect(!w.fails, "a request that must fail finished");
    expect_equal(w.heard, w.expected, "tokens of the whole answer");
    if (r.reason != w.reason) fail(fmt::format("request {} ended by {} instead of {}", w.id, finish_reason_name(r.reason), finish_reason_name(w.reason)));
  }

  // ---- After every step

  void check(TimePoint begin) {
    check_pages();
    const EngineStatus s = engine->status();
    expect_equal(target->rows_run() - rows_before, s.prompt_rows + s.decode_rows, "rows that ran");
    expect_equal(s.active + s.waiting + s.suspended + s.loading, watches.size(), "requests under way");
    expect(s.active <= s.lanes, "more requests than lanes");
    for (const auto& [id, w] : watches) {
      expect(!w->cancelled || cancelled_late.count(id) > 0, "a cancelled request goes on");
      expect(!w->deadline || *w->deadline > begin, "an overdue request goes on");
      if (step - w->arrived > kMostSteps) fail(fmt::format("request {} starves", id));
      if (w->hashed) check_hash(*w);
    }
    if (!watches.empty()) return;
    expect(engine->idle(), "an engine without requests is not idle");
    expect_equal(s.prompt_rows + s.restored_tokens, static_cast<uint64_t>(prompt_done) + s.recomputed_rows, "prompt rows");
    in_step = true;
    expect(!engine->step(), "an idle engine works");
    in_step = false;
    expect_equal(target->rows_run() - rows_before, s.prompt_rows + s.decode_rows, "rows that an idle engine ran");
  }

  void check_pages() const {
    std::vector<const std::byte*> held;
    for (const auto& [id, w] : watches)
      if (const LaneState* lane = engine->lane_of(id)) held.insert(held.end(), lane->pages().begin(), lane->pages().end());
    size_t checkpoints = 0;
    engine->cache().visit([&](const Checkpoint& c) {
      ++checkpoints;
      held.insert(held.end(), c.pages().begin(), c.pages().end());
    });
    std::sort(held.begin(), held.end());
    const auto end = std::unique(held.begin(), held.end());
    expect_equal(static_cast<size_t>(end - held.begin()), target->pages().pages_in_use(), "pages that lanes and the cache hold, and pages in use");
    const EngineStatus s = engine->status();
    expect(s.pages_in_use <= s.pages_limit, "more pages than the limit");
    expect_equal(checkpoints, s.cache.entries, "entries");
    expect(s.cache.bytes <= s.cache.limit_bytes, "the cache is beyond its limit");
    expect(!s.host || s.host->bytes <= s.host->limit_bytes, "the host tier is beyond its limit");
  }

  void check_hash(const Watch& w) {
    const LaneState* lane = engine->lane_of(w.id);
    if (lane == nullptr) return;
    const auto alone = w.answer->hashes.find(lane->length());
    if (alone == w.answer->hashes.end()) return;
    if (lane->hash() != alone->second) fail(fmt::format("request {}: the lane's state at {} tokens differs from the one alone", w.id, lane->length()));
    ++report.hashes;
  }

  void run_step() {
    current_seed = options.seed;
    current_step = ++step;
    act();
    const TimePoint begin = clock.now();
    cancelled_late.clear();
    std::set<RequestId> cancelled_before;
    for (const auto& [id, w] : watches)
      if (w->cancelled) cancelled_before.insert(id);
    in_step = true;
    engine->step();
    in_step = false;
    for (const auto& [id, w] : watches)
      if (w->cancelled && cancelled_before.count(id) == 0) cancelled_late.insert(id);
    std::erase_if(watches, [](const auto& entry) { return entry.second->ended; });
    check(begin);
  }
};

Simulation::Simulation(SimModel& model, const SimOptions& options) : state_(std::make_unique<State>(model, options)) {}
Simulation::~Simulation() = default;

void Simulation::serve(int requests) {
  State& s = *state_;
  s.left += requests;
  while (s.left > 0 || !s.engine->idle()) s.run_step();
  s.take_counts();
  s.report.steps = s.step;
  s.report.simulated_s = seconds_between(TimePoint(), s.clock.now());
}

void Simulation::finish() {
  State& s = *state_;
  s.engine->cache().clear();
  s.expect_equal(s.target->pages().pages_in_use(), 0u, "pages in use without lanes and entries");
  s.engine.reset();
  s.expect_equal(s.target->pages().pages_in_use(), 0u, "pages that an engine left behind");
  if (s.drafts && s.drafts->mtp()) s.expect_equal(s.drafts->mtp()->pages().pages_in_use(), 0u, "pages that drafters left behind");
}

const SimReport& Simulation::report() const { return state_->report; }
Engine& Simulation::engine() { return *state_->engine; }
TargetModel& Simulation::target() { return *state_->target; }
DraftModels* Simulation::drafts() { return state_->drafts.get(); }

void Simulation::forget() {
  CHECK(state_->watches.empty());
  state_->model.forget_answers();
  state_->conversations.forget();
}

}  // namespace foretoken::sim
