// Load: requests that arrive when they arrive, whether the server keeps up or not, and what their users see.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "qualify/http_client.h"
#include "qualify/speed.h"

namespace foretoken {

struct LoadPrompt {
  std::string kind;
  Json body;  // of POST /v1/chat/completions or /v1/completions, without "stream"
  std::string path;
};
struct LoadOptions {
  HttpUrl url;
  std::string api_key;
  std::vector<LoadPrompt> prompts;
  double requests_per_second = 1;
  int requests = 32;
  uint64_t seed = 1;
  int most_at_once = 512;  // of this client: what would exceed it fails
};
// Poisson arrivals; a "request" row each, in order of arrival. Blocks until all have ended.
Status measure_load(const LoadOptions& options, const RowSink& rows, const std::function<bool(int, int)>& progress);

}  // namespace foretoken
