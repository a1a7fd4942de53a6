// The server over real sockets with a scripted engine: what clients get, and what they cannot do to it, whatever they send.
#include "serve/fake_server.h"

#include <random>

#include "serve/page.h"

namespace foretoken::serve {
namespace {

constexpr const char* kChat = R"({"messages":[{"role":"user","content":"abc"}],"max_tokens":5})";
constexpr const char* kChatStream = R"({"messages":[{"role":"user","content":"abc"}],"max_tokens":5,"stream":true,"stream_options":{"include_usage":true}})";

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST(Http, RoutesAndErrors) {
  FakeServer server;
  Client client(server.port);
  const auto ask = [&](const std::string& text) {
    client.send(text);
    return client.response();
  };
  EXPECT_TRUE(contains(ask(request("GET", "/health")), "200 OK"));
  EXPECT_TRUE(contains(ask(request("GET", "/v1/models")), "\"max_model_len\":1000"));
  EXPECT_TRUE(contains(ask(request("GET", "/v1/models/toy")), "\"id\":\"toy\""));
  EXPECT_TRUE(contains(ask(request("GET", "/v1/models/other")), "model_not_found"));
  EXPECT_TRUE(contains(ask(request("GET", "/nothing")), "404 Not Found"));
  EXPECT_TRUE(contains(ask(request("GET", "/v1/chat/completions")), "405"));
  EXPECT_TRUE(contains(ask(request("GET", "/")), "<p>page</p>"));
  EXPECT_TRUE(contains(ask(request("POST", "/tokenize", R"({"content":"ab"})")), "\"tokens\":["));
  EXPECT_TRUE(contains(ask(request("POST", "/detokenize", R"({"tokens":[99999999]})")), "no token id"));
  EXPECT_TRUE(contains(ask(request("POST", "/apply-template", kChat)), "user: abc\\nassistant: "));
  EXPECT_TRUE(contains(ask(request("POST", "/v1/chat/completions", "{nonsense")), "invalid_json"));
  EXPECT_TRUE(contains(ask(request("POST", "/v1/messages", "{}")), "\"type\":\"error\""));
  EXPECT_TRUE(contains(ask(request("GET", "/metrics")), "foretoken_ready 1"));
  EXPECT_TRUE(contains(ask(request("GET", "/status")), "\"ready\":true"));
  EXPECT_TRUE(contains(ask("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n"), "host_not_allowed"));
}

// What only the engine finds out about a request, and what needs the prompt's length, names the field as the request's API spells it.
TEST(Http, LateErrorsNameTheirField) {
  FakeServer server;
  server.on_loop([&] { server.engine.mode = FakeEngine::Mode::kBadGrammar; });
  Client client(server.port);
  const auto error_of = [&](std::string_view route, std::string_view body) {
    client.send(request("POST", route, body));
    const std::string response = client.response();
    return OrderedJson::parse(response.substr(response.find("\r\n\r\n") + 4))["error"];
  };
  const std::string schema = R"({"type":"json_schema","schema":{"type":5}})", strict = R"("name":"f","strict":true,"parameters":{"type":5})";
  const std::string chat = R"({"messages":[{"role":"user","content":"abc"}],)", long_text(40000, 'x');
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {"/v1/chat/completions", chat + R"("response_format":{"type":"json_schema","json_schema":)" + schema + "}}", "response_format.json_schema.schema"},
      {"/v1/chat/completions", chat + R"("tools":[{"type":"function","function":{)" + strict + "}}]}", "tools"},
      {"/v1/completions", R"({"prompt":"abc","response_format":{"type":"regex","pattern":"("}})", "response_format.pattern"},
      {"/v1/responses", R"({"input":"abc","text":{"format":)" + schema + "}}", "text.format.schema"},
      {"/v1/responses", R"({"input":"abc","tools":[{"type":"function",)" + strict + "}]}", "tools"},
      {"/v1/messages", R"({"max_tokens":5,"messages":[{"role":"user","content":"abc"}],"output_config":{"format":)" + schema + "}}", "output_config.format.schema"}};
  for (const auto& [route, body, param] : cases) {
    const OrderedJson error = error_of(route, body);
    EXPECT_EQ(error["param"], param) << error;
    EXPECT_EQ(error["message"], param + ": #/type: scripted") << error;
  }
  const std::tuple<std::string, std::string, std::string> lengths[] = {
      {"/v1/chat/completions", chat + R"("max_tokens":2000})", "max_tokens"},
      {"/v1/chat/completions", chat + R"("max_completion_tokens":2000})", "max_completion_tokens"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + long_text + "\"}]}", "messages"},
      {"/v1/completions", R"({"prompt":")" + long_text + "\"}", "prompt"},
      {"/v1/completions", R"({"prompt":[]})", "prompt"},
      {"/v1/completions", R"({"prompt":[1,99999999]})", "prompt"},
      {"/v1/responses", R"({"input":"abc","max_output_tokens":2000})", "max_output_tokens"},
      {"/v1/responses", R"({"input":")" + long_text + "\"}", "input"},
      {"/v1/messages", R"({"max_tokens":5,"messages":[{"role":"user","content":")" + long_text + "\"}]}", "messages"}};
  for (const auto& [route, body, param] : lengths) {
    const OrderedJson error = error_of(route, body);
    EXPECT_EQ(error["param"], param) << error;
  }
}

