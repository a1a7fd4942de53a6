// Tool calls as grammars: which tools may be called, with arguments that satisfy their schemas, in the two spellings of
// the Qwen family. The tags are added tokens where the vocabulary has them, their text elsewhere.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/grammar.h"
#include "text/schema_shape.h"
#include "text/tokenizer.h"

namespace foretoken {

struct ToolSchema {
  std::string name;
  OrderedJson parameters;  // a schema of an object; null: any object
};

enum class ToolCallForm : uint8_t {
  kXml,  // <function=NAME>\n<parameter=P>\nVALUE\n</parameter>\n</function>; text where the schema wants a string, JSON
         // elsewhere
  kJson,  // {"name": NAME, "arguments": {...}}
};

struct ToolGrammarOptions {
  ToolCallForm form = ToolCallForm::kXml;
  std::optional<TokenId> open_tag, close_tag;  // ids of <tool_call> and </tool_call>; without them their text
  uint32_t least_calls = 1, most_calls = 1;    // Expression::kUnbounded for no limit
  bool text_before = false;                    // free text, without the opening tag, may come before the first call
  SchemaLimits schema_limits;
  GrammarLimits grammar_limits;
};

// Errors as of json_schema_grammar(), with the tool's name in front. kUsage: no tool, or a name that the form cannot
// hold.
Result<Grammar> tool_grammar(const std::vector<ToolSchema>& tools, const ToolGrammarOptions& options);

}  // namespace foretoken
