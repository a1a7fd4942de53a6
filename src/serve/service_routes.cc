// The routes that run no model.
#include <fmt/format.h>

#include "serve/anthropic_api.h"
#include "serve/openai_requests.h"
#include "serve/page.h"
#include "serve/service.h"

namespace foretoken::serve {
namespace {

std::string last_part(std::string_view path, std::string_view parent) {
  std::string out;
  for (size_t i = parent.size(); i < path.size(); ++i) {
    const auto digit = [&](size_t at) { return at < path.size() ? std::string_view("0123456789abcdef").find(static_cast<char>(path[at] | 32)) : std::string_view::npos; };
    if (path[i] == '%' && digit(i + 1) != std::string_view::npos && digit(i + 2) != std::string_view::npos) {
      out += static_cast<char>(digit(i + 1) * 16 + digit(i + 2));
      i += 2;
    } else {
      out += path[i];
    }
  }
  return out;
}

}  // namespace

void Service::answer(Exchange& exchange, const OrderedJson& body, int status) {
  ++stats_.responses[{exchange.request().path.starts_with("/v1/models/") ? "/v1/models/" : exchange.request().path, status}];
  exchange.respond({.status = status, .body = dump_json(body)});
}

void Service::fail(Exchange& exchange, const ApiError& error) {
  ++stats_.responses[{exchange.request().path, error.status}];
  exchange.respond(error_response(error, dialect_of(exchange.request().path)));
}

std::optional<OrderedJson> Service::small_body(Exchange& exchange) {
  const auto body = parse_ordered_json(exchange.take_body(), "the request's body");
  if (body && body->is_object()) return *body;
  fail(exchange, {400, "invalid_json", body ? "the request's body must be a JSON object" : body.error().message});
  return std::nullopt;
}

OrderedJson Service::model_json() const {
  const EngineFacts* facts = engine_.ready();
  const OrderedJson length = facts ? OrderedJson(facts->max_context) : OrderedJson(nullptr);
  return {{"id", options_.model_names[0]}, {"object", "model"}, {"created", 0}, {"owned_by", "foretoken"}, {"max_model_len", length},
          {"context_length", length}, {"display_name", options_.model_names[0]}, {"type", "model"}, {"input_modalities", {"text"}}};
}

void Service::models(std::shared_ptr<Exchange> e) {
  OrderedJson list = OrderedJson::array();
  for (const std::string& name : options_.model_names) {
    if (name == "*") continue;
    list.push_back(model_json());
    list.back()["id"] = name;
  }
  const OrderedJson first = list[0]["id"], last = list.back()["id"];
  answer(*e, {{"object", "list"}, {"data", std::move(list)}, {"has_more", false}, {"first_id", first}, {"last_id", last}});
}

void Service::one_model(std::shared_ptr<Exchange> e) {
  const std::string name = last_part(e->request().path, "/v1/models/");
  if (!model_known(name)) return fail(*e, {404, "model_not_found", fmt::format("there is no model \"{}\" here; this server has {}", name.substr(0, 100), options_.model_names[0]), "model"});
  OrderedJson model = model_json();
  model["id"] = name;
  answer(*e, model);
}

void Service::health(std::shared_ptr<Exchange> e) { answer(*e, {{"status", "ok"}}); }

void Service::ready(std::shared_ptr<Exchange> e) {
  if (const auto error = not_ready()) return fail(*e, *error);
  if (leaving_) return fail(*e, {503, "draining", "the server will shut down; ask another one", "", 1});
  answer(*e, {{"status", "ready"}});
}

void Service::page(std::shared_ptr<Exchange> e) {
  ++stats_.responses[{"/", 200}];
  e->respond({.content_type = "text/html; charset=utf-8", .body = options_.page,
              .headers = {{"Content-Security-Policy", page_policy(options_.page)}, {"X-Content-Type-Options", "nosniff"}, {"Referrer-Policy", "no-referrer"},
                          {"Cross-Origin-Opener-Policy", "same-origin"}, {"Cache-Control", "no-cache"}}});
}

// {"content" or "text" or "prompt": TEXT, "add_special": ignored, "with_pieces": bool} or {"messages": [...]}.
void Service::tokenize(std::shared_ptr<Exchange> e) {
  const auto body = small_body(*e);
  if (!body) return;
  Fields f(*body);
  PromptInput input;
  if (const OrderedJson* messages = f.array("messages")) {
    auto read = read_chat_messages(*messages, "messages");
    if (!read) return fail(*e, read.error());
    if (read->empty()) return fail(*e, ApiError::invalid("messages", "messages must be an array with at least one message"));
    input = Conversation{.messages = *std::move(read)};
  } else {
    std::optional<std::string> text;
    for (const char* name : {"content", "text", "prompt"})
      if (!text) text = f.text(name);
    if (f.ok() && !text) f.fail(ApiError::invalid("content", "content is missing: the text to tokenise"));
    if (!f.ok()) return fail(*e, *f.error());
    input = *text;
  }
  const auto made = make_prompt(model_, input);
  if (!made) return fail(*e, made.error());
  OrderedJson pieces = OrderedJson::array();
  for (const TokenId id : made->ids) pieces.push_back(model_.tokenizer->spelling(id));
  const EngineFacts* facts = engine_.ready();
  answer(*e, {{"tokens", made->ids}, {"count", made->ids.size()}, {"pieces", std::move(pieces)}, {"max_model_len", facts ? OrderedJson(facts->max_context) : OrderedJson(nullptr)}});
}

void Service::detokenize(std::shared_ptr<Exchange> e) {
  const auto body = small_body(*e);
  if (!body) return;
  Fields f(*body);
  const OrderedJson* tokens = f.array("tokens");
  if (f.ok() && !tokens) f.fail(ApiError::invalid("tokens", "tokens is missing: a list of ids"));
  if (!f.ok()) return fail(*e, *f.error());
  if (!model_.tokenizer) return fail(*e, {400, "no_tokenizer", "this model has no tokenizer (" + model_.tokenizer_note + ")"});
  std::vector<TokenId> ids;
  for (const OrderedJson& id : *tokens) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX || !model_.tokenizer->has(id.get<TokenId>()))
      return fail(*e, ApiError::invalid("tokens", fmt::format("{} is no token id of this vocabulary", id.dump().substr(0, 40))));
    ids.push_back(id.get<TokenId>());
  }
  const std::string text = model_.tokenizer->decode(ids);
  answer(*e, {{"content", text}, {"prompt", text}, {"text", text}});
}

