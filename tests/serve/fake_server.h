// A server with a scripted engine behind it, and a client that speaks bytes, so that tests see exactly what crosses the wire.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <thread>

#include "serve/http_server.h"
#include "serve/service.h"

namespace foretoken::serve {

// Answers each request with its first `answer` prompt tokens, over and over, or stalls.
class FakeEngine final : public EngineLink {
 public:
  explicit FakeEngine(Loop& loop) : loop_(loop) {}
  enum class Mode : uint8_t { kAnswer, kStall, kBusy, kFlood, kBadGrammar };
  Mode mode = Mode::kAnswer;
  int64_t answer = 3;
  bool gone = false;
  std::vector<Submission> submissions;
  std::vector<EngineRequestId> cancelled;

  const EngineFacts* ready() const override { return gone ? nullptr : &facts; }
  std::string why_not() const override { return "scripted"; }
  EngineRequestId submit(Submission s, std::function<void(const EngineEvent&)> events) override {
    const EngineRequestId id = next_++;
    submissions.push_back(s);
    loop_.post([this, id, s, events] {
      if (mode == Mode::kBusy) return events({.kind = EngineEvent::Kind::kFailed, .error = {ErrorCode::kBusy, "the queue is full"}});
      if (mode == Mode::kBadGrammar) return events({.kind = EngineEvent::Kind::kFailed, .error = {ErrorCode::kUsage, "#/type: scripted"}, .of_grammar = true});
      running_[id] = events;
      events({.kind = EngineEvent::Kind::kProgress, .prompt_total = static_cast<int64_t>(s.prompt.size())});
      if (mode == Mode::kFlood) return flood(id, s);
      if (mode == Mode::kStall) return;
      EngineEvent tokens{.kind = EngineEvent::Kind::kTokens};
      for (int64_t i = 0; i < std::min(answer, s.max_tokens); ++i) {
        tokens.tokens.push_back(s.prompt[static_cast<size_t>(i) % s.prompt.size()]);
        tokens.drafted.push_back(i % 2 ? int8_t{1} : int8_t{-1});
      }
      events(tokens);
      finish(id, static_cast<int64_t>(s.prompt.size()), static_cast<int64_t>(tokens.tokens.size()));
    });
    return id;
  }
  void cancel(EngineRequestId id) override { cancelled.push_back(id); }
  void status(std::function<void(OrderedJson)> then) override { then(OrderedJson::object()); }
  OrderedJson supervision() const override { return OrderedJson::parse(R"({"restarts":0})"); }

  void lose_all() {  // on the loop
    gone = true;
    for (auto& [id, events] : std::exchange(running_, {})) events({.kind = EngineEvent::Kind::kFailed, .error = {ErrorCode::kIo, "scripted end"}, .engine_lost = true});
  }
  EngineFacts facts{.max_context = 1000, .vocab = 100000, .lanes = 1, .speculation = "off", .identity = OrderedJson::object()};

 private:
  void finish(EngineRequestId id, int64_t prompt, int64_t answer_tokens) {
    const auto events = running_[id];
    running_.erase(id);
    events({.kind = EngineEvent::Kind::kFinished, .reason = "stop", .prompt_tokens = prompt, .answer_tokens = answer_tokens, .facts = OrderedJson::object()});
  }
  void flood(EngineRequestId id, const Submission& s) {
    if (!cancelled.empty() || !running_.count(id)) return;
    EngineEvent tokens{.kind = EngineEvent::Kind::kTokens};
    for (int i = 0; i < 200; ++i) tokens.tokens.push_back(s.prompt[0]);
    tokens.drafted.assign(200, -1);
    running_[id](tokens);
    loop_.post([this, id, s] { flood(id, s); });
  }

  Loop& loop_;
  EngineRequestId next_ = 1;
  std::map<EngineRequestId, std::function<void(const EngineEvent&)>> running_;
};

class Client {
 public:
  explicit Client(int port, int receive_buffer = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~Client() { close(); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void send(std::string_view bytes) { ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // Up to and with `end`; what there is when the connection closes or the time is over.
  std::string read_until(std::string_view end, int milliseconds = 5000) {
    receive([&] { return buffer_.find(end) != std::string::npos; }, milliseconds);
    const size_t at = buffer_.find(end);
    return take(at == std::string::npos ? buffer_.size() : at + end.size());
  }
  // One whole response with Content-Length.
  std::string response() {
    std::string head = read_until("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    const size_t length = at == std::string::npos ? 0 : std::stoul(head.substr(at + 16));
    receive([&] { return buffer_.size() >= length; }, 5000);
    return head + take(length);
  }

 private:
  template <class Enough>
  void receive(Enough enough, int milliseconds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    while (!enough()) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
      pollfd poll{.fd = fd_, .events = POLLIN, .revents = 0};
      if (left <= 0 || ::poll(&poll, 1, static_cast<int>(left)) <= 0) return;
      char bytes[65536];
      const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
      if (n <= 0) return;
      buffer_.append(bytes, static_cast<size_t>(n));
    }
  }
  std::string take(size_t bytes) {
    std::string out = buffer_.substr(0, bytes);
    buffer_.erase(0, out.size());
    return out;
  }
  int fd_;
  std::string buffer_;
};

class FakeServer {
 public:
  explicit FakeServer(HttpLimits limits = {}, std::string key = {}, size_t queue = 100) : loop_(1), engine(loop_) {
    std::ifstream file(std::string(FORETOKEN_SOURCE_DIR) + "/tests/data/text/small_tokenizer.json");
    auto tokenizer = Tokenizer::from_json(std::string(std::istreambuf_iterator<char>(file), {}));
    EXPECT_TRUE(tokenizer.ok());
    text_.tokenizer = *std::move(tokenizer);
    auto chat_template = ChatTemplate::parse("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}");
    EXPECT_TRUE(chat_template.ok());
    text_.chat_template = *std::move(chat_template);
    ServiceOptions options;
    options.access.api_key = std::move(key);
    options.model_names = {"toy"};
    options.queue = queue;
    options.page = "<p>page</p>";
    service_ = std::make_unique<Service>(loop_, engine, text_, options);
    auto http = HttpServer::listen(loop_, "127.0.0.1", 0, limits, *service_);
    EXPECT_TRUE(http.ok());
    http_ = *std::move(http);
    port = http_->port();
    thread_ = std::thread([this] { loop_.run(); });
  }
  template <class F>
  auto on_loop(F f) {
    std::promise<decltype(f())> promise;
    loop_.post([&] {
      if constexpr (std::is_void_v<decltype(f())>) {
        f();
        promise.set_value();
      } else {
        promise.set_value(f());
      }
    });
    return promise.get_future().get();
  }
  ~FakeServer() {
    on_loop([&] { http_.reset(); });
    loop_.stop();
    thread_.join();
  }
  // Waits until `f` holds on the loop.
  template <class F>
  bool becomes(F f, int milliseconds = 5000) {
    for (int waited = 0; waited < milliseconds; waited += 10) {
      if (on_loop(f)) return true;
      ::usleep(10'000);
    }
    return false;
  }
  HttpCounters counters() {
    return on_loop([&] { return http_->counters(); });
  }

 private:
  Loop loop_;
  ModelText text_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> http_;
  std::thread thread_;

 public:
  FakeEngine engine;
  int port = 0;
};

inline std::string request(std::string_view method, std::string_view path, std::string_view body = {}, std::string_view headers = {}) {
  std::string out = std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers);
  if (!body.empty()) out += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return out + "\r\n" + std::string(body);
}

}  // namespace foretoken::serve
