#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace bench {

/// The arithmetic of `torch.optim.AdamW(lr=3e-4, fused=True)`, which LibTorch's own AdamW does not have.
class FusedAdamW {
 public:
  explicit FusedAdamW(std::vector<at::Tensor> parameters);

  /// Requires: every parameter has a gradient.
  void step();
  /// As `zero_grad(set_to_none=True)`.
  void zero_grad();

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> averages_;
  std::vector<at::Tensor> squares_;
  std::vector<at::Tensor> steps_;
};

}  // namespace bench
