// One connection's life. Requests are parsed by Beast; time, memory and the wire are ours.
#include "serve/http_connection.h"

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/http/status.hpp>

namespace foretoken::serve {

namespace asio = boost::asio;
namespace http = boost::beast::http;

namespace {

constexpr size_t kJoinBytes = 64u << 10;       // of writes that are sent together
constexpr size_t kReadAheadBytes = 64u << 10;  // that a client may send while its request is being answered
constexpr size_t kLingerBytes = 16u << 20;     // that are thrown away after a refusal
constexpr double kLingerSeconds = 2;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

}  // namespace

// What the service holds of a connection's current request.
class ConnectionExchange final : public Exchange {
 public:
  ConnectionExchange(std::shared_ptr<Connection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)) {}
  ~ConnectionExchange() override {
    if (!done_ && connection_) connection_->close();
  }

  const HttpRequest& request() const override { return request_; }
  std::string take_body() override {
    connection_->drop_ingress();
    return std::move(request_.body);
  }
  void add_header(std::string name, std::string value) override { headers_.emplace_back(std::move(name), std::move(value)); }

  void respond(HttpResponse response) override {
    if (done_ || gone_) return;
    done_ = true;
    Headers headers = headers_;
    headers.insert(headers.end(), response.headers.begin(), response.headers.end());
    const bool close = response.close || !connection_->keep_alive_;
    std::string bytes = connection_->head(response.status, response.content_type, headers, false, response.body.size(), close);
    if (!connection_->head_only_) bytes += response.body;
    connection_->send(std::move(bytes));
    connection_->answered(!close);
  }
  void begin_stream(const std::string& content_type) override {
    if (done_ || gone_ || streaming_) return;
    streaming_ = true;
    connection_->send(connection_->head(200, content_type, headers_, true, 0, !connection_->keep_alive_));
  }
  void write(std::string_view piece) override {
    if (done_ || gone_ || piece.empty()) return;
    if (connection_->http_1_0_) connection_->send(std::string(piece));
    else connection_->send(fmt::format("{:x}\r\n{}\r\n", piece.size(), piece));
    if (connection_->unsent_ <= connection_->shared_.limits.unsent_bytes) return;
    ++connection_->shared_.counters.dropped_slow;
    asio::post(connection_->socket_.get_executor(), [connection = connection_] { connection->close(); });  // not inside the caller
  }
  void end_stream() override {
    if (done_ || gone_) return;
    done_ = true;
    if (!connection_->http_1_0_) connection_->send("0\r\n\r\n");
    connection_->answered(connection_->keep_alive_ && !connection_->http_1_0_);
  }
  bool streaming() const override { return streaming_; }
  size_t unsent() const override { return gone_ ? 0 : connection_->unsent_; }
  void on_gone(std::function<void()> gone) override { on_gone_ = std::move(gone); }

  void client_gone() {
    if (done_ || gone_) return;
    gone_ = true;
    if (auto callback = std::move(on_gone_)) callback();
  }

 private:
  std::shared_ptr<Connection> connection_;
  HttpRequest request_;
  Headers headers_;
  bool done_ = false, gone_ = false, streaming_ = false;
  std::function<void()> on_gone_;
};

void ConnectionShared::close_all() {
  const std::vector<Connection*> all(connections.begin(), connections.end());
  for (Connection* connection : all) connection->close();
}

void ConnectionShared::close_idle() {
  const std::vector<Connection*> all(connections.begin(), connections.end());
  for (Connection* connection : all)
    if (connection->idle()) connection->close();
}

void ConnectionShared::check_deadlines() {
  const std::vector<Connection*> all(connections.begin(), connections.end());
  for (Connection* connection : all) connection->on_deadline();
}

void Connection::start(std::shared_ptr<ConnectionShared> shared, tcp::socket socket, bool refuse) {
  auto connection = std::make_shared<Connection>(std::move(shared), std::move(socket));
  boost::system::error_code ignored;
  connection->socket_.set_option(tcp::no_delay(true), ignored);
  if (refuse) {
    connection->answer_by_server(503, "too many connections; try again later");
  } else {
    connection->parser_.emplace();
    connection->deadline(connection->shared_.limits.idle_s);
  }
  connection->read();
}

Connection::Connection(std::shared_ptr<ConnectionShared> shared, tcp::socket socket)
    : owner_(std::move(shared)), shared_(*owner_), socket_(std::move(socket)) {
  shared_.connections.insert(this);
}

Connection::~Connection() {
  drop_ingress();
  shared_.connections.erase(this);
}

void Connection::close() {
  if (state_ == State::kClosed) return;
  const auto self = weak_from_this().lock();  // absent in the destructor of the last exchange
  state_ = State::kClosed;
  shared_.connections.erase(this);  // its exchange may live on for a while
  boost::system::error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  out_.clear();
  unsent_ = 0;
  drop_ingress();
  gone();
}

