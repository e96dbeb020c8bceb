#pragma once

#include <tessera/observe/observed_device.h>

#include <c10/core/Device.h>

#include <memory>
#include <optional>

namespace tessera::comm {

/// The calling thread's current device, if the process uses it by now. Nothing where there is none, or none in use:
/// events would make a context on it, which takes hundreds of megabytes of a GPU.
std::optional<c10::Device> device_in_use();

/// What an observer asks of a device: time by LibTorch's events, memory by its allocator.
/// Blocks: until the current stream is done, since it compares clocks. Throws ConfigError for a device without events
/// that measure time.
std::shared_ptr<observe::ObservedDevice> make_event_device(const c10::Device& device);

}  // namespace tessera::comm
