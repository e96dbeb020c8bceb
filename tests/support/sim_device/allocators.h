#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace tessera::testing::sim {

/// On the current device and stream.
c10::DeviceAllocator* device_allocator();
at::HostAllocator* pinned_allocator();

}  // namespace tessera::testing::sim