void Service::apply_template(std::shared_ptr<Exchange> e) {
  const auto body = small_body(*e);
  if (!body) return;
  OrderedJson request = *body;
  Fields f(*body);
  const bool generation_prompt = f.boolean("add_generation_prompt").value_or(true);
  if (!f.ok()) return fail(*e, *f.error());
  request.erase("add_generation_prompt");
  const auto spec = read_chat_request(request, model_.defaults);
  if (!spec) return fail(*e, spec.error());
  const auto made = make_prompt(model_, spec->prompts[0], generation_prompt);
  if (!made) return fail(*e, made.error());
  answer(*e, {{"prompt", made->text}, {"tokens", made->ids}, {"count", made->ids.size()}});
}

void Service::count_tokens(std::shared_ptr<Exchange> e) {
  const auto body = small_body(*e);
  if (!body) return;
  OrderedJson request = *body;
  if (!request.contains("max_tokens")) request["max_tokens"] = 1;
  const auto spec = read_messages_request(request, model_.defaults);
  if (!spec) return fail(*e, spec.error());
  if (!model_known(spec->model)) return fail(*e, {404, "model_not_found", fmt::format("there is no model \"{}\" here", spec->model.substr(0, 100)), "model"});
  const auto made = make_prompt(model_, spec->prompts[0]);
  if (!made) return fail(*e, made.error());
  answer(*e, {{"input_tokens", made->ids.size()}});
}

