// tessera checkpoint verify: reads every byte of the steps, and names what is damaged.
#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/error.h>

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint_commands.h"
#include "tessera/checkpoint/printed.h"
#include "tessera/checkpoint/step_choice.h"

namespace tessera::app {
namespace {

/// A line on standard error that is drawn again and again, when that is a terminal.
class ProgressLine {
 public:
  ProgressLine(std::string title, std::uint64_t total) : title_(std::move(title)), total_(total) {}
  ~ProgressLine() {
    if (drawn_) std::fputs("\r\033[K", stderr);
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(std::uint64_t done) {
    constexpr auto kPause = std::chrono::milliseconds(100);
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || now < next_) return;
    next_ = now + kPause;
    drawn_ = true;
    const double share = total_ == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total_);
    std::fprintf(stderr, "\r%s: %3.0f%% of %s\033[K", title_.c_str(), 100 * share, size_text(total_).c_str());
    std::fflush(stderr);
  }

 private:
  std::string title_;
  std::uint64_t total_;
  bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now();
};

/// Whether a step is intact; prints what was found.
bool verify_step(const std::filesystem::path& folder) {
  const std::string title = step_title(folder);
  std::vector<std::string> faults;
  std::string size;
  try {
    const SavedStep step(folder);
    size = size_text(step.num_bytes()) + " in " + counted(step.manifest().files.size(), "file");
    ProgressLine line(title, step.num_bytes());
    faults = step.verify([&](std::uint64_t done) { line.show(done); });
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
