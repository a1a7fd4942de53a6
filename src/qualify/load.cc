// A thread a request: arrivals must not wait for answers.
#include "qualify/load.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/rng.h"

namespace foretoken {
namespace {

using Time = std::chrono::steady_clock;

double us_since(Time::time_point begin) {
  return std::round(std::chrono::duration<double, std::micro>(Time::now() - begin).count());
}

// Whether an event carries something that the user sees.
bool has_text(const Json& event) {
  if (!event.contains("choices") || !event["choices"].is_array() || event["choices"].empty()) return false;
  const Json& choice = event["choices"][0];
  if (choice.contains("text"))
    return choice["text"].is_string() && !choice["text"].get_ref<const std::string&>().empty();
  if (!choice.contains("delta") || !choice["delta"].is_object()) return false;
  for (const char* key : {"content", "reasoning_content"})
    if (choice["delta"].contains(key) && choice["delta"][key].is_string() &&
        !choice["delta"][key].get_ref<const std::string&>().empty())
      return true;
  return choice["delta"].contains("tool_calls");
}

Json ask(const LoadOptions& o, const LoadPrompt& prompt) {
  Json row = Json::object();
  row["gaps_us"] = Json::array();
  Json body = prompt.body;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  EventReader reader;
  const Time::time_point begin = Time::now();
  double first_us = -1, last_us = 0;
  int64_t tokens = -1;
  const auto answer =
      http(o.url, {.path = prompt.path, .body = body.dump(), .api_key = o.api_key}, [&](std::string_view piece) {
        reader.feed(piece, [&](std::string_view data) {
          if (data == "[DONE]") return;
          const auto event = parse_json(data, "an event");
          if (!event || !event->is_object()) return;
          if (event->contains("usage") && (*event)["usage"].is_object() &&
              (*event)["usage"].contains("completion_tokens"))
            tokens = (*event)["usage"]["completion_tokens"].get<int64_t>();
          if (!has_text(*event)) return;
          const double now = us_since(begin);
          if (first_us < 0) first_us = now;
          else row["gaps_us"].push_back(now - last_us);
          last_us = now;
        });
      });
  row["total_us"] = us_since(begin);
  row["status"] = answer ? answer->status : 0;
  if (first_us >= 0) row["first_us"] = first_us;
  if (tokens >= 0) row["tokens"] = tokens;
  if (!answer) row["failed"] = "the connection failed";
  else if (answer->status != 200) row["failed"] = fmt::format("status {}", answer->status);
  else if (first_us < 0) row["failed"] = "no text came";
  return row;
}

}  // namespace

Status measure_load(const LoadOptions& o, const RowSink& rows, const std::function<bool(int, int)>& progress) {
  std::vector<Json> results(static_cast<size_t>(o.requests));
  std::vector<std::thread> threads;
  std::atomic<int> running{0};
  const Time::time_point begin = Time::now();
  double at_s = 0;
  bool stopped = false;
  for (int i = 0; i < o.requests && !stopped; ++i) {
    const auto random = philox4x32({static_cast<uint32_t>(i), 7, 0, 0},
                                   {static_cast<uint32_t>(o.seed), static_cast<uint32_t>(o.seed >> 32)});
    at_s += -std::log((static_cast<double>(random[0]) + 0.5) * 0x1p-32) / o.requests_per_second;
    std::this_thread::sleep_until(begin +
                                  std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(at_s)));
    const size_t which = random[1] % o.prompts.size();
    Json& result = results[static_cast<size_t>(i)];
    const auto describe = [&result, which, i, at_s, &o](Json row) {
      row["row"] = "request";
      row["rate"] = o.requests_per_second;
      row["index"] = i;
      row["at_us"] = std::round(1e6 * at_s);
      row["prompt"] = which;
      row["class"] = o.prompts[which].kind;
      result = std::move(row);
    };
    const double late_us = us_since(begin) - 1e6 * at_s;
    if (running >= o.most_at_once) {
      Json row = Json::object();
      row["failed"] = "too many requests under way in the client";
      describe(std::move(row));
      continue;
    }
    ++running;
    threads.emplace_back([&o, &running, which, describe, late_us] {
      Json row = ask(o, o.prompts[which]);
      row["late_us"] = std::round(late_us);
      describe(std::move(row));
      --running;
    });
    stopped = progress && !progress(std::min(i, o.requests - 1), o.requests);
  }
  for (std::thread& t : threads) t.join();
  if (stopped) return Error{ErrorCode::kCheckFailed, "the measurement was interrupted, and nothing was published"};
  if (progress) progress(o.requests, o.requests);
  for (Json& row : results) rows(std::move(row));
  return {};
}

}  // namespace foretoken
