// A request and its answer by Beast, with one deadline over all steps.
#include "serve/http_client.h"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>

namespace foretoken::serve {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

namespace {

constexpr size_t kMostBytes = size_t{1} << 20;

// Each step starts the next one; the first failure ends all.
struct Get {
  explicit Get(const std::string& host, asio::io_context& context) : resolver(context), stream(context), host(host) {}

  void start(const std::string& port, std::chrono::microseconds patience) {
    stream.expires_after(patience);
    resolver.async_resolve(host, port, [this](beast::error_code e, const tcp::resolver::results_type& found) {
      if (failed(e)) return;
      stream.async_connect(found, [this](beast::error_code e2, const tcp::endpoint&) {
        if (!failed(e2)) exchange();
      });
    });
  }
  void exchange() {
    http::async_write(stream, request, [this](beast::error_code e, size_t) {
      if (failed(e)) return;
      parser.body_limit(kMostBytes);
      http::async_read(stream, buffer, parser, [this](beast::error_code e2, size_t) { failed(e2); });
    });
  }
  bool failed(beast::error_code e) {
    error = e;
    return static_cast<bool>(e);
  }

  tcp::resolver resolver;
  beast::tcp_stream stream;
  std::string host;
  http::request<http::empty_body> request;
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  beast::error_code error;
};

std::string bracketed(const std::string& host) { return host.find(':') == std::string::npos ? host : "[" + host + "]"; }

}  // namespace

std::string HttpOrigin::url() const { return fmt::format("http://{}:{}{}", bracketed(host), port, prefix); }

Result<HttpOrigin> parse_origin(const std::string& url) {
  const auto bad = [&](std::string_view why) {
    return Error{ErrorCode::kUsage,
                 fmt::format("\"{}\" is no address of a server ({}); write it as http://127.0.0.1:8000", url, why)};
  };
  if (url.starts_with("https://")) return bad("https is not spoken here; name the server behind it");
  if (!url.starts_with("http://")) return bad("it does not begin with http://");
  const std::string rest = url.substr(7);
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string authority = rest.substr(0, slash);
  HttpOrigin origin{.host = authority, .port = "80", .prefix = rest.substr(slash)};
  while (origin.prefix.ends_with('/')) origin.prefix.pop_back();
  const size_t bracket = authority.rfind(']'), colon = authority.rfind(':');
  if (colon != std::string::npos && (bracket == std::string::npos || colon > bracket)) {
    origin.host = authority.substr(0, colon);
    origin.port = authority.substr(colon + 1);
  }
  if (origin.host.starts_with('[') && origin.host.ends_with(']'))
    origin.host = origin.host.substr(1, origin.host.size() - 2);
  if (origin.host.empty()) return bad("it names no host");
  if (origin.port.empty() || origin.port.size() > 5 || origin.port.find_first_not_of("0123456789") != std::string::npos)
    return bad("its port is no number");
  if (origin.prefix.find_first_of("?# ") != std::string::npos || authority.find('@') != std::string::npos)
    return bad("only a host, a port and a path belong there");
  return origin;
}

Result<HttpReply> http_get(const HttpOrigin& origin, std::string_view path, const Headers& headers, double seconds) {
  asio::io_context context(1);
  Get get(origin.host, context);
  get.request = {http::verb::get, origin.prefix + std::string(path), 11};
  get.request.set(http::field::host, bracketed(origin.host) + ":" + origin.port);
  get.request.set(http::field::connection, "close");
  for (const auto& [name, value] : headers) get.request.set(name, value);
  const auto patience = std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
  get.start(origin.port, patience);
  context.run_for(patience);  // names are looked up without the stream's deadline
  if (!context.stopped() || get.error == beast::error::timeout)
    return Error{ErrorCode::kTimeout, fmt::format("no answer within {:g} s", seconds)};
  if (get.error) return Error{ErrorCode::kIo, get.error.message()};
  return HttpReply{.status = static_cast<int>(get.parser.get().result_int()), .body = std::move(get.parser.get().body())};
}

}  // namespace foretoken::serve
