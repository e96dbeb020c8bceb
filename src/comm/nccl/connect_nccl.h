#pragma once

#include <tessera/comm/device_backends.h>

namespace tessera::comm {

/// Whether this build can use NCCL.
bool has_nccl();

c10::intrusive_ptr<c10d::Backend> connect_nccl(const DeviceGroup& group);

}  // namespace tessera::comm
