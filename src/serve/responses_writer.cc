// The Responses API: a response object with items, or the events that build one.
#include <fmt/format.h>

#include "serve/writers.h"

namespace foretoken::serve {
namespace {

using Kind = OutputDelta::Kind;

class ResponsesWriter : public AnswerWriter {
 public:
  ResponsesWriter(Call& call, ResponsesRequest request, ResponseStore& store)
      : call_(call), facts_(call.facts()), exchange_(call.exchange()), request_(std::move(request)), store_(store) {}

  void finished() override { exchange_.respond({.body = dump_json(finished_response())}); }
  void failed(const ApiError& error) override { exchange_.respond(error_response(error, Dialect::kOpenAi)); }

 protected:
  std::string item_id(const char* prefix, size_t index) const { return fmt::format("{}_{}{}", prefix, facts_.id, index); }
  static OrderedJson reasoning_item(const std::string& id, const std::string& text, const char* status) {
    OrderedJson content = OrderedJson::array();
    if (!text.empty()) content.push_back({{"type", "reasoning_text"}, {"text", text}});
    return {{"id", id}, {"type", "reasoning"}, {"summary", OrderedJson::array()}, {"content", std::move(content)}, {"status", status}};
  }
  OrderedJson text_part(const std::string& text, const std::vector<ListedToken>* tokens) const {
    OrderedJson logprobs = tokens && facts_.spec.logprobs.chosen ? logprobs_content(call_.model(), *tokens) : OrderedJson::array();
    return {{"type", "output_text"}, {"text", text}, {"annotations", OrderedJson::array()}, {"logprobs", std::move(logprobs)}};
  }
  static OrderedJson message_item(const std::string& id, OrderedJson content, const char* status) {
    return {{"id", id}, {"type", "message"}, {"role", "assistant"}, {"status", status}, {"content", std::move(content)}};
  }
  // A tool of a namespace goes back as it was given: by its own name and its namespace's.
  const std::string& tool_name(const ToolCall& call) const {
    const auto found = facts_.spec.namespaced_tools.find(call.name);
    return found == facts_.spec.namespaced_tools.end() ? call.name : found->second.name;
  }
  OrderedJson call_item(const std::string& id, const ToolCall& call, const std::string& arguments, const char* status) const {
    OrderedJson item = {{"id", id}, {"type", "function_call"}, {"call_id", call.id}, {"name", tool_name(call)}, {"arguments", arguments}, {"status", status}};
    const auto found = facts_.spec.namespaced_tools.find(call.name);
    if (found != facts_.spec.namespaced_tools.end()) item["namespace"] = found->second.space;
    return item;
  }

  OrderedJson response(const char* status) const {
    OrderedJson body = {{"id", "resp_" + facts_.id}, {"object", "response"}, {"created_at", facts_.created}, {"status", status}, {"error", nullptr},
                        {"incomplete_details", nullptr}, {"model", facts_.model}, {"output", OrderedJson::array()}, {"usage", nullptr}};
    body.update(request_.echo);
    return body;
  }
  // The whole answer as items: what the stream's items add up to.
  OrderedJson items() const {
    const Answer& answer = facts_.choices[0].answer;
    OrderedJson out = OrderedJson::array();
    const auto add = [&](OrderedJson item) { out.push_back(std::move(item)); };
    if (!answer.reasoning().empty()) add(reasoning_item(item_id("rs", out.size()), answer.reasoning(), "completed"));
    if (!answer.text().empty() || answer.calls().empty())
      add(message_item(item_id("msg", out.size()), OrderedJson::array({text_part(answer.text(), &answer.listed())}), "completed"));
    for (const ToolCall& call : answer.calls()) add(call_item(item_id("fc", out.size()), call, call.arguments, "completed"));
    return out;
  }
  OrderedJson finished_response() {
    const Choice& choice = facts_.choices[0];
    const bool cut = choice.reason == "length";
    OrderedJson body = response(cut ? "incomplete" : "completed");
    if (cut) body["incomplete_details"] = {{"reason", "max_output_tokens"}};
    body["output"] = output();
    body["usage"] = {{"input_tokens", facts_.prompt_tokens()}, {"input_tokens_details", {{"cached_tokens", choice.cached_tokens}}},
                     {"output_tokens", choice.answer_tokens}, {"output_tokens_details", {{"reasoning_tokens", choice.answer.reasoning_tokens()}}},
                     {"total_tokens", facts_.prompt_tokens() + choice.answer_tokens}};
    body["foretoken"] = facts_.extension();
    if (request_.store) keep(body);
    return body;
  }
  virtual OrderedJson output() const { return items(); }

  void keep(const OrderedJson& body) {
    const Answer& answer = facts_.choices[0].answer;
    OrderedJson turn = {{"role", "assistant"}, {"content", answer.text()}};
    if (!answer.reasoning().empty()) turn["reasoning_content"] = answer.reasoning();
    for (const ToolCall& call : answer.calls()) {
      auto arguments = parse_ordered_json(call.arguments, "arguments");
      turn["tool_calls"].push_back({{"id", call.id}, {"type", "function"},
                                    {"function", {{"name", call.name}, {"arguments", arguments && arguments->is_object() ? *arguments : OrderedJson::object()}}}});
    }
    OrderedJson messages = request_.messages;
    messages.push_back(std::move(turn));
    const size_t bytes = dump_json(body).size() + dump_json(messages).size();
    store_.put("resp_" + facts_.id, {.body = body, .messages = std::move(messages), .bytes = bytes});
  }

