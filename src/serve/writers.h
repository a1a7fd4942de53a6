// The writers of each API. `call` and its exchange outlive them.
#pragma once

#include <memory>

#include "serve/call.h"
#include "serve/responses_api.h"

namespace foretoken::serve {

std::unique_ptr<AnswerWriter> make_chat_writer(Call& call);
std::unique_ptr<AnswerWriter> make_completion_writer(Call& call);
std::unique_ptr<AnswerWriter> make_messages_writer(Call& call);
// Stores what it answered in `store`, which must outlive it.
std::unique_ptr<AnswerWriter> make_responses_writer(Call& call, ResponsesRequest request, ResponseStore& store);

// choices[].logprobs.content of chat completions.
OrderedJson logprobs_content(const ModelText& model, const std::vector<ListedToken>& tokens);

// One server-sent event. Without a name: data alone.
std::string sse_event(std::string_view name, const OrderedJson& data);

// usage of chat completions and completions.
OrderedJson openai_usage(const CallFacts& facts);
// The last events of a stream of either: usage when it was asked for, in a chunk that begins as `head`, and the mark of the end.
void end_openai_stream(Exchange& exchange, const CallFacts& facts, OrderedJson head);
// A stream that had begun ends with the error.
void fail_openai_stream(Exchange& exchange, const ApiError& error);
// Of a prompt under way (return_progress), in a chunk that begins as `head`.
void write_openai_progress(Exchange& exchange, const EngineEvent& event, OrderedJson head);
// "stop", "length" or "tool_calls".
std::string openai_finish_reason(const Choice& choice);
// What the request asked to see of a batch's tokens (return_tokens): [{"id", "text", "drafted"}].
OrderedJson shown_tokens(const ModelText& model, const std::vector<ListedToken>& tokens);

}  // namespace foretoken::serve
