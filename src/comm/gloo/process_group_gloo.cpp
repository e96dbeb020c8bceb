#include "comm/gloo/process_group_gloo.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <net/if.h>

#include "comm/gloo/no_broken_pipe.h"

namespace tessera::comm {

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
