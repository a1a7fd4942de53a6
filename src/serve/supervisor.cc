// Starting, listening, restarting.
#include "serve/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <cmath>
#include <unordered_map>

#include "serve/messages.h"

extern char** environ;

namespace foretoken::serve {

namespace asio = boost::asio;

namespace {

constexpr double kStatusPatience = 1;   // seconds that /status waits for the engine
constexpr double kReapEvery = 0.01;
constexpr int kReapPolls = 200;         // before a process whose socket is closed is killed

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) return fmt::format("it was ended by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  return fmt::format("it ended with status {}", WEXITSTATUS(status));
}

// The environment without `hidden`, as execve takes it. Borrows from `environ`.
std::vector<char*> environment_without(const std::vector<std::string>& hidden) {
  std::vector<char*> out;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text(*variable);
    const bool hide = std::any_of(hidden.begin(), hidden.end(), [&](const std::string& name) { return text.starts_with(name + "="); });
    if (!hide) out.push_back(*variable);
  }
  out.push_back(nullptr);
  return out;
}

}  // namespace

struct Supervisor::State : std::enable_shared_from_this<State> {
  using Socket = asio::local::stream_protocol::socket;
  using Clock = std::chrono::steady_clock;

  State(Loop& loop, SupervisorOptions options, SupervisorEvents events) : loop(loop), options(std::move(options)), events(std::move(events)) {}

  // ---- The process.

