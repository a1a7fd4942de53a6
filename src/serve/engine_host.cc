// The loop of the engine's process.
#include "serve/engine_host.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "serve/answer.h"
#include "serve/engine_status.h"
#include "serve/messages.h"
#include "serve/rule_worker.h"

namespace foretoken::serve {
namespace {

constexpr size_t kMostUnsent = 64u << 20;  // beyond it the engine waits for the server

// The socket, never waiting unless told to.
class Channel {
 public:
  explicit Channel(int socket) : socket_(socket) { ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK); }

  bool open() const { return open_; }
  size_t unsent() const { return out_.size() - sent_; }
  void send(const Json& message) { append_frame(out_, message); }

  void receive() {
    char bytes[64 << 10];
    for (;;) {
      const ssize_t n = ::recv(socket_, bytes, sizeof bytes, 0);
      if (n > 0) {
        reader_.add({bytes, static_cast<size_t>(n)});
        if (n == static_cast<ssize_t>(sizeof bytes)) continue;
        return;
      }
      if (n == 0 || (errno != EAGAIN && errno != EINTR)) open_ = false;
      if (n == 0 || errno != EINTR) return;
    }
  }
  std::optional<Json> next() {
    auto message = reader_.next();
    if (message) return *std::move(message);
    fmt::print(stderr, "foretoken: engine: {}\n", message.error().message);
    open_ = false;
    return std::nullopt;
  }
  void flush() {
    while (sent_ < out_.size()) {
      const ssize_t n = ::send(socket_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
      if (n > 0) {
        sent_ += static_cast<size_t>(n);
      } else if (errno == EAGAIN) {
        break;
      } else if (errno != EINTR) {
        open_ = false;
        return;
      }
    }
    if (sent_ < out_.size()) return;
    out_.clear();
    sent_ = 0;
  }
  // Until there is something to read here or at `other`, room to write what is unsent, or the time is over; negative: no end.
  void wait(int milliseconds, int other) {
    pollfd polls[] = {{.fd = socket_, .events = static_cast<short>(POLLIN | (unsent() > 0 ? POLLOUT : 0)), .revents = 0}, {.fd = other, .events = POLLIN, .revents = 0}};
    ::poll(polls, std::size(polls), milliseconds);
  }
  void wait_for_room() {
    pollfd poll{.fd = socket_, .events = POLLOUT, .revents = 0};
    ::poll(&poll, 1, 1000);
  }

 private:
  int socket_;
  bool open_ = true;
  FrameReader reader_;
  std::string out_;
  size_t sent_ = 0;
};

class Host {
 public:
  Host(int socket, const HostedEngine& hosted) : hosted_(hosted), engine_(hosted.engine), channel_(socket), rules_(hosted.text, hosted.facts.vocab), worker_(hosted.text, hosted.facts.vocab) {
    for (TokenId id = hosted.text.tokenizer ? hosted.text.tokenizer->size() : hosted.facts.vocab; id < hosted.facts.vocab; ++id) padding_.push_back(id);
  }

  int run() {
    channel_.send(facts_message(hosted_.facts));
    while (channel_.open()) {
      channel_.receive();
      while (auto message = channel_.next()) take(*message);
      for (RuleWorker::Made& made : worker_.take()) take(std::move(made));
      if (!engine_.idle() && !wake()) return 1;
      const bool worked = engine_.step();
      if (worked) last_work_ = Clock::now();
      channel_.flush();
      while (channel_.open() && channel_.unsent() > kMostUnsent) {
        channel_.wait_for_room();
        channel_.flush();
      }
      if (worked || !channel_.open()) continue;
      rest();
      channel_.wait(patience(), worker_.wake_fd());
    }
    return 0;
  }

 private:
  using Clock = std::chrono::steady_clock;

