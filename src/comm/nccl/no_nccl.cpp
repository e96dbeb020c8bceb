#include <tessera/core/error.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/nccl/connect_nccl.h"

namespace tessera::comm {

bool has_nccl() { return false; }

c10::intrusive_ptr<c10d::Backend> connect_nccl(const DeviceGroup& /*group*/) {
  throw ConfigError(
      "this build has no NCCL, which carries tensors on GPUs: configure the `cuda` preset against the CUDA build of "
      "LibTorch, or move them to the CPU");
}

}  // namespace tessera::comm