  Status spawn() {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return Error{ErrorCode::kIo, fmt::format("no socket pair for the engine ({})", ::strerror(errno))};
    std::vector<std::string> words = {options.program};
    words.insert(words.end(), options.arguments.begin(), options.arguments.end());
    words.insert(words.end(), {"--engine-fd", "3"});
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::vector<char*> environment = environment_without(options.hidden_environment);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    // A descriptor that already has the number would keep its close-on-exec mark: move it first.
    int theirs = pair[1];
    if (theirs == 3) theirs = ::fcntl(theirs, F_DUPFD_CLOEXEC, 10);
    ::posix_spawn_file_actions_adddup2(&actions, theirs, 3);
    ::posix_spawn_file_actions_addclosefrom_np(&actions, 4);  // the port and the clients are not the engine's
    const int failed = ::posix_spawn(&pid, options.program.c_str(), &actions, nullptr, argv.data(), environment.data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(theirs);
    if (theirs != pair[1]) ::close(pair[1]);
    if (failed != 0) {
      ::close(pair[0]);
      pid = -1;
      return Error{ErrorCode::kIo, fmt::format("the engine's process cannot be started ({})", ::strerror(failed))};
    }
    boost::system::error_code error;
    socket = std::make_unique<Socket>(loop.context());
    socket->assign(asio::local::stream_protocol(), pair[0], error);
    CHECK(!error);
    return {};
  }

  void start() {
    restart_timer.reset();
    phase = "the engine is loading the model";
    reader = FrameReader();
    failure.reset();
    out.clear();
    writing.clear();
    if (const Status spawned = spawn(); !spawned) {
      failure = spawned.error();
      return ended(spawned.error().message);
    }
    read();
  }

  void read() {
    socket->async_read_some(asio::buffer(input), [self = shared_from_this(), current = socket.get()](boost::system::error_code error, size_t bytes) {
      if (self->stopped || self->socket.get() != current) return;
      if (error) return self->lost();
      self->reader.add({self->input.data(), bytes});
      while (true) {
        auto message = self->reader.next();
        if (!message) return self->lost();
        if (!*message) break;
        self->take(**message);
        if (self->stopped || self->socket.get() != current) return;
      }
      self->read();
    });
  }

  // The socket has ended: so has the process, or it will.
  void lost() {
    facts.reset();
    socket.reset();
    phase = "the engine has ended and will be started again";
    reap(0);
  }

  void reap(int polls) {
    int status = 0;
    const pid_t reaped = pid > 0 ? ::waitpid(pid, &status, WNOHANG) : pid;
    if (reaped == 0) {
      if (polls == kReapPolls) ::kill(pid, SIGKILL);
      restart_timer = loop.after(kReapEvery, [this, polls] { reap(polls + 1); });
      return;
    }
    pid = -1;
    ended(failure ? failure->message : describe_end(status));
  }

  void ended(const std::string& reason) {
    const bool was_ready = ready_since != Clock::time_point{};
    if (was_ready && std::chrono::duration<double>(Clock::now() - ready_since).count() > options.steady_s) failures = 0;
    ready_since = {};
    ++failures;
    last_reason = reason;
    fail_all("the engine has ended (" + reason + ") and is being started again; send the request again");
    if (!ever_ready && (failure || failures >= options.most_first_failures)) {
      phase = "the engine cannot start: " + reason;
      return events.hopeless(failure ? *failure : Error{ErrorCode::kIo, "the engine cannot start: " + reason});
    }
    const double wait = std::min(options.first_wait_s * std::pow(2.0, failures - 1), options.most_wait_s);
    events.log(fmt::format("engine: {}; starting it again in {:.0f} s", reason, wait));
    ++restarts;
    phase = fmt::format("the engine has ended ({}) and is being started again", reason);
    restart_timer = loop.after(wait, [this] { start(); });
  }

  // ---- Messages.

  void take(const Json& message) {
    const std::string type = message.is_object() ? message.value("type", "") : "";
    const auto id = message.is_object() ? message.value("id", uint64_t{0}) : 0;
    if (type == "event") take_event(id, message);
    if (type == "status") take_status(id, message);
    if (type == "failed") failure = Error{static_cast<ErrorCode>(message.value("code", 0)), message.value("message", "no reason given")};
    if (type != "ready") return;
    auto read = read_facts(message);
    if (!read) return lost();
    facts = *std::move(read);
    ready_since = Clock::now();
    const bool first = !std::exchange(ever_ready, true);
    events.ready(*facts, first);
  }

  void take_event(EngineRequestId id, const Json& message) {
    const auto it = waiting.find(id);
    if (it == waiting.end()) return;
    auto event = read_event(message);
    if (!event) event = EngineEvent{.kind = EngineEvent::Kind::kFailed, .error = event.error()};
    const bool last = event->kind == EngineEvent::Kind::kFinished || event->kind == EngineEvent::Kind::kFailed;
    const auto callback = it->second;  // a copy: the call may cancel, and so change the table
    if (last) waiting.erase(it);
    callback(*event);
  }

  void take_status(uint64_t id, const Json& message) {
    const auto body = parse_ordered_json(message.value("body", "{}"), "status");
    if (body) last_status = *body;
    answer_status(id);
  }

  void answer_status(uint64_t id) {
    const auto it = asking.find(id);
    if (it == asking.end()) return;
    const auto then = std::move(it->second.then);
    asking.erase(it);
    then(last_status);
  }

  void fail_all(const std::string& reason) {
    auto all = std::exchange(waiting, {});
    for (auto& [id, callback] : all)
      callback({.kind = EngineEvent::Kind::kFailed, .error = {ErrorCode::kIo, reason}, .engine_lost = true});
    while (!asking.empty()) answer_status(asking.begin()->first);
  }

  void send(const Json& message) {
    if (!socket) return;
    append_frame(out, message);
    if (writing.empty()) write();
  }

  void write() {
    writing.swap(out);
    asio::async_write(*socket, asio::buffer(writing), [self = shared_from_this(), current = socket.get()](boost::system::error_code error, size_t) {
      if (self->stopped || self->socket.get() != current) return;
      self->writing.clear();
      if (!error && !self->out.empty()) self->write();
    });
  }

  Loop& loop;
  SupervisorOptions options;
  SupervisorEvents events;
  pid_t pid = -1;
  std::unique_ptr<Socket> socket;
  std::array<char, 64 << 10> input{};
  FrameReader reader;
  std::string out, writing;  // waiting, and under way
  bool stopped = false, ever_ready = false;
  std::optional<EngineFacts> facts;
  std::optional<Error> failure;  // what the process said before it ended
  std::string phase = "the engine is starting", last_reason;
  int failures = 0;
  uint64_t restarts = 0;
  Clock::time_point ready_since{};
  std::unique_ptr<Loop::Timer> restart_timer;

  EngineRequestId next_id = 1;
  std::unordered_map<EngineRequestId, std::function<void(const EngineEvent&)>> waiting;
  struct Asked {
    std::function<void(OrderedJson)> then;
    std::unique_ptr<Loop::Timer> patience;
  };
  std::unordered_map<uint64_t, Asked> asking;
  OrderedJson last_status = OrderedJson::object();
};

Supervisor::Supervisor(Loop& loop, SupervisorOptions options, SupervisorEvents events)
    : state_(std::make_shared<State>(loop, std::move(options), std::move(events))) {
  loop.post([state = state_] {
    if (!state->stopped) state->start();
  });
}

Supervisor::~Supervisor() {
  state_->stopped = true;
  state_->restart_timer.reset();
  state_->socket.reset();  // its end is the process's sign to go
  for (int polls = 0; state_->pid > 0 && ::waitpid(state_->pid, nullptr, WNOHANG) == 0; ++polls) {
    if (polls == kReapPolls) ::kill(state_->pid, SIGKILL);
    ::usleep(10'000);
  }
}

const EngineFacts* Supervisor::ready() const { return state_->facts ? &*state_->facts : nullptr; }
std::string Supervisor::why_not() const { return state_->phase; }
int Supervisor::pid() const { return state_->pid; }

EngineRequestId Supervisor::submit(Submission submission, std::function<void(const EngineEvent&)> events) {
  const EngineRequestId id = state_->next_id++;
  if (!state_->facts) {
    state_->loop.post([events = std::move(events), why = state_->phase] {
      events({.kind = EngineEvent::Kind::kFailed, .error = {ErrorCode::kIo, why}, .engine_lost = true});
    });
    return id;
  }
  state_->waiting[id] = std::move(events);
  state_->send(submission_message(id, submission));
  return id;
}

void Supervisor::cancel(EngineRequestId id) {
  if (state_->waiting.count(id)) state_->send({{"type", "cancel"}, {"id", id}});
}

void Supervisor::status(std::function<void(OrderedJson)> then) {
  State& s = *state_;
  if (!s.facts) return then(s.last_status);
  const uint64_t id = s.next_id++;
  s.asking[id] = {std::move(then), s.loop.after(kStatusPatience, [&s, id] { s.answer_status(id); })};
  s.send({{"type", "status"}, {"id", id}});
}

OrderedJson Supervisor::supervision() const {
  const State& s = *state_;
  return {{"pid", s.pid > 0 ? OrderedJson(s.pid) : OrderedJson(nullptr)}, {"state", s.facts ? "ready" : s.phase}, {"restarts", s.restarts},
          {"last_reason", s.last_reason.empty() ? OrderedJson(nullptr) : OrderedJson(s.last_reason)}};
}

}  // namespace foretoken::serve
