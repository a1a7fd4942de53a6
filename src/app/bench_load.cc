// foretoken bench load: open-loop arrivals against a running server.
#include <fmt/format.h>

#include "app/bench_options.h"
#include "base/file.h"
#include "qualify/load.h"

namespace foretoken::app {
namespace {

struct BenchLoadOptions {
  BenchOutput output;
  std::string url = "http://127.0.0.1:8000", api_key, cohort = "standard", log_level = "info", model;
  std::vector<double> rates = {1, 2, 4};
  int requests = 32, max_tokens = 128;
  uint64_t seed = 1;
  double first_limit_ms = 1000, token_limit_ms = 50;
};

Result<std::vector<LoadPrompt>> prompts_of(const BenchLoadOptions& o, const std::string& model, std::string& digest) {
  std::string list;
  if (o.cohort == "standard") list = kStandardCohort;
  else if (o.cohort == "holdout") list = kHoldoutCohort;
  else {
    ASSIGN_OR_RETURN(list, read_file(o.cohort));
  }
  digest = sha256_hex(list);
  ASSIGN_OR_RETURN(const Json cohort, parse_json(list, o.cohort));
  std::vector<LoadPrompt> prompts;
  try {
    for (const Json& entry : cohort) {
      if (!entry.contains("text")) continue;
      const bool raw = entry.value("raw", false);
      LoadPrompt p{.kind = entry.at("class").get<std::string>(),
                   .body = Json::object(),
                   .path = raw ? "/v1/completions" : "/v1/chat/completions"};
      p.body["model"] = model;
      p.body["max_tokens"] = o.max_tokens;
      p.body["temperature"] = 0;
      if (raw) {
        p.body["prompt"] = entry.at("text");
      } else {
        Json message = Json::object();
        message["role"] = "user";
        message["content"] = entry.at("text");
        p.body["messages"] = Json::array({message});
      }
      prompts.push_back(std::move(p));
    }
  } catch (const Json::exception& e) {
    return Error{ErrorCode::kInvalidFile, fmt::format("{} is no cohort: {}", o.cohort, e.what())};
  }
  if (prompts.empty()) return Error{ErrorCode::kInvalidFile, o.cohort + " has no prompts with a text"};
  return prompts;
}

// The first model that the server names.
Result<std::string> served_model(const HttpUrl& url, const std::string& key) {
  ASSIGN_OR_RETURN(const HttpAnswer answer,
                   http(url, {.path = "/v1/models", .body = "", .api_key = key, .timeout_s = 10}));
  if (answer.status != 200)
    return Error{ErrorCode::kUsage,
                 fmt::format("the server answers /v1/models with status {}; give --api-key, or --served-model a name",
                             answer.status)};
  ASSIGN_OR_RETURN(const Json list, parse_json(answer.body, "/v1/models"));
  const Json::json_pointer first("/data/0/id");
  if (!list.contains(first) || !list[first].is_string())
    return Error{ErrorCode::kUsage, "the server names no model at /v1/models; name one with --served-model"};
  return list[first].get<std::string>();
}

Result<int> bench_load(BenchLoadOptions o) {
  ASSIGN_OR_RETURN(const HttpUrl url, parse_http_url(o.url));
  const std::string key = o.api_key.empty() ? api_key_of_environment() : o.api_key;
  if (o.model.empty()) {
    ASSIGN_OR_RETURN(o.model, served_model(url, key));
  }
  Measurement measurement("load", "Arrivals that wait for nobody, and what users see");
  std::string digest;
  ASSIGN_OR_RETURN(std::vector<LoadPrompt> prompts, prompts_of(o, o.model, digest));
  OrderedJson& design = measurement.design();
  design["model"] = o.model.substr(0, 200);
  design["rates"] = o.rates;
  design["requests"] = o.requests;
  design["arrivals"] = "Poisson, from a seed";
  design["seed"] = o.seed;
  design["max_tokens"] = o.max_tokens;
  design["cohort_sha256"] = digest;
  design["first_token_limit_ms"] = o.first_limit_ms;
  design["token_limit_ms"] = o.token_limit_ms;
  CommonOptions common{.log_level = o.log_level};
  const auto progress = bench_progress(common);
  for (const double rate : o.rates)
    TRY(measure_load(
        {.url = url,
         .api_key = key,
         .prompts = prompts,
         .requests_per_second = rate,
         .requests = o.requests,
         .seed = o.seed},
        [&](Json row) { measurement.add(std::move(row)); }, progress));
  return measurement.finish(o.output);
}

}  // namespace

Command add_bench_load(CLI::App& bench) {
  auto o = std::make_shared<BenchLoadOptions>();
  CLI::App* app =
      bench.add_subcommand("load", "Open-loop arrivals against a running server: first tokens, gaps, goodput");
  add_bench_output(*app, o->output, true);
  app->add_option("--url", o->url, "The server, this program's or any that speaks OpenAI's API")->capture_default_str();
  app->add_option("--api-key", o->api_key, "Its key (default: FORETOKEN_API_KEY)");
  app->add_option("--served-model", o->model, "Model to ask for (default: the first that the server names)");
  app->add_option("--rate", o->rates, "Requests per second, one or several")
      ->delimiter(',')
      ->check(CLI::Range(0.001, 100000.0));
  app->add_option("--requests", o->requests, "Requests at each rate")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->add_option("--cohort", o->cohort, "standard, holdout, or a JSON list of prompts")->capture_default_str();
  app->add_option("--max-tokens,-n", o->max_tokens, "Longest answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--seed", o->seed, "Of the arrivals")->capture_default_str();
  app->add_option("--first-token-limit", o->first_limit_ms, "Milliseconds within which a good answer begins")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--token-limit", o->token_limit_ms, "Milliseconds a token of a good answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--log-level", o->log_level, "quiet or info")->check(CLI::IsMember({"quiet", "info"}));
  return {app, [o] {
            const auto status = bench_load(*o);
            return status ? *status : report(status.error());
          }};
}

}  // namespace foretoken::app
