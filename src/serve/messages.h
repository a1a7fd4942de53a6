// Messages between the server's process and the engine's: frames of a length and CBOR. Both ends are the same program, so that a damaged
// frame is a bug or a dying process; it is refused with a sentence.
#pragma once

#include <span>
#include <string>

#include "serve/engine_link.h"

namespace foretoken::serve {

inline constexpr size_t kLargestFrame = 256u << 20;

// Appends one frame: 4 bytes of length, lowest first, then CBOR.
void append_frame(std::string& out, const Json& message);

// Frames out of a stream of bytes.
class FrameReader {
 public:
  void add(std::span<const char> bytes) { buffer_.append(bytes.data(), bytes.size()); }
  // The next whole frame; nothing when more bytes are needed.
  Result<std::optional<Json>> next();

 private:
  std::string buffer_;
  size_t read_ = 0;
};

Json submission_message(EngineRequestId id, const Submission& submission);
Result<Submission> read_submission(const Json& message);

Json event_message(EngineRequestId id, const EngineEvent& event);
Result<EngineEvent> read_event(const Json& message);

Json facts_message(const EngineFacts& facts);
Result<EngineFacts> read_facts(const Json& message);

}  // namespace foretoken::serve
