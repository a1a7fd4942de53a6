// The commands of the program, one file each. `add_X` declares a subcommand and its options; the returned callback runs it and gives
// the exit status.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <vector>

namespace foretoken::app {

struct Command {
  CLI::App* app;
  std::function<int()> run;
};

Command add_run(CLI::App& program);
Command add_certify(CLI::App& program);
Command add_chat(CLI::App& program);
Command add_demo(CLI::App& program);
Command add_inspect(CLI::App& program);
Command add_tokenize(CLI::App& program);
Command add_detokenize(CLI::App& program);
Command add_render(CLI::App& program);
Command add_logits(CLI::App& program);
Command add_perplexity(CLI::App& program);
Command add_quantize(CLI::App& program);
Command add_serve(CLI::App& program);
Command add_bench(CLI::App& program);
Command add_agent(CLI::App& program);
// They print what `commands` declare; both arguments must live until they run.
Command add_completion(CLI::App& program, const std::vector<Command>& commands);
Command add_manual(CLI::App& program, const std::vector<Command>& commands);

}  // namespace foretoken::app
