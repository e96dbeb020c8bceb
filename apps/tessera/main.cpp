#include <tessera/core/error.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "tessera/commands.h"
#include "tessera/run.h"
#include "tessera/torch_commands.h"

namespace {

int run(std::vector<std::string> arguments) {
  CLI::App app("Distributed training for C++ on LibTorch", "tessera");
  app.require_subcommand(1);
  tessera::app::RunCommand command;
  tessera::app::add_run(app, command);
  tessera::app::add_secret(app);
  tessera::app::add_doctor(app, command.exit_code);
  tessera::app::add_inspect(app);
  tessera::app::add_data(app);
  tessera::app::add_checkpoint(app, command.exit_code);
  tessera::app::add_trace(app);
  tessera::app::add_plan(app);
  tessera::app::add_torch_commands(app);
  tessera::app::take_program(app, arguments, command);
  try {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : tessera::app::kUsageExitCode;
  }
  return command.exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (tessera::app::is_torch_command(arguments)) tessera::app::exec_torch_command(arguments);
    return run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera: %s\n", error.what());
    return tessera::exit_code(error);
  }
}
