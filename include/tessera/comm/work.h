#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>

namespace tessera {

/// A collective or transfer under way. Cheap to copy; copies refer to the same operation.
/// The tensors of the operation are kept alive until it is done; do not write them before `wait()` returns.
class Work {
 public:
  struct State;

  Work() = default;
  explicit Work(std::shared_ptr<State> state);

  /// Blocks: until the operation is done, then completes it (copies a result back into a strided tensor, say).
  /// Throws CommError naming the operation, the group, the rank and the line that started it.
  void wait();

  /// As `wait()`, and returns the tensor that the operation made. Throws ConfigError when it makes none.
  at::Tensor result();

  /// Whether `wait()` would return without blocking. Never blocks.
  bool is_completed() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace tessera
