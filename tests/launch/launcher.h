#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace tessera::testing {

/// Whether `holds` becomes true in time.
bool eventually(const std::function<bool()>& holds, std::chrono::milliseconds timeout = std::chrono::seconds(20));

/// SIGSTOP, and waits until it acts: a process that waits for a core goes on until it gets one.
void stop_process(pid_t process);

/// A real `tessera run` with these arguments, its standard streams in files. All that it starts carries a mark in its
/// environment, by which it is found wherever it hides. What still runs at the end is killed.
class Launcher {
 public:
  /// `wrapper` is a command that becomes the launcher, such as `ip netns exec`.
  explicit Launcher(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& variables = {},
                    const std::vector<std::string>& wrapper = {});
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  pid_t front() const { return front_; }
  /// The process that does the work.
  pid_t supervisor() const;
  void send(int signal) const;

  /// The exit code; -1, and a failure of the test, when it does not end in time.
  int wait(std::chrono::milliseconds timeout = std::chrono::seconds(30));
  bool wait_for_output(const std::string& text) const;

  std::string output() const { return text_of_file(folder_.path() / "stdout"); }
  std::string errors() const { return text_of_file(folder_.path() / "stderr"); }
  std::vector<std::string> output_lines() const;  ///< sorted: ranks write in any order
  /// A folder of this run; ranks find it in TEST_FOLDER.
  std::string file(const std::string& name) const { return folder_.file(name); }

  /// All processes that belong to this run, wherever they are.
  std::vector<pid_t> processes() const;
  /// Fails the test when some are left after a while.
  void expect_no_processes() const;

 private:
  TemporaryFolder folder_;
  std::string mark_;
  pid_t front_ = -1;
  bool ended_ = false;
};

/// The arguments that run `script` by a shell on `num_ranks` ranks.
std::vector<std::string> shell_ranks(int num_ranks, const std::string& script, std::vector<std::string> options = {});

}  // namespace tessera::testing
