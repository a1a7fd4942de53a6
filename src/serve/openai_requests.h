// Readers of OpenAI's requests: bodies of /v1/chat/completions and /v1/completions to specs.
#pragma once

#include "serve/common_fields.h"

namespace foretoken::serve {

ApiResult<GenerationSpec> read_chat_request(const OrderedJson& body, const GenerationDefaults& defaults);
ApiResult<GenerationSpec> read_completion_request(const OrderedJson& body, const GenerationDefaults& defaults);

// Messages of chat completions in the form that templates take. Names in errors begin with `name`.
ApiResult<OrderedJson> read_chat_messages(const OrderedJson& messages, const std::string& name);
ApiResult<OrderedJson> read_chat_message(const OrderedJson& message, const std::string& name);
// Text of a message's content: a string, nothing (null too), or parts of text.
ApiResult<std::string> read_content(const OrderedJson* content, const std::string& name);

// A JSON text of arguments as an object; what is none becomes {"arguments": text}, so that a conversation with a call that was cut off can go on.
OrderedJson arguments_object(const std::string& text);

}  // namespace foretoken::serve
