// HttpServer: connections on one port, held to HttpLimits whatever clients do. It parses requests, watches for clients that go, and writes
// answers no faster than they are taken.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "serve/http.h"
#include "serve/loop.h"

namespace foretoken::serve {

class HttpServer {
 public:
  // Binds and listens; port 0 takes any free one. `loop` and `handler` must outlive the server.
  static Result<std::unique_ptr<HttpServer>> listen(Loop& loop, const std::string& host, int port, const HttpLimits& limits, HttpHandler& handler);
  ~HttpServer();

  int port() const;
  HttpCounters counters() const;
  void stop_accepting();
  // Ends idle connections; busy ones end with their answer.
  void close_idle();

  struct Shared;

 private:
  explicit HttpServer(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::shared_ptr<Shared> shared_;
};

}  // namespace foretoken::serve
