#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace tessera::app {

/// The program that `tessera run` starts, and the exit code of the command.
struct RunCommand {
  std::vector<std::string> program;
  int exit_code = 0;
};

/// `command` outlives `app`.
void add_run(CLI::App& app, RunCommand& command);

/// Moves the program and its arguments out of a command line of `tessera run`, so that none of them is mistaken for a
/// flag of the launcher. They begin after `--`, or with the first word that is neither a flag nor a flag's value. In
/// the remaining flags, underscores become dashes, because torchrun accepts both.
void take_program(const CLI::App& app, std::vector<std::string>& arguments, RunCommand& command);

}  // namespace tessera::app
