#include "launch/front.h"

#include <tessera/core/descriptor.h>
#include <tessera/core/error.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include "launch/descendants.h"
#include "launch/exit_meaning.h"
#include "launch/process.h"
#include "launch/signals.h"
#include "launch/supervisor.h"

namespace tessera::launch {
namespace {

/// Pipes that took the numbers of closed standard streams would be mistaken for them.
void open_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) open("/dev/null", O_RDWR);
  }
}

[[noreturn]] void supervise(const RunPlan& plan, Descriptor front) {
  int code = 0;
  try {
    // Away from the terminal: Ctrl-C reaches the front alone, which passes it on once.
    setsid();
    adopt_orphans();
    code = Supervisor(plan, std::move(front)).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera: %s\n", error.what());
    code = exit_code(error);
    kill_descendants();
  }
  _exit(code);
}

/// Stops the ranks before itself; what the shell then shows as stopped is.
void stop_with_ranks(pid_t supervisor) {
  kill(supervisor, SIGTSTP);
  raise(SIGSTOP);
}

/// Passes signals on until the supervisor has ended. Returns how it did.
int stand_in_for(pid_t supervisor, const SignalReader& signals) {
  int status = 0;
  while (true) {
    pollfd entry{signals.descriptor(), POLLIN, 0};
    poll(&entry, 1, -1);
    while (const auto signal = signals.next()) {
      if (*signal == SIGTSTP) {
        stop_with_ranks(supervisor);
      } else if (*signal != SIGCHLD) {
        kill(supervisor, *signal);
      }
    }
    if (waitpid(supervisor, &status, WNOHANG) == supervisor) return status;
  }
}

}  // namespace

int run_behind_front(const RunPlan& plan) {
  open_standard_streams();
  std::vector<int> passed_on = ending_signals();
  passed_on.insert(passed_on.end(), {SIGCHLD, SIGTSTP, SIGCONT});
  const SignalReader signals(passed_on);
  adopt_orphans();
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw CommError(std::string("no pipe can be made: ") + std::strerror(errno));
  Descriptor watched(ends[0]);
  Descriptor held(ends[1]);
  const pid_t supervisor = fork();
  if (supervisor == 0) {
    held.reset();
    supervise(plan, std::move(watched));
  }
  if (supervisor < 0) throw CommError(std::string("no process can be started: ") + std::strerror(errno));
  watched.reset();
  const int status = stand_in_for(supervisor, signals);
  if (WIFSIGNALED(status)) {
    std::fprintf(stderr, "tessera run: the supervisor (pid %d) %s; ending all ranks\n", supervisor,
                 exit_meaning(status).c_str());
  }
  kill_descendants();
  return exit_code_of(status);
}

}  // namespace tessera::launch