// The hashes are those of another program (Python's hashlib); the page that is built in has one script and one style
// sheet.
TEST(Page, RunsWhatItsPolicyNames) {
  const std::string policy =
      page_policy("<p><style>\nb { margin: 0; }</style><script type=\"module\">let a = 1;\n</script>");
  EXPECT_TRUE(contains(policy,
                       "script-src 'sha256-3smTKsMnFX9i0OGCm4n/7GAEzudwCR3kiBveN8jVUAk='; style-src "
                       "'sha256-Ci+8+JbLnr+l77x7dnqROobcU9oTLn9cAzFiMFkAbGw=';"))
      << policy;
  EXPECT_TRUE(contains(page_policy("<p>page</p>"), "script-src 'none'; style-src 'none';"));
  const std::string built_in = page_policy(kPage);
  EXPECT_EQ(built_in.find("'sha256-", built_in.find("'sha256-", built_in.find("'sha256-") + 1) + 1), std::string::npos)
      << built_in;
  EXPECT_FALSE(contains(built_in, "unsafe"));
  FakeServer server;
  Client client(server.port);
  client.send(request("GET", "/"));
  EXPECT_TRUE(
      contains(client.response(), "Content-Security-Policy: default-src 'none'; script-src 'none'; style-src 'none';"));
}

// return_tokens: the texts together are the answer, and a token that is part of a character says which bytes it has.
TEST(Http, TokensOfOneCharacterHaveBytes) {
  FakeServer server;
  server.engine.answer = 100;
  Client client(server.port);
  client.send(
      request("POST", "/v1/completions", R"({"prompt":"a\u4e00\u4e8cb","max_tokens":100,"return_tokens":true})"));
  const std::string answer = client.response();
  const Json body = Json::parse(answer.substr(answer.find("\r\n\r\n")));
  std::string text;
  int partial = 0;
  for (const Json& token : body["choices"][0]["tokens"]) {
    if (!token.contains("bytes")) {
      text += token["text"].get<std::string>();
      continue;
    }
    ++partial;
    for (const Json& byte : token["bytes"]) text += static_cast<char>(byte.get<int>());
  }
  EXPECT_GT(partial, 0) << answer;
  EXPECT_EQ(text, body["choices"][0]["text"].get<std::string>());
  EXPECT_TRUE(text.starts_with("a\u4e00\u4e8cb")) << text;
}

