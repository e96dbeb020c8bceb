#include "launch/front.h"

#include <tessera/core/descriptor.h>
#include <tessera/core/error.h>
#include <tessera/launch/run.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "launch/process.h"
#include "launch/run_plan.h"
#include "launch/supervisor.h"

namespace tessera::launch {
namespace {

/// Opens standard streams that are closed. Otherwise a pipe would get the number of one, and be mistaken for it.
void open_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) open("/dev/null", O_RDWR);
  }
}

[[noreturn]] void supervise(const RunPlan& plan, Descriptor front) {
  int code = 0;
  try {
    // Leaves the terminal, so that Ctrl-C reaches the front alone, which passes it on once.
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

/// Stops the ranks before itself, so that the job is stopped when the shell shows it as stopped.
void stop_with_ranks(pid_t supervisor) {
  kill(supervisor, SIGTSTP);
  raise(SIGSTOP);
}

/// Passes signals on until the supervisor has ended. Returns its wait status.
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
