// One GET, for programs that look for a running server. Plain HTTP only.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "serve/http.h"

namespace foretoken::serve {

struct HttpOrigin {
  std::string host, port;
  std::string prefix;  // of paths, without a slash at its end
  std::string url() const;
};

// "http://host", "http://host:port/prefix", "http://[::1]:8000". https is an error that says so.
Result<HttpOrigin> parse_origin(const std::string& url);

struct HttpReply {
  int status = 0;
  std::string body;  // at most 1 MiB
};

// Fails with kIo when nobody answers (the reason in words), with kTimeout after `seconds`.
Result<HttpReply> http_get(const HttpOrigin& origin, std::string_view path, const Headers& headers, double seconds);

}  // namespace foretoken::serve
