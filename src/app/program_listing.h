// What the program takes, read from its own declarations: the one source of shell completion and of the manual page.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/commands.h"

namespace foretoken::app {

struct ListedOption {
  std::vector<std::string> names;    // with their dashes, long ones first; of a positional: its name alone
  std::string value;                 // how the value is called; empty: a flag
  std::vector<std::string> choices;  // what the value may be; empty: anything
  std::string initial;               // the value without the option, where it has one
  std::string description;
  bool operator==(const ListedOption&) const = default;
};

struct ListedCommand {
  std::string name, description, footer;
  std::vector<ListedOption> options, positionals;
  std::vector<std::string> words;    // what its first word may be, where it is one of a list
  std::vector<ListedCommand> parts;  // commands below it, by their whole names: "bench speed"
};

// Its own options and those of its parts, each once.
std::vector<ListedOption> offered_options(const ListedCommand& command);

struct ProgramListing {
  std::string name, version, description;
  std::vector<ListedOption> options;
  std::vector<ListedCommand> commands;  // but for hidden ones
};

ProgramListing list_program(const CLI::App& program, const std::vector<Command>& commands);

std::string bash_completion(const ProgramListing& program);
std::string zsh_completion(const ProgramListing& program);
std::string fish_completion(const ProgramListing& program);
// troff, section 1.
std::string manual_page(const ProgramListing& program);

}  // namespace foretoken::app
