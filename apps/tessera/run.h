#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace tessera::app {

/// What `tessera run` starts, and how that ended.
struct RunCommand {
  std::vector<std::string> program;
  int exit_code = 0;
};

/// `command` outlives `app`.
void add_run(CLI::App& app, RunCommand& command);

/// Moves the program and its arguments out of a command line of `tessera run`, so that none of them is mistaken for a
/// flag of the launcher's: all from `--`, or from the first word that is neither a flag nor a flag's value. In the
/// flags that stay, underscores become dashes, because torchrun takes both.
void take_program(const CLI::App& app, std::vector<std::string>& arguments, RunCommand& command);

}  // namespace tessera::app
