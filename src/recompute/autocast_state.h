#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <vector>

namespace tessera::recompute {

/// What autocast does on a thread, for the CPU and the machine's accelerator.
class AutocastState {
 public:
  /// That of this thread.
  static AutocastState now();
  void set() const;

 private:
  struct OfDevice {
    c10::DeviceType device;
    bool enabled;
    c10::ScalarType dtype;
  };
  std::vector<OfDevice> devices_;
  bool cache_enabled_ = true;
};

/// Gives this thread a state, and at the end the one that it had.
class AutocastScope {
 public:
  explicit AutocastScope(const AutocastState& state);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  AutocastState before_;
};

}  // namespace tessera::recompute
