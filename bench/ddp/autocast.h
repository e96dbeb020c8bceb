#pragma once

#include <ATen/autocast_mode.h>

namespace bench {

/// What `with torch.autocast("cpu", torch.bfloat16, enabled)` does in Python.
/// Thread-safety: acts on the thread that makes it, which must also end it.
class [[nodiscard]] Autocast {
 public:
  explicit Autocast(bool enabled)
      : was_enabled_(at::autocast::is_autocast_enabled(at::kCPU)), dtype_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    // The cache holds casts of the weights, which the optimizer is about to change.
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, was_enabled_);
    at::autocast::set_autocast_dtype(at::kCPU, dtype_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool was_enabled_;
  at::ScalarType dtype_;
};

}  // namespace bench
