// Bodies of every API, and frames between the server's processes: any bytes are read or refused with a status, a code and a sentence. The
// first byte chooses the reader.
#include <cstdint>
#include <cstdlib>

#include "serve/access.h"
#include "serve/anthropic_api.h"
#include "serve/messages.h"
#include "serve/openai_requests.h"
#include "serve/responses_api.h"

namespace {

using namespace foretoken;
using namespace foretoken::serve;

void check(bool condition) {
  if (!condition) std::abort();
}

template <class T>
void check_read(const ApiResult<T>& read) {
  if (read) return;
  check(read.error().status == 400 || read.error().status == 404);
  check(!read.error().code.empty());
  check(!read.error().message.empty());
  check(!dump_json(error_json(read.error(), Dialect::kAnthropic)).empty());
}

void check_frames(std::string_view text) {
  FrameReader whole, single;
  whole.add(text);
  size_t frames = 0;
  for (const char c : text) {
    single.add({&c, 1});
    for (auto next = single.next(); next && *next; next = single.next()) ++frames;
  }
  for (auto next = whole.next(); next && *next; next = whole.next()) {
    check(frames-- > 0);
    if (const auto submission = read_submission(**next)) check(read_submission(submission_message(1, *submission)).ok());
    if (const auto event = read_event(**next)) check(read_event(event_message(1, *event)).ok());
    (void)read_facts(**next).ok();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 6 == 4) {
    check_frames(text);
    return 0;
  }
  if (data[0] % 6 == 5) {
    static const Access access({.api_key = "k"});
    (void)access.refuse({.method = "GET", .path = "/status", .headers = {{"host", std::string(text)}, {"origin", "http://" + std::string(text)}}});
    return 0;
  }
  const auto body = parse_ordered_json(text, "body", {.bytes = 1u << 16, .depth = 64});
  if (!body || !body->is_object()) return 0;
  static ResponseStore store(1 << 20);
  switch (data[0] % 6) {
    case 0: check_read(read_chat_request(*body, {})); break;
    case 1: check_read(read_completion_request(*body, {})); break;
    case 2: check_read(read_messages_request(*body, {})); break;
    default: check_read(read_responses_request(*body, {}, store)); break;
  }
  return 0;
}
