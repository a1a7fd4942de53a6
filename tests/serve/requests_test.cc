// Requests of every API become the same few specs, and each mistake names its field. No engine, no socket.
#include <gtest/gtest.h>

#include "serve/access.h"
#include "serve/anthropic_api.h"
#include "serve/messages.h"
#include "serve/model_text.h"
#include "serve/openai_requests.h"
#include "serve/response_store.h"
#include "serve/responses_api.h"
#include "serve/service_stats.h"

namespace foretoken::serve {
namespace {

OrderedJson parse(const char* text) { return OrderedJson::parse(text); }

ApiResult<GenerationSpec> chat(const char* text) { return read_chat_request(parse(text), {}); }

const Conversation& conversation(const ApiResult<GenerationSpec>& spec) { return std::get<Conversation>((*spec).prompts[0]); }

TEST(ChatRequest, ReadsWhatItKnows) {
  const auto spec = chat(R"({"model":"m","messages":[{"role":"system","content":"S"},{"role":"developer","content":"D"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
    "temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.1,"seed":-1,"stop":["x","y"],"n":2,"max_tokens":5,"max_completion_tokens":9,"logprobs":true,"top_logprobs":3,
    "logit_bias":{"5":-100,"6":1.5},"stream":true,"stream_options":{"include_usage":true},"chat_template_kwargs":{"enable_thinking":false,"x":1},"user":"u","some_unknown_field":{}})");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->model, "m");
  EXPECT_FLOAT_EQ(spec->sampling.temperature, 0.5f);
  EXPECT_EQ(spec->sampling.top_k, 7);
  EXPECT_EQ(*spec->seed, UINT64_MAX);
  EXPECT_EQ(spec->stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(spec->n, 2);
  EXPECT_EQ(*spec->max_tokens, 9);
  EXPECT_EQ(spec->logprobs.top, 3);
  EXPECT_EQ(spec->sampling.banned, std::vector<TokenId>{5});
  EXPECT_EQ(spec->sampling.logit_bias.size(), 1u);
  EXPECT_TRUE(spec->include_usage);
  const Conversation& c = conversation(spec);
  EXPECT_EQ(c.messages.dump(), R"([{"role":"system","content":"S\n\nD"},{"role":"user","content":"a\nb"}])");
  EXPECT_EQ(c.thinking, false);
  EXPECT_EQ(c.template_variables.dump(), R"({"x":1})");
}

TEST(ChatRequest, EachMistakeNamesItsField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":[{"content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"king","content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user","content":7}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]})", "messages[0].content[0].type"},
      {R"({"messages":[{"role":"user","content":"x"}],"temperature":3})", "temperature"},
      {R"({"messages":[{"role":"user","content":"x"}],"temperature":"hot"})", "temperature"},
      {R"({"messages":[{"role":"user","content":"x"}],"top_p":1.5})", "top_p"},
      {R"({"messages":[{"role":"user","content":"x"}],"n":0})", "n"},
      {R"({"messages":[{"role":"user","content":"x"}],"max_tokens":0})", "max_tokens"},
      {R"({"messages":[{"role":"user","content":"x"}],"stop":""})", "stop"},
      {R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":2})", "top_logprobs"},
      {R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":21,"logprobs":true})", "top_logprobs"},
      {R"({"messages":[{"role":"user","content":"x"}],"logit_bias":{"a":1}})", "logit_bias"},
      {R"({"messages":[{"role":"user","content":"x"}],"logit_bias":{"1":101}})", "logit_bias"},
      {R"({"messages":[{"role":"user","content":"x"}],"stream_options":{}})", "stream_options"},
      {R"({"messages":[{"role":"user","content":"x"}],"response_format":{"type":"xml"}})", "response_format.type"},
      {R"({"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{}}})", "response_format.json_schema.schema"},
      {R"({"messages":[{"role":"user","content":"x"}],"tool_choice":"required"})", "tool_choice"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"web_search"}]})", "tools[0].type"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{}}]})", "tools[0].function.name"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}}})", "tool_choice"},
      {R"({"messages":[{"role":"user","content":"x"}],"functions":[{"name":"f"}]})", "functions"},
      {R"({"messages":[{"role":"user","content":"x"}],"min_tokens":3})", "min_tokens"},
      {R"({"messages":[{"role":"user","content":"x"}],"reasoning_effort":"extreme"})", "reasoning_effort"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{}}]}]})", "messages[0].tool_calls[0].function.name"},
  };
  for (const auto& [text, param] : cases) {
    const auto spec = chat(text);
    ASSERT_FALSE(spec) << text;
    EXPECT_EQ(spec.error().status, 400) << text;
    EXPECT_EQ(spec.error().param, param) << text;
    EXPECT_NE(spec.error().message.find(std::string(param).substr(0, std::string(param).find('['))), std::string::npos) << spec.error().message;
  }
}

