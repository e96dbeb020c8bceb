#include "comm/gloo/no_broken_pipe.h"

#include <ctime>

namespace tessera::comm {
namespace {

sigset_t broken_pipe() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  return signals;
}

}  // namespace

NoBrokenPipe::NoBrokenPipe() {
  const sigset_t signals = broken_pipe();
  pthread_sigmask(SIG_BLOCK, &signals, &former_);
}

NoBrokenPipe::~NoBrokenPipe() {
  if (sigismember(&former_, SIGPIPE) == 1) return;  // it was blocked before, and whoever did that takes it
  const sigset_t signals = broken_pipe();
  const timespec at_once{};
  sigtimedwait(&signals, nullptr, &at_once);  // else it would come as soon as it may
  pthread_sigmask(SIG_SETMASK, &former_, nullptr);
}

}  // namespace tessera::comm
