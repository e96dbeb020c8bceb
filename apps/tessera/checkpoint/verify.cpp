// tessera checkpoint verify: reads every byte of the steps, and names what is damaged.
#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/error.h>
#include <tessera/observe/transfer_line.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint_commands.h"
#include "tessera/checkpoint/printed.h"
#include "tessera/checkpoint/step_choice.h"

namespace tessera::app {
namespace {

/// Returns whether a step is intact, and prints what was found.
bool verify_step(const std::filesystem::path& folder) {
  const std::string title = step_title(folder);
  std::vector<std::string> faults;
  std::string size;
  try {
    const SavedStep step(folder);
    size = size_text(step.num_bytes()) + " in " + counted(step.manifest().files.size(), "file");
    const auto count = std::make_shared<ByteCount>();
    count->total = step.num_bytes();
    const observe::TransferLine line(observe::process_terminal(true), "verifying " + title, count);
    faults = step.verify([&](std::uint64_t done) { count->done = done; });
  } catch (const StorageError& error) {
    faults.emplace_back(error.what());
  }
  if (faults.empty()) {
    std::printf("%s: intact, %s\n", title.c_str(), size.c_str());
    return true;
  }
  std::printf("%s: DAMAGED\n", title.c_str());
  for (const std::string& fault : faults) std::printf("  %s\n", fault.c_str());
  return false;
}

int run_verify(const std::filesystem::path& path) {
  const auto steps = chosen_steps(path);
  std::size_t num_damaged = 0;
  for (const auto& step : steps) {
    num_damaged += verify_step(step) ? 0 : 1;
    std::fflush(stdout);
  }
  if (steps.size() > 1) {
    std::printf("%s: %zu intact, %zu damaged\n", counted(steps.size(), "step").c_str(), steps.size() - num_damaged,
                num_damaged);
  }
  return num_damaged == 0 ? 0 : 1;
}

}  // namespace

void add_checkpoint_verify(CLI::App& checkpoint, int& exit_code) {
  CLI::App& command = *checkpoint.add_subcommand(
      "verify", "Read all of a step, or of every step in a folder, and name what is damaged; exits with 1 then");
  const auto path = std::make_shared<std::string>();
  command.add_option("DIR", *path, "A step (step-00000020), or the folder with all of them")->required();
  command.callback([path, &exit_code] { exit_code = run_verify(*path); });
}

}  // namespace tessera::app
