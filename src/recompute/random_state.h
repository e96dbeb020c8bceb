#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace tessera::recompute {

/// The states of LibTorch's default generators: of the CPU, of the accelerators that some tensors are on, and of the
/// thread's current accelerator.
class RandomState {
 public:
  static RandomState now(const std::vector<at::Tensor>& tensors);
  /// Of the same generators.
  RandomState now() const;
  void set() const;
  /// Equal for equal states; takes the place of one that is only to be compared.
  std::size_t hash() const;

 private:
  struct OfGenerator {
    at::Generator generator;
    at::Tensor state;
  };
  std::vector<OfGenerator> generators_;
};

/// Gives the generators a state, and at the end the one that they had. Without a state it does nothing.
class RandomScope {
 public:
  explicit RandomScope(const std::optional<RandomState>& state);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  std::optional<RandomState> before_;
};

}  // namespace tessera::recompute
