// The table of clients. A key goes into the environment only: command lines can be read by others.
#include "app/agent_clients.h"

#include <algorithm>
#include <array>

#include "base/json.h"

namespace foretoken::app {
namespace {

constexpr std::string_view kNoKey = "none";  // clients insist on one
constexpr std::string_view kKeyVariable = "FORETOKEN_API_KEY";

std::string key_or_none(const RunningServer& s) { return s.key.empty() ? std::string(kNoKey) : s.key; }
// What a client may plan for one answer: a quarter of the context leaves room for the conversation.
int64_t answer_room(const RunningServer& s) { return std::clamp<int64_t>(s.context / 4, 256, 32768); }

bool says(std::span<const std::string> words, std::initializer_list<std::string_view> flags) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return std::any_of(flags.begin(), flags.end(), [&](std::string_view flag) {
      return word == flag || word.starts_with(std::string(flag) + "=");
    });
  });
}

// A TOML string as Codex's -c takes it; JSON's spelling of a string is one.
std::string toml(const std::string& text) { return dump_json(OrderedJson(text)); }

// Settings given on the command line win over the user's settings file, whose `env` would win over the environment.
void wire_claude(const RunningServer& s, std::span<const std::string> words, AgentLaunch& l) {
  std::vector<std::pair<std::string, std::string>> settings = {{"ANTHROPIC_BASE_URL", s.url}};
  for (const char* role : {"ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
                           "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"})
    settings.emplace_back(role, s.model);
  settings.emplace_back("CLAUDE_CODE_MAX_CONTEXT_TOKENS", std::to_string(s.context));
  settings.emplace_back("CLAUDE_CODE_AUTO_COMPACT_WINDOW", std::to_string(s.context));
  settings.emplace_back("CLAUDE_CODE_MAX_OUTPUT_TOKENS", std::to_string(answer_room(s)));
  settings.emplace_back("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
  settings.emplace_back("CLAUDE_CODE_ATTRIBUTION_HEADER",
                        "0");  // it changes with every request, so no prefix would be found again
  settings.emplace_back("API_TIMEOUT_MS", "3600000");  // a long prompt on a small machine
  OrderedJson env = OrderedJson::object();
  for (const auto& [name, value] : settings) env[name] = value;
  l.set = std::move(settings);
  l.set.emplace_back("ANTHROPIC_AUTH_TOKEN", key_or_none(s));
  l.unset = {"ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"};
  if (!says(words, {"--settings"})) l.arguments = {"--settings", dump_json(OrderedJson{{"env", std::move(env)}})};
}

void wire_codex(const RunningServer& s, std::span<const std::string> words, AgentLaunch& l) {
  const std::string provider = "model_providers.foretoken.";
  std::vector<std::string> settings = {"model_provider=" + toml("foretoken"),
                                       provider + "name=" + toml("Foretoken"),
                                       provider + "base_url=" + toml(s.url + "/v1"),
                                       provider + "wire_api=" + toml("responses"),
                                       "model_context_window=" + std::to_string(s.context),
                                       "model_auto_compact_token_limit=" + std::to_string(s.context - answer_room(s)),
                                       "web_search=" + toml("disabled")};  // a tool that OpenAI's servers run
  if (!s.key.empty()) {
    settings.push_back(provider + "env_key=" + toml(std::string(kKeyVariable)));
    l.set.emplace_back(kKeyVariable, s.key);
  }
  if (!says(words, {"-m", "--model"})) settings.push_back("model=" + toml(s.model));
  for (std::string& setting : settings) l.arguments.insert(l.arguments.end(), {"-c", std::move(setting)});
}

// The configuration in this variable is merged over all files. Versions 1 and 2 read this spelling.
void wire_opencode(const RunningServer& s, std::span<const std::string>, AgentLaunch& l) {
  const OrderedJson model = {
      {"name", s.model}, {"tool_call", true}, {"limit", {{"context", s.context}, {"output", answer_room(s)}}}};
  OrderedJson provider = {{"npm", "@ai-sdk/openai-compatible"},
                          {"name", "Foretoken"},
                          {"options", {{"baseURL", s.url + "/v1"}, {"apiKey", "{env:FORETOKEN_API_KEY}"}}}};
  provider["models"][s.model] = model;
  const OrderedJson config = {{"$schema", "https://opencode.ai/config.json"},
                              {"model", "foretoken/" + s.model},
                              {"small_model", "foretoken/" + s.model},
                              {"provider", {{"foretoken", std::move(provider)}}}};
  l.set = {{"OPENCODE_CONFIG_CONTENT", dump_json(config)}, {std::string(kKeyVariable), key_or_none(s)}};
}

void openai_variables(const RunningServer& s, const char* base, AgentLaunch& l) {
  l.set.emplace_back("OPENAI_API_KEY", key_or_none(s));
  l.set.emplace_back(base, s.url + "/v1");
}

void wire_qwen(const RunningServer& s, std::span<const std::string> words, AgentLaunch& l) {
  openai_variables(s, "OPENAI_BASE_URL", l);
  l.set.emplace_back("OPENAI_MODEL", s.model);
  if (!says(words, {"--auth-type"})) l.arguments.insert(l.arguments.end(), {"--auth-type", "openai"});
  if (!says(words, {"--openai-base-url"})) l.arguments.insert(l.arguments.end(), {"--openai-base-url", s.url + "/v1"});
  if (!says(words, {"-m", "--model"})) l.arguments.insert(l.arguments.end(), {"--model", s.model});
}

void wire_aider(const RunningServer& s, std::span<const std::string> words, AgentLaunch& l) {
  openai_variables(s, "OPENAI_API_BASE", l);
  const std::string model = "openai/" + s.model;
  if (!says(words, {"--model"})) l.arguments.insert(l.arguments.end(), {"--model", model});
  if (!says(words, {"--weak-model"})) l.arguments.insert(l.arguments.end(), {"--weak-model", model});
  l.arguments.insert(l.arguments.end(), {"--openai-api-base", s.url + "/v1", "--no-show-model-warnings"});
}

void wire_goose(const RunningServer& s, std::span<const std::string>, AgentLaunch& l) {
  l.set = {{"GOOSE_PROVIDER", "openai"},
           {"GOOSE_MODEL", s.model},
           {"GOOSE_CONTEXT_LIMIT", std::to_string(s.context)},
           {"OPENAI_HOST", s.url},
           {"OPENAI_BASE_PATH", "v1/chat/completions"},
           {"OPENAI_API_KEY", key_or_none(s)}};
}

void wire_copilot(const RunningServer& s, std::span<const std::string>, AgentLaunch& l) {
  l.set = {
      {"COPILOT_PROVIDER_TYPE", "openai"}, {"COPILOT_PROVIDER_BASE_URL", s.url + "/v1"}, {"COPILOT_MODEL", s.model}};
  if (!s.key.empty()) l.set.emplace_back("COPILOT_PROVIDER_API_KEY", s.key);
}

constexpr std::array kClients = {
    AgentClient{"aider", "aider", "python3 -m pip install aider-install && aider-install", wire_aider},
    AgentClient{"claude", "claude", "npm install -g @anthropic-ai/claude-code", wire_claude},
    AgentClient{"codex", "codex", "npm install -g @openai/codex", wire_codex},
    AgentClient{"copilot", "copilot", "npm install -g @github/copilot", wire_copilot},
    AgentClient{"goose", "goose", "see https://goose-docs.ai", wire_goose},
    AgentClient{"opencode", "opencode", "npm install -g opencode-ai", wire_opencode},
    AgentClient{"qwen-code", "qwen", "npm install -g @qwen-code/qwen-code", wire_qwen},
};

std::string quoted(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@,+%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::span<const AgentClient> agent_clients() { return kClients; }

const AgentClient* find_agent_client(std::string_view name) {
  const auto it = std::find_if(kClients.begin(), kClients.end(),
                               [&](const AgentClient& c) { return c.name == name || c.program == name; });
  return it == kClients.end() ? nullptr : &*it;
}

AgentLaunch launch_of(const AgentClient& client, const RunningServer& server, std::span<const std::string> words) {
  AgentLaunch launch{.program = std::string(client.program)};
  client.wire(server, words, launch);
  launch.arguments.insert(launch.arguments.end(), words.begin(), words.end());
  return launch;
}

std::string shell_line(const AgentLaunch& launch, const std::string& key) {
  std::string line;
  if (!launch.unset.empty() || !launch.set.empty()) line = "env";
  for (const std::string& name : launch.unset) line += " -u " + name;
  for (const auto& [name, value] : launch.set) {
    if (key.empty() || value != key) line += " " + name + "=" + quoted(value);
    else if (name != kKeyVariable) line += " " + name + "=\"$" + std::string(kKeyVariable) + "\"";
  }
  line += (line.empty() ? "" : " ") + quoted(launch.program);
  for (const std::string& argument : launch.arguments) line += " " + quoted(argument);
  return line;
}

}  // namespace foretoken::app
