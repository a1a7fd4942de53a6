// Routing, and the steps of a request for answers.
#include "serve/service.h"

#include <fmt/format.h>
#include <openssl/rand.h>

#include <algorithm>
#include <ctime>

#include "serve/anthropic_api.h"
#include "serve/openai_requests.h"
#include "serve/responses_api.h"
#include "serve/writers.h"

namespace foretoken::serve {
namespace {

constexpr double kSweepSeconds = 1;

std::string random_hex(int bytes) {
  std::vector<unsigned char> raw(static_cast<size_t>(bytes));
  CHECK(::RAND_bytes(raw.data(), bytes) == 1);
  std::string out;
  for (const unsigned char c : raw) out += fmt::format("{:02x}", c);
  return out;
}

// 53 bits: every JSON reader gets the seed back exactly.
uint64_t draw_seed() {
  uint64_t seed = 0;
  CHECK(::RAND_bytes(reinterpret_cast<unsigned char*>(&seed), sizeof seed) == 1);
  return seed >> 11;
}

}  // namespace

// What is known of a request on its way to a call. The worker fills it while the loop leaves it alone.
struct Service::Prepared {
  Api api;
  std::shared_ptr<Exchange> exchange;
  std::chrono::steady_clock::time_point arrival;
  std::string body;
  int64_t context = 0;
  int vocab = 0;
  GenerationSpec spec;
  std::vector<MadePrompt> prompts;
  ResponsesRequest responses;     // of /v1/responses
  std::optional<ApiError> error;
};

Service::Service(Loop& loop, EngineLink& engine, const ModelText& model, ServiceOptions options)
    : loop_(loop), engine_(engine), model_(model), options_(std::move(options)), access_(options_.access), store_(options_.stored_bytes) {
  routes_ = {{"/v1/chat/completions", {.post = &Service::chat}},
             {"/v1/completions", {.post = &Service::completions}},
             {"/v1/responses", {.post = &Service::responses}},
             {"/v1/responses/", {.get = &Service::stored_response, .remove = &Service::delete_response}},
             {"/v1/messages", {.post = &Service::messages}},
             {"/v1/messages/count_tokens", {.post = &Service::count_tokens}},
             {"/v1/models", {.get = &Service::models}},
             {"/v1/models/", {.get = &Service::one_model}},
             {"/tokenize", {.post = &Service::tokenize}},
             {"/detokenize", {.post = &Service::detokenize}},
             {"/apply-template", {.post = &Service::apply_template}},
             {"/health", {.get = &Service::health}},
             {"/ready", {.get = &Service::ready}},
             {"/status", {.get = &Service::status}},
             {"/metrics", {.get = &Service::metrics}}};
  if (!options_.page.empty()) routes_["/"] = {.get = &Service::page};
  sweep();
}

Service::~Service() = default;

// A name that ends in a slash stands for everything one level below it.
const Service::Route* Service::find_route(std::string_view path) const {
  if (const auto it = routes_.find(path); it != routes_.end() && (path == "/" || !path.ends_with('/'))) return &it->second;
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos || slash == 0 || slash + 1 == path.size()) return nullptr;
  for (const char* parent : {"/v1/models/", "/v1/responses/"})  // names of models may hold slashes
    if (path.starts_with(parent)) return &routes_.find(parent)->second;
  return nullptr;
}

std::optional<HttpResponse> Service::refuse(const HttpRequest& head) {
  const Dialect dialect = dialect_of(head.path);
  const auto refusal = [&](const ApiError& error, Headers headers = {}) {
    ++stats_.responses[{find_route(head.path) ? head.path : "other", error.status}];
    HttpResponse response = error_response(error, dialect);
    response.headers.insert(response.headers.end(), headers.begin(), headers.end());
    return response;
  };
  if (auto error = access_.refuse(head)) {
    // A page may read why it was refused, but for a foreign one.
    return refusal(*error, error->code == "origin_not_allowed" || error->code == "host_not_allowed" ? Headers{} : access_.cors(head));
  }
  const Headers cors = access_.cors(head);
  if (head.method == "OPTIONS") {
    HttpResponse response{.status = 204, .headers = cors};
    response.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    const std::string_view asked = head.header("access-control-request-headers");
    const bool plain = !asked.empty() && asked.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-, ") == asked.npos;
    response.headers.emplace_back("Access-Control-Allow-Headers", plain ? std::string(asked) : "authorization, content-type, x-api-key");
    response.headers.emplace_back("Access-Control-Max-Age", "600");
    return response;
  }
  const Route* route = find_route(head.path);
  if (!route) return refusal({404, "not_found", fmt::format("there is no route {}; docs/serving.md lists them", head.path.substr(0, 100))}, cors);
  const bool reads = head.method == "GET" || head.method == "HEAD";
  if ((reads && route->get) || (head.method == "POST" && route->post) || (head.method == "DELETE" && route->remove)) return std::nullopt;
  Headers headers = cors;
  headers.emplace_back("Allow", route->post ? "POST" : route->remove ? "GET, DELETE" : "GET");
  return refusal({405, "method_not_allowed", fmt::format("{} does not take {}", head.path, head.method.substr(0, 20))}, headers);
}

