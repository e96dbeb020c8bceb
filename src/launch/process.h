#pragma once

#include <sys/types.h>

#include <string>
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

/// Signals are unblocked in the process, and SIGPIPE is as by default.
/// Blocks: until the program runs or is known not to.
/// Throws CommError when the system has no more processes or descriptors.
Started start_process(const ProcessSpec& spec);

/// What a shell says: the exit code, or 128 + the signal.
int exit_code_of(int wait_status);

}  // namespace tessera::launch
