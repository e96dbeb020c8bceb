#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace tessera::optim {

/// What one call of the fused kernel takes: parameters of one device and dtype, with their gradients and states.
class FusedBatch {
 public:
  /// Advances `state` by a step and makes what it lacks. Requires: gradient and parameter are dense, of one dtype and
  /// device.
  void add(const at::Tensor& parameter, const at::Tensor& gradient, torch::optim::AdamWParamState& state, bool amsgrad);
  void run(const torch::optim::AdamWOptions& options);

 private:
  const at::Tensor& step_tensor(std::int64_t step, const at::Device& device);

  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> averages_;
  std::vector<at::Tensor> squares_;
  std::vector<at::Tensor> greatest_squares_;
  std::vector<at::Tensor> steps_;
  std::map<std::int64_t, at::Tensor> step_tensors_;             // by number: most parameters share one
  std::vector<std::pair<at::Tensor, at::Tensor>> write_backs_;  // a parameter with gaps, and the copy that is stepped
};

}  // namespace tessera::optim
