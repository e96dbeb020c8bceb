#include <tessera/comm/device_backends.h>
#include <tessera/core/error.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <map>
#include <mutex>
#include <utility>

#include "comm/nccl/connect_nccl.h"

namespace tessera::comm {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<c10::DeviceType, DeviceBackend> backends{{c10::DeviceType::CUDA, connect_nccl}};
};

Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

}  // namespace

void register_device_backend(c10::DeviceType type, DeviceBackend connect) {
  const std::lock_guard lock(registry().mutex);
  registry().backends[type] = std::move(connect);
}

c10::intrusive_ptr<c10d::Backend> connect_device(const DeviceGroup& group) {
  DeviceBackend connect;
  {
    const std::lock_guard lock(registry().mutex);
    const auto found = registry().backends.find(group.device.type());
    if (found != registry().backends.end()) connect = found->second;
  }
  if (!connect) {
    throw ConfigError("nothing carries tensors on " + group.device.str() + " between ranks, as group " + group.name +
                      " is asked to: NCCL does on CUDA's devices. Move them to the CPU");
  }
  return connect(group);
}

}  // namespace tessera::comm
