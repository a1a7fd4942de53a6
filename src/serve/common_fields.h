// What the requests of several APIs have in common: sampling, limits, formats, tools, and the fields of other servers that would change an
// answer and are refused.
#pragma once

#include "serve/fields.h"
#include "serve/generation_spec.h"

namespace foretoken::serve {

// temperature, top_p, top_k, min_p, penalties, seed, logit_bias, n, ignore_eos, priority, timeout, stream, speculation and the extensions.
void read_sampling_fields(Fields& f, GenerationSpec& spec);
void read_stop(Fields& f, std::string_view name, GenerationSpec& spec);
// {"type": "text" | "json_object" | "json_schema", ...}; `schema_inside`: the schema lies in "json_schema" (chat) or beside the type.
void read_format(Fields& f, const OrderedJson* format, const std::string& name, bool schema_inside, GenerationSpec& spec);
// Effort and the switches of thinking.
void read_thinking(Fields& f, GenerationSpec& spec, Conversation& conversation);
void read_effort(const std::string& effort, GenerationSpec& spec, Conversation& conversation);
// OpenAI's tools and tool_choice; `flat`: Responses' form, made into the other.
// What the model sees of a tool `name` in the namespace `space` (Responses API).
std::string joined_tool_name(const std::string& space, const std::string& name);
void read_tools(Fields& f, bool flat, GenerationSpec& spec, Conversation& conversation);
void refuse_foreign_fields(Fields& f);

}  // namespace foretoken::serve
