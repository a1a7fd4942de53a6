// The acceptor: who may connect, and what a connection knows of the server.
#include "serve/http_server.h"

#include <fmt/format.h>

#include "serve/http_connection.h"

namespace foretoken::serve {

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

size_t HttpRequest::count(std::string_view name) const {
  size_t n = 0;
  for (const auto& header : headers) n += header.first == name;
  return n;
}

struct HttpServer::Shared : ConnectionShared, std::enable_shared_from_this<Shared> {
  Shared(Loop& loop, const HttpLimits& limits, HttpHandler& handler)
      : ConnectionShared{.limits = limits, .handler = handler}, loop(loop), acceptor(loop.context()) {}

  void accept() {
    acceptor.async_accept([self = shared_from_this()](boost::system::error_code error, tcp::socket socket) {
      if (error == boost::asio::error::operation_aborted) return;
      if (error) {  // out of descriptors, most likely: a pause instead of a busy loop
        self->pause = self->loop.after(0.1, [weak = std::weak_ptr(self)] {
          if (const auto self = weak.lock()) self->accept();
        });
        return;
      }
      ++self->counters.accepted;
      const bool full = self->connections.size() >= self->limits.connections;
      if (full) ++self->counters.refused;
      Connection::start(self, std::move(socket), full);
      self->accept();
    });
  }

  void sweep() {
    sweeper = loop.after(0.25, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self) return;
      self->check_deadlines();
      self->sweep();
    });
  }

  Loop& loop;
  tcp::acceptor acceptor;
  std::unique_ptr<Loop::Timer> sweeper;
  std::unique_ptr<Loop::Timer> pause;
};

Result<std::unique_ptr<HttpServer>> HttpServer::listen(Loop& loop, const std::string& host, int port, const HttpLimits& limits,
                                                       HttpHandler& handler) {
  auto shared = std::make_shared<Shared>(loop, limits, handler);
  boost::system::error_code error;
  tcp::resolver resolver(loop.context());
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || found.empty())
    return Error{ErrorCode::kUsage, fmt::format("--host {}: not an address of this machine ({})", host, error.message())};
  const tcp::endpoint endpoint = found.begin()->endpoint();
  tcp::acceptor& acceptor = shared->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(4096, error);
  if (error)
    return Error{ErrorCode::kUsage, fmt::format("cannot listen on {}:{} ({}); choose another --port or --host", host, port, error.message())};
  shared->accept();
  shared->sweep();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(shared)));
}

HttpServer::~HttpServer() {
  stop_accepting();
  shared_->close_all();
}

int HttpServer::port() const {
  boost::system::error_code ignored;
  return shared_->acceptor.local_endpoint(ignored).port();
}

HttpCounters HttpServer::counters() const {
  HttpCounters c = shared_->counters;
  c.connections = shared_->connections.size();
  return c;
}

void HttpServer::stop_accepting() {
  boost::system::error_code ignored;
  shared_->acceptor.close(ignored);
}

void HttpServer::close_idle() { shared_->close_idle(); }

}  // namespace foretoken::serve
