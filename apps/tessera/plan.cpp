// tessera plan: what a job will do, before it runs.
#include <CLI/CLI.hpp>

#include "tessera/commands.h"
#include "tessera/plan/plan_commands.h"

namespace tessera::app {

void add_plan(CLI::App& app) {
  CLI::App& plan = *app.add_subcommand("plan", "What a job will do, before it runs");
  plan.require_subcommand(1);
  add_plan_schedule(plan);
}

}  // namespace tessera::app