void Service::stored_response(std::shared_ptr<Exchange> e) {
  const std::string id = last_part(e->request().path, "/v1/responses/");
  const auto stored = store_.get(id);
  if (!stored) return fail(*e, {404, "response_not_found", "there is no stored response of this id; it may have given way to newer ones"});
  ++stats_.responses[{"/v1/responses/", 200}];
  e->respond({.body = dump_json(stored->body)});
}

void Service::delete_response(std::shared_ptr<Exchange> e) {
  const std::string id = last_part(e->request().path, "/v1/responses/");
  if (!store_.remove(id)) return fail(*e, {404, "response_not_found", "there is no stored response of this id"});
  ++stats_.responses[{"/v1/responses/", 200}];
  e->respond({.body = dump_json({{"id", id}, {"object", "response"}, {"deleted", true}})});
}

// What runs is known while the engine recovers, too.
const EngineFacts* Service::remember_facts() {
  if (const EngineFacts* facts = engine_.ready()) last_facts_ = *facts;
  return last_facts_ ? &*last_facts_ : nullptr;
}

void Service::status(std::shared_ptr<Exchange> e) {
  engine_.status([this, e](OrderedJson engine) {
    const EngineFacts* facts = engine_.ready();
    const HttpCounters http = http_counters_ ? http_counters_() : HttpCounters{};
    OrderedJson body = {{"ready", facts != nullptr && !leaving_}, {"draining", leaving_}, {"version", options_.version},
                        {"uptime_s", std::round(std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count() * 10) / 10}};
    if (!facts) body["why_not_ready"] = engine_.why_not();
    if (const EngineFacts* known = remember_facts()) {
      body["max_context"] = known->max_context;
      body.update(known->identity);
    }
    body["engine_process"] = engine_.supervision();
    OrderedJson outcomes = OrderedJson::object();
    for (const auto& [outcome, count] : stats_.outcomes) outcomes[outcome] = count;
    body["requests"] = {{"in_flight", stats_.in_flight}, {"most_in_flight", stats_.most_in_flight}, {"limit", options_.queue + static_cast<size_t>(facts ? facts->lanes : 0)},
                        {"ended", std::move(outcomes)}, {"prompt_tokens", stats_.prompt_tokens}, {"cached_tokens", stats_.cached_tokens},
                        {"completion_tokens", stats_.answer_tokens}};
    body["latency_ms"] = {{"ttft", stats_.first_token.milliseconds()}, {"inter_token", stats_.token_gap.milliseconds()}, {"request", stats_.request_time.milliseconds()}};
    body["http"] = {{"connections", http.connections}, {"accepted", http.accepted}, {"refused", http.refused}, {"requests", http.requests}, {"timeouts", http.timeouts},
                    {"slow_clients_dropped", http.dropped_slow}, {"malformed", http.malformed}, {"ingress_bytes", http.ingress_bytes}};
    body["stored_responses"] = {{"count", store_.count()}, {"bytes", store_.bytes()}};
    if (engine.is_object()) {
      // The engine's own view of speculation holds counters; what was resolved, and why, came with the facts.
      if (engine.contains("speculation") && body.contains("speculation")) {
        OrderedJson joined = body["speculation"];
        joined.update(engine["speculation"]);
        engine["speculation"] = std::move(joined);
      }
      body.update(engine);
    }
    answer(*e, body);
  });
}

void Service::metrics(std::shared_ptr<Exchange> e) {
  engine_.status([this, e](OrderedJson engine) {
    ++stats_.responses[{"/metrics", 200}];
    const EngineFacts* known = remember_facts();
    const HttpCounters http = http_counters_ ? http_counters_() : HttpCounters{};
    e->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8",
                .body = metrics_text(stats_, http, engine, engine_.supervision(), known ? known->identity : OrderedJson(), engine_.ready() && !leaving_)});
  });
}

}  // namespace foretoken::serve
