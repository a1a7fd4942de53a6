// Queues around a DiskFolder: entries wait to be written and loads to be read, each for a thread of its own, so that a restore never
// waits for a flush. The engine's thread copies and looks up; it never waits for the disk.
#include "engine/disk_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <thread>

#include "engine/disk_folder.h"

namespace foretoken {
namespace {

// How much was written in the hour before now.
class WriteBudget {
 public:
  explicit WriteBudget(uint64_t bytes_per_hour) : limit_(bytes_per_hour) {}
  bool allows(TimePoint now, uint64_t bytes) {
    if (limit_ == 0) return true;
    while (!writes_.empty() && now - writes_.front().first >= std::chrono::hours(1)) {
      sum_ -= writes_.front().second;
      writes_.pop_front();
    }
    return sum_ + bytes <= limit_;
  }
  void charge(TimePoint now, uint64_t bytes) {
    if (limit_ == 0) return;
    writes_.emplace_back(now, bytes);
    sum_ += bytes;
  }

 private:
  uint64_t limit_, sum_ = 0;
  std::deque<std::pair<TimePoint, uint64_t>> writes_;
};

struct LoadJob {
  DiskLoadId id;
  DiskIndex::Id entry;
  std::vector<TokenId> prompt;
};

Digest digest_of(const DiskTierOptions& options) {
  const std::string text = fmt::format("{}\npage {} tokens {} bytes\n", options.fingerprint, kPageTokens, options.page_bytes);
  return Sha256().update(std::as_bytes(std::span(text))).digest();
}

SharedBytes owned(const SharedBytes& shared) {
  if (shared.owner || shared.bytes.empty()) return shared;
  const auto copy = std::make_shared<std::vector<std::byte>>(shared.bytes.begin(), shared.bytes.end());
  return {.bytes = *copy, .owner = copy};
}

constexpr int kMostDoublings = 5;  // of the time between two attempts

}  // namespace

struct DiskTier::State {
  State(DiskTierOptions o, DiskFiles& files, const Clock& c)
      : options(std::move(o)), clock(c),
        folder({options.folder, digest_of(options), options.page_bytes, options.limit_bytes, options.least_free_bytes}, files, c),
        budget(options.write_bytes_per_hour) {}

  void start();
  void run_writer();
  void run_reader();
  bool write_one(std::unique_lock<std::mutex>& guard);
  bool load_one(std::unique_lock<std::mutex>& guard);
  void settle(const DiskFolder::Written& written);
  void reopen_when_due();
  bool refused_lately() const { return !refusal.empty() && clock.now() < retry_at; }
  void drop(DiskFault fault) { ++faults[static_cast<size_t>(fault)]; }
  std::optional<PendingEntry> copy_of(const EntrySource& source, const DiskFolder::Place& place) const;

  const DiskTierOptions options;
  const Clock& clock;
  DiskFolder folder;

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable write_wanted, load_wanted, written, loaded;
  std::deque<PendingEntry> writes;  // the front one is being written while `writing`
  std::deque<LoadJob> loads;
  std::vector<DiskLoad> finished;
  bool writing = false, stopping = false, reopening = false;
  uint64_t queue_bytes = 0;
  DiskLoadId last_load = 0;
  WriteBudget budget;
  std::string refusal;  // of the disk, at the last attempt to write
  int refusals = 0;     // in a row
  TimePoint retry_at{};
  uint64_t stored = 0, bytes_written = 0, hits = 0, misses = 0, restored_tokens = 0;
  std::array<uint64_t, kDiskFaults> faults{};

