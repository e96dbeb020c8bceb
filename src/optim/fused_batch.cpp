#include "optim/fused_batch.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <sstream>

namespace tessera::optim {
namespace {

/// The kernel walks over memory, from the first element to the last, and looks at no strides.
at::Tensor laid_out_like(const at::Tensor& parameter, const at::Tensor& tensor) {
  const bool same_order =
      tensor.strides() == parameter.strides() || (tensor.is_contiguous() && parameter.is_contiguous());
  const bool fits =
      same_order && tensor.scalar_type() == parameter.scalar_type() && tensor.device() == parameter.device();
  return fits ? tensor : at::empty_like(parameter).copy_(tensor);
}

at::Tensor state_like(const at::Tensor& parameter, const at::Tensor& state) {
  if (!state.defined()) return at::zeros_like(parameter);
  if (state.sizes() != parameter.sizes()) {
    std::ostringstream fault;
    fault << "AdamW: expected a state of shape " << parameter.sizes() << ", that of its parameter, found "
          << state.sizes() << "; it was saved by another model";
    throw ConfigError(fault.str());
  }
  return laid_out_like(parameter, state);
}

}  // namespace

void FusedBatch::add(const at::Tensor& parameter, const at::Tensor& gradient, torch::optim::AdamWParamState& state,
                     bool amsgrad) {
  at::Tensor stepped = parameter;
  if (!parameter.is_non_overlapping_and_dense()) {
    stepped = at::empty_like(parameter).copy_(parameter);
    write_backs_.emplace_back(parameter, stepped);
  }
  state.step(state.step() + 1);
  state.exp_avg(state_like(stepped, state.exp_avg()));
  state.exp_avg_sq(state_like(stepped, state.exp_avg_sq()));
  if (amsgrad) state.max_exp_avg_sq(state_like(stepped, state.max_exp_avg_sq()));

  parameters_.push_back(stepped);
  gradients_.push_back(laid_out_like(stepped, gradient));
  averages_.push_back(state.exp_avg());
  squares_.push_back(state.exp_avg_sq());
  if (amsgrad) greatest_squares_.push_back(state.max_exp_avg_sq());
  steps_.push_back(step_tensor(state.step(), parameter.device()));
}

const at::Tensor& FusedBatch::step_tensor(std::int64_t step, const at::Device& device) {
  at::Tensor& tensor = step_tensors_[step];
  if (!tensor.defined()) tensor = at::full({}, step, at::TensorOptions(at::kFloat).device(device));
  return tensor;
}

void FusedBatch::run(const torch::optim::AdamWOptions& options) {
  const auto& [beta1, beta2] = options.betas();
  at::_fused_adamw_(parameters_, gradients_, averages_, squares_, greatest_squares_, steps_, options.lr(), beta1, beta2,
                    options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false);
  for (auto& [parameter, stepped] : write_backs_) parameter.copy_(stepped);
}

}  // namespace tessera::optim
