// The program: declares the commands, parses the line, runs one.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "app/answer.h"
#include "app/commands.h"
#include "base/temporary.h"
#include "base/threads.h"

namespace {

// Says what is wrong with the line, and whose help lists what it takes: that of the deepest command it names.
void report_usage(const CLI::App& program, int argc, char** argv, std::string what) {
  const CLI::App* command = &program;
  std::string path = "foretoken";
  for (int i = 1; i < argc; ++i) {
    const auto named = command->get_subcommands([&](const CLI::App* c) { return c->get_name() == argv[i]; });
    if (named.empty()) {
      if (argv[i][0] != '-' && !command->get_subcommands({}).empty()) what = fmt::format("\"{}\" is no command of {}", argv[i], path);
      break;
    }
    command = named[0];
    path += fmt::format(" {}", argv[i]);
  }
  fmt::print(stderr, "foretoken: {} (see {} --help)\n", what, path);
}

// What a shell expects of a program that was interrupted: the end by the signal itself, once what there was has been printed.
int ended(int status) {
  if (!foretoken::app::interrupted()) return status;
  std::fflush(nullptr);
  foretoken::end_by_signal(SIGINT);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace foretoken::app;
  std::signal(SIGPIPE, SIG_IGN);
  foretoken::remove_temporaries_on_signals();
  foretoken::set_float_environment();
  CLI::App program("Foretoken: exact local inference for Qwen3.5, 3.6 and 3.8 hybrid models", "foretoken");
  program.set_version_flag("--version", "foretoken " FORETOKEN_VERSION);
  program.require_subcommand(1);
  std::vector<Command> commands = {add_run(program),     add_chat(program),     add_serve(program),
                                   add_agent(program),   add_demo(program),     add_inspect(program),
                                   add_certify(program), add_tokenize(program), add_detokenize(program),
                                   add_render(program),  add_logits(program),   add_perplexity(program),
                                   add_quantize(program), add_bench(program)};
  commands.push_back(add_completion(program, commands));
  commands.push_back(add_manual(program, commands));
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return program.exit(e);  // --help, --version
    report_usage(program, argc, argv, e.what());
    return 2;
  }
  try {
    for (const Command& command : commands)
      if (command.app->parsed()) return ended(command.run());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "foretoken: out of memory (with --backend cuda: the device's); try --kv-format int8, a smaller --prefill-chunk or a smaller model\n");
    return 4;
  } catch (const std::exception& e) {
    fmt::print(stderr, "foretoken: {}\n", e.what());
    return 2;
  }
  return 2;
}
