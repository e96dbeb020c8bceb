#pragma once

#include <tessera/observe/step_record.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace tessera::observe {

/// A place in what a stream of a device was given to do.
/// Thread-safety: all functions.
class DeviceMark {
 public:
  DeviceMark() = default;
  virtual ~DeviceMark() = default;
  DeviceMark(const DeviceMark&) = delete;
  DeviceMark& operator=(const DeviceMark&) = delete;

  /// Whether the stream has come there, or never will because the device failed. Does not wait and does not throw.
  virtual bool is_over() = 0;
  /// When, by flight::now_ns(). Nothing before `is_over()`, and when the device failed.
  virtual std::optional<std::int64_t> time_ns() = 0;
  /// The number of the stream. The default one of a device has the number 0.
  virtual std::int64_t stream() const = 0;
};

/// The accelerator that a rank trains on, as far as an Observer asks it. `tessera::make_observer()` makes one, since
/// this module knows no LibTorch.
/// Thread-safety: all functions.
class ObservedDevice {
 public:
  ObservedDevice() = default;
  virtual ~ObservedDevice() = default;
  ObservedDevice(const ObservedDevice&) = delete;
  ObservedDevice& operator=(const ObservedDevice&) = delete;

  /// Behind everything that the calling thread's current stream was given. Does not wait for it, and does not throw:
  /// null when the device failed.
  virtual std::shared_ptr<DeviceMark> mark() = 0;
  /// On the stream of `begin`, so that the two enclose what that stream did.
  virtual std::shared_ptr<DeviceMark> mark_behind(const DeviceMark& begin) = 0;
  /// Nothing when the device does not tell.
  virtual std::optional<DeviceMemory> memory() = 0;
  /// Compares the device's clock with the host's, for times from now on. Blocks: until the current stream is done.
  virtual void compare_clocks() = 0;
};

}  // namespace tessera::observe
