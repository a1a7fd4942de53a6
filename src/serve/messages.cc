// The fields of each message. Keys are short because token events are many.
#include "serve/messages.h"

#include <cstring>

namespace foretoken::serve {
namespace {

Json sampling_json(const SamplingParams& s) {
  return {{"temperature", s.temperature}, {"top_k", s.top_k}, {"top_p", s.top_p}, {"min_p", s.min_p},
          {"repetition", s.repetition_penalty}, {"presence", s.presence_penalty}, {"frequency", s.frequency_penalty},
          {"bias", s.logit_bias}, {"banned", s.banned}, {"seed", s.seed}, {"choice", s.choice}};
}

SamplingParams read_sampling(const Json& j) {
  SamplingParams s;
  s.temperature = j.at("temperature").get<float>();
  s.top_k = j.at("top_k").get<int>();
  s.top_p = j.at("top_p").get<float>();
  s.min_p = j.at("min_p").get<float>();
  s.repetition_penalty = j.at("repetition").get<float>();
  s.presence_penalty = j.at("presence").get<float>();
  s.frequency_penalty = j.at("frequency").get<float>();
  s.logit_bias = j.at("bias").get<decltype(s.logit_bias)>();
  s.banned = j.at("banned").get<std::vector<TokenId>>();
  s.seed = j.at("seed").get<uint64_t>();
  s.choice = j.at("choice").get<uint32_t>();
  return s;
}

Json logprobs_json(const std::vector<TokenLogprobs>& all) {
  Json out = Json::array();
  for (const TokenLogprobs& one : all) out.push_back({one.chosen, one.top});
  return out;
}

std::vector<TokenLogprobs> read_logprobs(const Json& j) {
  std::vector<TokenLogprobs> out;
  for (const Json& one : j) out.push_back({one.at(0).get<float>(), one.at(1).get<std::vector<std::pair<TokenId, float>>>()});
  return out;
}

// Reads with a function that may throw what the JSON library throws for a missing or mistyped field.
template <class Read>
auto read_fields(const char* what, Read read) -> Result<decltype(read())> {
  try {
    return read();
  } catch (const Json::exception& e) {
    return Error{ErrorCode::kInvalidFile, std::string("a damaged ") + what + " message: " + e.what()};
  }
}

// JSON whose order counts travels as text.
OrderedJson read_ordered(const Json& j, const char* key) { return OrderedJson::parse(j.at(key).get<std::string>()); }

}  // namespace

void append_frame(std::string& out, const Json& message) {
  const size_t begin = out.size();
  out.append(4, '\0');
  Json::to_cbor(message, nlohmann::detail::output_adapter<char>(out));
  const auto length = static_cast<uint32_t>(out.size() - begin - 4);
  CHECK(out.size() - begin - 4 <= kLargestFrame);
  for (int i = 0; i < 4; ++i) out[begin + static_cast<size_t>(i)] = static_cast<char>(length >> (8 * i));
}

Result<std::optional<Json>> FrameReader::next() {
  if (buffer_.size() - read_ < 4) return std::optional<Json>();
  uint32_t length = 0;
  for (int i = 0; i < 4; ++i) length |= uint32_t{static_cast<unsigned char>(buffer_[read_ + static_cast<size_t>(i)])} << (8 * i);
  if (length > kLargestFrame) return Error{ErrorCode::kInvalidFile, "a frame longer than any message"};
  if (buffer_.size() - read_ - 4 < length) return std::optional<Json>();
  const char* begin = buffer_.data() + read_ + 4;
  // Throwing is not switched off: an array announced longer than memory throws in either way.
  Json message;
  try {
    message = Json::from_cbor(begin, begin + length);
  } catch (const Json::exception&) {
    return Error{ErrorCode::kInvalidFile, "a frame that is no CBOR"};
  }
  read_ += 4 + length;
  if (read_ == buffer_.size() || read_ > (1u << 20)) {
    buffer_.erase(0, read_);
    read_ = 0;
  }
  return std::optional<Json>(std::move(message));
}

Json submission_message(EngineRequestId id, const Submission& s) {
  Json j = {{"type", "submit"}, {"id", id}, {"prompt", s.prompt}, {"sampling", sampling_json(s.sampling)}, {"max", s.max_tokens},
            {"ignore_eos", s.ignore_eos}, {"logprobs", s.logprobs.chosen}, {"top", s.logprobs.top}, {"boundaries", s.boundaries},
            {"speculate", s.speculate}, {"priority", s.priority}, {"timeout", s.timeout_s}, {"stop", s.stop}, {"reasoning", s.in_reasoning}, {"raw", s.raw}};
  if (s.thinking_budget) j["budget"] = *s.thinking_budget;
  if (s.grammar)
    j["grammar"] = {{"kind", static_cast<int>(s.grammar->kind)}, {"schema", s.grammar->schema.dump()}, {"regex", s.grammar->regex},
                    {"required", s.grammar->call_required}, {"parallel", s.grammar->parallel}};
  return j;
}

Result<Submission> read_submission(const Json& j) {
  return read_fields("submit", [&] {
    Submission s;
    s.prompt = j.at("prompt").get<std::vector<TokenId>>();
    s.sampling = read_sampling(j.at("sampling"));
    s.max_tokens = j.at("max").get<int64_t>();
    s.ignore_eos = j.at("ignore_eos").get<bool>();
    s.logprobs = {.chosen = j.at("logprobs").get<bool>(), .top = j.at("top").get<int>()};
    s.boundaries = j.at("boundaries").get<std::vector<int64_t>>();
    s.speculate = j.at("speculate").get<bool>();
    s.priority = j.at("priority").get<int>();
    s.timeout_s = j.at("timeout").get<double>();
    s.stop = j.at("stop").get<std::vector<std::string>>();
    s.in_reasoning = j.at("reasoning").get<bool>();
    s.raw = j.at("raw").get<bool>();
    if (j.contains("budget")) s.thinking_budget = j["budget"].get<int64_t>();
    if (j.contains("grammar")) {
      const Json& g = j["grammar"];
      s.grammar = GrammarSpec{.kind = static_cast<GrammarSpec::Kind>(g.at("kind").get<int>()), .schema = read_ordered(g, "schema"),
                              .regex = g.at("regex").get<std::string>(), .call_required = g.at("required").get<bool>(),
                              .parallel = g.at("parallel").get<bool>()};
    }
    return s;
  });
}

Json event_message(EngineRequestId id, const EngineEvent& e) {
  Json j = {{"type", "event"}, {"id", id}, {"k", static_cast<int>(e.kind)}};
  switch (e.kind) {
    case EngineEvent::Kind::kProgress:
      j["p"] = {e.prompt_done, e.prompt_total, e.cached_tokens};
      break;
    case EngineEvent::Kind::kTokens:
      j["t"] = e.tokens;
      j["d"] = e.drafted;
      if (!e.logprobs.empty()) j["l"] = logprobs_json(e.logprobs);
      break;
    case EngineEvent::Kind::kFinished:
      j["r"] = e.reason;
      j["n"] = {e.prompt_tokens, e.answer_tokens, e.cached_tokens};
      j["f"] = e.facts.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
      break;
    case EngineEvent::Kind::kFailed:
      j["c"] = static_cast<int>(e.error.code);
      j["m"] = e.error.message;
      j["g"] = e.of_grammar;
      break;
  }
  return j;
}

Result<EngineEvent> read_event(const Json& j) {
  return read_fields("event", [&] {
    EngineEvent e;
    e.kind = static_cast<EngineEvent::Kind>(j.at("k").get<int>());
    switch (e.kind) {
      case EngineEvent::Kind::kProgress:
        e.prompt_done = j.at("p").at(0).get<int64_t>();
        e.prompt_total = j.at("p").at(1).get<int64_t>();
        e.cached_tokens = j.at("p").at(2).get<int64_t>();
        break;
      case EngineEvent::Kind::kTokens:
        e.tokens = j.at("t").get<std::vector<TokenId>>();
        e.drafted = j.at("d").get<std::vector<int8_t>>();
        if (j.contains("l")) e.logprobs = read_logprobs(j["l"]);
        break;
      case EngineEvent::Kind::kFinished:
        e.reason = j.at("r").get<std::string>();
        e.prompt_tokens = j.at("n").at(0).get<int64_t>();
        e.answer_tokens = j.at("n").at(1).get<int64_t>();
        e.cached_tokens = j.at("n").at(2).get<int64_t>();
        e.facts = read_ordered(j, "f");
        break;
      case EngineEvent::Kind::kFailed:
        e.error = {static_cast<ErrorCode>(j.at("c").get<int>()), j.at("m").get<std::string>()};
        e.of_grammar = j.at("g").get<bool>();
        break;
    }
    return e;
  });
}

Json facts_message(const EngineFacts& f) {
  return {{"type", "ready"}, {"context", f.max_context}, {"vocab", f.vocab}, {"lanes", f.lanes}, {"speculation", f.speculation},
          {"identity", f.identity.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)}};
}

Result<EngineFacts> read_facts(const Json& j) {
  return read_fields("ready", [&] {
    return EngineFacts{.max_context = j.at("context").get<int64_t>(), .vocab = j.at("vocab").get<int>(), .lanes = j.at("lanes").get<int>(),
                       .speculation = j.at("speculation").get<std::string>(), .identity = read_ordered(j, "identity")};
  });
}

}  // namespace foretoken::serve