void Connection::gone() {
  if (const auto exchange = exchange_.lock()) exchange->client_gone();
}

// ---- Reading.

void Connection::read() {
  if (reading_ || state_ == State::kClosed) return;
  if (state_ == State::kAnswering && buffer_.size() >= kReadAheadBytes) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(input_), [self = shared_from_this()](boost::system::error_code error, size_t bytes) {
    self->reading_ = false;
    self->on_read(error, bytes);
  });
}

void Connection::on_read(boost::system::error_code error, size_t bytes) {
  if (state_ == State::kClosed) return;
  if (error) {
    if (state_ == State::kHeader || state_ == State::kBody) ++shared_.counters.malformed;
    return close();
  }
  buffer_.commit(asio::buffer_copy(buffer_.prepare(bytes), asio::buffer(input_, bytes)));
  if (state_ == State::kLingering) {
    lingered_ += bytes;
    buffer_.consume(buffer_.size());
    if (lingered_ > kLingerBytes) return close();
  } else if (state_ != State::kAnswering) {
    feed();
  }
  read();
}

void Connection::feed() {
  if (state_ == State::kIdle && buffer_.size() > 0) {
    state_ = State::kHeader;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(shared_.limits.header_bytes));
    parser_->body_limit(shared_.limits.body_bytes);
    deadline(shared_.limits.header_s);
  }
  while (buffer_.size() > 0 && (state_ == State::kHeader || state_ == State::kBody)) {
    boost::system::error_code error;
    const size_t used = parser_->put(buffer_.data(), error);
    buffer_.consume(used);
    if (error == http::error::need_more) {
      if (state_ == State::kHeader && buffer_.size() > shared_.limits.header_bytes) return on_parse_error(http::error::header_limit);
      error = {};
      if (used == 0) break;
    }
    if (error) return on_parse_error(error);
    if (state_ == State::kHeader && parser_->is_header_done() && !on_header()) return;
    if (state_ == State::kBody) {
      add_ingress(used);
      if (state_ != State::kBody) return;
      if (parser_->is_done()) return on_request();
    }
  }
}

