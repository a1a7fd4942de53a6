// Errors in the words of each API.
#include "serve/api_error.h"

namespace foretoken::serve {
namespace {

std::string_view openai_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 500: case 502: case 503: case 504: return "server_error";
    default: return "invalid_request_error";
  }
}

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 500: case 504: return "api_error";
    case 503: return "overloaded_error";
    default: return "invalid_request_error";
  }
}

}  // namespace

Dialect dialect_of(std::string_view path) { return path.starts_with("/v1/messages") ? Dialect::kAnthropic : Dialect::kOpenAi; }

OrderedJson error_json(const ApiError& error, Dialect dialect) {
  const OrderedJson param = error.param.empty() ? OrderedJson(nullptr) : OrderedJson(error.param);
  if (dialect == Dialect::kAnthropic)
    return {{"type", "error"}, {"error", {{"type", anthropic_type(error.status)}, {"message", error.message}, {"param", param}, {"code", error.code}}}};
  return {{"error", {{"message", error.message}, {"type", openai_type(error.status)}, {"param", param}, {"code", error.code}}}};
}

HttpResponse error_response(const ApiError& error, Dialect dialect) {
  HttpResponse response{.status = error.status, .body = dump_json(error_json(error, dialect))};
  if (error.retry_after_s > 0) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

ApiError api_error(const Error& error) {
  switch (error.code) {
    case ErrorCode::kUsage: return {400, "invalid_request", error.message};
    case ErrorCode::kUnsupported: return {400, "unsupported_field", error.message};
    case ErrorCode::kBusy: return {429, "queue_full", error.message, "", 1};
    case ErrorCode::kTimeout: return {504, "timeout", error.message};
    case ErrorCode::kCheckFailed: return {500, "model_result_invalid", error.message};
    default: return {500, "engine_error", error.message};
  }
}

}  // namespace foretoken::serve
