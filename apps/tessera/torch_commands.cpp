#include <tessera/core/error.h>
#include <tessera/launch/local_job.h>

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tessera/torch_commands.h"

namespace tessera::app {
namespace {

struct TorchCommand {
  const char* name;
  const char* help;
};
constexpr std::array kTorchCommands = {
    TorchCommand{"bench", "Measure this machine"},
    TorchCommand{"reference", "Print the reference of an options type as Markdown"},
};
constexpr TorchCommand kPlanCommand{"layout", "Check how ranks share a model, before a process starts"};

}  // namespace

bool is_torch_command(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return false;
  if (arguments[0] == "plan") return arguments.size() > 1 && arguments[1] == kPlanCommand.name;
  return std::any_of(kTorchCommands.begin(), kTorchCommands.end(),
                     [&](const TorchCommand& command) { return arguments[0] == command.name; });
}

void add_torch_commands(CLI::App& app) {
  for (const TorchCommand& command : kTorchCommands) app.add_subcommand(command.name, command.help);
  app.get_subcommand("plan")->add_subcommand(kPlanCommand.name, kPlanCommand.help);
}

void exec_torch_command(const std::vector<std::string>& arguments) {
  const std::string program = std::filesystem::path(launch::own_path()).parent_path() / "tessera-torch";
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv(program.c_str(), pointers.data());
  throw ConfigError("\"tessera " + arguments[0] + "\" is a command of " + program + ", which cannot be started: " +
                    std::strerror(errno) + "; build or install it (target tessera_app)");
}

}  // namespace tessera::app
