// Completion for bash, zsh and fish: commands, options, and the values that an option may take; names of files for all
// other values.
#include <fmt/format.h>

#include "app/program_listing.h"

namespace foretoken::app {
namespace {

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : std::string(between)) + word;
  return out;
}

std::string names_of(const std::vector<ListedOption>& options) {
  std::string out;
  for (const ListedOption& option : options) out += (out.empty() ? "" : " ") + joined(option.names, " ");
  return out;
}

std::string command_names(const ProgramListing& program, std::string_view between) {
  std::vector<std::string> names;
  for (const ListedCommand& command : program.commands) names.push_back(command.name);
  return joined(names, between);
}

// Inside single quotes, with `also` escaped by a backslash.
std::string in_quotes(const std::string& text, std::string_view also = {}) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') out += "'\\''";
    else if (also.find(c) != std::string_view::npos) out += std::string("\\") + c;
    else out += c;
  }
  return out;
}

}  // namespace

std::string bash_completion(const ProgramListing& program) {
  std::string cases;
  for (const ListedCommand& command : program.commands) {
    std::string values, files;
    for (const ListedOption& option : offered_options(command)) {
      if (!option.choices.empty())
        values += fmt::format("        {}) values='{}' ;;\n", joined(option.names, "|"), joined(option.choices, " "));
      else if (!option.value.empty()) files += (files.empty() ? "" : "|") + joined(option.names, "|");
    }
    if (!files.empty()) values += fmt::format("        {}) files=1 ;;\n", files);
    cases += fmt::format("    {})\n      options='{}' words='{}'\n      case $previous in\n{}      esac ;;\n",
                         command.name, names_of(offered_options(command)), joined(command.words, " "), values);
  }
  return fmt::format(R"(# Completion of {0} for bash.
_{0}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} command= at=0 options= words= values= files= i
  if [[ $word == = ]]; then word=; elif [[ $previous == = ]]; then previous=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${{COMP_WORDS[i]}} in {1}) command=${{COMP_WORDS[i]}} at=$i; break ;; esac
  done
  case $command in
    '') COMPREPLY=($(compgen -W '{2} {3}' -- "$word")); return ;;
{4}  esac
  if [[ $values ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$word"))
  elif [[ ! $files && $word == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  elif [[ ! $files && $words && $((at + 1)) == "$COMP_CWORD" ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  else
    compopt -o filenames 2> /dev/null
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -F _{0} {0}
)",
                     program.name, command_names(program, "|"), command_names(program, " "), names_of(program.options),
                     cases);
}

std::string zsh_completion(const ProgramListing& program) {
  const auto argument = [](const ListedOption& option) {
    std::string spec = "'";
    if (option.names.size() > 1) spec = "'(" + joined(option.names, " ") + ")'{" + joined(option.names, ",") + "}'";
    else spec += option.names[0];
    spec += "[" + in_quotes(option.description, "[]:") + "]";
    if (!option.value.empty())
      spec += ":" + in_quotes(option.value, ":") + ":" +
              (option.choices.empty() ? "_files" : "(" + joined(option.choices, " ") + ")");
    return spec + "'";
  };
  std::string commands, cases;
  for (const ListedCommand& command : program.commands) {
    commands += fmt::format("    '{}:{}'\n", command.name, in_quotes(command.description, ":"));
    cases += fmt::format("    {})\n      _arguments -s", command.name);
    for (const ListedOption& option : offered_options(command)) cases += " \\\n        " + argument(option);
    if (!command.words.empty()) cases += fmt::format(" \\\n        '1: :({})'", joined(command.words, " "));
    cases += " \\\n        '*: :_files' ;;\n";
  }
  return fmt::format(R"(#compdef {0}
# Completion of {0} for zsh.
_{0}() {{
  local -a commands=(
{1}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    compadd -- {2}
    return
  fi
  shift words
  (( CURRENT-- ))
  case $words[1] in
{3}  esac
}}
_{0} "$@"
)",
                     program.name, commands, names_of(program.options), cases);
}

std::string fish_completion(const ProgramListing& program) {
  const auto option_line = [&](const ListedOption& option, std::string_view condition) {
    std::string line = fmt::format("complete -c {} -n '{}'", program.name, condition);
    for (const std::string& name : option.names)
      line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    if (!option.choices.empty()) line += fmt::format(" -x -a '{}'", joined(option.choices, " "));
    else if (!option.value.empty()) line += " -r";
    return line + fmt::format(" -d '{}'\n", in_quotes(option.description));
  };
  std::string out = fmt::format("# Completion of {} for fish.\n", program.name);
  for (const ListedOption& option : program.options) out += option_line(option, "__fish_use_subcommand");
  for (const ListedCommand& command : program.commands) {
    out += fmt::format("complete -c {} -n __fish_use_subcommand -f -a {} -d '{}'\n", program.name, command.name,
                       in_quotes(command.description));
    const std::string seen = "__fish_seen_subcommand_from " + command.name;
    for (const ListedOption& option : offered_options(command)) out += option_line(option, seen);
    if (!command.words.empty())
      out += fmt::format("complete -c {} -n '{}' -f -a '{}'\n", program.name, seen, joined(command.words, " "));
  }
  return out;
}

}  // namespace foretoken::app
