// Requests that ask for greedy answers of a given length.
#include "qualify/peer.h"

#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <thread>

namespace foretoken {
namespace {

using Time = std::chrono::steady_clock;

// The first line of a log that says what went wrong.
std::string complaint(const std::string& log_file) {
  std::ifstream log(log_file);
  for (std::string line; std::getline(log, line);)
    for (const char* word : {"error", "failed", "unknown", "unsupported", "invalid"})
      if (line.find(word) != std::string::npos) return line.substr(0, 160);
  return "it ended without a word";
}

double number_at(const Json& json, const char* pointer) {
  const Json::json_pointer p(pointer);
  return json.contains(p) && json[p].is_number() ? json[p].get<double>() : 0;
}

std::vector<TokenId> ids_at(const Json& json, const char* pointer) {
  std::vector<TokenId> ids;
  const Json::json_pointer p(pointer);
  if (json.contains(p) && json[p].is_array())
    for (const Json& id : json[p])
      if (id.is_number_integer()) ids.push_back(id.get<TokenId>());
  return ids;
}

}  // namespace

Result<std::unique_ptr<Peer>> Peer::start_llama(const LlamaOptions& o) {
  ASSIGN_OR_RETURN(const int port, free_port());
  std::vector<std::string> words = {o.program,
                                    "-m",
                                    o.model,
                                    "-t",
                                    std::to_string(o.threads),
                                    "-tb",
                                    std::to_string(o.threads),
                                    "-np",
                                    "1",
                                    "-c",
                                    std::to_string(o.context),
                                    "--port",
                                    std::to_string(port),
                                    "--no-webui",
                                    "--spec-type",
                                    o.mode};
  words.insert(words.end(), o.more.begin(), o.more.end());
  if (!o.drafter.empty()) words.insert(words.end(), {"--spec-draft-model", o.drafter});
  auto peer = std::make_unique<Peer>("llama.cpp " + o.mode,
                                     HttpUrl{.host = "127.0.0.1", .port = std::to_string(port), .path = ""}, "");
  peer->llama_ = true;
  ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::start(words, o.log_file));
  peer->process_.emplace(std::move(process));
  for (int i = 0; i < 1200; ++i) {
    if (!peer->process_->running()) return Error{ErrorCode::kIo, complaint(o.log_file)};
    if (const auto health = http(peer->url_, {.path = "/health", .body = "", .api_key = "", .timeout_s = 5});
        health && health->status == 200) {
      peer->process_->pause(true);
      return peer;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return Error{ErrorCode::kTimeout, "it was not ready after two minutes"};
}

Result<PeerAnswer> Peer::decode(std::span<const TokenId> prompt, int64_t tokens) {
  if (process_) process_->pause(false);
  auto answer = llama_ ? ask_llama(prompt, tokens) : ask_openai(prompt, tokens);
  if (process_) process_->pause(true);
  if (!answer) return Error{answer.error().code, fmt::format("{}: {}", name_, answer.error().message)};
  return answer;
}

Result<PeerAnswer> Peer::ask_llama(std::span<const TokenId> prompt, int64_t tokens) {
  Json body = Json::object();
  body["prompt"] = std::vector<TokenId>(prompt.begin(), prompt.end());
  body["n_predict"] = tokens;
  body["temperature"] = 0;
  body["top_k"] = 1;
  body["cache_prompt"] = false;
  body["return_tokens"] = true;
  body["ignore_eos"] = true;
  ASSIGN_OR_RETURN(const HttpAnswer got, http(url_, {.path = "/completion", .body = body.dump()}));
  if (got.status != 200) return Error{ErrorCode::kIo, fmt::format("status {}", got.status)};
  ASSIGN_OR_RETURN(const Json json, parse_json(got.body, "its answer"));
  // Its clock starts when the first token is there, which it counts all the same.
  PeerAnswer answer{.decode_us = 1000 * number_at(json, "/timings/predicted_ms"),
                    .timed_tokens = number_at(json, "/timings/predicted_n") - 1,
                    .tokens = ids_at(json, "/tokens"),
                    .drafted = number_at(json, "/timings/draft_n"),
                    .accepted = number_at(json, "/timings/draft_n_accepted")};
  if (answer.timed_tokens <= 0 || answer.decode_us <= 0) return Error{ErrorCode::kIo, "its answer holds no timings"};
  return answer;
}

// From the first piece on: the tokens of that piece are not known, so a token of it at least is counted that was not
// timed.
Result<PeerAnswer> Peer::ask_openai(std::span<const TokenId> prompt, int64_t tokens) {
  Json body = Json::object();
  body["model"] = model_;
  body["prompt"] = std::vector<TokenId>(prompt.begin(), prompt.end());
  body["max_tokens"] = tokens;
  body["temperature"] = 0;
  body["ignore_eos"] = true;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  EventReader reader;
  Time::time_point first{}, last{};
  PeerAnswer answer{.timed_outside = true};
  double completion = 0;
  ASSIGN_OR_RETURN(const HttpAnswer got,
                   http(url_, {.path = "/v1/completions", .body = body.dump()}, [&](std::string_view piece) {
                     reader.feed(piece, [&](std::string_view data) {
                       const auto event = parse_json(data, "an event");
                       if (!event || !event->is_object()) return;
                       if (const double n = number_at(*event, "/usage/completion_tokens"); n > 0) completion = n;
                       const Json::json_pointer text("/choices/0/text");
                       if (!event->contains(text)) return;
                       last = Time::now();
                       if (first == Time::time_point{}) first = last;
                       const std::vector<TokenId> ids = ids_at(*event, "/choices/0/tokens");
                       answer.tokens.insert(answer.tokens.end(), ids.begin(), ids.end());
                     });
                   }));
  if (got.status != 200)
    return Error{ErrorCode::kIo, fmt::format("status {}: {}", got.status, got.body.substr(0, 160))};
  answer.decode_us = std::chrono::duration<double, std::micro>(last - first).count();
  answer.timed_tokens = completion - 1;
  if (answer.timed_tokens <= 0 || answer.decode_us <= 0)
    return Error{ErrorCode::kIo, "it wrote too little, or does not say how much"};
  return answer;
}

}  // namespace foretoken
