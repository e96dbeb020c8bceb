// Compiled and linked where there is no GPU; not yet run on one.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "comm/nccl/connect_nccl.h"

namespace tessera::comm {

bool has_nccl() { return true; }

c10::intrusive_ptr<c10d::Backend> connect_nccl(const DeviceGroup& group) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = group.timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(group.store, group.rank, group.size, options);
  backend->setBoundDeviceId(group.device);
  return backend;
}

}  // namespace tessera::comm