  double idle_seconds() const { return seconds_between(last_work_, Clock::now()); }
  void rest() {
    if (released_ || hosted_.idle_release_s <= 0 || !engine_.idle() || idle_seconds() < hosted_.idle_release_s) return;
    hosted_.release();
    released_ = true;
  }
  bool wake() {
    if (!released_) return true;
    released_ = false;
    const Status restored = hosted_.restore();
    if (!restored) channel_.send({{"type", "failed"}, {"code", static_cast<int>(restored.error().code)}, {"message", restored.error().message}});
    channel_.flush();
    return restored.ok();
  }

  int patience() const {
    if (engine_.waits_for_copies()) return 1;
    const auto deadline = engine_.next_deadline();
    if (!deadline && !engine_.idle()) return 20;
    if (!deadline) return released_ || hosted_.idle_release_s <= 0 ? -1 : static_cast<int>(std::clamp(1e3 * (hosted_.idle_release_s - idle_seconds()) + 1, 1.0, 1e6));
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*deadline - std::chrono::steady_clock::now()).count() + 1;
    return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
  }

  void take(const Json& message) {
    const std::string type = message.is_object() ? message.value("type", "") : "";
    if (type == "submit") submit(message);
    if (type == "cancel") cancel(message.value("id", EngineRequestId{0}));
    if (type == "status") status(message.value("id", uint64_t{0}));
  }

  void status(uint64_t id) {
    OrderedJson body = status_json(engine_.status());
    if (hosted_.more_status) body.update(hosted_.more_status());
    body["released"] = released_;
    channel_.send({{"type", "status"}, {"id", id}, {"body", dump_json(body)}});
  }

  void cancel(EngineRequestId id) {
    const auto it = running_.find(id);
    if (it != running_.end()) engine_.cancel(it->second);
    const auto prepared = in_preparation_.find(id);
    if (prepared == in_preparation_.end()) return;
    prepared->second.cancelled = true;
    if (!worker_.forget(id)) return;
    in_preparation_.erase(prepared);
    send_cancelled(id);
  }

  // The end of a request that never reached the engine.
  void send_cancelled(EngineRequestId id) { channel_.send(event_message(id, {.kind = EngineEvent::Kind::kFinished, .reason = "cancelled", .facts = OrderedJson::object()})); }

  void refuse(EngineRequestId id, const Error& error, bool of_grammar = false) {
    channel_.send(event_message(id, {.kind = EngineEvent::Kind::kFailed, .error = error, .of_grammar = of_grammar}));
  }

  void submit(const Json& message) {
    const auto id = message.value("id", EngineRequestId{0});
    auto submission = read_submission(message);
    if (!submission) return refuse(id, submission.error());
    const auto now = Clock::now();
    if (submission->grammar) {
      in_preparation_[id] = {.arrival = now};
      return worker_.ask(id, *std::move(submission));
    }
    auto rules = rules_.make(*submission);
    if (!rules) return refuse(id, rules.error());
    submit(id, make_request(*std::move(submission), *std::move(rules), now));
  }
  void take(RuleWorker::Made made) {
    const Preparation preparation = in_preparation_.extract(made.id).mapped();
    if (!made.rules) return refuse(made.id, made.rules.error(), true);
    if (preparation.cancelled) return send_cancelled(made.id);
    submit(made.id, make_request(std::move(made.submission), *std::move(made.rules), preparation.arrival));
  }
  void submit(EngineRequestId id, Request request) {
    const auto total = static_cast<int64_t>(request.prompt.size());
    const bool logprobs = request.logprobs.chosen;
    request.events = [this, id, logprobs](const RequestEvent& event) { on_event(id, event, logprobs); };
    const auto submitted = engine_.submit(std::move(request));
    if (!submitted) return refuse(id, submitted.error());
    running_[id] = *submitted;
    channel_.send(event_message(id, {.kind = EngineEvent::Kind::kProgress, .prompt_total = total}));  // it is taken
  }

