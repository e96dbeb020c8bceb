#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace tessera::intercept {

/// Hears when a gradient has been added to a parameter's, as long as it lives. Also after the parameter was given other
/// memory: autograd then forgets the hooks of the node that adds. It comes before those.
/// Thread-safety: made and dropped while no backward pass runs; the function is called by whoever runs one.
class GradientNotice {
 public:
  /// `parameter` may be frozen: it is heard once it is trained.
  GradientNotice(at::Tensor parameter, std::function<void()> notice);
  ~GradientNotice();
  GradientNotice(GradientNotice&& other) noexcept;
  GradientNotice& operator=(GradientNotice&& other) noexcept;

 private:
  class Hook;
  void close() noexcept;

  at::Tensor parameter_;
  Hook* hook_ = nullptr;  // the tensor's own
};

}  // namespace tessera::intercept
