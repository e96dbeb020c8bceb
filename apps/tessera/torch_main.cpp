// tessera-torch: the commands that need LibTorch. `tessera` starts this program, and itself starts in milliseconds.
#include <tessera/core/error.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "tessera/commands.h"

int main(int argc, char** argv) {
  CLI::App app("Distributed training for C++ on LibTorch", "tessera");
  app.require_subcommand(1);
  CLI::App& bench = *app.add_subcommand("bench", "Measure this machine");
  bench.require_subcommand(1);
  tessera::app::add_bench_comm(bench);
  tessera::app::add_bench_all_reduce(bench);
  tessera::app::add_bench_mesh(bench);
  CLI::App& plan = *app.add_subcommand("plan", "What a job will do, before it runs");
  plan.require_subcommand(1);
  tessera::app::add_plan_layout(plan);
  tessera::app::add_facts(app);
  tessera::app::add_reference(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : tessera::app::kUsageExitCode;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera: %s\n", error.what());
    return tessera::exit_code(error);
  }
  return 0;
}
