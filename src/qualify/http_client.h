// An HTTP/1.1 client for measuring servers: one request a connection, the body handed on as it arrives.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace foretoken {

struct HttpUrl {
  std::string host, port, path;  // path without a slash at its end
};
Result<HttpUrl> parse_http_url(const std::string& text);  // http://host[:port][/path]

struct HttpAnswer {
  int status = 0;
  std::string body;
};
struct HttpRequest {
  std::string path;        // behind the URL's own
  std::string body;        // empty: GET; otherwise POST of JSON
  std::string api_key;     // empty: none
  double timeout_s = 600;  // without a byte
};
// `on_data` sees each piece of the body when it arrives; the answer holds all of it.
Result<HttpAnswer> http(const HttpUrl& url, const HttpRequest& request,
                        const std::function<void(std::string_view)>& on_data = {});

// Server-sent events: feed pieces, get the data of each complete event.
class EventReader {
 public:
  void feed(std::string_view piece, const std::function<void(std::string_view data)>& on_event);

 private:
  std::string rest_;
};

}  // namespace foretoken