TEST(ChatRequest, NeutralValuesOfForeignFieldsAreHarmless) {
  EXPECT_TRUE(chat(R"({"messages":[{"role":"user","content":"x"}],"modalities":["text"],"min_tokens":0,"best_of":1,"functions":[],"mirostat":0,"typical_p":1.0,"store":true,"metadata":{"a":"b"}})"));
}

TEST(ChatRequest, ArgumentsOfCallsBecomeObjects) {
  const auto spec = chat(R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[
    {"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}},{"id":"2","type":"function","function":{"name":"g","arguments":"{\"cut"}},
    {"id":"3","type":"function","function":{"name":"h","arguments":""}}]},{"role":"tool","tool_call_id":"1","content":"ok"}]})");
  ASSERT_TRUE(spec) << spec.error().message;
  const OrderedJson& turn = conversation(spec).messages[1];
  EXPECT_EQ(turn["tool_calls"][0]["function"]["arguments"].dump(), R"({"b":1,"a":2})");
  EXPECT_EQ(turn["tool_calls"][1]["function"]["arguments"]["arguments"], "{\"cut");
  EXPECT_EQ(turn["tool_calls"][2]["function"]["arguments"].dump(), "{}");
  EXPECT_EQ(turn["reasoning_content"], "r");
}

TEST(CompletionRequest, TakesTextsAndIds) {
  const auto one = read_completion_request(parse(R"({"prompt":"a"})"), {});
  ASSERT_TRUE(one);
  EXPECT_EQ(*one->max_tokens, 16);
  const auto several = read_completion_request(parse(R"({"prompt":["a",[1,2]],"logprobs":0})"), {});
  ASSERT_TRUE(several);
  EXPECT_EQ(std::get<std::vector<TokenId>>(several->prompts[1]), (std::vector<TokenId>{1, 2}));
  EXPECT_TRUE(several->logprobs.chosen);
  EXPECT_EQ(read_completion_request(parse(R"({"prompt":[1,-2]})"), {}).error().param, "prompt");
  EXPECT_EQ(read_completion_request(parse(R"({"prompt":"a","suffix":"b"})"), {}).error().param, "suffix");
  EXPECT_EQ(read_completion_request(parse(R"({"prompt":"a","best_of":3})"), {}).error().param, "best_of");
}

TEST(MessagesRequest, BlocksBecomeTurns) {
  const auto spec = read_messages_request(parse(R"({"model":"m","max_tokens":100,"system":[{"type":"text","text":"S","cache_control":{"type":"ephemeral"}}],
    "messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"text","text":"a"},{"type":"tool_use","id":"u","name":"f","input":{"k":1}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"u","content":[{"type":"text","text":"r"}]},{"type":"text","text":"go on"}]}],
    "tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],"tool_choice":{"type":"any","disable_parallel_tool_use":true},"stop_sequences":["E"],
    "thinking":{"type":"enabled","budget_tokens":50}})"), {});
  ASSERT_TRUE(spec) << spec.error().message;
  const Conversation& c = std::get<Conversation>(spec->prompts[0]);
  EXPECT_EQ(c.messages.dump(), R"([{"role":"system","content":"S"},{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning_content":"t","tool_calls":[{"id":"u","type":"function","function":{"name":"f","arguments":{"k":1}}}]},{"role":"tool","tool_call_id":"u","content":"r"},{"role":"user","content":"go on"}])");
  EXPECT_EQ(spec->tool_use, ToolUse::kRequired);
  EXPECT_FALSE(spec->parallel_tools);
  EXPECT_EQ(c.thinking, true);
  EXPECT_EQ(*spec->thinking_budget, 50);
  EXPECT_TRUE(spec->clamp_max_tokens);
}

