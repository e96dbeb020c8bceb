#include "fused_adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

namespace bench {

FusedAdamW::FusedAdamW(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
  for (const at::Tensor& parameter : parameters_) {
    averages_.push_back(at::zeros_like(parameter));
    squares_.push_back(at::zeros_like(parameter));
    steps_.push_back(at::zeros({}, at::kFloat));
  }
}

void FusedAdamW::step() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters_.size());
  for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
  at::_foreach_add_(steps_, 1);
  at::_fused_adamw_(parameters_, gradients, averages_, squares_, /*max_exp_avg_sqs=*/{}, steps_, /*lr=*/3e-4,
                    /*beta1=*/0.9, /*beta2=*/0.999, /*weight_decay=*/1e-2, /*eps=*/1e-8, /*amsgrad=*/false,
                    /*maximize=*/false);
}

void FusedAdamW::zero_grad() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

}  // namespace bench
