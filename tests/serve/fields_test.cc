// Every field of every API, with a value of each JSON type that it does not take: the error names the field. The table is complete: names
// that the readers' sources ask for and that no table holds fail the last test.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <regex>
#include <set>

#include "serve/anthropic_api.h"
#include "serve/openai_requests.h"
#include "serve/responses_api.h"

namespace foretoken::serve {
namespace {

// `at`: a JSON pointer. `takes`: letters of kTypes; another type is a mistake.
struct Field {
  const char *at, *takes;
};

const std::pair<char, const char*> kTypes[] = {{'b', "true"}, {'n', "1.5"}, {'i', "7"}, {'s', "\"text\""}, {'a', "[]"}, {'o', "{\"k\":1}"}};

const std::vector<Field> kSampling = {
    {"/model", "s"}, {"/temperature", "ni"}, {"/top_p", "ni"}, {"/top_k", "i"}, {"/min_p", "ni"}, {"/repetition_penalty", "ni"}, {"/presence_penalty", "ni"},
    {"/frequency_penalty", "ni"}, {"/seed", "i"}, {"/logit_bias", "o"}, {"/n", "i"}, {"/ignore_eos", "b"}, {"/priority", "i"}, {"/timeout", "ni"}, {"/stream", "b"},
    {"/return_progress", "b"}, {"/return_tokens", "b"}, {"/speculate", "b"}, {"/thinking_budget", "i"}};

// Fields that would change the answer and are not supported: refused with any value but a harmless one.
const std::vector<Field> kForeign = {
    {"/functions", "a"}, {"/function_call", "a"}, {"/audio", "a"}, {"/web_search_options", "a"}, {"/guided_json", "a"}, {"/guided_regex", "a"}, {"/guided_choice", "a"},
    {"/guided_grammar", "a"}, {"/structured_outputs", "a"}, {"/grammar", "a"}, {"/json_schema", "a"}, {"/bad_words", "a"}, {"/allowed_token_ids", "a"},
    {"/stop_token_ids", "a"}, {"/logits_processors", "a"}, {"/modalities", ""}, {"/min_tokens", ""}, {"/best_of", ""}, {"/use_beam_search", ""},
    {"/include_stop_str_in_output", ""}, {"/skip_special_tokens", "b"}, {"/add_generation_prompt", "b"}, {"/continue_final_message", ""}, {"/truncate_prompt_tokens", ""},
    {"/prompt_logprobs", ""}, {"/typical_p", ""}, {"/tfs_z", ""}, {"/mirostat", ""}, {"/xtc_probability", ""}, {"/dry_multiplier", ""}, {"/dynatemp_range", ""}};

const std::vector<Field> kThinking = {{"/chat_template_kwargs", "o"}, {"/chat_template_kwargs/enable_thinking", "b"}, {"/enable_thinking", "b"}, {"/reasoning_effort", "s"}};

const std::vector<Field> kResponseFormat = {{"/response_format", "o"}, {"/response_format/type", "s"}, {"/response_format/json_schema", "o"}, {"/response_format/json_schema/schema", "ob"}};

struct Api {
  const char* name;
  const char* body;  // accepted, and holds the place of every nested field
  std::vector<std::vector<Field>> fields;
  std::function<std::optional<ApiError>(const OrderedJson&)> read;
};

template <class T>
std::optional<ApiError> error_of(const ApiResult<T>& result) {
  return result ? std::nullopt : std::optional(result.error());
}

std::vector<Api> apis() {
  std::vector<Api> all;
  all.push_back({"chat completions",
                 R"({"messages":[{"role":"user","content":[{"type":"text","text":"x"}]},
                   {"role":"assistant","reasoning_content":"r","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},
                   {"role":"tool","tool_call_id":"1","name":"f","content":"ok"},{"role":"assistant","content":[{"type":"refusal","refusal":"no"}],"reasoning":"r"}],
                   "stream":true,"stream_options":{},"chat_template_kwargs":{},"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{}}},
                   "tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{},"strict":true}}],"user":7,"metadata":[],"store":"text"})",
                 {kSampling, kForeign, kThinking, kResponseFormat,
                  {{"/messages", "a"}, {"/messages/0", "o"}, {"/messages/0/role", "s"}, {"/messages/0/content", "sa"}, {"/messages/0/content/0", "o"},
                   {"/messages/0/content/0/type", "s"}, {"/messages/0/content/0/text", "s"}, {"/messages/1/reasoning_content", "s"}, {"/messages/3/reasoning", "s"},
                   {"/messages/1/tool_calls", "a"}, {"/messages/1/tool_calls/0", "o"}, {"/messages/1/tool_calls/0/id", "s"}, {"/messages/1/tool_calls/0/function", "o"},
                   {"/messages/1/tool_calls/0/function/name", "s"}, {"/messages/1/tool_calls/0/function/arguments", "so"}, {"/messages/1/function_call", ""},
                   {"/messages/2/tool_call_id", "s"}, {"/messages/2/name", "s"}, {"/messages/2/content", "sa"}, {"/stop", "sa"}, {"/logprobs", "b"}, {"/top_logprobs", "i"},
                   {"/stream_options", "o"}, {"/stream_options/include_usage", "b"}, {"/max_tokens", "i"}, {"/max_completion_tokens", "i"}, {"/tools", "a"}, {"/tools/0", "o"},
                   {"/tools/0/type", "s"}, {"/tools/0/function", "o"}, {"/tools/0/function/name", "s"}, {"/tools/0/function/description", "s"},
                   {"/tools/0/function/parameters", "o"}, {"/tools/0/function/strict", "b"}, {"/parallel_tool_calls", "b"}, {"/tool_choice", "so"}}},
                 [](const OrderedJson& body) { return error_of(read_chat_request(body, {})); }});
  all.push_back({"completions",
                 R"({"prompt":"x","stream":true,"stream_options":{},"response_format":{"type":"json_schema","json_schema":{"schema":{}}},"user":[]})",
                 {kSampling, kForeign, kResponseFormat,
                  {{"/prompt", "sa"}, {"/stop", "sa"}, {"/stream_options", "o"}, {"/stream_options/include_usage", "b"}, {"/max_tokens", "i"}, {"/logprobs", "i"},
                   {"/echo", "b"}, {"/suffix", ""}}},
                 [](const OrderedJson& body) { return error_of(read_completion_request(body, {})); }});
  all.push_back({"completions with a pattern",
                 R"({"prompt":[1,2],"response_format":{"type":"regex","pattern":"a*"}})",
                 {{{"/response_format/pattern", "s"}}},
                 [](const OrderedJson& body) { return error_of(read_completion_request(body, {})); }});
  all.push_back({"responses",
                 R"({"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]},{"type":"reasoning","content":[{"type":"reasoning_text","text":"r"}],"summary":[]},
                   {"type":"function_call","call_id":"c","name":"f","namespace":"s","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"o"}]}],
                   "reasoning":{},"text":{"format":{"type":"json_schema","schema":{}}},"chat_template_kwargs":{},
                   "tools":[{"type":"function","name":"f","description":"d","parameters":{},"strict":false},{"type":"namespace","name":"s","tools":[{"type":"function","name":"g","parameters":{}}]}],
                   "metadata":7,"user":[],"include":{}})",
                 {kSampling, kForeign, kThinking,
                  {{"/input", "sa"}, {"/input/0", "o"}, {"/input/0/type", "s"}, {"/input/0/role", "s"}, {"/input/0/content", "sa"}, {"/input/0/content/0", "o"},
                   {"/input/0/content/0/type", "s"}, {"/input/0/content/0/text", "s"}, {"/input/1/content", "a"}, {"/input/1/summary", "a"}, {"/input/2/call_id", "s"},
                   {"/input/2/name", "s"}, {"/input/2/namespace", "s"}, {"/input/2/arguments", "s"}, {"/input/3/call_id", "s"}, {"/input/3/output", "sa"},
                   {"/input/3/output/0", "o"}, {"/input/3/output/0/text", "s"}, {"/store", "b"}, {"/max_output_tokens", "i"}, {"/top_logprobs", "i"}, {"/reasoning", "o"},
                   {"/reasoning/effort", "s"}, {"/text", "o"}, {"/text/format", "o"}, {"/text/format/type", "s"}, {"/text/format/schema", "ob"}, {"/tools", "a"},
                   {"/tools/0", "o"}, {"/tools/0/type", "s"}, {"/tools/0/name", "s"}, {"/tools/0/description", "s"}, {"/tools/0/parameters", "o"}, {"/tools/0/strict", "b"},
                   {"/tools/1/name", "s"}, {"/tools/1/tools", "a"}, {"/tools/1/tools/0", "o"}, {"/tools/1/tools/0/name", "s"}, {"/tools/1/tools/0/parameters", "o"},
                   {"/parallel_tool_calls", "b"}, {"/tool_choice", "so"}, {"/background", ""}, {"/prompt", ""}, {"/conversation", ""}, {"/max_tool_calls", ""},
                   {"/truncation", ""}, {"/previous_response_id", "s"}, {"/instructions", "s"}}},
                 [](const OrderedJson& body) {
                   ResponseStore store(1 << 20);
                   return error_of(read_responses_request(body, {}, store));
                 }});
  all.push_back({"messages",
                 R"({"max_tokens":5,"system":[{"type":"text","text":"S"}],"messages":[{"role":"user","content":[{"type":"text","text":"x"}]},
                   {"role":"assistant","content":[{"type":"thinking","thinking":"t"},{"type":"tool_use","id":"u","name":"f","input":{}}]},
                   {"role":"user","content":[{"type":"tool_result","tool_use_id":"u","is_error":false,"content":[{"type":"text","text":"r"}]}]}],
                   "thinking":{"type":"enabled","budget_tokens":9},"output_config":{"format":{"type":"json_schema","schema":{}}},"output_format":{"type":"text"},
                   "tools":[{"type":"custom","name":"f","description":"d","input_schema":{}}],"tool_choice":{"type":"tool","name":"f"},"metadata":7})",
                 {kSampling,
                  {{"/max_tokens", "i"}, {"/system", "sa"}, {"/system/0", "o"}, {"/system/0/type", "s"}, {"/system/0/text", "s"}, {"/messages", "a"}, {"/messages/0", "o"},
                   {"/messages/0/role", "s"}, {"/messages/0/content", "sa"}, {"/messages/0/content/0", "o"}, {"/messages/0/content/0/type", "s"},
                   {"/messages/0/content/0/text", "s"}, {"/messages/1/content/0/thinking", "s"}, {"/messages/1/content/1/id", "s"}, {"/messages/1/content/1/name", "s"},
                   {"/messages/1/content/1/input", "o"}, {"/messages/2/content/0/tool_use_id", "s"}, {"/messages/2/content/0/is_error", "b"},
                   {"/messages/2/content/0/content", "sa"}, {"/messages/2/content/0/content/0", "o"}, {"/messages/2/content/0/content/0/text", "s"},
                   {"/stop_sequences", "sa"}, {"/thinking", "o"}, {"/thinking/type", "s"}, {"/thinking/budget_tokens", "i"}, {"/output_config", "o"},
                   {"/output_config/effort", "s"}, {"/output_config/format", "o"}, {"/output_config/format/type", "s"}, {"/output_config/format/schema", "ob"},
                   {"/output_format", "o"}, {"/tools", "a"}, {"/tools/0", "o"}, {"/tools/0/type", ""}, {"/tools/0/name", "s"}, {"/tools/0/description", "s"},
                   {"/tools/0/input_schema", "o"}, {"/tool_choice", "o"}, {"/tool_choice/type", "s"}, {"/tool_choice/name", "s"},
                   {"/tool_choice/disable_parallel_tool_use", "b"}, {"/mcp_servers", "a"}, {"/container", ""}}},
                 [](const OrderedJson& body) { return error_of(read_messages_request(body, {})); }});
  return all;
}

