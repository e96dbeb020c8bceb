#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::intercept {

/// The thread's current accelerator, if the process has begun to use it: to ask a device for its generator is to begin.
std::optional<at::Device> accelerator_in_use();

/// The states of some of LibTorch's default generators, which all threads of the process share.
class RandomState {
 public:
  /// Of the CPU and of this device.
  static RandomState now(at::Device device);
  /// Of the CPU, of the accelerators that some tensors are on, and of the thread's current accelerator.
  static RandomState now(const std::vector<at::Tensor>& tensors);
  /// The present state of the same generators.
  RandomState now() const;
  void restore() const;
  bool operator==(const RandomState& other) const;
  /// The same for equal states, on every rank. Kept instead of a state that is only compared.
  std::uint64_t digest() const;

 private:
  struct OfGenerator {
    at::Generator generator;
    at::Tensor state;
  };
  static RandomState of(const std::vector<at::Device>& devices);

  std::vector<OfGenerator> generators_;
};

}  // namespace tessera::intercept
