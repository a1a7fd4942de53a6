// Anthropic's Messages: bodies of /v1/messages to specs. Its writer is in writers.h.
#pragma once

#include "serve/common_fields.h"

namespace foretoken::serve {

ApiResult<GenerationSpec> read_messages_request(const OrderedJson& body, const GenerationDefaults& defaults);

}  // namespace foretoken::serve