TEST(MessagesRequest, PrefillAndMistakes) {
  const auto spec = read_messages_request(parse(R"({"max_tokens":1,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"{"}]})"), {});
  ASSERT_TRUE(spec);
  EXPECT_EQ(std::get<Conversation>(spec->prompts[0]).prefill, "{");
  EXPECT_EQ(read_messages_request(parse(R"({"messages":[{"role":"user","content":"q"}]})"), {}).error().param, "max_tokens");
  EXPECT_EQ(read_messages_request(parse(R"({"max_tokens":1,"messages":[{"role":"user","content":[{"type":"image"}]}]})"), {}).error().param, "messages[0].content[0].type");
  EXPECT_EQ(read_messages_request(parse(R"({"max_tokens":1,"messages":[{"role":"user","content":"q"}],"tools":[{"type":"web_search_20250305","name":"w"}]})"), {}).error().param, "tools[0].type");
  EXPECT_EQ(read_messages_request(parse(R"({"max_tokens":1,"messages":[{"role":"user","content":"q"}],"thinking":{"type":"enabled"}})"), {}).error().param, "thinking.budget_tokens");
}

TEST(ResponsesRequest, ItemsBecomeTurnsAndGoOn) {
  ResponseStore store(1 << 20);
  StoredResponse before;
  before.messages = parse(R"([{"role":"user","content":"1"},{"role":"assistant","content":"2"}])");
  before.bytes = 10;
  store.put("resp_a", before);
  const auto request = read_responses_request(parse(R"({"instructions":"I","previous_response_id":"resp_a","input":[{"role":"user","content":[{"type":"input_text","text":"3"}]},
    {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"r"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"o"}],
    "tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],"text":{"format":{"type":"json_object"}},"max_output_tokens":5})"), {}, store);
  ASSERT_TRUE(request) << request.error().message;
  const Conversation& c = std::get<Conversation>(request->spec.prompts[0]);
  ASSERT_EQ(c.messages.size(), 6u);
  EXPECT_EQ(c.messages[0]["content"], "I");
  EXPECT_EQ(c.messages[4]["reasoning_content"], "r");
  EXPECT_EQ(c.messages[4]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(c.messages[5]["content"], "o");
  EXPECT_EQ(c.tools[0]["function"]["name"], "f");
  EXPECT_TRUE(request->spec.format.has_value());
  EXPECT_EQ(read_responses_request(parse(R"({"input":"x","previous_response_id":"resp_b"})"), {}, store).error().status, 404);
  EXPECT_EQ(read_responses_request(parse(R"({"input":"x","background":true})"), {}, store).error().param, "background");
}

// Tools of a namespace (how Codex sends those of MCP servers): the model sees joined names, in the list and in calls of earlier turns.
TEST(ResponsesRequest, ToolsOfANamespace) {
  ResponseStore store(1 << 20);
  const auto request = read_responses_request(parse(R"({"input":[{"role":"user","content":"x"},{"type":"function_call","call_id":"c","name":"js","namespace":"mcp__node","arguments":"{}"},
    {"type":"function_call_output","call_id":"c","output":"o"}],
    "tools":[{"type":"function","name":"f"},{"type":"namespace","name":"mcp__node","description":"d","tools":[{"type":"function","name":"js","parameters":{"type":"object"}},{"type":"function","name":"g"}]}]})"), {}, store);
  ASSERT_TRUE(request) << request.error().message;
  const Conversation& c = std::get<Conversation>(request->spec.prompts[0]);
  ASSERT_EQ(c.tools.size(), 3u);
  EXPECT_EQ(c.tools[0]["function"]["name"], "f");
  EXPECT_EQ(c.tools[1]["function"]["name"], "mcp__node__js");
  EXPECT_EQ(c.messages[1]["tool_calls"][0]["function"]["name"], "mcp__node__js");
  ASSERT_EQ(request->spec.namespaced_tools.size(), 2u);
  EXPECT_EQ(request->spec.namespaced_tools.at("mcp__node__g").space, "mcp__node");
  EXPECT_EQ(request->spec.namespaced_tools.at("mcp__node__g").name, "g");
  for (const auto& [bad, param] : {std::pair{R"({"type":"namespace","tools":[]})", "tools[0].name"}, {R"({"type":"namespace","name":"n"})", "tools[0].tools"},
                                   {R"({"type":"namespace","name":"n","tools":{}})", "tools[0].tools"}})
    EXPECT_EQ(read_responses_request(parse((R"({"input":"x","tools":[)" + std::string(bad) + "]}").c_str()), {}, store).error().param, param) << bad;
  EXPECT_EQ(read_responses_request(parse(R"({"input":"x","tools":[{"type":"namespace","name":"n","tools":[{"type":"web_search"}]}]})"), {}, store).error().param,
            "tools[0].tools[0].type");
  EXPECT_EQ(read_responses_request(parse(R"({"input":"x","tools":[{"type":"function","name":"n__f"},{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}]})"), {}, store).error().param,
            "tools[1].tools[0].name");
}

