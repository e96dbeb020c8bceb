#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace tessera::app {

/// Whether these are words of a command of tessera-torch.
bool is_torch_command(const std::vector<std::string>& arguments);

/// Lists those commands in the help of `app`, those of `plan` after it has been added.
void add_torch_commands(CLI::App& app);

/// Becomes tessera-torch, which lies beside this executable. Throws ConfigError when it cannot be started.
[[noreturn]] void exec_torch_command(const std::vector<std::string>& arguments);

}  // namespace tessera::app