// "/messages/0/content" is messages[0].content in errors.
std::string shown(const std::string& pointer) {
  std::string out;
  for (size_t begin = 1; begin <= pointer.size();) {
    const size_t end = std::min(pointer.find('/', begin), pointer.size());
    const std::string part = pointer.substr(begin, end - begin);
    out += part.find_first_not_of("0123456789") == std::string::npos ? "[" + part + "]" : (out.empty() ? "" : ".") + part;
    begin = end + 1;
  }
  return out;
}

TEST(Fields, AWrongTypeIsNamed) {
  int mistakes = 0;
  for (const Api& api : apis()) {
    const OrderedJson body = OrderedJson::parse(api.body);
    const auto accepted = api.read(body);
    ASSERT_FALSE(accepted) << api.name << ": " << accepted->message;
    for (const auto& part : api.fields)
      for (const Field& field : part)
        for (const auto& [type, value] : kTypes) {
          if (std::string_view(field.takes).find(type) != std::string_view::npos) continue;
          OrderedJson wrong = body;
          wrong[OrderedJson::json_pointer(field.at)] = OrderedJson::parse(value);
          const auto error = api.read(wrong);
          ASSERT_TRUE(error) << api.name << " takes " << value << " as " << shown(field.at);
          EXPECT_EQ(error->param, shown(field.at)) << api.name << ", " << value << ": " << error->message;
          EXPECT_EQ(error->status, 400) << api.name << ", " << shown(field.at);
          const std::string owner = shown(field.at).substr(0, shown(field.at).rfind('.'));
          EXPECT_NE(error->message.find(owner), std::string::npos) << error->message;
          for (const Dialect dialect : {Dialect::kOpenAi, Dialect::kAnthropic}) EXPECT_EQ(error_json(*error, dialect)["error"]["param"], shown(field.at));
          ++mistakes;
        }
  }
  EXPECT_GT(mistakes, 1000);
}