TEST(ResponseStore, IsBounded) {
  ResponseStore store(100);
  for (int i = 0; i < 10; ++i) {
    StoredResponse r;
    r.bytes = 30;
    store.put("r" + std::to_string(i), r);
    store.get("r0");  // stays recent
  }
  EXPECT_LE(store.bytes(), 100u);
  EXPECT_EQ(store.count(), 3u);
  EXPECT_TRUE(store.get("r0"));
  EXPECT_TRUE(store.get("r9"));
  EXPECT_FALSE(store.get("r5"));
  StoredResponse huge;
  huge.bytes = 101;
  store.put("huge", huge);
  EXPECT_FALSE(store.get("huge"));
  EXPECT_TRUE(store.remove("r0"));
  EXPECT_FALSE(store.remove("r0"));
}

HttpRequest head(std::string path, Headers headers) {
  HttpRequest request;
  request.method = "GET";
  request.path = std::move(path);
  request.headers = std::move(headers);
  return request;
}

TEST(Access, HostsOriginsAndKeys) {
  const Access access({.host = "127.0.0.1", .allowed_hosts = {"Box.Local"}, .allowed_origins = {"https://app.example"}, .api_key = "secret"});
  const auto code = [&](const HttpRequest& request) {
    const auto error = access.refuse(request);
    return error ? error->code : "";
  };
  const std::pair<std::string, std::string> key = {"authorization", "Bearer secret"};
  for (const char* host : {"localhost", "localhost:8000", "127.0.0.1:9", "[::1]:8000", "box.local", "LOCALHOST."}) EXPECT_EQ(code(head("/status", {{"host", host}, key})), "") << host;
  for (const char* host : {"evil.example", "", "localhost.evil.example", "10.0.0.1", "127.0.0.1.nip.io", "[::2]"}) EXPECT_EQ(code(head("/health", {{"host", host}, key})), "host_not_allowed") << host;
  EXPECT_NE(access.refuse(head("/", {{"host", "evil.example"}}))->message.find("--allowed-host"), std::string::npos);
  EXPECT_EQ(code(head("/status", {{"host", "localhost:8000"}, {"origin", "http://localhost:8000"}, key})), "");
  EXPECT_EQ(code(head("/status", {{"host", "localhost:8000"}, {"origin", "https://app.example"}, key})), "");
  for (const char* origin : {"null", "http://localhost:3000", "https://app.example.evil", ""}) EXPECT_EQ(code(head("/status", {{"host", "localhost:8000"}, {"origin", origin}, key})), "origin_not_allowed") << origin;
  EXPECT_NE(access.refuse(head("/", {{"host", "localhost"}, {"origin", "http://x"}}))->message.find("--allowed-origin"), std::string::npos);
  EXPECT_EQ(code(head("/status", {{"host", "localhost"}})), "invalid_api_key");
  EXPECT_EQ(code(head("/status", {{"host", "localhost"}, {"authorization", "Bearer secre"}})), "invalid_api_key");
  EXPECT_EQ(code(head("/status", {{"host", "localhost"}, {"x-api-key", "secret"}})), "");
  for (const char* open : {"/health", "/ready", "/"}) EXPECT_EQ(code(head(open, {{"host", "localhost"}})), "") << open;
  EXPECT_EQ(code(head("/status", {{"host", "localhost"}, {"host", "localhost"}, key})), "invalid_request");
}

