#pragma once

#include <tessera/core/descriptor.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace tessera::launch {

/// A process to start. Descriptors that are -1 are inherited.
struct ProcessSpec {
  std::string program;  ///< a path: nothing is searched
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  int input = -1;
  int output = -1;
  int error = -1;
  std::vector<int> cpus;          ///< those it may use; empty: the caller's
  bool own_group = false;         ///< leads a process group of its own
  bool dies_with_caller = false;  ///< is killed when the calling thread ends
};

/// How starting a process ended: its id, or the fault.
struct Started {
  pid_t process = -1;
  int fault = 0;  ///< an errno
};

/// In the new process no signal is blocked, and SIGPIPE has its default action.
/// Blocks: until the program runs or has failed to start.
/// Throws CommError when the system has no more processes or descriptors.
Started start_process(const ProcessSpec& spec);

/// As a shell reports it: the exit code, or 128 + the signal.
int exit_code_of(int wait_status);

/// "SIGSEGV"; "signal 99" for one without a name.
std::string signal_name(int signal);

/// How a process ended, for people: "was ended by SIGSEGV (Segmentation fault)", "exited with code 3 (...)".
std::string exit_meaning(int wait_status);

/// The signals that ask the launcher to end: SIGINT, SIGTERM and SIGHUP, except those that the launcher's own parent
/// has set to be ignored, as nohup does.
std::vector<int> ending_signals();

/// Makes signals readable from a descriptor. They are blocked for this process, and for its children until they unblock
/// them.
class SignalReader {
 public:
  explicit SignalReader(const std::vector<int>& signals);

  int descriptor() const { return descriptor_.get(); }
  /// The next signal that has arrived, if any.
  std::optional<int> next() const;

 private:
  Descriptor descriptor_;
};

using Environment = std::map<std::string, std::string>;

/// That of this process.
Environment current_environment();

/// As NAME=VALUE, for exec.
std::vector<std::string> entries_of(const Environment& environment);

/// The place of a rank in its job, and where it meets the others.
struct RankPlace {
  int rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
};

/// Sets the variables from which a rank learns its place, the same with every launcher.
void set_place(Environment& environment, const RankPlace& place);

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

/// Makes this process the new parent of all its descendants whose parent ends, whatever session or group they are in.
void adopt_orphans();

/// All processes below this one, zombies left out.
std::vector<pid_t> descendants();

/// Kills every descendant and reaps it. Requires: adopt_orphans().
/// Blocks: until none is left or the time has passed. Returns those that would not die.
std::vector<pid_t> kill_descendants(std::chrono::milliseconds timeout = std::chrono::seconds(10));

}  // namespace tessera::launch
