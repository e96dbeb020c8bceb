#pragma once

// One function a subcommand: it adds itself to its parent and runs from CLI11's callback.
namespace CLI {
class App;
}  // namespace CLI

namespace tessera::app {

/// For a command line that cannot be parsed. CLI11's own codes differ by reason.
inline constexpr int kUsageExitCode = 2;

void add_bench_comm(CLI::App& bench);
void add_bench_all_reduce(CLI::App& bench);
void add_bench_mesh(CLI::App& bench);
/// Sets `exit_code`, which outlives `app`, when a checkpoint is damaged.
void add_checkpoint(CLI::App& app, int& exit_code);
void add_data(CLI::App& app);
/// Sets `exit_code`, which outlives `app`, when something fails.
void add_doctor(CLI::App& app, int& exit_code);
void add_facts(CLI::App& app);
void add_inspect(CLI::App& app);
void add_plan(CLI::App& app);
void add_plan_layout(CLI::App& plan);
void add_reference(CLI::App& app);
void add_secret(CLI::App& app);
void add_trace(CLI::App& app);

}  // namespace tessera::app