TEST(Http, AnswersWholeAndStreamed) {
  FakeServer server;
  Client client(server.port);
  client.send(request("POST", "/v1/chat/completions", kChat));
  const std::string whole = client.response();
  EXPECT_TRUE(contains(whole, "\"finish_reason\":\"stop\"")) << whole;
  EXPECT_TRUE(contains(whole, "\"completion_tokens\":3"));
  client.send(request("POST", "/v1/chat/completions", kChatStream));
  const std::string stream = client.read_until("0\r\n\r\n");
  EXPECT_TRUE(contains(stream, "Transfer-Encoding: chunked"));
  EXPECT_TRUE(contains(stream, "data: {\"id\":\"chatcmpl-")) << stream;
  EXPECT_TRUE(contains(stream, "\"usage\":{\"prompt_tokens\""));
  EXPECT_TRUE(contains(stream, "data: [DONE]\n\n"));
  client.send(request("GET", "/health"));  // the connection lives on
  EXPECT_TRUE(contains(client.response(), "200 OK"));
  for (const char* path : {"/v1/responses", "/v1/messages"}) {
    client.send(request("POST", path, R"({"input":"abc","messages":[{"role":"user","content":"abc"}],"max_tokens":5,"stream":true})"));
    const std::string events = client.read_until("0\r\n\r\n");
    EXPECT_TRUE(contains(events, path == std::string("/v1/messages") ? "event: message_stop" : "event: response.completed")) << events;
  }
}

TEST(Http, PipelinedChunkedAndExpectedBodies) {
  FakeServer server;
  Client client(server.port);
  client.send(request("GET", "/health") + request("GET", "/nothing") + request("GET", "/health"));
  EXPECT_TRUE(contains(client.response(), "200 OK"));
  EXPECT_TRUE(contains(client.response(), "404"));
  EXPECT_TRUE(contains(client.response(), "200 OK"));
  client.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"con\r\nc\r\ntent\":\"ab\"}\n\r\n0\r\n\r\n");
  EXPECT_TRUE(contains(client.response(), "\"tokens\""));
  client.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 16\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("{\"content\":\"ab\"}");
  EXPECT_TRUE(contains(client.response(), "200 OK"));
}

