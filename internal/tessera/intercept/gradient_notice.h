#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace tessera::intercept {

/// Calls a function when the gradient of a parameter has been accumulated, as long as this object lives. It is called
/// before the hooks of the accumulating node. Unlike those, it is also called after the parameter was given other
/// memory.
/// Thread-safety: made and dropped while no backward pass runs; the function is called by threads that run one.
class GradientNotice {
 public:
  /// `parameter` may be frozen: `notice` is called once it is trained.
  GradientNotice(at::Tensor parameter, std::function<void()> notice);
  ~GradientNotice();
  GradientNotice(GradientNotice&& other) noexcept;
  GradientNotice& operator=(GradientNotice&& other) noexcept;

 private:
  class Hook;
  void close() noexcept;

  at::Tensor parameter_;
  Hook* hook_ = nullptr;  // owned by the tensor
};

}  // namespace tessera::intercept
