// Boost.Beast, one operation after the other, each with a deadline.
#include "qualify/http_client.h"

#include <fmt/format.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>

namespace foretoken {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http_ns = beast::http;

constexpr size_t kMostBody = size_t{256} << 20;

Error failed(const HttpUrl& url, const char* doing, const beast::error_code& code) {
  return {ErrorCode::kIo, fmt::format("http://{}:{} {}: {}", url.host, url.port, doing, code.message())};
}

}  // namespace

Result<HttpUrl> parse_http_url(const std::string& text) {
  constexpr std::string_view kScheme = "http://";
  const auto bad = [&] {
    return Error{ErrorCode::kUsage, fmt::format("\"{}\" is no URL such as http://127.0.0.1:8000", text)};
  };
  if (!text.starts_with(kScheme)) return bad();
  const std::string rest = text.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string place = rest.substr(0, slash);
  const size_t colon = place.rfind(':');
  HttpUrl url{.host = place.substr(0, colon),
              .port = colon == std::string::npos ? "80" : place.substr(colon + 1),
              .path = rest.substr(slash)};
  while (url.path.ends_with('/')) url.path.pop_back();
  if (url.host.empty() || url.port.empty() || url.port.size() > 5 ||
      url.port.find_first_not_of("0123456789") != std::string::npos)
    return bad();
  return url;
}

Result<HttpAnswer> http(const HttpUrl& url, const HttpRequest& request,
                        const std::function<void(std::string_view)>& on_data) {
  asio::io_context io;
  beast::tcp_stream stream(io);
  beast::error_code code;
  const auto timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(request.timeout_s));
  const auto done = [&](beast::error_code e, auto&&...) { code = e; };
  const auto finish = [&] {
    io.restart();
    io.run();
    return !code;
  };
  asio::ip::tcp::resolver resolver(io);
  const auto places = resolver.resolve(url.host, url.port, code);
  if (code) return failed(url, "has no address", code);
  stream.expires_after(timeout);
  stream.async_connect(places, done);
  if (!finish()) return failed(url, "does not answer", code);
  stream.socket().set_option(asio::ip::tcp::no_delay(true), code);

  http_ns::request<http_ns::string_body> message(request.body.empty() ? http_ns::verb::get : http_ns::verb::post,
                                                 url.path + request.path, 11);
  message.set(http_ns::field::host, url.host + ":" + url.port);
  message.set(http_ns::field::connection, "close");
  if (!request.body.empty()) message.set(http_ns::field::content_type, "application/json");
  if (!request.api_key.empty()) message.set(http_ns::field::authorization, "Bearer " + request.api_key);
  message.body() = request.body;
  message.prepare_payload();
  stream.expires_after(timeout);
  http_ns::async_write(stream, message, done);
  if (!finish()) return failed(url, "takes no request", code);

  beast::flat_buffer buffer;
  http_ns::response_parser<http_ns::buffer_body> parser;
  parser.body_limit(kMostBody);
  stream.expires_after(timeout);
  http_ns::async_read_header(stream, buffer, parser, done);
  if (!finish()) return failed(url, "sends no answer", code);
  HttpAnswer answer{.status = static_cast<int>(parser.get().result_int())};
  char piece[1 << 16];
  while (!parser.is_done()) {
    parser.get().body().data = piece;
    parser.get().body().size = sizeof piece;
    stream.expires_after(timeout);
    http_ns::async_read_some(stream, buffer, parser, done);
    const bool ok = finish() || code == http_ns::error::need_buffer;
    const size_t got = sizeof piece - parser.get().body().size;
    if (got > 0) {
      answer.body.append(piece, got);
      if (on_data) on_data({piece, got});
    }
    if (!ok) return failed(url, "broke its answer off", code);
  }
  return answer;
}

void EventReader::feed(std::string_view piece, const std::function<void(std::string_view)>& on_event) {
  rest_.append(piece);
  size_t begin = 0;
  for (size_t end; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::string_view line(rest_.data() + begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.starts_with("data:")) continue;
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    on_event(line);
  }
  rest_.erase(0, begin);
}

}  // namespace foretoken