  Request make_request(Submission s, std::unique_ptr<TokenRules> rules, Clock::time_point arrival) {
    Request r;
    if (!s.ignore_eos || s.grammar) r.stop_tokens = hosted_.text.stop_tokens;  // a text of a grammar ends where it is complete
    r.rules = std::move(rules);
    r.prompt = std::move(s.prompt);
    r.sampling = std::move(s.sampling);
    r.sampling.banned.insert(r.sampling.banned.end(), padding_.begin(), padding_.end());
    r.max_tokens = s.max_tokens;
    r.logprobs = s.logprobs;
    r.boundaries = std::move(s.boundaries);
    r.speculate = s.speculate;
    r.priority = s.priority;
    if (s.timeout_s > 0) r.deadline = arrival + std::chrono::microseconds(static_cast<int64_t>(s.timeout_s * 1e6));
    if (!s.stop.empty()) {
      auto text = std::make_shared<AnswerText>(hosted_.text, AnswerText::Options{.stop = std::move(s.stop), .raw = s.raw, .in_reasoning = s.in_reasoning});
      r.ends = [text](TokenId token) {
        text->add(token);
        return text->stopped();
      };
    }
    return r;
  }

  void on_event(EngineRequestId id, const RequestEvent& event, bool logprobs) {
    switch (event.kind) {
      case RequestEvent::Kind::kProgress:
        return channel_.send(event_message(id, {.kind = EngineEvent::Kind::kProgress, .prompt_done = event.prompt_done, .prompt_total = event.prompt_total, .cached_tokens = event.cached_tokens}));
      case RequestEvent::Kind::kTokens: return send_tokens(id, event, logprobs);
      case RequestEvent::Kind::kFinished: return send_end(id, *event.result);
    }
  }

  void send_tokens(EngineRequestId id, const RequestEvent& event, bool logprobs) {
    EngineEvent out{.kind = EngineEvent::Kind::kTokens};
    for (size_t i = event.first; i < event.first + event.count; ++i) {
      out.tokens.push_back(event.sequence->tokens()[i]);
      const auto drafted = event.sequence->drafted_by(i);
      out.drafted.push_back(drafted ? static_cast<int8_t>(*drafted) : int8_t{-1});
      if (logprobs) out.logprobs.push_back(event.sequence->logprobs(i));
    }
    channel_.send(event_message(id, out));
  }

  void send_end(EngineRequestId id, const RequestResult& result) {
    running_.erase(id);
    if (result.error) return refuse(id, *result.error);
    channel_.send(event_message(id, {.kind = EngineEvent::Kind::kFinished, .cached_tokens = result.cached_tokens, .reason = std::string(finish_reason_name(result.reason)),
                                     .prompt_tokens = result.prompt_tokens, .answer_tokens = result.answer_tokens,
                                     .facts = result_json(result, hosted_.drafts, hosted_.verify)}));
  }

  const HostedEngine& hosted_;
  Engine& engine_;
  Channel channel_;
  RuleMaker rules_;     // of requests without a grammar
  RuleWorker worker_;   // of the others
  struct Preparation {
    Clock::time_point arrival;
    bool cancelled = false;
  };
  std::unordered_map<EngineRequestId, Preparation> in_preparation_;  // asked of the worker
  Clock::time_point last_work_ = Clock::now();
  bool released_ = false;
  std::vector<TokenId> padding_;  // rows of the embedding that are no token
  std::unordered_map<EngineRequestId, RequestId> running_;
};

}  // namespace

int host_engine(int socket, const HostedEngine& hosted) { return Host(socket, hosted).run(); }

void report_no_engine(int socket, const Error& error) {
  std::string frame;
  append_frame(frame, {{"type", "failed"}, {"code", static_cast<int>(error.code)}, {"message", error.message}});
  size_t sent = 0;
  while (sent < frame.size()) {
    const ssize_t n = ::send(socket, frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
    if (n <= 0 && errno != EINTR) return;
    if (n > 0) sent += static_cast<size_t>(n);
  }
}

void become_engine_process() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGTERM, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
}

}  // namespace foretoken::serve
