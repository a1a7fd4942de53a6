// Reading CLI11's declarations.
#include "app/program_listing.h"

#include <algorithm>

#include "app/agent_clients.h"

namespace foretoken::app {
namespace {

// CLI11 spells a value's type and checks as "TEXT:{a,b}", "INT:INT in [0 - 8]".
std::vector<std::string> choices_of(const std::string& type) {
  std::vector<std::string> out;
  const size_t open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return out;
  std::string rest = type.substr(open + 1, close - open - 1);
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    out.push_back(rest.substr(0, comma));
    rest.erase(0, comma + 1);
  }
  return out;
}

ListedOption list_option(const CLI::Option& option) {
  ListedOption out;
  for (const std::string& name : option.get_lnames()) out.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) out.names.push_back("-" + name);
  if (option.get_positional() && out.names.empty()) out.names.push_back(option.get_name());
  if (option.get_expected_max() > 0 && option.get_type_size() > 0) {
    const std::string type = option.get_type_name();
    out.choices = choices_of(type);
    out.value = type.substr(0, type.find(':'));
    if (out.value.empty()) out.value = "VALUE";
  }
  out.initial = option.get_default_str();
  out.description = option.get_description();
  return out;
}

std::vector<ListedOption> list_options(const CLI::App& app, bool positional) {
  std::vector<ListedOption> out;
  for (const CLI::Option* option : app.get_options()) {
    const bool named = option->nonpositional();
    if (option->get_group().empty() || named == positional) continue;
    out.push_back(list_option(*option));
  }
  return out;
}

ListedCommand list_command(const CLI::App& app, const std::string& prefix) {
  ListedCommand out{.name = prefix + app.get_name(),
                    .description = app.get_description(),
                    .footer = app.get_footer(),
                    .options = list_options(app, false),
                    .positionals = list_options(app, true)};
  if (!out.positionals.empty()) out.words = out.positionals[0].choices;
  if (app.get_prefix_command())  // it hands its words on to a client
    for (const AgentClient& client : agent_clients()) out.words.emplace_back(client.name);
  for (const CLI::App* part : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (part->get_group().empty()) continue;
    out.words.push_back(part->get_name());
    out.parts.push_back(list_command(*part, out.name + " "));
  }
  return out;
}

}  // namespace

std::vector<ListedOption> offered_options(const ListedCommand& command) {
  std::vector<ListedOption> out = command.options;
  for (const ListedCommand& part : command.parts)
    for (const ListedOption& option : part.options)
      if (std::none_of(out.begin(), out.end(), [&](const ListedOption& known) { return known.names == option.names; }))
        out.push_back(option);
  return out;
}

ProgramListing list_program(const CLI::App& program, const std::vector<Command>& commands) {
  ProgramListing out{.name = program.get_name(),
                     .version = FORETOKEN_VERSION,
                     .description = program.get_description(),
                     .options = list_options(program, false)};
  for (const Command& command : commands)
    if (!command.app->get_group().empty()) out.commands.push_back(list_command(*command.app, ""));
  return out;
}

}  // namespace foretoken::app
