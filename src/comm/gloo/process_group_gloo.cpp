#include "comm/gloo/process_group_gloo.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ctime>
#include <net/if.h>

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
  if (sigismember(&former_, SIGPIPE) == 1) return;  // blocked before by the caller, who handles it
  const sigset_t signals = broken_pipe();
  const timespec at_once{};
  sigtimedwait(&signals, nullptr, &at_once);  // else a pending one would be delivered once it is unblocked
  pthread_sigmask(SIG_SETMASK, &former_, nullptr);
}

c10::intrusive_ptr<c10d::Backend> make_process_group_gloo(const ConnectRequest& request, const std::string& host) {
  using Gloo = c10d::ProcessGroupGloo;
  const NoBrokenPipe threads_of_gloo;
  auto options = Gloo::Options::create(request.timeout);
  if (host.empty()) {
    options->devices.push_back(Gloo::createDefaultDevice());
  } else if (if_nametoindex(host.c_str()) != 0) {
    options->devices.push_back(Gloo::createDeviceForInterface(host));
  } else {
    options->devices.push_back(Gloo::createDeviceForHostname(host));
  }
  return c10::make_intrusive<Gloo>(request.store, request.rank, request.size, options);
}

}  // namespace tessera::comm