  Call& call_;
  const CallFacts& facts_;
  Exchange& exchange_;
  ResponsesRequest request_;
  ResponseStore& store_;
};

class ResponsesStreamWriter final : public ResponsesWriter {
 public:
  using ResponsesWriter::ResponsesWriter;

  void accepted() override {
    exchange_.begin_stream("text/event-stream; charset=utf-8");
    event("response.created", {{"response", response("in_progress")}});
    event("response.in_progress", {{"response", response("in_progress")}});
  }
  void delta(size_t, const AnswerDelta& delta) override {
    bool first = true;
    for (const OutputDelta& part : delta.parts) {
      write(part, first && part.kind == Kind::kText ? &delta.tokens : nullptr);
      if (part.kind == Kind::kText) first = false;
    }
  }
  void choice_finished(size_t, const AnswerDelta& last) override {
    delta(0, last);
    if (done_items_.empty() && !open_) begin_text();
    end_item();
  }
  void finished() override {
    const OrderedJson body = finished_response();
    event(body["status"] == "completed" ? "response.completed" : "response.incomplete", {{"response", body}});
    exchange_.end_stream();
  }
  void failed(const ApiError& error) override {
    if (!exchange_.streaming()) return ResponsesWriter::failed(error);
    OrderedJson body = response("failed");
    body["error"] = {{"code", error.code}, {"message", error.message}};
    event("response.failed", {{"response", std::move(body)}});
    exchange_.end_stream();
  }
  void keep_alive() override { exchange_.write(": waiting\n\n"); }

 private:
  OrderedJson output() const override { return done_items_; }

  void event(const char* type, OrderedJson data) {
    OrderedJson body = {{"type", type}, {"sequence_number", sequence_++}};
    body.update(data);
    exchange_.write(sse_event(type, body));
  }
  void item_event(const char* type, OrderedJson data, bool with_content = true) {
    OrderedJson body = {{"item_id", id_}, {"output_index", done_items_.size()}};
    if (with_content) body["content_index"] = 0;
    body.update(data);
    event(type, std::move(body));
  }
  void begin_item(Kind kind, const char* prefix, OrderedJson item) {
    open_ = kind;
    text_.clear();
    id_ = item_id(prefix, done_items_.size());
    item["id"] = id_;
    event("response.output_item.added", {{"output_index", done_items_.size()}, {"item", std::move(item)}});
  }
  void begin_text() {
    end_item();
    begin_item(Kind::kText, "msg", message_item("", OrderedJson::array(), "in_progress"));
    item_event("response.content_part.added", {{"part", text_part("", nullptr)}});
  }
  void end_item() {
    if (!open_) return;
    OrderedJson item;
    if (*open_ == Kind::kReasoning) {
      item_event("response.reasoning_text.done", {{"text", text_}});
      item_event("response.content_part.done", {{"part", {{"type", "reasoning_text"}, {"text", text_}}}});
      item = reasoning_item(id_, text_, "completed");
    } else if (*open_ == Kind::kText) {
      const OrderedJson part = text_part(text_, &tokens_);
      item_event("response.output_text.done", {{"text", text_}, {"logprobs", part["logprobs"]}});
      item_event("response.content_part.done", {{"part", part}});
      item = message_item(id_, OrderedJson::array({part}), "completed");
      tokens_.clear();
    } else {
      item_event("response.function_call_arguments.done", {{"name", tool_name(call())}, {"arguments", text_}}, false);
      item = call_item(id_, call(), text_, "completed");
    }
    event("response.output_item.done", {{"output_index", done_items_.size()}, {"item", item}});
    done_items_.push_back(std::move(item));
    open_.reset();
  }
  const ToolCall& call() const { return facts_.choices[0].answer.calls()[static_cast<size_t>(call_index_)]; }

  void write(const OutputDelta& part, const std::vector<ListedToken>* tokens) {
    switch (part.kind) {
      case Kind::kReasoning:
        if (open_ != Kind::kReasoning) {
          end_item();
          begin_item(Kind::kReasoning, "rs", reasoning_item("", "", "in_progress"));
          item_event("response.content_part.added", {{"part", {{"type", "reasoning_text"}, {"text", ""}}}});
        }
        item_event("response.reasoning_text.delta", {{"delta", part.text}});
        break;
      case Kind::kText: {
        if (open_ != Kind::kText) begin_text();
        const bool listed = tokens && facts_.spec.logprobs.chosen;
        if (tokens) tokens_.insert(tokens_.end(), tokens->begin(), tokens->end());
        item_event("response.output_text.delta", {{"delta", part.text}, {"logprobs", listed ? logprobs_content(call_.model(), *tokens) : OrderedJson::array()}});
        break;
      }
      case Kind::kCallBegin:
        end_item();
        call_index_ = part.call;
        begin_item(Kind::kCallBegin, "fc", call_item("", call(), "", "in_progress"));
        return;
      case Kind::kCallArguments: item_event("response.function_call_arguments.delta", {{"delta", part.text}}, false); break;
      case Kind::kCallEnd: return end_item();
    }
    text_ += part.text;
  }

  int64_t sequence_ = 0;
  OrderedJson done_items_ = OrderedJson::array();
  std::optional<Kind> open_;
  std::string id_, text_;  // of the open item
  std::vector<ListedToken> tokens_;
  int call_index_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_responses_writer(Call& call, ResponsesRequest request, ResponseStore& store) {
  if (call.facts().spec.stream) return std::make_unique<ResponsesStreamWriter>(call, std::move(request), store);
  return std::make_unique<ResponsesWriter>(call, std::move(request), store);
}

}  // namespace foretoken::serve
