// Access: who may ask. A page of another site can reach a server on this machine through a name that it points here (DNS rebinding) or by
// a cross-origin request; Host and Origin tell such requests from a user's own. Keys are compared in constant time.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "serve/api_error.h"

namespace foretoken::serve {

struct AccessOptions {
  std::string host = "127.0.0.1";            // that the server is bound to
  std::vector<std::string> allowed_hosts;    // besides loopback names and the bound one; "*": any
  std::vector<std::string> allowed_origins;  // besides the server's own; "*": any
  std::string api_key;                       // empty: none is asked for
};

class Access {
 public:
  explicit Access(AccessOptions options);

  // Nothing when the request may be answered.
  std::optional<ApiError> refuse(const HttpRequest& head) const;
  // Headers that let a browser's page of an allowed origin read the answer; empty without an Origin.
  Headers cors(const HttpRequest& head) const;
  // Routes that never need a key.
  static bool is_public(std::string_view path) { return path == "/health" || path == "/ready" || path == "/"; }

 private:
  bool host_allowed(std::string_view host) const;
  bool origin_allowed(const HttpRequest& head) const;
  bool key_fits(const HttpRequest& head) const;

  AccessOptions options_;
  bool any_address_ = false;  // bound to all addresses: any literal address may be the server's
  std::array<unsigned char, 32> key_hash_{};
};

// "name:port", "[::1]:port" or a bare one: the name, in lower case and without brackets.
std::string host_name(std::string_view host);

}  // namespace foretoken::serve
