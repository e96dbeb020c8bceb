// tessera doctor: whether this machine is ready for training, and what to change.
#include <tessera/launch/local_job.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "tessera/commands.h"
#include "tessera/doctor/checks.h"
#include "tessera/doctor/print.h"

namespace tessera::app {

void add_doctor(CLI::App& app, int& exit_code) {
  CLI::App& command = *app.add_subcommand("doctor", "Tell whether this machine is ready, and what to change");
  const auto as_json = std::make_shared<bool>(false);
  command.add_flag("--json", *as_json, "Print JSON");
  command.callback([as_json, &exit_code] {
    const std::string torch_program = std::filesystem::path(launch::own_path()).parent_path() / "tessera-torch";
    const doctor::Checks checks = doctor::check_machine(torch_program);
    const std::string text = *as_json ? doctor::to_json(checks) : doctor::to_text(checks);
    std::fputs(text.c_str(), stdout);
    exit_code = doctor::is_ready(checks) ? 0 : 1;
  });
}

}  // namespace tessera::app
