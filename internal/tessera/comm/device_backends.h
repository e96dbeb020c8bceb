#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace tessera::comm {

/// A group of ranks whose tensors lie on devices, one of each rank.
struct DeviceGroup {
  std::string name;
  int rank = 0;
  int size = 1;
  c10::Device device{c10::kCPU};          ///< of this rank
  c10::intrusive_ptr<c10d::Store> store;  ///< for this group's devices alone
  std::chrono::milliseconds timeout{0};
  /// Connects the same ranks once more, for tensors of the CPU. Collective.
  std::function<c10::intrusive_ptr<c10d::Backend>()> connect_cpu;
};

using DeviceBackend = std::function<c10::intrusive_ptr<c10d::Backend>(const DeviceGroup&)>;

/// What carries tensors on devices of this kind between ranks, in the place of what there was. CUDA's is NCCL, where
/// the build has it. A call of such a backend returns at once, and `wait()` lets the current stream wait, not the host.
void register_device_backend(c10::DeviceType type, DeviceBackend connect);

/// Throws ConfigError where nothing carries them. Collective.
c10::intrusive_ptr<c10d::Backend> connect_device(const DeviceGroup& group);

}  // namespace tessera::comm
