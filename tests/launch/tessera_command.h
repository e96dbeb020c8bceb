#pragma once

#include <tessera/core/descriptor.h>
#include <fcntl.h>
#include <sys/wait.h>

#include <map>
#include <string>
#include <vector>

#include "launch/process.h"
#include "support/temporary_folder.h"

namespace tessera::testing {

/// A command of `tessera` that runs to its end. Blocks: until it has.
class TesseraCommand {
 public:
  explicit TesseraCommand(const std::vector<std::string>& arguments,
                          const std::map<std::string, std::string>& variables = {},
                          const std::string& program = TESSERA_CLI) {
    const Descriptor output(open(folder_.file("output").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600));
    launch::ProcessSpec spec;
    spec.program = program;
    spec.arguments = {"tessera"};
    spec.arguments.insert(spec.arguments.end(), arguments.begin(), arguments.end());
    auto environment = launch::current_environment();
    for (const auto& [name, value] : variables) environment[name] = value;
    spec.environment = launch::entries_of(environment);
    spec.output = output.get();
    spec.error = output.get();
    int status = 0;
    waitpid(launch::start_process(spec).process, &status, 0);
    exit_code_ = launch::exit_code_of(status);
  }

  int exit_code() const { return exit_code_; }
  /// Standard output and error.
  std::string output() const { return text_of_file(folder_.file("output")); }

 private:
  TemporaryFolder folder_;
  int exit_code_ = -1;
};

}  // namespace tessera::testing
