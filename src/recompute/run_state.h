#pragma once

#include <tessera/intercept/random_state.h>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <vector>

namespace tessera::recomputation {

using intercept::RandomState;

/// Sets the generators to a state, and at its end restores the former one. Without a state it does nothing.
class RandomScope {
 public:
  explicit RandomScope(const std::optional<RandomState>& state);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  std::optional<RandomState> before_;
};

/// The autocast settings of a thread, for the CPU and the machine's accelerator.
class AutocastState {
 public:
  /// The settings of this thread.
  static AutocastState now();
  void set() const;
  bool operator==(const AutocastState& other) const = default;

 private:
  struct OfDevice {
    c10::DeviceType device;
    bool enabled;
    c10::ScalarType dtype;
    bool operator==(const OfDevice& other) const = default;
  };
  std::vector<OfDevice> devices_;
  bool cache_enabled_ = true;
};

/// Sets the autocast settings of this thread, and at its end restores the former ones.
class AutocastScope {
 public:
  explicit AutocastScope(const AutocastState& state);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  AutocastState before_;
};

}  // namespace tessera::recomputation
