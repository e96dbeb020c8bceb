#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace tessera::optim {

/// A few numbers that a device computes and that the host learns later, without waiting each time it asks for new ones.
/// Copies are the same numbers. Thread-safety: one thread at a time.
class LateNumbers {
 public:
  /// Begins to copy them to the host, on the current stream of their device. On the CPU they are there at once.
  explicit LateNumbers(at::Tensor numbers);

  const at::Tensor& on_device() const;
  /// Whether values() returns at once.
  bool are_here() const;
  /// Waits until they are here.
  const std::vector<float>& values() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tessera::optim