TEST(Http, HoldsItsLimits) {
  HttpLimits limits;
  limits.header_bytes = 2000;
  limits.body_bytes = 5000;
  limits.header_s = 0.4;
  limits.body_idle_s = 0.4;
  limits.idle_s = 30;
  FakeServer server(limits);
  const auto first_answer = [&](const std::string& text) {
    Client client(server.port);
    client.send(text);
    return client.read_until("\r\n\r\n", 3000);
  };
  EXPECT_TRUE(contains(first_answer("GET /health HTTP/1.1\r\nHost: local"), "408"));
  EXPECT_TRUE(contains(first_answer("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"), "408"));
  EXPECT_TRUE(contains(first_answer("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6000\r\n\r\n"), "413"));
  EXPECT_TRUE(contains(first_answer("GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(4000, 'x') + "\r\n\r\n"), "431"));
  EXPECT_TRUE(contains(first_answer("\x16\x03\x01 nonsense\r\n\r\n"), "400"));
  EXPECT_TRUE(contains(first_answer("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2000\r\n" + std::string(0x2000, 'x')), "413"));
  EXPECT_TRUE(server.becomes([&] { return true; }));
  EXPECT_EQ(server.counters().ingress_bytes, 0u);
}

// Sound requests with bytes changed, cut and repeated: whatever comes back, the server lives and holds nothing.
TEST(Http, DamagedRequestsLeaveNothing) {
  HttpLimits limits;
  limits.header_s = limits.body_idle_s = 1;
  FakeServer server(limits);
  std::mt19937 random(7);
  const std::string seeds[] = {request("POST", "/v1/chat/completions", kChat), request("GET", "/v1/models/toy"),
                               "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"con\r\nc\r\ntent\":\"ab\"}\n\r\n0\r\n\r\n"};
  size_t answered = 0;
  for (int i = 0; i < 300; ++i) {
    std::string bytes = seeds[random() % 3];
    for (int changes = static_cast<int>(random() % 4); changes > 0; --changes) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    if (random() % 4 == 0) bytes += bytes;
    Client client(server.port);
    client.send(bytes);
    if (random() % 2) answered += client.read_until("\r\n", 20).starts_with("HTTP/1.1 ");
  }
  EXPECT_GT(answered, 20u);
  for (int i = 0; i < 500 && server.counters().connections > 0; ++i) ::usleep(10'000);
  EXPECT_EQ(server.counters().connections, 0u);
  EXPECT_EQ(server.counters().ingress_bytes, 0u);
  EXPECT_GT(server.counters().malformed, 20u);
}

TEST(Http, BodiesShareTheirMemory) {
  HttpLimits limits;
  limits.ingress_bytes = 3000;
  FakeServer server(limits);
  Client first(server.port), second(server.port);
  first.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2500\r\n\r\n" + std::string(2000, 'x'));
  ASSERT_TRUE(server.becomes([&] { return true; }));
  for (int i = 0; i < 100 && server.counters().ingress_bytes < 2000; ++i) ::usleep(10'000);
  second.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1500\r\n\r\n");
  EXPECT_TRUE(contains(second.read_until("}}"), "frontend_overloaded"));
}

TEST(Http, RefusesWhatIsTooMuch) {
  HttpLimits limits;
  limits.connections = 2;
  FakeServer server(limits, {}, 1);
  server.on_loop([&] { server.engine.mode = FakeEngine::Mode::kStall; });
  Client one(server.port), two(server.port);
  one.send(request("POST", "/v1/chat/completions", kChat));
  two.send(request("POST", "/v1/chat/completions", kChat));
  ASSERT_TRUE(server.becomes([&] { return server.engine.submissions.size() == 2; }));
  Client three(server.port);
  EXPECT_TRUE(contains(three.read_until("}}"), "too many connections"));
  one.close();  // cancelled, and so there is room
  ASSERT_TRUE(server.becomes([&] { return server.engine.cancelled.size() == 1; }));
  for (int i = 0; i < 500 && server.counters().connections > 1; ++i) ::usleep(10'000);
  Client four(server.port);
  four.send(request("GET", "/health"));
  EXPECT_TRUE(contains(four.response(), "200 OK"));
}

TEST(Http, FullQueueIsSaidAtOnce) {
  FakeServer server({}, {}, 1);
  server.on_loop([&] { server.engine.mode = FakeEngine::Mode::kStall; });
  Client one(server.port), two(server.port), three(server.port);
  one.send(request("POST", "/v1/chat/completions", kChat));
  two.send(request("POST", "/v1/chat/completions", kChatStream));
  ASSERT_TRUE(server.becomes([&] { return server.engine.submissions.size() == 2; }));
  three.send(request("POST", "/v1/chat/completions", kChatStream));
  const std::string refusal = three.response();
  EXPECT_TRUE(contains(refusal, "429")) << refusal;
  EXPECT_TRUE(contains(refusal, "Retry-After: 1"));
  EXPECT_TRUE(contains(refusal, "queue_full"));
  server.on_loop([&] { server.engine.mode = FakeEngine::Mode::kBusy; });
  two.close();
  ASSERT_TRUE(server.becomes([&] { return server.engine.cancelled.size() == 1; }));
  three.send(request("POST", "/v1/chat/completions", kChatStream));
  EXPECT_TRUE(contains(three.response(), "429"));  // the engine's own queue
}

TEST(Http, ASlowReaderIsDropped) {
  HttpLimits limits;
  limits.unsent_bytes = 1 << 20;
  FakeServer server(limits);
  server.on_loop([&] { server.engine.mode = FakeEngine::Mode::kFlood; });
  Client client(server.port, 4096);
  client.send(request("POST", "/v1/chat/completions", R"({"messages":[{"role":"user","content":"abc"}],"stream":true,"logprobs":true})"));  // many bytes a token
  EXPECT_TRUE(server.becomes([&] { return server.engine.cancelled.size() == 1; }, 20'000));
  EXPECT_EQ(server.counters().dropped_slow, 1u);
}

TEST(Http, ALostEngineIsSaid) {
  FakeServer server;
  server.on_loop([&] { server.engine.mode = FakeEngine::Mode::kStall; });
  Client whole(server.port), stream(server.port), late(server.port);
  whole.send(request("POST", "/v1/chat/completions", kChat));
  stream.send(request("POST", "/v1/messages", R"({"messages":[{"role":"user","content":"abc"}],"max_tokens":5,"stream":true})"));
  ASSERT_TRUE(server.becomes([&] { return server.engine.submissions.size() == 2; }));
  ASSERT_TRUE(contains(stream.read_until("\r\n\r\n"), "text/event-stream"));
  server.on_loop([&] { server.engine.lose_all(); });
  const std::string answer = whole.response();
  EXPECT_TRUE(contains(answer, "503")) << answer;
  EXPECT_TRUE(contains(answer, "engine_recovering"));
  EXPECT_TRUE(contains(stream.read_until("0\r\n\r\n"), "event: error"));
  late.send(request("GET", "/ready"));
  EXPECT_TRUE(contains(late.response(), "503"));
  late.send(request("GET", "/health"));
  EXPECT_TRUE(contains(late.response(), "200 OK"));
  late.send(request("POST", "/v1/chat/completions", kChat));
  EXPECT_TRUE(contains(late.response(), "engine_recovering"));
}

TEST(Http, KeysAndOrigins) {
  FakeServer server({}, "k1");
  Client client(server.port);
  const auto ask = [&](const std::string& text) {
    client.send(text);
    return client.response();
  };
  EXPECT_TRUE(contains(ask(request("GET", "/v1/models")), "401"));
  EXPECT_TRUE(contains(ask(request("GET", "/v1/models", "", "Authorization: Bearer k1\r\n")), "200 OK"));
  EXPECT_TRUE(contains(ask(request("GET", "/v1/models", "", "x-api-key: k1\r\nOrigin: http://localhost\r\n")), "Access-Control-Allow-Origin: http://localhost"));
  EXPECT_TRUE(contains(ask(request("GET", "/health", "", "Origin: http://elsewhere\r\n")), "403"));
  EXPECT_TRUE(contains(ask(request("OPTIONS", "/v1/chat/completions", "", "Origin: http://localhost\r\nAccess-Control-Request-Headers: x-stainless-os, authorization\r\n")), "Access-Control-Allow-Headers: x-stainless-os, authorization"));
}

TEST(Http, LimitsOfTheModel) {
  FakeServer server;
  Client client(server.port);
  const auto ask = [&](const std::string& body) {
    client.send(request("POST", "/v1/chat/completions", body));
    return client.response();
  };
  EXPECT_TRUE(contains(ask(R"({"messages":[{"role":"user","content":"abc"}],"max_tokens":100000})"), "context_length_exceeded"));
  EXPECT_TRUE(contains(ask(R"({"messages":[{"role":"user","content":")" + std::string(4000, '9') + R"("}]})"), "context_length_exceeded"));
  EXPECT_TRUE(contains(ask(R"({"messages":[{"role":"user","content":"abc"}],"model":"gpt-9"})"), "model_not_found"));
  EXPECT_TRUE(contains(ask(R"({"messages":[{"role":"user","content":"abc"}],"logit_bias":{"100000":1}})"), "logit_bias"));
  EXPECT_EQ(server.on_loop([&] { return server.engine.submissions.size(); }), 0u);
  EXPECT_TRUE(contains(ask(R"({"messages":[{"role":"user","content":"abc"}],"n":3})"), "\"index\":2"));
  const auto choices = server.on_loop([&] {
    std::vector<uint32_t> out;
    for (const Submission& s : server.engine.submissions) out.push_back(s.sampling.choice);
    return out;
  });
  EXPECT_EQ(choices, (std::vector<uint32_t>{0, 1, 2}));
}

}  // namespace
}  // namespace foretoken::serve
