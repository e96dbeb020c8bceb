#include "launch/exit_meaning.h"

#include <sys/wait.h>

#include <csignal>
#include <cstring>

#include "launch/program_path.h"

namespace tessera::launch {
namespace {

std::string signal_text(int signal) {
  std::string text = signal_name(signal) + " (" + strsignal(signal) + ")";
  if (signal == SIGKILL) text += "; the kernel does that when memory runs out, see dmesg";
  return text;
}

/// What programs mean by their codes; empty where nothing is agreed on.
std::string code_meaning(int code) {
  switch (code) {
    case 2:
      return "tessera::ConfigError: a wrong option, shape or layout";
    case 3:
      return "tessera::CommError: a peer, a connection or a deadline failed";
    case 4:
      return "tessera::StorageError: a file or a disk failed";
    case 70:
      return "tessera::InternalError: a fault of Tessera's own";
    case kNotExecutableExitCode:
      return "a shell's: the program cannot be executed";
    case kNotFoundExitCode:
      return "a shell's: the program was not found";
    default:
      return code > 128 && code < 128 + NSIG ? "128 + " + signal_text(code - 128) : "";
  }
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? "signal " + std::to_string(signal) : std::string("SIG") + name;
}

std::string exit_meaning(int wait_status) {
  if (WIFSIGNALED(wait_status)) return "was ended by " + signal_text(WTERMSIG(wait_status));
  const int code = WEXITSTATUS(wait_status);
  const std::string meaning = code_meaning(code);
  return "exited with code " + std::to_string(code) + (meaning.empty() ? "" : " (" + meaning + ")");
}

}  // namespace tessera::launch
