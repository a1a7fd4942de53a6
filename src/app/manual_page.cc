// The manual page: commands and options from the program's declarations, around them what the declarations do not know.
#include <fmt/format.h>

#include <algorithm>

#include "app/program_listing.h"

namespace foretoken::app {
namespace {

constexpr size_t kCommon = 6;  // an option that so many commands take is described once

// Text as troff takes it: no line is a request, dashes are dashes.
std::string plain(const std::string& text) {
  std::string out;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') out += "\\e";
    else if (c == '-') out += "\\-";
    else out += c;
    line_begins = c == '\n';
  }
  return out;
}

std::string option_text(const ListedOption& option) {
  std::string names;
  for (const std::string& name : option.names) names += (names.empty() ? "" : ", ") + ("\\fB" + plain(name) + "\\fR");
  std::string value = option.value;
  if (!option.choices.empty()) {
    value.clear();
    for (const std::string& choice : option.choices) value += (value.empty() ? "" : "|") + choice;
  }
  std::string text = plain(option.description);
  if (!option.initial.empty() && !option.value.empty()) text += plain(fmt::format(" (default: {})", option.initial));
  return fmt::format(".TP\n{}{}\n{}.\n", names, value.empty() ? "" : " \\fI" + plain(value) + "\\fR", text);
}

// In the order in which they are first declared.
std::vector<ListedOption> common_options(const ProgramListing& program) {
  std::vector<std::pair<ListedOption, size_t>> counts;
  const auto count = [&](const ListedCommand& command) {
    for (const ListedOption& option : command.options) {
      const auto it =
          std::find_if(counts.begin(), counts.end(), [&](const auto& known) { return known.first == option; });
      if (it == counts.end()) counts.emplace_back(option, 1);
      else ++it->second;
    }
  };
  for (const ListedCommand& command : program.commands) {
    count(command);
    for (const ListedCommand& part : command.parts) count(part);
  }
  std::vector<ListedOption> out;
  for (const auto& [option, times] : counts)
    if (times >= kCommon) out.push_back(option);
  return out;
}

std::string command_text(const ProgramListing& program, const ListedCommand& command,
                         const std::vector<ListedOption>& common) {
  std::string words = command.words.empty() || !command.positionals.empty() ? "" : " NAME [ARGS]";
  for (const ListedOption& positional : command.positionals) words += " [" + positional.names[0] + "]";
  std::string out =
      fmt::format(".SS \"{} {} [OPTIONS]{}\"\n{}.\n", program.name, command.name, words, plain(command.description));
  for (const ListedOption& positional : command.positionals) out += option_text(positional);
  const auto is_common = [&](const ListedOption& option) {
    return std::find(common.begin(), common.end(), option) != common.end();
  };
  for (const ListedOption& option : command.options)
    if (!is_common(option)) out += option_text(option);
  const auto shared = std::count_if(command.options.begin(), command.options.end(), is_common);
  if (shared == static_cast<std::ptrdiff_t>(common.size())) {
    out += ".PP\nTakes all common options.\n";
  } else if (shared > 1) {
    out += ".PP\nOf the common options it takes";
    for (const ListedOption& option : command.options)
      if (is_common(option)) out += " \\fB" + plain(option.names[0]) + "\\fR";
    out += ".\n";
  }
  if (!command.footer.empty()) out += ".PP\n" + plain(command.footer) + "\n";
  return out;
}

}  // namespace

std::string manual_page(const ProgramListing& program) {
  std::string upper = program.name;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const std::vector<ListedOption> common = common_options(program);
  std::string out = fmt::format(
      ".\\\" Made by \"{0} manual\" from the program's own options.\n.TH {1} 1 \"\" \"{0} {2}\" \"User Commands\"\n",
      program.name, upper, program.version);
  out += fmt::format(
      ".SH NAME\n{0} \\- exact local inference with speculative decoding\n.SH SYNOPSIS\n\\fB{0}\\fR \\fICOMMAND\\fR "
      "[\\fIOPTIONS\\fR]\n",
      program.name);
  out += fmt::format(
      ".SH DESCRIPTION\n{}.\nSpeculative decoding makes answers come sooner and never changes a byte of them.\n",
      plain(program.description));
  out += ".SH OPTIONS\n";
  for (const ListedOption& option : program.options) out += option_text(option);
  out += ".SH COMMANDS\n";
  for (const ListedCommand& command : program.commands) {
    out += command_text(program, command, common);
    for (const ListedCommand& part : command.parts) out += command_text(program, part, common);
  }
  out += ".SH COMMON OPTIONS\n";
  for (const ListedOption& option : common) out += option_text(option);
  out += R"(.SH EXIT STATUS
.TP
0
All went well.
.TP
1
The check failed (\fBcertify\fR, \fBdemo\fR).
.TP
2
Usage or bad input: one sentence on standard error says what, where and what to do.
.TP
3
Inconclusive (\fBcertify\fR).
.TP
4
Out of memory or device.
.SH ENVIRONMENT
.TP
\fBFORETOKEN_API_KEY\fR
The key that \fBserve\fR asks for and \fBagent\fR sends.
.TP
\fBFORETOKEN_CACHE_DIR\fR
The folder of caches.
.SH FILES
.TP
\fI/etc/foretoken.env\fR
\fBFORETOKEN_OPTIONS\fR and \fBFORETOKEN_API_KEY\fR of the service.
.TP
\fI~/.cache/foretoken\fR
Packed weights and the prefix cache.
.SH EXAMPLES
.TP
foretoken run \-\-model model.gguf "Write a haiku about the sea."
One answer.
.TP
foretoken serve \-\-model model.gguf
OpenAI's and Anthropic's APIs at http://127.0.0.1:8000.
.TP
foretoken agent claude
Claude Code on that server.
)";
  return out;
}

}  // namespace foretoken::app
