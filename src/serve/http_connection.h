// Connection: one client on one socket, request after request. Its states: reading a request, answering it, lingering after a refusal so
// that the client can read why. A read is always under way, which is how a client that goes is noticed at once.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <array>
#include <deque>
#include <memory>
#include <unordered_set>

#include "serve/http.h"

namespace foretoken::serve {

using tcp = boost::asio::ip::tcp;
class Connection;

struct ConnectionShared {
  HttpLimits limits;
  HttpHandler& handler;
  HttpCounters counters = {};
  std::unordered_set<Connection*> connections = {};

  void close_all();
  void close_idle();
  void check_deadlines();  // a few times a second
};

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  // `refuse`: answer 503 and close, because there are too many.
  static void start(std::shared_ptr<ConnectionShared> shared, tcp::socket socket, bool refuse);
  Connection(std::shared_ptr<ConnectionShared> shared, tcp::socket socket);
  ~Connection();

  void close();
  void on_deadline();
  bool idle() const { return state_ == State::kIdle && unsent_ == 0; }

 private:
  friend class ConnectionExchange;
  using Clock = std::chrono::steady_clock;
  enum class State : uint8_t { kIdle, kHeader, kBody, kAnswering, kLingering, kClosed };

  // ---- Reading.
  void read();
  void on_read(boost::system::error_code error, size_t bytes);
  void feed();
  bool on_header();
  bool refuse_head();
  void on_request();
  void on_parse_error(boost::system::error_code error);
  void add_ingress(size_t bytes);
  void drop_ingress();

  // ---- Answering. `self` keeps the connection while its exchange lives.
  std::string head(int status, const std::string& content_type, const Headers& headers, bool streamed, size_t length, bool close) const;
  void send(std::string bytes);
  void write();
  void answer_by_server(int status, std::string_view what);
  void answered(bool keep);
  void end_after_writing() { close_after_write_ = true; }
  void gone();

  // ---- Time.
  void deadline(double seconds);

  std::shared_ptr<ConnectionShared> owner_;  // an exchange, and so a connection, may outlive the server
  ConnectionShared& shared_;
  tcp::socket socket_;
  Clock::time_point deadline_{}, write_deadline_{};
  State state_ = State::kIdle;

  std::array<char, 16 << 10> input_;    // of the read under way: the buffer may be consumed meanwhile
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  bool reading_ = false;
  HttpRequest request_;      // the head while the body is read
  bool http_1_0_ = false, keep_alive_ = true, head_only_ = false;
  Clock::time_point body_begin_{};
  size_t body_bytes_ = 0, ingress_ = 0, lingered_ = 0;

  std::deque<std::string> out_;
  size_t sent_ = 0, unsent_ = 0;
  bool writing_ = false, close_after_write_ = false;
  std::weak_ptr<class ConnectionExchange> exchange_;
};

}  // namespace foretoken::serve
