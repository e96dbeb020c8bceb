// Compiled and linked where there is no GPU; not yet run on one.
#include <tessera/core/error.h>

#include <ATen/cuda/CUDAContext.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "comm/nccl/connect_nccl.h"

namespace tessera::comm {

bool has_nccl() { return true; }

Connection connect_nccl(const ConnectRequest& request, int local_rank) {
  const int num_devices = static_cast<int>(at::cuda::device_count());
  if (local_rank >= num_devices) {
    throw ConfigError("local rank " + std::to_string(local_rank) + " has no GPU: this node shows " +
                      std::to_string(num_devices) + "; start fewer ranks on it, or choose another backend");
  }
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = request.timeout;
  Connection connection;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.rank, request.size, options);
  backend->setBoundDeviceId(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank)));
  connection.backend = backend;
  connection.is_zero_copy = [](const void*, std::size_t) { return true; };
  return connection;
}

}  // namespace tessera::comm