  std::thread writer, reader;  // last: they use everything above
};

// ---- Threads

void DiskTier::State::start() {
  folder.open();
  retry_at = clock.now() + options.retry;
  if (!options.background) return;
  writer = std::thread([this] { run_writer(); });
  reader = std::thread([this] { run_reader(); });
}

void DiskTier::State::run_writer() {
  std::unique_lock guard(mutex);
  for (;;) {
    write_wanted.wait(guard, [&] { return stopping || reopening || !writes.empty(); });
    if (!write_one(guard) && stopping) return;
  }
}

void DiskTier::State::run_reader() {
  std::unique_lock guard(mutex);
  for (;;) {
    load_wanted.wait(guard, [&] { return stopping || !loads.empty(); });
    if (stopping) return;
    load_one(guard);
  }
}

// One piece of work for the disk; false when there is none.
bool DiskTier::State::write_one(std::unique_lock<std::mutex>& guard) {
  if (reopening) {
    guard.unlock();
    folder.open();
    guard.lock();
    reopening = false;
    retry_at = clock.now() + options.retry;
    return true;
  }
  if (writes.empty()) return false;
  writing = true;
  const PendingEntry& entry = writes.front();
  if (refused_lately()) {
    drop(DiskFault::kWritesOff);
    guard.unlock();
    folder.forget(entry.id);
    guard.lock();
  } else {
    guard.unlock();
    const DiskFolder::Written result = folder.write(entry);
    if (result.fault) folder.forget(entry.id);
    guard.lock();
    settle(result);
  }
  queue_bytes -= entry.host_bytes;
  PendingEntry done = std::move(writes.front());
  writes.pop_front();
  writing = false;
  written.notify_all();
  guard.unlock();
  done = {};  // gives memory back, which may run the owner's code
  guard.lock();
  return true;
}

void DiskTier::State::settle(const DiskFolder::Written& result) {
  if (result.fault) drop(*result.fault);
  if (!result.refusal.empty()) {
    refusal = result.refusal;
    retry_at = clock.now() + options.retry * (1 << std::min(refusals++, kMostDoublings));
    return;
  }
  if (result.fault) return;
  refusal.clear();
  refusals = 0;
  ++stored;
  bytes_written += result.bytes;
}

bool DiskTier::State::load_one(std::unique_lock<std::mutex>& guard) {
  if (loads.empty()) return false;
  const LoadJob job = std::move(loads.front());
  loads.pop_front();
  guard.unlock();
  DiskLoad load = folder.load(job.entry, job.prompt);
  load.id = job.id;
  guard.lock();
  ++(load.fault ? misses : hits);
  restored_tokens += load.entry.tokens.size();
  finished.push_back(std::move(load));
  loaded.notify_all();
  return true;
}

// Called with the mutex. A folder that another process writes, or that could not be used, is tried again now and then.
void DiskTier::State::reopen_when_due() {
  if (reopening || folder.mode() == DiskFolder::Mode::kWrites || clock.now() < retry_at) return;
  reopening = true;
  write_wanted.notify_one();
}

// ---- The engine's side

DiskTier::DiskTier(std::unique_ptr<State> state) : state_(std::move(state)) {}

std::unique_ptr<DiskTier> DiskTier::open(DiskTierOptions options, DiskFiles& files, const Clock& clock) {
  CHECK(options.page_bytes > 0);
  auto state = std::make_unique<State>(std::move(options), files, clock);
  state->start();
  return std::unique_ptr<DiskTier>(new DiskTier(std::move(state)));
}

DiskTier::~DiskTier() {
  flush();
  {
    const std::lock_guard guard(state_->mutex);
    state_->stopping = true;
    state_->loads.clear();
  }
  state_->write_wanted.notify_all();
  state_->load_wanted.notify_all();
  if (state_->writer.joinable()) state_->writer.join();
  if (state_->reader.joinable()) state_->reader.join();
}

// Nothing when there is no memory for it.
std::optional<PendingEntry> DiskTier::State::copy_of(const EntrySource& source, const DiskFolder::Place& place) const {
  PendingEntry entry{.tokens = {source.tokens.begin(), source.tokens.end()}, .parent_length = place.parent_length};
  const int64_t first = place.parent_length / kPageTokens, end = pages_of(static_cast<int64_t>(source.tokens.size()));
  auto pages = host_buffer(static_cast<uint64_t>(end - first) * options.page_bytes);
  if (!pages) return std::nullopt;
  entry.pages = *std::move(pages);
  for (int64_t page = first; page < end; ++page)
    source.copy_page(page, {entry.pages.data() + static_cast<size_t>(page - first) * options.page_bytes, options.page_bytes});
  entry.state = owned(source.state);
  entry.drafter = owned(source.drafter);
  return entry;
}

std::optional<DiskFault> DiskTier::store(const EntrySource& source) {
  State& s = *state_;
  const auto length = static_cast<int64_t>(source.tokens.size());
  CHECK(length > 0);
  CHECK(length <= kMaxEntryTokens);
  const auto refuse = [&](DiskFault fault) {  // with the mutex
    s.drop(fault);
    return std::optional(fault);
  };
  std::unique_lock guard(s.mutex);
  s.reopen_when_due();
  if (s.folder.mode() != DiskFolder::Mode::kWrites || s.refused_lately()) return refuse(DiskFault::kWritesOff);
  const DiskFolder::Place place = s.folder.place(source.tokens);
  if (place.taken) return std::nullopt;
  if (length - place.parent_length < s.options.least_gain_tokens) return refuse(DiskFault::kSmallGain);

  const EntryHeader header{.page_bytes = s.options.page_bytes, .length = length, .parent_length = place.parent_length,
                           .state_bytes = source.state.bytes.size(), .drafter_bytes = source.drafter.bytes.size()};
  const uint64_t host_bytes = header.file_bytes() + static_cast<uint64_t>(place.parent_length) * sizeof(TokenId);
  if (blocks_of(header.file_bytes()) > s.options.limit_bytes) return refuse(DiskFault::kNoRoom);
  if (s.queue_bytes + host_bytes > s.options.queue_bytes) return refuse(DiskFault::kQueueFull);
  if (!s.budget.allows(s.clock.now(), header.file_bytes())) return refuse(DiskFault::kWriteBudget);
  s.budget.charge(s.clock.now(), header.file_bytes());
  s.queue_bytes += host_bytes;
  guard.unlock();

  auto entry = s.copy_of(source, place);
  const DiskIndex::Id id = entry ? s.folder.reserve(place, length, header.state_bytes, header.drafter_bytes) : 0;
  guard.lock();
  if (id == 0) {
    s.queue_bytes -= host_bytes;
    return refuse(entry ? DiskFault::kParentGone : DiskFault::kNoMemory);
  }
  entry->host_bytes = host_bytes;
  entry->id = id;
  s.writes.push_back(*std::move(entry));
  s.write_wanted.notify_one();
  return std::nullopt;
}

std::optional<DiskMatch> DiskTier::find(std::span<const TokenId> prompt, int64_t at_most) {
  {
    const std::lock_guard guard(state_->mutex);
    state_->reopen_when_due();
  }
  auto match = state_->folder.find(prompt, at_most);
  if (!match) {
    const std::lock_guard guard(state_->mutex);
    ++state_->misses;
  }
  return match;
}

DiskLoadId DiskTier::begin_load(const DiskMatch& match, std::span<const TokenId> prompt) {
  CHECK(static_cast<int64_t>(prompt.size()) >= match.tokens);
  const auto tokens = prompt.first(static_cast<size_t>(match.tokens));
  const std::lock_guard guard(state_->mutex);
  state_->folder.pin(match.entry);
  const DiskLoadId id = ++state_->last_load;
  state_->loads.push_back({id, match.entry, {tokens.begin(), tokens.end()}});
  state_->load_wanted.notify_one();
  return id;
}

std::vector<DiskLoad> DiskTier::poll() {
  std::unique_lock guard(state_->mutex);
  if (!state_->options.background && !state_->load_one(guard)) state_->write_one(guard);
  return std::exchange(state_->finished, {});
}

DiskLoad DiskTier::load(const DiskMatch& match, std::span<const TokenId> prompt) {
  const DiskLoadId id = begin_load(match, prompt);
  State& s = *state_;
  std::unique_lock guard(s.mutex);
  const auto done = [&] { return std::find_if(s.finished.begin(), s.finished.end(), [&](const DiskLoad& load) { return load.id == id; }); };
  if (s.options.background) s.loaded.wait(guard, [&] { return done() != s.finished.end(); });
  else while (done() == s.finished.end()) s.load_one(guard);
  DiskLoad load = std::move(*done());
  s.finished.erase(done());
  return load;
}

void DiskTier::discard(uint64_t entry) { state_->folder.discard(entry); }

void DiskTier::flush() {
  State& s = *state_;
  std::unique_lock guard(s.mutex);
  if (s.options.background) s.written.wait(guard, [&] { return s.writes.empty(); });
  else while (!s.writes.empty()) s.write_one(guard);
}

void DiskTier::drop_queue() {
  State& s = *state_;
  std::deque<PendingEntry> dropped;
  {
    const std::lock_guard guard(s.mutex);
    const size_t kept = s.writing ? 1 : 0;
    while (s.writes.size() > kept) {
      s.queue_bytes -= s.writes.back().host_bytes;
      dropped.push_back(std::move(s.writes.back()));
      s.writes.pop_back();
    }
  }
  for (const PendingEntry& entry : dropped) s.folder.forget(entry.id);
}

DiskTierStatistics DiskTier::statistics() const {
  const State& s = *state_;
  DiskTierStatistics statistics;
  s.folder.count(statistics);
  const DiskFolder::Mode mode = s.folder.mode();
  statistics.note = s.folder.note();
  const std::lock_guard guard(s.mutex);
  statistics.writable = mode == DiskFolder::Mode::kWrites && s.refusal.empty();
  if (!s.refusal.empty()) statistics.note = s.refusal + "; no entries are added for now";
  statistics.queued = s.writes.size();
  statistics.queue_bytes = s.queue_bytes;
  statistics.stored = s.stored;
  statistics.bytes_written = s.bytes_written;
  statistics.hits = s.hits;
  statistics.misses = s.misses;
  statistics.restored_tokens = s.restored_tokens;
  for (size_t i = 0; i < kDiskFaults; ++i) statistics.faults[i] += s.faults[i];
  return statistics;
}

}  // namespace foretoken
