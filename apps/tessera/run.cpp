// tessera run: the launcher.
#include <tessera/launch/run.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>

#include "tessera/cpu_binding.h"
#include "tessera/option_flags.h"
#include "tessera/run.h"

namespace tessera::app {
namespace {

/// "--log_dir=a_b" to "--log-dir=a_b".
std::string with_dashes(std::string flag) {
  const auto name_end = std::find(flag.begin(), flag.end(), '=');
  std::replace(flag.begin(), name_end, '_', '-');
  return flag;
}

bool takes_next_word(const CLI::App& run, const std::string& flag) {
  if (flag.find('=') != std::string::npos) return false;
  const CLI::Option* option = run.get_option_no_throw(flag);
  return option != nullptr && option->get_items_expected_max() > 0;
}

/// take_program() removes the program before CLI11 parses the command line, so CLI11 would not show it in the usage.
class RunHelp : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: tessera run [OPTIONS] [--] PROGRAM [ARGUMENTS...]\n\n";
  }
};

}  // namespace

void add_run(CLI::App& app, RunCommand& command) {
  CLI::App& run = *app.add_subcommand("run", "Start a program as the ranks of a job on this machine");
  run.formatter(std::make_shared<RunHelp>());
  const OptionFlags<RunOptions> flags(run);
  run.callback([flags, &command] {
    const RunOptions options = flags.resolve();
    command.exit_code = launch::run_job(options, command.program, plan_binding);
  });
}

void take_program(const CLI::App& app, std::vector<std::string>& arguments, RunCommand& command) {
  if (arguments.empty() || arguments[0] != "run") return;
  const CLI::App& run = *app.get_subcommand("run");
  std::size_t next = 1;
  while (next < arguments.size() && arguments[next].starts_with("-") && arguments[next] != "--") {
    arguments[next] = with_dashes(arguments[next]);
    next += takes_next_word(run, arguments[next]) ? 2 : 1;
  }
  next = std::min(next, arguments.size());
  const bool marked = next < arguments.size() && arguments[next] == "--";
  const auto flags_end = arguments.begin() + static_cast<std::ptrdiff_t>(next);
  command.program.assign(flags_end + (marked ? 1 : 0), arguments.end());
  arguments.erase(flags_end, arguments.end());
}

}  // namespace tessera::app
