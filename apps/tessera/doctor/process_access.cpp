// Whether processes of one user can open each other's files through /proc. This is how ranks open the memory of their
// launcher and of each other.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/doctor/checks.h"
#include "tessera/doctor/system_file.h"

namespace tessera::doctor {
namespace {

/// The errno of a child that opens a file of this process, as ranks open their launcher's; 0 when it can.
int fault_of_child() {
  const int file = memfd_create("tessera_doctor", MFD_CLOEXEC);
  if (file < 0) return errno;
  const std::string path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
  const pid_t child = fork();
  if (child == 0) _exit(open(path.c_str(), O_RDWR) >= 0 ? 0 : errno);
  int status = 0;
  const bool ended = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status);
  close(file);
  return ended ? WEXITSTATUS(status) : EAGAIN;
}

Check open_files_of_others() {
  const int fault = fault_of_child();
  if (fault == 0) return {"/proc/PID/fd", Health::kOk, "own processes see each other", ""};
  return {"/proc/PID/fd", Health::kFail,
          std::string("a process cannot open its parent's file: ") + std::strerror(fault),
          "mount /proc without hidepid, and let the container use it; shared memory and black boxes need it"};
}

Check tracing(const std::filesystem::path& root) {
  const std::string scope = first_line(root / "proc/sys/kernel/yama/ptrace_scope");
  Check check{"debuggers", Health::kOk, scope.empty() ? "not restricted" : "ptrace_scope " + scope, ""};
  if (scope != "2" && scope != "3") return check;
  check.health = Health::kWarn;
  check.advice = "as root: echo 1 > /proc/sys/kernel/yama/ptrace_scope, to look into ranks that hang";
  return check;
}

}  // namespace

Checks check_process_access(const std::filesystem::path& root) { return {open_files_of_others(), tracing(root)}; }

}  // namespace tessera::doctor
