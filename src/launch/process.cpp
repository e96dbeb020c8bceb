#include "launch/process.h"

#include <tessera/core/descriptor.h>
#include <tessera/core/error.h>

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>

namespace tessera::launch {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (auto& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// The kernel's form of a set of processors: cpu_set_t ends at 1024.
std::vector<unsigned long> cpu_mask(const std::vector<int>& cpus) {
  constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;
  std::vector<unsigned long> mask;
  for (const int cpu : cpus) {
    const auto word = static_cast<std::size_t>(cpu / kBits);
    if (word >= mask.size()) mask.resize(word + 1);
    mask[word] |= 1UL << (cpu % kBits);
  }
  return mask;
}

/// Note [Between fork and exec]
/// The caller may have threads, one of which held a lock when the process was copied. So the child makes
/// async-signal-safe calls only, and everything it needs is prepared before.
class Child {
 public:
  Child(const ProcessSpec& spec, int report)
      : spec_(spec),
        argument_texts_(spec.arguments),
        environment_texts_(spec.environment),
        arguments_(pointers(argument_texts_)),
        environment_(pointers(environment_texts_)),
        mask_(cpu_mask(spec.cpus)),
        caller_(getpid()),
        report_(report) {}

  [[noreturn]] void become() {
    if (prepare()) execve(spec_.program.c_str(), arguments_.data(), environment_.data());
    const int fault = errno;
    // Nobody is left to tell when this fails.
    [[maybe_unused]] const ssize_t written = write(report_, &fault, sizeof(fault));
    _exit(127);
  }

 private:
  bool prepare() const {
    if (spec_.own_group && setpgid(0, 0) != 0) return false;
    if (spec_.dies_with_caller) {
      if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return false;
      if (getppid() != caller_) _exit(127);  // it died before it could be watched
    }
    if (!mask_.empty()) {
      const auto* mask = reinterpret_cast<const cpu_set_t*>(mask_.data());
      if (sched_setaffinity(0, mask_.size() * sizeof(unsigned long), mask) != 0) return false;
    }
    if (!move(spec_.input, STDIN_FILENO) || !move(spec_.output, STDOUT_FILENO) || !move(spec_.error, STDERR_FILENO)) {
      return false;
    }
    sigset_t none;
    sigemptyset(&none);
    return signal(SIGPIPE, SIG_DFL) != SIG_ERR && sigprocmask(SIG_SETMASK, &none, nullptr) == 0;
  }

  static bool move(int from, int to) { return from < 0 || dup2(from, to) == to; }

  const ProcessSpec& spec_;
  std::vector<std::string> argument_texts_;
  std::vector<std::string> environment_texts_;
  std::vector<char*> arguments_;
  std::vector<char*> environment_;
  std::vector<unsigned long> mask_;
  pid_t caller_;
  int report_;
};

}  // namespace

Started start_process(const ProcessSpec& spec) {
  std::array<int, 2> report{};
  if (pipe2(report.data(), O_CLOEXEC) != 0)
    throw CommError(std::string("no pipe can be made: ") + std::strerror(errno));
  const Descriptor read_end(report[0]);
  Descriptor write_end(report[1]);
  Child child(spec, write_end.get());
  const pid_t process = fork();
  if (process == 0) child.become();
  if (process < 0) throw CommError("no process can be started for " + spec.program + ": " + std::strerror(errno));
  write_end.reset();
  // The other end closes when the program takes over.
  int fault = 0;
  ssize_t count = 0;
  do {
    count = read(read_end.get(), &fault, sizeof(fault));
  } while (count < 0 && errno == EINTR);
  if (count != static_cast<ssize_t>(sizeof(fault))) return {process, 0};
  waitpid(process, nullptr, 0);
  return {-1, fault};
}

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace tessera::launch
