#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>

namespace tessera::testing::sim {

/// On the current device and stream.
c10::Allocator* device_allocator();
at::HostAllocator* pinned_allocator();

}  // namespace tessera::testing::sim
