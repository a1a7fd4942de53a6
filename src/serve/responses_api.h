// OpenAI's Responses: bodies of /v1/responses to specs, going on from stored responses. Its writer is in writers.h.
#pragma once

#include "serve/common_fields.h"
#include "serve/response_store.h"

namespace foretoken::serve {

struct ResponsesRequest {
  GenerationSpec spec;
  OrderedJson echo;                                  // request fields that every response object repeats
  OrderedJson messages = OrderedJson::array();       // of the conversation, without instructions
  bool store = true;
};

ApiResult<ResponsesRequest> read_responses_request(const OrderedJson& body, const GenerationDefaults& defaults, ResponseStore& store);

}  // namespace foretoken::serve
