// HTTP/1.1 as the service sees it: requests with whole bodies in, whole or streamed answers out. Limits, time-outs and slow clients are
// the server's business (http_server.h). It knows no routes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foretoken::serve {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;   // without the query, percent-encoding kept
  std::string query;
  Headers headers;    // names in lower case
  std::string body;

  // The value of the first header of that name (lower case), or empty.
  std::string_view header(std::string_view name) const;
  size_t count(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  Headers headers;
  bool close = false;  // end the connection afterwards
};

// One request that is being answered. Everything happens on the loop's thread. Let go without an answer, the connection closes.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  // The body may be moved from: it is not needed by the server any more, and its bytes stop counting as ingress.
  virtual std::string take_body() = 0;
  // Added to whatever answer follows.
  virtual void add_header(std::string name, std::string value) = 0;

  virtual void respond(HttpResponse response) = 0;
  virtual void begin_stream(const std::string& content_type) = 0;
  virtual void write(std::string_view piece) = 0;
  virtual void end_stream() = 0;
  virtual bool streaming() const = 0;
  // Bytes that the client has not taken yet.
  virtual size_t unsent() const = 0;
  // Called once if the client goes, or is dropped for its slowness, before the answer is complete.
  virtual void on_gone(std::function<void()> gone) = 0;
};

struct HttpLimits {
  size_t header_bytes = 32u << 10;
  size_t body_bytes = 64u << 20;
  size_t ingress_bytes = 512u << 20;      // of all bodies that are held
  size_t connections = 2048;
  size_t unsent_bytes = 4u << 20;         // of one answer, before a slow client is dropped
  double header_s = 10;                   // from a request's first byte to the end of its headers
  double idle_s = 75;                     // between requests, and before the first
  double body_idle_s = 30;                // of an upload
  double body_bytes_per_s = 32 << 10;     // least rate of an upload, after body_idle_s
  double write_s = 60;                    // without a byte taken
};

struct HttpCounters {
  uint64_t connections = 0, accepted = 0, refused = 0, requests = 0, timeouts = 0, dropped_slow = 0, malformed = 0;
  size_t ingress_bytes = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Judged before the body is read: an answer refuses the request.
  virtual std::optional<HttpResponse> refuse(const HttpRequest& head) = 0;
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;
  // The body of an answer that the server gives by itself: 400, 408, 413, 431, 503.
  virtual HttpResponse transport_error(const HttpRequest* head, int status, std::string_view what) = 0;
};

}  // namespace foretoken::serve
