#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace tessera {

/// While it lives, matrix products and what else is safe compute in `dtype`, weights and the rest stay as they are:
/// what `with torch.autocast(device, dtype)` does in Python.
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
/// Thread-safety: acts on the thread that makes it, which must also end it. Backward's threads take it over. LibTorch
/// keeps the casts of all threads together: where ranks are threads, one that ends its outermost guard drops those of
/// the others, which are then made anew. A weight that is used several times may so be summed in another precision;
/// ranks that are processes are not concerned.
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
