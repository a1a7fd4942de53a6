// Host, Origin and key.
#include "serve/access.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>

namespace foretoken::serve {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

bool is_address(const std::string& name) {
  in6_addr scratch;
  return ::inet_pton(AF_INET, name.c_str(), &scratch) == 1 || ::inet_pton(AF_INET6, name.c_str(), &scratch) == 1;
}

std::array<unsigned char, 32> hash(std::string_view text) {
  std::array<unsigned char, 32> out{};
  ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), out.data());
  return out;
}

// Unprintable characters and excess length never reach an error message.
std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 80)) out += c >= ' ' && c <= '~' ? c : '?';
  return out;
}

}  // namespace

std::string host_name(std::string_view host) {
  if (host.starts_with('[')) return lower(host.substr(1, host.find(']') == std::string_view::npos ? host.npos : host.find(']') - 1));
  const size_t colon = host.rfind(':');
  if (colon != std::string_view::npos && host.find(':') == colon) host = host.substr(0, colon);
  if (host.ends_with('.')) host.remove_suffix(1);
  return lower(host);
}

Access::Access(AccessOptions options) : options_(std::move(options)) {
  const std::string bound = host_name(options_.host);
  any_address_ = bound == "0.0.0.0" || bound == "::";
  for (std::string& name : options_.allowed_hosts) name = name == "*" ? name : host_name(name);
  for (const char* name : {"localhost", "127.0.0.1", "::1"}) options_.allowed_hosts.emplace_back(name);
  options_.allowed_hosts.push_back(bound);
  for (std::string& origin : options_.allowed_origins) {
    origin = lower(origin);
    if (origin.ends_with('/')) origin.pop_back();
  }
  key_hash_ = hash(options_.api_key);
}

bool Access::host_allowed(std::string_view host) const {
  const std::string name = host_name(host);
  if (any_address_ && is_address(name)) return true;
  return std::any_of(options_.allowed_hosts.begin(), options_.allowed_hosts.end(), [&](const std::string& a) { return a == "*" || a == name; });
}

bool Access::origin_allowed(const HttpRequest& head) const {
  const std::string origin = lower(head.header("origin"));
  if (origin == "http://" + lower(head.header("host")) || origin == "https://" + lower(head.header("host"))) return true;
  return std::any_of(options_.allowed_origins.begin(), options_.allowed_origins.end(), [&](const std::string& a) { return a == "*" || a == origin; });
}

bool Access::key_fits(const HttpRequest& head) const {
  std::string_view key = head.header("x-api-key");
  const std::string_view authorization = head.header("authorization");
  if (authorization.size() > 7 && lower(authorization.substr(0, 7)) == "bearer ") key = authorization.substr(7);
  const auto given = hash(key);
  return ::CRYPTO_memcmp(given.data(), key_hash_.data(), given.size()) == 0;
}

std::optional<ApiError> Access::refuse(const HttpRequest& head) const {
  if (head.count("host") > 1) return ApiError{400, "invalid_request", "the request has several Host headers"};
  const std::string_view host = head.header("host");
  if (!host_allowed(host))
    return ApiError{403, "host_not_allowed",
                    fmt::format("Host \"{}\" is not a name of this server; start it with --allowed-host {} if it is", shown(host), shown(host_name(host)))};
  if (head.count("origin") > 0 && !origin_allowed(head))
    return ApiError{403, "origin_not_allowed",
                    fmt::format("pages of origin \"{0}\" may not use this server; start it with --allowed-origin {0} to let them", shown(head.header("origin")))};
  if (options_.api_key.empty() || is_public(head.path) || head.method == "OPTIONS" || key_fits(head)) return std::nullopt;
  return ApiError{401, "invalid_api_key", "this server wants its API key, as \"Authorization: Bearer KEY\" or \"x-api-key: KEY\""};
}

Headers Access::cors(const HttpRequest& head) const {
  if (head.count("origin") == 0) return {};
  return {{"Access-Control-Allow-Origin", std::string(head.header("origin"))},
          {"Vary", "Origin"},
          {"Access-Control-Expose-Headers", "x-request-id, retry-after"}};
}

}  // namespace foretoken::serve
