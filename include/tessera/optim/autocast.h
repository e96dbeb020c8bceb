#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace tessera {

/// While it lives, matrix products and other operators that LibTorch considers safe compute in `dtype`; weights keep
/// their type. The same as `with torch.autocast(device, dtype)` in Python.
///
///   at::Tensor loss;
///   {
///     const tessera::Autocast autocast(at::kBFloat16);
///     loss = model->forward(batch);
///   }
///   loss.backward();  // outside: each operator's backward runs in its forward's precision by itself
///
/// Guards nest, and `at::kFloat` switches off: `const Autocast full(at::kFloat)` inside another one computes in full
/// precision. The casts of weights are kept until the outermost guard of the thread ends, so end it before the
/// optimizer's step.
/// Thread-safety: acts on the thread that makes it, which must also end it. Backward's threads inherit it. LibTorch
/// has one cache of casts for all threads: where ranks are threads, a rank that ends its outermost guard drops the
/// casts of the others, which are then made again. So the gradients of a weight that is used several times may be
/// summed in another precision. Ranks that are processes are not affected.
class [[nodiscard]] Autocast {
 public:
  /// Throws ConfigError unless `dtype` is kBFloat16, kHalf or kFloat, and `device` has autocast.
  explicit Autocast(at::ScalarType dtype, at::DeviceType device = at::kCPU);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool was_enabled_;
  at::ScalarType dtype_before_;
};

}  // namespace tessera
