// foretoken agent: looks at the running server, then becomes the client.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "app/agent_clients.h"
#include "app/commands.h"
#include "app/options.h"
#include "base/json.h"
#include "serve/http_client.h"

namespace foretoken::app {
namespace {

constexpr double kPatienceS = 5;
constexpr int64_t kUsefulContext = 16384;  // the instructions of agents alone take about this much

struct AgentOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string key;
  bool print = false;
};

std::string names_of_clients() {
  std::string names;
  for (const AgentClient& client : agent_clients()) names += (names.empty() ? "" : ", ") + std::string(client.name);
  return names;
}

// The sentence of an error of the API, or the body's beginning.
std::string said(const serve::HttpReply& reply) {
  const auto body = parse_ordered_json(reply.body, "answer");
  if (body && body->is_object() && body->contains("error") && (*body)["error"].is_object())
    return (*body)["error"].value("message", std::string());
  return reply.body.substr(0, 100);
}

Result<RunningServer> look_at_server(const AgentOptions& o) {
  ASSIGN_OR_RETURN(const serve::HttpOrigin origin, serve::parse_origin(o.url));
  const std::string url = origin.url(), key = o.key.empty() ? api_key_of_environment() : o.key;
  const auto ready = serve::http_get(origin, "/ready", {}, kPatienceS);
  if (!ready)
    return Error{ErrorCode::kUsage,
                 fmt::format("no server answers at {} ({}); start one with \"foretoken serve\", or name it with --url",
                             url, ready.error().message)};
  if (ready->status == 503)
    return Error{ErrorCode::kUsage,
                 fmt::format("the server at {} is not ready ({}); try again when it is", url, said(*ready))};
  serve::Headers headers;
  if (!key.empty()) headers.emplace_back("Authorization", "Bearer " + key);
  ASSIGN_OR_RETURN(const serve::HttpReply models, serve::http_get(origin, "/v1/models", headers, kPatienceS));
  if (models.status == 401)
    return Error{ErrorCode::kUsage, fmt::format("the server at {} {} its API key; set FORETOKEN_API_KEY", url,
                                                key.empty() ? "asks for" : "does not take this as")};
  const auto body = parse_ordered_json(models.body, "list of models");
  const bool ours = ready->status == 200 && models.status == 200 && body && body->is_object() &&
                    body->contains("data") && (*body)["data"].is_array() && !(*body)["data"].empty() &&
                    (*body)["data"][0].is_object() && (*body)["data"][0].contains("id") &&
                    (*body)["data"][0]["id"].is_string() && (*body)["data"][0].contains("max_model_len") &&
                    (*body)["data"][0]["max_model_len"].is_number_integer();
  if (!ours)
    return Error{ErrorCode::kUsage,
                 fmt::format("what answers at {} is no foretoken server (status {})", url, models.status)};
  const OrderedJson& model = (*body)["data"][0];
  return RunningServer{.url = url,
                       .model = model["id"].get<std::string>(),
                       .context = model["max_model_len"].get<int64_t>(),
                       .key = key};
}

// Does not return when the client runs.
int become(const AgentLaunch& launch, const std::filesystem::path& program) {
  for (const std::string& name : launch.unset) ::unsetenv(name.c_str());
  for (const auto& [name, value] : launch.set) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<std::string> words = {launch.program};
  words.insert(words.end(), launch.arguments.begin(), launch.arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::signal(SIGPIPE, SIG_DFL);  // main ignores it, and that would be inherited
  ::execv(program.c_str(), argv.data());
  return report({ErrorCode::kIo, fmt::format("{} cannot be run ({})", program.string(), std::strerror(errno))});
}

int run_agent(const AgentOptions& o, std::vector<std::string> words) {
  if (words.empty())
    return report({ErrorCode::kUsage, fmt::format("agent needs a client's name: {}", names_of_clients())});
  const AgentClient* client = find_agent_client(words[0]);
  if (!client)
    return report(
        {ErrorCode::kUsage, fmt::format("there is no recipe for \"{}\"; known are {}", words[0], names_of_clients())});
  words.erase(words.begin(), words.begin() + (words.size() > 1 && words[1] == "--" ? 2 : 1));
  const std::filesystem::path program = find_program(std::string(client->program));
  if (program.empty() && !o.print)
    return report({ErrorCode::kUsage, fmt::format("{} is not installed (no {} in PATH); install it with: {}",
                                                  client->name, client->program, client->install)});
  const auto server = look_at_server(o);
  if (!server) return report(server.error());
  if (server->context < kUsefulContext)
    fmt::print(stderr,
               "note: this server's context is {} tokens; agents need more (foretoken serve --max-context {})\n",
               server->context, 2 * kUsefulContext);
  const AgentLaunch launch = launch_of(*client, *server, words);
  if (!o.print) return become(launch, program);
  if (program.empty())
    fmt::print(stderr, "note: {} is not installed; install it with: {}\n", client->name, client->install);
  fmt::print("{}\n", shell_line(launch, server->key));
  return 0;
}

}  // namespace

Command add_agent(CLI::App& program) {
  auto o = std::make_shared<AgentOptions>();
  CLI::App* app = program.add_subcommand("agent", "Run an installed agent client against the running server");
  app->add_option("--url", o->url, "Where the server answers")->capture_default_str();
  app->add_option("--api-key", o->key, "The server's key (default: FORETOKEN_API_KEY)");
  app->add_flag("--print", o->print, "Print what would be run, as a line for a shell, and run nothing");
  app->prefix_command();  // whatever follows the name is the client's
  app->footer(
      fmt::format("NAME [ARGS] follow the options; all after NAME goes to the client.\nNAME: {}", names_of_clients()));
  return {app, [o, app] { return run_agent(*o, app->remaining()); }};
}

}  // namespace foretoken::app