bool Connection::on_header() {
  const auto& message = parser_->get();
  const std::string_view target(message.target().data(), message.target().size());
  const size_t question = target.find('?');
  request_ = HttpRequest{.method = std::string(message.method_string()), .path = std::string(target.substr(0, question))};
  if (question != std::string_view::npos) request_.query = target.substr(question + 1);
  for (const auto& field : message) request_.headers.emplace_back(lower({field.name_string().data(), field.name_string().size()}), std::string(field.value()));
  http_1_0_ = message.version() < 11;
  keep_alive_ = message.keep_alive();
  head_only_ = message.method() == http::verb::head;
  ++shared_.counters.requests;
  if (refuse_head()) return false;
  state_ = State::kBody;
  body_begin_ = Clock::now();
  body_bytes_ = 0;
  deadline(shared_.limits.body_idle_s);
  parser_->eager(true);
  if (parser_->is_done()) {
    on_request();
    return false;
  }
  if (lower(request_.header("expect")) == "100-continue") send("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

bool Connection::refuse_head() {
  std::optional<HttpResponse> refusal = shared_.handler.refuse(request_);
  const auto length = parser_->content_length();
  if (!refusal && length && *length + shared_.counters.ingress_bytes > shared_.limits.ingress_bytes)
    refusal = shared_.handler.transport_error(&request_, 503, "the bodies of other requests fill the memory for them; try again later");
  if (!refusal) return false;
  const bool body_follows = !parser_->is_done() && (parser_->chunked() || length.value_or(0) > 0);
  const bool close = refusal->close || body_follows || !keep_alive_;
  send(head(refusal->status, refusal->content_type, refusal->headers, false, refusal->body.size(), close) + (head_only_ ? "" : refusal->body));
  answered(!close);
  return true;
}

void Connection::on_request() {
  request_.body = std::move(parser_->get().body());
  state_ = State::kAnswering;
  deadline(0);
  auto exchange = std::make_shared<ConnectionExchange>(shared_from_this(), std::move(request_));
  request_ = {};
  exchange_ = exchange;
  shared_.handler.handle(std::move(exchange));
}

void Connection::on_parse_error(boost::system::error_code error) {
  ++shared_.counters.malformed;
  if (error == http::error::body_limit)
    return answer_by_server(413, fmt::format("the body is larger than {} bytes", shared_.limits.body_bytes));
  if (error == http::error::header_limit)
    return answer_by_server(431, fmt::format("the headers are larger than {} bytes", shared_.limits.header_bytes));
  answer_by_server(400, "this is no HTTP/1.1 request: " + error.message());
}

void Connection::add_ingress(size_t bytes) {
  ingress_ += bytes;
  body_bytes_ += bytes;
  shared_.counters.ingress_bytes += bytes;
  if (shared_.counters.ingress_bytes > shared_.limits.ingress_bytes)
    return answer_by_server(503, "the bodies of other requests fill the memory for them; try again later");
  // A body may take its idle allowance, and then a second for every so many bytes.
  const double spent = std::chrono::duration<double>(Clock::now() - body_begin_).count();
  const double allowed = shared_.limits.body_idle_s + static_cast<double>(body_bytes_) / shared_.limits.body_bytes_per_s - spent;
  deadline(std::clamp(allowed, 0.001, shared_.limits.body_idle_s));
}

void Connection::drop_ingress() {
  shared_.counters.ingress_bytes -= ingress_;
  ingress_ = 0;
}

// ---- Answering.

std::string Connection::head(int status, const std::string& content_type, const Headers& headers, bool streamed, size_t length, bool close) const {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", status, std::string_view(reason.data(), reason.size()));
  const bool has_body = status != 204 && status != 304;
  if (has_body && !content_type.empty()) out += "Content-Type: " + content_type + "\r\n";
  for (const auto& [name, value] : headers) out += name + ": " + value + "\r\n";
  if (streamed) out += http_1_0_ ? "Cache-Control: no-cache\r\n" : "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n";
  else if (has_body) out += fmt::format("Content-Length: {}\r\n", length);
  if (close || (streamed && http_1_0_)) out += "Connection: close\r\n";
  else if (http_1_0_) out += "Connection: keep-alive\r\n";
  return out + "\r\n";
}

void Connection::send(std::string bytes) {
  if (state_ == State::kClosed) return;
  unsent_ += bytes.size();
  if (out_.size() > 1 && out_.back().size() < kJoinBytes) out_.back() += bytes;  // never the one being written
  else out_.push_back(std::move(bytes));
  if (!writing_) write();
}

void Connection::write() {
  writing_ = true;
  write_deadline_ = Clock::now() + std::chrono::microseconds(static_cast<int64_t>(shared_.limits.write_s * 1e6));
  const std::string& front = out_.front();
  socket_.async_write_some(asio::buffer(front.data() + sent_, front.size() - sent_), [self = shared_from_this()](boost::system::error_code error, size_t bytes) {
    self->writing_ = false;
    if (self->state_ == State::kClosed) return;
    if (error) return self->close();
    self->sent_ += bytes;
    self->unsent_ -= bytes;
    if (self->sent_ == self->out_.front().size()) {
      self->out_.pop_front();
      self->sent_ = 0;
    }
    if (!self->out_.empty()) return self->write();
    self->write_deadline_ = {};
    if (!self->close_after_write_) return;
    boost::system::error_code ignored;
    self->socket_.shutdown(tcp::socket::shutdown_send, ignored);
    self->state_ = State::kLingering;
    self->deadline(kLingerSeconds);
    self->read();
  });
}

void Connection::answer_by_server(int status, std::string_view what) {
  const HttpResponse response = shared_.handler.transport_error(state_ == State::kBody ? &request_ : nullptr, status, what);
  send(head(response.status, response.content_type, response.headers, false, response.body.size(), true) + response.body);
  answered(false);
}

void Connection::answered(bool keep) {
  drop_ingress();
  if (state_ == State::kClosed) return;
  if (!keep) {
    close_after_write_ = true;
    state_ = State::kLingering;
    deadline(kLingerSeconds + shared_.limits.write_s);
    buffer_.consume(buffer_.size());
    if (out_.empty()) close();
    return;
  }
  state_ = State::kIdle;
  deadline(shared_.limits.idle_s);
  // Not from inside the handler's call: the next request may already be in the buffer.
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->state_ != State::kIdle) return;
    self->feed();
    self->read();
  });
}

// ---- Time.

void Connection::deadline(double seconds) {
  deadline_ = seconds <= 0 ? Clock::time_point{} : Clock::now() + std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
}

void Connection::on_deadline() {
  if (state_ == State::kClosed) return;
  const auto self = shared_from_this();
  const auto now = Clock::now();
  if (write_deadline_ != Clock::time_point{} && now > write_deadline_) {
    ++shared_.counters.dropped_slow;
    return close();
  }
  if (deadline_ == Clock::time_point{} || now < deadline_) return;
  if (state_ == State::kIdle || state_ == State::kLingering) return close();
  if (state_ != State::kHeader && state_ != State::kBody) return;
  ++shared_.counters.timeouts;
  answer_by_server(408, state_ == State::kHeader ? "the headers took too long" : "the body came too slowly");
}

}  // namespace foretoken::serve
