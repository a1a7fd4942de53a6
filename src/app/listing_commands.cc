// foretoken completion, foretoken manual: what the program knows of itself, for shells and for man.
#include <fmt/format.h>

#include "app/commands.h"
#include "app/program_listing.h"

namespace foretoken::app {

Command add_completion(CLI::App& program, const std::vector<Command>& commands) {
  auto shell = std::make_shared<std::string>();
  CLI::App* app = program.add_subcommand("completion", "Print the completion script of a shell");
  app->add_option("SHELL", *shell, "bash, zsh or fish")->check(CLI::IsMember({"bash", "zsh", "fish"}))->required();
  return {app, [&program, &commands, shell] {
            const ProgramListing listing = list_program(program, commands);
            fmt::print("{}", *shell == "bash"  ? bash_completion(listing)
                             : *shell == "zsh" ? zsh_completion(listing)
                                               : fish_completion(listing));
            return 0;
          }};
}

Command add_manual(CLI::App& program, const std::vector<Command>& commands) {
  CLI::App* app = program.add_subcommand("manual", "Print the manual page, for man -l -");
  return {app, [&program, &commands] {
            fmt::print("{}", manual_page(list_program(program, commands)));
            return 0;
          }};
}

}  // namespace foretoken::app