TEST(Messages, SurviveTheSocket) {
  Submission s;
  s.prompt = {1, 2, 3};
  s.sampling.temperature = 0.7f;
  s.sampling.seed = UINT64_MAX;
  s.sampling.logit_bias = {{4, 1.5f}};
  s.stop = {"\xff stop"};
  s.boundaries = {2};
  s.thinking_budget = 9;
  s.grammar = GrammarSpec{.kind = GrammarSpec::Kind::kJsonSchema, .schema = parse(R"({"z":1,"a":2})")};
  std::string wire;
  append_frame(wire, submission_message(7, s));
  append_frame(wire, event_message(8, {.kind = EngineEvent::Kind::kTokens, .tokens = {5}, .drafted = {1}, .logprobs = {{-0.25f, {{5, -0.25f}}}}}));
  FrameReader reader;
  std::vector<Json> messages;
  for (const char c : wire) {  // one byte at a time
    reader.add({&c, 1});
    auto next = reader.next();
    ASSERT_TRUE(next);
    if (*next) messages.push_back(**next);
  }
  ASSERT_EQ(messages.size(), 2u);
  const auto back = read_submission(messages[0]);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->prompt, s.prompt);
  EXPECT_EQ(back->sampling.seed, UINT64_MAX);
  EXPECT_EQ(back->sampling.temperature, 0.7f);
  EXPECT_EQ(back->stop, s.stop);
  EXPECT_EQ(back->grammar->schema.dump(), R"({"z":1,"a":2})");
  const auto event = read_event(messages[1]);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->logprobs[0].chosen, -0.25f);
  EXPECT_FALSE(read_submission(Json::object()));
  FrameReader broken;
  broken.add({"\x04\x00\x00\x00\xff\xff\xff\xff", 8});
  EXPECT_FALSE(broken.next());
  FrameReader endless;  // an array of 2^63 elements
  endless.add({"\x09\x00\x00\x00\x9b\x7f\xff\xff\xff\xff\xff\xff\xff", 13});
  EXPECT_FALSE(endless.next());
}

TEST(Stats, PercentilesAndMetrics) {
  RecentValues values(100);
  for (int i = 1; i <= 1000; ++i) values.add(i / 1000.0);
  EXPECT_EQ(values.count(), 1000u);
  EXPECT_NEAR(values.percentile(0.5), 0.95, 0.002);  // of the last hundred
  ServiceStats stats;
  stats.record({.first_token_s = 0.5, .prompt_tokens = 3, .answer_tokens = 4, .outcome = "stop"}, 1);
  const std::string text = metrics_text(stats, {}, parse(R"({"speculation":{"by_drafter":{"mtp":{"drafted":5,"verified":4,"accepted":3}}}})"), parse(R"({"restarts":2})"),
                                        parse(R"({"model":{"name":"m\"x"}})"), true);
  EXPECT_NE(text.find("foretoken_engine_restarts_total 2\n"), std::string::npos);
  EXPECT_NE(text.find("foretoken_speculation_accepted_total{drafter=\"mtp\"} 3\n"), std::string::npos);
  EXPECT_NE(text.find("foretoken_requests_total{outcome=\"stop\"} 1\n"), std::string::npos);
  EXPECT_NE(text.find("model=\"m_x\""), std::string::npos);
}

TEST(Defaults, ComeFromTheBundle) {
  const auto s = sampling_of_config(Json::parse(R"({"temperature":0.6,"top_k":20,"top_p":0.95,"do_sample":true})"), {.temperature = 1});
  EXPECT_FLOAT_EQ(s.temperature, 0.6f);
  EXPECT_EQ(s.top_k, 20);
  EXPECT_EQ(sampling_of_config(Json::parse(R"({"do_sample":false,"temperature":0.6})"), {}).temperature, 0);
  EXPECT_EQ(sampling_of_config(Json::parse(R"({"top_p":7})"), {.temperature = 1}).top_p, 1);  // nonsense is left out
}

}  // namespace
}  // namespace foretoken::serve
