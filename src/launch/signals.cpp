#include "launch/signals.h"

#include <tessera/core/error.h>

#include <sys/signalfd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace tessera::launch {

std::vector<int> ending_signals() {
  std::vector<int> signals;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action{};
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) signals.push_back(signal);
  }
  return signals;
}

SignalReader::SignalReader(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  descriptor_ = Descriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor_) throw CommError(std::string("signals cannot be read: ") + std::strerror(errno));
}

std::optional<int> SignalReader::next() const {
  signalfd_siginfo info{};
  if (read(descriptor_.get(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace tessera::launch