HttpResponse Service::transport_error(const HttpRequest* head, int status, std::string_view what) {
  ++stats_.responses[{"other", status}];
  ApiError error{status, "invalid_request", std::string(what)};
  if (status == 408) error.code = "request_timeout";
  if (status == 413) error.code = "request_too_large";
  if (status == 431) error.code = "headers_too_large";
  if (status == 503) error = {503, "frontend_overloaded", std::string(what), "", 1};
  HttpResponse response = error_response(error, head ? dialect_of(head->path) : Dialect::kOpenAi);
  response.close = true;
  return response;
}

void Service::handle(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  for (auto& [name, value] : access_.cors(request)) exchange->add_header(name, value);
  const Route* route = find_route(request.path);
  const Handler handler = request.method == "POST" ? route->post : request.method == "DELETE" ? route->remove : route->get;
  (this->*handler)(std::move(exchange));
}

// ---- Requests for answers.

void Service::generate(Api api, std::shared_ptr<Exchange> exchange) {
  const auto arrival = std::chrono::steady_clock::now();
  if (const auto error = not_ready()) return fail(*exchange, *error);
  const EngineFacts& facts = *engine_.ready();
  auto prepared = std::make_shared<Prepared>(Prepared{.api = api, .exchange = exchange, .arrival = arrival, .body = exchange->take_body(),
                                                      .context = facts.max_context, .vocab = facts.vocab});
  loop_.work(
      [this, prepared] {
        if (const ApiStatus status = prepare(*prepared); !status) prepared->error = status.error();
      },
      [this, prepared] { start(*prepared); });
}

ApiResult<GenerationSpec> Service::read_request(Api api, const OrderedJson& body, Prepared& prepared) const {
  switch (api) {
    case Api::kChat: return read_chat_request(body, model_.defaults);
    case Api::kCompletions: return read_completion_request(body, model_.defaults);
    case Api::kMessages: return read_messages_request(body, model_.defaults);
    case Api::kResponses: break;
  }
  ASSIGN_OR_RETURN(prepared.responses, read_responses_request(body, model_.defaults, store_));
  return prepared.responses.spec;
}

// On a worker: body to spec to prompts.
ApiStatus Service::prepare(Prepared& prepared) const {
  const auto body = parse_ordered_json(prepared.body, "the request's body", {.bytes = prepared.body.size()});  // HttpLimits bound it
  if (!body) return ApiError{400, "invalid_json", body.error().message};
  if (!body->is_object()) return ApiError{400, "invalid_json", "the request's body must be a JSON object"};
  prepared.body.clear();
  auto spec = read_request(prepared.api, *body, prepared);
  if (!spec) return spec.error();
  prepared.spec = *std::move(spec);
  if (!model_known(prepared.spec.model))
    return ApiError{404, "model_not_found", fmt::format("there is no model \"{}\" here; this server has {}", prepared.spec.model.substr(0, 100), options_.model_names[0]), "model"};
  if (!prepared.spec.thinking_budget) prepared.spec.thinking_budget = model_.defaults.thinking_budget;
  for (const PromptInput& input : prepared.spec.prompts) {
    auto made = make_prompt(model_, input);
    if (!made) {  // whatever it is, it is about the input
      ApiError error = made.error();
      error.param = prepared.spec.names.input;
      return error;
    }
    prepared.prompts.push_back(*std::move(made));
  }
  GenerationSpec& s = prepared.spec;
  if (const ApiStatus status = check_limits(s, prepared.prompts, prepared.context, prepared.vocab); !status) return status;
  int64_t room = prepared.context;
  for (const MadePrompt& prompt : prepared.prompts) room = std::min(room, prepared.context - static_cast<int64_t>(prompt.ids.size()));
  s.max_tokens = std::min(s.max_tokens.value_or(room), room);
  return {};
}

