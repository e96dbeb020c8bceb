#pragma once

#include <string>

namespace tessera::launch {

/// The exit codes that shells have for a program that cannot be started.
inline constexpr int kNotExecutableExitCode = 126;
inline constexpr int kNotFoundExitCode = 127;

/// Where a program is, or why it cannot be started.
struct ProgramPath {
  std::string path;  ///< empty when there is a fault
  std::string fault;
  int exit_code = 0;
};

/// As a shell finds it: a name with a slash is a path, any other is searched in PATH.
ProgramPath find_program(const std::string& name);

}  // namespace tessera::launch
