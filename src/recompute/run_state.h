#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace tessera::recomputation {

/// The states of LibTorch's default generators: of the CPU, of the accelerators that some tensors are on, and of the
/// thread's current accelerator.
class RandomState {
 public:
  static RandomState now(const std::vector<at::Tensor>& tensors);
  /// The present state of the same generators.
  RandomState now() const;
  void set() const;
  /// Equal for equal states. Kept instead of a state that is only compared.
  std::size_t hash() const;

 private:
  struct OfGenerator {
    at::Generator generator;
    at::Tensor state;
  };
  std::vector<OfGenerator> generators_;
};

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