ApiStatus Service::check_limits(const GenerationSpec& spec, const std::vector<MadePrompt>& prompts, int64_t context, int vocab) const {
  for (const MadePrompt& prompt : prompts) {
    const auto length = static_cast<int64_t>(prompt.ids.size());
    if (length == 0) return ApiError::invalid(spec.names.input, "the prompt has no token");
    for (const TokenId id : prompt.ids)
      if (id < 0 || id >= vocab) return ApiError::invalid(spec.names.input, fmt::format("token id {} is not in this vocabulary of {}", id, vocab));
    const bool too_long = length + 1 > context;
    if (too_long || (!spec.clamp_max_tokens && spec.max_tokens.value_or(0) > context - length))
      return ApiError{400, "context_length_exceeded",
                      too_long ? fmt::format("the prompt has {} tokens, and this server's context is {} tokens for prompt and answer together", length, context)
                               : fmt::format("the prompt's {} tokens and {} {} together are more than this server's context of {} tokens", length, spec.names.max_tokens, *spec.max_tokens, context),
                      too_long ? spec.names.input : spec.names.max_tokens};
  }
  if (spec.format && spec.tool_use != ToolUse::kNone)
    return ApiError::unsupported(spec.names.format, fmt::format("{} beside tools is not supported; set tool_choice to none, or leave one of them out", spec.names.format));
  for (const auto& [id, bias] : spec.sampling.logit_bias)
    if (id >= vocab) return ApiError::invalid("logit_bias", fmt::format("logit_bias names token {}, which is not in this vocabulary of {}", id, vocab));
  for (const TokenId id : spec.sampling.banned)
    if (id >= vocab) return ApiError::invalid("logit_bias", fmt::format("logit_bias names token {}, which is not in this vocabulary of {}", id, vocab));
  if (const Status status = spec.sampling.validate(); !status)  // its sentences begin with the field
    return ApiError::invalid(status.error().message.substr(0, status.error().message.find(' ')), status.error().message);
  if ((!spec.stop.empty() || spec.format) && !model_.tokenizer) {
    const std::string& field = spec.format ? spec.names.format : spec.names.stop;
    return ApiError{400, "no_tokenizer", field + " needs a tokenizer, and this model has none", field};
  }
  return {};
}

void Service::start(Prepared& prepared) {
  Exchange& exchange = *prepared.exchange;
  if (prepared.error) return fail(exchange, *prepared.error);
  if (const auto error = not_ready()) return fail(exchange, *error);
  const size_t choices = prepared.prompts.size() * static_cast<size_t>(prepared.spec.n);
  if (stats_.in_flight + choices > options_.queue + static_cast<size_t>(engine_.ready()->lanes))
    return fail(exchange, {429, "queue_full", fmt::format("{} requests are running or waiting, as many as this server takes; try again later", stats_.in_flight), "", 1});
  CallFacts facts{.id = random_hex(16), .created = static_cast<int64_t>(std::time(nullptr)), .model = options_.model_names[0],
                  .fingerprint = options_.fingerprint, .spec = std::move(prepared.spec), .prompts = std::move(prepared.prompts)};
  facts.seed = facts.spec.seed ? *facts.spec.seed : draw_seed();
  exchange.add_header("x-request-id", "req_" + facts.id);
  auto call = std::make_shared<Call>(engine_, model_, prepared.exchange, std::move(facts), prepared.arrival);
  auto writer = make_writer(prepared, *call);
  stats_.in_flight += choices;
  stats_.most_in_flight = std::max(stats_.most_in_flight, stats_.in_flight);
  calls_.insert(call);
  const std::string path = exchange.request().path;
  call->start(std::move(writer), [this, choices, path, arrival = prepared.arrival](Call& ended) {
    stats_.in_flight -= choices;
    const double total_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - arrival).count();
    const CallTimes& t = ended.times();
    stats_.record(t, total_s);
    ++stats_.responses[{path, t.status}];
    if (options_.log)
      options_.log(fmt::format(R"({{"request":"{}","route":"{}","outcome":"{}","prompt_tokens":{},"cached_tokens":{},"completion_tokens":{},"first_token_ms":{:.1f},"total_ms":{:.1f}}})",
                               ended.facts().id, path, t.outcome, t.prompt_tokens, t.cached_tokens, t.answer_tokens, t.first_token_s * 1e3, total_s * 1e3));
    loop_.post([this, call = ended.shared_from_this()] {  // not inside the call's own function
      calls_.erase(call);
      if (draining_ && calls_.empty() && drained_) std::exchange(drained_, nullptr)();
    });
  });
}

std::unique_ptr<AnswerWriter> Service::make_writer(const Prepared& prepared, Call& call) {
  switch (prepared.api) {
    case Api::kChat: return make_chat_writer(call);
    case Api::kCompletions: return make_completion_writer(call);
    case Api::kMessages: return make_messages_writer(call);
    case Api::kResponses: break;
  }
  return make_responses_writer(call, prepared.responses, store_);
}

bool Service::model_known(const std::string& name) const {
  if (name.empty()) return true;
  return std::any_of(options_.model_names.begin(), options_.model_names.end(), [&](const std::string& n) { return n == "*" || n == name; });
}

std::optional<ApiError> Service::not_ready() const {
  if (draining_) return ApiError{503, "draining", "the server is shutting down; ask another one", "", 1};
  if (engine_.ready()) return std::nullopt;
  return ApiError{503, "engine_recovering", engine_.why_not(), "", 1};
}

void Service::drain(std::function<void()> drained) {
  leaving_ = draining_ = true;
  drained_ = std::move(drained);
  if (calls_.empty()) loop_.post(std::exchange(drained_, nullptr));
}

void Service::sweep() {
  sweeper_ = loop_.after(kSweepSeconds, [this] {
    remember_facts();
    const auto now = std::chrono::steady_clock::now();
    const std::vector<std::shared_ptr<Call>> calls(calls_.begin(), calls_.end());
    for (const auto& call : calls) call->keep_alive(now);
    sweep();
  });
}

}  // namespace foretoken::serve