TEST(Fields, TheTableHoldsWhatTheReadersAskFor) {
  std::set<std::string> known;
  for (const Api& api : apis())
    for (const auto& part : api.fields)
      for (const Field& field : part) known.insert(std::string(field.at).substr(std::string(field.at).rfind('/') + 1));
  known.insert("refusal");  // a part's text under another name
  const std::regex asked(R"re((?:\.|->)(?:boolean|integer|unsigned64|number|text|one_of|object|array|refuse|find|value|contains)\("([a-z_0-9]+)")re");
  size_t found = 0;
  for (const char* file : {"common_fields.cc", "openai_requests.cc", "responses_api.cc", "anthropic_api.cc"}) {
    std::ifstream source(std::string(FORETOKEN_SOURCE_DIR) + "/src/serve/" + file);
    const std::string text(std::istreambuf_iterator<char>(source), {});
    for (auto it = std::sregex_iterator(text.begin(), text.end(), asked); it != std::sregex_iterator(); ++it, ++found)
      EXPECT_TRUE(known.count((*it)[1])) << file << " reads " << (*it)[1] << ", which no table here holds";
  }
  EXPECT_GT(found, 80u);
}

// A field that is refused once the prompt is known is named as its API spells it, too.
TEST(Fields, SpecsRememberHowTheirFieldsAreSpelt) {
  const auto chat = read_chat_request(OrderedJson::parse(R"({"messages":[{"role":"user","content":"x"}],"max_completion_tokens":9,"response_format":{"type":"json_schema","json_schema":{"schema":{}}}})"), {});
  ASSERT_TRUE(chat);
  EXPECT_EQ(chat->names.input, "messages");
  EXPECT_EQ(chat->names.max_tokens, "max_completion_tokens");
  EXPECT_EQ(chat->names.format, "response_format");
  EXPECT_EQ(chat->names.grammar, "response_format.json_schema.schema");
  const auto completion = read_completion_request(OrderedJson::parse(R"({"prompt":"x","max_tokens":9,"response_format":{"type":"regex","pattern":"a"}})"), {});
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->names.input, "prompt");
  EXPECT_EQ(completion->names.grammar, "response_format.pattern");
  ResponseStore store(1 << 20);
  const auto response = read_responses_request(OrderedJson::parse(R"({"input":"x","text":{"format":{"type":"json_schema","schema":{}}}})"), {}, store);
  ASSERT_TRUE(response);
  EXPECT_EQ(response->spec.names.input, "input");
  EXPECT_EQ(response->spec.names.max_tokens, "max_output_tokens");
  EXPECT_EQ(response->spec.names.grammar, "text.format.schema");
  const auto message = read_messages_request(OrderedJson::parse(R"({"max_tokens":5,"messages":[{"role":"user","content":"x"}],"stop_sequences":["a"],"output_config":{"format":{"type":"json_schema","schema":{}}}})"), {});
  ASSERT_TRUE(message);
  EXPECT_EQ(message->names.stop, "stop_sequences");
  EXPECT_EQ(message->names.grammar, "output_config.format.schema");
}

}  // namespace
}  // namespace foretoken::serve
