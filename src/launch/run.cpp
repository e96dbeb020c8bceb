#include <tessera/core/error.h>
#include <tessera/launch/run.h>

#include <cstdio>

#include "launch/front.h"
#include "launch/program_path.h"
#include "launch/run_plan.h"

namespace tessera::launch {

int run_job(const RunOptions& options, const std::vector<std::string>& command, const PlanBinding& plan_binding) {
  if (command.empty()) throw ConfigError("the program to start is missing: tessera run [options] program [arguments]");
  const ProgramPath program = find_program(command[0]);
  if (program.path.empty()) {
    std::fprintf(stderr, "tessera run: %s\n", program.fault.c_str());
    return program.exit_code;
  }
  RunPlan plan = resolve(options, plan_binding);
  plan.program = program.path;
  plan.arguments = command;
  return run_behind_front(plan);
}

}  // namespace tessera::launch
