// Service: the routes. It owns what is said over HTTP about one model on one engine, and knows neither sockets nor processes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "serve/access.h"
#include "serve/call.h"
#include "serve/engine_link.h"
#include "serve/loop.h"
#include "serve/model_text.h"
#include "serve/response_store.h"
#include "serve/service_stats.h"

namespace foretoken::serve {

struct ServiceOptions {
  AccessOptions access;
  std::vector<std::string> model_names;   // the first is what answers say; "*" allows any in requests
  std::string version, fingerprint;
  size_t queue = 1024;                    // requests that wait beside those that run
  size_t stored_bytes = 64u << 20;        // of stored responses
  std::string page;                       // GET /; empty: 404
  std::function<void(const std::string&)> log = {};  // one line of JSON for each ended request; never text of prompts or answers
};

class Service final : public HttpHandler {
 public:
  // All must outlive the service.
  Service(Loop& loop, EngineLink& engine, const ModelText& model, ServiceOptions options);
  ~Service() override;

  std::optional<HttpResponse> refuse(const HttpRequest& head) override;
  void handle(std::shared_ptr<Exchange> exchange) override;
  HttpResponse transport_error(const HttpRequest* head, int status, std::string_view what) override;

  void set_http_counters(std::function<HttpCounters()> counters) { http_counters_ = std::move(counters); }
  // Not ready any more, so that balancers turn to others; requests are still taken.
  void announce_end() { leaving_ = true; }
  // No new answers; `drained` is called when those under way have ended.
  void drain(std::function<void()> drained);
  size_t in_flight() const { return stats_.in_flight; }

 private:
  enum class Api : uint8_t { kChat, kCompletions, kResponses, kMessages };
  using Handler = void (Service::*)(std::shared_ptr<Exchange>);
  struct Route {
    Handler get = nullptr, post = nullptr, remove = nullptr;
  };
  const Route* find_route(std::string_view path) const;

  void chat(std::shared_ptr<Exchange> e) { generate(Api::kChat, std::move(e)); }
  void completions(std::shared_ptr<Exchange> e) { generate(Api::kCompletions, std::move(e)); }
  void responses(std::shared_ptr<Exchange> e) { generate(Api::kResponses, std::move(e)); }
  void messages(std::shared_ptr<Exchange> e) { generate(Api::kMessages, std::move(e)); }
  void count_tokens(std::shared_ptr<Exchange> e);
  void models(std::shared_ptr<Exchange> e);
  void one_model(std::shared_ptr<Exchange> e);
  void tokenize(std::shared_ptr<Exchange> e);
  void detokenize(std::shared_ptr<Exchange> e);
  void apply_template(std::shared_ptr<Exchange> e);
  void health(std::shared_ptr<Exchange> e);
  void ready(std::shared_ptr<Exchange> e);
  void status(std::shared_ptr<Exchange> e);
  void metrics(std::shared_ptr<Exchange> e);
  void page(std::shared_ptr<Exchange> e);
  void stored_response(std::shared_ptr<Exchange> e);
  void delete_response(std::shared_ptr<Exchange> e);

  // One request for answers, in its steps: read and rendered beside the loop, then started on it.
  struct Prepared;
  void generate(Api api, std::shared_ptr<Exchange> exchange);
  ApiResult<GenerationSpec> read_request(Api api, const OrderedJson& body, Prepared& prepared) const;
  ApiStatus prepare(Prepared& prepared) const;
  void start(Prepared& prepared);
  std::unique_ptr<AnswerWriter> make_writer(const Prepared& prepared, Call& call);
  ApiStatus check_limits(const GenerationSpec& spec, const std::vector<MadePrompt>& prompts, int64_t context, int vocab) const;
  bool model_known(const std::string& name) const;
  std::optional<ApiError> not_ready() const;
  OrderedJson model_json() const;
  const EngineFacts* remember_facts();  // of the engine, or of the last one that was ready; null before any was

  // A small JSON body, or an error's answer given.
  std::optional<OrderedJson> small_body(Exchange& exchange);
  void answer(Exchange& exchange, const OrderedJson& body, int status = 200);
  void fail(Exchange& exchange, const ApiError& error);
  void sweep();

  Loop& loop_;
  EngineLink& engine_;
  const ModelText& model_;
  ServiceOptions options_;
  Access access_;
  std::map<std::string, Route, std::less<>> routes_;
  std::function<HttpCounters()> http_counters_;
  ServiceStats stats_;
  mutable ResponseStore store_;
  std::set<std::shared_ptr<Call>> calls_;
  std::unique_ptr<Loop::Timer> sweeper_;
  std::optional<EngineFacts> last_facts_;
  bool leaving_ = false, draining_ = false;
  std::function<void()> drained_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace foretoken::serve
